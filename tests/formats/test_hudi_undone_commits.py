# SPDX-License-Identifier: Apache-2.0
"""Commits of lakefold's that a writer took back after they had completed, or whose files are gone; no JVM."""

import io
import json
import os
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pytest
from databases import sqlite_at
from hudi_by_hand import T1, T2, T3, T4, T5, ByHand
from pyspark.sql import SparkSession
from test_hudi_attempts import stamp
from test_hudi_pending_actions import ROLLBACK

from executors.context import RunContext
from executors.sweep import sweep_table
from executors.unrecorded_commits import record_unrecorded_commits
from lake.errors import CommitLost, Rejected, Transient
from lake.formats.hudi import FORMAT
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.read import undone_commits
from lake.formats.hudi.read.unsafe_commits import describe_unrestored_rewrites
from lake.formats.hudi.timeline.timeline import Timeline
from lake.model import Concurrency, FileSlice
from lake.plan import ClusteringGroup, Plan, PlanKind, PlanState, RewriteOptions, SupersededVersion
from service.control.store import Store

PLAN, OTHER_PLAN = "0198-plan", "0199-plan"


class Compacted(ByHand):
    """A slice whose compaction at ``T3``, a plan of lakefold's, has completed before ``T4``."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.replaced, log = self.base_file(T1), self.log_file(T1, 1)
        self.complete(T1, "commit", self.replaced)
        self.complete(T2, "deltacommit", log)
        self.request_compaction(T3, self.replaced, [log])
        stamp(self.base / f".hoodie/{T3}.compaction.requested", PLAN)
        self.output = self.base_file(T3)
        self.complete(T3, "commit", self.output)
        completed_at = datetime(2026, 1, 1, 0, 0, 3, 500_000, UTC).timestamp()
        os.utime(self.base / f".hoodie/{T3}.commit", (completed_at, completed_at))

    def roll_back(self, time: str, action: str, *, ends: bool) -> None:
        """A rollback of the compaction, which it takes for an instant of ``action``."""
        buffer = io.BytesIO()
        record = {"instantToRollback": {"commitTime": T3, "action": action}}
        fastavro.writer(buffer, fastavro.parse_schema(ROLLBACK), [record])
        (self.base / f".hoodie/{time}.rollback.requested").write_bytes(buffer.getvalue())
        if ends:
            (self.base / f".hoodie/{time}.rollback").write_text("{}")

    def blocker(self) -> str | None:
        """Why the replaced file can't be deleted."""
        path = f"p/{self.replaced}"
        version = SupersededVersion(partition="p", path=path, bytes=1, instant=T3)
        return FORMAT.deletion_blockers(self.ref, [version])[path]

    def check_sound(self) -> None:
        commit = FORMAT.find_commit(self.ref, PLAN)
        assert commit is not None
        assert FORMAT.recent_commits(self.ref, {PLAN}) == {PLAN: commit}
        assert self.blocker() is None
        assert list(undone_commits.describe_undone_rewrites(*self.seen())) == []

    def check_lost(self, why: str) -> None:
        remedy = rf".*Do not roll it back: .* delete the file \S*\.hoodie/{T3}\.commit and.*CALL run_compaction\("
        with pytest.raises(CommitLost, match=f"^plan {PLAN} of t: .*{why}{remedy}") as lost:
            FORMAT.find_commit(self.ref, PLAN)
        assert lost.value.plan_id == PLAN
        with pytest.raises(CommitLost, match=f"^plan {PLAN} of t: .*{why}{remedy}") as lost:
            FORMAT.recent_commits(self.ref, {PLAN})
        assert lost.value.plan_id == PLAN
        assert why in str(self.blocker())

    def seen(self) -> tuple[TableStorage, Timeline]:
        storage = TableStorage(str(self.base))
        return storage, Timeline(storage)


def add_ended_plan(store: Store, table: ByHand, plan_id: str, path: str) -> None:
    slice_ = FileSlice(partition="p", file_id=path.partition("_")[0], path=f"p/{path}", bytes=1)
    plan = Plan(
        plan_id=plan_id,
        table=table.ref,
        kind=PlanKind.COMPACTION,
        groups=(ClusteringGroup(partition="p", slices=(slice_,), output_files=1),),
        options=RewriteOptions(target_file_max_bytes=1 << 30),
        snapshot_instant="",
    )
    store.add_plan(plan, request_id=None, actor="scheduler", estimate={})
    claim = store.claim("executor")
    assert claim is not None
    store.cancel(claim, "a test", actor="executor")


@pytest.fixture
def table(tmp_path: Path) -> Compacted:
    return Compacted(tmp_path / "t")


def test_a_commit_with_all_its_files_is_sound_and_the_history_is_not_read(
    table: Compacted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undone_commits, "active_history", None)
    table.check_sound()


def test_a_commit_without_its_file_is_lost_and_the_files_that_it_replaced_stay(table: Compacted) -> None:
    (table.base / "p" / table.output).unlink()
    table.check_lost(
        f"compaction {T3} has completed, but its file p/{table.output} is gone: no clean and no later commit"
    )


