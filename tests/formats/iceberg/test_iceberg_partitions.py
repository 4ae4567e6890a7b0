# SPDX-License-Identifier: Apache-2.0
"""Partitions that a table's writers have changed, and files that a plan must leave alone without halting the others."""

from pathlib import Path
from typing import Any

import pytest
from contract.attempts import attempt
from contract.plans import plan_all
from iceberg_case import IcebergCase
from iceberg_readers import rows_of_all_readers
from iceberg_writers import add_again, equality_delete

from lake.model import TableRef

pytestmark = [pytest.mark.spark, pytest.mark.paired("case")]


def reasons(case: IcebergCase, table: TableRef) -> dict[str, set[str | None]]:
    """Why files are not planned, by partition."""
    found: dict[str, set[str | None]] = {}
    for row in case.format.snapshot(table).slices.to_pylist():
        found.setdefault(row["partition"], set()).add(row["busy_reason"])
    return found


def compact(case: IcebergCase, table: TableRef) -> list[str]:
    """Run a plan over all files, those that should not be planned included. Returns why its groups were skipped."""
    with attempt(case, plan_all(case.format, table, "p")) as one:
        prepared = one.prepared()
        one.writer.commit(one.writer.rewrite(prepared, lambda progress: None))
    return [skipped.reason for skipped in prepared.skipped]


@pytest.mark.parametrize("merges", [False, True], ids=["kept values", "lost values"])
def test_a_partition_column_that_was_dropped_leaves_the_other_files_to_a_plan(
    case: IcebergCase, table: TableRef, merges: bool
):
    """Iceberg writes null for the values of such a column when it merges manifests."""
    name = case.name(table)
    case.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('commit.manifest-merge.enabled' = '{merges}')")
    old = "dt=null" if merges else "dt=0"
    case.sql(f"DELETE FROM {name} WHERE dt = '1'")
    java = case.java_table(table)
    java.updateSpec().removeField("dt").commit()
    case.sql(f"ALTER TABLE {name} DROP COLUMN dt")
    for low in (1000, 1050, 1100):
        rows = case.session.range(low, low + 50, 1, 1).selectExpr("id", "id AS value", "'t' AS tip", "NULL AS stop")
        rows.writeTo(name).append()
    assert reasons(case, table) == {
        old: {"it was written with partition spec 0; the table's spec is 1"},
        "": {None},
    }
    rows = rows_of_all_readers(case, table)
    assert len(rows[0]) == 300
    (skipped,) = compact(case, table)
    assert "partition spec 0" in skipped
    assert rows_of_all_readers(case, table) == rows
    listed = [row["partition"] for row in case.format.snapshot(table).slices.to_pylist()]
    assert sorted(listed) == ["", old, old, old]
    (commit,) = case.format.recent_commits(table, ["p"]).values()
    with case.format.writer(table, case.spark, case.engines) as writer:
        # Iceberg's expiry can't read merged manifests with lost values, and then deletes no file; lakefold does.
        assert writer.delete(commit.superseded).retained == {}
    assert not {version.path for version in commit.superseded} & case.stored(table).keys()
    assert rows_of_all_readers(case, table) == rows


def test_a_table_whose_partition_fields_were_all_removed_is_compacted(spark: Any, tmp_path: Path):
    """Version 1 keeps removed fields in its specs, with the transform void."""
    case = IcebergCase(session=spark, kind="jdbc", version=1)
    table = case.create(tmp_path / "lake" / "t", name="t")
    case.java_table(table).updateSpec().removeField("dt").commit()
    for low in (1000, 1050):
        case.append(table, "", low, low + 50)
    rows = rows_of_all_readers(case, table)
    skipped = compact(case, table)
    assert len(skipped) == 2
    assert rows_of_all_readers(case, table) == rows
    assert [row["partition"] for row in case.format.snapshot(table).slices.to_pylist()].count("dt=null") == 1


def test_equality_deletes_under_a_spec_of_removed_fields_apply_to_all_files(spark: Any, tmp_path: Path):
    case = IcebergCase(session=spark, kind="jdbc", version=1)
    table = case.create(tmp_path / "lake" / "t", name="t")
    case.java_table(table).updateSpec().removeField("dt").commit()
    case.append(table, "", 1000, 1050)
    case.sql(f"ALTER TABLE {case.name(table)} SET TBLPROPERTIES ('format-version' = '2')")
    equality_delete(case, table, 7)
    case.append(table, "", 2000, 2050)
    rows = case.rows(table)
    assert len(rows) == 399, "the delete applies to a file of another spec"
    listed = case.format.snapshot(table).slices.to_pylist()
    of_present_spec = [row for row in listed if row["busy_reason"] is None]
    assert sorted(len(row["log_files"]) for row in of_present_spec) == [0, 1], "one file is newer than the delete"
    assert {row["busy_reason"] for row in listed if row["busy_reason"]} == {
        "it was written with partition spec 0; the table's spec is 1"
    }
    compact(case, table)
    assert case.rows(table) == rows
    (new,) = [row for row in case.format.snapshot(table).slices.to_pylist() if row["busy_reason"] is None]
    assert new["log_files"] == []


def test_a_file_that_a_snapshot_lists_twice_is_left_alone(case: IcebergCase, table: TableRef):
    again = case.format.snapshot(table, ["dt=0"]).slices.to_pylist()[0]["path"]
    add_again(case, table, again)
    rows = case.rows(table)
    assert len(rows) == 350, "Spark reads its rows twice"
    listed = case.format.snapshot(table).slices.to_pylist()
    assert [row["path"] for row in listed].count(again) == 1
    (busy,) = [row for row in listed if row["busy_reason"]]
    assert (busy["path"], busy["busy_reason"]) == (
        again,
        "the snapshot lists it 2 times, and readers read its rows as often",
    )
    (skipped,) = compact(case, table)
    assert "lists it 2 times" in skipped
    assert case.rows(table) == rows
    assert [row["partition"] for row in case.format.snapshot(table).slices.to_pylist()].count("dt=1") == 1


@pytest.mark.parametrize("value", ["NaN", "Infinity"])
def test_partitions_of_values_that_json_lacks_are_left_alone(case: IcebergCase, table: TableRef, value: str):
    name = case.name(table)
    case.sql(f"CREATE OR REPLACE TABLE {name} (id bigint, x double) USING iceberg PARTITIONED BY (x)")
    for low in range(4):
        x = f"double('{value}')" if low % 2 else "1.5D"
        case.session.range(low, low + 1, 1, 1).selectExpr("id", f"{x} AS x").writeTo(name).append()
    why = f"its partition has x = {value}, which JSON can't express"
    assert reasons(case, table) == {"x=1.5": {None}, f"x={value}": {why}}
    rows = case.rows(table)
    (skipped,) = compact(case, table)
    assert why in skipped
    assert case.rows(table) == rows
    assert sorted(row["partition"] for row in case.format.snapshot(table).slices.to_pylist()) == [
        "x=1.5",
        f"x={value}",
        f"x={value}",
    ]
