# SPDX-License-Identifier: Apache-2.0
"""The demo's table as a Hive table: its writer, its reader and its part of lakefold.toml."""

import json
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

from lake.capabilities import ListedInMetastore
from lake.errors import LakefoldError
from lake.formats import load_format
from lake.metastore import MetastoreClient
from lake.model import TableRef
from lake.storage.locations import canonical_location
from service.cli.demo.ledger import KEY, LedgerBatch, WriterLedger, replay
from service.cli.demo.trips import TRIPS

_DATABASE, _TABLE = "demo", "trips"
_NAME = f"{_DATABASE}.{_TABLE}"
_PARTITIONED_BY = ("city", "day")
_COLUMNS = [name for name in TRIPS.names if name not in _PARTITIONED_BY]
_POINT = "STRUCT<lat: DOUBLE, lon: DOUBLE>"
_CREATE_STATEMENTS = (
    "CREATE DATABASE IF NOT EXISTS demo LOCATION 'file:{directory}/demo'",
    "CREATE TABLE IF NOT EXISTS demo.trips (trip_id STRING, version BIGINT, picked_up_at TIMESTAMP, "
    "dropped_off_at TIMESTAMP, fare DECIMAL(10,2), tip DECIMAL(10,2), passengers INT, distance_km DOUBLE, "
    f"route STRUCT<start: {_POINT}, finish: {_POINT}, toll: DECIMAL(6,2)>, note STRING) "
    "PARTITIONED BY (city STRING, day STRING) STORED AS PARQUET",
)
#: the sweep copies a writer's late files within ten seconds
_LATE_ROWS_SECONDS = 30.0


class HiveTrips:
    """The writer's view of the Hive table. Implements ``service.cli.demo.writer.WriteTarget``.

    A Hive table supports neither updates nor deletes: the writer overwrites the affected partitions with their new
    content. Spark writes one file per task for an insert.
    """

    conflicts: Collection[str] = ()
    operations = ("insert", "insert", "insert", "insert", "upsert", "insert", "delete", "insert")

    def __init__(self, session: Any, uri: str, directory: Path, ledger: WriterLedger) -> None:
        """Create the table below ``directory`` if it does not exist. ``ledger`` records the rows of the table."""
        self._session, self._uri, self._ledger = session, uri, ledger
        for statement in _CREATE_STATEMENTS:
            session.sql(statement.format(directory=directory))

    def write(self, batch: LedgerBatch, batch_file: Path, files: int) -> None:
        """See ``WriteTarget``."""
        overwrites = batch.operation in ("upsert", "delete")
        source = batch_file
        if overwrites:
            source = batch_file.with_suffix(".whole")
            pq.write_table(_rows_in_partitions(replay(self._ledger.rows(), [batch]), batch.rows), source)
        frame = self._session.read.parquet(str(source)).select(*_COLUMNS, *_PARTITIONED_BY)
        frame.repartition(files).write.insertInto(_NAME, overwrite=overwrites)
        if overwrites:
            source.unlink()

    def has_batch(self, batch: LedgerBatch) -> bool:
        """See ``WriteTarget``. Reads the rows, because a Hive table has no commits that name a batch.

        Raises LakefoldError if the table has some of the batch's rows but not all.
        """
        sent = _versions(batch.rows)
        until = time.monotonic() + _LATE_ROWS_SECONDS
        while True:
            there = sent & _versions(read_table(self._uri, (KEY, "version")))
            if there == (set() if batch.operation == "delete" else sent):
                return True
            if time.monotonic() > until:
                if there and there != sent:
                    raise LakefoldError(f"{len(there):,} of {len(sent):,} rows of batch {batch.label} are in the table")
                return False
            time.sleep(1)


def _versions(rows: pa.Table) -> set[tuple[str, int]]:
    return set(zip(rows[KEY].to_pylist(), rows["version"].to_pylist(), strict=True))


