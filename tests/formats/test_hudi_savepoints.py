# SPDX-License-Identifier: Apache-2.0
"""Savepoints: what they keep is not deleted, and what readers miss since archiving went beyond one is left alone."""

import shutil
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import COMPACT_NOW, rows, write
from hudi_writing import ARCHIVING, FORMAT, SIX, NewTable, Table, delete, ignore, insert, make_table
from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import IllegalArgumentException

from lake.errors import Conflict, Transient
from lake.formats.hudi.plans import cleaning
from lake.plan import Plan

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("nothing_unseen")]
ARCHIVED = ARCHIVING | {"hoodie.clean.automatic": "true"}
RETAINING_TWO = {"hoodie.clean.policy": "KEEP_LATEST_COMMITS", "hoodie.clean.commits.retained": "2"}
MOR = {"hoodie.datasource.write.table.type": "MERGE_ON_READ"}
KINDS: Mapping[str, Mapping[str, str]] = {
    "cow of version 9": {},
    "mor of version 6": SIX | MOR,
    "mor of version 9": MOR,
    "cow of version 6": SIX,
}
ONE, TWO = "dt=2026-01-01", "dt=2026-01-02"
BEYOND = ARCHIVED | {"hoodie.archive.beyond.savepoint": "true"}


def save(trips: Table) -> str:
    """Save the newest commit; its time."""
    with trips.writer() as writer:
        writer._open().write_client.savepoint("owner", "before an upgrade")
    (time,) = trips.timeline().savepoints()
    return time


def release(trips: Table, time: str) -> None:
    with trips.writer() as writer:
        writer._open().write_client.deleteSavepoint(time)


def healthy(trips: Table) -> Plan:
    """A plan of all slices but the damaged ones, which the planner leaves alone."""
    damaged = {damage.file_id for damage in FORMAT.snapshot(trips.ref).damaged}
    plan = trips.plan()
    groups = (
        replace(group, slices=tuple(entry for entry in group.slices if entry.file_id not in damaged))
        for group in plan.groups
    )
    return replace(plan, groups=tuple(groups))


@pytest.mark.parametrize("kind", ["cow", "metadata"])
@pytest.mark.crossed(first="cow")
def test_commits_archived_after_a_savepoint_are_missed_by_readers_and_left_alone_and_nothing_kept_is_deleted(
    table: NewTable, kind: str
) -> None:
    trips = table(kind)
    saved = save(trips)
    kept = trips.timeline().savepoints()[saved]
    insert(trips, 6, **BEYOND)
    archived = {entry.time for entry in trips.timeline().archived(plans=False, metadata=False)}
    assert min(archived) < saved < max(archived), "the archiver has been at work on both sides"
    missed = 2 * len([time for time in archived if time > saved])
    assert len(trips.rows()) == 180 + 12 - missed, "Hudi's own reader"
    damaged = FORMAT.snapshot(trips.ref).damaged
    assert len(damaged) == missed, "each row is in a file of its own"
    assert all("archived after a commit that a savepoint keeps" in damage.text for damage in damaged)
    commit = trips.run(healthy(trips))
    assert {version.path for version in commit.superseded} & kept
    with pytest.raises(Conflict, match=f"kept by savepoint {saved}"):
        delete(trips, commit)
    assert kept <= set(trips.data_files())
    release(trips, saved)
    insert(trips, 4, start=2000, **ARCHIVED)
    assert len(trips.rows()) == 180 + 20, "all are back when the saved commit is archived as well"
    assert FORMAT.snapshot(trips.ref).damaged == ()
    delete(trips, commit)
    found = FORMAT.verify(trips.ref, commit.superseded, rows=True)
    assert (found.missing, found.resurrected, found.unowned, found.rows) == ((), (), (), 180 + 20)


@pytest.mark.parametrize("kind", ["cow", "mor", "six"])
def test_a_restore_that_rolls_a_rewrite_back_finds_the_files_that_the_rewrite_replaced(
    spark: Any, tmp_path: Path, kind: str
) -> None:
    trips = Table(spark, tmp_path / "trips", SIX) if kind == "six" else make_table(spark, tmp_path, kind)
    mor = kind == "mor"

    def put(low: int) -> None:
        frame = rows(spark, low, low + 2).coalesce(1)
        write(frame, trips.base, "bulk_insert", merge_on_read=mor, options=trips.options)

    if kind == "six":
        put(0)
        put(10)
    plan = trips.compaction() if mor else trips.plan()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        put(7000)
        commit = writer.commit(rewrite)
    before, saved = trips.rows(), save(trips)
    assert saved > commit.instant, "the newest commit by its time, which completed first"
    put(8000)
    options = trips.options | {
        "hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS",
        "hoodie.clean.fileversions.retained": "1",
    }
    with Table(spark, trips.base, options).writer() as writer:
        writer.maintain({"clean"}, ())
    with suppress(Conflict):
        delete(trips, commit)
    restore(trips, saved)
    undone = trips.timeline().find(commit.instant)
    assert kind != "cow" or (undone is not None and undone.pending), "Hudi leaves the request"
    assert trips.rows() == before
    assert FORMAT.verify(trips.ref, (), rows=False).missing == ()


