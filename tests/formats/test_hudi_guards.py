# SPDX-License-Identifier: Apache-2.0
"""Each way in which a careless caller destroys a Hudi table's data, and the guard that holds against it."""

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import rows, write
from hudi_writing import FORMAT, INDEXES, QUICK_LOCK, NewTable, Table, ignore

from lake.errors import Conflict, Rejected, Transient
from lake.formats.hudi.files.names import relative_path
from lake.formats.hudi.lock_settings.lock_journal import DIRECTORY, LockJournal, Process
from lake.formats.hudi.lock_settings.on_conflict import WRITER_WINS_OPTIONS
from lake.formats.hudi.plans.clean_bounds import archival_bound
from lake.model import OnConflict
from lake.plan import Plan

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("nothing_unseen")]


def test_trap_no_file_group_is_ever_in_two_pending_plans(table: NewTable) -> None:
    trips = table()
    whole, part = trips.plan("first", partitions=["dt=2026-01-01"]), trips.plan("second")
    same_groups = trips.plan("third", partitions=["dt=2026-01-01"])
    rows_before = trips.rows()
    with trips.writer() as first, trips.writer() as second:
        first.prepare(whole, 1)
        with pytest.raises(Conflict, match="is in pending clustering"):
            second.prepare(same_groups, 1)
        prepared = second.prepare(part, 1)
        assert prepared.live_groups == (1,)
        assert "is in pending clustering" in prepared.skipped[0].reason
        assert trips.rows() == rows_before
        assert first.withdraw("first", None) == second.withdraw("second", None) == 1


def _cluster_each_partition(trips: Table) -> list[tuple[Plan, Any]]:
    plans = [trips.plan(f"plan-{day}", partitions=[f"dt=2026-01-0{day}"]) for day in (1, 2)]
    return [(plan, trips.run(plan)) for plan in plans]


def test_trap_archiving_after_a_partial_clean_restores_no_superseded_file(table: NewTable, spark: Any) -> None:
    trips = table()
    (_, first), (_, second) = _cluster_each_partition(trips)
    with trips.writer() as writer:
        assert writer.delete(first.superseded).bytes_freed == sum(v.bytes for v in first.superseded)
        assert writer.delete(first.superseded).bytes_freed == 0
    options = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3", "hoodie.clean.commits.retained": "1"}
    for number in range(5):
        write(rows(spark, 1000 + number * 4, 1004 + number * 4).coalesce(1), trips.base, "insert", options=options)
    assert len(trips.rows()) == 180 + 20
    assert sum(trips.other_rows()[1].values()) == 180 + 20
    assert trips.timeline().find(first.instant) is None, "the archiver has been at work"
    assert trips.timeline().find(second.instant) is not None, "a commit whose replaced files exist stays active"
    with trips.writer() as writer:
        assert writer.delete(second.superseded).bytes_freed == sum(v.bytes for v in second.superseded)
    assert len(trips.rows()) == 180 + 20
    assert not set(trips.data_files()) & {v.path for v in (*first.superseded, *second.superseded)}


def test_trap_a_clean_that_deletes_the_newer_commit_first_keeps_the_older_one_active(table: NewTable) -> None:
    trips = table()
    (_, first), (_, second) = _cluster_each_partition(trips)
    rows_before = trips.rows()
    with trips.writer() as writer:
        # The caller forgets what remains: the files on disk count.
        writer.delete(second.superseded)
    timeline = trips.timeline()
    (clean,) = (instant for instant in timeline.completed if instant.action == "clean")
    plan = timeline.plan(clean)
    assert plan is not None
    assert plan["earliestInstantToRetain"]["timestamp"] == second.instant, "no state before it can be read"
    assert archival_bound(timeline, {}) == first.instant, "what the archiver goes by"
    assert {v.path for v in first.superseded} <= set(trips.data_files())
    assert trips.rows() == rows_before


def test_several_commits_are_cleaned_by_one_clean(table: NewTable) -> None:
    trips = table()
    (_, first), (_, second) = _cluster_each_partition(trips)
    rows_before = trips.rows()
    both = (*second.superseded, *first.superseded)
    with trips.writer() as writer:
        assert writer.delete(both).bytes_freed == sum(v.bytes for v in both)
    timeline = trips.timeline()
    (clean,) = (instant for instant in timeline.completed if instant.action == "clean")
    start = (timeline.plan(clean) or {})["earliestInstantToRetain"]["timestamp"]
    assert start == second.instant, "no state before it can be read"
    assert not {v.path for v in both} & set(trips.data_files())
    assert trips.rows() == rows_before


def _metadata_listing(trips: Table) -> set[str]:
    """Data files of the table as its metadata table lists them."""
    frame = trips.spark.read.format("hudi").load(str(trips.base / ".hoodie/metadata")).where("type = 2")
    found = set()
    for row in frame.select("key", "filesystemMetadata").collect():
        partition = "" if row["key"] == "." else row["key"]
        for name, entry in (row["filesystemMetadata"] or {}).items():
            if not entry["isDeleted"]:
                found.add(relative_path(partition, name))
    return found


