# SPDX-License-Identifier: Apache-2.0
"""Ways to rewrite the files of each directory ``part=N`` into large files: lakefold's, its peers', and ``cat``.

Each way runs in its own process, ``python bench/ways.py KIND``, which reads one JSON line for each rewrite from stdin
and prints one with the figures. ``prepare`` makes the way's table over links to the files; its time does not count.
"""

import atexit
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # Needed to run from a clone without an installation.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench.processes import cpu_seconds_of_tree, peak_mib_of_tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake.engines import RewriteTask

CORES = 2
WAYS_PROGRAM = Path(__file__).resolve()
SPARK = {"spark.master": f"local[{CORES}]", "spark.driver.memory": "3g", "spark.sql.shuffle.partitions": "2"}
TARGET_BYTES = 1 << 30
#: versions that the reference figures in the documentation were measured with
ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.10.2"
DELTA = "io.delta:delta-spark_2.12:3.3.2"


def partitions(folder: Path) -> list[list[str]]:
    """Return the paths of the files of each directory ``part=N``."""
    found = sorted(folder.glob("part=*"), key=lambda path: int(path.name.partition("=")[2]))
    return [sorted(str(path) for path in directory.glob("*.parquet")) for directory in found]


def codec_of(source: Path) -> str:
    """Return the codec of the files, in lower case."""
    import pyarrow.parquet as pq

    return str(pq.read_metadata(partitions(source)[0][0]).row_group(0).column(0).compression).lower()


def link_files(source: Path, folder: Path, count: int | None = None) -> None:
    """Create ``folder`` with hard links to the files in the first ``count`` partitions of ``source``, or in all."""
    for files in partitions(source)[:count]:
        directory = folder / Path(files[0]).parent.name
        directory.mkdir(parents=True)
        for file in files:
            os.link(file, directory / Path(file).name)


@dataclass(slots=True)
class Way:
    """How one program rewrites. ``rewrite`` gets the source, a new directory and the answer of ``prepare``.

    Returns the seconds of its steps, if it has any. With the answer of ``prepare``, ``live`` returns the paths of the
    table's data files; without it, they are all Parquet files below the directory that are not links to the source.
    """

    rewrite: Callable[[Path, Path, Any], dict[str, float] | None]
    prepare: Callable[[Path, Path], Any] = field(default=lambda source, folder: folder.mkdir(parents=True))
    live: Callable[[Any], list[str]] | None = None


# --- programs without a table -------------------------------------------------------------------------------------


def _outputs(source: Path, folder: Path) -> Iterator[tuple[list[str], str]]:
    for number, files in enumerate(partitions(source)):
        yield files, str(folder / f"{number}.parquet")


def _cat() -> Way:
    def append(files: list[str], output: str) -> None:
        with open(output, "wb") as file:
            subprocess.run(["cat", *files], stdout=file, check=True)
            os.fsync(file.fileno())

    def rewrite(source: Path, folder: Path, _: object) -> None:
        with ThreadPoolExecutor(CORES) as pool:
            list(pool.map(lambda one: append(*one), _outputs(source, folder)))

    return Way(rewrite)


def _duckdb() -> Way:
    import duckdb

    connection = duckdb.connect()
    connection.execute(f"SET threads = {CORES}")

    def rewrite(source: Path, folder: Path, _: object) -> None:
        codec = codec_of(source)
        for files, output in _outputs(source, folder):
            query = f"SELECT * FROM read_parquet({files}, hive_partitioning = false)"
            connection.execute(f"COPY ({query}) TO '{output}' (FORMAT parquet, COMPRESSION {codec})")

    return Way(rewrite)


def _polars() -> Way:
    os.environ["POLARS_MAX_THREADS"] = str(CORES)
    import polars

    def rewrite(source: Path, folder: Path, _: object) -> None:
        codec: Any = codec_of(source)
        for files, output in _outputs(source, folder):
            polars.scan_parquet(files, hive_partitioning=False).sink_parquet(output, compression=codec)

    return Way(rewrite)


# --- lakefold's engines, without a table --------------------------------------------------------------------------


def _tasks(source: Path, folder: Path) -> "list[RewriteTask]":
    from lake.engines import RewriteTask

    return [
        RewriteTask(group=number, inputs=tuple(files), outputs=(output,), bytes=sum(map(os.path.getsize, files)))
        for number, (files, output) in enumerate(_outputs(source, folder))
    ]


def _engine(name: str) -> Way:
    from executors.engines import create_engines
    from executors.spark import spark_session
    from lake.engine_choice import choose_engines
    from lake.plan import RewriteOptions

    spark = spark_session(SPARK, formats=())
    engines = create_engines(lambda: spark)
    options = RewriteOptions(target_file_max_bytes=TARGET_BYTES, engine=name)

    def rewrite(source: Path, folder: Path, _: object) -> None:
        tasks = _tasks(source, folder)
        chosen = choose_engines(tasks, engines, options, "bench")
        for engine in engines:
            own = [task for task in tasks if chosen[task.group].engine is engine]
            if own:
                list(engine.rewrite(own, options, lambda _: None, threading.Event()))

    return Way(rewrite)


