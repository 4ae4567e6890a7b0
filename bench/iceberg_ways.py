# SPDX-License-Identifier: Apache-2.0
"""Ways to rewrite the files of an Iceberg table: lakefold's plans, Iceberg's ``rewrite_data_files``, and PyIceberg.

``python bench/iceberg_ways.py KIND FOLDER`` serves rewrites as ``bench/ways.py`` does. ``FOLDER/table.json`` has the
format version of the tables and the rows that are deleted. ``prepare`` makes a table with the given files, and deletes
these rows by merge-on-read; its time does not count. All tables are in a JDBC catalog on SQLite.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # Needed to run from a clone without an installation.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench.ways import CORES, ICEBERG, TARGET_BYTES, WAYS, Way, columns_of, serve, session

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

_DRIVER = "org.xerial:sqlite-jdbc:3.49.1.0"
_CATALOG, _NAMESPACE = "bench", "lake"
TABLE_FILE = "table.json"
_CREATE = "create"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKind:
    """The format version of the tables, and a condition on the rows that are deleted by merge-on-read; "" for none."""

    version: int = 2
    deleted: str = ""


def _kind() -> TableKind:
    return TableKind(**json.loads((Path(sys.argv[2]) / TABLE_FILE).read_text()))


def _catalog_settings() -> dict[str, str]:
    work, key = Path(sys.argv[2]), f"spark.sql.catalog.{_CATALOG}"
    return {
        "spark.jars.packages": f"{ICEBERG},{_DRIVER}",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        key: "org.apache.iceberg.spark.SparkCatalog",
        f"{key}.type": "jdbc",
        f"{key}.uri": f"jdbc:sqlite:{work}/catalog.db",
        f"{key}.jdbc.schema-version": "V1",
        # Iceberg would lock the database by a query for existing tables that it does not close.
        f"{key}.jdbc.init-catalog-tables": str(not (work / "catalog.db").exists()).lower(),
        f"{key}.warehouse": f"file:{work}/warehouse",
        f"{key}.cache-enabled": "false",
    }


@contextmanager
def _python_catalog() -> "Iterator[SqlCatalog]":
    """Yield PyIceberg's client of the catalog. A client that stays open may lock the database."""
    from pyiceberg.catalog.sql import SqlCatalog

    work = Path(sys.argv[2])
    catalog = SqlCatalog(_CATALOG, uri=f"sqlite:///{work}/catalog.db", warehouse=f"file://{work}/warehouse")
    try:
        yield catalog
    finally:
        catalog.engine.dispose()


def _create(spark: "SparkSession", source: Path, folder: Path) -> str:
    """Create the table ``lake.NAME`` with the files of ``source`` and return this name.

    The tables of earlier rounds, whose files are gone, leave the catalog.
    """
    kind, name = _kind(), folder.name.replace("-", "_")
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {_CATALOG}.{_NAMESPACE}")
    with _python_catalog() as catalog:
        for table in catalog.list_tables(_NAMESPACE):
            catalog.drop_table(table)
    full_name = f"{_CATALOG}.{_NAMESPACE}.{name}"
    properties = {
        "format-version": str(kind.version),
        "write.delete.mode": "merge-on-read",
        "write.target-file-size-bytes": str(TARGET_BYTES),
    }
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    spark.sql(
        f"CREATE TABLE {full_name} ({columns_of(spark, source)}) USING iceberg PARTITIONED BY (part) "
        f"LOCATION 'file:{folder}' TBLPROPERTIES ({listed})"
    )
    files = f"`parquet`.`file://{source}`"
    spark.sql(
        f"CALL {_CATALOG}.system.add_files(table => '{_NAMESPACE}.{name}', source_table => '{files}', "
        f"check_duplicate_files => false, parallelism => {CORES})"
    )
    if kind.deleted:
        spark.sql(f"DELETE FROM {full_name} WHERE {kind.deleted}")
    return f"{_NAMESPACE}.{name}"