def test_files_that_a_restore_needs_are_deleted_once_the_savepoint_is_gone(table: NewTable) -> None:
    trips = table()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(trips.plan(), 1), ignore)
        insert(trips, 1)
        commit = writer.commit(rewrite)
    saved = save(trips)
    insert(trips, 1, start=2000)
    with pytest.raises(Conflict, match=rf"needed by a restore to savepoint {saved}, which rolls {commit.instant} back"):
        delete(trips, commit)
    release(trips, saved)
    delete(trips, commit)
    assert not {version.path for version in commit.superseded} & set(trips.data_files())


@pytest.mark.parametrize("kind", ["cow", "mor"])
def test_a_commit_during_which_a_rewrite_ran_can_be_saved_and_restored_to_until_its_inputs_are_deleted(
    table: NewTable, kind: str
) -> None:
    trips = table(kind)
    plan = trips.compaction() if kind == "mor" else trips.plan()

    def put(low: int) -> None:
        frame = rows(trips.spark, low, low + 2).coalesce(1)
        write(frame, trips.base, "bulk_insert", merge_on_read=kind == "mor", options=trips.options)

    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        put(7000)
        commit = writer.commit(rewrite)
    newest = trips.timeline().newest_commit_time
    assert newest > commit.instant, "the newest commit by its time, which completed first"
    reason = rf"needed by a restore to a savepoint of {newest}, the newest commit, which rolls {commit.instant} back"
    with pytest.raises(Conflict, match=reason):
        delete(trips, commit)
    put(8000)
    before = trips.rows()
    delete(trips, commit)
    assert not try_to_save(trips, newest)
    saved = save(trips)
    put(9000)
    restore(trips, saved)
    assert trips.rows() == before


def put(trips: Table, low: int) -> None:
    """A commit of two rows in a file of its own."""
    write(rows(trips.spark, low, low + 2).coalesce(1), trips.base, "bulk_insert", options=trips.options)


def try_to_save(trips: Table, time: str) -> bool:
    """Save commit ``time``; False if Hudi refuses it because files of its state are cleaned."""
    refusal = None
    with trips.writer() as owner:
        java = owner._open().write_client
        try:
            java.savepoint(time, "owner", "before an upgrade")
        # PySpark gives the error a class of its own once a session has run a query.
        except (Py4JJavaError, IllegalArgumentException) as error:
            refusal = str(error)
    saved = time in trips.timeline().savepoints()
    assert saved == (refusal is None), refusal
    assert saved or f"Could not savepoint commit {time} as this is beyond the lookup window" in str(refusal)
    return saved


def restore(trips: Table, time: str) -> None:
    """Restore the table to its savepoint ``time``, as its owner does."""
    with trips.writer() as owner:
        # With the policy EAGER Hudi refuses to roll back commits that ended in another order than they began.
        java = owner._open().new_unlocked_client({"hoodie.clean.failed.writes.policy": "LAZY"})
        java.restoreToSavepoint(time)
        java.close()