def _spark_jobs() -> Way:
    """One job for each partition, as many at once as there are cores.

    The schema is known, as that of a table is. Otherwise Spark would run a second job for each partition to find it.
    """
    from executors.spark import spark_session

    spark = spark_session(SPARK, formats=())

    def rewrite(source: Path, folder: Path, _: object) -> None:
        schema, codec = spark.read.parquet(partitions(source)[0][0]).schema, codec_of(source)

        def one(pair: tuple[list[str], str]) -> None:
            rows = spark.read.schema(schema).parquet(*pair[0])
            rows.coalesce(1).write.option("compression", codec).parquet(pair[1])

        with ThreadPoolExecutor(CORES) as pool:
            list(pool.map(one, _outputs(source, folder)))

    return Way(rewrite)


# --- table formats' own compactions -------------------------------------------------------------------------------


def session(settings: dict[str, str]) -> "SparkSession":
    from executors.spark import spark_session

    return spark_session({**SPARK, **settings}, formats=())


def columns_of(spark: "SparkSession", folder: Path) -> str:
    found = spark.read.parquet(partitions(folder)[0][0])
    return ", ".join(f"{name} {kind}" for name, kind in found.dtypes)


def _iceberg() -> Way:
    catalog = "spark.sql.catalog.bench"
    spark = session(
        {
            "spark.jars.packages": ICEBERG,
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "hadoop",
            f"{catalog}.warehouse": f"file://{Path(sys.argv[2])}",
        }
    )

    def prepare(source: Path, folder: Path) -> str:
        # The catalog's directory of the table is ``folder``. The files remain in ``source``.
        name = f"bench.`{folder.name}`"
        properties = "'write.parquet.compression-codec' = 'snappy', 'format-version' = '2'"
        spark.sql(
            f"CREATE TABLE {name} ({columns_of(spark, source)}, part int) USING iceberg PARTITIONED BY (part) "
            f"TBLPROPERTIES ({properties})"
        )
        spark.sql(f"CALL bench.system.add_files(table => '{name}', source_table => '`parquet`.`file://{source}`')")
        return name

    def rewrite(_: Path, __: Path, name: str) -> None:
        options = f"map('target-file-size-bytes', '{TARGET_BYTES}', 'max-concurrent-file-group-rewrites', '{CORES}')"
        spark.sql(f"CALL bench.system.rewrite_data_files(table => '{name}', options => {options})").collect()

    return Way(rewrite, prepare)


def _delta() -> Way:
    spark = session(
        {
            "spark.jars.packages": DELTA,
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.optimize.maxFileSize": str(TARGET_BYTES),
            "spark.databricks.delta.optimize.maxThreads": str(CORES),
        }
    )

    def prepare(source: Path, folder: Path) -> None:
        link_files(source, folder)
        spark.sql(f"CONVERT TO DELTA parquet.`file://{folder}` PARTITIONED BY (part int)").collect()

    def rewrite(_: Path, folder: Path, __: object) -> None:
        spark.sql(f"OPTIMIZE delta.`file://{folder}`").collect()

    return Way(rewrite, prepare)


def _delta_rs() -> Way:
    from deltalake import DeltaTable, Field, Schema, WriterProperties, convert_to_deltalake
    from deltalake.schema import PrimitiveType

    partitioned_by = Schema([Field("part", PrimitiveType("integer"))])

    def prepare(source: Path, folder: Path) -> None:
        link_files(source, folder)
        convert_to_deltalake(str(folder), partition_by=partitioned_by, partition_strategy="hive")

    def rewrite(_: Path, folder: Path, __: object) -> None:
        writer = WriterProperties(compression="SNAPPY")
        DeltaTable(str(folder)).optimize.compact(
            target_size=TARGET_BYTES, max_concurrent_tasks=CORES, writer_properties=writer
        )

    return Way(rewrite, prepare)


# --- whole plans of lakefold on a Hive table ----------------------------------------------------------------------