def _live_files(name: str) -> list[str]:
    """Return the paths of the table's data files; raises SystemExit if a delete file applies to one of them."""
    with _python_catalog() as catalog:
        tasks = list(catalog.load_table(name).scan().plan_files())
    if deleted := [task.file.file_path for task in tasks if task.delete_files]:
        raise SystemExit(f"rows of {deleted[0]} are still deleted by merge-on-read")
    return [task.file.file_path.removeprefix("file:").replace("//", "/", 1) for task in tasks]


def _plan(engine: str) -> Way:
    """A scan, and a plan from its claim to its completion: rewriting, verification and commit."""
    from bench.plans import configure, run_plan

    settings = _catalog_settings()
    spark = session(settings)
    listed = "\n".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in settings.items())
    config = configure(
        Path(sys.argv[2]),
        f"""[spark]
{listed}
[[sources]]
catalog = "{_CATALOG}"
[[tables]]
match = "*"
mode = "compact"
quiet_period = "0s"
max_num_groups = 1000
compact_delete_files = 1
rewrite_first = "clustering"
engine = "{engine}"
""",
    )

    def rewrite(_: Path, __: Path, name: str) -> dict[str, float]:
        return run_plan(config, spark, name)

    return Way(rewrite, partial(_create, spark), _live_files)


def _rewrite_data_files(groups: int) -> Way:
    """Iceberg's own compaction, which rewrites ``groups`` groups at once."""
    spark, kind = session(_catalog_settings()), _kind()
    options = {"target-file-size-bytes": TARGET_BYTES, "max-concurrent-file-group-rewrites": groups}
    if kind.deleted:
        options |= {"delete-file-threshold": 1, "remove-dangling-deletes": True}
    listed = ", ".join(f"'{key}', '{str(value).lower()}'" for key, value in options.items())

    def rewrite(_: Path, __: Path, name: str) -> None:
        spark.sql(f"CALL {_CATALOG}.system.rewrite_data_files(table => '{name}', options => map({listed}))").collect()

    return Way(rewrite, partial(_create, spark), _live_files)


def overwrite_partitions(table: "Table") -> None:
    """Read the rows of each partition, write them, and exchange all files in one overwrite."""
    from pyiceberg.expressions import EqualTo
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    old = [task.file for task in table.scan().plan_files()]
    numbers = sorted({int(file.partition[0]) for file in old})

    def one(number: int) -> list[Any]:
        rows = table.scan(row_filter=EqualTo("part", number)).to_arrow()
        return list(_dataframe_to_data_files(table.metadata, rows, table.io))

    with ThreadPoolExecutor(CORES) as pool:
        new = [file for files in pool.map(one, numbers) for file in files]
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
        for file in old:
            overwrite.delete_data_file(file)
        for file in new:
            overwrite.append_data_file(file)


def _pyiceberg() -> Way:
    """PyIceberg has no compaction, see ``overwrite_partitions``."""

    def prepare(source: Path, folder: Path) -> str:
        # In a process of its own, because the memory of Spark would count as PyIceberg's.
        command = [sys.executable, __file__, _CREATE, sys.argv[2], str(source), str(folder)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]

    def rewrite(_: Path, __: Path, name: str) -> None:
        with _python_catalog() as catalog:
            overwrite_partitions(catalog.load_table(name))

    return Way(rewrite, prepare, _live_files)


ICEBERG_WAYS: Mapping[str, Callable[[], Way]] = {
    "cat": WAYS["cat"],
    "iceberg-stitch": partial(_plan, "stitch"),
    "iceberg-arrow": partial(_plan, "arrow"),
    "iceberg-auto": partial(_plan, "auto"),
    "rewrite-2": partial(_rewrite_data_files, CORES),
    "rewrite-8": partial(_rewrite_data_files, 8),
    "pyiceberg": _pyiceberg,
    #: DuckDB's extension for Iceberg (1.5.5) can't rewrite a table: its ``COPY`` of the files makes no commit
    "duckdb": WAYS["duckdb"],
}

if __name__ == "__main__":
    if sys.argv[1] == _CREATE:
        print(_create(session(_catalog_settings()), *map(Path, sys.argv[3:])))
    else:
        serve(ICEBERG_WAYS)
