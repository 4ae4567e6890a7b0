# SPDX-License-Identifier: Apache-2.0
"""Which snapshots lakefold lets Iceberg expire: none within the retention, none that a branch's settings keep."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from contract.attempts import run
from contract.plans import plan_all, plan_split
from iceberg_case import IcebergCase, NewCase
from iceberg_readers import rows_of_all_readers
from pyiceberg.table import StaticTable

from lake.errors import Conflict, Rejected, Transient
from lake.formats.iceberg import writer as iceberg_writer
from lake.formats.iceberg.catalog.tables import load_table
from lake.formats.iceberg.jvm import expiry
from lake.model import TableRef
from lake.plan import Commit
from lake.ports import DeletionResult

pytestmark = [pytest.mark.spark, pytest.mark.paired("case")]

HOUR_MS = 3_600_000


def snapshots(case: IcebergCase, table: TableRef) -> set[int]:
    return {row["snapshot_id"] for row in case.sql(f"SELECT snapshot_id FROM {case.name(table)}.snapshots").collect()}


def delete(case: IcebergCase, table: TableRef, commit: Commit, retention: timedelta) -> DeletionResult:
    with case.format.writer(table, case.spark, case.engines) as writer:
        writer.retention = retention  # type: ignore[attr-defined]
        return writer.delete(commit.superseded)


def keep(case: IcebergCase, table: TableRef, age_ms: int, branch: str = "main") -> None:
    case.java_table(table).manageSnapshots().setMaxSnapshotAgeMs(branch, age_ms).commit()


def rows_by_snapshot(case: IcebergCase, table: TableRef) -> Mapping[int, Sequence[str]]:
    """What Spark and PyIceberg, which agree, read of each snapshot."""
    static = StaticTable.from_metadata(load_table(case.format._settings, table).metadata_location)
    found = {}
    for snapshot in snapshots(case, table):
        frame = case.session.read.option("snapshot-id", str(snapshot)).table(case.name(table))
        found[snapshot] = sorted(repr(row.asDict(recursive=True)) for row in frame.collect())
        assert sorted(map(repr, static.scan(snapshot_id=snapshot).to_arrow().to_pylist())) == found[snapshot]
    return found


def test_snapshots_from_before_a_split_have_the_same_rows_until_the_retention_has_passed(
    case: IcebergCase, table: TableRef
):
    run(case, plan_all(case.format, table, "p"))
    case.append(table, "dt=0", 1000, 1010)
    case.update(table, "dt=1")
    run(case, plan_all(case.format, table, "q"))
    before = rows_by_snapshot(case, table)
    split = plan_split(case.format, table, "r")
    assert [group.is_split for group in split.groups] == [True, True]
    commit = run(case, split)
    assert len(commit.outputs) == sum(group.output_files for group in split.groups) >= 4
    case.append(table, "dt=1", 2000, 2010)
    newest = case.rows(table)
    assert len(delete(case, table, commit, timedelta(hours=1)).retained) == 2
    after = rows_by_snapshot(case, table)
    assert {snapshot: after[snapshot] for snapshot in before} == before
    assert delete(case, table, commit, timedelta()).retained == {}
    assert not before.keys() & snapshots(case, table)
    assert case.rows(table) == newest


def test_nothing_younger_than_the_retention_expires_by_an_age_of_main_that_is_shorter(
    case: IcebergCase, table: TableRef
):
    keep(case, table, 1)
    commit = run(case, plan_all(case.format, table, "p"))
    case.append(table, "dt=0", 1000, 1010)
    before, rows, stored = snapshots(case, table), rows_of_all_readers(case, table), case.stored(table)
    assert len(delete(case, table, commit, timedelta(hours=1)).retained) == 6
    result = delete(case, table, commit, timedelta())
    assert set(result.retained) == set(range(6))
    assert "a branch has its own max-snapshot-age-ms" in result.retained[0]
    assert (snapshots(case, table), case.stored(table)) == (before, stored), "the compaction itself would have expired"
    assert rows_of_all_readers(case, table) == rows
    keep(case, table, HOUR_MS)
    assert "max-snapshot-age-ms of main = 3600000" in delete(case, table, commit, timedelta()).retained[0]
    assert snapshots(case, table) == before


def test_an_age_of_main_that_ends_where_the_retention_ends_deletes_replaced_files(case: IcebergCase, table: TableRef):
    keep(case, table, 1)
    commit = run(case, plan_all(case.format, table, "p"))
    rows = rows_of_all_readers(case, table)
    result = delete(case, table, commit, timedelta())
    assert (result.retained, result.bytes_freed) == ({}, sum(version.bytes for version in commit.superseded))
    assert snapshots(case, table) == {int(commit.instant)}
    assert rows_of_all_readers(case, table) == rows


def test_a_branch_with_a_shorter_age_keeps_its_young_snapshots(case: IcebergCase, table: TableRef):
    first = case.sql(f"SELECT min_by(snapshot_id, committed_at) FROM {case.name(table)}.snapshots").collect()[0][0]
    case.java_table(table).manageSnapshots().createBranch("audit", first).commit()
    commit = run(case, plan_all(case.format, table, "p"))
    case.sql(f"DELETE FROM {case.name(table)}.branch_audit WHERE dt = '0'")
    rows = case.session.range(1000, 1010, 1, 1).selectExpr(
        "id", "id AS value", "'t' AS tip", "NULL AS stop", "'0' AS dt"
    )
    rows.writeTo(f"{case.name(table)}.branch_audit").append()
    keep(case, table, 1, "audit")
    before = snapshots(case, table)
    assert "a branch has its own max-snapshot-age-ms" in delete(case, table, commit, timedelta()).retained[0]
    assert snapshots(case, table) == before


def test_a_shorter_age_of_main_expires_no_snapshot_outside_of_main_that_the_table_keeps(
    case: IcebergCase, table: TableRef
):
    """Such a snapshot may be staged (``write.wap.enabled``): its files are not yet part of any branch."""
    name = case.name(table)
    case.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('history.expire.max-snapshot-age-ms' = '{HOUR_MS}')")
    keep(case, table, 1)
    case.java_table(table).newFastAppend().stageOnly().set("wap.id", "w").commit()
    commit = run(case, plan_all(case.format, table, "p"))
    before = snapshots(case, table)
    assert set(delete(case, table, commit, timedelta()).retained) == set(range(6))
    assert snapshots(case, table) == before


def test_a_shorter_age_of_main_expires_no_snapshot_of_main_that_the_table_keeps_for_another_branch(
    case: IcebergCase, table: TableRef
):
    name, history = case.name(table), oldest_first(case, table)
    case.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('history.expire.max-snapshot-age-ms' = '{HOUR_MS}')")
    case.java_table(table).manageSnapshots().createBranch("audit", history[2]).commit()
    keep(case, table, 1)
    commit = run(case, plan_all(case.format, table, "p"))
    blockers = case.format.deletion_blockers(table, commit.superseded)
    free = replace(commit, superseded=tuple(one for one in commit.superseded if blockers[one.path] is None))
    assert len(free.superseded) == 3
    rows = rows_by_snapshot(case, table)
    assert "not only main has it" in delete(case, table, free, timedelta()).retained[0]
    assert rows_by_snapshot(case, table) == rows
    keep(case, table, 1, "audit")
    case.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('history.expire.max-snapshot-age-ms' = '1')")
    assert delete(case, table, free, timedelta()).retained == {}
    assert snapshots(case, table) == {history[2], int(commit.instant)}


@pytest.mark.parametrize(
    ("key", "value"),
    [("history.expire.min-snapshots-to-keep", "100"), ("history.expire.max-snapshot-age-ms", str(HOUR_MS))],
)
def test_settings_that_the_owner_changes_right_before_the_expiry_are_kept(
    case: IcebergCase, table: TableRef, key: str, value: str, monkeypatch: pytest.MonkeyPatch
):
    commit = run(case, plan_all(case.format, table, "p"))
    before, rows, stored = snapshots(case, table), rows_of_all_readers(case, table), case.stored(table)
    asked = iceberg_writer.require_storage_clock

    def changed(*arguments: Any) -> int:
        case.sql(f"ALTER TABLE {case.name(table)} SET TBLPROPERTIES ('{key}' = '{value}')")
        return asked(*arguments)

    monkeypatch.setattr(iceberg_writer, "require_storage_clock", changed)
    assert f"{key} = {value}" in delete(case, table, commit, timedelta()).retained[0]
    assert (snapshots(case, table), case.stored(table)) == (before, stored)
    assert rows_of_all_readers(case, table) == rows


def right_before_the_commit(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], times: int = 1) -> list[object]:
    """Let the expiry's first ``times`` commits be preceded by ``act``, after all checks. Returns the acts so far."""
    checked, acts = expiry._kept_for_others, list[object]()

    def changed(*arguments: Any) -> set[int]:
        found = checked(*arguments)
        if len(acts) < times:
            acts.append(act())
        return found

    monkeypatch.setattr(expiry, "_kept_for_others", changed)
    return acts


