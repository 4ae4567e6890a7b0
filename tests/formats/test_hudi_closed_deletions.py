# SPDX-License-Identifier: Apache-2.0
"""Superseded files of replacements that were undone, of tables made anew, or that another cleaner deleted."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import copy, rows, write
from hudi_writing import ARCHIVING, FORMAT, NewTable, Table, ignore, insert

from lake.errors import Conflict
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.rewrite import execute
from lake.plan import Commit

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("nothing_unseen")]
UNDONE = "is not among the table's commits: rolled back, restored away, or of an earlier table at this location"


def undone(trips: Table, commit: Commit) -> bool:
    """Whether all that a commit superseded is closed because the table does not know the commit."""
    closed = FORMAT.obsolete_deletions(trips.ref, commit.superseded)
    reason = f"instant {commit.instant} that replaced it {UNDONE}"
    return closed == dict.fromkeys(range(len(commit.superseded)), reason)


def restore(trips: Table) -> None:
    (time,) = trips.timeline().savepoints()
    with trips.writer() as writer:
        writer._open().write_client.restoreToSavepoint(time)


def sweep(trips: Table) -> None:
    """Hudi takes a completed clustering back to requested; the sweep withdraws what ended plans left."""
    with trips.writer() as writer:
        assert writer.withdraw("0198-plan", None) == 1


def save(trips: Table) -> None:
    with trips.writer() as writer:
        writer._open().write_client.savepoint("owner", "before an upgrade")


@pytest.mark.parametrize("kind", ["cow", "metadata"])
@pytest.mark.crossed(first="cow")
def test_deletions_that_a_restore_undid_are_closed_and_verify_reports_no_resurrected_file(
    table: NewTable, kind: str
) -> None:
    trips = table(kind)
    before = trips.rows()
    save(trips)
    commit = trips.run(trips.plan())
    trips.upsert(0, 60, 3)
    restore(trips)
    assert trips.rows() == before
    found = FORMAT.verify(trips.ref, commit.superseded, rows=True)
    assert (found.missing, found.wrong_size, found.resurrected, found.unowned) == ((), (), (), ())
    assert found.rows == found.rows_expected == 180
    assert FORMAT.find_resurrected(trips.ref) == []
    assert undone(trips, commit)
    sweep(trips)
    again = trips.run(trips.plan("0198-again"))
    assert undone(trips, commit), "files that were replaced a second time wait for the second commit"
    assert FORMAT.obsolete_deletions(trips.ref, again.superseded) == {}
    assert trips.rows() == before


def test_rows_of_a_commit_that_was_rolled_back_are_closed_and_hold_no_archiving_back(table: NewTable) -> None:
    trips = table()
    commit = trips.run(trips.plan())
    with trips.writer() as writer:
        assert writer._open().write_client.rollback(commit.instant)
    sweep(trips)
    done = trips.run(trips.plan("0198-again", partitions=["dt=2026-01-01"]))
    insert(trips, 1)
    with trips.writer() as writer:
        writer.delete(done.superseded)
    insert(trips, 5, start=1002, **ARCHIVING | {"hoodie.clean.automatic": "true"})
    assert trips.timeline().find(done.instant) is None, "the archiver has been at work"
    assert len(trips.rows()) == 180 + 12
    assert undone(trips, commit)


def test_no_file_of_a_recreated_table_counts_as_an_old_one_of_the_same_name(table: NewTable, tmp_path: Path) -> None:
    trips = table()
    backup = copy(Path(trips.base), tmp_path / "backup")
    before = trips.rows()
    commit = trips.run(trips.plan())
    shutil.rmtree(trips.base)
    copy(backup, Path(trips.base))
    assert {version.path for version in commit.superseded} <= set(trips.data_files())
    assert FORMAT.verify(trips.ref, commit.superseded, rows=False).resurrected == ()
    assert None not in FORMAT.deletion_blockers(trips.ref, commit.superseded).values()
    assert undone(trips, commit)
    assert trips.rows() == before


def test_files_written_for_a_table_that_is_recreated_meanwhile_are_not_read_in_the_new_one(
    table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = table()
    base, force = Path(trips.base), execute._run_write
    plan = trips.plan()

    def as_on_an_object_store(client: HudiClient, java: Any) -> list[Any]:
        """A file is there when its task ends, whatever has become of the table since the task began."""
        stats = force(client, java)
        written = {path: (base / path).read_bytes() for path in trips.files_of(prepared.instant)}
        assert written
        shutil.rmtree(base)
        with ThreadPoolExecutor() as pool:  # a job of this thread's has the tag of ours, and is cancelled with it
            pool.submit(write, rows(trips.spark, 1000, 1010).coalesce(1), base).result()
        for path, content in written.items():
            (base / path).write_bytes(content)
        return stats

    monkeypatch.setattr(execute, "_run_write", as_on_an_object_store)
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        with pytest.raises(Conflict, match="the instant begun here is no longer pending"):
            writer.rewrite(prepared, ignore)
    assert len(trips.rows()) == 10
    assert trips.files_of(prepared.instant) == set()


def test_files_that_the_tables_own_cleaner_deleted_are_closed_as_gone(table: NewTable) -> None:
    trips = table()
    commit = trips.run(trips.plan())
    cleaning = {"hoodie.clean.automatic": "true", "hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS"}
    write(rows(trips.spark, 1000, 1002).coalesce(1), trips.base, "insert", options=cleaning)
    ((clean, _),) = trips.timeline().read_cleans()
    closed = FORMAT.obsolete_deletions(trips.ref, commit.superseded)
    assert set(closed) == set(range(len(commit.superseded)))
    assert set(closed.values()) == {f"deleted by the table's own clean {clean.time}"}
    assert len(trips.rows()) == 182
