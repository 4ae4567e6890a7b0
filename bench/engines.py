# SPDX-License-Identifier: Apache-2.0
"""The engines for Parquet against Spark SQL's ``coalesce`` and against ``cat`` on the same files, in one run.

2,000 files of about 1 MB become 20 files. The engines rewrite all groups in one job of Spark tasks, as a plan does.
``cat`` appends the inputs of a group to one file, which is no Parquet file, and syncs it: no rewrite can be faster.
Spark SQL does it in two ways: one job for each group, as many jobs at once as there are cores; and one job over all
files, whose result can't be committed group by group. The faster way counts. Codec, number and size of the new files
are equal for all ways. Each way has its own process, whose session first rewrites a tenth of the files. Then the ways
take turns, and medians are compared. CPU seconds are the sum over the process, its JVM and its Python workers. Peak
memory is that of the largest Python worker, for Spark SQL that of the JVM. The rows of each way are compared with the
input. Exits 1 if a bar is missed.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    # Needed to run from a clone without an installation.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake.engines import RewriteTask

CORES = 2
SPARK = {"spark.master": f"local[{CORES}]", "spark.driver.memory": "3g", "spark.sql.shuffle.partitions": "2"}
FILES_A_GROUP = 100
#: this number of rows makes a file of about 1 MB
ROWS_A_FILE = 40_000
BAR_TIMES, BAR_MIB = 3.5, 700.0
ENGINES = ("stitch", "hybrid", "arrow")
LABELS = {
    "cat": "cat and fsync, a process per core",
    "stitch": "stitch, all groups in one job",
    "hybrid": "hybrid, all groups in one job",
    "arrow": "arrow, all groups in one job",
    "jobs": "Spark SQL coalesce, a job per group",
    "job": "Spark SQL coalesce, one job",
}


def write_files(folder: Path, files: int, megabytes: int) -> None:
    """Write the files that the benchmark rewrites, each of about ``megabytes`` and with one row group."""
    from bench.trips import trips
    from executors.spark import spark_session

    spark = spark_session(SPARK)
    rows = spark.range(0, files * megabytes * ROWS_A_FILE, numPartitions=files)
    trips(rows).write.parquet(str(folder))
    spark.stop()


def measure(kind: str, source: Path, work: Path) -> None:
    """Rewrite the files of ``source`` by ``kind`` for each line on stdin, which names the output directory.

    Prints a line when the session is warm and one after each round, with seconds, CPU seconds and MiB.
    """
    from executors.spark import spark_session

    spark = spark_session(SPARK)
    paths = sorted(map(str, source.glob("*.parquet")))
    others = {"cat": _by_cat, "jobs": _by_jobs, "job": _by_one_job}
    rewrite = partial(_by_engine, kind) if kind in ENGINES else others[kind]
    rewrite(spark, _tasks(paths[: max(2, len(paths) // 10)], max(2, FILES_A_GROUP // 10), work / "warm"))
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        tasks = _tasks(paths, FILES_A_GROUP, work / line.strip())
        begun, spent = time.perf_counter(), _cpu_seconds()
        rewrite(spark, tasks)
        seconds, cpu_seconds = time.perf_counter() - begun, _cpu_seconds() - spent
        peak = max(_peak_mib(pid) for pid in _descendants() if _is_worker(pid) is (kind in ENGINES))
        print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_mib": peak}), flush=True)


def _tasks(paths: list[str], files: int, folder: Path) -> "list[RewriteTask]":
    from lake.engines import RewriteTask

    folder.mkdir(parents=True)
    groups = [paths[start : start + files] for start in range(0, len(paths), files)]
    return [
        RewriteTask(
            group=number,
            inputs=tuple(group),
            outputs=(str(folder / f"{number}.parquet"),),
            bytes=sum(map(os.path.getsize, group)),
        )
        for number, group in enumerate(groups)
    ]


def _by_cat(_: "SparkSession", tasks: "list[RewriteTask]") -> None:
    def append(task: "RewriteTask") -> None:
        with open(task.outputs[0], "wb") as output:
            subprocess.run(["cat", *task.inputs], stdout=output, check=True)
            os.fsync(output.fileno())

    with ThreadPoolExecutor(CORES) as pool:
        list(pool.map(append, tasks))


def _by_engine(name: str, spark: "SparkSession", tasks: "list[RewriteTask]") -> None:
    from executors.engines import create_engines
    from lake.engine_choice import choose_engines
    from lake.plan import RewriteOptions

    options = RewriteOptions(target_file_max_bytes=4 << 30, engine=name)
    engine = next(one for one in create_engines(lambda: spark) if one.name == name)
    choose_engines(tasks, [engine], options, "bench")
    list(engine.rewrite(tasks, options, lambda _: None, threading.Event()))


def _by_jobs(spark: "SparkSession", tasks: "list[RewriteTask]") -> None:
    def rewrite(task: "RewriteTask") -> None:
        spark.read.parquet(*task.inputs).coalesce(1).write.parquet(task.outputs[0])

    with ThreadPoolExecutor(CORES) as pool:
        list(pool.map(rewrite, tasks))


def _by_one_job(spark: "SparkSession", tasks: "list[RewriteTask]") -> None:
    paths = [path for task in tasks for path in task.inputs]
    spark.read.parquet(*paths).coalesce(len(tasks)).write.parquet(f"{tasks[0].outputs[0]}.all")


def _of_process(pid: str, name: str) -> str:
    """Return the content of a file in the process's /proc directory, '' if the process has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""


def _stat(pid: str) -> list[str]:
    """Return the fields of the process's /proc stat file, beginning with its state."""
    return _of_process(pid, "stat").rpartition(")")[2].split()


