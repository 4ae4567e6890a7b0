# SPDX-License-Identifier: Apache-2.0
"""A table's lock that is lost while a plan commits: the writer that has it then loses nothing."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import run_service
from hudi_writing import FORMAT, QUICK_LOCK, Table, ignore, make_table
from waiting import wait_for

from lake.errors import CommitLost, Conflict, Transient
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.client.locks import hudi_lock as held_lock_module
from lake.formats.hudi.lock_settings.on_conflict import WRITER_WINS_OPTIONS
from lake.formats.hudi.plans import clustering, lock_loss, publication
from lake.formats.hudi.timeline.metadata_table import find_faults
from lake.formats.hudi.timeline.timeline import Timeline
from lake.model import OnConflict
from lake.plan import Commit

pytestmark = [pytest.mark.spark, pytest.mark.slow]
EXPIRING = QUICK_LOCK | {"hoodie.write.lock.filesystem.expire": "1"}


@pytest.fixture
def trips(spark: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Table:
    made = make_table(spark, tmp_path, getattr(request, "param", "cow"), EXPIRING)
    made.on_conflict = OnConflict.WRITER_WINS
    return made


def update(trips: Table) -> None:
    """A writer's upsert of 20 ids, which wins against a pending plan."""
    trips.upsert(0, 20, 9, **WRITER_WINS_OPTIONS)


def updated(trips: Table) -> int:
    """How many rows of ``update`` are read."""
    return trips.spark.read.format("hudi").load(str(trips.base)).where("ts = 9").count()


@contextmanager
def committing(
    trips: Table, monkeypatch: pytest.MonkeyPatch, where: str, gate: Path, plan_id: str = "0198-plan"
) -> Iterator["Future[Commit]"]:
    """A plan whose commit stands still at the failpoint ``where`` while the block runs, and then goes on."""

    def commit() -> Commit:
        with trips.writer() as writer:
            rewrite = writer.rewrite(writer.prepare(trips.plan(plan_id), 1), ignore)
            monkeypatch.setenv("LAKEFOLD_FAILPOINTS", f"{where}=wait:{gate}")
            return writer.commit(rewrite)

    with ThreadPoolExecutor() as pool:
        committed = pool.submit(commit)
        reached = gate.with_name(f"{gate.name}.reached")
        wait_for(lambda: reached.exists() or committed.done(), f"the failpoint {where}", 120)
        assert reached.exists(), committed.result()
        monkeypatch.delenv("LAKEFOLD_FAILPOINTS")
        try:
            yield committed
        finally:
            gate.touch()


def age(trips: Table, minutes: float = 2) -> None:
    """Have the lock file be as old as if its holder had stood still for so long."""
    lock, then = Path(trips.base) / ".hoodie/lock", time.time() - 60 * minutes
    os.utime(lock, (then, then))


