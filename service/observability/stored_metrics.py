# SPDX-License-Identifier: Apache-2.0
"""Gauges over rows of the database that a loop fetched before: a scrape asks nobody."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeHistogramMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lake.model import HISTOGRAM_EDGES_BYTES
from lake.plan import LIVE_STATES, PlanKind, PlanState
from service.documents import backlog_seconds
from service.observability.metric_specs import SPECS

if TYPE_CHECKING:
    from service.documents.lake_cache import Lake
    from service.store import Figures, ScanRecord

#: Every second edge of the scans' histogram, 1 KiB to 16 GiB by fours: half the series, still telling small from good.
BUCKET_EDGES_BYTES = HISTOGRAM_EDGES_BYTES[::2]

_LAYOUT: Mapping[str, Callable[["ScanRecord"], float | None]] = {
    "lakefold_table_files": lambda scan: scan.files,
    "lakefold_table_bytes": lambda scan: scan.bytes,
    "lakefold_table_small_files": lambda scan: scan.small_files,
    "lakefold_table_small_file_bytes": lambda scan: scan.small_bytes,
    "lakefold_table_log_files": lambda scan: scan.log_files,
    "lakefold_table_log_bytes": lambda scan: scan.log_bytes,
    "lakefold_table_partitions": lambda scan: scan.partitions,
    "lakefold_table_damaged_slices": lambda scan: scan.damaged,
    "lakefold_table_overlapping_commits": lambda scan: scan.overlaps,
    "lakefold_table_not_planned": lambda scan: scan.not_planned is not None,
    "lakefold_table_reducible_files": lambda scan: scan.reducible_files,
    "lakefold_table_residual_files": lambda scan: scan.residual_files,
    "lakefold_table_reducible_bytes": lambda scan: scan.reducible_bytes,
    "lakefold_table_snapshot_timestamp_seconds": lambda scan: scan.taken_at.timestamp(),
}


def _gauge(name: str, samples: Iterable[tuple[Sequence[str], float]]) -> GaugeMetricFamily:
    spec = SPECS[name]
    family = GaugeMetricFamily(name, spec.meaning, labels=spec.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _doing(lake: "Lake", role: str) -> int:
    living = [process for process in lake.processes if process.live and process.role in (role, "all")]
    return sum(role != "executor" or process.problem is None for process in living)


def buckets(counts: Sequence[int]) -> list[tuple[str, float]]:
    """Cumulative buckets at ``BUCKET_EDGES_BYTES`` and +Inf of a ``lake.model.SizeHistogram``'s ``counts``."""
    sums = list(itertools.accumulate(counts))
    return [*((str(float(edge)), sums[2 * n]) for n, edge in enumerate(BUCKET_EDGES_BYTES)), ("+Inf", sums[-1])]


class StoredFigures(Collector):
    """Yields the reading given to ``publish`` last; nothing before the first time."""

    def __init__(self) -> None:
        self._lake: Lake | None = None

    def publish(self, lake: "Lake") -> None:
        """Show this reading from now on."""
        self._lake = lake

    def describe(self) -> Iterator[Metric]:
        """The stored metrics' names, so that the registry refuses a second metric of such a name."""
        for spec in SPECS.values():
            if spec.type == "gaugehistogram":
                yield GaugeHistogramMetricFamily(spec.name, spec.meaning, labels=spec.labels)
            elif spec.stored:
                yield _gauge(spec.name, ())

    def collect(self) -> Iterator[Metric]:
        """The figures as metric families."""
        lake = self._lake
        if lake is None:
            return
        figures, last = lake.figures, lake.last
        yield from self._layout(figures, lake.good)
        scans = (((t.name, t.format), last[t.name].outcome != "ok") for t in figures.tables if t.name in last)
        yield _gauge("lakefold_table_scan_failed", scans)
        yield _gauge("lakefold_table_mode", (((t.name, t.format, t.mode), 1) for t in figures.tables))
        yield _gauge("lakefold_table_paused", (((t.name, t.format), t.paused) for t in figures.tables))
        yield _gauge("lakefold_table_halted", (((t.name, t.format), t.halted) for t in figures.tables))
        yield from self._plans(figures)
        lasts = backlog_seconds(lake)
        yield _gauge("lakefold_plan_backlog_seconds", [] if lasts is None else [((), lasts)])
        tables = {(t.name, t.format): (0, 0) for t in figures.tables if t.mode == "compact"}
        superseded = tables | {(s.table, s.format): (s.files, s.bytes) for s in figures.superseded}
        yield _gauge("lakefold_superseded_files", ((labels, files) for labels, (files, _) in superseded.items()))
        yield _gauge("lakefold_superseded_bytes", ((labels, bytes_) for labels, (_, bytes_) in superseded.items()))
        messages = {"waiting": figures.notifications_waiting, "dead": figures.notifications_dead}
        yield _gauge("lakefold_notifications", (((state,), count) for state, count in messages.items()))
        yield _gauge("lakefold_processes", (((role,), _doing(lake, role)) for role in ("scheduler", "executor", "api")))
        yield _gauge("lakefold_paused", [((), figures.paused)])
        yield _gauge("lakefold_figures_timestamp_seconds", [((), figures.taken_at.timestamp())])

    def _layout(self, figures: "Figures", scans: Mapping[str, "ScanRecord"]) -> Iterator[Metric]:
        readable = [((t.name, t.format), scans[t.name]) for t in figures.tables if t.name in scans]
        for name, value in _LAYOUT.items():
            found = ((labels, value(scan)) for labels, scan in readable)
            yield _gauge(name, ((labels, number) for labels, number in found if number is not None))
        spec = SPECS["lakefold_table_file_size_bytes"]
        sizes = GaugeHistogramMetricFamily(spec.name, spec.meaning, labels=spec.labels)
        for labels, scan in readable:
            if scan.histogram:
                sizes.add_metric(labels, buckets(scan.histogram), scan.bytes)
        yield sizes

    def _plans(self, figures: "Figures") -> Iterator[Metric]:
        kinds = {(t.name, t.format, PlanKind.CLUSTERING) for t in figures.tables if t.mode == "compact"}
        kinds |= {(row.table, row.format, row.kind) for row in figures.plans}
        plans = {(*labels, state): 0 for labels in sorted(kinds) for state in PlanState}
        backlog = dict.fromkeys(sorted(kinds), 0)
        for row in figures.plans:
            plans[row.table, row.format, row.kind, row.state] += row.plans
            if row.state in LIVE_STATES:
                backlog[row.table, row.format, row.kind] += row.input_bytes
        yield _gauge("lakefold_plans", plans.items())
        yield _gauge("lakefold_plan_backlog_bytes", backlog.items())
        oldest = figures.oldest_requested_at
        yield _gauge(
            "lakefold_plan_oldest_requested_timestamp_seconds", [((), oldest.timestamp())] if oldest is not None else ()
        )