def oldest_first(case: IcebergCase, table: TableRef) -> list[int]:
    rows = case.sql(f"SELECT snapshot_id FROM {case.name(table)}.snapshots ORDER BY committed_at").collect()
    return [row["snapshot_id"] for row in rows]


#: a REST server can't compare these
KEPT = {
    "branch": lambda case, table, third: (
        case.java_table(table)
        .manageSnapshots()
        .createBranch("audit", third)
        .setMinSnapshotsToKeep("audit", 10)
        .commit()
    ),
    "property": lambda case, table, third: case.sql(
        f"ALTER TABLE {case.name(table)} SET TBLPROPERTIES ('history.expire.min-snapshots-to-keep' = '100')"
    ),
}


@pytest.mark.parametrize("what", KEPT)
@pytest.mark.parametrize("kind", ["jdbc", "hive", "hadoop", "postgresql"])
@pytest.mark.paired("kind")
def test_snapshots_that_another_commit_keeps_right_before_the_expiry_stay(
    new_case: NewCase, tmp_path: Path, kind: str, what: str, monkeypatch: pytest.MonkeyPatch
):
    case = new_case(kind)
    table = case.create(tmp_path / "lake" / "t", name="t")
    commit = run(case, plan_all(case.format, table, "p"))
    history, rows = oldest_first(case, table), rows_by_snapshot(case, table)
    acts = right_before_the_commit(monkeypatch, lambda: KEPT[what](case, table, history[2]))
    retained = delete(case, table, commit, timedelta()).retained
    assert len(acts) == 1
    assert len(retained) == {"branch": 3, "property": 6}[what]
    kept = history[:3] if what == "branch" else history
    after = rows_by_snapshot(case, table)
    assert {one: after.get(one) for one in kept} == {one: rows[one] for one in kept}