def _rows_in_partitions(rows: pa.Table, chosen: pa.Table) -> pa.Table:
    """Return the ``rows`` in the partitions of the rows ``chosen``."""

    def names(table: pa.Table) -> pa.ChunkedArray:
        return pc.binary_join_element_wise(*(table[name] for name in _PARTITIONED_BY), "/")

    return rows.filter(pc.is_in(names(rows), pc.unique(names(chosen))))


def _session_settings(uri: str, directory: Path) -> dict[str, str]:
    """Return the settings of a Spark session that writes the table."""
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.hive.metastore.uris": uri,
        "spark.sql.warehouse.dir": str(directory),
        # The partition columns of the rows decide which partitions are created or overwritten.
        "spark.hadoop.hive.exec.dynamic.partition.mode": "nonstrict",
        "spark.sql.sources.partitionOverwriteMode": "dynamic",
    }


class HiveLake:
    """The demo's own metastore, with the table below a directory.

    Implements ``service.cli.demo.table_formats.DemoLake``.
    """

    writer, reader = "Spark writer", "pyarrow"
    has_write_conflicts = False
    missing_jars = ""
    spark_settings: Mapping[str, str] = MappingProxyType({})

    def __init__(self, directory: Path, port: int) -> None:
        self._uri = f"thrift://127.0.0.1:{port}"
        self.server_arguments = (
            "service.cli.demo.metastore",
            str(directory.parent / "metastore"),
            str(port),
            str(directory),
        )
        restart_command = f"{sys.executable} -m service.cli.demo.metastore metastore {port} {directory.name} &"
        self.commands_after = ((restart_command, "the metastore, which all commands below need"),)
        session = _session_settings(self._uri, directory)
        settings = (part for key, value in session.items() for part in ("--spark", f"{key}={value}"))
        self.writer_arguments = ("--metastore", self._uri, "--table", str(directory), *settings)
        self.source_config = f"""\
[[sources]]                        # every Parquet and ORC table of this metastore
metastore = {json.dumps(self._uri)}

[[tables]]
match = "demo.*"
mode = "compact"                   # without this line tables are only observed
access = "catalog"                 # readers and writers get the partitions' locations from the metastore
"""

    def is_ready(self) -> bool:
        """See ``DemoLake``."""
        return is_metastore_ready(self._uri)

    def table(self) -> TableRef:
        """See ``DemoLake``."""
        found = load_format("hive")
        assert isinstance(found, ListedInMetastore)
        tables = found.discover_in_metastore(self._uri, _DATABASE, _TABLE)
        return next(one for one in tables if isinstance(one, TableRef))

    def read(self, columns: Sequence[str] = TRIPS.names, *, passengers: int | None = None) -> pa.Table:
        """See ``DemoLake``."""
        return read_table(self._uri, columns, passengers)


def is_metastore_ready(uri: str) -> bool:
    """Return True if the metastore answers."""
    try:
        with MetastoreClient(uri) as metastore:
            metastore.databases()
    except LakefoldError:
        return False
    return True


def read_table(uri: str, columns: Sequence[str] = TRIPS.names, passengers: int | None = None) -> pa.Table:
    """Read the table with pyarrow from the partition locations in the metastore.

    Returns the ``columns`` of all trips, or of the trips with at least ``passengers`` passengers.
    """
    paths, partitions = [], []
    with MetastoreClient(uri) as metastore:
        names = metastore.partition_names(_DATABASE, _TABLE)
        for _, partition in metastore.partitions(_DATABASE, _TABLE, names):
            city, day = partition.values
            for file in sorted(Path(canonical_location(partition.storage.location)).iterdir()):
                if file.name[0] not in "._":
                    paths.append(str(file))
                    partitions.append((ds.field("city") == city) & (ds.field("day") == day))
    parquet = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us")
    files = ds.FileSystemDataset.from_paths(
        paths, TRIPS, parquet, filesystem=fs.LocalFileSystem(), partitions=partitions
    )
    chosen = None if passengers is None else ds.field("passengers") >= passengers
    return files.to_table(columns=list(columns), filter=chosen)
