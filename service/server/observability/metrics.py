# SPDX-License-Identifier: Apache-2.0
"""The metrics of a process: its counters, and the database's figures as gauges. ``metric_specs.py`` lists the names.

The process has its own registry and never uses the library's global one. A scrape reads counters, and rows that a loop
fetched before: it lists no table and queries no database.
"""

import os
import platform
import time
import uuid
from collections.abc import Mapping

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector

from executors.observer import Observer
from executors.outcome import RunOutcome, RunResult
from lake.errors import SessionSpoiled, Transient
from lake.formats import FORMATS
from lake.model import TableRef
from lake.plan import AUTO, Claim, PlanKind, Step
from lake.version import __version__
from planner.reasons import Reason
from service.control.leadership import CLEAN_ROLE, SCAN_ROLE, SWEEP_ROLE
from service.server.observability.former_metrics import FORMER_METRICS, FormerMetrics
from service.server.observability.metric_specs import SPECS
from service.server.observability.stored_metrics import StoredFigures
from service.server.observability.table_series import TableCounters, TableSeries

#: the results that end a plan
FINAL_RESULTS = (RunResult.COMPLETED, RunResult.FAILED, RunResult.CANCELLED)
_SKIP_REASONS = tuple(reason for reason in Reason if reason is not Reason.CHOSEN)