def test_main_that_is_rolled_back_right_before_the_expiry_keeps_its_rows(
    case: IcebergCase, table: TableRef, monkeypatch: pytest.MonkeyPatch
):
    commit = run(case, plan_all(case.format, table, "p"))
    third = oldest_first(case, table)[2]
    rows = rows_by_snapshot(case, table)[third]
    acts = right_before_the_commit(
        monkeypatch, lambda: case.java_table(table).manageSnapshots().rollbackTo(third).commit()
    )
    delete(case, table, commit, timedelta())
    assert len(acts) == 1
    assert case.java_table(table).currentSnapshot().snapshotId() == third
    assert case.rows(table) == rows
    assert sorted(rows_by_snapshot(case, table)[third]) == rows
    found = case.format.verify(table, (), rows=False)
    assert (found.missing, found.wrong_size) == ((), ())


def test_a_state_that_a_rollback_restored_stays_until_the_retention_has_passed(case: IcebergCase, table: TableRef):
    """The owner's overwrite follows the rollback before the cleaner sees that the replaced files are live again."""
    java_table, retention = case.java_table(table), timedelta(seconds=8)
    before = java_table.currentSnapshot().snapshotId()
    commit = run(case, plan_all(case.format, table, "p"))
    rows = rows_by_snapshot(case, table)[before]
    time.sleep(retention.total_seconds())
    case.java_table(table).manageSnapshots().rollbackTo(before).commit()
    case.update(table, "")
    with pytest.raises(Conflict, match=f"main was set back to snapshot {before}"):
        delete(case, table, commit, retention)
    assert rows_by_snapshot(case, table).get(before) == rows
    assert delete(case, table, commit, timedelta()).retained == {}
    assert before not in snapshots(case, table)


@pytest.mark.parametrize("appends", [1, 100])
def test_an_append_right_before_the_expiry_delays_it(
    case: IcebergCase, table: TableRef, appends: int, monkeypatch: pytest.MonkeyPatch
):
    commit = run(case, plan_all(case.format, table, "p"))
    before = snapshots(case, table)
    acts = right_before_the_commit(monkeypatch, lambda: case.append(table, "dt=0", 1000, 1010), appends)
    if appends == 1:
        assert delete(case, table, commit, timedelta()).retained == {}
        assert snapshots(case, table) & before == {int(commit.instant)}
    else:
        with pytest.raises(Transient, match="the table changed 5 times meanwhile"):
            delete(case, table, commit, timedelta())
        assert snapshots(case, table) >= before
        assert all(Path(version.path).exists() for version in commit.superseded)
    assert len(acts) == min(appends, 5)
    assert len(case.rows(table)) == 300 + 10 * len(acts)
    assert rows_of_all_readers(case, table)


