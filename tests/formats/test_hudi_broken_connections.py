# SPDX-License-Identifier: Apache-2.0
"""Calls of the JVM that get no answer: the Java process may still commit, so that no lock may be given back."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hudi_writing import FORMAT, QUICK_LOCK, Table, delete, ignore, make_table
from s3_server import S3Server
from waiting import suspend, wait_for

from lake.errors import CommitUnknown
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.client.locks import base, table_lock
from lake.formats.hudi.client.locks.object_store import ObjectStoreLock
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.timeline.timeline import InstantState, Timeline

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Reset:
    """What is read from a connection that ends as it does where it is reset."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readline(self) -> bytes:
        line = bytes(self._stream.readline())
        if not line:
            raise ConnectionResetError("Connection reset by peer")
        return line

    def close(self) -> None:
        self._stream.close()


def connection_of_this_thread(spark: Any, *, resets: bool = False) -> socket.socket:
    """What py4j sends the calls of this thread over; py4j tells the end of a connection from its reset."""
    spark.sparkContext._jvm.java.lang.Thread.currentThread()
    connection = spark.sparkContext._gateway._gateway_client.get_thread_connection()
    if resets:
        connection.stream = Reset(connection.stream)
    assert isinstance(connection.socket, socket.socket)
    return connection.socket


def test_a_call_whose_connection_breaks_is_not_sent_a_second_time(spark: Any) -> None:
    jvm = spark.sparkContext._jvm
    calls = jvm.java.util.concurrent.LinkedBlockingQueue()
    connections: list[socket.socket] = []

    def call() -> None:
        connections.append(connection_of_this_thread(spark))
        calls.take()  # returns when there is something

    with ThreadPoolExecutor() as pool:
        called = pool.submit(call)
        wait_for(lambda: connections, "the connection")
        time.sleep(0.2)
        connections[0].shutdown(socket.SHUT_RDWR)
        with pytest.raises(Exception, match="An error occurred while calling"):
            called.result(60)
    calls.put("for the call")
    calls.put("for a second one")
    wait_for(lambda: calls.size() < 2, "the end of the call")
    assert calls.size() == 1


def in_its_metadata(trips: Table) -> Callable[[], bool]:
    """Whether a clustering of ``trips`` has written its part of the metadata table and not completed it."""
    metadata = Path(trips.base) / ".hoodie/metadata"

    def reached() -> bool:
        ours = {instant.time for instant in trips.timeline().pending}
        theirs = {i.time for i in Timeline(TableStorage(str(metadata))).pending if i.state is InstantState.INFLIGHT}
        return any(list((metadata / "files").glob(f".*_{time}.log.*")) for time in ours & theirs)

    return reached


_TRY = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"


def free_file(trips: Table) -> bool:
    """Whether another process gets the lock of a table on a file system."""
    lock = Path(trips.base) / base.LOCK_FILE
    tried = subprocess.run([sys.executable, "-c", _TRY, str(lock)], check=False, stderr=subprocess.DEVNULL)
    return tried.returncode == 0


@pytest.mark.parametrize(
    ("where", "options", "resets"),
    [("file", QUICK_LOCK, True), ("object", QUICK_LOCK, False), ("object", {}, True)],
    ids=["file-occ-reset", "object-occ-ended", "object-single_writer-reset"],
)
def test_no_lock_is_released_while_a_commit_whose_connection_broke_continues(
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    where: str,
    resets: bool,
    bucket: str,
    s3_server: S3Server,
) -> None:
    if where == "object":
        s3_server.tell(spark)
        monkeypatch.setattr(
            table_lock, "lakefold_lock_of", lambda table, storage, jvm: ObjectStoreLock(table, f"{bucket}/trips", jvm)
        )
    trips = make_table(spark, tmp_path, "metadata", options)
    rows, other_rows = trips.rows(), trips.other_rows()
    plan = trips.plan()
    pid = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    connections: list[socket.socket] = []

    def commit() -> str:
        with trips.writer() as writer:
            rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
            connections.append(connection_of_this_thread(spark, resets=resets))
            try:
                return writer.commit(rewrite).instant
            except CommitUnknown as error:
                return str(error)

    def is_free() -> bool:
        if where == "file":
            return free_file(trips)
        found = ObjectStoreLock(trips.ref, f"{bucket}/trips", None)._read_version()
        return found is None or b'"free"' in found[1]

    with ThreadPoolExecutor() as pool:
        committed = pool.submit(commit)
        reached = in_its_metadata(trips)
        while not (connections and reached()):
            assert not committed.done(), committed.result()
        try:
            suspend(pid)
            assert FORMAT.find_commit(trips.ref, plan.plan_id) is None, "it was stopped in its commit"
            connections[0].shutdown(socket.SHUT_RDWR)
            time.sleep(1)  # the time in which a lock would be released
            assert not is_free()
            lock = Path(trips.base) / ".hoodie/lock"
            assert lock.exists() == bool(options)
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_for(is_free, "the lock", 120, every=0.002)
        assert FORMAT.find_commit(trips.ref, plan.plan_id) is not None, "no lock is free before the commit has ended"
        committed.result(120)
    client = HudiClient(trips.ref, spark)
    monkeypatch.setattr(base, "ACQUIRE_TIMEOUT", timedelta(seconds=1))
    with client.locked("testing"):
        pass
    client.close()
    commit_of = FORMAT.find_commit(trips.ref, plan.plan_id)
    assert commit_of is not None
    assert (trips.rows(), trips.other_rows()) == (rows, other_rows)
    delete(trips, commit_of)
    assert (trips.rows(), trips.other_rows()) == (rows, other_rows)
