# SPDX-License-Identifier: Apache-2.0
"""``arrow`` leaves out the rows that position deletes of all shapes name, whatever is committed meanwhile."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contract.attempts import Attempt, attempt
from contract.plans import plan_all
from iceberg_case import IcebergCase, NewCase
from iceberg_readers import rows_of_all_readers
from iceberg_writers import (
    append_file,
    equality_delete,
    merge_on_read_delete,
    position_deletes,
    rewrite_position_deletes,
)

from executors.verification import verify_rewrite
from lake.errors import Conflict
from lake.formats.iceberg.jvm import exact_commit
from lake.model import TableRef
from lake.plan import Commit, PlanKind
from lake.storage.locations import canonical_location

pytestmark = pytest.mark.spark


@pytest.fixture
def case(new_case: NewCase) -> IcebergCase:
    return new_case("hadoop", merge_on_read=True)


def locations(case: IcebergCase, table: TableRef, partition: str) -> list[str]:
    """The names of a partition's data files in the table's metadata."""
    rows = case.sql(
        f"SELECT file_path FROM {case.name(table)}.files WHERE content = 0 AND partition.dt = '{partition}'"
    )
    return sorted(row["file_path"] for row in rows.collect())


def ids_of(location: str) -> list[int]:
    found: list[int] = pq.ParquetFile(canonical_location(location)).read()["id"].to_pylist()
    return found


def delete_files(case: IcebergCase, table: TableRef) -> int:
    return int(case.sql(f"SELECT * FROM {case.name(table)}.delete_files").count())


def by_arrow(one: Attempt) -> Commit:
    """All groups of a plan, rewritten by ``arrow``, verified and committed."""
    prepared = one.prepared()
    assert [note.split(" (")[0] for note in prepared.notes] == ["engine arrow"]
    rewrite = one.writer.rewrite(prepared, lambda progress: None)
    verify_rewrite(rewrite, writer=one.writer)
    return one.writer.commit(rewrite)


def test_delete_files_that_no_writer_should_make_are_read_as_spark_reads_them(case: IcebergCase, table: TableRef):
    first, second, third = locations(case, table, "0")
    other = locations(case, table, "1")[0]
    spelled_otherwise = first.replace("file:/", "file:///")
    assert spelled_otherwise != first
    late = Path(canonical_location(first)).with_name("late.parquet")
    deleted = [(second, 9), (first, 40), (first, 3), (second, 9), (first, 3), (f"file:{late}", 0), (first, 5000)]
    position_deletes(case, table, [*deleted, (spelled_otherwise, 1), (canonical_location(first), 2), (other, 4)], "0")
    position_deletes(case, table, [(third, 0), (first, 40), (third, 49)], "0", rows=True)
    position_deletes(case, table, [(other, 7), (second, 11)], "1", rows=True)
    # The position of its first row was deleted before the file was there.
    append_file(case, table, late, pq.ParquetFile(canonical_location(third)).read(), "0", row_group_size=7)
    position_deletes(case, table, [(f"file:{late}", 8), (f"file:{late}", 49)], "0")
    gone = [ids_of(first)[position] for position in (3, 40)] + [ids_of(second)[9], ids_of(other)[7]]
    left = [*range(300), *ids_of(third)]
    for one in [*gone, ids_of(third)[0], ids_of(third)[49], ids_of(third)[8], ids_of(third)[49]]:
        left.remove(one)
    rows = case.rows(table)
    assert sorted(row["id"] for row in case.session.table(case.name(table)).collect()) == sorted(left)
    with attempt(case, plan_all(case.format, table, "p")) as one:
        by_arrow(one)
    by_spark, by_python, by_duckdb = rows_of_all_readers(case, table)
    assert by_spark == rows
    assert [row["id"] for row in by_python] == [row["id"] for row in by_duckdb] == sorted(left)
    assert delete_files(case, table) == 0


@pytest.mark.parametrize("sort", [(), ("value", "id")])
def test_a_large_file_with_deletes_is_divided_without_its_deleted_rows(
    case: IcebergCase, table: TableRef, sort: tuple[str, ...]
):
    source = locations(case, table, "0")[0]
    large = Path(canonical_location(source)).with_name("large.parquet")
    rows = pa.concat_tables([pq.ParquetFile(canonical_location(source)).read()] * 40)
    rows = rows.set_column(0, rows.schema.field("id"), pa.array(range(1000, 3000), pa.int64()))
    append_file(case, table, large, rows, "0", row_group_size=130)
    # single rows, row groups without remaining rows, the first and the last row
    gone = {0, 5, 129, 130, 131, *range(260, 520), *range(1900, 2000)}
    position_deletes(case, table, [(f"file:{large}", position) for position in sorted(gone)], "0")
    before = case.rows(table)
    plan = plan_all(case.format, table, "p", partitions=["dt=0"], sort_columns=sort)
    (item,) = (one for one in plan.groups[0].slices if str(one.path).endswith("large.parquet"))
    group = replace(plan.groups[0], slices=(item,), output_files=4)
    with attempt(case, replace(plan, kind=PlanKind.COMPACTION, groups=(group,))) as one:
        commit = by_arrow(one)
    assert [output.rows for output in commit.outputs] == pytest.approx([(2000 - len(gone)) / 4] * 4, abs=1)
    assert case.rows(table) == before
    if not sort:
        written = [one for output in commit.outputs for one in ids_of(output.path)]
        assert written == [1000 + row for row in range(2000) if row not in gone]


def test_a_partition_all_of_whose_rows_are_deleted_becomes_no_file(case: IcebergCase, table: TableRef):
    merge_on_read_delete(case, table, "dt = '0' AND id >= 0")
    for location in locations(case, table, "0"):
        position_deletes(case, table, [(location, row) for row in range(50)], "0")
    rows = case.rows(table)
    plan = plan_all(case.format, table, "p")
    assert len(rows) == 150
    with attempt(case, replace(plan, groups=tuple(replace(one, output_files=2) for one in plan.groups))) as one:
        commit = by_arrow(one)
    assert [output.partition for output in commit.outputs] == ["dt=1", "dt=1"]
    assert (case.rows(table), locations(case, table, "0"), delete_files(case, table)) == (rows, [], 0)


@pytest.mark.parametrize("moment", ["before the rewrite", "before the commit"])
@pytest.mark.parametrize(
    ("act", "commits"),
    [
        (lambda case, table: merge_on_read_delete(case, table, "id = 9"), False),
        (lambda case, table: merge_on_read_delete(case, table, "id = 6"), False),
        (lambda case, table: case.update(table, "dt=0"), False),
        (lambda case, table: merge_on_read_delete(case, table, "id = 299"), True),
        (lambda case, table: equality_delete(case, table, 9), True),
    ],
    ids=[
        "a delete", "one more in a file", "an update", "a delete in another partition", "an equality delete",
    ],
)  # fmt: skip
def test_deletes_that_are_committed_meanwhile(case: IcebergCase, table: TableRef, act: Any, commits: bool, moment: str):
    for one in (7, 8, 130):
        merge_on_read_delete(case, table, f"id = {one}")
    with attempt(case, plan_all(case.format, table, "p", partitions=["dt=0"])) as one:
        prepared = one.prepared()
        if moment == "before the rewrite":
            act(case, table)
            rows = case.rows(table)
        rewrite = one.writer.rewrite(prepared, lambda progress: None)
        verify_rewrite(rewrite, writer=one.writer)
        if moment == "before the commit":
            act(case, table)
            rows = case.rows(table)
        if commits:
            one.writer.commit(rewrite)
        else:
            one.refused(rewrite)
    assert case.rows(table) == rows
    with attempt(case, plan_all(case.format, table, "next")) as one:
        rewrite = one.rewritten()
        verify_rewrite(rewrite, writer=one.writer)
        one.writer.commit(rewrite)
    assert (case.rows(table), delete_files(case, table)) == (rows, 0)


def rewritten(case: IcebergCase, table: TableRef) -> set[str]:
    """Rewrite the delete files. Returns those that the table no longer has."""

    def named() -> set[str]:
        return {
            row["file_path"] for row in case.sql(f"SELECT file_path FROM {case.name(table)}.delete_files").collect()
        }

    before = named()
    rewrite_position_deletes(case, table)
    assert named().isdisjoint(before), "each delete file is replaced"
    return before


def rewritten_and_removed(case: IcebergCase, table: TableRef) -> None:
    """The snapshots with the old delete files expire, and with them the files."""
    before = rewritten(case, table)
    case.forget(table)
    for location in before:
        Path(canonical_location(location)).unlink(missing_ok=True)


def deleted_and_rewritten(case: IcebergCase, table: TableRef) -> None:
    merge_on_read_delete(case, table, "id IN (9, 131)")
    rewritten(case, table)


def deleted_rewritten_and_expired(case: IcebergCase, table: TableRef) -> None:
    """The one delete file that is left has older deletes and newer ones, and no snapshot shows which ones are new."""
    deleted_and_rewritten(case, table)
    case.forget(table)


COMMITTED = {
    (rewritten, "before the rewrite"),
    (rewritten, "before the verification"),
    (rewritten, "before the commit"),
    (rewritten_and_removed, "before the commit"),
}


@pytest.mark.crossed(10)
@pytest.mark.parametrize(
    "moment",
    ["before the preparation", "before the rewrite", "before the verification", "before the commit", "in the commit"],
)
@pytest.mark.parametrize(
    "act", [rewritten, rewritten_and_removed, deleted_and_rewritten, deleted_rewritten_and_expired]
)
def test_delete_files_that_are_rewritten_meanwhile(
    case: IcebergCase, tmp_path: Path, act: Any, moment: str, monkeypatch: pytest.MonkeyPatch
):
    """The plan is committed or is a conflict. No row is lost, and no deleted row is read again."""
    table = case.create(tmp_path / "lake" / "t", name="t")
    name = case.name(table)
    # Iceberg's procedure can't read the delete files of a table with a list.
    case.sql(f"DROP TABLE {name} PURGE")
    # A delete file for all data files of a partition. By default there is one for each data file.
    case.sql(
        f"CREATE TABLE {name} (id bigint, tip string, dt string) USING iceberg PARTITIONED BY (dt) TBLPROPERTIES "
        "('format-version' = '2', 'write.distribution-mode' = 'none', 'write.delete.granularity' = 'partition')"
    )
    for low in range(0, 150, 50):
        rows_of_file = case.session.range(low, low + 50, 1, 1).selectExpr("id", "concat('tip ', id)", "'0'")
        rows_of_file.toDF("id", "tip", "dt").writeTo(name).append()
    merge_on_read_delete(case, table, "id IN (7, 8, 130)")
    merge_on_read_delete(case, table, "id IN (20, 135)")
    assert delete_files(case, table) == 2
    plan, rows = plan_all(case.format, table, "p"), None

    def act_at(now: str) -> None:
        nonlocal rows
        if now == moment and rows is None:
            act(case, table)
            rows = case.rows(table)

    act_at("before the preparation")
    with attempt(case, plan) as one:
        try:
            prepared = one.prepared()
            act_at("before the rewrite")
            rewrite = one.writer.rewrite(prepared, lambda progress: None)
            act_at("before the verification")
            verify_rewrite(rewrite, writer=one.writer)
            act_at("before the commit")
            monkeypatch.setattr(exact_commit, "failpoint", lambda name: act_at("in the commit"))
            one.writer.commit(rewrite)
            outcome = "committed"
        except Conflict:
            one.discarded(None)
            outcome = "conflict"
    assert (case.rows(table), outcome) == (rows, "committed" if (act, moment) in COMMITTED else "conflict")
    with attempt(case, plan_all(case.format, table, "next")) as one:
        rewrite = one.rewritten()
        verify_rewrite(rewrite, writer=one.writer)
        one.writer.commit(rewrite)
    assert (case.rows(table), delete_files(case, table)) == (rows, 0)