def test_a_tag_that_a_rest_catalog_can_t_compare_keeps_all_files(
    new_case: NewCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    case = new_case("rest")
    table = case.create(tmp_path / "lake" / "t", name="t")
    commit = run(case, plan_all(case.format, table, "p"))
    third = oldest_first(case, table)[2]
    rows, stored = rows_by_snapshot(case, table)[third], case.stored(table)
    acts = right_before_the_commit(
        monkeypatch, lambda: case.java_table(table).manageSnapshots().createTag("audit", third).commit()
    )
    retained = delete(case, table, commit, timedelta()).retained
    assert len(acts) == 1
    assert third not in snapshots(case, table), "the server has compared the tag; the docs say that it can't"
    assert case.stored(table).keys() >= stored.keys()
    (reason,) = set(retained.values())
    metadata = re.fullmatch(r"no file was deleted: .* the last metadata with it is (\S+)", reason)
    assert metadata is not None
    static = StaticTable.from_metadata(metadata[1])
    assert static.metadata.refs["audit"].snapshot_id == third
    assert sorted(map(repr, static.scan(snapshot_id=third).to_arrow().to_pylist())) == rows


def test_files_of_a_writer_that_only_expired_snapshots_list_are_deleted_with_their_manifests(
    case: IcebergCase, table: TableRef
):
    case.update(table, "dt=0")
    commit = run(case, plan_all(case.format, table, "p"))
    case.append(table, "dt=0", 1000, 1010)
    rows = rows_of_all_readers(case, table)
    assert delete(case, table, commit, timedelta()).retained == {}
    name = case.name(table)
    listed = {row[0].removeprefix("file:") for row in case.sql(f"SELECT file_path FROM {name}.all_files").collect()}
    assert set(case.stored(table)) == listed
    manifests = {row[0] for row in case.sql(f"SELECT path FROM {name}.all_manifests").collect()}
    lists = {row[0] for row in case.sql(f"SELECT manifest_list FROM {name}.snapshots").collect()}
    metadata = {str(path) for path in (Path(table.location) / "metadata").glob("*.avro")}
    assert metadata == {one.removeprefix("file:") for one in manifests | lists}
    assert rows_of_all_readers(case, table) == rows


def expire_without_deleting(case: IcebergCase, table: TableRef, commit: Commit) -> None:
    """An expiry whose process died after its commit and before it deleted files."""
    java_table = case.java_table(table)
    made_at = java_table.snapshot(int(commit.instant)).timestampMillis()
    java_table.expireSnapshots().expireOlderThan(made_at).cleanExpiredFiles(False).commit()


def test_files_that_an_expiry_left_when_it_was_cut_short_are_deleted(case: IcebergCase, table: TableRef):
    commit = run(case, plan_all(case.format, table, "p"))
    expire_without_deleting(case, table, commit)
    assert snapshots(case, table) == {int(commit.instant)}
    case.append(table, "dt=0", 1000, 1010)
    rows, replaced = rows_of_all_readers(case, table), {version.path for version in commit.superseded}
    assert replaced <= case.stored(table).keys()
    result = delete(case, table, commit, timedelta())
    assert (result.retained, result.bytes_freed) == ({}, sum(version.bytes for version in commit.superseded))
    assert not replaced & case.stored(table).keys()
    assert rows_of_all_readers(case, table) == rows


@pytest.mark.parametrize("keeper", ["branch", "added again", "gc.enabled"])
def test_files_that_a_snapshot_lists_or_the_owner_keeps_stay_after_an_expiry_that_was_cut_short(
    case: IcebergCase, table: TableRef, keeper: str
):
    java_table = case.java_table(table)
    before = java_table.currentSnapshot().snapshotId()
    listed = list(java_table.newScan().planFiles().iterator())
    commit = run(case, plan_all(case.format, table, "p"))
    if keeper == "branch":
        case.java_table(table).manageSnapshots().createBranch("audit", before).commit()
        case.sql(f"DELETE FROM {case.name(table)}.branch_audit WHERE dt = '0'")
    expire_without_deleting(case, table, commit)
    if keeper == "added again":
        # A snapshot that no branch names lists the files: a writer has staged them.
        append = case.java_table(table).newAppend().stageOnly()
        for one in listed:
            append.appendFile(one.file())
        append.commit()
    if keeper == "gc.enabled":
        case.sql(f"ALTER TABLE {case.name(table)} SET TBLPROPERTIES ('gc.enabled' = 'false')")
    rows, stored = rows_of_all_readers(case, table), case.stored(table)
    if keeper == "branch":
        with pytest.raises(Conflict, match="the table's ref 'audit' keeps it"):
            delete(case, table, commit, timedelta())
    else:
        assert len(delete(case, table, commit, timedelta()).retained) == len(commit.superseded)
    assert rows_of_all_readers(case, table) == rows
    assert case.stored(table).keys() >= {version.path for version in commit.superseded} & stored.keys()


@pytest.mark.parametrize("key", ["history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"])
def test_a_property_that_is_no_number_is_named_and_nothing_expires(case: IcebergCase, table: TableRef, key: str):
    commit = run(case, plan_all(case.format, table, "p"))
    before = snapshots(case, table)
    case.sql(f"ALTER TABLE {case.name(table)} SET TBLPROPERTIES ('{key}' = '5d')")
    wrong = rf"^{re.escape(table.name)}: the table property {key} = '5d' is not a whole number$"
    with pytest.raises(Rejected, match=wrong):
        delete(case, table, commit, timedelta())
    assert snapshots(case, table) == before