class Metrics(Observer):
    """The registry of one process. The executor's observer events and the daemon's loops update it."""

    def __init__(self, role: str) -> None:
        if os.environ.get("PROMETHEUS_DISABLE_CREATED_SERIES", "true").lower() in ("true", "1", "t"):
            prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        #: the metrics without the label ``table``, and all metrics
        self.process_registry, self.registry = CollectorRegistry(), CollectorRegistry()
        registry = self.process_registry
        self.stored = StoredFigures()
        counted = [spec for spec in SPECS.values() if not spec.stored and "table" in spec.labels]
        own = [spec for spec in SPECS.values() if not spec.stored and spec not in counted]
        self._tables = TableCounters(counted)
        self._counters = {
            s.name: Counter(s.name, s.meaning, s.labels, registry=registry) for s in own if s.type == "counter"
        }
        self._gauges = {s.name: Gauge(s.name, s.meaning, s.labels, registry=registry) for s in own if s.type == "gauge"}
        self._histograms = {
            s.name: Histogram(s.name, s.meaning, s.labels, buckets=s.buckets, registry=registry)
            for s in own
            if s.type == "histogram"
        }
        build = SPECS["lakefold_build_info"]
        Info(build.name.removesuffix("_info"), build.meaning, registry=registry).info(
            {"version": __version__, "python": platform.python_version(), "role": role}
        )
        registry.register(self.stored)
        renamed = (self._counters | self._histograms).items()
        registry.register(FormerMetrics([one for name, one in renamed if name in FORMER_METRICS.values()]))
        ProcessCollector(registry=registry)
        self.table_series: tuple[TableSeries, ...] = (self.stored.tables, self._tables)
        self.registry.register(self.process_registry)
        for series in self.table_series:
            self.registry.register(series)
        self._initialized_tables: set[str] = set()
        self._start_at_zero()

    def _start_at_zero(self) -> None:
        """Create every series whose labels are known, so that it starts at 0 instead of being absent."""
        for state in ("busy", "free"):
            self._gauge("executor_slots", state=state)
        for role in (SCAN_ROLE, CLEAN_ROLE, SWEEP_ROLE):
            self._gauge("leader", role=role)
        for reason in _SKIP_REASONS:
            self._counter("planner_partitions_skipped_total", reason=reason)
        self._histogram("http_request_duration_seconds", method="GET", route="/metrics", status="200")
        for outcome in ("delivered", "failed", "dead"):
            self._counter("notification_attempts_total", outcome=outcome)
        for format_ in FORMATS:
            for outcome in ("ok", "error"):
                self._counter("planner_runs_total", format=format_, outcome=outcome)
                self._counter("planner_written_scans_total", format=format_, outcome=outcome)
            self._histogram("planner_run_duration_seconds", format=format_)
            self._histogram("planner_written_scan_duration_seconds", format=format_)
            self._counter("planner_written_scan_partitions_total", format=format_)
            self._counter("plan_leases_expired_total", format=format_)
            for retried in (Transient, SessionSpoiled):
                self._counter("plan_retries_total", format=format_, reason=retried.__name__)
            for kind in PlanKind:
                self._histogram("plan_wait_seconds", format=format_, kind=kind)
                for step in Step:
                    self._histogram("plan_stage_duration_seconds", format=format_, kind=kind, engine=AUTO, stage=step)

    def _counter(self, name: str, **labels: str) -> Counter:
        counter = self._counters[f"lakefold_{name}"]
        return counter.labels(**labels) if labels else counter

    def _count(self, name: str, amount: float, *, table: str, format: str, **labels: str) -> None:
        self._tables.increment(f"lakefold_{name}", amount, table=table, format=format, **labels)

    def _gauge(self, name: str, **labels: str) -> Gauge:
        gauge = self._gauges[f"lakefold_{name}"]
        return gauge.labels(**labels) if labels else gauge

    def _histogram(self, name: str, **labels: str) -> Histogram:
        return self._histograms[f"lakefold_{name}"].labels(**labels)

    def _start_plan_counters(self, *, table: str, format: str, kind: str, engine: str) -> None:
        """Start the counters of a table's plans at 0, so that rates include the first plan."""
        for outcome in FINAL_RESULTS:
            self._count("plans_finished_total", 0, table=table, format=format, kind=kind, outcome=outcome)
        for name in ("input_bytes", "output_bytes", "input_files", "output_files"):
            self._count(f"rewrite_{name}_total", 0, table=table, format=format, kind=kind, engine=engine)
        self._count("plan_commit_conflicts_total", 0, table=table, format=format)

    # What the loops of the daemon report.

    def start_table_counters(self, formats: Mapping[str, str]) -> None:
        """Start the counters of planned tables at 0. ``formats`` has each table's name and format."""
        for table in formats.keys() - self._initialized_tables:
            self._initialized_tables.add(table)
            where = {"table": table, "format": formats[table]}
            self._start_plan_counters(**where, kind=PlanKind.CLUSTERING, engine=AUTO)
            self._count("cleaner_deleted_bytes_total", 0, **where)
            self._count("cleaner_deleted_files_total", 0, **where)
            self._count("cleaner_failures_total", 0, **where, reason=Transient.__name__)

    def record_scan(self, format_: str, outcome: str, seconds: float, skipped_partitions: Mapping[str, int]) -> None:
        """Record a scan with planning of one table: outcome ok or error, and partitions left alone by reason."""
        self._counter("planner_runs_total", format=format_, outcome=outcome).inc()
        self._histogram("planner_run_duration_seconds", format=format_).observe(seconds)
        for reason, partitions in skipped_partitions.items():
            self._counter("planner_partitions_skipped_total", reason=reason).inc(partitions)
        if outcome == "ok":
            self.record_planner_success()

    def record_written_scan(self, format_: str, outcome: str, seconds: float, partitions: int) -> None:
        """Record a scan with planning of reported partitions of one table: outcome ok or error."""
        self._counter("planner_written_scans_total", format=format_, outcome=outcome).inc()
        self._histogram("planner_written_scan_duration_seconds", format=format_).observe(seconds)
        self._counter("planner_written_scan_partitions_total", format=format_).inc(partitions)

    def record_planner_success(self) -> None:
        """Record that the scan loop works: a table was scanned, or there is none."""
        self._gauge("planner_last_success_timestamp_seconds").set_to_current_time()

    def set_slots(self, *, busy: int, free: int) -> None:
        """Set the number of running plans, and of free slots."""
        self._gauge("executor_slots", state="busy").set(busy)
        self._gauge("executor_slots", state="free").set(free)

    def record_executor_heartbeat(self) -> None:
        """Record that the executor polled for work or extended a lease."""
        self._gauge("executor_last_heartbeat_timestamp_seconds").set_to_current_time()

    def set_leader(self, role: str, leads: bool) -> None:
        """Set whether this process holds the leader row of ``role``."""
        self._gauge("leader", role=role).set(leads)

    def record_notification_attempt(self, outcome: str) -> None:
        """Record the outcome of an attempt to deliver a message: delivered, failed or dead."""
        self._counter("notification_attempts_total", outcome=outcome).inc()

    def set_config_problem(self, differs: bool) -> None:
        """Set whether the configuration file differs from the configuration in force."""
        self._gauge("config_not_loaded").set(differs)

    def record_database_error(self) -> None:
        """Record a failed call to the database."""
        self._counter("database_errors_total").inc()

    def record_response(self, method: str, route: str, status: int, seconds: float) -> None:
        """Record that an HTTP answer began ``seconds`` after its request; ``route`` is the template of its path."""
        self._histogram("http_request_duration_seconds", method=method, route=route, status=str(status)).observe(
            seconds
        )

    # executors.observer.Observer

    def step_finished(self, claim: Claim, step: Step, seconds: float) -> None:
        plan = claim.plan
        format_ = plan.table.format
        self._histogram(
            "plan_stage_duration_seconds", format=format_, kind=plan.kind, engine=plan.options.engine, stage=step
        ).observe(seconds)
        if step is Step.FIND_COMMIT:
            self._start_plan_counters(table=plan.table.name, format=format_, kind=plan.kind, engine=plan.options.engine)
        if step is Step.FIND_COMMIT and claim.epoch == 1 and (made := _created_at_seconds(plan.plan_id)) is not None:
            waited = max(0.0, time.time() - seconds - made)
            self._histogram("plan_wait_seconds", format=format_, kind=plan.kind).observe(waited)

    def plan_finished(self, claim: Claim, outcome: RunOutcome) -> None:
        plan = claim.plan
        where = {"table": plan.table.name, "format": plan.table.format}
        if outcome.result not in FINAL_RESULTS:
            self._counter("plan_retries_total", format=plan.table.format, reason=outcome.reason).inc()
            return
        self._count("plans_finished_total", 1, **where, kind=plan.kind, outcome=outcome.result)
        if outcome.reason == "Conflict":
            self._count("plan_commit_conflicts_total", 1, **where)
        if outcome.result is RunResult.COMPLETED:
            figures = outcome.figures
            work = {**where, "kind": plan.kind, "engine": plan.options.engine}
            self._count("rewrite_input_files_total", sum(f.files_before for f in figures), **work)
            self._count("rewrite_input_bytes_total", sum(f.bytes_before for f in figures), **work)
            self._count("rewrite_output_files_total", sum(f.files_after for f in figures), **work)
            self._count("rewrite_output_bytes_total", sum(f.bytes_after for f in figures), **work)

    def lease_expired(self, claim: Claim) -> None:
        self._counter("plan_leases_expired_total", format=claim.plan.table.format).inc()

    def files_deleted(self, table: TableRef, files: int, bytes_: int) -> None:
        where = {"table": table.name, "format": table.format}
        self._count("cleaner_deleted_files_total", files, **where)
        self._count("cleaner_deleted_bytes_total", bytes_, **where)

    def clean_failed(self, table: TableRef, reason: str) -> None:
        self._count("cleaner_failures_total", 1, table=table.name, format=table.format, reason=reason)

    def clean_succeeded(self) -> None:
        self._gauge("cleaner_last_success_timestamp_seconds").set_to_current_time()


def _created_at_seconds(plan_id: str) -> float | None:
    """Return the seconds since 1970 in a UUIDv7, or None for another kind of id."""
    try:
        made = uuid.UUID(plan_id)
    except ValueError:
        return None
    return (made.int >> 80) / 1000 if made.version == 7 else None