def _descendants() -> list[str]:
    """Return the ids of all descendants of this process."""
    stats = {entry.name: _stat(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()}
    found = [str(os.getpid())]
    for pid in found:
        found += [child for child, stat in stats.items() if stat and stat[1] == pid]
    return found[1:]


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and its descendants, ended descendants included."""
    fields = [_stat(pid)[11:15] for pid in ("self", *_descendants())]
    return sum(sum(map(int, some)) for some in fields) / os.sysconf("SC_CLK_TCK")


def _is_worker(pid: str) -> bool:
    """Return True for a Python worker of Spark; the command of a JVM also names the module, but begins with java."""
    words = _of_process(pid, "cmdline").split("\0")
    return not words[0].endswith("java") and "pyspark" in " ".join(words)


def _peak_mib(pid: str) -> float:
    lines = _of_process(pid, "status").splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def content(folder: Path) -> tuple[int, int, int, int]:
    """Return the number of rows of all files below ``folder``, two sums of row hashes, and the number of files."""
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
    return total.rows, total.row_sum, total.second_row_sum, len(files)


class Way:
    """A way of rewriting, in its own process with a warm session; a context manager."""

    def __init__(self, kind: str, source: Path, work: Path) -> None:
        self.work, self.rounds = work / kind, []
        self._command = [sys.executable, __file__, "--measure", kind, str(source), str(self.work)]
        self._log = work / f"{kind}.log"

    rounds: list[dict[str, float]]

    def __enter__(self) -> "Way":
        with self._log.open("wb") as log:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=log, text=True)
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def rewrite(self) -> Path:
        """Rewrite all files once more and return the directory of the new files."""
        name = f"round-{len(self.rounds)}"
        assert self._process.stdin is not None
        print(name, file=self._process.stdin, flush=True)
        self.rounds.append(self._answer())
        return self.work / name

    def median(self, figure: str) -> float:
        """Return the median of ``figure`` over all rounds."""
        return statistics.median(one[figure] for one in self.rounds)

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(self._command)} failed:\n{self._log.read_text()[-4000:]}")
        answer: dict[str, float] = json.loads(line)
        return answer


def main() -> int:
    """Write the files, measure and print; returns 1 if a bar is missed."""
    from bench.trips import child

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2_000, help="number of files of about 1 MB; a group has 100")
    parser.add_argument("--megabytes", type=int, default=1, help="size of a file, which has one row group")
    parser.add_argument("--rounds", type=int, default=3, help="how often each way rewrites all files")
    parser.add_argument("--keep", type=Path, help="keep the files in this directory, or use the files in it")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        write_files(arguments.write, arguments.files, arguments.megabytes)
        return 0
    if arguments.measure:
        kind, *paths = arguments.measure
        measure(kind, *map(Path, paths))
        return 0
    with tempfile.TemporaryDirectory(prefix="lakefold-bench-") as temporary:
        name = f"{arguments.files}_files_of_{arguments.megabytes}_mb"
        source = (arguments.keep or Path(temporary)).absolute() / name
        if not source.exists():
            child(
                __file__,
                "--write",
                str(source),
                "--files",
                str(arguments.files),
                "--megabytes",
                str(arguments.megabytes),
            )
        return 0 if _compare(source, Path(temporary), arguments.rounds) else 1


def _compare(source: Path, temporary: Path, rounds: int) -> bool:
    """Measure all ways in turns and print the results; returns True if no bar was missed."""
    size = sum(path.stat().st_size for path in source.glob("*.parquet"))
    before = content(source)
    print(f"{before[3]:,} files of {size / before[3] / 1e6:.2f} MB, {before[0]:,} rows")
    print(f"load of this machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print(f"{'':<36} {'seconds':>8} {'CPU s':>7} {'peak MiB':>9} {'files':>6} {'out MB':>7}")
    with ExitStack() as stack:
        ways = {kind: stack.enter_context(Way(kind, source, temporary)) for kind in LABELS}
        for number in range(rounds):
            for kind, way in ways.items():
                new, run = way.rewrite(), way.rounds[-1]
                files = [path for path in new.rglob("*.parquet") if path.is_file()]
                used = f"{run['seconds']:>8.1f} {run['cpu_seconds']:>7.1f} {run['peak_mib']:>9.0f}"
                written = sum(path.stat().st_size for path in files)
                print(f"{number + 1} {LABELS[kind]:<34} {used} {len(files):>6} {written / 1e6:>7.0f}", flush=True)
                if number == rounds - 1 and kind != "cat" and content(new)[:3] != before[:3]:
                    raise SystemExit(f"the rows written by {LABELS[kind]} differ from the input")
                shutil.rmtree(new)
    arrow, fastest = ways["arrow"], min(ways["jobs"], ways["job"], key=lambda way: way.median("seconds"))
    times = fastest.median("seconds") / arrow.median("seconds")
    of_cpu = fastest.median("cpu_seconds") / arrow.median("cpu_seconds")
    peak = max(run["peak_mib"] for run in arrow.rounds)
    print(
        f"\nmedians: arrow {arrow.median('seconds'):.1f} s, Spark SQL at its best {fastest.median('seconds'):.1f} s: "
        f"{times:.1f} x as fast, for 1/{of_cpu:.1f} of the CPU; {peak:.0f} MiB per task"
    )
    for engine in ENGINES:
        of_cat = ways[engine].median("seconds") / ways["cat"].median("seconds")
        print(f"{engine}: {of_cat:.2f} x the seconds of cat and fsync")
    if times < BAR_TIMES or peak > BAR_MIB:
        print(f"missed the bar of {BAR_TIMES} x and {BAR_MIB:.0f} MiB", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