@pytest.mark.shown_by(
    "tests/formats/test_hudi_conformance.py::test_version_and_indexes_stay_and_hudis_validation_finds_nothing"
)
def test_trap_metadata_table_and_all_indexes_are_kept_and_updated(table: NewTable) -> None:
    trips = table("indexed")
    indexes = "hoodie.table.metadata.partitions"
    before = trips.timeline().properties[indexes]
    kept = {"files", "column_stats", "partition_stats", "bloom_filters", "record_index"}
    assert set(before.split(",")) == kept
    rows_before = trips.rows()
    commit = trips.run(trips.plan())
    assert set(trips.timeline().properties[indexes].split(",")) == kept
    assert _metadata_listing(trips) == set(trips.data_files())
    column_stats = trips.spark.read.format("hudi").load(str(trips.base / ".hoodie/metadata")).where("type = 3")
    named = {row[0] for row in column_stats.select("ColumnStatsMetadata.fileName").distinct().collect()}
    assert {Path(output.path).name for output in commit.outputs} <= named
    with trips.writer() as writer:
        writer.delete(commit.superseded)
    assert _metadata_listing(trips) == set(trips.data_files()) == {output.path for output in commit.outputs}
    trips.upsert(0, 30, 9, **INDEXES, **{"hoodie.index.type": "RECORD_INDEX"})
    after = trips.rows()
    assert len(after) == len(rows_before)
    assert sum(row not in set(rows_before) for row in after) == 30


def test_a_metadata_table_deleted_under_a_plan_leaves_nothing_that_can_not_be_withdrawn(table: NewTable) -> None:
    trips = table("metadata")
    plan = trips.plan()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        shutil.rmtree(Path(trips.base) / ".hoodie/metadata")
        # The last look under the lock finds it before Hudi fails on it, and names the remedy.
        with pytest.raises(Rejected, match=r"/\.hoodie/metadata is not a metadata table; have its writer commit once"):
            writer.commit(rewrite)
        assert writer.withdraw(plan.plan_id, None) == 1
        with pytest.raises(Rejected, match="is not a metadata table; have its writer commit once"):
            writer.prepare(plan, 2)
    assert not trips.timeline().pending
    assert trips.temporary() == []
    trips.upsert(0, 60, 3, **{"hoodie.metadata.enable": "false"})
    before = trips.rows()
    trips.run(trips.plan("again"))
    assert trips.rows() == before
    assert sum(trips.other_rows()[1].values()) == len(before)


def test_trap_an_orphan_lock_is_reported_with_its_age_and_remedy_and_never_removed(table: NewTable) -> None:
    trips = table(**QUICK_LOCK)
    lock = trips.base / ".hoodie/lock"
    lock.touch()
    plan = trips.plan()
    with trips.writer() as writer:
        for attempt in (lambda: writer.prepare(plan, 1), lambda: writer.withdraw(plan.plan_id, None)):
            with pytest.raises(Transient, match=f"lock file {lock} is .* old; .*: rm {lock}"):
                attempt()
    assert lock.exists()
    assert not trips.timeline().pending
    lock.unlink()
    trips.run(plan)


def test_trap_a_commit_that_gets_no_lock_leaves_the_holders_lock_and_succeeds_later(table: NewTable) -> None:
    trips = table(**QUICK_LOCK)
    lock = trips.base / ".hoodie/lock"
    rows_before = trips.rows()
    plan = trips.plan()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        lock.touch()
        with pytest.raises(Transient, match="lock was not free while committing"):
            writer.commit(rewrite)
        assert lock.exists()
        lock.unlink()
        commit = writer.commit(rewrite)
        lock.touch()
        with pytest.raises(Transient, match="lock was not free while cleaning"):
            writer.delete(commit.superseded)
    assert lock.exists()
    assert trips.rows() == rows_before


def test_trap_a_lock_left_by_a_dead_process_of_ours_is_removed_and_the_step_continues_at_once(
    table: NewTable, spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    trips = table(**QUICK_LOCK)
    path = trips.base / ".hoodie/lock"
    journal = LockJournal(str(trips.base), str(path))
    plan = trips.plan()
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as holder,
        trips.writer() as writer,
    ):
        process = Process.of(holder.pid)
        assert process is not None
        entry = journal.open_entry(process, "committing")
        path.touch()
        entry.record_lock_file()
        with pytest.raises(Transient, match=f"held by lakefold, process {holder.pid} of host .*, committing"):
            writer.prepare(plan, 1)
        assert path.exists(), "its holder lives"
        holder.kill()
        holder.wait()
        prepared = writer.prepare(plan, 1)
        assert f"removed the lock of process {holder.pid} of host" in caplog.text
        assert writer._client is not None
        with writer._client.locked("looking"):
            (mine,) = (trips.base / DIRECTORY).iterdir()
            noted = json.loads(mine.read_text())
            assert noted["process"]["pid"] == spark._jvm.java.lang.ProcessHandle.current().pid()
            assert noted["inode"] == path.stat().st_ino
        assert not path.exists()
        assert list((trips.base / DIRECTORY).iterdir()) == []
        assert writer.withdraw(plan.plan_id, [prepared.instant]) == 1


