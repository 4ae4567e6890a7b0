# SPDX-License-Identifier: Apache-2.0
"""Files with position deletes, equality deletes and deletion vectors are rewritten, and no deleted row returns."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from contract.attempts import attempt, run, staged_on
from contract.plans import plan_all
from iceberg_case import IcebergCase, NewCase
from iceberg_readers import live_paths, rows_of_all_readers
from iceberg_writers import equality_delete, merge_on_read_delete, order_writes
from pyiceberg.table import StaticTable

from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.engines.spark_tasks import SparkTasks
from executors.engines.stitch.engine import ParquetStitchEngine
from executors.verification import verify_rewrite
from lake.engines import NO_OMISSIONS
from lake.errors import Conflict, Integrity, Rejected, Transient
from lake.formats.iceberg.catalog.tables import load_table
from lake.formats.iceberg.files import position_deletes
from lake.formats.iceberg.jvm import exact_commit
from lake.formats.iceberg.jvm.iceberg_engine import StagedRewrite
from lake.formats.iceberg.read import refusals
from lake.model import TableRef
from lake.plan import Commit, Plan, PlanKind

pytestmark = pytest.mark.spark

LINEAGE = "id, _row_id, _last_updated_sequence_number"


@pytest.fixture(params=[2, 3])
def case(new_case: NewCase, request: pytest.FixtureRequest) -> IcebergCase:
    return new_case("hadoop", version=request.param, merge_on_read=True)


def by_pyiceberg(case: IcebergCase, table: TableRef) -> list[dict[str, Any]]:
    """All rows by ``id``; PyIceberg applies position deletes and deletion vectors."""
    static = StaticTable.from_metadata(load_table(case.format._settings, table).metadata_location)
    return sorted(static.scan().to_arrow().to_pylist(), key=lambda row: row["id"])


def delete_for_iceberg(case: IcebergCase, table: TableRef, *ids: int) -> None:
    """Delete rows by value: files with such deletes are rewritten by Iceberg's own reader and writer."""
    for one in ids:
        equality_delete(case, table, one, str(one // 150))


def delete_files(case: IcebergCase, table: TableRef) -> list[str]:
    """The names of the delete files of the newest snapshot, as Spark lists them."""
    rows = case.sql(f"SELECT file_path FROM {case.name(table)}.delete_files").collect()
    return sorted(row["file_path"] for row in rows)


def verified(case: IcebergCase, plan: Plan) -> Commit:
    """Run a plan with the verification of an executor."""
    with attempt(case, plan) as one:
        rewrite = one.rewritten()
        verify_rewrite(rewrite, writer=one.writer)
        return one.writer.commit(rewrite)


def lineage(case: IcebergCase, table: TableRef) -> Sequence[tuple[int, ...]]:
    """The id of every row with its lineage, in format version 3."""
    if case.version < 3:
        return ()
    return sorted(tuple(row) for row in case.sql(f"SELECT {LINEAGE} FROM {case.name(table)}").collect())


def same_for_all_readers(case: IcebergCase, table: TableRef, rows: Sequence[str], ids: Sequence[int]) -> None:
    """The table has no deletes any longer, and Spark, PyIceberg and DuckDB read these rows."""
    by_spark, by_python, by_duckdb = rows_of_all_readers(case, table)
    assert by_spark == rows
    assert [row["id"] for row in by_python] == [row["id"] for row in by_duckdb] == list(ids)
    assert by_python == by_duckdb
    found = case.format.verify(table, (), rows=True)
    assert (found.missing, found.wrong_size, found.rows, found.rows_expected) == ((), (), len(ids), len(ids))


def test_rows_deleted_by_position_stay_deleted_in_every_reader(case: IcebergCase, table: TableRef):
    merge_on_read_delete(case, table, "id IN (7, 60, 61, 299)")
    case.sql(f"UPDATE {case.name(table)} SET value = -1 WHERE id = 100")
    rows, before, was = case.rows(table), by_pyiceberg(case, table), lineage(case, table)
    assert len(rows) == 296
    kinds = {row["delta_kind"] for row in case.format.snapshot(table).slices.to_pylist() if row["log_files"]}
    assert kinds == {"delete file" if case.version == 2 else "deletion vector"}
    commit = verified(case, plan_all(case.format, table, "p"))
    assert len(commit.outputs) == 2
    same_for_all_readers(case, table, rows, [row["id"] for row in before])
    assert by_pyiceberg(case, table) == before
    assert lineage(case, table) == was
    assert delete_files(case, table) == [], "they apply to no file any longer"
    assert sorted(live_paths(case, table)) == sorted(output.path for output in commit.outputs)
    found = case.format.find_commit(table, "p")
    assert found is not None
    assert (set(found.outputs), set(found.superseded)) == (set(commit.outputs), set(commit.superseded))
    case.append(table, "dt=0", 300, 301)
    assert case.forget(table)
    same_for_all_readers(case, table, case.rows(table), [*(row["id"] for row in before), 300])
    assert set(case.stored(table)) == set(live_paths(case, table)), "expiry deletes files that are not live"


def test_the_deletes_of_many_commits_are_removed_with_their_files(case: IcebergCase, table: TableRef):
    """Iceberg filters the manifests of deletes in several threads, and by itself leaves some vectors (1.10.2)."""
    for number in range(6):
        merge_on_read_delete(case, table, f"id = {50 * number + 7}")
    assert len(delete_files(case, table)) == 6
    rows = case.rows(table)
    verified(case, plan_all(case.format, table, "p"))
    assert (case.rows(table), delete_files(case, table)) == (rows, [])


def test_rows_deleted_by_value_stay_deleted_in_every_reader(case: IcebergCase, table: TableRef):
    equality_delete(case, table, 7)
    equality_delete(case, table, 120)
    case.append(table, "dt=0", 7, 8)
    rows, was = case.rows(table), lineage(case, table)
    assert len(rows) == 299, "the later row with the id 7 is not deleted"
    verified(case, plan_all(case.format, table, "p"))
    same_for_all_readers(case, table, rows, [one for one in range(300) if one != 120])
    assert lineage(case, table) == was
    assert delete_files(case, table) == []


def test_deletes_of_both_kinds_and_files_without_any_are_rewritten_in_one_plan(case: IcebergCase, table: TableRef):
    equality_delete(case, table, 7)
    merge_on_read_delete(case, table, "id = 8")
    rows, was = case.rows(table), lineage(case, table)
    with attempt(case, plan_all(case.format, table, "p", sort_columns=("value", "id"))) as one:
        prepared = one.prepared()
        assert prepared.notes == (
            "engine arrow (1 group): the fastest engine available",
            "engine iceberg (1 group): an equality delete file may apply to its files",
        )
        rewrite = one.writer.rewrite(prepared, lambda progress: None)
        verify_rewrite(rewrite, writer=one.writer)
        one.writer.commit(rewrite)
    assert len(rows) == 298
    same_for_all_readers(case, table, rows, [one for one in range(300) if one not in (7, 8)])
    assert lineage(case, table) == was


def test_a_file_all_of_whose_rows_are_deleted_is_removed_without_a_new_one(case: IcebergCase, table: TableRef):
    merge_on_read_delete(case, table, "id < 49")
    plan = plan_all(case.format, table, "p")
    first = next(one for group in plan.groups for one in group.slices if one.log_files)
    only = replace(plan.groups[0], slices=(first,))
    merge_on_read_delete(case, table, "id = 49")
    with attempt(case, replace(plan, groups=(only,))) as one, pytest.raises(Conflict, match="row-level deletes"):
        one.prepared()
    plan = plan_all(case.format, table, "q")
    slices = [one for group in plan.groups for one in group.slices if one.path == first.path]
    rows = case.rows(table)
    commit = verified(
        case, replace(plan, kind=PlanKind.COMPACTION, groups=(replace(plan.groups[0], slices=tuple(slices)),))
    )
    assert commit.outputs == ()
    assert len(commit.superseded) == 1
    same_for_all_readers(case, table, rows, range(50, 300))


def test_a_delete_file_stays_as_long_as_a_file_needs_it(case: IcebergCase, table: TableRef):
    equality_delete(case, table, 7)
    rows = case.rows(table)
    (name,) = delete_files(case, table)
    plan = plan_all(case.format, table, "p", partitions=["dt=0"])
    for number, item in enumerate(plan.groups[0].slices):
        assert delete_files(case, table) == [name]
        group = replace(plan.groups[0], slices=(item,))
        verified(case, replace(plan, plan_id=f"p{number}", kind=PlanKind.COMPACTION, groups=(group,)))
        assert case.rows(table) == rows
    assert delete_files(case, table) == []


def test_new_files_of_iceberg_are_in_one_directory_that_the_journal_names(case: IcebergCase, table: TableRef):
    delete_for_iceberg(case, table, 7, 299)
    stored, rows = dict(case.stored(table)), case.rows(table)
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        (directory,) = one.journal[0].paths
        assert Path(directory).name == f"lakefold-{rewrite.prepared.instant}"
        assert case.stored(table).keys() - stored.keys() == {output.path for output in rewrite.outputs}
        assert all(output.path.startswith(f"{directory}/") for output in rewrite.outputs)
        late = [(output.path, Path(output.path).read_bytes()) for output in rewrite.outputs]
        with attempt(case, one.plan, 2) as rescuer:
            rescuer.journal = one.journal
            assert rescuer.discarded(None) == 1
            assert not Path(directory).exists()
            # A task that ran on wrote its file after the withdrawal.
            Path(late[0][0]).parent.mkdir(parents=True)
            Path(late[0][0]).write_bytes(late[0][1])
            assert staged_on(case, table, one.journal) == {rewrite.prepared.instant}
            assert rescuer.discarded(None) == 1
        with pytest.raises(Conflict):
            one.writer.commit(rewrite)
        assert (dict(case.stored(table)), case.rows(table), case.commits(table)) == (stored, rows, [])
        verified(case, replace(one.plan, plan_id="q"))
    assert case.rows(table) == rows


def test_a_file_that_a_task_writes_after_the_commit_is_named_and_never_read(case: IcebergCase, table: TableRef):
    delete_for_iceberg(case, table, 7, 299)
    rows = case.rows(table)
    with attempt(case, plan_all(case.format, table, "p")) as one:
        commit = one.committed()
        late = Path(commit.outputs[0].path).with_name("late.parquet")
        late.write_bytes(Path(commit.outputs[0].path).read_bytes())
        assert staged_on(case, table, one.journal) == set(), "the token has committed"
        assert one.discarded(None) == 0
    assert case.format.verify(table, (), rows=False).unowned == (str(late),)
    assert case.rows(table) == rows


def test_a_commit_that_was_made_is_found_and_its_directory_never_withdrawn(case: IcebergCase, table: TableRef):
    merge_on_read_delete(case, table, "id IN (7, 299)")
    rows = case.rows(table)
    with attempt(case, plan_all(case.format, table, "p")) as one:
        commit = one.committed()
        with attempt(case, one.plan, 2) as rescuer:
            rescuer.journal = one.journal
            assert rescuer.discarded(None) == 0
            # The table forgets the commit, and keeps its files.
            case.append(table, "dt=0", 1000, 1001)
            assert case.forget(table)
            assert case.format.find_commit(table, "p") is None
            assert rescuer.discarded(None) == 0
    assert all(Path(output.path).exists() for output in commit.outputs)
    assert len(case.rows(table)) == len(rows) + 1


def test_a_rewrite_that_restores_deleted_rows_is_not_committed(
    case: IcebergCase, table: TableRef, monkeypatch: pytest.MonkeyPatch
):
    delete_for_iceberg(case, table, 7)
    parent, plan = case.java_table(table).currentSnapshot().parentId(), StagedRewrite.plan
    monkeypatch.setattr(StagedRewrite, "plan", lambda self, _, groups: plan(self, parent, groups))
    with attempt(case, plan_all(case.format, table, "p", partitions=["dt=0"])) as one:
        rewrite = one.rewritten()
        assert sum(output.rows for output in rewrite.outputs) == 150, "one of them is deleted"
        with pytest.raises(Integrity, match="rows: expected 149, found 150"):
            verify_rewrite(rewrite, writer=one.writer)
        one.discarded(None)


@pytest.mark.parametrize(
    ("defect", "found"),
    [
        (lambda positions: positions[:0], 150),
        (lambda positions: positions + 1, 149),
        (lambda positions: np.append(positions, positions + 1), 148),
    ],
    ids=["no deleted row", "another row", "one row more"],
)
def test_an_engine_that_leaves_out_other_rows_does_not_commit(
    case: IcebergCase, table: TableRef, monkeypatch: pytest.MonkeyPatch, defect: Any, found: int
):
    merge_on_read_delete(case, table, "id = 7")
    stored, rows = dict(case.stored(table)), case.rows(table)
    read, read_vector = position_deletes._read, position_deletes.read_vector
    monkeypatch.setattr(
        position_deletes, "_read", lambda *some: ((name, defect(positions)) for name, positions in read(*some))
    )
    monkeypatch.setattr(position_deletes, "read_vector", lambda one: map(defect, read_vector(one)))
    with attempt(case, plan_all(case.format, table, "p", partitions=["dt=0"])) as one:
        rewrite = one.rewritten()
        assert sum(output.rows for output in rewrite.outputs) == found
        with pytest.raises(Integrity, match="rows: expected 149" if found != 149 else "hash of its values"):
            verify_rewrite(rewrite, writer=one.writer)
        one.discarded(None)
    assert (dict(case.stored(table)), case.rows(table)) == (stored, rows)


@pytest.mark.parametrize("where", ["this process", "tasks of Spark"])
def test_position_deletes_for_whole_partitions_and_for_single_files_are_applied_by_an_engine(
    new_case: NewCase, spark: Any, tmp_path: Path, where: str
):
    backend = InProcessBackend() if where == "this process" else SparkTasks(lambda: spark)
    properties = {"write.delete.granularity": "partition"}
    case = new_case("hadoop", merge_on_read=True, properties=properties, engines=(ArrowEngine(backend),))
    table = case.create(tmp_path / "lake" / "t", name="t")
    merge_on_read_delete(case, table, "id % 3 = 0")
    shared = delete_files(case, table)
    case.append(table, "dt=0", 300, 310)
    case.sql(f"ALTER TABLE {case.name(table)} SET TBLPROPERTIES ('write.delete.granularity' = 'file')")
    merge_on_read_delete(case, table, "id IN (1, 298, 303)")
    rows = case.rows(table)
    slices = case.format.snapshot(table).slices.to_pylist()
    assert len(shared) == 2 < len(slices)
    plan = plan_all(case.format, table, "p")
    with attempt(case, plan) as one:
        prepared = one.prepared()
        assert prepared.notes == ("engine arrow (2 groups): the fastest engine available",)
        rewrite = one.writer.rewrite(prepared, lambda progress: None)
        verify_rewrite(rewrite, writer=one.writer)
        one.writer.commit(rewrite)
    left = [one for one in range(300) if one % 3 and one not in (1, 298)]
    same_for_all_readers(case, table, rows, [*left, *(one for one in range(300, 310) if one != 303)])
    assert delete_files(case, table) == []


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("engine", ["stitch", "arrow"])
def test_files_with_position_deletes_go_to_iceberg_if_no_engine_can_rewrite_them(
    new_case: NewCase, tmp_path: Path, engine: str, version: int
):
    backend = InProcessBackend()
    engines = (ParquetStitchEngine(backend),) + ((ArrowEngine(backend),) if engine == "stitch" else ())
    case = new_case("hadoop", merge_on_read=True, engines=engines, version=version)
    table = case.create(tmp_path / "lake" / "t", name="t")
    merge_on_read_delete(case, table, "id IN (7, 299)")
    rows = case.rows(table)
    with attempt(case, plan_all(case.format, table, "p", engine=engine)) as one:
        prepared = one.prepared()
        (note,) = prepared.notes
        why = f"{engine} can't: {NO_OMISSIONS}" if engine == "stitch" else "engine = arrow is not available"
        what = "position deletes may apply to its files" if version == 2 else "files of format version 3"
        assert note == f"engine iceberg (2 groups): {what} ({why})"
        rewrite = one.writer.rewrite(prepared, lambda progress: None)
        verify_rewrite(rewrite, writer=one.writer)
        one.writer.commit(rewrite)
    same_for_all_readers(case, table, rows, [one for one in range(300) if one not in (7, 299)])


def test_an_engine_never_gets_a_file_with_other_deletes(
    case: IcebergCase, table: TableRef, monkeypatch: pytest.MonkeyPatch
):
    delete_for_iceberg(case, table, 7)
    monkeypatch.setattr(refusals, "needs_iceberg", lambda *some: None)
    with attempt(case, plan_all(case.format, table, "p")) as one, pytest.raises(Rejected, match="has deltas"):
        one.prepared()


def test_a_layout_that_iceberg_can_t_write_is_refused_by_its_setting(case: IcebergCase, table: TableRef):
    delete_for_iceberg(case, table, 7)
    rows, options = case.rows(table), {"sort_columns": ("id", "value"), "layout": "zorder"}
    plan = plan_all(case.format, table, "p", partitions=["dt=0"], **options)
    with attempt(case, plan) as one, pytest.raises(Rejected, match="layout = zorder is not available"):
        one.prepared()
    # Only the group with the equality delete is left out of a plan that has other groups.
    with attempt(case, plan_all(case.format, table, "q", **options)) as one:
        prepared = one.prepared()
        assert [(left_out.group, left_out.reason[:15]) for left_out in prepared.skipped] == [(0, "layout = zorder")]
        assert prepared.live_groups == (1,)
        rewrite = one.writer.rewrite(prepared, lambda progress: None)
        verify_rewrite(rewrite, writer=one.writer)
        commit = one.writer.commit(rewrite)
    assert all("dt=1" in version.path for version in commit.superseded)
    assert case.rows(table) == rows


def test_a_table_keeps_its_codec_target_and_places(case: IcebergCase, tmp_path: Path):
    case.properties = {"write.parquet.compression-codec": "gzip", "write.data.path": f"file:{tmp_path}/elsewhere"}
    table = case.create(tmp_path / "lake" / "t", name="t")
    merge_on_read_delete(case, table, "id = 7")
    rows = case.rows(table)
    commit = verified(case, plan_all(case.format, table, "p"))
    assert all(output.path.startswith(f"{tmp_path}/elsewhere/") for output in commit.outputs)
    with_codec = verified(case, plan_all(case.format, table, "q", compression="zstd"))
    for outputs, codec in ((commit.outputs, "GZIP"), (with_codec.outputs, "ZSTD")):
        for output in outputs:
            assert pq.read_metadata(output.path).row_group(0).column(0).compression == codec
    assert case.rows(table) == rows


def test_files_lost_from_the_staging_directory_before_the_commit_are_a_conflict(case: IcebergCase, table: TableRef):
    delete_for_iceberg(case, table, 7)
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        shutil.rmtree(one.journal[0].paths[-1])
        with pytest.raises(Conflict, match="is gone"):
            one.writer.commit(rewrite)


def test_a_plan_without_deletes_of_version_3_keeps_the_lineage_of_rows(new_case: NewCase, tmp_path: Path):
    case = new_case("hadoop", version=3)
    table = case.create(tmp_path / "lake" / "t", name="t")
    case.delete(table, "dt=1")
    case.append(table, "dt=0", 300, 310)
    rows, was = case.rows(table), lineage(case, table)
    for turn in range(2):
        run(case, plan_all(case.format, table, f"p{turn}"))
        assert lineage(case, table) == was
    same_for_all_readers(case, table, rows, [row[0] for row in was])


def rewritten_by_iceberg(case: IcebergCase, table: TableRef) -> None:
    actions = case.session._jvm.org.apache.iceberg.spark.actions.SparkActions.get()
    actions.rewriteDataFiles(case.java_table(table)).option("rewrite-all", "true").execute()


def copied_on_write(case: IcebergCase, table: TableRef) -> None:
    case.sql(f"ALTER TABLE {case.name(table)} SET TBLPROPERTIES ('write.delete.mode' = 'copy-on-write')")
    case.sql(f"DELETE FROM {case.name(table)} WHERE id = 9")


def appended_and_deleted(case: IcebergCase, table: TableRef) -> None:
    case.append(table, "dt=0", 10_000, 10_010)
    merge_on_read_delete(case, table, "id = 10003")


def appended_and_expired(case: IcebergCase, table: TableRef) -> None:
    case.append(table, "dt=0", 10_000, 10_010)
    case.append(table, "dt=0", 10_010, 10_020)
    case.forget(table)


def rolled_back(case: IcebergCase, table: TableRef) -> None:
    java = case.java_table(table)
    java.manageSnapshots().rollbackTo(java.currentSnapshot().parentId()).commit()


BETWEEN: dict[str, tuple[Callable[[IcebergCase, TableRef], object], bool]] = {
    "append": (lambda case, table: case.append(table, "dt=0", 10_000, 10_010), True),
    "row-level delete of another file": (appended_and_deleted, True),
    "equality delete": (lambda case, table: equality_delete(case, table, 9), True),
    "new column": (lambda case, table: case.sql(f"ALTER TABLE {case.name(table)} ADD COLUMN extra int"), True),
    "row-level delete of an input": (lambda case, table: merge_on_read_delete(case, table, "id = 9"), False),
    "one more row of a file with deletes": (lambda case, table: merge_on_read_delete(case, table, "id = 6"), False),
    "row-level update of an input": (lambda case, table: case.update(table, "dt=0"), False),
    "copy-on-write delete": (copied_on_write, False),
    "partition delete": (lambda case, table: case.sql(f"DELETE FROM {case.name(table)} WHERE dt = '0'"), False),
    "overwrite": (
        lambda case, table: case.sql(f"INSERT OVERWRITE {case.name(table)} SELECT * FROM {case.name(table)} LIMIT 9"),
        False,
    ),
    "compaction by another program": (rewritten_by_iceberg, False),
    "another plan": (lambda case, table: run(case, plan_all(case.format, table, "other")), False),
    "rollback": (rolled_back, False),
    "appends that expire": (appended_and_expired, False),
}


@pytest.mark.paired("case")
@pytest.mark.parametrize("what", BETWEEN)
def test_a_commit_meanwhile_is_kept_and_no_deleted_row_returns(case: IcebergCase, table: TableRef, what: str):
    act, commits = BETWEEN[what]
    committed_or_refused(case, table, act, commits)
    # What is left to be merged is merged by the next plan.
    if what != "new column":
        rows = case.rows(table)
        verified(case, plan_all(case.format, table, "next"))
        assert (case.rows(table), delete_files(case, table)) == (rows, [])


def committed_or_refused(
    case: IcebergCase, table: TableRef, act: Callable[[IcebergCase, TableRef], object], commits: bool
) -> None:
    """``act`` between the rewrite of files with a deleted row and the commit, which is made or refused."""
    merge_on_read_delete(case, table, "id = 7")
    with attempt(case, plan_all(case.format, table, "p", partitions=["dt=0"])) as one:
        rewrite = one.rewritten()
        act(case, table)
        rows = case.rows(table)
        if commits:
            one.writer.commit(rewrite)
        else:
            one.refused(rewrite)
    assert case.rows(table) == rows
    found = case.format.verify(table, (), rows=True)
    assert (found.missing, found.wrong_size, found.rows) == ((), (), len(rows))


@pytest.mark.parametrize(
    ("deleted", "commits"),
    [
        (("id = 200", "id = 201"), True),
        (("id = 10003", "id = 10004"), True),
        (("id = 200", "id = 201", "id = 9"), False),
        (("id = 9", "id = 10"), False),
    ],
    ids=["another partition", "the same partition", "also a row of an input", "rows of an input"],
)
def test_several_deletes_of_one_file_cancel_a_plan_only_if_they_touch_an_input(
    case: IcebergCase, table: TableRef, deleted: Sequence[str], commits: bool
):
    """In version 3 the second one replaces the file's vector, and Iceberg 1.10.2 can't index two vectors of a file."""

    def act(case: IcebergCase, table: TableRef) -> None:
        case.append(table, "dt=0", 10_000, 10_010)
        for where in deleted:
            merge_on_read_delete(case, table, where)

    committed_or_refused(case, table, act, commits)
    rows = case.rows(table)
    verified(case, plan_all(case.format, table, "next"))
    assert (case.rows(table), delete_files(case, table)) == (rows, [])


def test_a_delete_of_an_input_between_the_last_check_and_the_commit_is_a_conflict(
    case: IcebergCase, table: TableRef, monkeypatch: pytest.MonkeyPatch
):
    merge_on_read_delete(case, table, "id = 7")
    deleting = ["id = 9"]
    monkeypatch.setattr(
        exact_commit, "failpoint", lambda name: merge_on_read_delete(case, table, deleting.pop()) if deleting else None
    )
    with attempt(case, plan_all(case.format, table, "p", partitions=["dt=0"])) as one:
        rewrite = one.rewritten()
        for where in ("id = 200", "id = 201"):
            merge_on_read_delete(case, table, where)
        rows = len(case.rows(table))
        one.refused(rewrite)
    assert (deleting, len(case.rows(table))) == ([], rows - 1)


@pytest.mark.parametrize("merging", [False, True])
def test_a_later_equality_delete_stays_also_if_all_older_files_are_replaced(
    case: IcebergCase, table: TableRef, merging: bool
):
    """Iceberg drops delete files that are older than all data files, and does not count those of the same commit."""
    if merging:
        merge_on_read_delete(case, table, "id = 7")
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        equality_delete(case, table, 9)
        case.append(table, "dt=0", 10_000, 10_010)
        rows = case.rows(table)
        with pytest.raises(Conflict, match="Iceberg would remove an equality delete"):
            one.writer.commit(rewrite)
        one.discarded(None)
    assert case.rows(table) == rows
    verified(case, plan_all(case.format, table, "next"))
    assert (case.rows(table), delete_files(case, table)) == (rows, [])


def test_sorted_files_state_the_sort_order_of_the_table(case: IcebergCase, table: TableRef):
    order_writes(case, table, "value, id")
    merge_on_read_delete(case, table, "id IN (7, 299)")
    rows, was = case.rows(table), lineage(case, table)
    commit = verified(case, plan_all(case.format, table, "p", sort_columns=("value", "id")))
    for output in commit.outputs:
        read = pq.ParquetFile(output.path).read().to_pylist()
        assert read == sorted(read, key=lambda row: (row["value"], row["id"]))
    order = case.java_table(table).sortOrder().orderId()
    listed = case.sql(f"SELECT DISTINCT sort_order_id FROM {case.name(table)}.files").collect()
    assert [row["sort_order_id"] for row in listed] == [order]
    assert order > 0
    assert (case.rows(table), lineage(case, table)) == (rows, was)


def test_a_group_becomes_as_many_files_as_planned(case: IcebergCase, table: TableRef):
    merge_on_read_delete(case, table, "id IN (7, 299)")
    plan = plan_all(case.format, table, "p")
    rows = case.rows(table)
    commit = verified(case, replace(plan, groups=tuple(replace(one, output_files=2) for one in plan.groups)))
    assert [output.partition for output in commit.outputs] == ["dt=0", "dt=0", "dt=1", "dt=1"]
    assert case.rows(table) == rows


def test_a_rewrite_that_is_cancelled_leaves_nothing(
    case: IcebergCase, table: TableRef, monkeypatch: pytest.MonkeyPatch
):
    delete_for_iceberg(case, table, 7, 299)
    stored, write = dict(case.stored(table)), StagedRewrite._write_group
    with attempt(case, plan_all(case.format, table, "p")) as one:

        def cancelled_meanwhile(self: StagedRewrite, *arguments: Any) -> Any:
            written = write(self, *arguments)
            one.writer.cancel()
            return written

        monkeypatch.setattr(StagedRewrite, "_write_group", cancelled_meanwhile)
        with pytest.raises(Transient, match="cancelled"):
            one.rewritten()
        one.discarded(None)
    assert dict(case.stored(table)) == stored


def test_a_lost_delete_file_is_named_and_no_deleted_row_returns(case: IcebergCase, table: TableRef):
    merge_on_read_delete(case, table, "id = 7")
    lost = delete_files(case, table)[0].removeprefix("file:")
    Path(lost).unlink()
    assert case.format.verify(table, (), rows=False).missing == (lost,)
    with pytest.raises(Rejected, match="can't be counted"):
        case.format.verify(table, (), rows=True)
    with attempt(case, plan_all(case.format, table, "p")) as one:
        with pytest.raises((Transient, Conflict)):
            one.rewritten()
        one.discarded(None)
