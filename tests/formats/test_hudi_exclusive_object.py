# SPDX-License-Identifier: Apache-2.0
"""lakefold's own lock on S3: conditional writes, renewed, taken over from the dead and from the long silent only."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from racing import winners
from s3_server import S3Server, server

from lake.errors import Rejected, Transient
from lake.formats.hudi.client.locks import base, object_store, renewed
from lake.formats.hudi.client.locks.base import LOCK_FILE
from lake.formats.hudi.client.locks.object_store import ObjectStoreLock
from lake.model import TableRef
from lake.storage import s3

TRIPS = TableRef(name="trips", format="hudi", location="s3://lake/trips")


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with server(tmp_path_factory.mktemp("s3") / "log") as running:
        running.filesystem().create_dir("lake")
        s3.configure(running.settings)
        yield running
        s3.configure({})


@pytest.fixture
def emptied(emulator: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    emulator.filesystem().delete_dir_contents("lake", missing_dir_ok=True)
    monkeypatch.setattr(base, "ACQUIRE_TIMEOUT", timedelta(0))
    renewed._observed_versions.clear()
    object_store._verified_buckets.clear()
    return emulator


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


def lock(pid: int) -> ObjectStoreLock:
    """The lock as the Java process ``pid`` would hold it, in a Python process of its own."""
    handle = SimpleNamespace(current=lambda: SimpleNamespace(pid=lambda: pid))
    thread = SimpleNamespace(currentThread=lambda: SimpleNamespace(getId=lambda: 1))
    lang = SimpleNamespace(ProcessHandle=handle, Thread=thread)
    found = ObjectStoreLock(TRIPS, "lake/trips", SimpleNamespace(java=SimpleNamespace(lang=lang)))
    found._lock_key = lambda: (pid, "lake/trips")  # type: ignore[method-assign]  # not the threads of one process
    return found


def silence(held: ObjectStoreLock) -> None:
    """Have the lock renewed no more, as by a process that was killed or stopped."""
    held._renewer.close()
    held._renewer = held._new_renewer()


def content(emulator: S3Server) -> dict[str, Any]:
    with emulator.filesystem().open_input_stream(f"lake/trips/{LOCK_FILE}") as stream:
        return dict(json.loads(stream.read()))


def test_the_second_process_is_refused_the_lock_on_s3_and_names_its_holder(emptied, process):
    ours, theirs = lock(process.pid), lock(1)
    ours.acquire("committing")
    with pytest.raises(
        Transient, match=rf"trips: process {process.pid} of host .* has been committing since .* while x"
    ):
        theirs.acquire("x")
    ours.assert_held("committing")
    ours.release()
    theirs.acquire("cleaning")
    theirs.assert_held("cleaning")
    theirs.release()
    assert content(emptied)["free"]


def test_one_of_many_concurrent_processes_gets_the_lock_on_s3(emptied, process):
    for _ in range(5):
        locks = [lock(process.pid) for _ in range(6)]
        for number, one in enumerate(locks):
            one._lock_key = lambda number=number: (number, "")
        (winner,) = winners(locks)
        winner.release()


def test_the_lock_of_a_dead_process_on_s3_is_taken_over_at_once_and_not_from_a_living_one(emptied, process):
    dead = lock(process.pid)
    dead.acquire("committing")
    silence(dead)
    with pytest.raises(Transient):
        lock(1).acquire("x")
    process.kill()
    process.wait()
    successor = lock(1)
    successor.acquire("cleaning")
    with pytest.raises(
        Transient, match=r"own lock on the table was lost while committing .*was taken over or replaced"
    ):
        dead.assert_held("committing")
    dead.release()
    successor.assert_held("cleaning")
    successor.release()


def test_a_lock_of_another_host_on_s3_is_taken_over_only_when_it_was_not_renewed_for_long(
    emptied, process, monkeypatch
):
    elsewhere, ours = lock(process.pid), lock(1)
    elsewhere.acquire("committing")
    process.kill()  # without any notice to other processes
    process.wait()
    elsewhere._owner_record["process"] = None
    elsewhere.assert_held("committing")
    monkeypatch.setattr(renewed, "TAKEOVER_TIMEOUT", timedelta(seconds=0.5))
    monkeypatch.setattr(base, "ACQUIRE_TIMEOUT", timedelta(seconds=1.2))
    monkeypatch.setattr(renewed, "RENEWAL_INTERVAL", timedelta(seconds=0.1))
    silence(elsewhere)
    elsewhere._renewer.start()
    with pytest.raises(Transient):
        ours.acquire("x")
    silence(elsewhere)
    ours.acquire("cleaning")
    ours.release()


def test_a_lock_that_could_not_be_given_back_on_s3_is_ours_to_take_again(emptied, process, monkeypatch):
    ours = lock(process.pid)
    ours.acquire("committing")
    monkeypatch.setattr(ours, "_compare_and_set", lambda *_: (_ for _ in ()).throw(Transient("no network")))
    ours.release()
    again = lock(process.pid)
    again.acquire("cleaning")
    again.release()


def test_a_lock_on_s3_is_kept_until_a_java_process_that_does_not_answer_was_killed(emptied, process, monkeypatch):
    monkeypatch.setattr(base, "_END_POLL_SECONDS", 0.01)
    ours, theirs = lock(process.pid), lock(1)
    ours.acquire("committing")

    def no_answer() -> Any:
        raise ConnectionResetError("Connection reset by peer")

    ours._jvm.java.lang.Thread.currentThread = no_answer
    ended = threading.Event()
    ours.run_when_idle(ended.set)
    ours.release()
    with pytest.raises(Transient, match=rf"process {process.pid} of host .* has been committing since"):
        theirs.acquire("x")
    with pytest.raises(Transient):
        ours.acquire("again")  # nor does another attempt of the same process
    assert not ended.is_set()
    process.kill()
    process.wait()
    assert ended.wait(30)
    monkeypatch.setattr(base, "ACQUIRE_TIMEOUT", timedelta(seconds=30))
    theirs.acquire("cleaning")
    theirs.release()


def test_a_write_whose_answer_was_lost_is_found_to_be_ours(emptied, process):
    ours = lock(process.pid)
    put = ours._store.put

    def lose(*arguments: Any, **options: Any) -> Any:
        put(*arguments, **options)
        return put(*arguments, **options)  # as the client does when no answer came

    ours._store = SimpleNamespace(put=lose, get=ours._store.get)
    ours.acquire("committing")
    ours.assert_held("committing")
    ours.release()


@pytest.mark.parametrize("ignored", ["create", "e_tag"])
def test_a_store_that_ignores_write_conditions_is_refused(emptied, process, ignored):
    ours = lock(process.pid)
    put = ours._store.put

    def careless(key: str, body: bytes, *, mode: Any) -> Any:
        kept = mode if (mode == "create") != (ignored == "create") else "overwrite"
        return put(key, body, mode=kept)

    ours._store = SimpleNamespace(put=careless, get=ours._store.get)
    with pytest.raises(
        Rejected, match=r"trips: the store of s3://lake writes although .* use a store with conditional"
    ):
        ours.acquire("committing")
    assert not ours.is_held
