# SPDX-License-Identifier: Apache-2.0
"""lakefold against Hudi's own ``run_clustering`` on copies of one table, in one run.

There are two tables: 200 files of about 1 MB, and 60 files of about 8 MB with one row group each, which stream copy can
copy whole. Each measurement is its own process with a Spark session of the same settings. The process first clusters a
copy of the first table in the same way, because the JVM of a service that executes plans all day has compiled its code.
The clock runs from the scan (lakefold) or the call (Hudi) to the completed commit. lakefold's time includes its
database, its verification and its second check under the lock. Runs of the kinds alternate. CPU seconds and the peak
resident size are the sums of the Python process and its JVM; on a busy machine CPU seconds are the better measure. Rows
are compared afterwards.

The row writer saves time in reading, so its gain depends on the share of compression in the total time. ``trips`` has
19 narrow columns of a taxi company. ``payload`` is mostly 64 random bytes per row, for which Java's gzip, Hudi's
default, takes half of the total time.

Then a table of 5,000 file groups is listed and planned, cold and warm. Exits 1 if a bar is missed.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # Needed to run from a clone without an installation. This directory is replaced: its hudi.py would hide hudi-rs.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench.processes import cpu_seconds, memory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPARK = {"spark.master": "local[2]", "spark.driver.memory": "3g", "spark.sql.shuffle.partitions": "2"}
#: table → number of files
TABLES = {"200 x 1 MB": 200, "60 x 8 MB": 60}
#: rows per file for files of these sizes
ROWS = {"trips": {"200 x 1 MB": 30_000, "60 x 8 MB": 310_000}, "payload": {"200 x 1 MB": 10_500, "60 x 8 MB": 87_000}}
WARM = "200 x 1 MB"
ENGINES = {"row writer": "spark", "arrow": "arrow", "stream copy": "stitch"}
#: the speed to reach, as a multiple of run_clustering
BARS = {
    "trips": {"row writer": 1.2, "arrow": 2.0, "stream copy": 4.0},
    "payload": {"row writer": 1.0, "arrow": 1.5, "stream copy": 4.0},
}
#: table → the measured kinds; row groups of 1 MB are not copied, because the resulting file scans no faster
KINDS = {"200 x 1 MB": ("row writer", "arrow"), "60 x 8 MB": ("row writer", "arrow", "stream copy")}
GROUPS, PARTITIONS = 5_000, 50
BAR_PLANNING_SECONDS = 2.0


def write_tables(lake: Path, shape: str) -> None:
    """Write every table of the benchmark with Hudi's bulk insert; one table has 5,000 file groups."""
    from bench.trips import trips
    from executors.spark import spark_session

    spark = spark_session(SPARK)
    for name, files in TABLES.items():
        rows = spark.range(0, files * ROWS[shape][name], numPartitions=files)
        _write(trips(rows) if shape == "trips" else _payload(rows), lake / _directory(name), files=files)
    groups = spark.range(0, GROUPS, numPartitions=GROUPS // PARTITIONS)
    _write(_payload(groups, partitions=PARTITIONS), lake / "groups", files=GROUPS // PARTITIONS)
    spark.stop()


def _directory(name: str) -> str:
    return name.replace(" ", "_")


def _payload(rows: "DataFrame", partitions: int = 1) -> "DataFrame":
    from pyspark.sql import functions as f

    return rows.select(
        f.format_string("%012d", "id").alias("id"),
        f.format_string("p%02d", f.col("id") % partitions).alias("part"),
        (f.col("id") % 1000).alias("number"),
        f.rand(7).alias("value"),
        f.unhex(f.sha2(f.concat(f.lit("a"), f.col("id").cast("string")), 512)).alias("payload"),
        f.timestamp_seconds(f.lit(1_767_225_600) + f.col("id")).alias("at"),
    )


def _write(frame: "DataFrame", table: Path, *, files: int) -> None:
    options = {
        "hoodie.table.name": "bench",
        "hoodie.datasource.write.operation": "bulk_insert",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.precombine.field": "at",
        "hoodie.datasource.write.partitionpath.field": "part",
        "hoodie.bulkinsert.shuffle.parallelism": str(files),
        "hoodie.bulkinsert.sort.mode": "NONE",
        "hoodie.clean.automatic": "false",
        "hoodie.index.bloom.num_entries": "10000",
    }
    frame.write.format("hudi").options(**options).mode("append").save(str(table))


# --- one measurement, in its own process --------------------------------------------------------------------------


def measure(kind: str, source: Path, warm: Path, work: Path) -> dict[str, Any]:
    """Cluster a copy of ``warm`` and then of ``source`` by ``kind``; returns the figures and content of the second."""
    from executors.spark import spark_session

    spark = spark_session(SPARK)
    cluster = _by_hudi if kind == "hudi" else _by_lakefold(ENGINES[kind], work)
    seconds, computed, steps = 0.0, 0.0, {}
    processes = ("self", str(_jvm_pid(spark)))
    for label, template in (("warm", warm), ("table", source)):
        table = work / label
        shutil.copytree(template, table)
        begun, spent = time.perf_counter(), sum(map(cpu_seconds, processes))
        steps = cluster(spark, table)
        seconds, computed = time.perf_counter() - begun, sum(map(cpu_seconds, processes)) - spent
    peak = sum(map(_peak_mib, processes))
    used = {"seconds": seconds, "cpu_seconds": computed, "peak_mib": peak}
    return {**used, "steps": steps, **_content(spark, work / "table")}


def _by_hudi(spark: "SparkSession", table: Path) -> dict[str, float]:
    limits = (
        "hoodie.clustering.plan.strategy.small.file.limit=314572800,"
        "hoodie.clustering.plan.strategy.target.file.max.bytes=1073741824,"
        "hoodie.clustering.plan.strategy.max.bytes.per.group=2147483648"
    )
    spark.sql(f"CALL run_clustering(path => '{table}', options => '{limits}')").collect()
    return {}


def _by_lakefold(engine: str, work: Path) -> Callable[["SparkSession", Path], dict[str, float]]:
    from bench.plans import configure, run_plan

    config = configure(
        work,
        f"""[[sources]]
path = "{work}/warm"
name = "warm"
[[sources]]
path = "{work}/table"
name = "table"
[[tables]]
match = "*"
mode = "compact"
concurrency = "single_writer"
quiet_period = "0s"
engine = "{engine}"
""",
    )
    return lambda spark, table: run_plan(config, spark, table.name)


def _content(spark: "SparkSession", table: Path) -> dict[str, Any]:
    frame = spark.read.format("hudi").load(str(table))
    columns = [name for name in frame.columns if name != "_hoodie_file_name"]
    hashed = frame.selectExpr(f"cast(xxhash64({', '.join(columns)}) as decimal(38,0)) h", "_hoodie_file_name n")
    row = hashed.selectExpr("count(*) c", "sum(h) s", "count(distinct n) f").first()
    assert row is not None
    return {"rows": int(row.c), "hash": str(row.s), "files": int(row.f)}


def _jvm_pid(spark: "SparkSession") -> int:
    assert spark._jvm is not None
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())


def _peak_mib(process: str) -> float:
    return memory(process, "VmHWM") / (1 << 20)


def plan_groups(table: Path) -> dict[str, Any]:
    """Return the seconds to list and plan ``table`` in this process, the first time (cold) and the second (warm)."""
    from lake.formats import load_format
    from lake.model import TableRef
    from planner.planner import plan_table
    from planner.policy.policy import SizingPolicy

    adapter = load_format("hudi")
    ref = TableRef(name="groups", format="hudi", location=str(table))
    policy = SizingPolicy.from_settings({"quiet_period": "0s"})
    seconds, slices, chosen = [], 0, 0
    for _ in range(2):
        begun = time.perf_counter()
        adapter.check(ref)
        snapshot = adapter.snapshot(ref)
        planning = plan_table(snapshot, policy, now=datetime.now(UTC), plan_id="bench")
        seconds.append(time.perf_counter() - begun)
        slices = snapshot.slices.num_rows
        chosen = planning.plan.input_files if planning.plan else 0
    return {"cold": seconds[0], "warm": seconds[1], "slices": slices, "chosen": chosen, "peak_mib": _peak_mib("self")}


# --- the whole run -----------------------------------------------------------------------------------------------


def compare(lake: Path, repeats: int, bars: dict[str, float]) -> bool:
    """Print a line for each table and kind; returns True if every bar was met."""
    from bench.trips import child

    met = True
    print(f"{'table':<12} {'by':<22} {'seconds':>8} {'ratio':>6} {'CPU s':>6} {'peak MiB':>9} {'files':>6}")
    for table, kinds in KINDS.items():
        runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for _ in range(repeats):
            for kind in ("hudi", *kinds):
                with tempfile.TemporaryDirectory(dir=lake) as work:
                    source, warm = lake / _directory(table), lake / _directory(WARM)
                    runs[kind].append(child(__file__, "--measure", kind, str(source), str(warm), work))
        theirs = median(run["seconds"] for run in runs["hudi"])
        for kind, results in runs.items():
            seconds = median(run["seconds"] for run in results)
            ratio = theirs / seconds
            label = "Hudi run_clustering" if kind == "hudi" else f"lakefold, {kind}"
            peak = max(run["peak_mib"] for run in results)
            cpu = median(run["cpu_seconds"] for run in results)
            used = f"{seconds:>8.1f} {ratio:>5.2f}x {cpu:>6.1f} {peak:>9.0f}"
            print(f"{table:<12} {label:<22} {used} {results[0]['files']:>6}")
            if kind != "hudi":
                print("  " + " · ".join(f"{step} {seconds:.1f}" for step, seconds in results[0]["steps"].items()))
            if any((r["rows"], r["hash"]) != (runs["hudi"][0]["rows"], runs["hudi"][0]["hash"]) for r in results):
                raise SystemExit(f"{table}: the rows after {label} differ from the rows after Hudi's own clustering")
            if kind != "hudi" and ratio < bars[kind]:
                print(f"missed the bar of {bars[kind]} x run_clustering", file=sys.stderr)
                met = False
    return met


def main() -> int:
    """Write the tables, measure and print; returns 1 if a bar is missed."""
    from bench.trips import child

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each kind; medians are printed")
    parser.add_argument("--keep", type=Path, help="keep the tables in this directory, or use the tables in it")
    parser.add_argument("--shape", choices=list(ROWS), default="trips", help="columns of the tables")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--plan", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        write_tables(arguments.write, arguments.shape)
        return 0
    if arguments.measure:
        kind, *paths = arguments.measure
        print(json.dumps(measure(kind, *map(Path, paths))))
        return 0
    if arguments.plan:
        print(json.dumps(plan_groups(arguments.plan)))
        return 0
    with tempfile.TemporaryDirectory(prefix="lakefold-bench-") as temporary:
        lake = (arguments.keep or Path(temporary)).absolute() / arguments.shape
        lake.mkdir(parents=True, exist_ok=True)
        if not (lake / "groups").exists():
            child(__file__, "--write", str(lake), "--shape", arguments.shape)
        met = compare(lake, arguments.repeats, BARS[arguments.shape])
        planned = child(__file__, "--plan", str(lake / "groups"))
    print(
        f"\n{planned['slices']:,} file groups listed and planned: {planned['cold']:.2f} s cold, "
        f"{planned['warm']:.2f} s warm, {planned['chosen']:,} chosen, peak {planned['peak_mib']:.0f} MiB, no JVM"
    )
    if planned["warm"] > BAR_PLANNING_SECONDS:
        print(f"missed the bar of {BAR_PLANNING_SECONDS} s", file=sys.stderr)
        met = False
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
