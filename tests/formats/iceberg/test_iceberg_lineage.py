# SPDX-License-Identifier: Apache-2.0
"""The lineage of rows in format version 3: no commit of lakefold changes a ``_row_id``, also not of files it keeps."""

import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contract.attempts import attempt, run
from contract.plans import plan_all
from iceberg_case import IcebergCase, NewCase
from iceberg_writers import equality_delete, merge_on_read_delete

from lake.errors import Conflict, Integrity, Rejected, Transient
from lake.formats.iceberg.read.lineage import FIELD_IDS
from lake.model import TableRef

pytestmark = pytest.mark.spark


@pytest.fixture
def case(new_case: NewCase) -> IcebergCase:
    return new_case("hadoop", version=3)


@pytest.fixture
def version_2(new_case: NewCase) -> IcebergCase:
    return new_case("hadoop", version=2)


def lineage(case: IcebergCase, table: TableRef) -> Sequence[tuple[int, ...]]:
    """The id of every row with its lineage."""
    rows = case.sql(f"SELECT id, _row_id, _last_updated_sequence_number FROM {case.name(table)}").collect()
    return sorted(tuple(row) for row in rows)


def upgrade(case: IcebergCase, table: TableRef) -> None:
    case.sql(f"ALTER TABLE {case.name(table)} SET TBLPROPERTIES ('format-version' = '3')")


def test_files_that_stay_keep_their_row_ids_although_manifests_are_merged(case: IcebergCase, tmp_path: Path):
    case.properties = {"commit.manifest.min-count-to-merge": "2"}
    table = case.create(tmp_path / "lake" / "t", name="t")
    was = lineage(case, table)
    for partition in ("dt=0", "dt=1"):
        run(case, plan_all(case.format, table, partition, partitions=[partition]))
        assert lineage(case, table) == was


def test_a_plan_over_all_files_commits_although_manifests_are_merged(case: IcebergCase, tmp_path: Path):
    case.properties = {"commit.manifest.min-count-to-merge": "2"}
    table = case.create(tmp_path / "lake" / "t", name="t")
    was = lineage(case, table)
    run(case, plan_all(case.format, table, "p"))
    assert lineage(case, table) == was


def test_an_upgrade_to_version_3_between_preparation_and_commit_is_a_conflict(version_2: IcebergCase, tmp_path: Path):
    case, table = version_2, version_2.create(tmp_path / "lake" / "t", name="t")
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        upgrade(case, table)
        case.append(table, "dt=0", 1000, 1010)
        was = lineage(case, table)
        assert all(row_id is not None for _, row_id, _ in was)
        with pytest.raises(Conflict, match="format version 3 now, and had 2 when the plan was prepared"):
            one.writer.commit(rewrite)
        one.discarded(None)
    assert lineage(case, table) == was


@pytest.mark.parametrize("numbered", [False, True], ids=["no commit", "append"])
def test_rows_that_get_their_first_ids_between_preparation_and_commit_keep_them(
    version_2: IcebergCase, tmp_path: Path, numbered: bool
):
    """An upgrade gives no ids to the rows that are there; the first snapshot after it does."""
    case, table = version_2, version_2.create(tmp_path / "lake" / "t", name="t")
    upgrade(case, table)
    with attempt(case, plan_all(case.format, table, "p")) as one:
        prepared = one.prepared()
        assert [note.split(" (")[0] for note in prepared.notes] == ["engine iceberg"]
        assert "rows of its files have no ids yet" in prepared.notes[0]
        rewrite = one.writer.rewrite(prepared, lambda progress: None)
        if not numbered:
            one.writer.commit(rewrite)
            was = lineage(case, table)
            assert len({row_id for _, row_id, _ in was} - {None}) == 300
            merge_on_read_delete(case, table, "id IN (7, 299)")
            run(case, plan_all(case.format, table, "q"))
            assert lineage(case, table) == [row for row in was if row[0] not in (7, 299)]
            return
        case.append(table, "dt=0", 1000, 1010)
        was = lineage(case, table)
        with pytest.raises(Conflict, match="got their row ids since the plan was prepared"):
            one.writer.commit(rewrite)
        one.discarded(None)
    assert lineage(case, table) == was
    run(case, plan_all(case.format, table, "q"))
    assert lineage(case, table) == was


def test_a_curve_is_planned_again_until_rows_have_ids_after_an_upgrade(version_2: IcebergCase, tmp_path: Path):
    """Only Iceberg's writer, which has no curves, rewrites files whose rows have no ids yet. It may take days until a
    writer commits, and a plan that fails makes the planner leave its files alone."""
    case, table = version_2, version_2.create(tmp_path / "lake" / "t", name="t")
    upgrade(case, table)
    plan = plan_all(case.format, table, "p", sort_columns=("value", "id"), layout="zorder")
    with attempt(case, plan) as one, pytest.raises(Conflict, match=r"have no ids yet: .* until then, layout = zorder"):
        one.prepared()
    case.append(table, "dt=0", 1000, 1010)
    was = lineage(case, table)
    run(case, plan)
    assert lineage(case, table) == was


