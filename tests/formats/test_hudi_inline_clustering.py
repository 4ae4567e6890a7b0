# SPDX-License-Identifier: Apache-2.0
"""lakefold's plans that a writer's inline clustering executes: it runs every pending plan, of any process."""

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hudi_tables import METADATA, run_service
from hudi_writing import ARCHIVING, FORMAT, LOCK, Table, ignore, insert, make_table

from lake.errors import CommitLost, Conflict, EarlierAttemptPending, LakefoldError, Rejected, Transient
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.jvm.bundle import bundle_of
from lake.formats.hudi.pending.late_files import find_instants_with_late_files, record_path
from lake.formats.hudi.plans import requests, withdrawal
from lake.formats.hudi.rewrite import execute
from lake.formats.hudi.timeline.timeline import write_stats
from lake.formats.hudi.writer import HudiWriter
from lake.plan import SupersededVersion

pytestmark = pytest.mark.spark


@pytest.fixture
def trips(spark: Any, tmp_path: Path) -> Table:
    return make_table(spark, tmp_path)


def execute_pending(trips: Table) -> None:
    """What a writer with ``hoodie.clustering.inline`` does after its commit."""
    with ThreadPoolExecutor() as pool:  # a job of the calling thread's would carry the tag of ours
        pool.submit(run_service, trips.spark, "run_clustering", Path(trips.base), "execute").result()


def silent(trips: Table, instant: str) -> None:
    """Nothing of ``instant`` has been touched for an hour."""
    for path in (Path(trips.base) / ".hoodie").rglob("*"):
        if instant in str(path):
            os.utime(path, (path.stat().st_mtime - 3600,) * 2)


def check(trips: Table, instant: str, before: tuple[Any, Any]) -> None:
    """The rows are as they were, and of ``instant`` exactly the files of its commit are there."""
    found = trips.timeline().find(instant)
    assert found is not None
    assert not found.pending
    committed = {stat["path"] for _, stat in write_stats(trips.timeline().metadata(found))}
    assert (trips.rows(), trips.other_rows()) == before
    assert trips.files_of(instant) == committed
    assert not FORMAT.verify(trips.ref, (), rows=False).missing


