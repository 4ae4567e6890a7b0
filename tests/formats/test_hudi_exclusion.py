# SPDX-License-Identifier: Apache-2.0
"""No two processes of lakefold change one table at once, whatever the table's concurrency mode."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hudi_other_writer import OtherWriter
from hudi_writing import QUICK_LOCK, Table, delete, ignore, make_table
from waiting import suspend

from lake.errors import Conflict, Transient
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.client.locks import base
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.plans import clustering
from lake.formats.hudi.timeline.timeline import InstantState, Timeline

pytestmark = pytest.mark.spark
FIRST, SECOND = "dt=2026-01-01", "dt=2026-01-02"


def in_its_metadata(trips: Table) -> Callable[[], bool]:
    """Whether a clustering of ``trips`` has written its part of the metadata table and not completed it."""
    metadata = Path(trips.base) / ".hoodie/metadata"

    def reached() -> bool:
        ours = {instant.time for instant in trips.timeline().pending}
        theirs = {i.time for i in Timeline(TableStorage(str(metadata))).pending if i.state is InstantState.INFLIGHT}
        return any(list((metadata / "files").glob(f".*_{time}.log.*")) for time in ours & theirs)

    return reached


@pytest.mark.parametrize("options", [{}, QUICK_LOCK], ids=["single_writer", "occ"])
@pytest.mark.crossed
def test_a_clustering_stopped_in_its_commit_keeps_the_deletions_of_another_process_out(
    spark: Any,
    tmp_path: Path,
    other: OtherWriter,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
) -> None:
    trips = make_table(spark, tmp_path, "metadata", options)
    rows_before, other_rows_before = trips.rows(), trips.other_rows()
    commit = trips.run(trips.plan("0198-first", partitions=[FIRST]))
    other.run_plan(trips.base, "0198-second", [SECOND], options)
    other.stop_when(in_its_metadata(trips))
    monkeypatch.setattr(base, "ACQUIRE_TIMEOUT", timedelta(seconds=1))
    refused = None
    try:
        delete(trips, commit)
    except Transient as error:
        refused = error
    other.go_on()
    answer = other.answer()
    assert trips.rows() == rows_before
    assert trips.other_rows() == other_rows_before
    assert answer == "done"
    assert "committing" in str(refused)
    monkeypatch.undo()
    delete(trips, commit)
    assert not set(trips.data_files()) & {version.path for version in commit.superseded}
    assert trips.rows() == rows_before
    assert trips.other_rows() == other_rows_before


def test_a_deletion_that_takes_a_commit_of_another_process_for_a_dead_one_loses_no_row(
    spark: Any,
    tmp_path: Path,
    other: OtherWriter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hudi's metadata table has no second writer: who writes to it next rolls back what it finds begun there."""
    trips = make_table(spark, tmp_path, "metadata")
    rows_before, other_rows_before = trips.rows(), trips.other_rows()
    commit = trips.run(trips.plan("0198-first", partitions=[FIRST]))
    other.run_plan(trips.base, "0198-second", [SECOND], {})
    other.stop_when(in_its_metadata(trips))
    monkeypatch.setattr(base, "ACQUIRE_TIMEOUT", timedelta(seconds=1))
    with ThreadPoolExecutor() as pool, stoppable(jvm_pid(spark)) as stop:
        deletion = pool.submit(delete, trips, commit)
        # The other commit goes on while this process has looked at it and not yet done anything about it.
        while not (stopped := rolls_back_metadata(trips)) and not deletion.done():
            time.sleep(0.001)
        if stopped:
            stop()
        other.go_on()
        assert other.answer() == "done"
    refused = deletion.exception()
    assert trips.rows() == rows_before
    assert trips.other_rows() == other_rows_before
    assert isinstance(refused, Transient)
    monkeypatch.undo()
    delete(trips, commit)
    assert not set(trips.data_files()) & {version.path for version in commit.superseded}
    assert trips.rows() == rows_before
    assert trips.other_rows() == other_rows_before


def rolls_back_metadata(trips: Table) -> bool:
    """Return True if a rollback of a write to the metadata table has begun."""
    return any((Path(trips.base) / ".hoodie/metadata/.hoodie/timeline").glob("*.rollback.requested"))