def test_files_rewritten_before_version_3_are_left_alone_and_named(version_2: IcebergCase, tmp_path: Path):
    """Iceberg 1.10.2 takes the number of the rewrite for the one of the rows, and its writer would store it."""
    case, table = version_2, version_2.create(tmp_path / "lake" / "t", name="t")
    commit = run(case, plan_all(case.format, table, "p"))
    upgrade(case, table)
    for low in (1000, 1010):
        case.append(table, "dt=0", low, low + 10)
    was = lineage(case, table)
    named = pytest.raises(Conflict, match="rewritten before the table had format version 3")
    with attempt(case, plan_all(case.format, table, "q")) as one, named as caught:
        one.prepared()
    skipped = caught.value.args[1]
    rewritten = {path for group in skipped for path in group.quarantine}
    assert {Path(path).name for path in rewritten} == {Path(output.path).name for output in commit.outputs}
    plan = plan_all(case.format, table, "r", partitions=["dt=0"])
    slices = tuple(one for one in plan.groups[0].slices if one.path not in rewritten)
    assert len(slices) == 2
    for turn in range(2):
        run(case, replace(plan, plan_id=f"r{turn}", groups=(replace(plan.groups[0], slices=slices),)))
        assert lineage(case, table) == was
        plan = plan_all(case.format, table, "r", partitions=["dt=0"])
        slices = tuple(one for one in plan.groups[0].slices if one.path not in rewritten)


def changed(path: str, defect: str) -> None:
    """Write a new file again with another lineage."""
    rows = pq.ParquetFile(path).read()
    name = "_last_updated_sequence_number" if defect == "other numbers" else "_row_id"
    column = rows.schema.get_field_index(name)
    values, field = rows[name].to_pylist(), rows.schema.field(column)
    if defect == "null":
        values = [None] * len(values)
    elif defect == "one twice":
        values = [values[1], values[1], *values[2:]]
    elif defect == "another order":
        values = [values[1], values[0], *values[2:]]
    elif defect == "other numbers":
        values = [values[0] - 1, *values[1:]]
    else:
        field = field.with_metadata({b"PARQUET:field_id": b"2147483500"})
    pq.write_table(rows.set_column(column, field, pa.array(values, pa.int64())), path)


@pytest.mark.parametrize(
    ("defect", "error", "message"),
    [
        ("null", Integrity, r"row ids .* are not those of the inputs"),
        ("one twice", Integrity, r"row ids .* are not those of the inputs"),
        ("another order", Integrity, r"other sequence numbers .*, or another order of rows"),
        ("other numbers", Integrity, r"other sequence numbers"),
        ("another field id", Rejected, "can't be committed: .* stores _row_id with field id 2147483500"),
    ],
)
def test_new_files_with_another_lineage_are_not_committed(
    case: IcebergCase, tmp_path: Path, defect: str, error: type[Exception], message: str
):
    table = case.create(tmp_path / "lake" / "t", name="t")
    merge_on_read_delete(case, table, "id IN (7, 60)")
    was = lineage(case, table)
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        changed(rewrite.outputs[0].path, defect)
        with pytest.raises(error, match=message):
            one.writer.commit(rewrite)
        one.discarded(None)
    assert (lineage(case, table), case.commits(table)) == (was, [])


def fail_with_errno(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads of the content of a file fail by its storage."""
    read = pq.ParquetFile.iter_batches

    def failing(self: pq.ParquetFile, *arguments: Any, **options: Any) -> Any:
        if set(options.get("columns") or ()) == set(FIELD_IDS):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return read(self, *arguments, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", failing)


def damage(path: str) -> None:
    """Overwrite the pages of a file, and keep its footer."""
    content = bytearray(Path(path).read_bytes())
    start, end = 4, len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    content[start:end] = b"\xff" * (end - start)
    Path(path).write_bytes(content)


@pytest.mark.parametrize("how", ["storage fails", "damaged"])
def test_a_new_file_that_can_t_be_read_before_the_commit_does_not_leave_the_commit_unknown(
    case: IcebergCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
):
    table = case.create(tmp_path / "lake" / "t", name="t")
    was = lineage(case, table)
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        path = rewrite.outputs[0].path
        if how == "damaged":
            damage(path)
        else:
            fail_with_errno(path, monkeypatch)
        with pytest.raises(Integrity if how == "damaged" else Transient, match=path):
            one.writer.commit(rewrite)
        one.discarded(None)
    assert (lineage(case, table), case.commits(table)) == (was, [])


@pytest.mark.parametrize("by", ["positions", "values"])
def test_the_ids_of_rows_that_deletes_leave_are_compared(case: IcebergCase, tmp_path: Path, by: str):
    table = case.create(tmp_path / "lake" / "t", name="t")
    if by == "positions":
        merge_on_read_delete(case, table, "id IN (7, 60)")
    else:
        equality_delete(case, table, 7)
    run(case, plan_all(case.format, table, "p"))
    case.append(table, "dt=0", 1000, 1010)
    merge_on_read_delete(case, table, "id IN (8, 1003)")
    was = lineage(case, table)
    run(case, plan_all(case.format, table, "q"))
    assert lineage(case, table) == was
