# SPDX-License-Identifier: Apache-2.0
"""Partitions that a round of the cleaner or the sweep holds, where no lock of the table keeps plans away."""

import logging
import uuid
from collections.abc import Collection

from lake.errors import one_line
from lake.identity import executor_name
from lake.model import TableRef
from lake.plan import Keeper, KeeperKind
from lake.plan_store import PlanStore
from lake.ports import Capability, TableFormat

log = logging.getLogger(__name__)


class Keeping:
    """One round's hold on partitions of one table; ``release`` ends it, and without that it ends in some minutes.

    ``beside_plans``: also on those of plans, which do not commit meanwhile; of the cleaner only where nobody runs them.
    """

    def __init__(
        self, kind: KeeperKind, table: TableRef, format_: TableFormat, store: PlanStore, *, beside_plans: bool = False
    ) -> None:
        self._table, self._store, self._beside_plans = table, store, beside_plans
        self._is_needed = Capability.TABLE_LOCK not in format_.capabilities
        self._keeper = Keeper(kind=kind, name=f"{executor_name()}/{uuid.uuid4().hex[:8]}")

    def hold(self, partitions: Collection[str]) -> frozenset[str]:
        """Hold, or go on holding, ``partitions``; those of them that no plan and no other round holds."""
        if not self._is_needed:
            return frozenset(partitions)
        return frozenset(self._store.keep(self._table, partitions, self._keeper, beside_plans=self._beside_plans))

    def release(self) -> None:
        """Give partitions back to the planner at once."""
        if not self._is_needed:
            return
        try:
            self._store.release(self._keeper)
        except Exception as error:
            log.warning("table %s: its partitions stay with %s: %s", self._table.name, self._keeper, one_line(error))
