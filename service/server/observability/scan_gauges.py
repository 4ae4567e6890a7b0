# SPDX-License-Identifier: Apache-2.0
"""The gauges of the last good scan of each table: files, bytes, small files, and the distribution of file sizes."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from lake.model import HISTOGRAM_EDGES_BYTES
from service.server.observability.metric_specs import SPECS
from service.server.observability.table_series import SampleColumn, SeriesFamily, series_family, table_key

if TYPE_CHECKING:
    from service.control.store import ScanRecord, TableState

#: every second edge of the scans' histogram, 1 KiB to 16 GiB: this halves the number of series
BUCKET_EDGES_BYTES = HISTOGRAM_EDGES_BYTES[::2]

#: each gauge of a scan, and its value; None leaves the table out
SCAN_GAUGES: Mapping[str, Callable[["ScanRecord"], float | None]] = {
    "lakefold_table_files": lambda scan: scan.files,
    "lakefold_table_bytes": lambda scan: scan.bytes,
    "lakefold_table_small_files": lambda scan: scan.small_files,
    "lakefold_table_small_file_bytes": lambda scan: scan.small_bytes,
    "lakefold_table_log_files": lambda scan: scan.log_files,
    "lakefold_table_log_bytes": lambda scan: scan.log_bytes,
    "lakefold_table_partitions": lambda scan: scan.partitions,
    "lakefold_table_damaged_slices": lambda scan: scan.damaged,
    "lakefold_table_over_budget_slices": lambda scan: scan.over_budget,
    "lakefold_table_overlapping_commits": lambda scan: scan.overlaps,
    "lakefold_table_foreign_files": lambda scan: scan.foreign_files,
    "lakefold_table_not_planned": lambda scan: int(scan.not_planned is not None),
    "lakefold_table_reducible_files": lambda scan: scan.reducible_files,
    "lakefold_table_residual_files": lambda scan: scan.residual_files,
    "lakefold_table_reducible_bytes": lambda scan: scan.reducible_bytes,
    "lakefold_table_snapshot_timestamp_seconds": lambda scan: scan.taken_at.timestamp(),
}


def scan_families(tables: "Iterable[TableState]", scan_by_table: "Mapping[str, ScanRecord]") -> Iterator[SeriesFamily]:
    """Yield the metrics of the last good scan of each table."""
    readable = [(table_key(table), scan_by_table[table.name]) for table in tables if table.name in scan_by_table]
    names, scans = [name for name, _ in readable], [scan for _, scan in readable]
    for name, value in SCAN_GAUGES.items():
        values = [value(scan) for scan in scans]
        present = [number for number in values if number is not None]
        keys = (
            names if len(present) == len(values) else [n for n, v in zip(names, values, strict=True) if v is not None]
        )
        yield series_family(name, keys, present)
    spec = SPECS["lakefold_table_file_size_bytes"]
    sized = [(name, scan) for name, scan in readable if scan.histogram]
    keys = [name for name, _ in sized]
    counts = [buckets(scan.histogram) for _, scan in sized]
    edges = [{"le": edge} for edge in (*(str(float(edge)) for edge in BUCKET_EDGES_BYTES), "+Inf")]
    yield (
        spec,
        [
            SampleColumn(
                sample=f"{spec.name}_bucket",
                tables=keys,
                extra_labels=edges,
                values=list(itertools.chain.from_iterable(counts)),
            ),
            SampleColumn(sample=f"{spec.name}_gcount", tables=keys, values=[sums[-1] for sums in counts]),
            SampleColumn(sample=f"{spec.name}_gsum", tables=keys, values=[scan.bytes for _, scan in sized]),
        ],
    )


def buckets(counts: Sequence[int]) -> list[int]:
    """Return the cumulative buckets at ``BUCKET_EDGES_BYTES`` and +Inf for ``counts`` of a ``SizeHistogram``."""
    sums = list(itertools.accumulate(counts))
    return [*sums[: 2 * len(BUCKET_EDGES_BYTES) : 2], sums[-1]]
