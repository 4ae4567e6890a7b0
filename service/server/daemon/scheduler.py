# SPDX-License-Identifier: Apache-2.0
"""The scheduler's loops: find tables, scan due tables, answer requests. Only the leader of scans acts."""

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial

from lake import capabilities
from lake.errors import LakefoldError, TableGone, Transient, one_line
from lake.logfields import log_fields
from lake.model import TableRef
from planner.reasons import Reason
from service.control import serializers
from service.control.config.catalog import Catalog
from service.control.config.loader import Config
from service.control.config.table_settings import ConfiguredTable, configure_table, unmatched_rules
from service.control.planning.adoption import AbandonedActionLog, abandoned_actions
from service.control.planning.missing_directory import (
    is_gone,
    naming_missing_directory,
    refuse_missing_directory,
)
from service.control.planning.observed_state import record_failed_scan
from service.control.planning.plan_request import PlanResponse
from service.control.planning.requests import serve_request
from service.control.planning.scan import (
    WrittenScan,
    scan_and_plan,
    scan_written_partitions,
)
from service.control.store import Request, Store, StoreError, TableState, WriteReport, WrongState
from service.modes import PLANNED_MODES
from service.server.daemon.keyed_pool import KeyedPool
from service.server.observability.metrics import Metrics

logger = logging.getLogger(__name__)

