# SPDX-License-Identifier: Apache-2.0
"""lakefold's engines and plans against its peers and against ``cat``, on the same files, in one run.

The files are TPC-H's lineitem in three sets: A, 2,000 files of 1 MB in 20 partitions; B, 200 files of 14 MB in 20
partitions; C, 5,000 files of 40 KB in 500 partitions. Each file has one row group. Each way rewrites every partition
into one file, with the codec of the inputs. ``cat`` appends the inputs of a partition to one file, which is no Parquet
file, and syncs it: no rewrite can be faster. Each way has its own process, which first rewrites a small set. Then the
ways take turns, and medians are compared. Seconds and CPU seconds are those of the rewrite, without the start of the
process; CPU seconds include a JVM, its workers and a metastore. Peak memory is that of the largest process. The rows of
each way are compared with the inputs. Queries then run on the new files in DuckDB and Spark.

Two further sets show where lakefold gains least: R, random bytes, and W, files of 600 columns (``bench/worst.py``). M
is the memory of a task for one group of 2 GiB (``bench/memory.py``), D the planning of 1 and of 10 million slices
(``bench/planning.py``).

``--sets`` chooses sets and parts, ``--ways`` chooses ways. Files and results are kept in ``--keep``; if a run is
interrupted, the next run continues after the last rewrite. Exits 1 if a bar is missed.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # Needed to run from a clone without an installation.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench.bars import verdicts
from bench.lineitem import SETS, write_set
from bench.report import REWRITING, machine, markdown
from bench.ways import CORES, LABELS, SPARK, WAYS, WAYS_PROGRAM, WayProcess, link_files, partitions
from bench.worst import write_random, write_wide

if TYPE_CHECKING:
    import pyarrow.compute as pc
    from pyspark.sql import SparkSession

#: partitions of the set that warms each way up
WARM_PARTITIONS = 2
ALL_SETS = "ABCRWMD"
WORST = {"R": write_random, "W": write_wide}
WORST_WAYS = ("cat", "stitch", "hybrid", "arrow", "auto", "duckdb", "spark")
FILES_OF_WORST = 200
READ_WAYS = ("stitch", "arrow", "spark", "iceberg", "delta", "duckdb")
QUERIES = {
    "count": "SELECT count(*) FROM files",
    "scan and sum": "SELECT sum(l_extendedprice * (1 - l_discount)), sum(l_quantity), max(l_comment) FROM files",
    "one day": "SELECT count(l_comment) FROM files WHERE l_shipdate = DATE '1995-06-17'",
    "one order": "SELECT count(l_comment) FROM files WHERE l_orderkey = 4000067",
}


def new_files(folder: Path, source: Path | None = None) -> list[Path]:
    """Return the Parquet files below ``folder``, except files with the name of a file of ``source``."""
    old = set() if source is None else {Path(path).name for files in partitions(source) for path in files}
    found = (path for path in folder.rglob("*.parquet") if path.is_file() and path.name not in old)
    hidden = (".lakefold", "_delta_log", "metadata")
    return sorted(path for path in found if not any(part in hidden[1:] for part in path.parts))


def rows_of(files: list[Path], deleted: "pc.Expression | None" = None) -> tuple[int, int, int]:
    """Return the number of rows of ``files`` and two sums of row hashes, without the rows that are ``deleted``.

    The column ``part``, the number of the directory, and Iceberg's own columns of version 3 do not count.
    """
    import pyarrow.parquet as pq

    from executors.rowhash import Fingerprint

    def one(path: Path) -> Fingerprint:
        found = Fingerprint()
        for batch in pq.ParquetFile(path).iter_batches(use_threads=False):
            if deleted is not None:
                batch = batch.filter(~deleted)
            found.add(batch, ignore=("part", "_row_id", "_last_updated_sequence_number"))
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


class Kept:
    """The results of one set, written to ``path`` after each rewrite, so that an interrupted run can go on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        found = json.loads(path.read_text()) if path.exists() else {}
        self.results: dict[str, list[dict[str, Any]]] = found.get("results", {})
        self.readers: dict[str, dict[str, float]] = found.get("readers", {})
        #: the load of the machine before each round
        self.loads: list[float] = found.get("loads", [])

    def rounds(self, kind: str) -> int:
        """Return how many rounds of a way were measured."""
        return len(self.results.get(kind, []))

    def save(self) -> None:
        """Write the results."""
        scratch = self._path.with_suffix(".part")
        scratch.write_text(json.dumps({"results": self.results, "readers": self.readers, "loads": self.loads}))
        scratch.rename(self._path)


