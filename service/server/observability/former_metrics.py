# SPDX-License-Identifier: Apache-2.0
"""Former names of metrics: exported for one release beside the present ones, with the same samples."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

#: former name → present name
FORMER_METRICS: Mapping[str, str] = MappingProxyType(
    {
        "lakefold_planner_looks_total": "lakefold_planner_written_scans_total",
        "lakefold_planner_look_duration_seconds": "lakefold_planner_written_scan_duration_seconds",
        "lakefold_planner_look_partitions_total": "lakefold_planner_written_scan_partitions_total",
        "lakefold_figures_timestamp_seconds": "lakefold_stored_metrics_timestamp_seconds",
    }
)

#: present name of a metric family (without a counter's ``_total``) → former name, present name
_RENAMED_FAMILIES = {new.removesuffix("_total"): (old, new) for old, new in FORMER_METRICS.items()}


class FormerMetrics(Collector):
    """The collector of ``sources`` under former names; every metric of ``sources`` has a former name."""

    def __init__(self, sources: Sequence[Collector]) -> None:
        self._sources = sources

    def describe(self) -> Iterator[Metric]:
        """Yield no names: the registry knows the present ones."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield a copy of each metric."""
        for source in self._sources:
            yield from map(former_copy, source.collect())


def former_copy(metric: Metric) -> Metric:
    """Return ``metric`` under its former name, marked as deprecated."""
    old, new = _RENAMED_FAMILIES[metric.name]
    family = old.removesuffix("_total")
    copied = Metric(family, f"Deprecated, use {new}.", metric.type)
    copied.samples = [sample._replace(name=family + sample.name.removeprefix(metric.name)) for sample in metric.samples]
    return copied
