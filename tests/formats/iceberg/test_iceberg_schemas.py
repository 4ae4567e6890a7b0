# SPDX-License-Identifier: Apache-2.0
"""Files of an Iceberg table whose columns are not exactly the table's: less nullable, more nullable, or other ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contract.attempts import attempt
from contract.plans import plan_all
from iceberg_case import IcebergCase, NewCase
from iceberg_readers import live_paths, rows_of_all_readers

from executors.verification import verify_rewrite
from lake.model import TableRef

pytestmark = pytest.mark.spark

COLUMNS = (
    "id bigint, name string, at timestamp, price decimal(9,2), stop struct<lat: double, names: array<string>>, "
    "counts map<string, bigint>"
)
REQUIRED = (
    "id",
    "concat('name ', id % 7) AS name",
    "timestamp_micros(id) AS at",
    "CAST(1.5 AS decimal(9,2)) AS price",
    "named_struct('lat', CAST(id AS double), 'names', array(concat('n', id), 'm')) AS stop",
    "map('a', id) AS counts",
)
"""Values of which Spark knows that none is null, at any level."""


OPTIONAL = (
    "IF(id < 0, NULL, id) AS id",
    "IF(id % 5 = 0, NULL, concat('name ', id % 7)) AS name",
    "IF(id % 5 = 0, NULL, timestamp_micros(id)) AS at",
    "IF(id % 5 = 0, NULL, CAST(1.5 AS decimal(9,2))) AS price",
    "IF(id % 5 = 0, NULL, named_struct('lat', IF(id % 3 = 0, NULL, CAST(id AS double)), "
    "'names', IF(id % 3 = 1, NULL, array(concat('n', id), NULL)))) AS stop",
    "IF(id % 5 = 0, NULL, map('a', IF(id % 3 = 0, NULL, id))) AS counts",
)
"""The same values, with nulls at every level."""
PARTLY = (*REQUIRED[:4], OPTIONAL[4].replace("IF(id % 5 = 0, NULL, ", "", 1).replace("))))", ")))"), OPTIONAL[5])
"""Values of which some are null inside a struct that never is."""


@pytest.fixture(params=["hadoop 2", "jdbc 1"])
def case(new_case: NewCase, request: pytest.FixtureRequest) -> IcebergCase:
    kind, version = request.param.split()
    return new_case(kind, version=int(version))


@pytest.fixture
def table(case: IcebergCase, tmp_path: Path) -> TableRef:
    """A table without rows."""
    made = case.create(tmp_path / "lake" / "t", name="t")
    properties = f"'format-version' = '{case.version}', 'write.parquet.compression-codec' = 'zstd'"
    case.sql(f"CREATE OR REPLACE TABLE {case.name(made)} ({COLUMNS}) USING iceberg TBLPROPERTIES ({properties})")
    return made


def append(case: IcebergCase, table: TableRef, low: int, high: int, values: tuple[str, ...]) -> None:
    case.session.range(low, high, 1, 1).selectExpr(*values).writeTo(case.name(table)).append()


def required_columns(path: str) -> set[str]:
    """The columns of a Parquet file, at any level, that can't be null; keys of maps never can be."""
    found = set()

    def walk(name: str, field: pa.Field) -> None:
        if not field.nullable and not name.endswith(".key"):
            found.add(name)
        kind = field.type
        parts = [kind.key_field, kind.item_field] if pa.types.is_map(kind) else []
        parts += list(kind) if pa.types.is_struct(kind) else [kind.value_field] if pa.types.is_list(kind) else []
        for part in parts:
            walk(f"{name}.{part.name}", part)

    for column in pq.read_schema(path):
        walk(column.name, column)
    return found


def require(case: IcebergCase, table: TableRef, *names: str) -> None:
    """Make columns required of which old files may have nulls, as ``ALTER COLUMN … SET NOT NULL`` refuses to do."""
    update = case.java_table(table).updateSchema().allowIncompatibleChanges()
    for name in names:
        update.requireColumn(name)
    update.commit()


def compact(case: IcebergCase, table: TableRef, **options: Any) -> Mapping[str, str]:
    """Compact all files of the table, with a verification of all values. Returns the entries of the new footer."""
    with attempt(case, plan_all(case.format, table, "p", **options)) as one:
        rewrite = one.rewritten()
        verify_rewrite(rewrite, writer=one.writer)
        one.writer.commit(rewrite)
    (path,) = live_paths(case, table)
    return {key.decode(): value.decode() for key, value in (pq.read_metadata(path).metadata or {}).items()}


@pytest.mark.parametrize("sort_columns", [(), ("name", "id")], ids=["in order", "sorted"])
def test_files_with_required_and_with_optional_columns_become_one_file_with_the_table_s(
    case: IcebergCase, table: TableRef, sort_columns: tuple[str, ...]
):
    append(case, table, 0, 100, REQUIRED)
    append(case, table, 100, 200, OPTIONAL)
    append(case, table, 200, 300, REQUIRED)
    append(case, table, 300, 400, PARTLY)
    assert [bool(required_columns(path)) for path in live_paths(case, table)].count(True) == 3
    rows = rows_of_all_readers(case, table)
    entries = compact(case, table, sort_columns=sort_columns)
    assert rows_of_all_readers(case, table) == rows
    assert required_columns(*live_paths(case, table)) == set()
    assert '"required":true' not in entries["iceberg.schema"].replace(" ", "")


def test_files_that_all_have_required_columns_get_the_table_s_nullability(case: IcebergCase, table: TableRef):
    append(case, table, 0, 100, REQUIRED)
    append(case, table, 100, 200, REQUIRED)
    rows = rows_of_all_readers(case, table)
    compact(case, table)
    assert rows_of_all_readers(case, table) == rows
    assert required_columns(*live_paths(case, table)) == set()


def test_files_with_optional_columns_of_a_column_that_became_required_keep_their_nulls(
    case: IcebergCase, table: TableRef
):
    append(case, table, 0, 100, OPTIONAL)
    require(case, table, "id", "name")
    append(case, table, 100, 200, REQUIRED)
    before = [required_columns(path) for path in live_paths(case, table)]
    assert {"id", "name"} <= max(before, key=len)
    assert set() in before
    # Spark can't read nulls of a required column.
    case.java_table(table).updateSchema().makeColumnOptional("name").commit()
    rows = rows_of_all_readers(case, table)
    require(case, table, "name")
    compact(case, table)
    assert required_columns(*live_paths(case, table)) == set()
    case.java_table(table).updateSchema().makeColumnOptional("name").commit()
    assert rows_of_all_readers(case, table) == rows


def test_columns_that_the_table_and_all_files_require_stay_required(case: IcebergCase, table: TableRef):
    columns = COLUMNS.replace("id bigint", "id bigint NOT NULL").replace("lat: double", "lat: double NOT NULL")
    case.sql(f"CREATE OR REPLACE TABLE {case.name(table)} ({columns}) USING iceberg")
    append(case, table, 0, 100, REQUIRED)
    append(case, table, 100, 200, REQUIRED)
    rows = rows_of_all_readers(case, table)
    compact(case, table)
    assert rows_of_all_readers(case, table) == rows
    assert required_columns(*live_paths(case, table)) == {"id", "stop.lat"}