def measure(
    source: Path,
    kinds: list[str],
    rounds: int,
    kept: Kept,
    work: Path,
    *,
    readers: bool = False,
    program: Path = WAYS_PROGRAM,
    deleted: "pc.Expression | None" = None,
) -> None:
    """Have each way of ``program`` rewrite ``source`` in turns, as often as results are missing.

    After its last round, the rows of a way are compared with the inputs, without the rows that are ``deleted`` from the
    ways' tables. The new files for ``readers`` are linked into ``read-SET``.
    """
    missing = [kind for kind in kinds if kept.rounds(kind) < rounds]
    if not missing:
        return
    warm, read = work / "warm", source.with_name(f"read-{source.name}")
    link_files(source, warm, WARM_PARTITIONS)
    expected = rows_of([Path(path) for files in partitions(source) for path in files], deleted)
    print(f"{'':<44} {'seconds':>8} {'CPU s':>7} {'peak MiB':>9} {'files':>6} {'row groups':>10} {'out MB':>7}")
    with ExitStack() as stack:
        ways = {kind: stack.enter_context(WayProcess(kind, work, program)) for kind in missing}
        for way in ways.values():
            shutil.rmtree(way.rewrite(warm, "warm", counts=False), ignore_errors=True)
        for number in range(rounds):
            kept.loads = [*kept.loads[:number], os.getloadavg()[0]] if number >= len(kept.loads) else kept.loads
            for kind, way in ways.items():
                if kept.rounds(kind) > number:
                    continue
                folder = way.rewrite(source, f"round-{number}")
                figures = way.rounds[-1]
                live = figures.pop("live", None)
                files = new_files(folder, source) if live is None else sorted(map(Path, live))
                if kind == "cat":
                    figures |= {"files": len(files), "row_groups": 0, "bytes": sum(p.stat().st_size for p in files)}
                else:
                    figures |= _sizes(files)
                print(_line(LABELS[kind], figures), flush=True)
                if number == rounds - 1 and kind != "cat":
                    if rows_of(files) != expected:
                        raise SystemExit(f"the rows written by {LABELS[kind]} differ from the input")
                    if readers and kind in READ_WAYS:
                        shutil.rmtree(read / kind, ignore_errors=True)
                        (read / kind).mkdir(parents=True)
                        for path in files:
                            os.link(path, read / kind / f"{path.parent.name}-{path.name}")
                kept.results.setdefault(kind, []).append(figures)
                kept.save()
                shutil.rmtree(folder)


def measure_readers(source: Path, kept: Kept) -> None:
    """Measure the readers on the files of each way that are linked in ``read-SET``, then remove the links."""
    from executors.spark import spark_session

    read = source.with_name(f"read-{source.name}")
    if not read.exists():
        return
    inputs = [Path(path) for files in partitions(source) for path in files]
    spark = spark_session(SPARK, formats=())
    for kind in ("inputs", *(kind for kind in READ_WAYS if (read / kind).exists())):
        kept.readers[kind] = read_times(spark, inputs if kind == "inputs" else sorted((read / kind).iterdir()))
        kept.save()
    spark.stop()
    shutil.rmtree(read)


def _stored(keep: Path, name: str, shrink: int) -> Path:
    return keep / (f"{name}.json" if shrink == 1 else f"{name}-{shrink}.json")


def _line(label: str, figures: dict[str, Any]) -> str:
    used = f"{figures['seconds']:>8.2f} {figures['cpu_seconds']:>7.1f} {figures['peak_mib']:>9.0f}"
    return f"{label:<44} {used} {figures['files']:>6} {figures['row_groups']:>10} {figures['bytes'] / 1e6:>7.0f}"


