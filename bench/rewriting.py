# SPDX-License-Identifier: Apache-2.0
"""lakefold's engines and plans against its peers and against ``cat``, on the same files, in one run.

The files are TPC-H's lineitem in three sets: A, 2,000 files of 1 MB in 20 partitions; B, 200 files of 14 MB in 20
partitions; C, 5,000 files of 40 KB in 500 partitions. Each file has one row group. Each way rewrites every partition
into one file, with the codec of the inputs. ``cat`` appends the inputs of a partition to one file, which is no Parquet
file, and syncs it: no rewrite can be faster. Each way has its own process, which first rewrites a small set. Then the
ways take turns, and medians are compared. Seconds and CPU seconds are those of the rewrite, without the start of the
process; CPU seconds include a JVM, its workers and a metastore. Peak memory is that of the largest process. The rows of
each way are compared with the inputs. Queries then run on the new files in DuckDB and Spark.

``--sets`` chooses sets, ``--ways`` chooses ways. Files and results are kept in ``--keep``; if a run is interrupted, the
next run continues after the last complete set. Exits 1 if a bar is missed.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # Needed to run from a clone without an installation.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench.lineitem import SETS, write_set
from bench.ways import CORES, LABELS, SPARK, WayProcess, link_files, partitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: partitions of the set that warms each way up
WARM_PARTITIONS = 2
READ_WAYS = ("stitch", "arrow", "spark", "iceberg", "delta", "duckdb")
QUERIES = {
    "count": "SELECT count(*) FROM files",
    "scan and sum": "SELECT sum(l_extendedprice * (1 - l_discount)), sum(l_quantity), max(l_comment) FROM files",
    "one day": "SELECT count(l_comment) FROM files WHERE l_shipdate = DATE '1995-06-17'",
    "one order": "SELECT count(l_comment) FROM files WHERE l_orderkey = 4000067",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The seconds (or another ``figure``) of ``slower`` are at least ``times`` those of ``faster``, on one set."""

    set: str
    slower: str
    faster: str
    times: float
    figure: str = "seconds"

    def ratio(self, results: dict[str, list[dict[str, Any]]]) -> float | None:
        """Return the ratio of the medians; None if one of the ways was not measured."""
        if not results.get(self.slower) or not results.get(self.faster):
            return None
        slower, faster = (statistics.median(_figure(one, self.figure) for one in results[kind]) for kind in self._pair)
        return slower / faster

    @property
    def _pair(self) -> tuple[str, str]:
        return self.slower, self.faster

    def __str__(self) -> str:
        figure = "" if self.figure == "seconds" else f" in {self.figure.replace('_', ' ')}"
        return f"{self.set}: {LABELS[self.slower]} / {LABELS[self.faster]}{figure}, at least {self.times:.2f}"


BARS = (
    Bar(set="B", slower="cat", faster="stitch", times=1 / 1.15),
    Bar(set="A", slower="cat", faster="stitch", times=1 / 1.6),
    Bar(set="A", slower="arrow", faster="hybrid", times=1 / 1.1),
    *(Bar(set=name, slower="spark", faster="arrow", times=4.5) for name in "AB"),
    *(Bar(set=name, slower="spark", faster="arrow", times=5.0, figure="cpu_seconds") for name in "AB"),
    *(Bar(set=name, slower="spark", faster="arrow", times=1.0, figure="bytes") for name in "AB"),
    *(Bar(set=name, slower="duckdb", faster="arrow", times=1.0) for name in "AB"),
    Bar(set="C", slower="spark", faster="plan-stitch", times=12.0, figure="run"),
    Bar(set="C", slower="spark", faster="plan-arrow", times=8.0, figure="run"),
    Bar(set="A", slower="arrow", faster="auto", times=1 / 1.1),
    Bar(set="B", slower="stitch", faster="auto", times=1 / 1.1),
    Bar(set="C", slower="arrow", faster="auto", times=1 / 1.1),
    Bar(set="A", slower="iceberg", faster="plan-stitch", times=7.0),
    Bar(set="A", slower="iceberg", faster="plan-arrow", times=3.5),
    Bar(set="A", slower="delta", faster="plan-stitch", times=3.0),
    Bar(set="A", slower="delta", faster="plan-arrow", times=2.5),
)


def _figure(figures: dict[str, Any], name: str) -> float:
    """Return a figure of a rewrite; ``run`` is the time from a plan's claim to its completion, if there is a plan."""
    if name == "run":
        return float(figures["steps"].get("run", figures["seconds"]))
    return float(figures[name])


