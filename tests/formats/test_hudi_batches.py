# SPDX-License-Identifier: Apache-2.0
"""Inputs of Hudi's row writer read in column batches: the same new files, and Hudi's own reader where it is needed."""

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hudi_tables import copy, write
from hudi_writing import Table, make_table
from kept_tables import kept

from lake.formats.hudi.rewrite import execute
from lake.plan import Plan, VerificationLevel

pytestmark = pytest.mark.spark

EVERY_TYPE = (
    "id",
    "0L ts",
    "'a' dt",
    "cast(id / 7 as decimal(9,2)) small_decimal",
    "cast(id / 7 as decimal(18,4)) decimal",
    "if(id % 4 = 0, null, cast(id / 7 as decimal(38,10))) large_decimal",
    "date_add(date '1969-12-01', cast(id as int)) day",
    "timestamp_seconds(id * 86399 - 1000000) at",
    "if(id % 5 = 0, null, unhex(sha1(cast(id as string)))) payload",
    "id % 2 = 0 even",
    "cast(id / 3 as float) single",
    "if(id % 7 = 0, double('NaN'), id / 3) double",
    "if(id % 3 = 1, null, repeat('ä', cast(id % 9 as int))) text",
    "if(id % 6 = 0, null, array(named_struct('x', id, 'y', if(id % 2 = 0, null, 'y')), null)) list",
    "if(id % 6 = 1, null, map('k', array(cast(id as int), null), 'l', null)) map",
    "if(id % 6 = 2, null, named_struct('inner', named_struct('n', if(id % 2 = 0, null, id)), 's', 's')) nested",
)


class Called:
    """Counts the rewrites whose inputs are read in batches; ``off`` leaves reading to Hudi."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.off, self.times = False, 0
        self._real = execute.write_from_batches
        monkeypatch.setattr(execute, "write_from_batches", self)

    def __call__(self, *arguments: Any) -> Any:
        job = None if self.off else self._real(*arguments)
        self.times += job is not None
        return job


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> Called:
    return Called(monkeypatch)


def new_files(table: Table, plan: Plan) -> list[tuple[str, pa.Table]]:
    """Parquet schema and content of the files that ``plan`` writes, by their first row; without their own names."""
    paths = [table.base / output.path for output in table.run(plan).outputs]
    files = [(str(pq.read_schema(path)), pq.read_table(path).drop_columns(["_hoodie_file_name"])) for path in paths]
    return sorted(files, key=lambda file: file[1]["id"][0].as_py())


def test_values_of_every_type_and_their_order_are_as_from_hudis_own_reader(
    spark: Any, tmp_path: Path, batches: Called
) -> None:
    def build(base: Path) -> None:
        for commit in range(3):
            frame = spark.range(commit * 1000, commit * 1000 + 90 * (3 - commit)).selectExpr(*EVERY_TYPE)
            write(frame.coalesce(1), base)

    template = kept("of every type", "trips", build, __file__)
    table, other = (Table(spark, copy(template, tmp_path / name)) for name in ("trips", "copy"))
    before = table.rows()
    found = new_files(table, table.plan(outputs=2, engine="spark", receipt=VerificationLevel.HASH))
    assert batches.times == 1
    batches.off = True
    expected = new_files(other, other.plan(outputs=2, engine="spark"))
    assert len(found) == 2
    for (schema, rows), (other_schema, other_rows) in zip(found, expected, strict=True):
        assert schema == other_schema
        assert repr(rows.to_pylist()) == repr(other_rows.to_pylist())  # by repr, for which NaN is NaN
    assert repr(table.rows()) == repr(before)


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [("mor", {}, "logs have to be merged"), ("cow", {"sort_columns": ("at",)}, "the plan sorts their rows")],
)
def test_slices_to_merge_or_sort_are_read_by_hudi(
    spark: Any,
    tmp_path: Path,
    batches: Called,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    options: dict[str, Any],
    reason: str,
) -> None:
    table = make_table(spark, tmp_path, kind)
    before = table.rows()
    with caplog.at_level(logging.INFO):
        table.run(table.plan(**options))
    assert batches.times == 0
    assert f"trips: inputs are not read in batches: {reason}" in caplog.text
    assert table.rows() == before


def test_files_from_before_a_column_was_added_or_widened_are_read_by_hudi(
    spark: Any, tmp_path: Path, batches: Called, caplog: pytest.LogCaptureFixture
) -> None:
    base = tmp_path / "trips"
    old = spark.range(30).selectExpr("id", "0L ts", "if(id < 10, 'a', if(id < 20, 'b', 'c')) dt", "cast(id as int) tip")
    write(old.coalesce(1), base)
    new = old.selectExpr("id + 100 id", "ts", "dt", "cast(tip as long) tip", "if(id > 0, 'new', null) added")
    write(new.where("dt > 'a'").coalesce(1), base)
    table = Table(spark, base)
    before = table.rows()
    with caplog.at_level(logging.INFO):
        table.run(table.plan("0198-one", partitions=["dt=a"]))
        table.run(table.plan("0198-two", partitions=["dt=b"]))
    assert batches.times == 0
    assert "has another schema than the table" in caplog.text
    assert "has another schema than dt=b/" in caplog.text
    assert table.rows() == before
