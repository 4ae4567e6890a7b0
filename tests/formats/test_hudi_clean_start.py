# SPDX-License-Identifier: Apache-2.0
"""What a clean of ours says to Hudi's archiver and to the table's own cleaner, seen by what the two then do."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import copy, rows, small_files, write
from hudi_writing import ARCHIVING, COMPACTED, FORMAT, QUICK_LOCK, SIX, NewTable, Table, delete, ignore, insert
from kept_tables import kept

from lake.errors import Transient
from lake.formats.hudi.files.names import parse_file_name
from lake.formats.hudi.plans import clean_bounds, cleaning
from lake.formats.hudi.plans.clean_bounds import find_passing_clean
from lake.formats.hudi.writer import HudiWriter
from lake.plan import Commit

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("nothing_unseen")]
ONE, TWO = "dt=2026-01-01", "dt=2026-01-02"


@contextmanager
def pending_clustering(trips: Table, partition: str) -> Iterator[list[Commit]]:
    """A clustering of ``partition`` that is written when the block begins and committed after it, into the list."""
    done: list[Commit] = []
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(trips.plan("0198-pending", partitions=[partition]), 1), ignore)
        yield done
        done.append(writer.commit(rewrite))


def maintain(trips: Table, *services: str) -> list[str]:
    with trips.writer() as writer:
        return list(writer.maintain(services, ()))


def same_for_both(trips: Table) -> list[tuple[object, ...]]:
    """The rows, which Spark and hudi-rs agree on, each once."""
    found = trips.rows()
    assert sum(trips.other_rows()[1].values()) == len(found)
    assert len({row[2] for row in found}) == len(found), "no key twice"
    return found


def six(spark: Any, tmp_path: Path, **options: str) -> Table:
    """What the template ``cow`` is, of table version 6."""

    def build(base: Path) -> None:
        small_files(spark, base, commits=3, rows_each=60, options=SIX)

    return Table(spark, copy(kept("cow of version 6", "trips", build, __file__), tmp_path / "trips"), SIX | options)


@pytest.mark.parametrize("kind", ["cow", "metadata", "version 6"])
@pytest.mark.crossed(first="cow")
def test_a_clean_published_while_a_clustering_is_pending_keeps_its_inputs_out_of_the_archive(
    table: NewTable, spark: Any, tmp_path: Path, kind: str
) -> None:
    if kind == "version 6":
        trips = six(spark, tmp_path, **{"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"})
    else:
        trips = table(kind, **COMPACTED)
    first = trips.run(trips.plan("0198-first", partitions=[ONE]))
    with pending_clustering(trips, TWO) as done:
        insert(trips, 1)  # the archiver keeps a commit as long as it is the newest one that a clean says can be read
        delete(trips, first)
    (second,) = done
    insert(trips, 5, start=1002, **ARCHIVING)
    assert trips.timeline().find(first.instant) is None, "the archiver has been at work"
    assert trips.timeline().find(second.instant) is not None, "its replaced files exist"
    assert len(same_for_both(trips)) == 180 + 12
    delete(trips, second)
    insert(trips, 3, start=2000, **ARCHIVING)
    assert trips.timeline().find(second.instant) is None, "nothing holds it back any more"
    assert len(same_for_both(trips)) == 180 + 18


@pytest.mark.shown_by(
    "tests/formats/test_hudi_clean_start.py::test_a_clean_published_while_a_clustering_is_pending_keeps_its_inputs_out_of_the_archive"
)
def test_on_version_6_archiving_continues_as_soon_as_replaced_files_are_deleted(spark: Any, tmp_path: Path) -> None:
    trips = six(spark, tmp_path, **{"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "6"})
    first, second = (trips.run(trips.plan(f"0198-{name}", partitions=[name])) for name in (ONE, TWO))
    delete(trips, first)
    insert(trips, 6, **ARCHIVING)
    assert trips.timeline().find(first.instant) is None, "the archiver has been at work"
    assert trips.timeline().find(second.instant) is not None, "its replaced files exist"
    delete(trips, second)
    insert(trips, 3, start=2000, **ARCHIVING)
    assert [trips.timeline().find(commit.instant) for commit in (first, second)] == [None, None]
    assert len(same_for_both(trips)) == 180 + 18


@pytest.mark.shown_by(
    "tests/formats/test_hudi_clean_start.py::"
    "test_a_clean_published_while_a_clustering_is_pending_keeps_its_inputs_out_of_the_archive"
)
def test_the_tables_own_clean_service_by_file_versions_keeps_a_pending_clusterings_inputs_too(
    table: NewTable,
) -> None:
    trips = table(**{"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS"})
    first = trips.run(trips.plan("0198-first", partitions=[ONE]))
    with pending_clustering(trips, TWO) as done:
        insert(trips, 1)
        (line,) = maintain(trips, "clean")
        assert line == f"the table's clean policy deleted {len(first.superseded)} files"
    insert(trips, 5, start=1002, **ARCHIVING)
    assert trips.timeline().find(first.instant) is None, "the archiver has been at work"
    assert trips.timeline().find(done[0].instant) is not None, "its replaced files exist"
    assert len(same_for_both(trips)) == 180 + 12


def test_a_clustering_that_a_writers_own_clean_has_passed_is_held_back_all_the_same(table: NewTable) -> None:
    trips = table()
    trips.upsert(0, 60, 1)
    cleaning = {
        "hoodie.clean.automatic": "true",
        "hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS",
        "hoodie.clean.fileversions.retained": "1",
    }
    with pending_clustering(trips, TWO) as done:
        insert(trips, 1, **cleaning)
        assert any(instant.action == "clean" for instant in trips.timeline().completed)
    insert(trips, 6, start=2000, **ARCHIVING)
    assert trips.timeline().find(done[0].instant) is not None, "its replaced files exist"
    assert len(same_for_both(trips)) == 180 + 14
    assert FORMAT.find_commit(trips.ref, "0198-pending") == done[0]


def plan_clean(writer: HudiWriter) -> Any:
    """A client of another process that has planned a clean by file versions."""
    client = writer._open()
    by_versions = {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": "1"}
    cleaner = client.new_unlocked_client(by_versions)
    kind = client.jvm.org.apache.hudi.common.model.TableServiceType.CLEAN
    assert cleaner.scheduleTableService(client.empty_option, kind).isPresent()
    return cleaner


def test_a_clustering_commits_after_a_clean_of_a_writer_that_is_running_and_is_held_back(
    table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = table()
    trips.upsert(0, 60, 1)
    planned: list[Any] = []

    def look(*arguments: Any) -> Any:
        found = find_passing_clean(*arguments)
        if found is not None:
            planned.pop().clean(False)  # it ends while the commit waits
        return found

    with trips.writer() as other, pending_clustering(trips, TWO) as done:
        planned.append(plan_clean(other))
        monkeypatch.setattr(cleaning, "find_passing_clean", look)
    assert planned == []
    assert [instant.action for instant in trips.timeline().completed].count("clean") == 2
    insert(trips, 6, start=2000, **ARCHIVING)
    assert trips.timeline().find(done[0].instant) is not None, "its replaced files exist"
    assert len(same_for_both(trips)) == 180 + 12
    assert FORMAT.find_commit(trips.ref, "0198-pending") == done[0]


def test_a_clean_that_does_not_end_refuses_the_commit_and_not_the_next_attempt(
    table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = table()
    trips.upsert(0, 60, 1)
    plan = trips.plan("0198-pending", partitions=[TWO])
    monkeypatch.setattr(cleaning, "PASSING_CLEAN_TIMEOUT", timedelta(seconds=1))
    with trips.writer() as other, trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        cleaner = plan_clean(other)
        with pytest.raises(Transient, match=r"the pending clean \d+ counts files as deleted"):
            writer.commit(rewrite)
        assert writer.withdraw(plan.plan_id, None) == 1
        commit = writer.commit(writer.rewrite(writer.prepare(plan, 2), ignore))
        cleaner.clean(False)
    insert(trips, 6, start=2000, **ARCHIVING)
    assert trips.timeline().find(commit.instant) is not None, "its replaced files exist"
    assert len(same_for_both(trips)) == 180 + 12


def test_a_clustering_that_committed_between_the_plan_of_a_clean_and_its_publication_is_held_back(
    table: NewTable,
) -> None:
    """Hudi computes the plan of a clean without the lock, and not visibly."""
    trips = table(**QUICK_LOCK)
    trips.upsert(0, 60, 1)
    with trips.writer() as other:
        client = other._open()
        by_versions = {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": "1"}
        cleaner = client.new_unlocked_client(by_versions)
        java = client.jvm.org.apache.hudi.table.HoodieSparkTable.create(cleaner.getConfig(), client.context)
        plan = java.createCleanerPlan(client.context, client.empty_option)
        assert plan.isPresent()
        commit = trips.run(trips.plan("0198-meanwhile", partitions=[TWO]))
        requested = client.meta.getInstantGenerator().getCleanRequestedInstant(client.new_instant())
        client.meta.getActiveTimeline().saveToCleanRequested(requested, plan)
        cleaner.clean(False)
        cleaner.close()
    assert FORMAT.instants_with_stragglers(trips.ref) == [commit.instant]
    with trips.writer() as sweep:
        assert sweep.remove_straggler_files([commit.instant]) == []
    assert FORMAT.instants_with_stragglers(trips.ref) == []
    insert(trips, 6, start=2000, **ARCHIVING)
    assert trips.timeline().find(commit.instant) is not None, "its replaced files exist"
    assert len(same_for_both(trips)) == 180 + 12
    delete(trips, commit)


# -- the table's own cleaner ---------------------------------------------------------------------------------------


THREE = "dt=2026-01-03"
#: by the fifth nothing is left in the other partition that the cleaner would clean
COMMITS = 7


def stale(trips: Table) -> Counter[tuple[str, int]]:
    """Base files that are no longer the newest of their group: partition, and which upsert from the end wrote them."""
    live = set(FORMAT.snapshot(trips.ref).slices["path"].to_pylist())
    upserts = [i.time for i in trips.timeline().commits if i.action == "commit"][::-1]
    files = [file for path in trips.data_files() if path not in live and (file := parse_file_name(path)) is not None]
    return Counter((file.partition, upserts.index(file.instant)) for file in files if file.instant in upserts)


def written(spark: Any, base: Path, policy: str, *, compacting: bool) -> Table:
    """A table whose writer cleans after each commit, with lakefold at work on other partitions or without it."""

    def build(base: Path) -> None:
        small_files(spark, base, commits=2, rows_each=30, partitions=3)
        for version in (1, 2):
            upsert(base, TWO, version)

    def upsert(base: Path, partition: str, version: int, **options: str) -> None:
        frame = rows(spark, 0, 60, version=version, partitions=3).where(f"dt = '{partition[3:]}'").coalesce(1)
        write(frame, base, "upsert", options=options)

    trips = Table(
        spark,
        copy(kept("clean start", "trips", build, __file__), base),
        {
            "hoodie.clean.policy": policy,
            "hoodie.clean.commits.retained": "3",
            "hoodie.clean.fileversions.retained": "2",
            "hoodie.keep.min.commits": "40",
            "hoodie.keep.max.commits": "50",
        },
    )
    if compacting:
        older = trips.run(trips.plan("0198-older", partitions=[ONE]))
        trips.run(trips.plan("0198-newer", partitions=[THREE]))
        with trips.writer() as cleaner:
            cleaner.delete(older.superseded)
    for version in range(3, 3 + COMMITS):
        upsert(base, ONE, version, **trips.options, **{"hoodie.clean.automatic": "true"})
    return trips


@pytest.mark.parametrize("policy", ["KEEP_LATEST_COMMITS", "KEEP_LATEST_FILE_VERSIONS"])
@pytest.mark.crossed
@pytest.mark.shown_by(
    "tests/formats/test_hudi_clean_start.py::test_a_clean_of_ours_neither_resets_the_writers_count_of_commits_nor_hides_a_deleted_savepoint"
)
def test_the_writers_own_cleaner_deletes_the_same_files_as_without_a_clean_of_ours(
    spark: Any, tmp_path: Path, policy: str
) -> None:
    alone = written(spark, tmp_path / "alone/trips", policy, compacting=False)
    shared = written(spark, tmp_path / "shared/trips", policy, compacting=True)
    found, expected = stale(shared), stale(alone)
    assert [entry for entry in sorted(found.items()) if entry[0][0] == TWO] == [
        entry for entry in sorted(expected.items()) if entry[0][0] == TWO
    ]
    assert sum(found.values()) <= sum(expected.values())
    assert {row[2:] for row in shared.rows()} == {row[2:] for row in alone.rows()}


def test_a_clean_of_ours_neither_resets_the_writers_count_of_commits_nor_hides_a_deleted_savepoint(
    table: NewTable,
) -> None:
    trips = table(**{"hoodie.clean.commits.retained": "1"})
    with trips.writer() as writer:
        writer._open().write_client.savepoint("owner", "before an upgrade")
    (saved,) = trips.timeline().savepoints().values()
    trips.upsert(0, 180, 1)
    for version in (2, 3):
        trips.upsert(0, 180, version, **{"hoodie.clean.automatic": "true"})
    native = trips.timeline()
    counted = native.read_cleans()[-1][1]["lastCompletedCommitTimestamp"]
    assert counted
    ours = trips.run(trips.plan("0198-ours", partitions=[ONE]))
    with trips.writer() as writer:
        # The newest versions of the clustering's inputs are in no savepoint.
        writer.delete([version for version in ours.superseded if version.path not in saved])
        writer._open().write_client.deleteSavepoint(next(iter(native.savepoints())))
    after = trips.timeline()
    (_, record) = after.read_cleans()[-1]
    assert record["lastCompletedCommitTimestamp"] == counted
    assert clean_bounds.read_cleaner_progress(after).start == "", "a savepoint is gone: the whole table is looked at"
    assert record["earliestCommitToRetain"] == ours.instant, "what lakefold deleted no state before it has"
    insert(trips, 3, start=3000, **{"hoodie.clean.automatic": "true"})
    assert not saved & set(trips.data_files()), "what only the savepoint kept is cleaned"
    same_for_both(trips)