def test_a_file_that_a_later_commit_superseded_may_be_gone(table: Compacted) -> None:
    (table.base / "p" / table.output).unlink()
    table.complete(T4, "commit", table.base_file(T4))
    table.check_sound()


def test_a_file_whose_group_a_later_commit_replaced_may_be_gone(table: Compacted) -> None:
    (table.base / "p" / table.output).unlink()
    new = table.base_file(T5, "p/f-1")
    table.complete(T5, "replacecommit", new)
    file = table.base / f".hoodie/{T5}.replacecommit"
    file.write_text(file.read_text().replace("{", '{"partitionToReplaceFileIds": {"p": ["f-0"]}, ', 1))
    table.check_sound()


def test_a_writers_rollback_that_deleted_the_files_of_a_completed_commit_is_named(table: Compacted) -> None:
    (table.base / "p" / table.output).unlink()
    table.roll_back(T4, "compaction", ends=True)
    table.check_lost(f"is gone: rollback {T4} of a writer that took it for begun work deleted its files")
    with pytest.raises(Rejected, match=f"compaction {T3} has completed, but its file"):
        FORMAT.check(table.ref)


def test_a_pending_rollback_of_a_writer_that_took_a_completed_commit_for_begun_work_is_named(table: Compacted) -> None:
    table.roll_back(T4, "compaction", ends=False)
    table.check_lost(f"rollback {T4} of a writer that took it for begun work is pending")
    with pytest.raises(Rejected, match=f"rollback {T4} of a writer"):
        FORMAT.check(table.ref)


def test_a_pending_rollback_by_the_tables_owner_is_waited_for(table: Compacted) -> None:
    table.roll_back(T4, "commit", ends=False)
    with pytest.raises(Transient, match=f"rollback {T4} of the completed compaction {T3} is pending"):
        FORMAT.find_commit(table.ref, PLAN)
    assert list(undone_commits.describe_undone_rewrites(*table.seen())) == []


def test_the_rollback_of_an_earlier_attempt_at_the_instant_counts_for_nothing(table: Compacted) -> None:
    table.roll_back("20260101000003200", "compaction", ends=True)
    table.check_sound()


def test_a_rollback_that_deleted_nothing_counts_for_nothing(table: Compacted) -> None:
    table.roll_back(T4, "compaction", ends=True)
    table.check_sound()


def test_the_commit_of_another_plan_that_had_ended_is_recorded_where_one_is_lost(
    table: Compacted, tmp_path: Path
) -> None:
    """No commit was recorded as long as the lost one was on the timeline."""
    replaced, log = table.base_file(T1, "p/f-1"), table.log_file(T4, 1, "p/f-1")
    table.complete(T4, "deltacommit", replaced, log)
    table.request_compaction(T5, replaced, [log], "p/f-1")
    stamp(table.base / f".hoodie/{T5}.compaction.requested", OTHER_PLAN)
    table.complete(T5, "commit", table.base_file(T5, "p/f-1"))
    (table.base / "p" / table.output).unlink()
    store = Store(sqlite_at(tmp_path))
    store.register_table(table.ref, "compact")
    for plan_id, path in ((PLAN, table.replaced), (OTHER_PLAN, replaced)):
        add_ended_plan(store, table, plan_id, path)
    assert record_unrecorded_commits(table.ref, format=FORMAT, store=store) == 1
    assert [store.plan_state(plan_id) for plan_id in (PLAN, OTHER_PLAN)] == [PlanState.CANCELLED, PlanState.COMPLETED]
    assert f"plan {PLAN} of t: compaction {T3} has completed, but its file" in str(store.table_state("t").halted_reason)
    store.close()


