# SPDX-License-Identifier: Apache-2.0
"""The demo's table as a Hive table: what its writer and its reader do, and what lakefold is told of it."""

import json
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
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
#: a writer that spanned a commit is brought in within ten seconds
_LATE_ROWS_SECONDS = 30.0


class HiveTrips:
    """The Hive table of a metastore, to its writer. Implements ``service.cli.demo.writer.WriteTarget``.

    A Hive table knows neither updates nor deletes: the partitions that they touch are overwritten with all they hold
    afterwards, and Spark makes as many files of what it inserts as it has tasks.
    """

    conflicts: Collection[str] = ()
    operations = ("insert", "insert", "insert", "insert", "upsert", "insert", "delete", "insert")

    def __init__(self, session: Any, uri: str, directory: Path, ledger: WriterLedger) -> None:
        """Make the table where there is none, below ``directory``; what it holds is in ``ledger``."""
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
        """See ``WriteTarget``. No commit of a Hive table names its writer: only the rows tell.

        Raises LakefoldError where some of them are there and others are not.
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
    """Those of ``rows`` in the partitions that ``chosen`` has rows of."""

    def names(table: pa.Table) -> pa.ChunkedArray:
        return pc.binary_join_element_wise(*(table[name] for name in _PARTITIONED_BY), "/")

    return rows.filter(pc.is_in(names(rows), pc.unique(names(chosen))))


def _session_settings(uri: str, directory: Path) -> dict[str, str]:
    """What a Spark session needs to write the table."""
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.hive.metastore.uris": uri,
        "spark.sql.warehouse.dir": str(directory),
        # Partitions are made, and overwritten, by what the rows say.
        "spark.hadoop.hive.exec.dynamic.partition.mode": "nonstrict",
        "spark.sql.sources.partitionOverwriteMode": "dynamic",
    }


class HiveLake:
    """A metastore of the demo's own, with the table below a directory. Implements ``service.cli.demo.table_formats.Lake``."""

    writer, reader = "Spark writer", "pyarrow"
    has_write_conflicts = False
    has_jars = True

    def __init__(self, directory: Path, port: int) -> None:
        self._uri = f"thrift://127.0.0.1:{port}"
        self.server_arguments = (
            "service.cli.demo.metastore",
            str(directory.parent / "metastore"),
            str(port),
            str(directory),
        )
        again = f"{sys.executable} -m service.cli.demo.metastore metastore {port} {directory.name} &"
        self.commands_after = ((again, "the metastore, which all below ask"),)
        session = _session_settings(self._uri, directory)
        settings = (part for key, value in session.items() for part in ("--spark", f"{key}={value}"))
        self.writer_arguments = ("--metastore", self._uri, "--table", str(directory), *settings)
        self.source_config = f"""\
[[sources]]                        # every Parquet and ORC table that this metastore knows
metastore = {json.dumps(self._uri)}

[[tables]]
match = "demo.*"
mode = "compact"                   # without this line tables are only observed
access = "catalog"                 # whoever reads or writes them asks the metastore where partitions are
"""

    def is_ready(self) -> bool:
        """See ``Lake``."""
        return is_metastore_ready(self._uri)

    def table(self) -> TableRef:
        """See ``Lake``."""
        found = load_format("hive")
        assert isinstance(found, ListedInMetastore)
        tables = found.discover_in_metastore(self._uri, _DATABASE, _TABLE)
        return next(one for one in tables if isinstance(one, TableRef))

    def read(self, columns: Sequence[str] = TRIPS.names, *, passengers: int | None = None) -> pa.Table:
        """See ``Lake``."""
        return read_table(self._uri, columns, passengers)


def is_metastore_ready(uri: str) -> bool:
    """Whether the metastore can be asked."""
    try:
        with MetastoreClient(uri) as metastore:
            metastore.databases()
    except LakefoldError:
        return False
    return True


def read_table(uri: str, columns: Sequence[str] = TRIPS.names, passengers: int | None = None) -> pa.Table:
    """The rows of the table as pyarrow reads the files where the metastore says that its partitions are.

    These columns, of all trips or of those with so many ``passengers``.
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
