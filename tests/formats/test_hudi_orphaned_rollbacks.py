# SPDX-License-Identifier: Apache-2.0
"""Which pending rollbacks the sweep finishes, and when it reads the archive for them; tables made by hand, no JVM."""

import io
from datetime import timedelta
from pathlib import Path

import fastavro
import pytest
from hudi_by_hand import T1, T2, T3, T4, T5, ByHand, without_java
from test_hudi_pending_actions import ROLLBACK

from lake.errors import Rejected
from lake.formats.hudi import FORMAT
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.pending import retries
from lake.formats.hudi.pending.late_files import record_commit, record_instant
from lake.formats.hudi.pending.rollbacks import find_orphaned_rollbacks_of_lakefold
from lake.formats.hudi.plans.rollback import finish_orphaned_rollbacks
from lake.formats.hudi.timeline.archive import ArchivedInstant
from lake.formats.hudi.timeline.timeline import Timeline

#: between ``T4`` and ``T5``
AFTER = "20260101000004500"


@pytest.fixture
def table(tmp_path: Path) -> ByHand:
    """A pending rollback of clustering ``T3``, which is not on the timeline."""
    made = ByHand(tmp_path / "t")
    made.complete(T1, "commit", made.base_file(T1))
    buffer = io.BytesIO()
    target = {"commitTime": T3, "action": "replacecommit"}
    requests = [{"partitionPath": "p", "filesToBeDeleted": []}]
    record = {"instantToRollback": target, "RollbackRequests": requests}
    fastavro.writer(buffer, fastavro.parse_schema(ROLLBACK), [record])
    (made.base / f".hoodie/{T4}.rollback.requested").write_bytes(buffer.getvalue())
    return made


def found(table: ByHand) -> list[str]:
    storage = TableStorage(str(table.base))
    return [left.target for left in find_orphaned_rollbacks_of_lakefold(storage, Timeline(storage))]


def recorded(table: ByHand, instant: str) -> TableStorage:
    storage = TableStorage(str(table.base))
    record_instant(storage, Timeline(storage), instant, ["p"])
    return storage


def try_is_due(table: ByHand) -> None:
    retries._tries[TableStorage(str(table.base)).location, T4].interval = timedelta()


@pytest.mark.parametrize("why", ["not lakefold's", "committed", "tried just now"])
def test_the_archive_is_not_read_for_a_rollback_that_the_sweep_does_not_finish_now(
    table: ByHand, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    reads = []
    monkeypatch.setattr(Timeline, "archived", lambda *_, **__: reads.append(1) or iter(()))
    if why != "not lakefold's":
        storage = recorded(table, T3)
        assert (found(table), len(reads)) == ([T3], 2)
        if why == "committed":
            record_commit(storage, T3)
        else:
            (left,) = find_orphaned_rollbacks_of_lakefold(storage, Timeline(storage))
            retries.record_failed_try(storage, left.instant.time)
    del reads[:]
    assert (found(table), reads) == ([], [])


def test_the_archive_of_an_obsolete_rollback_is_read_at_growing_intervals(
    table: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    rows = [ArchivedInstant(time=T3, completed_at=T3, action="replacecommit", plan=None, metadata=None)]
    monkeypatch.setattr(Timeline, "archived", lambda *_, **__: reads.append(1) or iter(rows))
    recorded(table, T3)
    assert (found(table), found(table), len(reads)) == ([], [], 1)
    try_is_due(table)
    assert (found(table), len(reads)) == ([], 2)


def test_a_damaged_archive_hides_no_late_files_and_its_rollbacks_are_tried_again(table: ByHand) -> None:
    recorded(table, T3)
    recorded(table, T2)
    table.complete(T2, "replacecommit", table.base_file(T2, "p/f-1"))
    table.base_file(T2, "p/f-2")
    archive = table.base / ".hoodie/archived"
    archive.mkdir()
    damaged = archive / ".commits_.archive.1_1-0-1"
    whole = b"#HUDI#" + (20).to_bytes(8, "big") + b"\1" * 12 + (26).to_bytes(8, "big")
    damaged.write_bytes(whole)
    assert FORMAT.instants_with_stragglers(table.ref) == [T2]
    damaged.unlink()
    assert found(table) == []
    try_is_due(table)
    assert found(table) == [T3]


@pytest.mark.parametrize("archive", ["lost", "newest file lost", "partly lost"])
def test_a_rollback_is_not_finished_if_the_archive_has_lost_its_target_whose_files_are_read(
    table: ByHand, monkeypatch: pytest.MonkeyPatch, archive: str
) -> None:
    recorded(table, T3)
    (table.base / f".hoodie/{T1}.commit").unlink()
    committed = table.base_file(T3, "p/f-3")
    table.complete(T5, "commit", table.base_file(T5, "p/f-5"))
    assert committed in {str(entry["path"]).rpartition("/")[2] for entry in table.slices()}, "it counts as archived"
    if archive == "lost":
        assert found(table) == []
        return
    kept = [T1] if archive == "newest file lost" else [T1, AFTER]
    rows = [ArchivedInstant(time=time, completed_at=time, action="commit", plan=None, metadata=None) for time in kept]
    monkeypatch.setattr(
        Timeline, "archived", lambda *_, times=kept, **__: iter(row for row in rows if row.time in times)
    )
    if archive == "newest file lost":
        assert found(table) == []
        return
    assert found(table) == [T3]
    with pytest.raises(Rejected, match=rf"rollback {T4} must not be finished: it would delete p/{committed}, which"):
        finish_orphaned_rollbacks(without_java(table))
    assert found(table) == [], "it is tried again later"
    assert (table.base / "p" / committed).exists()