def new_files(folder: Path, source: Path | None = None) -> list[Path]:
    """Return the Parquet files below ``folder``, except files with the name of a file of ``source``."""
    old = set() if source is None else {Path(path).name for files in partitions(source) for path in files}
    found = (path for path in folder.rglob("*.parquet") if path.is_file() and path.name not in old)
    hidden = (".lakefold", "_delta_log", "metadata")
    return sorted(path for path in found if not any(part in hidden[1:] for part in path.parts))


def rows_of(files: list[Path]) -> tuple[int, int, int]:
    """Return the number of rows of ``files`` and two sums of row hashes."""
    import pyarrow.parquet as pq

    from executors.rowhash import Fingerprint

    def one(path: Path) -> Fingerprint:
        found = Fingerprint()
        for batch in pq.ParquetFile(path).iter_batches(use_threads=False):
            found.add(batch, ignore=("part",))
        return found

    total = Fingerprint()
    with ThreadPoolExecutor(CORES) as pool:
        for found in pool.map(one, files):
            total.merge(found)
    return total.rows, total.row_sum, total.second_row_sum


def _sizes(files: list[Path]) -> dict[str, int]:
    import pyarrow.parquet as pq

    groups = sum(pq.read_metadata(path).num_row_groups for path in files)
    return {"files": len(files), "row_groups": groups, "bytes": sum(path.stat().st_size for path in files)}


# --- readers ------------------------------------------------------------------------------------------------------


def read_times(spark: "SparkSession", files: list[Path]) -> dict[str, float]:
    """Return the seconds of each query in each reader, the better of two runs."""
    import duckdb

    names = [str(path) for path in files]
    times = {}
    spark.read.parquet(*names).createOrReplaceTempView("files")
    with duckdb.connect() as connection:
        connection.execute(f"SET threads = {CORES}")
        connection.execute(f"CREATE VIEW files AS SELECT * FROM read_parquet({names}, hive_partitioning = false)")
        readers = {
            "DuckDB": lambda query: connection.execute(query).fetchall(),
            "Spark": lambda q: spark.sql(q).collect(),
        }
        for reader, run in readers.items():
            for query, text in QUERIES.items():
                seconds = []
                for _ in range(2):
                    begun = time.perf_counter()
                    run(text)
                    seconds.append(time.perf_counter() - begun)
                times[f"{query}, {reader}"] = min(seconds)
    return times


# --- the run ------------------------------------------------------------------------------------------------------


