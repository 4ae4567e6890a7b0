# SPDX-License-Identifier: Apache-2.0
"""Gauges computed from cached rows of the database: a loop refreshes the cache, and a scrape makes no query."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, get_args

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lake.plan import LIVE_STATES, PlanKind, PlanState
from service.control.serializers import (
    backlog_seconds,
    needs_attention,
    prediction_errors,
    silent_processes,
    work_budget_document,
)
from service.control.store.views.budgets import BlockReason
from service.modes import PLANNED_MODES, Role
from service.server.observability.former_metrics import former_copy
from service.server.observability.metric_specs import SPECS, MetricSpec
from service.server.observability.scan_gauges import scan_families
from service.server.observability.table_series import (
    SampleColumn,
    SeriesFamily,
    TableKey,
    TableSeries,
    series_family,
    table_key,
)

if TYPE_CHECKING:
    from service.control.lake_cache import LakeState
    from service.control.store import Figures, TableObjective, TableState, WorkBudget


def _gauge(name: str, samples: Iterable[tuple[Sequence[str], float]]) -> GaugeMetricFamily:
    spec = SPECS[name]
    family = GaugeMetricFamily(name, spec.meaning, labels=spec.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _count_processes(lake: "LakeState", role: str) -> int:
    live = [process for process in lake.processes if process.live and process.role in (role, "all")]
    return sum(role != "executor" or process.problem is None for process in live)


class StoredFigures(Collector):
    """The metrics without the label ``table``, from the state last given to ``publish``; no metrics before that.

    ``tables`` has the metrics with the label ``table``.
    """

    def __init__(self) -> None:
        self._lake_state: LakeState | None = None
        self.tables = StoredTables(spec for spec in SPECS.values() if spec.stored and "table" in spec.labels)

    def publish(self, lake: "LakeState") -> None:
        """Use ``lake`` for all later scrapes."""
        self._lake_state = self.tables.lake_state = lake

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics' names, so that the registry refuses duplicates."""
        for spec in SPECS.values():
            if spec.stored and "table" not in spec.labels:
                yield _gauge(spec.name, ())

    def collect(self) -> Iterator[Metric]:
        """Yield the figures as metric families."""
        lake = self._lake_state
        if lake is None:
            return
        figures = lake.figures
        backlog, oldest = backlog_seconds(lake), figures.oldest_requested_at
        yield _gauge("lakefold_plan_backlog_seconds", [] if backlog is None else [((), backlog)])
        yield _gauge(
            "lakefold_plan_oldest_requested_timestamp_seconds", [((), oldest.timestamp())] if oldest is not None else ()
        )
        yield from _budget_metrics(lake.work)
        proposed = figures.oldest_proposed_at
        yield _gauge(
            "lakefold_plan_oldest_proposal_timestamp_seconds",
            [((), proposed.timestamp())] if proposed is not None else (),
        )
        errors = prediction_errors(lake.recent_plans)
        yield _gauge("lakefold_plan_prediction_error_ratio", (((name,), error) for name, error in errors.items()))
        messages = {"waiting": figures.notifications_waiting, "dead": figures.notifications_dead}
        yield _gauge("lakefold_notifications", (((state,), count) for state, count in messages.items()))
        yield _gauge(
            "lakefold_processes", (((role,), _count_processes(lake, role)) for role in ("scheduler", "executor", "api"))
        )
        silent = [process.role for process in silent_processes(lake.processes)]
        yield _gauge("lakefold_processes_silent", (((role,), silent.count(role)) for role in Role))
        yield _gauge("lakefold_source_problems", [((), len(lake.source_problems))])
        yield _gauge("lakefold_paused", [((), figures.paused)])
        taken_at = _gauge("lakefold_stored_metrics_timestamp_seconds", [((), figures.taken_at.timestamp())])
        yield taken_at
        yield former_copy(taken_at)


def _budget_metrics(work: "WorkBudget") -> Iterator[Metric]:
    document = work_budget_document(work)
    limited = {
        tuple(name.split("_per_")): amounts
        for name, amounts in document["budget"].items()
        if amounts["budget"] is not None
    }
    for name, field in (("lakefold_work_budget", "budget"), ("lakefold_work_used", "used")):
        yield _gauge(name, ((labels, amounts[field]) for labels, amounts in limited.items()))
    kinds = [plan.kind for plan in work.blocked_plans]
    yield _gauge("lakefold_plans_held", (((kind,), kinds.count(kind)) for kind in get_args(BlockReason)))


