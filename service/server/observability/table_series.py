# SPDX-License-Identifier: Apache-2.0
"""The metrics with a series for each table, as columns.

Ten thousand tables have half a million samples. An object for each sample would take seconds at every refresh.
"""

import threading
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from service.server.observability.metric_specs import SPECS, MetricSpec

if TYPE_CHECKING:
    from service.control.store import TableState

#: name and format
TableKey = tuple[str, str]
_NO_EXTRA_LABELS: Sequence[Mapping[str, str]] = ({},)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleColumn:
    """The samples of one name: for each of ``tables``, one for each of ``extra_labels``.

    ``extra_labels`` are labels other than table and format. ``values`` has all values of the first table, then those of
    the second, and so on.
    """

    sample: str
    tables: Sequence[TableKey]
    values: Sequence[float]
    extra_labels: Sequence[Mapping[str, str]] = _NO_EXTRA_LABELS


#: a metric with its columns
SeriesFamily = tuple[MetricSpec, Sequence[SampleColumn]]


class TableSeries(Collector):
    """A collector of columns, from which both its samples and the page (``metrics_page.py``) are made."""

    def __init__(self, specs: Iterable[MetricSpec]) -> None:
        self.specs = tuple(specs)

    @abstractmethod
    def families(self) -> Iterator[tuple[MetricSpec, Sequence[SampleColumn]]]:
        """Yield each metric with its columns, in the order of the page."""

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics' names, so that the registry refuses duplicates."""
        for spec in self.specs:
            yield _metric(spec)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics with every sample in the library's form."""
        for spec, columns in self.families():
            metric = _metric(spec)
            for column in columns:
                labelled = product(column.tables, column.extra_labels)
                for ((table, format_), more), value in zip(labelled, column.values, strict=True):
                    metric.add_sample(column.sample, {"table": table, "format": format_, **more}, value)
            yield metric


class TableCounters(TableSeries):
    """Counters with a series for each table. Thread-safe."""

    def __init__(self, specs: Iterable[MetricSpec]) -> None:
        super().__init__(specs)
        self._lock = threading.Lock()
        #: name of the metric → labels besides table and format → counts
        self._counts: dict[str, dict[tuple[tuple[str, str], ...], dict[TableKey, float]]] = {
            spec.name: {} for spec in self.specs
        }

    def increment(self, name: str, amount: float, *, table: str, format: str, **labels: str) -> None:
        """Add ``amount`` to a counter; an amount of 0 creates the series."""
        with self._lock:
            counts = self._counts[name].setdefault(tuple(labels.items()), {})
            counts[table, format] = counts.get((table, format), 0) + amount

    def families(self) -> Iterator[tuple[MetricSpec, Sequence[SampleColumn]]]:
        """See TableSeries."""
        for spec in self.specs:
            with self._lock:
                columns = [
                    SampleColumn(
                        sample=spec.name,
                        tables=list(counts),
                        values=list(counts.values()),
                        extra_labels=(dict(labels),),
                    )
                    for labels, counts in self._counts[spec.name].items()
                ]
            yield spec, columns


def _metric(spec: MetricSpec) -> Metric:
    return Metric(spec.name.removesuffix("_total") if spec.type == "counter" else spec.name, spec.meaning, spec.type)


def table_key(table: "TableState") -> TableKey:
    """Return the labels of a table's samples."""
    return table.name, table.format


def series_family(name: str, tables: Sequence[TableKey], values: Sequence[float]) -> SeriesFamily:
    """Return the metric ``name`` with one value for each of ``tables``."""
    return SPECS[name], [SampleColumn(sample=name, tables=tables, values=values)]
