# SPDX-License-Identifier: Apache-2.0
"""The rows of an Iceberg table as three programs read them: Spark, PyIceberg, and DuckDB on the table's live files."""

from collections.abc import Sequence
from typing import Any

import duckdb
from iceberg_case import IcebergCase
from pyiceberg.table import StaticTable

from lake.formats.iceberg.catalog.tables import load_table
from lake.model import TableRef
from lake.storage.locations import canonical_location


def live_paths(case: IcebergCase, table: TableRef) -> list[str]:
    """The paths of the data files of the newest snapshot, by PyIceberg."""
    static = StaticTable.from_metadata(load_table(case.format._settings, table).metadata_location)
    return sorted(canonical_location(task.file.file_path) for task in static.scan().plan_files())


def rows_of_all_readers(case: IcebergCase, table: TableRef) -> Sequence[Any]:
    """All rows of a table without row-level deletes, by ``id``, as each of the three programs reads them.

    DuckDB reads the files themselves, and leaves out the columns that Iceberg adds to them.
    """
    static = StaticTable.from_metadata(load_table(case.format._settings, table).metadata_location)
    by_pyiceberg = sorted(static.scan().to_arrow().to_pylist(), key=lambda row: row["id"])
    paths = [one.replace("'", "''") for one in live_paths(case, table)]
    listed = ", ".join(f"'{path}'" for path in paths)
    files = f"read_parquet([{listed}], hive_partitioning = false, union_by_name = true)"
    query = f"SELECT COLUMNS('^[^_]') FROM {files} ORDER BY id"
    by_duckdb = duckdb.sql(query).to_arrow_table().to_pylist() if paths else []
    return case.rows(table), by_pyiceberg, by_duckdb
