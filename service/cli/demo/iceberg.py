# SPDX-License-Identifier: Apache-2.0
"""The demo's table as an Iceberg table: its writer, its reader and its part of lakefold.toml."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import lake.formats
from executors.jars import cache_dir
from lake.capabilities import ListedInCatalog
from lake.errors import LakefoldError
from lake.formats import load_format
from lake.model import TableRef
from service.cli.demo.ledger import KEY, LedgerBatch
from service.cli.demo.trips import TRIPS

CATALOG, _NAMESPACE, _TABLE = "lake", "demo", "trips"
_NAME = f"{CATALOG}.{_NAMESPACE}.{_TABLE}"
_DRIVER = "org.xerial:sqlite-jdbc:3.49.1.0"
_POINT = "STRUCT<lat: DOUBLE, lon: DOUBLE>"
_PROPERTIES = {
    "format-version": "2",
    **{f"write.{operation}.mode": "merge-on-read" for operation in ("delete", "update", "merge")},
    # Each task of the writer writes a file for each partition, as streaming writers do.
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    # The expiry deletes replaced files, but not before the table allows it: for five days without this property.
    "history.expire.max-snapshot-age-ms": "1000",
}
_CREATE_STATEMENTS = (
    f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{_NAMESPACE}",
    f"CREATE TABLE IF NOT EXISTS {_NAME} (trip_id STRING, version BIGINT, city STRING, day STRING, "
    "picked_up_at TIMESTAMP, dropped_off_at TIMESTAMP, fare DECIMAL(10,2), tip DECIMAL(10,2), passengers INT, "
    f"distance_km DOUBLE, route STRUCT<start: {_POINT}, finish: {_POINT}, toll: DECIMAL(6,2)>, note STRING) "
    "USING iceberg PARTITIONED BY (city, day) TBLPROPERTIES ("
    + ", ".join(f"'{key}' = '{value}'" for key, value in _PROPERTIES.items())
    + ")",
)
_CHANGES = {
    "upsert": f"MERGE INTO {_NAME} t USING batch s ON t.{KEY} = s.{KEY} "
    "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
    "delete": f"DELETE FROM {_NAME} WHERE {KEY} IN (SELECT {KEY} FROM batch)",
}


def catalog_settings(directory: Path) -> dict[str, str]:
    """Return Spark's settings of a JDBC catalog on SQLite below ``directory``."""
    key = f"spark.sql.catalog.{CATALOG}"
    return {
        key: "org.apache.iceberg.spark.SparkCatalog",
        f"{key}.type": "jdbc",
        # Writer and daemon share the file, so each of them waits while the other one writes to it.
        f"{key}.uri": f"jdbc:sqlite:{_database(directory)}?busy_timeout=30000",
        f"{key}.jdbc.schema-version": "V1",
        f"{key}.warehouse": f"{directory}/warehouse",
        f"{key}.cache-enabled": "false",
        # Packages in the settings of a session replace lakefold's, so Iceberg is named beside the catalog's driver.
        "spark.jars.packages": ",".join((*load_format("iceberg").session_requirements.packages, _DRIVER)),
    }


def _database(directory: Path) -> Path:
    return directory / "catalog.db"


