# SPDX-License-Identifier: Apache-2.0
"""A cached reading of what the database knows of all tables: metrics, status and page share one reading of it.

A lake of a thousand tables and a hundred thousand plans takes a moment to add up. Nobody who opens a page waits for
that: the daemon reads at every refresh of its metrics, and whoever looks in between causes the next reading. A script
that acts on the status gets none older than a second, and nobody one from before a change made through this process:
whoever pauses a table sees it paused.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, TypeVar, cast

from lake.errors import one_line
from lake.plan import PlanState
from service.control.store import (
    ConflictCount,
    Figures,
    Leader,
    PlanView,
    ProcessView,
    RowCache,
    ScanRecord,
    SourceProblem,
    Store,
    TableObjective,
    TableScope,
    TrendPoint,
    WorkBudget,
)

logger = logging.getLogger(__name__)

Derived = TypeVar("Derived")

#: completed plans whose speed tells how long the backlog will take
_RECENT_PLANS = 20
#: as many plans as are named beside the processes that run them
_MAX_RUNNING = 1000
#: plans older than this say nothing of today's writers
_CONTENTION_WINDOW = timedelta(hours=6)
#: writers that took as many of a table's newest plans are no chance any more
_MIN_LOST = 3
#: a reading older than this is read anew behind the back of whoever gets it, or before a script does, in seconds
_FRESH_SECONDS = 1.0
#: as many times as long as a reading takes it is good enough for the page
_READ_INTERVAL_FACTOR = 10
#: nobody gets an older one, in seconds
_STALE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _Derived:
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeState:
    """All tables at one moment: the last scans, the last and the first that succeeded, and plans in numbers.

    ``recent`` are the plans completed last, newest first; ``failed`` the newest plan of each table where that failed;
    ``running`` are the plans inflight; ``contested`` the tables whose writers let few plans through; ``trend`` the
    points kept of all tables in modes propose and compact together.
    """

    figures: Figures
    last_scans: Mapping[str, ScanRecord]
    last_good_scans: Mapping[str, ScanRecord]
    first_scans: Mapping[str, ScanRecord]
    recent_plans: Sequence[PlanView]
    leaders: Sequence[Leader]
    failed_plans: Mapping[str, PlanView]
    processes: Sequence[ProcessView]
    running_plans: Sequence[PlanView]
    contested: Mapping[str, ConflictCount]
    trend_points: Sequence[TrendPoint]
    work: WorkBudget = field(default_factory=WorkBudget)
    #: what the last search for tables could not read
    source_problems: Sequence[SourceProblem] = ()
    #: what tables are held to
    objectives: Mapping[str, Sequence[TableObjective]] = field(default_factory=dict)
    #: made of it once, not again for each who looks; whoever sees less of it has none of it
    _derived: "_Derived" = field(default_factory=lambda: _Derived(), init=False, compare=False, repr=False)

    def cached(self, name: str, make: Callable[[], Derived]) -> Derived:
        """What ``make`` has made of this reading under this ``name``, now or before."""
        if name not in self._derived.values:
            self._derived.values[name] = make()
        return cast(Derived, self._derived.values[name])

    def limited_to(self, table_scope: TableScope) -> "LakeState":
        """The part of it for somebody who sees only the tables within ``reach``. All mappings have tables as keys."""
        values = {known.name: getattr(self, known.name) for known in fields(self)}
        by_table: dict[str, Any] = {
            name: {table: value for table, value in values[name].items() if table_scope.has_table(table)}
            for name in values
            if isinstance(values[name], Mapping)
        }
        return replace(
            self,
            **by_table,
            figures=self.figures.limited_to(table_scope),
            recent_plans=[plan for plan in self.recent_plans if table_scope.has_table(plan.table)],
            running_plans=[plan for plan in self.running_plans if table_scope.has_table(plan.table)],
            # The sum of all tables is nobody's who sees some of them.
            work=self.work.limited_to(table_scope),
            trend_points=self.trend_points if table_scope.is_unrestricted else (),
            source_problems=self.source_problems if table_scope.is_unrestricted else (),
        )


def read_lake_state(store: Store, row_cache: RowCache | None = None) -> LakeState:
    """Read it now; what is ``known`` of readings before is not read again. Raises what the store raises."""
    figures, scans = store.figures(row_cache), store.reference_scans(row_cache)
    return LakeState(
        figures=figures,
        last_scans=scans.latest,
        last_good_scans=scans.latest_ok,
        first_scans=scans.first_ok,
        recent_plans=store.plans(state=PlanState.COMPLETED, limit=_RECENT_PLANS),
        leaders=store.leaders(),
        processes=store.processes(),
        running_plans=store.plans(state=PlanState.INFLIGHT, limit=_MAX_RUNNING),
        contested={
            table: contest
            for table, contest in store.conflict_counts(_CONTENTION_WINDOW).items()
            if contest.conflicts >= _MIN_LOST
        },
        trend_points=store.trend(None),
        work=store.work_budget(),
        source_problems=store.source_problems(),
        objectives=store.objectives(),
        failed_plans=store.newest_failed_plans(
            sorted({row.table for row in figures.plans if row.state is PlanState.FAILED})
        ),
    )


class LakeCache:
    """The newest reading of a store. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reading = threading.Lock()
        self._row_cache = RowCache()
        self._newest: _Reading | None = None
        self._changes = 0

    def refresh(self) -> LakeState:
        """Read now. Raises what the store raises, and then nobody gets the reading before."""
        with self._reading:
            return self._read().lake

    def limited_to(self, table_scope: TableScope) -> "LakeCache":
        """The readings of this one, as whoever sees only the tables within ``reach`` gets them."""
        return _ScopedLakeCache(self, table_scope)

    def invalidate(self) -> None:
        """The database was changed through this process: nobody gets a reading from before."""
        self._changes += 1

    def get(self, *, fresh: bool = False) -> LakeState:
        """The newest reading, seconds old at most while somebody looks; with ``fresh`` one second at most.

        Raises what the store raises.
        """
        oldest = _FRESH_SECONDS if fresh else _STALE_SECONDS
        newest = self._fresh_reading(oldest)
        if newest is None:
            with self._reading:  # whoever had it may have read what we want
                return (self._fresh_reading(oldest) or self._read()).lake
        # What takes long to read is read less often: nine tenths of the time somebody else has the database.
        due = max(_FRESH_SECONDS, _READ_INTERVAL_FACTOR * newest.seconds)
        if time.monotonic() - newest.at > due and self._reading.acquire(blocking=False):
            threading.Thread(target=self._read_in_background, name="lake cache", daemon=True).start()
        return newest.lake

    def _fresh_reading(self, oldest_seconds: float) -> "_Reading | None":
        newest = self._newest
        if newest is None or newest.changes != self._changes or time.monotonic() - newest.at > oldest_seconds:
            return None
        return newest

    def _read(self) -> "_Reading":
        # Both from before: a reading during which something changed may have only a part of it.
        changes, at = self._changes, time.monotonic()
        try:
            lake = read_lake_state(self._store, self._row_cache)
            reading = _Reading(lake=lake, changes=changes, at=at, seconds=time.monotonic() - at)
        except BaseException:
            self._newest = None
            raise
        self._newest = reading
        return reading

    def _read_in_background(self) -> None:
        try:
            self._read()
        except Exception as error:  # the next one who asks gets it
            logger.debug("not read: %s", one_line(error))
        finally:
            self._reading.release()


class _ScopedLakeCache(LakeCache):
    """The readings of another cache, but for the tables that somebody may not see."""

    def __init__(self, whole: LakeCache, table_scope: TableScope) -> None:
        self._whole, self._table_scope = whole, table_scope

    def limited_to(self, table_scope: TableScope) -> LakeCache:
        return _ScopedLakeCache(self, table_scope)

    def refresh(self) -> LakeState:
        return self._whole.refresh().limited_to(self._table_scope)

    def invalidate(self) -> None:
        self._whole.invalidate()

    def get(self, *, fresh: bool = False) -> LakeState:
        return self._whole.get(fresh=fresh).limited_to(self._table_scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """A reading begun ``at`` a time of the monotonic clock, when there had been so many ``changes``."""

    lake: LakeState
    changes: int
    at: float
    seconds: float
