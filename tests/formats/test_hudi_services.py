# SPDX-License-Identifier: Apache-2.0
"""The table's own services run by lakefold, and what operators take back: on real Hudi tables."""

import os
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import FS_LOCK
from hudi_writing import FORMAT, NewTable, Table, ignore, make_table

from lake.errors import Conflict, Rejected, Transient
from lake.formats.hudi.plans.clean_bounds import CleanBounds
from lake.formats.hudi.plans.cleaning import publish_clean
from lake.formats.hudi.timeline.timeline import Timeline, extra_metadata

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("nothing_unseen")]
SMALL = {
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.archive.automatic": "false",
    # the archiver never passes the newest compaction of the metadata table
    "hoodie.metadata.compact.max.delta.commits": "1",
}
DEAD = "20260101000000001"
ONE, TWO = "dt=2026-01-01", "dt=2026-01-02"


@pytest.fixture
def table(spark: Any, tmp_path: Path) -> NewTable:
    def new(kind: str = "cow", **options: str) -> Table:
        return make_table(spark, tmp_path, kind, SMALL | options)

    return new


def maintain(table: Table, *services: str, retained: Any = ()) -> list[str]:
    with table.writer() as writer:
        return list(writer.maintain(services, retained))


def active(table: Table) -> set[str]:
    return {instant.time for instant in table.timeline().completed}


def test_trap_services_neither_archive_a_replacement_whose_files_exist_nor_clean_retained_files(
    table: NewTable,
) -> None:
    trips = table("metadata")
    first = trips.run(trips.plan("0198-first", partitions=[ONE]))
    second = trips.run(trips.plan("0198-second", partitions=[TWO]))
    for version in range(2):
        trips.upsert(0, 60, version + 1, "id % 9 = 0")
    rows, other = trips.rows(), trips.other_rows()
    retained = second.superseded
    kept = {version.path for version in retained}
    with trips.writer() as writer:  # a clean that, as others write it, says that nothing replaced is left
        client = writer._open()
        with client.locked("a test"):
            timeline, instant = Timeline(client.storage), client.new_instant()
            start = CleanBounds(earliest_retained="", newest_commit=timeline.newest_commit_time)
            publish_clean(client, timeline, instant, {ONE: [v.path for v in first.superseded]}, start)
            client.write_client.clean(False)
    assert any("archived" in line for line in maintain(trips, "archive", retained=retained))
    assert first.instant not in active(trips)
    assert second.instant in active(trips), "archived, its replaced files would be live again"
    assert (trips.rows(), trips.other_rows()) == (rows, other)

    trips.upsert(0, 60, 5, "id % 13 = 0")
    rows, other = trips.rows(), trips.other_rows()
    (line,) = maintain(trips, "clean", retained=retained)
    assert line.endswith(f"{len(kept)} more are kept by lakefold's retention")
    assert kept <= set(trips.data_files())
    assert maintain(trips, "archive", retained=retained) == []
    assert (trips.rows(), trips.other_rows()) == (rows, other)

    trips.upsert(0, 60, 9, "id % 11 = 0")
    rows = trips.rows()
    cleaned, archived = maintain(trips, "archive", "clean")
    assert "deleted" in cleaned
    assert "archived" in archived
    assert not kept & set(trips.data_files())
    assert trips.rows() == rows
    found = FORMAT.find_commit(trips.ref, "0198-second")
    assert found is not None
    assert (found.instant, found.instant in active(trips)) == (second.instant, False)