def test_plus_files_written_after_an_inline_clustering_took_our_instant_are_not_seen_and_do_not_stay(
    trips: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = trips.rows(), trips.other_rows()
    force: Callable[..., Any] = execute._run_write

    def late(*arguments: Any) -> Any:
        execute_pending(trips)  # between the beginning of our job and its first file
        return force(*arguments)

    monkeypatch.setattr(execute, "_run_write", late)
    plan = trips.plan()
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        with pytest.raises(LakefoldError) as refused:
            writer.commit(writer.rewrite(prepared, ignore))
    check(trips, prepared.instant, before)
    assert isinstance(refused.value, Conflict)
    assert f"another process took over {prepared.instant}" in str(refused.value)
    commit = FORMAT.find_commit(trips.ref, plan.plan_id)
    assert commit is not None
    assert {output.path for output in commit.outputs} == trips.files_of(prepared.instant)


@pytest.mark.shown_by(
    "tests/formats/test_hudi_inline_clustering.py::test_plus_nothing_is_deleted_while_the_files_of_the_other_commit_are_unknown"
)
def test_plus_no_file_of_another_processs_archived_commit_is_deleted_when_our_job_ends(
    trips: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    force: Callable[..., Any] = execute._run_write
    plan = trips.plan()
    committed: set[str] = set()

    def late(*arguments: Any) -> Any:
        execute_pending(trips)
        committed.update(trips.files_of(prepared.instant))
        with ThreadPoolExecutor() as pool:
            pool.submit(insert, trips, 4, **ARCHIVING | {"hoodie.clean.automatic": "true"}).result()
        return force(*arguments)

    before = trips.rows()
    monkeypatch.setattr(execute, "_run_write", late)
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        with pytest.raises(Conflict, match=f"another process took over {prepared.instant}"):
            writer.rewrite(prepared, ignore)
    assert trips.timeline().find(prepared.instant) is None, "the archiver has been at work"
    assert committed
    assert trips.files_of(prepared.instant) == committed
    now = trips.rows()
    assert (len(now), [row for row in now if row in before]) == (len(before) + 8, before)


def test_plus_files_written_while_an_inline_clustering_executes_our_instant_do_not_outlive_its_commit(
    trips: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = trips.rows(), trips.other_rows()
    force: Callable[..., Any] = execute._run_write
    with ThreadPoolExecutor() as pool, trips.writer() as writer:
        others = []

        def meanwhile(client: HudiClient, java: Any) -> Any:
            others.append(pool.submit(execute_pending, trips))
            while not client.is_taken_over(prepared.instant):
                time.sleep(0.05)
            return force(client, java)

        monkeypatch.setattr(execute, "_run_write", meanwhile)
        prepared = writer.prepare(trips.plan(), 1)
        with pytest.raises(Conflict, match=f"another process took over {prepared.instant}"):
            writer.rewrite(prepared, ignore)
        others[0].result()
    check(trips, prepared.instant, before)


def test_plus_a_plan_that_an_inline_clustering_executed_while_we_proved_ours_is_not_committed_twice(
    trips: Table,
) -> None:
    before = trips.rows(), trips.other_rows()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(trips.plan(), 1), ignore)
        execute_pending(trips)
        with pytest.raises(Conflict):
            writer.commit(rewrite)
    check(trips, rewrite.prepared.instant, before)


def test_plus_only_files_that_are_still_ours_are_deleted(trips: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    before = trips.rows(), trips.other_rows()

    def full(*_: Any) -> Any:
        execute_pending(trips)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(execute, "_run_write", full)
    with trips.writer() as writer:
        prepared = writer.prepare(trips.plan(), 1)
        with pytest.raises(LakefoldError) as refused:
            writer.rewrite(prepared, ignore)
    check(trips, prepared.instant, before)
    assert isinstance(refused.value, Conflict)


def test_plus_nothing_is_deleted_while_the_files_of_the_other_commit_are_unknown(
    trips: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed: set[str] = set()

    def full(*_: Any) -> Any:
        execute_pending(trips)
        committed.update(trips.files_of(prepared.instant))
        found = trips.timeline().find(prepared.instant)
        assert found is not None
        # As a reader sees a file that is created and then written to.
        (Path(trips.base) / trips.timeline().directory / str(found.completed_file)).write_bytes(b"")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(execute, "_run_write", full)
    with trips.writer() as writer:
        prepared = writer.prepare(trips.plan(), 1)
        with pytest.raises(Transient, match="is empty"):
            writer.rewrite(prepared, ignore)
    assert committed
    assert trips.files_of(prepared.instant) == committed


def test_plus_an_instant_that_another_process_executes_is_not_withdrawn_by_the_former_owner(
    trips: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = trips.rows(), trips.other_rows()
    force: Callable[..., Any] = execute._run_write

    def taken_over(*arguments: Any) -> Any:
        stats = force(*arguments)
        found = trips.timeline().find(prepared.instant)
        assert found is not None
        (Path(trips.base) / trips.timeline().directory / str(found.inflight_file)).touch()
        for path in trips.files_of(prepared.instant):  # as if the other process had written them
            (Path(trips.base) / path).touch()
        return stats

    monkeypatch.setattr(execute, "_run_write", taken_over)
    monkeypatch.setattr(execute, "FOREIGN_COMMIT_TIMEOUT", timedelta())
    plan = trips.plan()
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        with pytest.raises(Conflict, match=f"another process took over {prepared.instant}"):
            writer.rewrite(prepared, ignore)
        written = trips.files_of(prepared.instant)
        assert written
        assert writer.withdraw(plan.plan_id, None) == 0
    with trips.writer() as writer:
        assert writer.withdraw(plan.plan_id, None) == 0, "nor by another process"
        assert trips.files_of(prepared.instant) == written
        silent(trips, prepared.instant)
        assert writer.withdraw(plan.plan_id, None) == 1
    assert not trips.files_of(prepared.instant)
    assert (trips.rows(), trips.other_rows()) == before


def test_an_instant_of_an_ended_plan_that_a_writer_executes_is_not_withdrawn_and_its_commit_counts(
    trips: Table,
) -> None:
    before = trips.rows(), trips.other_rows()
    plan = trips.plan()
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
    HudiClient(trips.ref, trips.spark).write_client.cluster(prepared.instant, False)  # begun, as inline clustering does
    with trips.writer() as sweep:
        assert sweep.withdraw(plan.plan_id, [prepared.instant]) == 0
        with pytest.raises(Conflict, match=r"may be executed by another process, a writer of the table.* 10 min after"):
            sweep.roll_back(prepared.instant)
        with pytest.raises(EarlierAttemptPending, match=f"{prepared.instant}, an earlier attempt of this plan, is"):
            sweep.prepare(plan, 2)
    assert [entry.is_alive for entry in FORMAT.pending_actions(trips.ref)] == [True]
    execute_pending(trips)
    check(trips, prepared.instant, before)
    commit = FORMAT.find_commit(trips.ref, plan.plan_id)
    assert commit is not None
    assert commit.instant == prepared.instant


def test_a_plan_that_a_writer_begins_while_it_is_withdrawn_keeps_its_request(
    trips: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, plan, inline = (trips.rows(), trips.other_rows()), trips.plan(), HudiClient(trips.ref, trips.spark)
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
    forget: Callable[..., bool] = requests.delete_request
    begun: list[Any] = []

    def begun_meanwhile(*arguments: Any) -> bool:
        begun.append(inline.write_client.cluster(prepared.instant, False))
        return forget(*arguments)

    monkeypatch.setattr(withdrawal, "delete_request", begun_meanwhile)
    with trips.writer() as sweep:
        assert sweep.withdraw(plan.plan_id, [prepared.instant]) == 0
    left = trips.timeline().find(prepared.instant)
    assert left is not None
    assert left.inflight_file is not None
    assert trips.timeline().plan(left), "every writer reads the plan of a pending clustering"
    inline.bundle.run_write(inline.write_client, begun[0])
    java = trips.spark._jvm.org.apache.hudi.table.HoodieSparkTable.create(inline.write_config, inline.context)
    inline.bundle.commit_clustering(inline.write_client, begun[0], java, prepared.instant)
    inline.close()
    check(trips, prepared.instant, before)


def test_a_compaction_that_a_writer_executes_is_waited_for_and_not_cancelled(spark: Any, tmp_path: Path) -> None:
    trips = make_table(spark, tmp_path, "mor")
    plan = trips.compaction()
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
    HudiClient(trips.ref, spark).write_client.compact(prepared.instant, False)  # begun, as inline compaction does
    record = Path(trips.base) / record_path(prepared.instant)
    noted = record.stat().st_mtime_ns
    with trips.writer() as successor:
        assert successor.withdraw(plan.plan_id, [prepared.instant]) == 0
        with pytest.raises(EarlierAttemptPending, match=f"{prepared.instant}, an earlier attempt of this plan, is"):
            successor.prepare(plan, 2)
        assert record.stat().st_mtime_ns == noted
        silent(trips, prepared.instant)
        assert successor.withdraw(plan.plan_id, [prepared.instant]) == 1
        before = trips.rows(), trips.other_rows()
        commit = successor.commit(successor.rewrite(successor.prepare(plan, 2), ignore))
    assert (trips.rows(), trips.other_rows()) == before
    assert commit.epoch == 2


def test_a_begin_that_hudi_refuses_since_a_writer_has_just_begun_leaves_the_instant_to_the_writer(
    trips: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = trips.plan()
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        client = writer._client
        assert client is not None

        def cluster(instant: str, _: bool) -> None:
            """Hudi's own change of the instant, after which a writer's change of the same instant is refused."""
            hudi, meta = trips.spark._jvm.org.apache.hudi.common, client.meta.reloadActiveTimeline()
            requested = client.bundle.requested_clustering(client.meta, instant)
            for _ in range(2):  # the writer's begin, and ours
                hudi.util.ClusteringUtils.transitionClusteringOrReplaceRequestedToInflight(
                    requested, client.empty_option, meta
                )

        monkeypatch.setattr(client, "write_client", SimpleNamespace(cluster=cluster, close=lambda: None))
        with pytest.raises(Transient):
            writer.rewrite(prepared, ignore)
        assert writer.withdraw(plan.plan_id, None) == 0
    assert [entry.is_begun for entry in FORMAT.pending_actions(trips.ref)] == [True]
    execute_pending(trips)
    assert FORMAT.find_commit(trips.ref, plan.plan_id) is not None


def waits_to_take_back(trips: Table) -> bool:
    """Whether a thread of the JVM waits for the table's lock, to take an inflight clustering back."""
    dump = trips.spark._jvm.java.lang.management.ManagementFactory.getThreadMXBean().dumpAllThreads(False, False)
    stacks = ({frame.getMethodName() for frame in thread.getStackTrace()} for thread in dump)
    return any({"rollbackInflightInstant", "lock"} <= names for names in stacks)


PATIENCE = dict.fromkeys(("hoodie.write.lock.client.num_retries", "hoodie.write.lock.num_retries"), "600") | {
    "hoodie.write.lock.client.wait_time_ms_between_retry": "100",
    "hoodie.write.lock.wait_time_ms_between_retry": "100",
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.clean.failed.writes.policy": "LAZY",
}


class Killed(BaseException):
    """The end of an executor: nothing of lakefold runs after it."""


def commit_while_a_writer_waits(trips: Table) -> tuple[str | None, str]:
    """Commit a plan whose instant a writer with inline clustering, waiting for the lock, is about to take back.

    What it returns: the instant, None if the executor was killed, and the writer's error.
    """
    others: list[Future[None]] = []
    with ThreadPoolExecutor() as pool, trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(trips.plan(), 1), ignore)

        def fence() -> None:
            if not others:
                run = partial(run_service, trips.spark, "run_clustering", Path(trips.base), "execute")
                others.append(pool.submit(run, **LOCK | PATIENCE))
                while not (others[0].done() or waits_to_take_back(trips)):
                    time.sleep(0.05)

        writer.fence = fence
        committed = None
        with suppress(Killed):
            committed = writer.commit(rewrite).instant
        return committed, str(others[0].exception())


@pytest.mark.slow
def test_plus_a_writer_that_waits_for_the_lock_to_roll_a_plan_back_does_not_roll_its_commit_back(
    spark: Any, tmp_path: Path
) -> None:
    """Hudi looks at the instant before it waits for the lock and not after it."""
    trips = make_table(spark, tmp_path, "metadata", LOCK)
    before = trips.rows(), trips.other_rows()
    commit, errors = commit_while_a_writer_waits(trips)
    assert commit is not None
    assert "Error rolling back using marker files" in errors
    assert (trips.rows(), trips.other_rows()) == before
    FORMAT.check(trips.ref)
    assert find_instants_with_late_files(trips.ref, TableStorage(str(trips.base)), trips.timeline()) == []
    insert(trips, 6, **ARCHIVING | METADATA | {"hoodie.clean.automatic": "true"})
    assert trips.timeline().find(commit) is None, "the archiver has been at work"
    assert trips.temporary() == []
    assert len(trips.rows()) == len(before[0]) + 12


@pytest.mark.slow
@pytest.mark.parametrize("act", ["rollback", "restore"])
def test_plus_an_owner_can_roll_back_a_guarded_commit(spark: Any, tmp_path: Path, act: str) -> None:
    trips = make_table(spark, tmp_path, "metadata", LOCK)
    before = trips.rows(), trips.other_rows()
    with trips.writer() as owner:
        owner._open().write_client.savepoint("owner", "before a change")
    commit = trips.run(trips.plan())
    assert trips.temporary() != []
    with trips.writer() as owner:
        java = owner._open().write_client
        if act == "rollback":
            java.rollback(commit.instant)
        else:
            java.restoreToSavepoint(*trips.timeline().savepoints())
    assert trips.files_of(commit.instant) == set()
    assert (trips.rows(), trips.other_rows()) == before


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "markers"), [("cow", "there"), ("cow", "deleted"), ("metadata", "deleted")])
def test_plus_a_commit_that_a_writer_rolled_back_after_its_executor_was_killed_is_lost_and_recoverable(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, markers: str
) -> None:
    """Hudi deletes the markers after it completed the instant, and lakefold writes the guard after that."""
    trips = make_table(spark, tmp_path, kind, LOCK)
    before, plan = (trips.rows(), trips.other_rows()), trips.plan()
    temporary, copy = Path(trips.base) / ".hoodie/.temp", tmp_path / "markers"
    commit_clustering = type(bundle_of(spark)).commit_clustering

    def commit(*arguments: Any) -> None:
        shutil.copytree(temporary, copy)
        commit_clustering(*arguments)

    def killed(*_: Any) -> None:
        if markers == "there":
            shutil.copytree(copy, temporary, dirs_exist_ok=True)
        raise Killed

    monkeypatch.setattr(type(bundle_of(spark)), "commit_clustering", commit)
    monkeypatch.setattr(execute, "write_rollback_guard", killed)
    monkeypatch.setattr(execute.HudiClient, "lock_loss_reason", killed)
    committed, _ = commit_while_a_writer_waits(trips)
    monkeypatch.undo()
    assert committed is None
    if (kind, markers) == ("cow", "deleted"):  # Hudi finds nothing to take back
        assert (trips.rows(), trips.other_rows()) == before
        assert FORMAT.find_commit(trips.ref, plan.plan_id) is not None
        FORMAT.check(trips.ref)
        return
    (instant,) = (entry.time for entry in trips.timeline().completed if entry.kind == "clustering")
    assert trips.rows() == []
    lost = {"there": r"\.parquet is gone: rollback \d+ of a writer that took it for begun work deleted its files"}
    why = lost.get(markers, f"removed the completed clustering {instant} from the metadata table")
    with pytest.raises(CommitLost, match=rf"{why}.*CALL rollback_to_instant\(table => …, instant_time => '{instant}'"):
        FORMAT.find_commit(trips.ref, plan.plan_id)
    with pytest.raises(CommitLost, match=why):
        FORMAT.recent_commits(trips.ref, {plan.plan_id})
    replaced = [
        SupersededVersion(partition=group.partition, path=str(slice_.path), bytes=slice_.bytes, instant=instant)
        for group in plan.groups
        for slice_ in group.slices
    ]
    assert all(why is not None for why in FORMAT.deletion_blockers(trips.ref, replaced).values())
    with pytest.raises(Rejected, match=why):
        FORMAT.check(trips.ref)
    with trips.writer() as cleaner, pytest.raises(Rejected, match=why):
        cleaner.delete(replaced)
    with trips.writer() as owner:
        owner._open().write_client.rollback(instant)
    assert (trips.rows(), trips.other_rows()) == before
    assert FORMAT.find_commit(trips.ref, plan.plan_id) is None
    FORMAT.check(trips.ref)
    with trips.writer() as sweep:
        assert sweep.withdraw(plan.plan_id, None) == 1, "the request is on the timeline again"
    trips.run(trips.plan("0198-next"))
    assert (trips.rows(), trips.other_rows()) == before


def schedule_rollback(trips: Table, writer: HudiWriter, instant: str) -> None:
    """Plan the rollback of a clustering that is taken for inflight, as a writer does that dies right after it."""
    client = writer._open()
    table = trips.spark._jvm.org.apache.hudi.table.HoodieSparkTable.create(client.write_config, client.context)
    inflight = client.bundle.inflight_clustering(client.meta, instant)
    table.scheduleRollback(client.context, client.new_instant(), inflight, False, True, False)


@pytest.mark.slow
def test_a_commit_with_a_dead_writers_pending_rollback_is_rolled_back_by_the_commands_of_the_message(
    trips: Table,
) -> None:
    before, plan = (trips.rows(), trips.other_rows()), trips.plan()
    instant = trips.run(plan).instant
    with trips.writer() as dead:
        schedule_rollback(trips, dead, instant)
    with pytest.raises(CommitLost, match=rf"is pending, although clustering {instant} has completed.*CALL rollback_to"):
        FORMAT.find_commit(trips.ref, plan.plan_id)
    with trips.writer() as owner:
        owner._open().write_client.rollback(instant)
    FORMAT.check(trips.ref)
    with trips.writer() as sweep:
        sweep.withdraw(plan.plan_id, None)
    trips.run(trips.plan("0198-next"))
    assert (trips.rows(), trips.other_rows()) == before


@pytest.mark.slow
@pytest.mark.parametrize("how", ["its execution", "lakefold tables rollback"])
def test_a_rollback_whose_process_died_is_finished_by_the_commands_of_the_message_and_not_by_writes(
    trips: Table, how: str
) -> None:
    before, plan = trips.rows(), trips.plan()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        instant = rewrite.prepared.instant
        schedule_rollback(trips, writer, instant)
        with pytest.raises(
            Transient, match=rf"next execution of clustering {instant} finishes .* tables rollback trips {instant}"
        ):
            writer.commit(rewrite)
    insert(trips, 4)
    assert [entry.kind for entry in trips.timeline().pending] == ["clustering", "rollback"]
    silent(trips, instant)
    if how == "its execution":
        execute_pending(trips)
        assert FORMAT.find_commit(trips.ref, plan.plan_id) is not None
    else:
        with trips.writer() as operator:
            assert "is withdrawn: its files are deleted" in operator.roll_back(instant)
    assert trips.timeline().pending == ()
    now = trips.rows()
    assert [row for row in now if row in before] == before
    assert FORMAT.verify(trips.ref, (), rows=False).missing == ()
