# SPDX-License-Identifier: Apache-2.0
"""A cached reading of the state of all tables from the database, shared by metrics, status and page.

The state of a thousand tables and a hundred thousand plans takes a moment to read. No page request waits for this: the
daemon reads at every refresh of its metrics, and a request in between starts the next reading in the background. A
script that acts on the status gets a reading that is at most one second old. A change made through this process
discards the reading: after a pause the table is shown as paused.
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
    GroupWait,
    Leader,
    PlanView,
    ProcessView,
    RetryingPlan,
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

#: the number of completed plans whose speed predicts how long the backlog will take
_RECENT_PLANS = 20
#: maximum number of plans shown beside the processes that run them
_MAX_RUNNING = 1000
#: older plans are ignored when writers are checked for contention
_CONTENTION_WINDOW = timedelta(hours=6)
#: a table counts as contested if its writers cancelled at least this many of its newest plans
_MIN_LOST = 3
#: age of a reading in seconds from which a page request starts the next reading in the background, and a script waits
#: for the next reading
_FRESH_SECONDS = 1.0
#: a page request starts no reading earlier than after this many times the duration of the last reading
_READ_INTERVAL_FACTOR = 10
#: the greatest age of a reading that is served, in seconds
_STALE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _DerivedValues:
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeState:
    """The state of all tables at one moment.

    Of each table it has the last, the last successful and the first successful scan. ``recent_plans`` are the last
    completed plans, newest first. ``failed_plans`` has the newest plan of each table if this plan failed.
    ``running_plans`` are the inflight plans. ``contested`` has the tables whose writers cancelled most of their newest
    plans. ``retrying_plans`` are the live plans of each table of which an attempt failed. ``trend_points`` are the
    points of all tables in modes propose and compact together.
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
    #: the requested plan that is or will be due first; plans that wait for approval are left out
    next_due_plan: PlanView | None = None
    work: WorkBudget = field(default_factory=WorkBudget)
    #: the parts of sources that the last search for tables could not read
    source_problems: Sequence[SourceProblem] = ()
    #: the objectives of each table
    objectives: Mapping[str, Sequence[TableObjective]] = field(default_factory=dict)
    retrying_plans: Mapping[str, Sequence[RetryingPlan]] = field(default_factory=dict)
    #: the plans of each table that wait for an executor, and their resource group
    waiting_by_group: Mapping[str, GroupWait] = field(default_factory=dict)
    #: values computed once for each reading; a reading limited to some tables has its own
    _derived: "_DerivedValues" = field(default_factory=lambda: _DerivedValues(), init=False, compare=False, repr=False)

    def cached(self, name: str, make: Callable[[], Derived]) -> Derived:
        """Return the value that ``make`` computes from this reading; it is kept under ``name``."""
        if name not in self._derived.values:
            self._derived.values[name] = make()
        return cast(Derived, self._derived.values[name])

    def limited_to(self, table_scope: TableScope) -> "LakeState":
        """Return the part for a caller who sees only the tables in ``table_scope``."""
        values = {known.name: getattr(self, known.name) for known in fields(self)}
        # The keys of all mappings are names of tables.
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
            next_due_plan=self.next_due_plan
            if self.next_due_plan is not None and table_scope.has_table(self.next_due_plan.table)
            else None,
            running_plans=[plan for plan in self.running_plans if table_scope.has_table(plan.table)],
            # Sums over all tables are shown only to a caller who may see all tables.
            work=self.work.limited_to(table_scope),
            # The path of the configuration file, and errors in it that may name any table.
            processes=[
                process if table_scope.is_unrestricted else replace(process, config_problem=None)
                for process in self.processes
            ],
            trend_points=self.trend_points if table_scope.is_unrestricted else (),
            source_problems=self.source_problems if table_scope.is_unrestricted else (),
        )


def read_lake_state(store: Store, row_cache: RowCache | None = None) -> LakeState:
    """Read the state now, without the rows in ``row_cache`` that did not change. Raises the store's errors."""
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
        next_due_plan=store.next_due_plan(),
        work=store.work_budget(),
        source_problems=store.source_problems(),
        objectives=store.objectives(),
        retrying_plans=store.retrying_plans(),
        waiting_by_group=store.waiting_by_group(),
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
        """Read now. Raises the store's errors; after an error the reading before is not served."""
        with self._reading:
            return self._read().lake

    def limited_to(self, table_scope: TableScope) -> "LakeCache":
        """Return this cache for a caller who sees only the tables in ``table_scope``."""
        return _ScopedLakeCache(self, table_scope)

    def invalidate(self) -> None:
        """Discard the reading, since the database was changed through this process."""
        self._changes += 1

    def get(self, *, fresh: bool = False) -> LakeState:
        """Return the newest reading, at most 30 seconds old, or with ``fresh`` at most one second.

        Raises the store's errors.
        """
        oldest = _FRESH_SECONDS if fresh else _STALE_SECONDS
        newest = self._fresh_reading(oldest)
        if newest is None:
            with self._reading:  # the thread that held the lock may have made a new reading
                return (self._fresh_reading(oldest) or self._read()).lake
        # A slow reading is made less often, so that readings take at most a tenth of the time.
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
        # Taken before the reading: if the database changes during it, the reading may have only a part of the change.
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
        except Exception as error:  # the next call gets the error
            logger.debug("not read: %s", one_line(error))
        finally:
            self._reading.release()


class _ScopedLakeCache(LakeCache):
    """The readings of another cache, limited to the tables in a scope."""

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
    """A reading begun ``at`` a time of the monotonic clock, after the given number of ``changes``."""

    lake: LakeState
    changes: int
    at: float
    seconds: float