def measure(source: Path, kinds: list[str], rounds: int, work: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Have each way rewrite ``source`` in turns. Returns each way's rounds, and the times of readers on its files."""
    from executors.spark import spark_session

    results: dict[str, Any] = {kind: [] for kind in kinds}
    readers: dict[str, Any] = {}
    warm = work / "warm"
    link_files(source, warm, WARM_PARTITIONS)
    sources = [Path(path) for files in partitions(source) for path in files]
    expected = rows_of(sources)
    print(f"{'':<38} {'seconds':>8} {'CPU s':>7} {'peak MiB':>9} {'files':>6} {'row groups':>10} {'out MB':>7}")
    with ExitStack() as stack:
        ways = {kind: stack.enter_context(WayProcess(kind, work)) for kind in kinds}
        for way in ways.values():
            shutil.rmtree(way.rewrite(warm, "warm", counts=False), ignore_errors=True)
        for number in range(rounds):
            for kind, way in ways.items():
                folder = way.rewrite(source, f"round-{number}")
                figures, files = way.rounds[-1], new_files(folder, source)
                if kind == "cat":
                    figures |= {"files": len(files), "row_groups": 0, "bytes": sum(p.stat().st_size for p in files)}
                else:
                    figures |= _sizes(files)
                print(_line(LABELS[kind], figures), flush=True)
                if number == rounds - 1 and kind != "cat":
                    if rows_of(files) != expected:
                        raise SystemExit(f"the rows written by {LABELS[kind]} differ from the input")
                    if kind in READ_WAYS:
                        kept = work / "read" / kind
                        kept.mkdir(parents=True)
                        for path in files:
                            os.link(path, kept / f"{path.parent.name}-{path.name}")
                results[kind].append(figures)
                shutil.rmtree(folder)
    spark = spark_session(SPARK, formats=())
    for kind in ("inputs", *(kind for kind in READ_WAYS if (work / "read" / kind).exists())):
        files = sources if kind == "inputs" else sorted((work / "read" / kind).iterdir())
        readers[kind] = read_times(spark, files)
    spark.stop()
    return results, readers


def _line(label: str, figures: dict[str, Any]) -> str:
    used = f"{figures['seconds']:>8.2f} {figures['cpu_seconds']:>7.1f} {figures['peak_mib']:>9.0f}"
    return f"{label:<38} {used} {figures['files']:>6} {figures['row_groups']:>10} {figures['bytes'] / 1e6:>7.0f}"


def report(name: str, results: dict[str, Any], readers: dict[str, Any]) -> bool:
    """Print medians, ranges, ratios to ``cat``, the readers' times and the bars of a set; True if all bars are met."""
    print(f"\n{name}: medians of {max(map(len, results.values()))} rounds")
    print(f"{'':<38} {'seconds':>8} {'from':>7} {'to':>7} {'x cat':>7} {'CPU s':>7}")
    of_cat = statistics.median(one["seconds"] for one in results["cat"]) if results.get("cat") else None
    for kind, rounds in results.items():
        seconds = [one["seconds"] for one in rounds]
        median, cpu = statistics.median(seconds), statistics.median(one["cpu_seconds"] for one in rounds)
        times = "" if of_cat is None else f"{median / of_cat:.2f}"
        print(f"{LABELS[kind]:<38} {median:>8.2f} {min(seconds):>7.2f} {max(seconds):>7.2f} {times:>7} {cpu:>7.1f}")
    for kind in ("plan-stitch", "plan-arrow"):
        if results.get(kind):
            steps = results[kind][-1]["steps"]
            print(f"  {LABELS[kind]}: " + ", ".join(f"{step} {value:.2f} s" for step, value in steps.items()))
    if readers:
        print(f"\n{name}: seconds of queries on the new files")
        print(f"{'':<22}" + "".join(f"{kind:>10}" for kind in readers))
        for query in next(iter(readers.values())):
            print(f"{query:<22}" + "".join(f"{times[query]:>10.3f}" for times in readers.values()))
    met = True
    print()
    for bar in BARS:
        ratio = bar.ratio(results) if bar.set == name else None
        if ratio is not None:
            print(f"{'met' if ratio >= bar.times else 'MISSED':<7} {bar}: {ratio:.2f}")
            met &= ratio >= bar.times
    for engine in ("stitch", "arrow"):
        own, plan = results.get(engine), results.get(f"plan-{engine}")
        if name == "A" and own and plan:
            alone, whole = (statistics.median(one["seconds"] for one in runs) for runs in (own, plan))
            is_met = whole <= alone * 1.25 + 2
            print(
                f"{'met' if is_met else 'MISSED':<7} A: a plan with {engine} takes {whole:.2f} s, "
                f"the engine {alone:.2f} s"
            )
            met &= is_met
    return met


def main() -> int:
    """Write the files, measure and print; returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default="ABC", help="letters of the sets")
    parser.add_argument("--ways", nargs="+", choices=list(LABELS), default=list(LABELS))
    parser.add_argument("--rounds", type=int, default=3, help="how often each way rewrites a set")
    parser.add_argument("--keep", type=Path, help="keep files and results in this directory, or use those in it")
    arguments = parser.parse_args()
    met = True
    with tempfile.TemporaryDirectory(prefix="lakefold-bench-") as temporary:
        keep = (arguments.keep or Path(temporary)).absolute()
        keep.mkdir(parents=True, exist_ok=True)
        for name in arguments.sets:
            write_set(keep / name, SETS[name])
            kept = keep / f"{name}.json"
            found = json.loads(kept.read_text()) if kept.exists() else {"results": {}, "readers": {}}
            missing = [kind for kind in arguments.ways if not found["results"].get(kind)]
            if missing:
                wanted = SETS[name]
                print(
                    f"\n{name}: {wanted.files:,} files of about {wanted.file_bytes / 1e6:g} MB in "
                    f"{wanted.partitions} partitions"
                )
                print(f"load of this machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
                # The files are linked, so they and the tables must be in one file system.
                with tempfile.TemporaryDirectory(prefix="run-", dir=keep) as work:
                    results, readers = measure(keep / name, missing, arguments.rounds, Path(work))
                found = {"results": found["results"] | results, "readers": found["readers"] | readers}
                kept.write_text(json.dumps(found))
            met &= report(name, found["results"], found["readers"])
        for name in arguments.sets:
            # The next run measures again.
            (keep / f"{name}.json").rename(keep / f"{name}.last.json")
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