def _plan(engine: str) -> Way:
    """A scan, and a plan from its claim to its completion: rewriting, verification and commit."""
    from bench.plans import configure, run_plan
    from service.cli.demo.hive import is_metastore_ready
    from service.cli.demo.metastore import server_command
    from service.cli.demo.settings import free_port

    work = Path(sys.argv[2])
    home, port = work / "metastore", free_port()
    uri = f"thrift://127.0.0.1:{port}"
    home.mkdir(parents=True)
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(server_command(home, port, home), cwd=home, stdout=log, stderr=log)
    atexit.register(server.terminate)
    while not is_metastore_ready(uri):
        time.sleep(0.5)
    spark = session({"spark.sql.catalogImplementation": "hive", "spark.hadoop.hive.metastore.uris": uri})
    config = configure(
        work,
        f"""[[sources]]
metastore = "{uri}"
[[tables]]
match = "*"
mode = "compact"
access = "catalog"
quiet_period = "0s"
max_num_groups = 1000
engine = "{engine}"
""",
    )

    def prepare(source: Path, folder: Path) -> str:
        link_files(source, folder)
        name = folder.name.replace("-", "_")
        columns = columns_of(spark, folder)
        spark.sql(
            f"CREATE EXTERNAL TABLE {name} ({columns}) PARTITIONED BY (part int) STORED AS PARQUET LOCATION "
            f"'file://{folder}'"
        )
        spark.sql(f"MSCK REPAIR TABLE {name}")
        return f"default.{name}"

    def rewrite(_: Path, __: Path, name: str) -> dict[str, float]:
        return run_plan(config, spark, name)

    return Way(rewrite, prepare)


WAYS: dict[str, Callable[[], Way]] = {
    "cat": _cat,
    "stitch": partial(_engine, "stitch"),
    "hybrid": partial(_engine, "hybrid"),
    "arrow": partial(_engine, "arrow"),
    "auto": partial(_engine, "auto"),
    "plan-stitch": partial(_plan, "stitch"),
    "plan-arrow": partial(_plan, "arrow"),
    "duckdb": _duckdb,
    "polars": _polars,
    "delta-rs": _delta_rs,
    "spark": _spark_jobs,
    "iceberg": _iceberg,
    "delta": _delta,
}

LABELS = {
    "cat": "cat and fsync, a process per core",
    "stitch": "lakefold stitch",
    "hybrid": "lakefold hybrid",
    "arrow": "lakefold arrow",
    "auto": "lakefold auto",
    "plan-stitch": "lakefold, a plan on Hive, stitch",
    "plan-arrow": "lakefold, a plan on Hive, arrow",
    "duckdb": "DuckDB COPY",
    "polars": "polars sink_parquet",
    "delta-rs": "delta-rs compact",
    "spark": "Spark SQL coalesce, a job per group",
    "iceberg": "Iceberg rewrite_data_files",
    "delta": "Delta OPTIMIZE",
    "iceberg-stitch": "lakefold, a plan on Iceberg, stitch",
    "iceberg-arrow": "lakefold, a plan on Iceberg, arrow",
    "iceberg-auto": "lakefold, a plan on Iceberg, auto",
    "rewrite-2": "Iceberg rewrite_data_files, 2 groups at once",
    "rewrite-8": "Iceberg rewrite_data_files, 8 groups at once",
    "rewrite": "Iceberg rewrite_data_files, the faster of both",
    "pyiceberg": "PyIceberg, read and overwrite",
}


def serve(ways: Mapping[str, Callable[[], Way]]) -> None:
    """Serve the rewrites that stdin names, lines of JSON with ``source`` and ``folder``, by the way of argument 1.

    Argument 2 is the directory of the way's own files.
    """
    way = ways[sys.argv[1]]()
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        source, folder = Path(order["source"]), Path(order["folder"])
        prepared = way.prepare(source, folder)
        begun, spent = time.perf_counter(), cpu_seconds_of_tree()
        steps = way.rewrite(source, folder, prepared) or {}
        seconds, cpu_seconds = time.perf_counter() - begun, cpu_seconds_of_tree() - spent
        figures: dict[str, Any] = {"seconds": seconds, "cpu_seconds": cpu_seconds}
        figures |= {"peak_mib": peak_mib_of_tree(), "steps": steps}
        if way.live is not None:
            figures["live"] = way.live(prepared)
        print(json.dumps(figures), flush=True)


class WayProcess:
    """A way of rewriting, in its own process with a warm session; a context manager."""

    def __init__(self, kind: str, work: Path, program: Path = WAYS_PROGRAM) -> None:
        """Use directories below ``work``. ``program`` is the script that serves the way, by default this one."""
        self.kind, self.work = kind, work / kind
        self.rounds: list[dict[str, Any]] = []
        self._command = [sys.executable, str(program), kind, str(self.work)]
        self._log = work / f"{kind}.log"

    def __enter__(self) -> "WayProcess":
        self.work.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=log, text=True)
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def rewrite(self, source: Path, name: str, *, counts: bool = True) -> Path:
        """Rewrite the files of ``source`` and return the directory with the new files.

        A way with a table leaves the old files in the same directory, under their names.
        """
        folder = self.work / name
        assert self._process.stdin is not None
        print(json.dumps({"source": str(source), "folder": str(folder)}), file=self._process.stdin, flush=True)
        figures = self._answer()
        if counts:
            self.rounds.append(figures)
        return folder

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        while line and not line.startswith("{"):
            line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(self._command)} failed:\n{self._log.read_text()[-4000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


if __name__ == "__main__":
    serve(WAYS)
