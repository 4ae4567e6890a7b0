# SPDX-License-Identifier: Apache-2.0
"""What predicates find in the outputs of every engine: readers skip files and row groups by bounds and counts."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pytest
from contract.attempts import run
from contract.plans import plan_all
from iceberg_case import IcebergCase, NewCase
from iceberg_readers import live_paths
from pyiceberg.table import StaticTable

from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.engines.spark_tasks import SparkTasks
from executors.engines.stitch.engine import HybridEngine, ParquetStitchEngine
from lake.engines import RewriteEngine
from lake.formats.iceberg.catalog.tables import load_table
from lake.model import TableRef

pytestmark = pytest.mark.spark

COLUMNS = (
    "id bigint, x double, f float, s string, ts timestamp, n timestamp_ntz, d date, p decimal(9,2), q decimal(30,4), "
    "b binary, flag boolean"
)
Found = tuple[list[int], list[int], list[int] | None]
#: longer than the 16 characters to which Iceberg truncates bounds by default
LONG = "the same sixteen and more"
VALUES = (
    "id",
    "CASE WHEN id % 10 = 3 THEN double('NaN') WHEN id % 10 = 4 THEN NULL WHEN id = 40 THEN double('-Infinity') "
    "WHEN id % 10 = 5 THEN -0.0D ELSE id / 4.0D END AS x",
    "CASE WHEN id % 7 = 3 THEN float('NaN') WHEN id % 7 = 4 THEN NULL ELSE CAST(id AS float) END AS f",
    f"CASE WHEN id % 5 = 1 THEN NULL WHEN id % 5 = 2 THEN repeat('z', 5000) WHEN id % 5 = 3 THEN '\U0001f980 crab' "
    f"ELSE concat('{LONG} ', lpad(id, 3, '0')) END AS s",
    "IF(id % 9 = 0, NULL, timestamp_micros((id - 60) * 1000001)) AS ts",
    "IF(id % 9 = 1, NULL, CAST(timestamp_micros((id - 60) * 1000001) AS timestamp_ntz)) AS n",
    "IF(id % 9 = 2, NULL, date_add(DATE'1969-12-01', CAST(id AS int))) AS d",
    "IF(id % 9 = 3, NULL, CAST((id - 60) / 8.0D AS decimal(9,2))) AS p",
    "IF(id % 9 = 4, NULL, CAST((id - 60) * 1000000000000000000BD AS decimal(30,4))) AS q",
    "IF(id % 9 = 5, NULL, unhex(lpad(hex(id * 2), 4, 'F'))) AS b",
    "IF(id % 3 = 0, NULL, id % 2 = 0) AS flag",
)
#: the predicate in Spark's SQL, in DuckDB's if that differs, and in PyIceberg's if it has it
PREDICATES: tuple[tuple[str, str | None, str | None], ...] = (
    # Spark has NaN above all numbers and Iceberg's bounds leave NaN out, so what `x > 20` finds depends on the files.
    ("x > 20 AND NOT isnan(x)", None, "x > 20.0"),
    ("x < 3.25", None, "x < 3.25"),
    # Likewise `x = 0`: Iceberg's dictionaries and bounds have -0.0 below 0.0, Spark has them equal.
    ("x = 0.25", None, "x = 0.25"),
    ("x <= -1", None, "x <= -1.0"),
    ("isnan(x)", "isnan(x)", "x is nan"),
    ("x IS NOT NULL AND NOT isnan(x)", None, "x is not null and x is not nan"),
    ("x IS NULL", None, "x is null"),
    ("x IS NOT NULL", None, "x is not null"),
    ("f < 5", None, "f < 5"),
    ("isnan(f)", "isnan(f)", "f is nan"),
    (f"s = '{LONG} 044'", None, f"s = '{LONG} 044'"),
    (f"s > '{LONG} 089'", None, f"s > '{LONG} 089'"),
    (f"s < '{LONG} 010'", None, f"s < '{LONG} 010'"),
    (f"s LIKE '{LONG}%'", None, f"s like '{LONG}%'"),
    ("s > 'zzzz'", None, "s > 'zzzz'"),
    ("s >= '\U0001f980'", None, "s >= '\U0001f980'"),
    ("s = repeat('z', 5000)", None, f"s = '{'z' * 5000}'"),
    ("s IS NULL", None, "s is null"),
    (
        "ts < TIMESTAMP'1970-01-01 00:00:00Z'",
        "ts < TIMESTAMPTZ'1970-01-01 00:00:00+00'",
        "ts < '1970-01-01T00:00:00+00:00'",
    ),
    (
        "ts = TIMESTAMP'1969-12-31 23:59:58.999999Z'",
        "ts = TIMESTAMPTZ'1969-12-31 23:59:58.999999+00'",
        "ts = '1969-12-31T23:59:58.999999+00:00'",
    ),
    (
        "n >= TIMESTAMP_NTZ'1970-01-01 00:00:30.00003'",
        "n >= TIMESTAMP'1970-01-01 00:00:30.00003'",
        "n >= '1970-01-01T00:00:30.00003'",
    ),
    ("d <= DATE'1969-12-05'", None, "d <= '1969-12-05'"),
    ("p < 0", None, "p < 0.00"),
    ("p = CAST(-0.25 AS decimal(9,2))", None, "p = -0.25"),
    ("q > 0", None, None),
    ("q = CAST(-1000000000000000000 AS decimal(30,4))", None, None),
    ("b >= X'00F0'", "b >= '\\x00\\xF0'::BLOB", None),
    ("flag", None, "flag = true"),
    ("flag IS NULL", None, "flag is null"),
    ("id = 37 AND x IS NOT NULL", None, "id = 37 and x is not null"),
)


def engines(spark: Any) -> Mapping[str, Callable[[], RewriteEngine]]:
    return {
        "arrow": lambda: ArrowEngine(InProcessBackend()),
        "arrow in tasks of Spark": lambda: ArrowEngine(SparkTasks(lambda: spark)),
        "stitch": lambda: ParquetStitchEngine(InProcessBackend()),
        "hybrid": lambda: HybridEngine(InProcessBackend()),
    }


def found_by(case: IcebergCase, table: TableRef) -> dict[str, Found]:
    """The ids that Spark, DuckDB and PyIceberg find for each predicate."""
    static = StaticTable.from_metadata(load_table(case.format._settings, table).metadata_location)
    paths, rows = live_paths(case, table), case.session.table(case.name(table))
    found = {}
    with duckdb.connect() as connection:
        files = connection.read_parquet(paths)
        for in_spark, in_duckdb, in_pyiceberg in PREDICATES:
            by_spark = sorted(row["id"] for row in rows.where(in_spark).select("id").collect())
            by_duckdb = sorted(row[0] for row in files.filter(in_duckdb or in_spark).select("id").fetchall())
            by_pyiceberg = None
            if in_pyiceberg is not None:
                scan = static.scan(row_filter=in_pyiceberg, selected_fields=("id",))
                by_pyiceberg = sorted(scan.to_arrow()["id"].to_pylist())
            found[in_spark] = by_spark, by_duckdb, by_pyiceberg
    return found


@pytest.mark.crossed(2)
@pytest.mark.parametrize("engine", ["arrow", "arrow in tasks of Spark", "stitch", "hybrid"])
def test_every_predicate_finds_the_same_rows_in_new_files_as_in_the_old_ones(
    new_case: NewCase, tmp_path: Path, engine: str
):
    case = new_case("jdbc")
    case.engines = (engines(case.session)[engine](),)
    table = case.create(tmp_path / "lake" / "t", name="t")
    case.sql(f"CREATE OR REPLACE TABLE {case.name(table)} ({COLUMNS}) USING iceberg")
    for low in range(0, 120, 40):
        case.session.range(low, low + 40, 1, 1).selectExpr(*VALUES).writeTo(case.name(table)).append()
    before = found_by(case, table)
    assert {predicate: found for predicate, found in before.items() if not _agree(found)} == {}
    # By its name an engine also rewrites files as small as these.
    run(case, plan_all(case.format, table, "p", engine=case.engines[0].name, min_row_group_bytes=1 << 12))
    assert len(live_paths(case, table)) == 1
    after = found_by(case, table)
    assert {predicate: found for predicate, found in after.items() if found != before[predicate]} == {}


def _agree(found: Found) -> bool:
    """True if some rows but not all fit, and every reader finds the same ones."""
    by_spark, by_duckdb, by_pyiceberg = found
    return 0 < len(by_spark) < 120 and by_duckdb == by_spark and by_pyiceberg in (None, by_spark)


NESTED = (
    "id bigint, u string, a struct<n: int, s: string, d: decimal(12,3)>, l array<struct<k: int>>, "
    "m map<string, bigint>, p decimal(9,2), q decimal(30,4), s string, t timestamp, b binary, d date, g smallint"
)
NESTED_VALUES = (
    "id",
    "concat('', repeat('\U0010ffff', 20), lpad(id, 3, '0')) AS u",
    f"IF(id % 11 = 0, NULL, named_struct('n', CAST(id - 60 AS int), 's', concat('{LONG} ', lpad(id, 3, '0')), "
    "'d', CAST((id - 60) / 8.0D AS decimal(12,3)))) AS a",
    "IF(id % 4 = 0, NULL, array(named_struct('k', CAST(id AS int)), named_struct('k', CAST(-id AS int)))) AS l",
    "IF(id % 4 = 1, NULL, map(concat('k', id % 3), id, 'z', -id)) AS m",
    "IF(id % 9 = 3, NULL, CAST((id - 60) / 8.0D AS decimal(9,2))) AS p",
    "IF(id % 9 = 4, NULL, CAST((id - 60) * 1000000000000000000BD AS decimal(30,4))) AS q",
    f"IF(id % 5 = 1, NULL, concat('{LONG} \U0001f980 ', lpad(id, 3, '0'))) AS s",
    "IF(id % 9 = 0, NULL, timestamp_micros((id - 60) * 1000001)) AS t",
    "IF(id % 9 = 5, NULL, unhex(concat('FFFF', lpad(hex(id), 2, '0')))) AS b",
    "date_add(DATE'1969-12-01', CAST(id AS int)) AS d",
    "CAST(id - 60 AS smallint) AS g",
)
NESTED_PREDICATES = (
    "a.n < -55",
    "a.n >= 55",
    f"a.s > '{LONG} 100'",
    "a.d < 0",
    "a IS NULL",
    "a.n IS NULL",
    "l[0].k > 100",
    "m['k1'] > 60",
    "u > repeat('\U0010ffff', 20)",
    "u <= concat(repeat('\U0010ffff', 20), '005')",
    f"s >= '{LONG} \U0001f980 110'",
    f"s LIKE '{LONG} \U0001f980 10%'",
    "b > X'FFFF70'",
    "d < DATE'1969-12-05'",
    "g < -50",
)
BOUNDED = ("id", "u", "a.n", "a.s", "a.d", "p", "q", "s", "t", "b", "d", "g")
AGGREGATES = ("count(1)", *(f"{function}({column})" for column in BOUNDED for function in ("min", "max", "count")))


@pytest.mark.paired("mode")
@pytest.mark.parametrize("mode", ["full", "truncate(16)", "counts"])
@pytest.mark.parametrize("engine", ["arrow", "stitch", "hybrid"])
def test_predicates_of_nested_columns_and_aggregates_by_bounds_have_the_same_answers(
    new_case: NewCase, tmp_path: Path, engine: str, mode: str
):
    """Spark takes ``min`` and ``max`` from bounds in the mode ``full``, and counts from those of values and nulls."""
    case = new_case("jdbc", properties={"write.metadata.metrics.default": mode})
    case.engines = (engines(case.session)[engine](),)
    table = case.create(tmp_path / "lake" / "t", name="t")
    name = case.name(table)
    case.sql(f"CREATE OR REPLACE TABLE {name} ({NESTED}) USING iceberg")
    for low in range(0, 120, 40):
        case.session.range(low, low + 40, 1, 1).selectExpr(*NESTED_VALUES).writeTo(name).append()

    def answers() -> dict[str, Any]:
        found: dict[str, Any] = {
            one: sorted(row["id"] for row in case.sql(f"SELECT id FROM {name} WHERE {one}").collect())
            for one in NESTED_PREDICATES
        }
        for one in AGGREGATES:
            found[one] = case.sql(f"SELECT {one} FROM {name}").collect()[0][0]
        return found

    before = answers()
    run(case, plan_all(case.format, table, "p", engine=case.engines[0].name, min_row_group_bytes=1 << 12))
    assert len(live_paths(case, table)) == 1
    assert answers() == before
