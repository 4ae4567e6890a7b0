# SPDX-License-Identifier: Apache-2.0
"""The demo's table as a Hudi table: its writer, its reader and its part of lakefold.toml."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc

from executors.jars import cache_dir
from lake.model import TableRef
from service.cli.demo.ledger import LedgerBatch
from service.cli.demo.trips import TRIPS

# A writer waits up to two minutes for the lock, because a Hudi 1.2 writer that gives up deletes the holder's lock file.
LOCK_OPTIONS: Mapping[str, str] = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.write.lock.wait_time_ms_between_retry": "200",
    "hoodie.write.lock.num_retries": "600",
    "hoodie.write.lock.client.wait_time_ms_between_retry": "200",
    "hoodie.write.lock.client.num_retries": "600",
    # A failed write stays on the timeline until its heartbeat has expired; the default is two minutes.
    "hoodie.client.heartbeat.interval_in_ms": "3000",
    "hoodie.client.heartbeat.tolerable.misses": "3",
}
"""The lock options, which must be equal in every writer of a table and in lakefold.toml."""

SHARED_OPTIONS: Mapping[str, str] = {
    # The default bloom filter, for 60,000 keys, takes 430 KiB: fourteen times the size of the rows in a demo file.
    "hoodie.index.bloom.num_entries": "1000",
}
"""The options that shape files, which every writer of the table, lakefold included, must use."""

_NO_CLEANER = {"hoodie.clean.automatic": "false"}
#: lakefold needs the cleaner option too: if writers clean, lakefold leaves superseded files to the writers' cleaner
_SERVICE_OPTIONS = {**LOCK_OPTIONS, **SHARED_OPTIONS, **_NO_CLEANER}
_BATCH_KEY = "lakefold.demo.batch"


def table_options(*, merge_on_read: bool) -> dict[str, str]:
    """Return the options of every write to the demo's table."""
    return {
        "hoodie.database.name": "demo",
        "hoodie.table.name": "trips",
        "hoodie.datasource.write.table.type": "MERGE_ON_READ" if merge_on_read else "COPY_ON_WRITE",
        "hoodie.datasource.write.recordkey.field": "trip_id",
        "hoodie.datasource.write.precombine.field": "version",
        "hoodie.datasource.write.partitionpath.field": "city,day",
        "hoodie.datasource.write.hive_style_partitioning": "true",
        "hoodie.datasource.write.commitmeta.key.prefix": "lakefold.demo.",
        "hoodie.parquet.small.file.limit": "0",
        # The writer's own cleaner is off: it would also execute clean plans that lakefold is executing. Failed writes,
        # which the cleaner rolls back under optimistic concurrency, are rolled back before each write instead.
        **_NO_CLEANER,
        "hoodie.prewrite.cleaner.policy": "ROLLBACK_FAILED_WRITES",
        "hoodie.compact.inline": "false",
        "hoodie.datasource.compaction.async.enable": "false",
        "hoodie.metadata.enable": "true",
        # With this option a write would begin its part of the metadata table outside the table's lock, and lakefold's
        # commits and cleans would wait for the end of nearly every write.
        "hoodie.metadata.streaming.write.enabled": "false",
        "hoodie.metadata.index.column.stats.enable": "false",
        "hoodie.index.type": "SIMPLE",
        "hoodie.upsert.shuffle.parallelism": "2",
        "hoodie.insert.shuffle.parallelism": "2",
        "hoodie.delete.shuffle.parallelism": "2",
        "hoodie.simple.index.parallelism": "2",
        "hoodie.embed.timeline.server": "false",
        "hoodie.write.markers.type": "DIRECT",
        "hoodie.bulkinsert.sort.mode": "NONE",
    } | {**LOCK_OPTIONS, **SHARED_OPTIONS}


