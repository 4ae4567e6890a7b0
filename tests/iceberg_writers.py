# SPDX-License-Identifier: Apache-2.0
"""Commits to an Iceberg table that Spark SQL does not make and other writers do, made by Iceberg's Java API."""

from pathlib import Path

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


def merge_on_read_delete(case: IcebergCase, table: TableRef, where: str) -> None:
    """Delete rows by position deletes, or in format version 3 by deletion vectors."""
    case.sql(f"ALTER TABLE {case.name(table)} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    case.sql(f"DELETE FROM {case.name(table)} WHERE {where}")


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
