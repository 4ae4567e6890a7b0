# SPDX-License-Identifier: Apache-2.0
"""Locks on partitions that a round of the cleaner or the sweep takes.

They are for formats whose tables have no lock of their own (``Capability.TABLE_LOCK``).
"""

import logging
import uuid
from collections.abc import Collection
from datetime import timedelta
from functools import partial

from lake.errors import LeaseLost, one_line
from lake.model import TableRef, partition_label
from lake.plan import LockOwner, LockOwnerKind
from lake.plan_store import PlanStore
from lake.ports import Capability, TableFormat
from lake.process_identity import executor_name
from lake.relocation_store import RelocationStore
from lake.renewal import Renewer

log = logging.getLogger(__name__)

_RENEW_INTERVAL = timedelta(seconds=30)
#: a renewal that hangs in a dead connection must not hold up the round
_JOIN_TIMEOUT = timedelta(seconds=10)


class PartitionLock:
    """One round's lock on partitions of one table. It ends with ``release``, or some minutes after its last renewal.

    An expired lock can't be renewed, even if the partition is free, since another owner may have locked it in between.
    With ``alongside_plans``, partitions of live plans are locked as well, and these plans can't commit meanwhile. The
    sweep also gets partitions of plans that an executor runs, unless they are in their commit; the cleaner gets only
    those of plans that no executor has claimed.
    """

    def __init__(
        self,
        kind: LockOwnerKind,
        table: TableRef,
        format_: TableFormat,
        store: PlanStore,
        *,
        alongside_plans: bool = False,
    ) -> None:
        self._table, self._store, self._alongside_plans = table, store, alongside_plans
        self._is_needed = Capability.TABLE_LOCK not in format_.capabilities
        self._owner = LockOwner(kind=kind, name=f"{executor_name()}/{uuid.uuid4().hex[:8]}")

    def lock(self, partitions: Collection[str]) -> frozenset[str]:
        """Lock ``partitions``, except those of a plan or of another round. Returns the locked partitions."""
        if not self._is_needed:
            return frozenset(partitions)
        return frozenset(
            self._store.lock_partitions(self._table, partitions, self._owner, alongside_plans=self._alongside_plans)
        )

    def renew(self, partitions: Collection[str]) -> None:
        """Renew the lock of ``partitions``. Raises LeaseLost if the lock on one of them had expired."""
        if not self._is_needed:
            return
        if lost := set(partitions) - set(self._store.renew_partitions(self._table, partitions, self._owner)):
            raise LeaseLost(f"{partition_label(min(lost))} of {self._table.name} may have another owner now")

    def fenced_store(self, store: RelocationStore, partition: str) -> RelocationStore:
        """Return a view of ``store`` that records a partition's locations only while the partition is locked."""
        return store.under_partition_lock(self._table, partition, self._owner) if self._is_needed else store

    def renewing(self, partition: str) -> Renewer:
        """Return the renewal of ``partition`` for a block with steps that may take long."""
        return Renewer(
            f"the lock of {self._owner} on {partition_label(partition)} of {self._table.name}",
            partial(self._renew_one, partition),
            interval=_RENEW_INTERVAL,
            # The timeout is safe: a renewal that arrives after the release neither extends nor repeats the lock.
            join_timeout=_JOIN_TIMEOUT,
        )

    def _renew_one(self, partition: str) -> str | None:
        try:
            self.renew({partition})
        except LeaseLost as lost:
            return one_line(lost)
        return None

    def release(self) -> None:
        """Release all partitions, so that they can be planned again."""
        if not self._is_needed:
            return
        try:
            self._store.release_partitions(self._owner)
        except Exception as error:
            log.warning(
                "table %s: its partitions stay locked by %s: %s", self._table.name, self._owner, one_line(error)
            )