def test_trap_a_lock_file_that_a_writer_removed_is_noticed_before_the_commit(
    table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lake.formats.hudi.rewrite import execute

    trips = table(**QUICK_LOCK)
    lock = trips.base / ".hoodie/lock"
    rows_before = trips.rows()
    plan = trips.plan()
    check = execute.check_clustering_inputs

    def take_away(*arguments: Any) -> None:
        check(*arguments)
        lock.unlink()
        lock.write_text("another writer's")

    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        with monkeypatch.context() as patch:
            patch.setattr(execute, "check_clustering_inputs", take_away)
            with pytest.raises(Transient, match="lost while committing: the lock file was taken away by another"):
                writer.commit(rewrite)
        assert FORMAT.find_commit(trips.ref, plan.plan_id) is None
        assert lock.read_text() == "another writer's"
        lock.unlink()
        writer.commit(rewrite)
    assert not lock.exists()
    assert trips.rows() == rows_before


def test_trap_a_take_over_waits_for_a_commit_in_progress_and_leaves_it_alone(
    table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lake.formats.hudi.rewrite import execute

    trips = table(**QUICK_LOCK)
    rows_before = trips.rows()
    plan = trips.plan()
    inside, go_on = threading.Event(), threading.Event()
    check = execute.check_clustering_inputs

    def slow(*arguments: Any) -> None:
        check(*arguments)
        inside.set()
        assert go_on.wait(60)

    monkeypatch.setattr(execute, "check_clustering_inputs", slow)
    withdrawn: list[int] = []

    def take_over() -> None:
        assert inside.wait(60)
        threading.Timer(1.0, go_on.set).start()
        with trips.writer() as successor:
            withdrawn.append(successor.withdraw(plan.plan_id, None))

    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        thread = threading.Thread(target=take_over)
        thread.start()
        commit = writer.commit(rewrite)
        thread.join()
    assert withdrawn == [0]
    assert FORMAT.find_commit(trips.ref, plan.plan_id) == commit
    assert trips.rows() == rows_before


def test_trap_nothing_is_deleted_that_is_live_or_whose_replacement_was_rolled_back(table: NewTable) -> None:
    trips = table()
    plan = trips.plan()
    commit = trips.run(plan)
    rows_before = trips.rows()
    with trips.writer() as writer:
        assert writer.delete(()).bytes_freed == 0
        assert writer._open().write_client.rollback(commit.instant)
        with pytest.raises(Conflict, match="superseded files can't be deleted now"):
            writer.delete(commit.superseded)
    assert trips.rows() == rows_before


def test_trap_a_plan_is_not_begun_at_the_millisecond_of_a_write(table: NewTable) -> None:
    """Writers before Hudi 1.0 choose their times without the table's lock, and both would use the same markers."""
    trips = table()
    before, plan = trips.rows(), trips.plan()
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        timeline = trips.timeline()
        write_of_other = Path(trips.base) / timeline.directory / f"{prepared.instant}.commit.requested"
        write_of_other.touch()
        with pytest.raises(Transient, match=rf"a writer has begun commit {prepared.instant} at the same millisecond"):
            writer.rewrite(prepared, ignore)
        assert writer.withdraw(plan.plan_id, None) == 1
    assert [(one.time, one.action) for one in trips.timeline().pending] == [(prepared.instant, "commit")]
    write_of_other.unlink()
    trips.run(trips.plan("0198-next"))
    assert trips.rows() == before


def test_trap_under_prefer_writer_an_upsert_into_the_plan_wins_and_nothing_is_lost(table: NewTable) -> None:
    trips = table(**QUICK_LOCK)
    trips.on_conflict = OnConflict.WRITER_WINS
    plan = trips.plan()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        trips.upsert(0, 180, 9, "id % 10 = 3", **WRITER_WINS_OPTIONS)
        rows_now = trips.rows()
        with pytest.raises(Conflict):
            writer.commit(rewrite)
        assert trips.rows() == rows_now
        assert writer.withdraw(plan.plan_id, [rewrite.prepared.instant]) == 1
    assert trips.rows() == rows_now
    trips.run(trips.plan("second"))
    assert trips.rows() == rows_now


def test_trap_by_default_the_writer_is_refused_while_a_plan_is_pending(table: NewTable) -> None:
    from py4j.protocol import Py4JJavaError

    trips = table()
    rows_before = trips.rows()
    plan = trips.plan()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        with pytest.raises(Py4JJavaError, match="HoodieUpsertException"):
            trips.upsert(0, 180, 9, "id % 10 = 3")
        writer.commit(rewrite)
    assert trips.rows() == rows_before