@pytest.mark.parametrize(
    ("by_lakefold", "cleans", "saves"),
    [(0, "natively", True), (1, "natively", True), (2, "natively", False), (0, "as a service of lakefold's", False)],
)
@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
@pytest.mark.paired("options")
def test_only_the_tables_own_cleaner_lets_a_commit_be_saved_whose_restore_needs_files_that_it_deleted(
    spark: Any, tmp_path: Path, options: dict[str, str], by_lakefold: int, cleans: str, saves: bool
) -> None:
    """Two plans ran during one commit. The cleaner deletes the inputs of both, whether lakefold deleted some before.

    A clean by lakefold deletes them only when the policy retains only later commits; the cleaner deletes them while it
    retains that commit, and states the commit itself.
    """
    trips = Table(spark, tmp_path / "trips", RETAINING_TWO | options)
    for low in (0, 10):
        put(trips, low)
    with trips.writer() as one, trips.writer() as two:
        rewrites = [
            writer.rewrite(writer.prepare(trips.plan(name, partitions=[partition]), 1), ignore)
            for writer, name, partition in ((one, "0198-one", ONE), (two, "0198-two", TWO))
        ]
        put(trips, 7000)
        overlapped, before = trips.timeline().newest_commit_time, Counter(trips.rows())
        commits = [writer.commit(rewrite) for writer, rewrite in zip((one, two), rewrites, strict=True)]
    assert max(commit.instant for commit in commits) < overlapped
    put(trips, 8000)
    for commit in commits[:by_lakefold]:
        delete(trips, commit)
    with trips.writer() as cleaner:
        if cleans == "natively":
            java = cleaner._open().new_unlocked_client({})
            java.clean()
            java.close()
        else:
            cleaner.maintain({"clean"}, ())
            assert {version.path for commit in commits for version in commit.superseded} <= set(trips.data_files())
            put(trips, 9000)
            cleaner.maintain({"clean"}, ())
    assert not {version.path for commit in commits for version in commit.superseded} & set(trips.data_files())
    assert try_to_save(trips, overlapped) == saves
    if saves:
        restore(trips, overlapped)
        lost = before - Counter(trips.rows())
        assert Counter(trips.rows()) == before - lost
        assert lost.total() == 4, "the rows of both rewrites, which are only in the deleted files"


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
@pytest.mark.crossed(2)
def test_the_clean_policy_deletes_files_that_overlapping_commits_superseded_once_it_retains_only_later_commits(
    spark: Any, tmp_path: Path, options: dict[str, str]
) -> None:
    """A restore to the writer's commit needs the rewrite's inputs, so the clean waits and states an earlier instant."""
    trips = Table(spark, tmp_path / "trips", RETAINING_TWO | options)

    def upsert() -> None:
        """A commit that supersedes a file of the partition ``TWO``, with a compaction if the commit writes a log."""
        compacted = COMPACT_NOW | {"hoodie.compact.inline": str("MERGE_ON_READ" in options.values()).lower()}
        write(rows(spark, 101, 102), trips.base, "upsert", options=trips.options | compacted)

    def clean() -> set[str]:
        with trips.writer() as cleaner:
            cleaner.maintain({"clean"}, ())
        return set(trips.data_files())

    for low in (0, 10, 100):
        put(trips, low)
    first = set(trips.data_files())
    upsert()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(trips.plan(partitions=[ONE]), 1), ignore)
        upsert()
        overlapped, then = trips.timeline().newest_commit_time, Counter(trips.rows())
        commit = writer.commit(rewrite)
    assert commit.instant < overlapped
    inputs = {version.path for version in commit.superseded}
    put(trips, 8000)
    before, there = trips.rows(), clean()
    assert first - there, "what the first upsert superseded is deleted"
    assert inputs <= there
    assert try_to_save(trips, overlapped)
    restored = Table(spark, shutil.copytree(trips.base, tmp_path / "copy/trips"), trips.options)
    restore(restored, overlapped)
    assert Counter(restored.rows()) == then
    release(trips, overlapped)
    put(trips, 9000)
    there = clean()
    assert not inputs & there
    slices = FORMAT.snapshot(trips.ref).slices.to_pylist()
    live = {row["path"] for row in slices}
    live |= {f"{row['partition']}/{name}" for row in slices for name in row["log_files"]}
    assert there == live, "no superseded file stays"
    assert not try_to_save(trips, overlapped)
    assert len(trips.rows()) == len(before) + 2


def test_a_file_that_a_savepoint_named_while_a_clean_was_published_is_not_deleted(
    table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hudi's savepoint takes no lock: it has read the newest clean before, and lists files meanwhile."""
    trips = table()
    oldest = trips.timeline().commits[-1].time
    commit = trips.run(trips.plan())
    insert(trips, 1)
    before = trips.rows()
    look = cleaning.check_preconditions

    def saved_meanwhile(*arguments: Any, **more: Any) -> Any:
        found = look(*arguments, **more)
        if not trips.timeline().savepoints():
            with trips.writer() as owner:
                owner._open().write_client.savepoint(oldest, "owner", "before an upgrade")
        return found

    monkeypatch.setattr(cleaning, "check_preconditions", saved_meanwhile)
    with pytest.raises(Transient, match=f"savepoint {oldest} was begun while a clean was being published; nothing was"):
        delete(trips, commit)
    assert trips.timeline().savepoints()[oldest] <= set(trips.data_files())
    assert trips.timeline().pending == ()
    with pytest.raises(Conflict, match=f"kept by savepoint {oldest}"):
        delete(trips, commit)
    assert trips.rows() == before