@pytest.mark.shown_by(
    "tests/formats/test_hudi_savepoints.py::test_commits_archived_after_a_savepoint_are_missed_by_readers_and_left_alone_and_nothing_kept_is_deleted"
)
def test_savepoints_outlive_the_clean_policy_archival_and_our_own_deletions(table: NewTable) -> None:
    trips = table()
    with trips.writer() as writer:
        writer._open().write_client.savepoint("owner", "before an upgrade")
    (saved,) = trips.timeline().savepoints().values()
    time = next(iter(trips.timeline().savepoints()))
    commit = trips.run(trips.plan())
    for version in range(4):
        trips.upsert(0, 60, version + 1, "id % 9 = 0")
    rows = trips.rows()
    maintain(trips, "clean", "archive")
    assert saved <= set(trips.data_files())
    assert time in active(trips)
    reasons = FORMAT.deletion_blockers(trips.ref, commit.superseded)
    assert {path for path, reason in reasons.items() if reason == f"kept by savepoint {time}"} == saved
    with trips.writer() as writer, pytest.raises(Conflict, match="kept by savepoint"):
        writer.delete(commit.superseded)
    assert saved <= set(trips.data_files())
    assert trips.rows() == rows


def test_savepoints_outlive_the_clean_of_a_partition_that_was_deleted(table: NewTable) -> None:
    trips = table(**{"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": "1"})
    rows, other = trips.rows(), trips.other_rows()
    with trips.writer() as writer:
        writer._open().write_client.savepoint("owner", "before an upgrade")
    ((time, saved),) = trips.timeline().savepoints().items()
    to_delete = {
        "hoodie.datasource.write.operation": "delete_partition",
        "hoodie.datasource.write.partitions.to.delete": ONE,
    }
    trips.upsert(0, 1, 1, **to_delete)
    assert len(trips.rows()) < len(rows)
    maintain(trips, "clean")
    assert saved <= set(trips.data_files())
    with trips.writer() as writer:
        writer._open().write_client.restoreToSavepoint(time)
    assert (trips.rows(), trips.other_rows()) == (rows, other)


def begun(table: Table, *, age: float = 3600.0, kind: str = "commit") -> None:
    """A write of another process that began so many seconds ago and left its instant and a file."""
    directory = table.base / ".hoodie/timeline"
    inflight = f"{DEAD}.inflight" if kind == "commit" else f"{DEAD}.{kind}.inflight"
    for name in (f"{DEAD}.{kind}.requested", inflight):
        (directory / name).write_bytes(b"")
        then = (directory / name).stat().st_mtime - age
        os.utime(directory / name, (then, then))


def roll_back(table: Table, instant: str) -> str:
    with table.writer() as writer:
        return writer.roll_back(instant)


def test_a_dead_write_is_rolled_back_by_command_and_where_heartbeats_exist_by_the_service(table: NewTable) -> None:
    trips = table(**FS_LOCK)
    rows = trips.rows()
    begun(trips)
    (entry,) = FORMAT.pending_actions(trips.ref)
    assert (entry.action, entry.is_abandoned) == ("commit", True)
    assert roll_back(trips, DEAD) == f"commit {DEAD} is rolled back: its files are deleted"
    assert FORMAT.pending_actions(trips.ref) == []
    begun(trips)
    assert maintain(trips, "rollback") == [f"rolled back {DEAD}, whose writers died"]
    begun(trips)
    heartbeat = trips.base / ".hoodie/.heartbeat" / DEAD
    heartbeat.parent.mkdir(exist_ok=True)
    heartbeat.write_bytes(b"")
    assert maintain(trips, "rollback") == [], "its heartbeat is fresh"
    with pytest.raises(Conflict, match=f"commit {DEAD} is alive, last active at"):
        roll_back(trips, DEAD)
    (trips.base / f".hoodie/timeline/{DEAD}.inflight").unlink()  # it still looks keys up
    with pytest.raises(Conflict, match=f"commit {DEAD} is alive, last active at"):
        roll_back(trips, DEAD)
    assert trips.rows() == rows


