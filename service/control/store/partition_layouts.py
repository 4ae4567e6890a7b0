# SPDX-License-Identifier: Apache-2.0
"""Layouts of partitions: the files, bytes and reasons of each partition at the last full scan of its table."""

from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, select, update

from service.control.store.base import StorePart, insert_if_absent
from service.control.store.database import datetime_from_ms, datetime_to_ms
from service.control.store.models import PartitionLayoutRow
from service.control.store.views import PartitionLayout, ScanRecord

_COUNT_COLUMNS = (
    "files",
    "bytes",
    "small_files",
    "small_bytes",
    "log_files",
    "log_bytes",
    "reducible_files",
    "reducible_bytes",
)
#: slices of one partition with the same reason, as ``service.control.planning.decision_summary.DecisionLine``
LINE_FIELDS = [
    pa.field("reason", pa.string()),
    pa.field("text", pa.string()),
    pa.field("varies", pa.bool_()),
    pa.field("knob", pa.string()),
    *(pa.field(name, pa.int64()) for name in ("slices", "files", "bytes", "log_files", "log_bytes")),
]
#: ``partition`` is the path. ``files`` and ``bytes`` are those of base files. Small files are below the limit in force
#: at the scan. Reducible files are the small files that plans take now or later; reducible bytes are the plans' input.
PARTITION_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.string()),
        *(pa.field(name, pa.int64()) for name in _COUNT_COLUMNS),
        pa.field("lines", pa.list_(pa.struct(LINE_FIELDS))),
    ]
)


class PartitionLayouts(StorePart):
    """Layouts of partitions, written by ``record_scan``."""

    def partition_layout(self, table: str) -> PartitionLayout | None:
        """Return the partitions of ``table`` at its last successful full scan; None before the first one."""
        query = select(PartitionLayoutRow.taken_at_ms, PartitionLayoutRow.partitions)
        with self._database.read() as connection:
            row = connection.execute(query.where(PartitionLayoutRow.table_name == table)).one_or_none()
        if row is None:
            return None
        with pa.ipc.open_stream(row.partitions) as stream:
            return PartitionLayout(
                table=table, taken_at=datetime_from_ms(row.taken_at_ms), partitions=stream.read_all()
            )


def store_partition_layout(connection: Connection, scan: ScanRecord, partitions: pa.Table) -> None:
    """Replace the stored partitions with those of ``scan``."""
    sink = pa.BufferOutputStream()
    rows = partitions.select(PARTITION_SCHEMA.names).cast(PARTITION_SCHEMA)
    with pa.ipc.new_stream(sink, PARTITION_SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(rows)
    values: dict[str, Any] = {"taken_at_ms": datetime_to_ms(scan.taken_at), "partitions": sink.getvalue().to_pybytes()}
    if not insert_if_absent(connection, PartitionLayoutRow, table_name=scan.table, **values):
        connection.execute(
            update(PartitionLayoutRow).where(PartitionLayoutRow.table_name == scan.table).values(**values)
        )