class HudiTrips:
    """The writer's view of the Hudi table at a path. Implements ``service.cli.demo.writer.WriteTarget``."""

    conflicts = (
        "HoodieClusteringUpdateException",
        "HoodieWriteConflictException",
        "ConcurrentModificationException",
        "HoodieLockException",
    )
    operations = ("upsert", "insert", "upsert", "delete")

    def __init__(self, session: Any, table: Path, options: Mapping[str, str]) -> None:
        """Write to ``table`` with the Hudi write options ``options``."""
        self._session, self._table, self._options = session, table, options

    def write(self, batch: LedgerBatch, batch_file: Path, files: int) -> None:
        """See ``WriteTarget``."""
        # Hudi's delete operation is not used. After a conflict it keeps its heartbeat until this JVM ends (1.2.0), and
        # every plan of the table would wait for it.
        deleted = str(batch.operation == "delete").lower()
        frame = self._session.read.parquet(str(batch_file)).selectExpr("*", f"{deleted} AS _hoodie_is_deleted")
        frame = frame.repartition(files)
        operation = {"fill": "bulk_insert", "delete": "upsert"}.get(batch.operation, batch.operation)
        options = {**self._options, "hoodie.datasource.write.operation": operation, _BATCH_KEY: batch.label}
        frame.write.format("hudi").options(**options).mode("append").save(str(self._table))

    def has_batch(self, batch: LedgerBatch) -> bool:
        """See ``WriteTarget``. True if a completed commit on the table's timeline names the batch."""
        timeline = self._table / ".hoodie" / "timeline"
        for path in sorted(timeline.glob("*commit"), reverse=True):
            with path.open("rb") as file:
                for commit in fastavro.reader(file):
                    if isinstance(commit, dict) and (commit.get("extraMetadata") or {}).get(_BATCH_KEY) == batch.label:
                        return True
        return False


class HudiLake:
    """A directory with the table at ``demo/trips``. Implements ``service.cli.demo.table_formats.DemoLake``."""

    writer, reader = "Hudi writer", "hudi-rs"
    has_write_conflicts = True
    server_arguments: Sequence[str] = ()
    commands_after: Sequence[tuple[str, str]] = ()
    spark_settings: Mapping[str, str] = MappingProxyType({})

    def __init__(self, directory: Path) -> None:
        self._location = directory / "demo" / "trips"
        options = "\n".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in _SERVICE_OPTIONS.items())
        self.source_config = f"""\
[[sources]]                        # every Hudi table below this directory, named by its path
path = {json.dumps(str(directory))}

[[tables]]
match = "demo.*"
mode = "compact"                   # without this line tables are only observed
concurrency = "occ"                # the writer and lakefold take the same lock

[tables.write_options]             # settings that all writers of the table must share
{options}
"""
        self.writer_arguments = ("--table", str(self._location))

    @property
    def missing_jars(self) -> str:
        """See ``DemoLake``."""
        return "" if any((cache_dir() / "ivy" / "jars").glob("org.apache.hudi*")) else "the Hudi bundle"

    def is_ready(self) -> bool:
        """See ``DemoLake``."""
        return True

    def table(self) -> TableRef:
        """See ``DemoLake``."""
        return TableRef(name="demo.trips", format="hudi", location=str(self._location))

    def read(self, columns: Sequence[str] = TRIPS.names, *, passengers: int | None = None) -> pa.Table:
        """See ``DemoLake``."""
        if passengers is None:
            return read_table(str(self._location)).select(columns)
        return read_table(str(self._location), columns, passengers)


def read_table(location: str, columns: Sequence[str] = (), passengers: int | None = None) -> pa.Table:
    """Read the newest snapshot of the Hudi table at ``location`` with hudi-rs, without a JVM or lakefold's code.

    Returns ``columns``, or all columns if empty, of all trips or of the trips with at least ``passengers`` passengers.
    """
    from hudi import HudiReadOptions, HudiTableBuilder

    filters = [] if passengers is None else [("passengers", ">=", str(passengers))]
    # hudi-rs loads the timeline once per table object, so each call opens the table again.
    table = HudiTableBuilder.from_base_uri(location).build()
    batches = table.read(HudiReadOptions(filters=filters, projection=list(columns)) if columns else None)
    rows = pa.Table.from_batches(batches) if batches else TRIPS.empty_table()
    # hudi-rs prunes files by the filter but does not promise to drop rows, so the filter is applied here.
    return rows if passengers is None else rows.filter(pc.greater_equal(rows["passengers"], passengers))