#: scans mostly wait for storage; requests have their own threads, so that scans do not delay people
_SCAN_WORKERS = 4
_REQUEST_WORKERS = 2
_WRITTEN_WORKERS = 2
#: the delay before sources are searched again after a first search with problems; it doubles each time
_FIRST_SEARCH_RETRY_SECONDS = 1.0
#: the delay before reported partitions of a table that did not answer are scanned again
_WRITTEN_RETRY_DELAY = timedelta(seconds=30)
#: ends of quiet periods with a smaller difference are equal, since a scan knows the age of a file only to the second
_SAME_MOMENT = timedelta(seconds=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanHooks:
    """The hooks of a scan.

    ``on_success`` is called after a successful scan; ``planning_trace(table, traceparent)`` is its context.
    """

    on_success: Callable[[], None] = lambda: None
    planning_trace: Callable[[str, str | None], AbstractContextManager[None]] = lambda table, traceparent: nullcontext()


class Scheduler:
    """The ticks of the scan, requests and written loops. The failure of a table does not affect the others."""

    def __init__(
        self,
        config: Config,
        store: Store,
        catalog: Catalog,
        metrics: Metrics,
        *,
        is_leader: Callable[[], bool],
        actor: str,
        hooks: ScanHooks | None = None,
    ) -> None:
        self._config, self._store, self._catalog, self._metrics = config, store, catalog, metrics
        self._is_leader, self._actor, self._hooks = is_leader, actor, hooks or ScanHooks()
        self._config_lock = threading.Lock()
        #: the configuration from which ``_tables`` have their settings
        self._tables_config = config
        self._scan_pool, self._request_pool = KeyedPool("scan", _SCAN_WORKERS), KeyedPool("request", _REQUEST_WORKERS)
        self._written_pool = KeyedPool("written", _WRITTEN_WORKERS)
        self._tables: dict[str, ConfiguredTable] = {}
        self._due_at: dict[str, float] = {}
        self._discover_at = 0.0
        self._source_problems: list[str] = []
        #: the delay after a search that failed or found problems
        self._search_retry_seconds = _FIRST_SEARCH_RETRY_SECONDS
        self._failing: set[str] = set()
        #: tables whose last scan could plan nothing only because of the quiet period, with the end of that period
        self._waiting_until: dict[str, datetime] = {}
        #: tables that a scan did not find, for which a search was requested
        self._missing: set[str] = set()
        self._abandoned_work = AbandonedActionLog()

    def discover(self) -> None:
        """Find tables; register new and changed ones. A table is due at once if it changed or is new to this process.

        Earlier scans of the table do not count: they may be of another process, a dry run, or of other settings.
        """
        config = self._config
        tables = {table.name: table for table in self._catalog.tables()}
        self._report_source_problems()
        known = {state.name: state for state in self._store.table_states()}
        for table in tables.values():
            state = known.get(table.name)
            # The identity is left out of the comparison: only scans determine it.
            if state is None or (replace(state.ref, identity=None), state.mode) != (table.ref, table.mode):
                self._store.register_table(table.ref, table.mode, table.owner, table.tags, table.resource_group)
                logger.info("table %s at %s: mode %s", table.name, table.ref.location, table.mode)
        self._update_missing_tables(known, tables)
        if not self._tables and not self._source_problems:
            for warning in unmatched_rules(self._config, tables).values():
                logger.warning("%s", warning)
        for name, table in tables.items():
            before = self._tables.get(name)
            if before is None or not _has_same_planning(before, table):
                self._due_at[name] = 0.0
        self._due_at = {name: at for name, at in self._due_at.items() if name in tables}
        budgets = {
            name: min(one.budget_left for one in missed)
            for name, found in self._store.objectives().items()
            if (missed := [one for one in found if not one.met])
        }
        # Tables that miss objectives come first, the one with the least remaining error budget before all others.
        self._tables = dict(sorted(tables.items(), key=lambda item: budgets.get(item[0], math.inf)))
        self._tables_config = config
        if not tables:
            self._metrics.record_planner_success()
            self._hooks.on_success()

    def _update_missing_tables(self, known: Mapping[str, TableState], tables: Mapping[str, ConfiguredTable]) -> None:
        """Apply the current rules to tables that were not found.

        Plans of tables that have another name now, or no source, are cancelled, except plans of requests.
        """
        names = {table.ref.location: name for name, table in tables.items()}
        for state in known.values():
            if state.name in tables:
                continue
            present = tables.get(names.get(state.location, ""))
            table = configure_table(self._config, _with_present_address(state.ref, present))
            if (table.ref, table.mode) != (state.ref, state.mode):
                self._store.register_table(table.ref, table.mode)
            if state.location in names:
                reason = f"{state.name} is called {names[state.location]} now"
            elif not self._catalog.covers(state):
                reason = f"no source of the configuration covers {state.name}"
            else:
                # A source that can't be read may still have the table, and a check of each table could take very long.
                if not self._source_problems:
                    self._scan_pool.submit(state.name, partial(self._record_if_gone, table))
                continue
            last = self._store.last_scan(state.name, ok=True)
            if last is not None and last.not_planned is not None:
                # Status and alert would show the reason for ever, since this name is no longer scanned.
                self._store.record_scan(replace(last, not_planned=None))
            for plan_id in sorted(set(self._store.locked_partitions(state.name).values())):
                if self._store.plan(plan_id).request_id is None:
                    with suppress(WrongState):  # the plan has ended meanwhile
                        self._store.request_cancel(plan_id, self._actor, reason)

    def _record_if_gone(self, table: ConfiguredTable) -> None:
        """Record a failed scan of a table that its source no longer has, unless only the source can't be read."""
        last = None if table.mode == "off" else self._store.last_scan(table.name)
        if last is None or last.is_gone:
            return
        try:
            with naming_missing_directory(table.ref):
                table.adapter.check(table.ref)
            refuse_missing_directory(table.ref)
        except (LakefoldError, OSError) as error:
            if not is_gone(table.ref, error):
                return
            record_failed_scan(self._store, table, error)
            logger.warning("table %s: %s", table.name, one_line(error))

    def use_config(self, config: Config) -> None:
        """Use ``config`` from now on. The next tick searches for tables; tables with another policy are due then.

        Scans that have not begun are left out; they are due again after the search.
        """
        with self._config_lock:
            self._config = self._catalog.config = config
        self._discover_at = 0.0

    def _register(self, table: ConfiguredTable, config: Config) -> bool:
        """Register a table with its settings in ``config``; False if another configuration is in force now.

        Executors run plans by the registration, and a scan may have waited since before ``use_config``.
        """
        with self._config_lock:
            if config is not self._config:
                return False
            self._store.register_table(table.ref, table.mode, table.owner, table.tags, table.resource_group)
            return True

    def request_discovery(self) -> None:
        """Search for tables at the next tick: a table is missing and may have another name now."""
        self._discover_at = 0.0

    def tick(self, *, all_tables: bool = False) -> None:
        """Submit a scan for every due table, and search for tables if a search is due. Raises StoreError.

        With ``all_tables`` the search and all tables are due.
        """
        if not self._is_leader():
            return
        now = time.monotonic()
        if all_tables or now >= self._discover_at:
            self._discover_at = now + self._search_retry_seconds  # applies if the search fails
            self.discover()
            interval = self._config.daemon.discover_interval.total_seconds()
            # A source that is briefly unavailable, such as a starting metastore, must not hide its tables for minutes.
            self._search_retry_seconds = (
                min(interval, 2 * self._search_retry_seconds) if self._source_problems else _FIRST_SEARCH_RETRY_SECONDS
            )
            if self._discover_at:  # 0 if another search was requested meanwhile
                self._discover_at = now + (self._search_retry_seconds if self._source_problems else interval)
        for name, table in self._tables.items():
            due = table.mode != "off" and (all_tables or now >= self._due_at[name])
            if due and self._scan_pool.submit(name, self._scan_job(table, self._tables_config)):
                self._due_at[name] = now + table.policy.scan_interval.total_seconds()

    def answer_requests(self) -> None:
        """Submit every open request. Raises StoreError."""
        if not self._is_leader():
            return
        for request in self._store.open_requests():
            self._request_pool.submit(request.request_id, self._request_job(request))

    def scan_written(self) -> None:
        """Submit a scan for every table with due reports of written partitions. Raises StoreError."""
        if not self._is_leader():
            return
        for name, written in self._store.due_write_reports().items():
            self._written_pool.submit(name, self._written_job(name, written))

    def wait(self) -> None:
        """Block until all submitted jobs have ended."""
        for lanes in (self._scan_pool, self._request_pool, self._written_pool):
            lanes.wait()

    def stop(self) -> None:
        """Discard waiting jobs and return when the running jobs have ended."""
        for lanes in (self._scan_pool, self._request_pool, self._written_pool):
            lanes.stop()

    def _scan_job(self, table: ConfiguredTable, config: Config) -> Callable[[], None]:
        def scan() -> None:
            if not self._is_leader():
                return
            began = time.monotonic()
            try:
                if not self._register(table, config):
                    self._due_at[table.name] = 0.0
                    return
                unfinished = cache(partial(capabilities.pending_actions, table.adapter, table.ref))
                answer = scan_and_plan(config, self._store, table, actor=self._actor, unfinished=unfinished)
                self._abandoned_work.log_new(table.name, abandoned_actions(self._store, table.name, unfinished()))
            except Exception as error:
                self._metrics.record_scan(table.ref.format, "error", time.monotonic() - began, {})
                self._scan_failed(table, error, time.monotonic() - began)
            else:
                self._metrics.record_scan(table.ref.format, "ok", time.monotonic() - began, _skipped_partitions(answer))
                self._hooks.on_success()
                self._missing.discard(table.name)
                if table.name in self._failing:
                    self._failing.discard(table.name)
                    logger.info("table %s: can be scanned again", table.name)
                _log_plans(table.name, answer.plan_ids)
                with suppress(StoreError):
                    self._scan_after_quiet_period(table)

        return self._in_trace(table.name, scan)

    def _scan_after_quiet_period(self, table: ConfiguredTable) -> None:
        """Scan again when the quiet period ends, if nothing else keeps files of the table from being planned.

        If the previous scan waited as well and the table was written since then, the next scan comes after the usual
        interval. Otherwise a table that is written all the time would be scanned all the time.
        """
        before = self._waiting_until.pop(table.name, None)
        scan = self._store.last_scan(table.name, ok=True) if table.mode in PLANNED_MODES else None
        if scan is None or (until := scan.waiting_until) is None:
            return
        now = datetime.now(UTC)
        self._waiting_until[table.name] = until
        if before is None:
            files, quiet = scan.skipped.get(Reason.RECENT, 0), table.policy.quiet_period
            logger.info("table %s: waiting: %s", table.name, serializers.describe_waiting(files, until, quiet, now))
        if before is None or until - before < _SAME_MOMENT:
            due = time.monotonic() + max(0.0, (until - now).total_seconds())
            self._due_at[table.name] = min(due, self._due_at.get(table.name, due))

    def _request_job(self, request: Request) -> Callable[[], None]:
        def answer() -> None:
            if not self._is_leader():
                return
            try:
                given = serve_request(self._config, self._store, self._catalog, request)
            except StoreError as error:
                logger.warning("request %s: %s; it will be tried again", request.request_id, one_line(error))
                return
            except Exception as error:
                # An unexpected error is stored as the answer; otherwise the request would be retried every second.
                logger.exception("request %s for %s", request.request_id, request.table)
                given = PlanResponse.from_error(request.table, error)
                with suppress(StoreError):
                    self._store.answer_request(request.request_id, plan_ids=(), answer=given.document())
            logger.info("request %s by %s for %s: %s", request.request_id, request.actor, request.table, given.text)
            _log_plans(given.table, given.plan_ids)

        return self._in_trace(request.table, log_fields(request=request.request_id)(answer), request.traceparent)

    def _written_job(self, name: str, written: Collection[WriteReport]) -> Callable[[], None]:
        partitions = {entry.partition for entry in written if entry.partition is not None}

        def scan() -> None:
            if not self._is_leader():
                return
            again_in: Mapping[str | None, timedelta] = {}
            try:
                config, table = self._tables_config, self._tables.get(name)
                if table is None:
                    config, table = self._config, self._catalog.find(name)
                if not self._register(table, config):
                    raise Transient("the configuration was loaded again")
                if len(partitions) < len(written) and table.mode != "off":  # a writer reported the table as a whole
                    self._scan_job(table, config)()
                if partitions:
                    found = self._scan_written_partitions(config, table, partitions)
                    again_in = found.rescan_in
                    _log_plans(name, found.plan_ids, ", partitions just written")
            except (Transient, OSError) as error:
                again_in = dict.fromkeys((entry.partition for entry in written), _WRITTEN_RETRY_DELAY)
                wait = _WRITTEN_RETRY_DELAY.total_seconds()
                logger.warning(
                    "table %s: written partitions not scanned, again in %.0f s: %s", name, wait, one_line(error)
                )
            except StoreError as error:
                logger.warning(
                    "table %s: written partitions not recorded: %s; trying again at once", name, one_line(error)
                )
                return
            except Exception as error:
                # A full scan meets and records the same error; the report must not be retried every second.
                expected = isinstance(error, LakefoldError)
                logger.warning("table %s: written partitions: %s", name, one_line(error), exc_info=not expected)
            with suppress(StoreError):
                self._store.finish_write_reports(written, again_in)

        return self._in_trace(name, scan)

    def _scan_written_partitions(
        self, config: Config, table: ConfiguredTable, partitions: Collection[str]
    ) -> WrittenScan:
        """Scan and plan reported partitions, and record the metrics. Raises as ``scan_written_partitions`` does."""
        began = time.monotonic()
        try:
            found = scan_written_partitions(config, self._store, table, partitions, actor=self._actor)
        except Exception:
            self._metrics.record_written_scan(table.ref.format, "error", time.monotonic() - began, len(partitions))
            raise
        if found.is_listed:
            self._metrics.record_written_scan(table.ref.format, "ok", time.monotonic() - began, len(partitions))
        return found

    def _in_trace(self, table: str, work: Callable[[], None], traceparent: str | None = None) -> Callable[[], None]:
        def run_in_trace() -> None:
            with log_fields(table=table), self._hooks.planning_trace(table, traceparent):
                work()

        return run_in_trace

    def _scan_failed(self, table: ConfiguredTable, error: Exception, seconds: float) -> None:
        """Log when a table's scans begin to fail, with a traceback if the error is unexpected."""
        if isinstance(error, StoreError):
            logger.warning("table %s: scan not recorded: %s", table.name, one_line(error))
            return
        if isinstance(error, TableGone) and table.name not in self._missing:
            self._missing.add(table.name)
            self.request_discovery()
        expected = isinstance(error, (LakefoldError, OSError))
        if not expected:  # the scan itself has recorded expected errors
            with suppress(StoreError):
                record_failed_scan(self._store, table, error, seconds)
        if table.name not in self._failing:
            self._failing.add(table.name)
            logger.warning(
                "table %s: scan failed: %s", table.name, one_line(error), exc_info=None if expected else error
            )

    def _report_source_problems(self) -> None:
        """Log new problems of the search, and store all of them in the database for status and page."""
        for problem in self._catalog.problems:
            if problem not in self._source_problems:
                logger.warning("%s", problem)
        self._source_problems = list(self._catalog.problems)
        self._store.record_source_problems(self._source_problems)


def _with_present_address(former: TableRef, present: ConfiguredTable | None) -> TableRef:
    """Return a table under its ``former`` name, in the catalog as the configuration addresses it now.

    Plans under the former name end only if the catalog answers.
    """
    now = None if present is None or present.ref.format != former.format else present.ref.catalog
    if now is None or former.catalog is None or (now.kind, now.table) != (former.catalog.kind, former.catalog.table):
        return former
    return replace(former, catalog=now)


def _has_same_planning(one: ConfiguredTable, other: ConfiguredTable) -> bool:
    """True if scans of a table plan the same under both configurations."""
    return (one.ref, one.mode, one.access, one.policy) == (other.ref, other.mode, other.access, other.policy)


def _log_plans(table: str, plan_ids: Collection[str], why: str = "") -> None:
    for plan_id in plan_ids:
        fields = {"plan": plan_id, "table": table, "epoch": 0}
        logger.info("plan %s: requested for table %s%s", plan_id, table, why, extra=fields)


def _skipped_partitions(answer: PlanResponse) -> dict[str, int]:
    """Return the number of partitions with slices that are left alone, by reason."""
    skipped = {str(line["reason"]): int(line["partitions"]) for line in answer.reasons}
    # The reasons were computed after planning, when the new plans already hold their partitions.
    planned = {group["partition"] for plan in answer.plans for group in plan["groups"]}
    if Reason.HELD in skipped:
        skipped[Reason.HELD] -= len(planned)
    return {reason: partitions for reason, partitions in skipped.items() if partitions > 0}
