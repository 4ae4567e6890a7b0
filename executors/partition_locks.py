# SPDX-License-Identifier: Apache-2.0
"""Partitions that a round of the cleaner or the sweep holds, where no lock of the table keeps plans away."""

import logging
import threading
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from lake.errors import LeaseLost, one_line
from lake.identity import executor_name
from lake.model import TableRef, partition_label
from lake.plan import LockOwner, LockOwnerKind
from lake.plan_store import PlanStore
from lake.ports import Capability, TableFormat
from lake.relocation_store import RelocationStore

log = logging.getLogger(__name__)

_RENEW_INTERVAL_SECONDS = 30.0
_JOIN_SECONDS = 10.0


class PartitionLock:
    """One round's hold on partitions of one table; ``release`` ends it, and without that it ends in some minutes.

    Once begun it is only gone on with: who was stopped until it had run out does not get it back, though nobody should
    have it then. Somebody may have had it in between. ``beside_plans``: also on partitions of plans, which do not
    commit meanwhile; of the cleaner only where nobody runs them.
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
        """Begin to hold ``partitions``; those of them that no plan and no other round holds."""
        if not self._is_needed:
            return frozenset(partitions)
        return frozenset(
            self._store.lock_partitions(self._table, partitions, self._owner, alongside_plans=self._alongside_plans)
        )

    def renew(self, partitions: Collection[str]) -> None:
        """Go on holding ``partitions``. Raises LeaseLost where the hold on one of them has ended since it began."""
        if not self._is_needed:
            return
        if lost := set(partitions) - set(self._store.renew_partitions(self._table, partitions, self._owner)):
            raise LeaseLost(f"{partition_label(min(lost))} of {self._table.name} may be somebody else's by now")

    def fenced_store(self, store: RelocationStore, partition: str) -> RelocationStore:
        """``store``, in which nothing is written of a partition's places but while it is held."""
        return store.under_partition_lock(self._table, partition, self._owner) if self._is_needed else store

    @contextmanager
    def renewing(self, partitions: Collection[str]) -> Iterator[None]:
        """Go on holding ``partitions`` from a second thread, too: what the block does may take long at any point."""
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(_RENEW_INTERVAL_SECONDS):
                try:
                    self.renew(partitions)
                except Exception as error:
                    log.warning("table %s: %s does not hold on: %s", self._table.name, self._owner, one_line(error))

        thread = threading.Thread(target=renew, name=f"hold {self._owner.name}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(_JOIN_SECONDS)  # one that hangs in a dead connection must not hold up the round

    def release(self) -> None:
        """Give partitions back to the planner at once."""
        if not self._is_needed:
            return
        try:
            self._store.release_partitions(self._owner)
        except Exception as error:
            log.warning("table %s: its partitions stay with %s: %s", self._table.name, self._owner, one_line(error))
