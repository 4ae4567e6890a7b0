# SPDX-License-Identifier: Apache-2.0
"""The engine ``arrow`` against Spark SQL's ``coalesce`` on the same files, in one run.

2,000 files of about 1 MB become 20 files. ``arrow`` rewrites all groups in one job of Spark tasks, as a plan does;
Spark SQL has a job a group, as many at once as there are cores. Each measurement is a process of its own with a session
of the same settings, which has rewritten some of the files before. CPU seconds are those of the process, of its JVM and
of the Python workers; peak memory is that of the largest Python worker, and for Spark SQL that of the JVM. The rows of
both are compared with what was read. Exits 1 where a bar is missed.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # Runs from a clone without being installed.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake.engines import Task

CORES = 2
SPARK = {"spark.master": f"local[{CORES}]", "spark.driver.memory": "3g", "spark.sql.shuffle.partitions": "2"}
FILES_A_GROUP = 100
#: make files of about 1 MB
ROWS_A_FILE = 40_000
BAR_TIMES, BAR_MIB = 3.5, 700.0


def write_files(folder: Path, files: int) -> None:
    """The files that are rewritten."""
    from bench.trips import trips
    from executors.spark import spark_session

    spark = spark_session(SPARK)
    rows = spark.range(0, files * ROWS_A_FILE, numPartitions=files)
    trips(rows).write.parquet(str(folder))
    spark.stop()


def measure(kind: str, source: Path, work: Path) -> dict[str, Any]:
    """Rewrite the files of ``source`` by ``kind``: seconds, CPU seconds, MiB, and the new files."""
    from executors.spark import spark_session

    spark = spark_session(SPARK)
    paths = sorted(map(str, source.glob("*.parquet")))
    rewrite = _by_arrow if kind == "arrow" else _by_spark_sql
    rewrite(spark, _tasks(paths[:20], 10, work / "warm"))
    tasks = _tasks(paths, FILES_A_GROUP, work / "new")
    begun, spent = time.perf_counter(), _cpu_seconds()
    rewrite(spark, tasks)
    seconds, cpu_seconds = time.perf_counter() - begun, _cpu_seconds() - spent
    peak = max(_peak_mib(pid) for pid in _descendants() if ("pyspark" in _command(pid)) is (kind == "arrow"))
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_mib": peak}


def _tasks(paths: list[str], files: int, folder: Path) -> "list[Task]":
    from lake.engines import Task

    folder.mkdir(parents=True)
    groups = [paths[start : start + files] for start in range(0, len(paths), files)]
    return [
        Task(
            group=number,
            inputs=tuple(group),
            outputs=(str(folder / f"{number}.parquet"),),
            bytes=sum(map(os.path.getsize, group)),
        )
        for number, group in enumerate(groups)
    ]


def _by_arrow(spark: "SparkSession", tasks: "list[Task]") -> None:
    from executors.engines import engines
    from lake.engines import choose
    from lake.plan import RewriteOptions

    options = RewriteOptions(target_file_max_bytes=1 << 30, engine="arrow")
    (engine,) = (one for one in engines(lambda: spark) if one.name == "arrow")
    choose(tasks, [engine], options, "bench")
    list(engine.rewrite(tasks, options, lambda _: None, threading.Event()))


def _by_spark_sql(spark: "SparkSession", tasks: "list[Task]") -> None:
    def rewrite(task: "Task") -> None:
        spark.read.parquet(*task.inputs).coalesce(1).write.parquet(task.outputs[0])

    with ThreadPoolExecutor(CORES) as pool:
        list(pool.map(rewrite, tasks))


def _stat(pid: str) -> list[str]:
    """What /proc says of a process, from its state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _descendants() -> list[str]:
    """The processes that this one started, and they."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[entry.name] = _stat(entry.name)[1]
            except OSError:  # it ended
                continue
    found = [str(os.getpid())]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def _cpu_seconds() -> float:
    """CPU seconds of this process and its descendants, of those that have ended too."""
    fields = [_stat(pid)[11:15] for pid in ("self", *_descendants())]
    return sum(sum(map(int, some)) for some in fields) / os.sysconf("SC_CLK_TCK")


def _command(pid: str) -> str:
    """``pyspark`` for its Python workers; a JVM's names the module too, but begins with java."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return "" if words[0].endswith("java") else " ".join(words)


def _peak_mib(pid: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def content(folder: Path) -> tuple[int, int, int, int]:
    """Rows of all files below ``folder``, their hashes, and the number of files."""
    import pyarrow.parquet as pq

    from executors.rowhash import Fingerprint

    def one(path: Path) -> Fingerprint:
        found = Fingerprint()
        file = pq.ParquetFile(path, coerce_int96_timestamp_unit="us")
        for batch in file.iter_batches(use_threads=False):
            found.add(batch)
        return found

    total = Fingerprint()
    paths = sorted(folder.rglob("*.parquet"))
    files = [path for path in paths if path.is_file()]
    with ThreadPoolExecutor(CORES) as pool:
        for found in pool.map(one, files):
            total.merge(found)
    return total.rows, total.first, total.second, len(files)


def main() -> int:
    """Write the files, measure, print; 1 where a bar is missed."""
    from bench.trips import child

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2_000, help="of about 1 MB; groups have 100 of them")
    parser.add_argument("--keep", type=Path, help="keep (or find again) the files in this directory")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        write_files(arguments.write, arguments.files)
        return 0
    if arguments.measure:
        kind, *paths = arguments.measure
        print(json.dumps(measure(kind, *map(Path, paths))))
        return 0
    with tempfile.TemporaryDirectory(prefix="lakefold-bench-") as temporary:
        source = (arguments.keep or Path(temporary)).absolute() / f"{arguments.files}_files"
        if not source.exists():
            child(__file__, "--write", str(source), "--files", str(arguments.files))
        size = sum(path.stat().st_size for path in source.glob("*.parquet"))
        before = content(source)
        print(f"{before[3]:,} files of {size / before[3] / 1e6:.2f} MB, {before[0]:,} rows")
        print(f"load of this machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
        print(f"{'by':<22} {'seconds':>8} {'CPU s':>7} {'peak MiB':>9} {'files':>6} {'out MB':>7}")
        runs = {}
        for kind, label in (("arrow", "arrow"), ("spark", "Spark SQL coalesce")):
            work = Path(temporary) / kind
            runs[kind] = run = child(__file__, "--measure", kind, str(source), str(work))
            after = content(work / "new")
            written = sum(path.stat().st_size for path in (work / "new").rglob("*.parquet") if path.is_file())
            used = f"{run['seconds']:>8.1f} {run['cpu_seconds']:>7.1f} {run['peak_mib']:>9.0f}"
            print(f"{label:<22} {used} {after[3]:>6} {written / 1e6:>7.0f}", flush=True)
            if after[:3] != before[:3]:
                raise SystemExit(f"the rows after {label} differ from those before")
    times = runs["spark"]["seconds"] / runs["arrow"]["seconds"]
    of_cpu = runs["spark"]["cpu_seconds"] / runs["arrow"]["cpu_seconds"]
    peak = runs["arrow"]["peak_mib"]
    print(f"\narrow is {times:.1f} x as fast, for a {of_cpu:.1f}th of the CPU; {peak:.0f} MiB a task")
    if times < BAR_TIMES or peak > BAR_MIB:
        print(f"missed the bar of {BAR_TIMES} x and {BAR_MIB:.0f} MiB", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