def _write(keep: Path, name: str, shrink: int) -> Path:
    """Write the files of a set, unless they exist. Returns their directory."""
    if name in WORST:
        folder, files = keep / name, FILES_OF_WORST
        WORST[name](folder, files)
        return folder
    wanted = SETS[name].part(shrink)
    folder = keep / (name if shrink == 1 else f"{name}-{shrink}")
    write_set(folder, wanted)
    return folder


def measure_set(keep: Path, name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure one letter of ``--sets`` and return its results."""
    stored = _stored(keep, name, arguments.shrink)
    if name in "MD":
        if not stored.exists():
            print(f"\n{name}: {'memory of one group of 2 GiB' if name == 'M' else 'planning'}", flush=True)
            stored.write_text(json.dumps(measure_memory(keep) if name == "M" else measure_planning()))
        figures: dict[str, Any] = json.loads(stored.read_text())
        for kind, found in figures.items():
            print(f"{kind:<10} " + ", ".join(f"{key} {value:.2f}" for key, value in found.items()))
        return figures
    source, kept = _write(keep, name, arguments.shrink), Kept(stored)
    kinds = [kind for kind in arguments.ways if name not in WORST or kind in WORST_WAYS]
    print(
        f"\n{REWRITING.titles[name]}; load of this machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
        flush=True,
    )
    # The files are linked, so they and the tables must be in one file system.
    readers = not arguments.no_readers and name not in WORST  # the queries are on the columns of lineitem
    with tempfile.TemporaryDirectory(prefix="run-", dir=keep) as work:
        measure(source, kinds, arguments.rounds, kept, Path(work), readers=readers)
    if readers:
        measure_readers(source, kept)
    return {"results": kept.results, "readers": kept.readers, "loads": kept.loads}


def measure_memory(keep: Path) -> dict[str, dict[str, float]]:
    """Return the memory of each engine for a group of 2 GiB, see ``bench/memory.py``."""
    from bench import memory

    write_set(keep / "A", SETS["A"])
    return memory.measure_all(keep / "A", keep)


def measure_planning() -> dict[str, dict[str, float]]:
    """Return the time and memory of planning 1 and 10 million slices, see ``bench/planning.py``."""
    from bench import planning

    return {str(slices): planning.measure_one(slices, slices // 100) for slices in (1_000_000, 10_000_000)}


def main() -> int:
    """Write the files, measure and print; returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=ALL_SETS, help=f"letters of the sets and of the other parts, {ALL_SETS}")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--rounds", type=int, default=3, help="how often each way rewrites a set")
    parser.add_argument("--shrink", type=int, default=1, help="measure only one of so many partitions of A, B and C")
    parser.add_argument("--no-readers", action="store_true", help="leave out the queries on the new files")
    parser.add_argument("--keep", type=Path, help="keep files and results in this directory, or use those in it")
    parser.add_argument(
        "--page",
        type=Path,
        help="write the results to this file as Markdown and renew README's chart, if all was measured",
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lakefold-bench-") as temporary:
        keep = (arguments.keep or Path(temporary)).absolute()
        keep.mkdir(parents=True, exist_ok=True)
        measured = {name: measure_set(keep, name, arguments) for name in arguments.sets}
        page = markdown(measured, machine(keep), arguments.shrink)
        (keep / "results.md").write_text(page)
        print(f"\n{page}")
        found = [one for one in verdicts(measured) if one.is_met is not None]
        print(*found, sep="\n")
        is_complete = (set(arguments.sets), len(arguments.ways), arguments.shrink) == (set(ALL_SETS), len(WAYS), 1)
        for name in arguments.sets:
            # The next run measures again.
            stored = _stored(keep, name, arguments.shrink)
            stored.rename(stored.with_suffix(".last.json"))
        if arguments.page and is_complete:
            from bench import chart

            arguments.page.write_text(page)
            chart.draw(keep)
    return int(not all(one.is_met for one in found))


if __name__ == "__main__":
    sys.exit(main())
