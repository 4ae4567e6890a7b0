# SPDX-License-Identifier: Apache-2.0
"""Predicates find the right rows in files without their deleted rows; bounds and counts are those of the other rows.

The deleted rows have the least and the greatest value of each column in each file, and all values of a column.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from contract.attempts import attempt
from contract.plans import plan_all
from iceberg_case import NewCase
from iceberg_readers import live_paths
from iceberg_writers import merge_on_read_delete
from pyiceberg.conversions import from_bytes
from pyiceberg.table import StaticTable

from executors.verification import verify_rewrite
from lake.formats.iceberg.catalog.tables import load_table

pytestmark = pytest.mark.spark

COLUMNS = (
    "id bigint, i int, s string, p decimal(9,2), q decimal(30,4), d date, t timestamp, n timestamp_ntz, x double, "
    "b binary, flag boolean, a struct<n: int, s: string>, gone string, w string"
)
#: longer than the 16 characters to which Iceberg truncates bounds by default
LONG = "the same sixteen \U0001f980"
VALUES = (
    "id",
    "CAST(id - 600 AS int) AS i",
    f"IF(id % 7 = 5, NULL, concat('{LONG} ', lpad(id, 4, '0'))) AS s",
    "IF(id % 9 = 4, NULL, CAST((id - 600) / 8.0D AS decimal(9,2))) AS p",
    "CAST((id - 600) * 1000000000000000000BD AS decimal(30,4)) AS q",
    "date_add(DATE'1969-12-01', CAST(id AS int)) AS d",
    "timestamp_micros((id - 600) * 1000001) AS t",
    "CAST(timestamp_micros((id - 600) * 1000001) AS timestamp_ntz) AS n",
    "CASE WHEN id % 10 = 3 THEN double('NaN') WHEN id % 10 = 4 THEN NULL WHEN id = 0 THEN double('-Infinity') "
    "ELSE id / 4.0D END AS x",
    "IF(id % 9 = 5, NULL, unhex(concat('FFFF', lpad(hex(id), 4, '0')))) AS b",
    "IF(id % 400 IN (0, 1, 399), false, IF(id % 3 = 0, NULL, true)) AS flag",
    f"IF(id % 11 = 4, NULL, named_struct('n', CAST(id - 600 AS int), 's', concat('{LONG} ', lpad(id, 4, '0')))) AS a",
    "IF(id % 400 IN (0, 1, 399), concat('gone ', id), NULL) AS gone",
    # Each file has a dictionary. pyarrow counts a null among the values that are used of it.
    "CASE WHEN id % 400 = 399 THEN 'zzz' WHEN id % 3 = 1 THEN NULL ELSE concat('word ', id % 4) END AS w",
)
DELETED = "id % 400 IN (0, 1, 399)"
#: the predicate in Spark's SQL, in DuckDB's if that differs, and in PyIceberg's if it has it; ids 0 to 1199
PREDICATES: tuple[tuple[str, str | None, str | None], ...] = (
    ("i < -598", None, "i < -598"),
    ("i <= -598", None, "i <= -598"),
    ("i IN (-600, 0, 598, 599)", None, "i in (-600, 0, 598, 599)"),
    ("NOT (i < 598)", None, "not i < 598"),
    ("id = 399", None, "id = 399"),
    ("id > 397 AND id < 403", None, "id > 397 and id < 403"),
    (f"s = '{LONG} 0000'", None, f"s = '{LONG} 0000'"),
    (f"s = '{LONG} 0801'", None, f"s = '{LONG} 0801'"),
    (f"s = '{LONG} 0802'", None, f"s = '{LONG} 0802'"),
    (f"s > '{LONG} 1196'", None, f"s > '{LONG} 1196'"),
    (f"s < '{LONG} 0003'", None, f"s < '{LONG} 0003'"),
    (f"s LIKE '{LONG} 039%'", None, f"s like '{LONG} 039%'"),
    (f"NOT s LIKE '{LONG} 0%'", None, f"s not like '{LONG} 0%' and s is not null"),
    (f"s IN ('{LONG} 0001', '{LONG} 0002')", None, f"s in ('{LONG} 0001', '{LONG} 0002')"),
    ("s IS NULL AND id > 1190", None, "s is null and id > 1190"),
    ("p <= -74.75", None, "p <= -74.75"),
    ("p = CAST(-75 AS decimal(9,2))", None, "p = -75.00"),
    ("p > CAST(74.5 AS decimal(9,2))", None, "p > 74.50"),
    ("q < CAST(-597000000000000000000 AS decimal(30,4))", None, None),
    ("d < DATE'1969-12-03'", None, "d < '1969-12-03'"),
    ("d IN (DATE'1969-12-01', DATE'1969-12-03')", None, "d in ('1969-12-01', '1969-12-03')"),
    (
        "t >= TIMESTAMP'1970-01-01 00:09:58.000598Z'",
        "t >= TIMESTAMPTZ'1970-01-01 00:09:58.000598+00'",
        "t >= '1970-01-01T00:09:58.000598+00:00'",
    ),
    (
        "n > TIMESTAMP_NTZ'1970-01-01 00:09:58.000598'",
        "n > TIMESTAMP'1970-01-01 00:09:58.000598'",
        "n > '1970-01-01T00:09:58.000598'",
    ),
    ("x < 1", None, "x < 1.0"),
    ("x > 299 AND NOT isnan(x)", None, "x > 299.0"),
    ("isnan(x)", None, "x is nan"),
    ("isnan(x) AND id > 1190", None, "x is nan and id > 1190"),
    ("NOT isnan(x) AND x IS NOT NULL", None, "x is not nan and x is not null"),
    ("x IN (0.25D, 0.5D)", "x IN (0.25, 0.5)", "x in (0.25, 0.5)"),
    ("b = X'FFFF0000'", "b = '\\xFF\\xFF\\x00\\x00'::BLOB", None),
    ("b >= X'FFFF04AD'", "b >= '\\xFF\\xFF\\x04\\xAD'::BLOB", None),
    ("NOT flag", None, "flag = false"),
    ("flag IS NULL", None, "flag is null"),
    ("a.n < -597", None, "a.n < -597"),
    (f"a.s > '{LONG} 1196'", None, f"a.s > '{LONG} 1196'"),
    ("a IS NULL", None, None),
    ("a.n IS NULL", None, None),
    ("gone IS NOT NULL", None, "gone is not null"),
    ("gone = 'gone 0'", None, "gone = 'gone 0'"),
    ("gone LIKE 'gone%'", None, "gone like 'gone%'"),
    ("gone IS NULL", None, "gone is null"),
    ("w = 'zzz'", None, "w = 'zzz'"),
    ("w > 'word 3'", None, "w > 'word 3'"),
    ("w <= 'word 0'", None, "w <= 'word 0'"),
    ("w IN ('word 1', 'zzz')", None, "w in ('word 1', 'zzz')"),
    ("w NOT IN ('word 1', 'word 2')", None, "w not in ('word 1', 'word 2') and w is not null"),
)
AGGREGATES = "count(1), " + ", ".join(
    f"min({name}), max({name}), count({name})" for name in ("id", "i", "s", "p", "q", "d", "t", "n", "b", "a.n", "w")
)
Answers = Mapping[str, list[int]]
MODES = ("full", "truncate(16)", "counts")


@pytest.mark.crossed(2, first="full")
@pytest.mark.parametrize("mode", MODES)
def test_predicates_and_bounds_of_files_without_their_deleted_rows(new_case: NewCase, tmp_path: Path, mode: str):
    case = new_case("hadoop", parts=("",), merge_on_read=True, properties={"write.metadata.metrics.default": mode})
    table = case.create(tmp_path / "lake" / "t", name="t")
    name = case.name(table)
    case.sql(f"CREATE OR REPLACE TABLE {name} ({COLUMNS}) USING iceberg")
    for low in range(0, 1200, 400):
        case.session.range(low, low + 400, 1, 1).selectExpr(*VALUES).writeTo(name).append()
    merge_on_read_delete(case, table, DELETED)

    def static() -> StaticTable:
        return StaticTable.from_metadata(load_table(case.format._settings, table).metadata_location)

    def by_spark(state: Any) -> Answers:
        """Return the ids for each predicate. Spark computes predicates as columns, so it skips no file by them."""
        rows = state.selectExpr("id", *(f"coalesce({one}, false)" for one, _, _ in PREDICATES)).collect()
        return {
            one: sorted(row[0] for row in rows if row[number]) for number, (one, _, _) in enumerate(PREDICATES, start=1)
        }

    def by_pyiceberg(snapshot_id: int | None = None) -> Answers:
        now = static()
        return {
            one: sorted(now.scan(asked, ("id",), snapshot_id=snapshot_id).to_arrow()["id"].to_pylist())
            for one, _, asked in PREDICATES
            if asked is not None
        }

    rows, left = case.rows(table), static().scan().to_arrow()
    assert len(rows) == left.num_rows == 1191
    wanted, totals = by_spark(case.session.table(name)), case.sql(f"SELECT {AGGREGATES} FROM {name}").collect()
    assert differences(by_pyiceberg(), wanted) == {}
    before = case.java_table(table).currentSnapshot().snapshotId()
    plan = plan_all(case.format, table, "p", engine="arrow")
    with attempt(case, replace(plan, groups=(replace(plan.groups[0], output_files=4),))) as one:
        prepared = one.prepared()
        assert prepared.notes == ("engine arrow (1 group): as set",)
        rewrite = one.writer.rewrite(prepared, lambda progress: None)
        verify_rewrite(rewrite, writer=one.writer)
        assert len(one.writer.commit(rewrite).outputs) == 4

    found = {
        one: sorted(row["id"] for row in case.sql(f"SELECT id FROM {name} WHERE {one}").collect())
        for one, _, _ in PREDICATES
    }
    assert differences(found, wanted) == {}
    assert differences(by_pyiceberg(), wanted) == {}
    with duckdb.connect() as connection:
        files = connection.read_parquet(live_paths(case, table))
        for in_spark, in_duckdb, _ in PREDICATES:
            ids = files.filter(in_duckdb or in_spark).select("id").fetchall()
            assert (in_spark, sorted(row[0] for row in ids)) == (in_spark, wanted[in_spark])
    assert (case.rows(table), case.sql(f"SELECT {AGGREGATES} FROM {name}").collect()) == (rows, totals)
    assert by_spark(case.session.read.option("snapshot-id", before).table(name)) == wanted
    assert differences(by_pyiceberg(before), wanted) == {}
    recorded = [task.file for task in static().scan().plan_files()]
    assert len(recorded) == 4
    for file in recorded:
        assert_figures(file, left, static().schema(), mode)


def differences(found: Answers, wanted: Answers) -> Mapping[str, Any]:
    """Return the predicates with wrong results, each with the ids that are too many and the ids that are missing."""
    return {
        one: (sorted({*ids} - {*wanted[one]}), sorted({*wanted[one]} - {*ids}))
        for one, ids in found.items()
        if ids != wanted[one]
    }


def assert_figures(file: Any, rows: pa.Table, schema: Any, mode: str) -> None:
    """The bounds and counts of a file are those of the ``rows`` whose ids it has."""
    ids = pq.ParquetFile(file.file_path.removeprefix("file:"), memory_map=True).read(["id"])["id"]
    rows = rows.filter(pc.is_in(rows["id"], ids.combine_chunks())).combine_chunks()
    assert file.record_count == rows.num_rows == len(ids) > 0
    assert not file.nan_value_counts
    bounded = set()
    for name in [one for one in rows.column_names if one != "a"] + ["a.n", "a.s"]:
        column = schema.find_field(name)
        values = pc.struct_field(rows["a"], name[2:]) if name.startswith("a.") else rows[name]
        counts = file.value_counts[column.field_id], file.null_value_counts[column.field_id]
        assert (name, *counts) == (name, len(values), values.null_count)
        if mode == "counts" or values.null_count == len(values) or name == "x":
            continue
        bounded.add(column.field_id)
        low, high = (
            from_bytes(column.field_type, bounds[column.field_id]) for bounds in (file.lower_bounds, file.upper_bounds)
        )
        least, greatest = extremes(values)
        if mode == "full" or not isinstance(least, str | bytes):
            assert (name, low, high) == (name, least, greatest)
        else:
            assert (name, low) == (name, least[:16])
            assert high == greatest if len(greatest) <= 16 else high[:15] == greatest[:15] and high > greatest
    assert file.lower_bounds.keys() == file.upper_bounds.keys() == bounded


def extremes(values: Any) -> Sequence[Any]:
    """The least and the greatest value, as Iceberg decodes bounds."""
    if pa.types.is_date(values.type):
        values = values.cast(pa.int32())
    elif pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    present = [one for one in values.to_pylist() if one is not None]
    return min(present), max(present)
