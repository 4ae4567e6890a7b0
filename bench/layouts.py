# SPDX-License-Identifier: Apache-2.0
"""The data that readers skip in each layout of ``sort_columns``, and the cost of sorting a large group.

The engine ``arrow`` rewrites lineitem unsorted, and sorted by ``l_shipdate`` and ``l_partkey`` in each layout, into the
same number of files. Queries with a range of both columns then run on each table, in DuckDB and in Spark: ranges of an
eighth, a 16th and a 32nd of a column's values, at several places. DuckDB reports the number of row groups that it
scans, and Spark the number of rows that its Parquet scan returns. Then a group of 2 GiB is sorted along Hilbert's
curve, and the memory of its process is compared with that of the idle process. Each rewrite has its own process. Exits
1 if a bar is missed.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # Needed to run from a clone without an installation.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench.bars import Verdict
from bench.lineitem import FILES_A_SCALE, write_lineitem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAYOUTS = ("unsorted", "linear", "zorder", "hilbert")
SORT_COLUMNS = ("l_shipdate", "l_partkey")
SPARK = {"spark.master": "local[2]", "spark.driver.memory": "2g", "spark.sql.adaptive.enabled": "false"}
FIRST_DAY, DAYS, PARTS_A_SCALE = date(1992, 1, 2), 2_526, 200_000
SHARES, PLACES = (1 / 8, 1 / 16, 1 / 32), (0.1, 0.35, 0.6, 0.85)
BAR_SHARE, BAR_MIB = 1 / 3, 400.0


def rewrite(layout: str, source: Path, folder: Path, files: int) -> None:
    """Rewrite the files of ``source`` as one group; print seconds, CPU seconds and peak MiB above the idle process."""
    from bench.processes import memory
    from executors.engines.arrow import ArrowEngine
    from executors.engines.backends import InProcessBackend
    from lake.engines import RewriteTask
    from lake.plan import RewriteOptions

    folder.mkdir(parents=True)
    inputs = tuple(sorted(map(str, source.glob("*.parquet"))))
    outputs = tuple(str(folder / f"{number:04}.parquet") for number in range(files))
    task = RewriteTask(group=0, inputs=inputs, outputs=outputs, bytes=sum(map(os.path.getsize, inputs)))
    is_sorted = layout != "unsorted"
    options = RewriteOptions(
        target_file_max_bytes=1 << 30,
        sort_columns=SORT_COLUMNS if is_sorted else (),
        layout=layout if is_sorted else "linear",
    )
    engine = ArrowEngine(InProcessBackend(1))
    idle, begun, spent = memory("self", "VmRSS"), time.perf_counter(), time.process_time()
    if (reason := engine.unsupported_reason(task, options)) is not None:
        raise SystemExit(reason)
    list(engine.rewrite([task], options, lambda _: None, threading.Event()))
    figures = {
        "seconds": time.perf_counter() - begun,
        "cpu_seconds": time.process_time() - spent,
        "peak_mib": (memory("self", "VmHWM") - idle) / (1 << 20),
        "bytes": sum(path.stat().st_size for path in folder.iterdir()),
    }
    print(json.dumps(figures))


def filters(scale: int) -> Iterator[str]:
    """Yield the conditions of the queries, each with a range of both columns."""
    parts = PARTS_A_SCALE * scale
    for share in SHARES:
        for index, place in enumerate(PLACES):
            day = FIRST_DAY + timedelta(days=round(place * DAYS))
            part = round(PLACES[(index * 3 + 1) % len(PLACES)] * parts)
            yield (
                f"l_shipdate between date '{day}' and date '{day + timedelta(days=round(share * DAYS))}' "
                f"and l_partkey between {part} and {part + round(share * parts)}"
            )


def row_groups_read(table: Path, condition: str) -> tuple[int, int]:
    """Return how many row groups DuckDB scans for a query, and the number of rows that match."""
    import duckdb

    with duckdb.connect() as connection, tempfile.NamedTemporaryFile(suffix=".json") as profile:
        connection.execute(f"pragma enable_profiling = 'json'; pragma profiling_output = '{profile.name}'")
        query = f"select count(l_comment) from read_parquet('{table}/*.parquet') where {condition}"
        ((rows,),) = connection.execute(query).fetchall()
        found: dict[str, Any] = json.loads(Path(profile.name).read_text())
    return int(found["query"]["total_row_groups_scanned"]), int(rows)


def rows_read(spark: "SparkSession", table: Path, condition: str) -> tuple[int, int]:
    """Return the number of rows that Spark's Parquet scan returns for a query, and the number that match."""
    found = spark.read.parquet(str(table)).where(condition).selectExpr("count(l_comment)")
    ((rows,),) = found.collect()
    (scan,) = [found._jdf.queryExecution().executedPlan().collectLeaves().apply(0)]
    return int(scan.metrics().apply("numOutputRows").value()), int(rows)