@contextmanager
def stoppable(pid: int) -> Iterator[Callable[[], None]]:
    """A process that the block may stop; it goes on after the block."""
    try:
        yield lambda: suspend(pid)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_the_lock_of_a_process_killed_in_its_commit_is_free_at_once(
    spark: Any,
    tmp_path: Path,
    other: OtherWriter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trips = make_table(spark, tmp_path, "metadata")
    rows_before, other_rows_before = trips.rows(), trips.other_rows()
    commit = trips.run(trips.plan("0198-first", partitions=[FIRST]))
    other.run_plan(trips.base, "0198-second", [SECOND], {})
    other.stop_when(in_its_metadata(trips))
    client = HudiClient(trips.ref, spark)
    monkeypatch.setattr(base, "ACQUIRE_TIMEOUT", timedelta(seconds=1))
    with pytest.raises(Transient, match="a lakefold, has been committing since"), client.locked("testing"):
        pass
    other.kill()
    monkeypatch.setattr(base, "ACQUIRE_TIMEOUT", timedelta(minutes=1))
    begun = time.monotonic()
    with client.locked("testing"):
        assert time.monotonic() - begun < 60, "no process had to wait for it"
    client.close()
    delete(trips, commit)
    with trips.writer() as writer:
        assert writer.withdraw("0198-second", None) == 1
    trips.run(trips.plan("0198-third", partitions=[SECOND]))
    assert trips.rows() == rows_before
    assert trips.other_rows() == other_rows_before


def test_a_lock_file_that_was_replaced_under_its_holder_ends_the_section(spark: Any, tmp_path: Path) -> None:
    trips = make_table(spark, tmp_path)
    rows_before, plan = trips.rows(), trips.plan()
    lock = Path(trips.base) / base.LOCK_FILE
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        client = HudiClient(trips.ref, spark)
        with client.locked("testing"):
            client.assert_lock_held("testing")
            content = lock.read_bytes()
            lock.unlink()
            with pytest.raises(Transient, match=r"own lock on the table was lost while testing .*deleted or replaced"):
                client.assert_lock_held("testing")
            lock.write_bytes(content)
            with pytest.raises(Transient, match="own lock on the table was lost"):
                client.assert_lock_held("testing")
        client.close()
        writer.commit(rewrite)
    assert trips.rows() == rows_before


def test_two_threads_and_two_names_of_one_table_exclude_each_other_in_one_process(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "ACQUIRE_TIMEOUT", timedelta(seconds=1))
    trips = make_table(spark, tmp_path)
    (tmp_path / "alias").symlink_to(trips.base)
    holding, asked = threading.Event(), threading.Event()

    def hold() -> None:
        client = HudiClient(trips.ref, spark)
        with client.locked("holding"):
            holding.set()
            asked.wait(60)
        client.close()

    holder = threading.Thread(target=hold)
    holder.start()
    assert holding.wait(60)
    client = HudiClient(replace(trips.ref, location=str(tmp_path / "alias")), spark)
    with (
        pytest.raises(Transient, match=rf"process {jvm_pid(spark)} of host .* has been holding since"),
        client.locked("x"),
    ):
        pass
    # And looking did not give the holder's lock back: another process of the system still can't have it.
    assert subprocess.run([sys.executable, "-c", _TRY, str(lock_of(trips))], check=False).returncode == 1
    asked.set()
    holder.join()
    with client.locked("testing"):
        pass
    assert subprocess.run([sys.executable, "-c", _TRY, str(lock_of(trips))], check=False).returncode == 0
    client.close()


_TRY = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"


def lock_of(trips: Table) -> Path:
    return Path(trips.base) / base.LOCK_FILE


def jvm_pid(spark: Any) -> int:
    return int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())


def test_two_names_of_one_table_never_have_two_plans_on_one_file_group(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = make_table(spark, tmp_path)
    (tmp_path / "alias").symlink_to(trips.base)
    rows_before, other_rows_before = trips.rows(), trips.other_rows()
    both, look = threading.Barrier(2), clustering.read_live_slices

    def together(*arguments: Any) -> Any:
        found = look(*arguments)
        with suppress(threading.BrokenBarrierError):
            both.wait(5)
        return found

    monkeypatch.setattr(clustering, "read_live_slices", together)

    def prepare(name: str) -> str:
        table = Table(spark, tmp_path / name)
        with table.writer() as writer:
            try:
                return writer.prepare(table.plan(f"0198-{name}"), 1).instant
            except Conflict as error:
                return str(error)

    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(prepare, ["trips", "alias"]))
    assert trips.rows() == rows_before
    assert trips.other_rows() == other_rows_before
    assert sum("is in pending clustering" in answer for answer in answers) == 1