def test_a_rollback_that_a_live_process_executes_is_left_to_it(table: NewTable) -> None:
    """Hudi executes rollbacks without the table's lock, and keeps other processes away by a heartbeat."""
    trips = table(**FS_LOCK)
    rows = trips.rows()
    begun(trips)
    with trips.writer() as writer:
        client = writer._open()
        java = client.jvm.org.apache.hudi.table.HoodieSparkTable.create(client.write_config, client.context)
        inflight = client.meta.reloadActiveTimeline().filterInflights().lastInstant().get()
        time = client.new_instant()
        assert java.scheduleRollback(client.context, time, inflight, False, True, False).isPresent()
    heartbeat = trips.base / ".hoodie/.heartbeat" / time
    heartbeat.parent.mkdir(exist_ok=True)
    heartbeat.write_bytes(b"")
    pending = {entry.time for entry in trips.timeline().pending}
    assert pending == {DEAD, time}
    assert maintain(trips, "rollback") == [f"nothing is rolled back: another process is executing rollback {time}"]
    with pytest.raises(Transient, match=rf"another process is executing rollback {time} of {DEAD} \(its heartbeat"):
        roll_back(trips, DEAD)
    assert {entry.time for entry in trips.timeline().pending} == pending
    os.utime(heartbeat, (1e9, 1e9))
    assert DEAD in maintain(trips, "rollback")[0]
    assert trips.timeline().pending == ()
    assert trips.rows() == rows


def test_a_live_plan_is_not_rolled_back_where_writers_let_clusterings_expire(table: NewTable) -> None:
    expiry = {"enable.expirations": "true", "expiration.threshold.mins": "0"}
    trips = table(**FS_LOCK, **{f"hoodie.clustering.{key}": value for key, value in expiry.items()})
    rows = trips.rows()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(trips.plan(), 1), ignore)
        assert maintain(trips, "rollback") == []
        assert writer.commit(rewrite).instant == rewrite.prepared.instant
    assert trips.rows() == rows


def test_instants_that_are_completed_ours_or_no_write_are_not_rolled_back(table: NewTable) -> None:
    trips = table()
    rows = trips.rows()
    done = trips.timeline().commits[-1]
    with pytest.raises(Conflict, match=f"commit {done.time} is completed; only pending instants"):
        roll_back(trips, done.time)
    with pytest.raises(Conflict, match="there is no instant 20200101000000000"):
        roll_back(trips, "20200101000000000")
    begun(trips, kind="clean")
    with pytest.raises(Rejected, match=f"clean {DEAD} is not a write; Hudi ends a pending clean with its next one"):
        roll_back(trips, DEAD)
    for file in (trips.base / ".hoodie/timeline").glob(f"{DEAD}*"):
        file.unlink()
    begun(trips)
    (line,) = maintain(trips, "rollback")
    assert "only writers with concurrency" in line, "a single writer has no heartbeat"
    assert [entry.instant for entry in FORMAT.pending_actions(trips.ref)] == [DEAD]
    roll_back(trips, DEAD)
    plan = trips.plan("0198-ours")
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        writer.rewrite(prepared, ignore)
        with pytest.raises(Conflict, match="of plan 0198-ours may be executed by another lakefold: process"):
            writer.roll_back(prepared.instant)
        writer.withdraw(plan.plan_id, None)
    assert trips.rows() == rows


def test_archival_keeps_the_commit_in_which_a_streaming_job_looks_up_its_checkpoint(table: NewTable) -> None:
    trips = table()
    checkpoint = {
        "hoodie.datasource.write.commitmeta.key.prefix": "deltastreamer.",
        "deltastreamer.checkpoint.key": "topic,0:17",
    }
    trips.upsert(0, 60, 1, "id % 9 = 0", **checkpoint)
    written = trips.timeline().commits[-1]
    assert extra_metadata(trips.timeline().metadata(written))["deltastreamer.checkpoint.key"] == "topic,0:17"
    for number in range(4):
        trips.run(trips.plan(f"0198-{number}", partitions=[(ONE, TWO)[number % 2]]))
    maintain(trips, "archive")
    assert written.time in active(trips), "archived, the job would start again without its checkpoint"
    for version in (2, 3):
        trips.upsert(0, 60, version, "id % 9 = 0", **checkpoint)
    maintain(trips, "archive")
    assert written.time not in active(trips)