def compare_readers(source: Path, work: Path, scale: int) -> bool:
    """Rewrite lineitem in each layout, and print what the queries read of it; returns True if no bar was missed."""
    from bench.trips import child
    from executors.spark import spark_session

    spark = spark_session(SPARK)
    files = FILES_A_SCALE * scale
    print(f"{files} files; reads of {len(list(filters(scale)))} queries, DuckDB in row groups and Spark in rows")
    columns = f"{'row groups':>11} {'share':>6} {'rows':>12} {'share':>6}"
    print(f"{'':<10} {'seconds':>8} {'CPU s':>7} {'peak MiB':>9} {'MB':>6} {columns}")
    read: dict[str, tuple[int, int]] = {}
    matching: set[tuple[int, ...]] = set()
    for layout in LAYOUTS:
        table = work / layout
        run = child(__file__, "--rewrite", layout, str(source), str(table), str(files))
        in_duckdb = [row_groups_read(table, condition) for condition in filters(scale)]
        in_spark = [rows_read(spark, table, condition) for condition in filters(scale)]
        matching |= {tuple(rows for _, rows in found) for found in (in_duckdb, in_spark)}
        groups, rows = read[layout] = sum(one for one, _ in in_duckdb), sum(one for one, _ in in_spark)
        shares = groups / read["unsorted"][0], rows / read["unsorted"][1]
        used = f"{run['seconds']:>8.1f} {run['cpu_seconds']:>7.1f} {run['peak_mib']:>9.0f} {run['bytes'] / 1e6:>6.0f}"
        print(f"{layout:<10} {used} {groups:>11,} {shares[0]:>6.3f} {rows:>12,} {shares[1]:>6.3f}", flush=True)
        shutil.rmtree(table)
    spark.stop()
    if len(matching) != 1:
        raise SystemExit("the queries found different rows in different layouts")
    verdicts = []
    for number, (reader, what) in enumerate((("DuckDB", "row groups"), ("Spark", "rows"))):
        for layout in LAYOUTS[1:]:
            share = read[layout][number] / read["unsorted"][number]
            bar = f"{layout}: {what} that {reader} reads, at most {BAR_SHARE:.3f} of those of the unsorted table"
            verdicts.append(Verdict(bar, f"{share:.3f}", share <= BAR_SHARE))
        ratio = read["hilbert"][number] / read["zorder"][number]
        bar = f"hilbert: {what} that {reader} reads, no more than with zorder"
        verdicts.append(Verdict(bar, f"{ratio:.3f} of them", ratio <= 1))
    print("\n".join(map(str, verdicts)))
    return all(verdict.is_met for verdict in verdicts)


def measure_large_group(source: Path, work: Path) -> bool:
    """Sort a large group along Hilbert's curve and print the memory it takes; returns False if the bar was missed."""
    from bench.trips import child

    size = sum(path.stat().st_size for path in source.glob("*.parquet"))
    run = child(__file__, "--rewrite", "hilbert", str(source), str(work / "large"), str(max(1, size >> 28)))
    print(
        f"\na group of {size / (1 << 30):.2f} GiB along Hilbert's curve: {run['seconds']:.0f} s, "
        f"{run['cpu_seconds']:.0f} CPU s"
    )
    bar = f"hilbert, a large group: memory above the idle process, at most {BAR_MIB:.0f} MiB"
    verdict = Verdict(bar, f"{run['peak_mib']:.0f}", run["peak_mib"] <= BAR_MIB)
    print(verdict)
    return bool(verdict.is_met)


def main() -> int:
    """Write the files, measure and print; returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=1, help="TPC-H's scale factor of the table that is queried")
    parser.add_argument(
        "--large-scale", type=int, default=10, help="TPC-H's scale factor of the large group; 0 leaves this part out"
    )
    parser.add_argument("--keep", type=Path, help="keep lineitem in this directory, or use the files in it")
    parser.add_argument("--rewrite", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rewrite:
        layout, source, folder, files = arguments.rewrite
        rewrite(layout, Path(source), Path(folder), int(files))
        return 0
    with tempfile.TemporaryDirectory(prefix="lakefold-bench-") as temporary:
        work = Path(temporary)
        folder = (arguments.keep or work).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        results = []
        if arguments.scale:
            results.append(compare_readers(write_lineitem(folder, arguments.scale), work, arguments.scale))
        if arguments.large_scale:
            results.append(measure_large_group(write_lineitem(folder, arguments.large_scale), work))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
