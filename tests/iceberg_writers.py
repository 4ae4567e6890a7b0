# SPDX-License-Identifier: Apache-2.0
"""Commits to an Iceberg table that Spark SQL does not make and other writers do, made by Iceberg's Java API."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from iceberg_case import IcebergCase

from lake.model import TableRef
from lake.storage.locations import canonical_location


def equality_delete(case: IcebergCase, table: TableRef, value: int, partition: str = "0") -> None:
    """Commit an equality delete on the column ``id``, as Flink's upserts do, in a partition of the present spec."""
    java, jvm = case.java_table(table), case.session._jvm
    path = Path(table.location) / "data" / f"eq-{value}.parquet"
    schema = pa.schema([pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"})])
    pq.write_table(pa.table({"id": [value]}, schema=schema), path)
    ints = case.session.sparkContext._gateway.new_array(jvm.int, 1)
    ints[0] = 1
    builder = jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(java.spec()).ofEqualityDeletes(ints)
    builder.withPath(str(path)).withFileSizeInBytes(path.stat().st_size).withRecordCount(1).withFormat("PARQUET")
    if java.spec().isPartitioned():
        parser = jvm.org.apache.iceberg.SingleValueParser
        builder.withPartition(parser.fromJson(java.spec().partitionType(), f'{{"1000": "{partition}"}}'))
    java.newRowDelta().addDeletes(builder.build()).commit()


_POSITION_DELETES = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={b"PARQUET:field_id": b"2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={b"PARQUET:field_id": b"2147483545"}),
        pa.field(
            "row",
            pa.struct([pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"})]),
            metadata={b"PARQUET:field_id": b"2147483544"},
        ),
    ]
)


def position_deletes(
    case: IcebergCase, table: TableRef, deleted: Sequence[tuple[str, int]], partition: str, *, rows: bool = False
) -> str:
    """Commit a position delete file for a partition: names and positions in this order, without bounds of the names.

    With ``rows`` it has the optional column of deleted rows. Returns its path.
    """
    java, iceberg = case.java_table(table), case.session._jvm.org.apache.iceberg
    folder = Path(table.location) / "data"
    path = folder / f"deletes-{len(list(folder.glob('deletes-*')))}.parquet"
    listed = [{"file_path": name, "pos": position, "row": {"id": position}} for name, position in deleted]
    columns = _POSITION_DELETES.names[: 3 if rows else 2]
    pq.write_table(pa.Table.from_pylist(listed, _POSITION_DELETES).select(columns), path, row_group_size=5)
    builder = iceberg.FileMetadata.deleteFileBuilder(java.spec()).ofPositionDeletes().withPath(f"file:{path}")
    builder = builder.withFileSizeInBytes(path.stat().st_size).withRecordCount(len(deleted)).withFormat("PARQUET")
    java.newRowDelta().addDeletes(_in_partition(case, java, builder, partition).build()).commit()
    return str(path)


def append_file(case: IcebergCase, table: TableRef, path: Path, rows: pa.Table, partition: str, **options: Any) -> None:
    """Append a data file with ``rows``, which is written by pyarrow with ``options``."""
    pq.write_table(rows, path, **options)
    add_file(case, table, path, partition)


def add_file(case: IcebergCase, table: TableRef, path: Path, partition: str = "") -> None:
    """Append a Parquet file that another program wrote, without bounds and counts of its columns."""
    java, iceberg = case.java_table(table), case.session._jvm.org.apache.iceberg
    builder = iceberg.DataFiles.builder(java.spec()).withPath(f"file:{path}").withFormat("PARQUET")
    builder = builder.withFileSizeInBytes(path.stat().st_size).withRecordCount(pq.read_metadata(path).num_rows)
    if java.spec().isPartitioned():
        builder = _in_partition(case, java, builder, partition)
    java.newFastAppend().appendFile(builder.build()).commit()


def _in_partition(case: IcebergCase, java: Any, builder: Any, partition: str) -> Any:
    parser = case.session._jvm.org.apache.iceberg.SingleValueParser
    return builder.withPartition(parser.fromJson(java.spec().partitionType(), f'{{"1000": "{partition}"}}'))


def merge_on_read_delete(case: IcebergCase, table: TableRef, where: str) -> None:
    """Delete rows by position deletes, or in format version 3 by deletion vectors."""
    case.sql(f"ALTER TABLE {case.name(table)} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    case.sql(f"DELETE FROM {case.name(table)} WHERE {where}")


def rewrite_position_deletes(case: IcebergCase, table: TableRef) -> None:
    """Iceberg's procedure ``rewrite_position_delete_files`` for all delete files."""
    actions = case.session._jvm.org.apache.iceberg.spark.actions.SparkActions.get()
    actions.rewritePositionDeletes(case.java_table(table)).option("rewrite-all", "true").execute()


def add_again(case: IcebergCase, table: TableRef, path: str) -> None:
    """Append a file that the table has already, as a writer does that repeats its commit."""
    java = case.java_table(table)
    tasks = java.newScan().planFiles().iterator()
    while tasks.hasNext():
        file = tasks.next().file()
        if canonical_location(file.location()) == path:
            java.newFastAppend().appendFile(file.copy()).commit()
            return
    raise AssertionError(f"the table does not have {path}")


def order_writes(case: IcebergCase, table: TableRef, order: str) -> None:
    """``ALTER TABLE … WRITE ORDERED BY``, which needs Iceberg's SQL extensions."""
    iceberg, update = case.session._jvm.org.apache.iceberg, case.java_table(table).replaceSortOrder()
    for one in order.split(", "):
        column, _, how = one.partition(" ")
        nulls = iceberg.NullOrder.NULLS_LAST if how in ("DESC", "NULLS LAST") else iceberg.NullOrder.NULLS_FIRST
        term = (
            iceberg.expressions.Expressions.truncate(column, 2)
            if how == "TRUNCATED"
            else iceberg.expressions.Expressions.ref(column)
        )
        update = update.desc(term, nulls) if how == "DESC" else update.asc(term, nulls)
    update.commit()
