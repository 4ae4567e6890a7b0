# SPDX-License-Identifier: Apache-2.0
"""lakefold's own lock on HDFS: a file a version, of which one process gets the next number."""

import json
import uuid
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hadoop import HadoopCluster
from hdfs_paths import place
from racing import winners
from support import SOAK

from lake.errors import Transient
from lake.formats.hudi.client.locks import base, renewed
from lake.formats.hudi.client.locks.base import LOCK_FILE
from lake.formats.hudi.client.locks.hdfs import HdfsLock
from lake.formats.hudi.files.storage import TableStorage
from lake.model import TableRef

pytestmark = pytest.mark.slow


@pytest.fixture
def table(hdfs: HadoopCluster, monkeypatch: pytest.MonkeyPatch) -> TableRef:
    monkeypatch.setattr(base, "ACQUIRE_TIMEOUT", timedelta(0))
    location = f"{hdfs.uri}/lake/{uuid.uuid4().hex}"
    place(f"{location}/.hoodie").mkdir(parents=True)
    return TableRef(name="trips", format="hudi", location=location)


def lock(table: TableRef, pid: int = 1) -> HdfsLock:
    """The lock as a Java process would hold it, in a Python process of its own."""
    handle = SimpleNamespace(current=lambda: SimpleNamespace(pid=lambda: pid))
    thread = SimpleNamespace(currentThread=lambda: SimpleNamespace(getId=lambda: 1))
    jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(ProcessHandle=handle, Thread=thread)))
    made = HdfsLock(table, TableStorage(table.location), jvm)
    made._lock_key = lambda: id(made)  # type: ignore[method-assign]  # not the threads of one process
    return made


def versions(table: TableRef) -> dict[str, Any]:
    found = place(f"{table.location}/{LOCK_FILE}").parent.iterdir()
    return {path.name: json.loads(path.read_bytes()) for path in found}


def test_concurrent_processes_get_the_lock_on_hdfs_one_after_the_other(table: TableRef):
    for _ in range(3 if SOAK else 2):
        locks = [lock(table) for _ in range(5)]
        (winner,) = winners(locks)
        winner.assert_held("racing")
        with pytest.raises(Transient, match=r"trips: process 1 of host .* has been racing since .* while cleaning"):
            lock(table).acquire("cleaning")
        winner.release()
    ((_, note),) = versions(table).items()
    assert note["free"]


def test_a_holder_suspended_while_others_had_the_lock_has_lost_it_though_its_next_number_is_free(
    table: TableRef, monkeypatch: pytest.MonkeyPatch
):
    asleep = lock(table)
    asleep.acquire("committing")
    asleep._owner_record["process"] = None
    asleep.assert_held("committing")
    asleep._renewer.close()
    asleep._renewer = asleep._new_renewer()
    monkeypatch.setattr(renewed, "TAKEOVER_TIMEOUT", timedelta())
    other = lock(table)
    with pytest.raises(Transient):
        other.acquire("looking for the first time")
    other.acquire("cleaning")
    for _ in range(3):
        other.assert_held("cleaning")
    (held,) = versions(table)
    with pytest.raises(
        Transient, match=r"own lock on the table was lost while committing .*was taken over or replaced"
    ):
        asleep.assert_held("committing")
    assert set(versions(table)) == {held}, "what the sleeper wrote is gone, and the holder's is not"
    other.assert_held("cleaning")
    other.release()


def test_a_rename_with_a_lost_answer_is_recognized_and_a_dropped_table_stays_dropped(table: TableRef):
    ours = lock(table)
    client = ours._client

    class Losing:
        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

        def rename(self, source: str, target: str) -> None:
            client.rename(source, target)
            raise FileExistsError(target)  # as the second try of a call finds it

        def delete(self, path: str) -> bool:
            return bool(client.delete(path))

    ours._client = Losing()  # type: ignore[assignment]
    ours.acquire("committing")
    ours._client = client
    ours.assert_held("committing")
    ours.release()
    assert client.delete(place(table.location).path.as_posix(), True)
    with pytest.raises(Transient, match=r"\.hoodie"):
        lock(table).acquire("cleaning")
    assert not place(table.location).exists()
