# SPDX-License-Identifier: Apache-2.0
"""Whose lock a lock file is, and when it is removed: for a proved dead process of ours that held this very file."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lake import process_identity
from lake.formats.hudi.jvm.errors import describe_lock
from lake.formats.hudi.lock_settings import lock_journal as journal_module
from lake.formats.hudi.lock_settings.lock_journal import DIRECTORY, LockJournal, OpenLockEntry
from lake.model import Concurrency, TableRef
from lake.process_identity import Process

DOING = "committing"


@pytest.fixture
def journal(tmp_path: Path) -> LockJournal:
    (tmp_path / ".hoodie").mkdir()
    return LockJournal(str(tmp_path), str(tmp_path / ".hoodie/lock"))


@pytest.fixture
def holder() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def identity(pid: int) -> Process:
    process = Process.of(pid)
    assert process is not None
    return process


def hold(journal: LockJournal, process: Process) -> OpenLockEntry:
    """What a process does that takes the lock: entry, lock file, identity."""
    entry = journal.open_entry(process, DOING)
    journal.lock.touch()
    journal.lock.with_name(".lock.crc").touch()
    entry.record_lock_file()
    return entry


def entries(journal: LockJournal) -> list[Path]:
    return list((journal.lock.parent.parent / DIRECTORY).iterdir())


def kill(holder: "subprocess.Popen[bytes]", *, reap: bool = True) -> None:
    holder.kill()
    if reap:
        holder.wait()
    else:
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize("reap", [True, False], ids=["gone", "zombie"])
def test_the_lock_of_a_killed_process_is_removed_once(journal, holder, reap):
    hold(journal, identity(holder.pid))
    kill(holder, reap=reap)
    assert journal.describe_lock().endswith("which died committing; the next plan removes it")
    removed = journal.remove_orphaned_lock()
    assert removed is not None
    assert f"process {holder.pid} of host" in removed
    assert "died committing" in removed
    assert sorted(path.name for path in journal.lock.parent.iterdir()) == [".lakefold"]
    assert entries(journal) == []
    assert journal.remove_orphaned_lock() is None


def test_the_lock_of_a_living_process_stays_and_its_holder_is_named(journal, holder):
    hold(journal, identity(holder.pid))
    assert journal.remove_orphaned_lock() is None
    assert journal.lock.exists()
    assert f"held by lakefold, process {holder.pid} of host" in journal.describe_lock()


def test_a_recycled_process_id_is_not_the_process_of_the_entry(journal, holder):
    earlier = replace(identity(holder.pid), started=identity(holder.pid).started - 1)
    hold(journal, earlier)
    assert journal.remove_orphaned_lock() is not None, "the process of that id and start time is dead"
    hold(journal, identity(holder.pid))
    assert journal.remove_orphaned_lock() is None


@pytest.mark.parametrize("where", ["host", "boot", "namespace"])
def test_a_process_that_cannot_be_seen_from_here_does_not_count_as_dead(journal, holder, where):
    elsewhere = replace(identity(holder.pid), **{where: "another"})
    kill(holder)
    hold(journal, elsewhere)
    assert not elsewhere.is_dead
    assert journal.remove_orphaned_lock() is None
    assert journal.lock.exists()
    assert journal.describe_lock().endswith(f"if that process is dead: rm {journal.lock}")


def test_a_lock_of_an_unknown_holder_stays_and_is_reported_with_the_command(journal):
    journal.lock.touch()
    assert journal.remove_orphaned_lock() is None
    assert journal.describe_lock().endswith(
        f"if no writer of this table is running it was left by a dead process: rm {journal.lock}"
    )


def test_a_newer_lock_file_is_never_removed_for_a_dead_process_that_held_an_earlier_one(journal, holder):
    hold(journal, identity(holder.pid))
    kill(holder)
    journal.lock.unlink()
    journal.lock.touch()
    assert journal.remove_orphaned_lock() is None
    assert journal.lock.exists()
    assert "rm " in journal.describe_lock()


def test_a_process_that_died_while_it_waited_does_not_make_anothers_lock_an_orphan(journal, holder):
    journal.open_entry(identity(holder.pid), DOING)
    journal.lock.touch()
    kill(holder)
    assert journal.remove_orphaned_lock() is None
    assert journal.lock.exists()


def test_a_lock_with_a_new_holder_at_the_last_moment_is_put_back(journal, holder, monkeypatch):
    hold(journal, identity(holder.pid))
    kill(holder)
    rename = os.rename

    def too_late(source: Path, target: Path) -> None:
        Path(source).unlink()
        Path(source).write_text("a writer's")
        rename(source, target)

    monkeypatch.setattr(journal_module.os, "rename", too_late)
    assert journal.remove_orphaned_lock() is None
    assert journal.lock.read_text() == "a writer's"
    assert {path.name for path in journal.lock.parent.iterdir()} == {"lock", ".lakefold"}


def test_one_of_many_rescuers_removes_the_lock_and_none_removes_the_next_lock(journal, holder):
    for _ in range(20):
        process = subprocess.Popen([sys.executable, "-c", ""])
        hold(journal, identity(process.pid))
        process.wait()
        together = threading.Barrier(4)
        removed: list[str] = []

        def rescue(together=together, removed=removed) -> None:
            together.wait()
            if (found := journal.remove_orphaned_lock()) is not None:
                removed.append(found)
                journal.lock.write_text("the next holder's")

        threads = [threading.Thread(target=rescue) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(removed) == 1
        assert journal.lock.read_text() == "the next holder's"
        journal.lock.unlink()


def test_entries_are_deleted_with_their_lock_and_entries_of_dead_processes_are_swept(journal, holder):
    waited = journal.open_entry(identity(holder.pid), DOING)
    kill(holder)
    mine = hold(journal, identity(os.getpid()))
    assert mine.is_held
    assert len(entries(journal)) == 2
    journal.delete_stale_entries()
    assert len(entries(journal)) == 1
    mine.close()
    waited.close()
    assert entries(journal) == []


def test_a_torn_entry_is_no_evidence(journal, holder):
    entry = hold(journal, identity(holder.pid))
    kill(holder)
    entry._path.write_text(entry._path.read_text()[:40])
    assert journal.remove_orphaned_lock() is None
    assert "rm " in journal.describe_lock()


def test_an_entry_of_another_tables_lock_is_no_evidence(journal, holder):
    entry = hold(journal, identity(holder.pid))
    kill(holder)
    entry._path.write_text(json.dumps(json.loads(entry._path.read_text()) | {"lock": "/elsewhere/lock"}))
    assert journal.remove_orphaned_lock() is None


def _ref(base: Path, **options: str) -> TableRef:
    settings = {f"hoodie.write.lock.{key.replace('__', '.')}": value for key, value in options.items()}
    return TableRef(name="t", format="hudi", location=str(base), concurrency=Concurrency.OCC, write_options=settings)


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({"provider": "x.FileSystemBasedLockProvider"}, "no lock file exists, so its holder has finished"),
        (
            {"provider": "x.FileSystemBasedLockProvider", "filesystem__path": "hdfs://nn/locks"},
            "it is the file lock in hdfs://nn/locks",
        ),
        (
            {
                "provider": "x.ZookeeperBasedLockProvider",
                "zookeeper__url": "zk",
                "zookeeper__base_path": "/hudi",
                "zookeeper__lock_key": "trips",
            },
            "it is /hudi/trips on ZooKeeper zk, which frees it when the session of a dead holder ends",
        ),
        (
            {
                "provider": "x.HiveMetastoreBasedLockProvider",
                "hivemetastore__database": "db",
                "hivemetastore__table": "trips",
            },
            "it is the metastore's lock of db.trips, which frees it when a dead holder's heartbeat is overdue; "
            "SHOW LOCKS names the holder",
        ),
        (
            {"provider": "x.StorageBasedLockProvider"},
            "it is .hoodie/.locks/table_lock.json in the table, which expires when its holder is dead",
        ),
        ({"provider": "y.DynamoDBBasedLockProvider"}, "its provider is y.DynamoDBBasedLockProvider"),
    ],
)
def test_a_lock_that_is_not_free_is_reported_with_its_location(
    tmp_path: Path, options: dict[str, str], note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert describe_lock(_ref(tmp_path, **options)) == note


def test_without_the_kernels_answer_nothing_is_proved(
    monkeypatch: pytest.MonkeyPatch, holder: "subprocess.Popen[bytes]"
) -> None:
    known: Callable[[], object] = process_identity._current_namespace
    process = identity(holder.pid)
    monkeypatch.setattr(process_identity, "_current_namespace", lambda: None)
    assert Process.of(holder.pid) is None
    kill(holder)
    assert not process.is_dead
    monkeypatch.setattr(process_identity, "_current_namespace", known)
    assert process.is_dead