class StoredTables(TableSeries):
    """The series of each table in ``lake_state``; no series while it is None."""

    lake_state: "LakeState | None" = None

    def families(self) -> Iterator[tuple[MetricSpec, Sequence[SampleColumn]]]:
        """See TableSeries."""
        lake = self.lake_state
        if lake is None:
            return
        tables = lake.figures.tables
        names = [(table.name, table.format) for table in tables]
        yield from scan_families(tables, lake.last_good_scans)
        yield from _objective_families(lake)
        scanned = [table for table in tables if table.name in lake.last_scans]
        failed = [int(needs_attention(one, lake.last_scans[one.name], lake.figures.taken_at)) for one in scanned]
        yield series_family("lakefold_table_scan_failed", [(one.name, one.format) for one in scanned], failed)
        yield _mode_family(tables)
        yield series_family("lakefold_table_paused", names, [int(table.paused) for table in tables])
        yield series_family("lakefold_table_halted", names, [int(table.halted) for table in tables])
        halted = [len(table.halted_partitions) for table in tables]
        yield series_family("lakefold_table_halted_partitions", names, halted)
        yield from _plan_families(lake.figures)
        retrying = {
            table_key(table): len(lake.retrying_plans.get(table.name, ()))
            for table in tables
            if table.mode in PLANNED_MODES or table.name in lake.retrying_plans
        }
        yield series_family("lakefold_plans_retrying", list(retrying), list(retrying.values()))
        proposals = {table_key(table): 0 for table in tables if table.mode == "propose"}
        formats = dict(names)
        for entry in lake.figures.proposals:
            key = entry.table, formats[entry.table]
            proposals[key] = proposals.get(key, 0) + entry.plans
        yield series_family("lakefold_plan_proposals", list(proposals), list(proposals.values()))
        waiting: dict[TableKey, tuple[int, int]] = {
            table_key(table): (0, 0) for table in tables if table.mode in PLANNED_MODES
        }
        waiting |= {(entry.table, entry.format): (entry.files, entry.bytes) for entry in lake.figures.superseded}
        keys = list(waiting)
        yield series_family("lakefold_superseded_files", keys, [files for files, _ in waiting.values()])
        yield series_family("lakefold_superseded_bytes", keys, [bytes_ for _, bytes_ in waiting.values()])


def _objective_families(lake: "LakeState") -> Iterator[SeriesFamily]:
    """Yield the metrics of objectives, one column per objective, because tables have different objectives."""
    formats = {table.name: table.format for table in lake.figures.tables}
    by_objective: dict[str, list[TableObjective]] = {}
    for name, objectives in lake.objectives.items():
        for one in objectives if name in formats else ():
            by_objective.setdefault(str(one.objective), []).append(one)
    now = lake.figures.taken_at
    outcomes = [{"outcome": "met"}, {"outcome": "missed"}]
    values: Mapping[str, Callable[[TableObjective], Sequence[float]]] = {
        "lakefold_table_slo_met": lambda one: [int(one.met)],
        "lakefold_table_slo_seconds_total": lambda one: one.met_and_missed_seconds(now),
        "lakefold_table_slo_goal_ratio": lambda one: [one.goal],
        "lakefold_table_slo_budget_remaining_ratio": lambda one: [one.budget_left],
    }
    for name, value in values.items():
        label_sets = outcomes if "outcome" in SPECS[name].labels else [{}]
        yield (
            SPECS[name],
            [
                SampleColumn(
                    sample=name,
                    tables=[(one.table, formats[one.table]) for one in objectives],
                    values=list(itertools.chain.from_iterable(map(value, objectives))),
                    extra_labels=[{"objective": objective, **labels} for labels in label_sets],
                )
                for objective, objectives in sorted(by_objective.items())
            ],
        )


def _mode_family(tables: "Iterable[TableState]") -> SeriesFamily:
    by_mode: dict[str, list[TableKey]] = {}
    for table in tables:
        by_mode.setdefault(table.mode, []).append(table_key(table))
    name = "lakefold_table_mode"
    return SPECS[name], [
        SampleColumn(sample=name, tables=found, extra_labels=({"mode": mode},), values=[1] * len(found))
        for mode, found in sorted(by_mode.items())
    ]


def _plan_families(figures: "Figures") -> Iterator[SeriesFamily]:
    states = {state: index for index, state in enumerate(PlanState)}
    compacted = {table_key(table) for table in figures.tables if table.mode in PLANNED_MODES}
    kinds: dict[PlanKind, set[TableKey]] = {PlanKind.CLUSTERING: compacted}
    for row in figures.plans:
        kinds.setdefault(row.kind, set()).add((row.table, row.format))
    plans = {kind: {table: [0] * len(states) for table in sorted(tables)} for kind, tables in sorted(kinds.items())}
    backlog = {kind: dict.fromkeys(counts, 0) for kind, counts in plans.items()}
    proposed = {(one.table, one.kind, PlanState.REQUESTED): one.input_bytes for one in figures.proposals}
    for row in figures.plans:
        table = row.table, row.format
        plans[row.kind][table][states[row.state]] += row.plans
        if row.state in LIVE_STATES:
            backlog[row.kind][table] += row.input_bytes - proposed.get((row.table, row.kind, row.state), 0)
    name = "lakefold_plans"
    yield (
        SPECS[name],
        [
            SampleColumn(
                sample=name,
                tables=list(counts),
                values=list(itertools.chain.from_iterable(counts.values())),
                extra_labels=[{"kind": kind, "state": state} for state in states],
            )
            for kind, counts in plans.items()
        ],
    )
    name = "lakefold_plan_backlog_bytes"
    yield (
        SPECS[name],
        [
            SampleColumn(sample=name, tables=list(sums), values=list(sums.values()), extra_labels=({"kind": kind},))
            for kind, sums in backlog.items()
        ],
    )
