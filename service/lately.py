# SPDX-License-Identifier: Apache-2.0
"""What the database knows of all tables, read lately: metrics and page share one reading of it.

A lake of a thousand tables and a hundred thousand plans takes a moment to add up. Nobody who opens a page waits for
that: the daemon reads at every refresh of its metrics, and whoever looks in between causes the next reading.
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lake.plan import PlanState
from service import documents
from service.exitcodes import one_line
from service.store import Figures, Leader, PlanView, ScanRecord, Store

logger = logging.getLogger(__name__)

#: a reading older than this is read anew behind the back of whoever gets it, in seconds
_FRESH_SECONDS = 1.0
#: nobody gets an older one, in seconds
_STALE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """All tables at one moment: the last scans, the last and the first that succeeded, and plans in numbers."""

    figures: Figures
    last: Mapping[str, ScanRecord]
    good: Mapping[str, ScanRecord]
    first: Mapping[str, ScanRecord]
    recent: Sequence[PlanView]
    leaders: Sequence[Leader]


def read_lake(store: Store) -> Lake:
    """Read it now. Raises what the store raises."""
    return Lake(
        figures=store.figures(),
        last=store.last_scans(),
        good=store.last_scans(ok=True),
        first=store.first_scans(),
        recent=store.plans(state=PlanState.COMPLETED, limit=documents.RECENT_PLANS),
        leaders=store.leaders(),
    )


class Lately:
    """The newest reading of a store. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reading = threading.Lock()
        self._lake: Lake | None = None
        self._read_at = float("-inf")

    def refresh(self) -> Lake:
        """Read now. Raises what the store raises, and then nobody gets the reading before."""
        with self._reading:
            return self._read()

    def lake(self) -> Lake:
        """The newest reading, seconds old at most while somebody looks. Raises what the store raises."""
        lake, age = self._lake, time.monotonic() - self._read_at
        if lake is None or age > _STALE_SECONDS:
            return self.refresh()
        if age > _FRESH_SECONDS and self._reading.acquire(blocking=False):
            threading.Thread(target=self._read_behind, name="lately", daemon=True).start()
        return lake

    def _read(self) -> Lake:
        try:
            lake = read_lake(self._store)
        except BaseException:
            self._lake = None
            raise
        self._lake, self._read_at = lake, time.monotonic()
        return lake

    def _read_behind(self) -> None:
        try:
            self._read()
        except Exception as error:  # the next one who asks gets it
            logger.debug("not read: %s", one_line(error))
        finally:
            self._reading.release()
