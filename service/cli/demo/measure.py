# SPDX-License-Identifier: Apache-2.0
"""The measurements of the demo's table: the sizes of its live files, and the duration of a query."""

import time
from dataclasses import dataclass

import pyarrow as pa

from lake.formats import load_format
from lake.model import SizeHistogram, Snapshot, TableRef, base_file_sizes
from service.cli.demo.table_formats import DemoLake

QUERY = "sum of fares by city and day where passengers ≥ 2"
_RUNS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTiming:
    """The duration of the query: the best of ``runs``, each of which opens the table again."""

    seconds: float
    runs: int
    answer: pa.Table


def measure_layout(table: TableRef, small_file_limit_bytes: int) -> SizeHistogram:
    """List the live files through the table's format, without a JVM, and measure their sizes."""
    snapshot: Snapshot = load_format(table.format).snapshot(table)
    return SizeHistogram.of(base_file_sizes(snapshot.slices), small_file_limit_bytes)


def time_query(lake: DemoLake) -> QueryTiming:
    """Run the query once to warm the file cache, then measure further runs."""
    seconds = []
    answer = _query(lake)
    for _ in range(_RUNS):
        begun = time.perf_counter()
        answer = _query(lake)
        seconds.append(time.perf_counter() - begun)
    # The best time, as in timeit, because other load on the machine only slows a run down.
    return QueryTiming(seconds=min(seconds), runs=_RUNS, answer=answer)


def _query(lake: DemoLake) -> pa.Table:
    return (
        lake.read(["city", "day", "fare", "passengers"], passengers=2)
        .group_by(["city", "day"])
        .aggregate([("fare", "sum")])
        .sort_by([("city", "ascending"), ("day", "ascending")])
    )
