# SPDX-License-Identifier: Apache-2.0
"""The partitions of each table as its last whole scan found them: one compressed columnar blob a table."""

from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, select, update

from service.store.base import StorePart, insert_if_absent
from service.store.clock import datetime_from_ms, datetime_to_ms
from service.store.models import PartitionLayoutRow
from service.store.views import PartitionLayout, ScanRecord

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
#: slices of one partition that share a reason, as ``service.planning.account.Line`` documents them
LINE_FIELDS = [
    pa.field("reason", pa.string()),
    pa.field("text", pa.string()),
    pa.field("varies", pa.bool_()),
    pa.field("knob", pa.string()),
    *(pa.field(name, pa.int64()) for name in ("slices", "files", "bytes", "log_files", "log_bytes")),
]
#: partition is its path; files and bytes are of base files; small ones are below the limit in force at the scan;
#: reducible files are those of the small ones, bytes those to read, that plans take now or later
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
        """The partitions of ``table`` at its last whole scan that succeeded; None before the first."""
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
    """Put the partitions that ``scan`` found in the place of those of the scan before."""
    sink = pa.BufferOutputStream()
    rows = partitions.select(PARTITION_SCHEMA.names).cast(PARTITION_SCHEMA)
    with pa.ipc.new_stream(sink, PARTITION_SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(rows)
    values: dict[str, Any] = {"taken_at_ms": datetime_to_ms(scan.taken_at), "partitions": sink.getvalue().to_pybytes()}
    if not insert_if_absent(connection, PartitionLayoutRow, table_name=scan.table, **values):
        connection.execute(
            update(PartitionLayoutRow).where(PartitionLayoutRow.table_name == scan.table).values(**values)
        )