@pytest.mark.parametrize(
    ("rollback", "concurrency", "waits"),
    [
        ("running", Concurrency.SINGLE_WRITER, True),
        ("running", Concurrency.OCC, True),
        ("running with a heartbeat", Concurrency.OCC, True),
        ("with an expired heartbeat", Concurrency.OCC, False),
        ("with an expired heartbeat", Concurrency.SINGLE_WRITER, True),
        ("with an expired heartbeat, begun long ago", Concurrency.SINGLE_WRITER, True),
        ("resumed long after its heartbeat", Concurrency.SINGLE_WRITER, True),
        ("died long ago", Concurrency.SINGLE_WRITER, False),
        ("ended", Concurrency.SINGLE_WRITER, False),
        ("of the pending plan", Concurrency.SINGLE_WRITER, False),
    ],
)
def test_a_halted_tables_sweep_leaves_an_instant_that_its_owner_may_be_rolling_back(
    table: Compacted, tmp_path: Path, rollback: str, concurrency: Concurrency, waits: bool
) -> None:
    """Hudi removes the commit from the timeline first, and deletes the files without the table's lock.

    A rollback that the plan says is of the pending compaction is lakefold's own: an owner rolls a commit back. A single
    writer that resumes a rollback renews no heartbeat that an earlier process has left.
    """
    ref = replace(table.ref, concurrency=concurrency)
    table.roll_back(T4, "compaction" if rollback == "of the pending plan" else "commit", ends=rollback == "ended")
    (table.base / f".hoodie/{T3}.commit").unlink()
    if "long" in rollback:
        os.utime(table.base / f".hoodie/{T4}.rollback.requested", (1e9, 1e9))
    if "resumed" in rollback:
        (table.base / f".hoodie/{T4}.rollback.inflight").touch()
    if "heartbeat" in rollback:
        heartbeat = table.base / ".hoodie/.heartbeat" / T4
        heartbeat.parent.mkdir()
        heartbeat.touch()
        age = 0 if "running" in rollback else 3600 if "resumed" in rollback else 300
        os.utime(heartbeat, (time.time() - age,) * 2)
    store = Store(sqlite_at(tmp_path))
    store.register_table(ref, "compact")
    add_ended_plan(store, table, PLAN, table.replaced)
    opened = []

    def spark() -> SparkSession:
        opened.append(1)
        raise Transient("the table is opened")

    context = RunContext(store=store, spark=spark)
    if waits:
        assert sweep_table(ref, context, format=FORMAT, halted=True) == 0
    else:
        with pytest.raises(Transient, match="the table is opened"):
            sweep_table(ref, context, format=FORMAT, halted=True)
    assert len(opened) == (not waits)
    store.close()


def test_the_timeline_is_listed_once_more_for_all_commits_of_which_a_file_is_gone(
    table: Compacted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was listed once for each of them, in every clean."""
    listed: list[TableStorage] = []

    class Counted(Timeline):
        def __init__(self, storage: TableStorage, *arguments: Any) -> None:
            listed.append(storage)
            super().__init__(storage, *arguments)

    (table.base / "p" / table.output).unlink()
    table.complete(T4, "commit", first := table.base_file(T4))
    (table.base / "p" / first).unlink()
    table.complete(T5, "commit", last := table.base_file(T5))
    storage, timeline = table.seen()
    monkeypatch.setattr(undone_commits, "Timeline", Counted)
    assert undone_commits.find_undone_commits(storage, timeline, frozenset({T3, T4, T5})) == {}
    assert len(listed) == 1
    (table.base / "p" / last).unlink()
    undone = undone_commits.find_undone_commits(storage, timeline, frozenset({T3, T4, T5}))
    assert (list(undone), f"p/{last} is gone" in undone[T5], len(listed)) == ([T5], True, 2)


def test_a_missing_file_keeps_the_replaced_files_of_its_commit_in_all_partitions(table: Compacted) -> None:
    """The remedy rolls the whole commit back: the rows of all its partitions are then in the replaced files only."""
    other = table.base_file(T3, "q/f-1")
    file = table.base / f".hoodie/{T3}.commit"
    record, completed = json.loads(file.read_text()), file.stat().st_mtime
    size = (table.base / "q" / other).stat().st_size
    record["partitionToWriteStats"]["q"] = [{"fileId": "f-1", "path": f"q/{other}", "fileSizeInBytes": size}]
    file.write_text(json.dumps(record))
    os.utime(file, (completed, completed))
    replaced = table.base_file(T1, "q/f-1")
    versions = [
        SupersededVersion(partition="p", path=f"p/{table.replaced}", bytes=1, instant=T3),
        SupersededVersion(partition="q", path=f"q/{replaced}", bytes=1, instant=T3),
    ]
    assert set(FORMAT.deletion_blockers(table.ref, versions).values()) == {None}
    (table.base / "p" / table.output).unlink()
    reasons = set(FORMAT.deletion_blockers(table.ref, versions).values())
    assert len(reasons) == 1
    assert f"its file p/{table.output} is gone" in str(reasons)


def write_plan(table: ByHand, name: str, record: dict[str, Any], *fields: dict[str, Any]) -> None:
    buffer = io.BytesIO()
    schema = {"type": "record", "name": "plan", "fields": list(fields)}
    fastavro.writer(buffer, fastavro.parse_schema(schema), [record])
    (table.base / ".hoodie" / name).write_bytes(buffer.getvalue())


def restore_to(table: ByHand, saved: str) -> None:
    """A completed restore at ``T5`` to a savepoint of ``saved``."""
    field = {"name": "savepointToRestoreTimestamp", "type": "string"}
    write_plan(table, f"{T5}.restore.requested", {"savepointToRestoreTimestamp": saved}, field)
    (table.base / f".hoodie/{T5}.restore").write_text("{}")


@pytest.mark.parametrize("saved", [T2, T4])
def test_the_times_of_a_copied_tables_files_do_not_show_that_a_restore_left_a_compaction(
    table: Compacted, saved: str
) -> None:
    table.complete(T4, "deltacommit", table.log_file(T3, 1))
    os.utime(table.base / f".hoodie/{T3}.commit", (time.time() + 60,) * 2)  # copied last
    restore_to(table, saved)
    left = list(describe_unrestored_rewrites(table.seen()[1]))
    assert len(left) == (saved == T2), left