class IcebergTrips:
    """The writer's view of the Iceberg table. Implements ``service.cli.demo.writer.WriteTarget``.

    Upserts and deletes are merge-on-read: they add delete files.
    """

    conflicts: Collection[str] = ("ValidationException", "CommitFailedException")
    operations = ("upsert", "insert", "insert", "delete")

    def __init__(self, session: Any, directory: Path) -> None:
        """Create the table in the catalog below ``directory`` if it does not exist."""
        self._session, self._directory = session, directory
        (directory / "warehouse").mkdir(parents=True, exist_ok=True)
        for statement in _CREATE_STATEMENTS:
            session.sql(statement)

    def write(self, batch: LedgerBatch, batch_file: Path, files: int) -> None:
        """See ``WriteTarget``."""
        rows = self._session.read.parquet(str(batch_file)).repartition(files)
        if batch.operation in _CHANGES:
            rows.createOrReplaceTempView("batch")
            self._session.sql(_CHANGES[batch.operation])
        else:
            rows.writeTo(_NAME).append()

    def has_batch(self, batch: LedgerBatch) -> bool:
        """See ``WriteTarget``. Reads the rows, because the snapshot of the batch may have expired.

        Raises LakefoldError if the table has some of the batch's rows but not all.
        """
        sent = _versions(batch.rows)
        there = sent & _versions(read_table(self._directory, (KEY, "version")))
        if there and there != sent:
            raise LakefoldError(f"{len(there):,} of {len(sent):,} rows of batch {batch.label} are in the table")
        return bool(there) is not (batch.operation == "delete")


def _versions(rows: pa.Table) -> set[tuple[str, int]]:
    return set(zip(rows[KEY].to_pylist(), rows["version"].to_pylist(), strict=True))


class IcebergLake:
    """A JDBC catalog on SQLite, and a warehouse. Implements ``service.cli.demo.table_formats.DemoLake``."""

    writer, reader = "Spark writer", "PyIceberg"
    has_write_conflicts = True
    server_arguments: Sequence[str] = ()
    commands_after: Sequence[tuple[str, str]] = ()

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.spark_settings: Mapping[str, str] = catalog_settings(directory)
        settings = (part for key, value in self.spark_settings.items() for part in ("--spark", f"{key}={value}"))
        self.writer_arguments = ("--iceberg", "--table", str(directory), *settings)
        self.source_config = f"""\
[[sources]]                        # every table of this catalog, which [spark] defines
catalog = "{CATALOG}"

[[tables]]
match = "demo.*"
mode = "compact"                   # without this line tables are only observed
rewrite_first = "clustering"       # small files are merged into large ones together with their deletes
compact_delete_files = 4           # a large file is rewritten once it has so many delete files
"""

    @property
    def missing_jars(self) -> str:
        """See ``DemoLake``."""
        jars = cache_dir() / "ivy" / "jars"
        found = all(any(jars.glob(f"*{name}*")) for name in ("iceberg-spark-runtime", "sqlite-jdbc"))
        return "" if found else "Iceberg's runtime"

    def is_ready(self) -> bool:
        """See ``DemoLake``."""
        return True

    def table(self) -> TableRef:
        """See ``DemoLake``."""
        lake.formats.configure(self.spark_settings)
        found = load_format("iceberg")
        assert isinstance(found, ListedInCatalog)
        tables = found.discover_in_catalog(CATALOG, _NAMESPACE, _TABLE)
        return next(one for one in tables if isinstance(one, TableRef))

    def read(self, columns: Sequence[str] = TRIPS.names, *, passengers: int | None = None) -> pa.Table:
        """See ``DemoLake``."""
        return read_table(self._directory, columns, passengers)


def read_table(directory: Path, columns: Sequence[str] = TRIPS.names, passengers: int | None = None) -> pa.Table:
    """Read the newest snapshot with PyIceberg, which applies the delete files, without a JVM or lakefold's code.

    Returns the ``columns`` of all trips, or of the trips with at least ``passengers`` passengers.
    """
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.expressions import AlwaysTrue, BooleanExpression, GreaterThanOrEqual

    chosen: BooleanExpression = AlwaysTrue()
    if passengers is not None:
        chosen = GreaterThanOrEqual("passengers", passengers)
    database = f"sqlite:///{_database(directory)}?timeout=30"
    catalog = SqlCatalog(CATALOG, uri=database, warehouse=f"file://{directory}/warehouse", init_catalog_tables="false")
    try:
        return catalog.load_table((_NAMESPACE, _TABLE)).scan(chosen, selected_fields=tuple(columns)).to_arrow()
    finally:
        catalog.engine.dispose()
