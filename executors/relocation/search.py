# SPDX-License-Identifier: Apache-2.0
"""When tables are searched for relocations that only the tables have recorded."""

import math
import time
from datetime import timedelta

from lake.model import TableRef
from lake.relocation.model import DiscoveryResult

RELOCATION_SEARCH_INTERVAL = timedelta(minutes=10)
"""The interval between searches of a table for relocations that the database does not have; each costs two listings."""


class RelocationSearch:
    """The times of one process's last searches. Not thread-safe."""

    def __init__(self) -> None:
        #: name and location of a table → time of its last complete search
        self._searched_at: dict[tuple[str, str], float] = {}

    def is_due(self, table: TableRef) -> bool:
        """Return True if the table must be searched again."""
        searched_at = self._searched_at.get((table.name, table.location), -math.inf)
        return time.monotonic() - searched_at > RELOCATION_SEARCH_INTERVAL.total_seconds()

    def mark_searched(self, table: TableRef, result: DiscoveryResult) -> None:
        """Note that the table was searched.

        If a search left a commit to its executor, it is repeated at the next sweep: the executor may have been killed.
        """
        if not (result.left_to_executors or result.left_to_plans):
            self._searched_at[table.name, table.location] = time.monotonic()


class NoRelocationSearch(RelocationSearch):
    """Never searches. It is used for a table's former name, which the configuration no longer gives to the table.

    The search under the table's present name transfers the records. A search under the former name would transfer them
    back.
    """

    def is_due(self, table: TableRef) -> bool:
        return False