@pytest.mark.parametrize("trips", ["cow", "metadata"], indirect=True)
def test_a_writer_that_commits_after_the_last_check_because_the_lock_expired_loses_no_update(
    trips: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with committing(trips, monkeypatch, "after_last_look", tmp_path / "gate") as committed:
        age(trips)
        update(trips)
        assert updated(trips) == 20
    with pytest.raises(
        Conflict, match=r"lock was lost during commit \d+, and commit \d+ was committed meanwhile; the "
    ):
        committed.result(120)
    assert updated(trips) == 20
    timeline = trips.timeline()
    assert list(find_faults(timeline.storage, timeline)) == []
    assert FORMAT.find_commit(trips.ref, "0198-plan") is None
    assert not (Path(trips.base) / ".hoodie/lock").exists()
    assert timeline.pending == (), "no writer can execute the outdated plan"
    rows, other_rows = trips.rows(), trips.other_rows()
    assert len(rows) == 180
    trips.run(trips.plan("0198-again"))
    assert (trips.rows(), trips.other_rows()) == (rows, other_rows)
    trips.upsert(0, 180, 10)
    assert len(trips.rows()) == 180, "the next upsert finds every key"


def test_a_lock_file_that_would_expire_is_renewed_before_the_commit_and_while_it_is_held(
    trips: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = Path(trips.base) / ".hoodie/lock"
    with committing(trips, monkeypatch, "in_commit", tmp_path / "gate") as committed:
        age(trips)
        old = lock.stat().st_mtime
        monkeypatch.setenv("LAKEFOLD_FAILPOINTS", f"after_last_look=wait:{tmp_path / 'second'}")
        (tmp_path / "gate").touch()
        wait_for((tmp_path / "second.reached").exists, "the last look")
        assert lock.stat().st_mtime > old + 60
        (tmp_path / "second").touch()
        monkeypatch.delenv("LAKEFOLD_FAILPOINTS")
    assert committed.result(120).plan_id == "0198-plan"
    client = HudiClient(trips.ref, trips.spark)
    seconds = held_lock_module.timedelta(seconds=0.4)
    with client.locked("testing"):
        acquired = client._lock._hudi_lock
        assert acquired is not None
        acquired.validity = seconds
        with acquired.renewed():
            age(trips)
            old = lock.stat().st_mtime
            wait_for(lambda: lock.stat().st_mtime > old + 60, "a renewal")
    client.close()
    assert not lock.exists()


def test_a_lock_that_expired_before_it_is_confirmed_ends_the_commit_before_it_begins(
    trips: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with committing(trips, monkeypatch, "in_commit", tmp_path / "gate") as committed:
        age(trips)
        other = HudiClient(trips.ref, trips.spark)
        manager = other._lock_client.getTableServiceClient().getTransactionManager()
        manager.beginStateChange(
            other.empty_option, other.empty_option
        )  # a writer that is in the middle of its own commit
    with pytest.raises(Transient, match="lock was lost while committing: the lock file was taken away by another"):
        committed.result(120)
    assert FORMAT.find_commit(trips.ref, "0198-plan") is None
    assert (Path(trips.base) / ".hoodie/lock").exists(), "the lock of the writer is left alone"
    manager.endStateChange(other.empty_option)
    other.close()


def test_a_commit_that_removed_updates_is_noticed_by_the_next_process_if_this_one_died(
    trips: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def died(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lake.formats.hudi.rewrite.execute.verify_commit", died)
    with committing(trips, monkeypatch, "after_last_look", tmp_path / "gate") as committed:
        age(trips)
        update(trips)
    with pytest.raises(KeyboardInterrupt):
        committed.result(120)
    (clustering,) = (i.time for i in trips.timeline().completed if i.kind == "clustering")
    refusal = rf"trips: clustering {clustering} replaced file groups that commit \d+ changed meanwhile, .* rollback_to_"
    with pytest.raises(CommitLost, match=refusal):
        FORMAT.find_commit(trips.ref, "0198-plan")
    with pytest.raises(CommitLost, match=refusal):
        FORMAT.recent_commits(trips.ref, {"0198-plan"})
    with trips.writer() as owner:
        assert owner._open().write_client.rollback(clustering)
    assert FORMAT.find_commit(trips.ref, "0198-plan") is None
    assert updated(trips) == 20
    assert [entry.time for entry in trips.timeline().pending] == [clustering]
    with trips.writer() as owner:
        assert "is withdrawn" in owner.roll_back(clustering)
    run_service(trips.spark, "run_clustering", Path(trips.base), "execute")  # as a writer executes what is pending
    assert (updated(trips), trips.timeline().pending) == (20, ())


def test_a_commit_whose_files_a_writer_has_changed_since_is_not_rolled_back(
    trips: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = lock_loss.verify_commit

    def later(*arguments: Any) -> None:
        trips.upsert(100, 120, 10, **WRITER_WINS_OPTIONS)
        verify(*arguments)

    monkeypatch.setattr("lake.formats.hudi.rewrite.execute.verify_commit", later)
    with committing(trips, monkeypatch, "after_last_look", tmp_path / "gate") as committed:
        age(trips)
        update(trips)
    with pytest.raises(CommitLost, match=r"was not rolled back, since commit \d+ has written to its files"):
        committed.result(120)
    assert trips.spark.read.format("hudi").load(str(trips.base)).where("ts = 10").count() == 20


def test_nothing_is_rolled_back_if_the_lock_was_lost_but_no_writer_committed(
    trips: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = trips.rows()
    with committing(trips, monkeypatch, "after_last_look", tmp_path / "gate") as committed:
        (Path(trips.base) / ".hoodie/lock").unlink()
    assert committed.result(120).plan_id == "0198-plan"
    assert trips.rows() == rows
    assert not (Path(trips.base) / ".hoodie/lock").exists()


def test_a_plan_that_is_published_after_its_lock_was_lost_is_not_left_to_writers(
    trips: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    look: Callable[..., Timeline] = clustering.check_preconditions
    other = HudiClient(trips.ref, trips.spark)
    manager = other._lock_client.getTableServiceClient().getTransactionManager()

    def lost_right_after(*arguments: Any, **more: Any) -> Timeline:
        found = look(*arguments, **more)
        age(trips)
        update(trips)
        manager.beginStateChange(other.empty_option, other.empty_option)  # the next writer is in its commit
        return found

    monkeypatch.setattr(clustering, "check_preconditions", lost_right_after)
    plan = trips.plan()
    with trips.writer() as writer:
        with pytest.raises(Transient, match=r"the table's lock was lost while publishing a plan: the lock file was"):
            writer.prepare(plan, 1)
        assert trips.timeline().pending == (), "it is gone although a writer has the lock"
        manager.endStateChange(other.empty_option)
        other.close()
        assert writer.withdraw(plan.plan_id, None) == 0
    run_service(trips.spark, "run_clustering", Path(trips.base), "execute")  # as a writer executes what is pending
    assert (updated(trips), len(trips.rows())) == (20, 180)


def test_no_plan_is_published_if_a_writer_began_while_its_inputs_were_compared(
    trips: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to table version 6 such a writer's logs would be named after the old base file, and the plan had to stay."""
    read = clustering.read_live_slices
    other = HudiClient(trips.ref, trips.spark)

    def begun_meanwhile(*arguments: Any) -> Any:
        heartbeat = Path(trips.base) / ".hoodie/.heartbeat" / str(other.write_client.startCommit())
        heartbeat.parent.mkdir(exist_ok=True)
        heartbeat.touch()  # a writer under optimistic concurrency has one
        return read(*arguments)

    monkeypatch.setattr(clustering, "read_live_slices", begun_meanwhile)
    monkeypatch.setattr(publication, "WRITER_GAP_TIMEOUT", timedelta())
    with trips.writer() as writer, pytest.raises(Conflict, match=r"a writer is inflight \(commit \d+ on .*left no gap"):
        writer.prepare(trips.plan(), 1)
    assert [entry.kind for entry in trips.timeline().pending] == ["commit"]
    other.close()
