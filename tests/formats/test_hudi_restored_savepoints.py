# SPDX-License-Identifier: Apache-2.0
"""Restores to commits that rewrites overlapped, on tables whose archiver has no bound of its own."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import rows, write
from hudi_writing import Table, delete, ignore
from test_hudi_savepoints import MOR, ONE, SIX, TWO, put, release, restore, save, try_to_save

from lake.errors import Conflict
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.plans.clean_bounds import compute_clean_bounds, read_cleaner_progress
from lake.formats.hudi.read.deletion_blockers import find_deletion_blockers
from lake.plan import Commit

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("nothing_unseen")]
BY_VERSIONS = {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": "1"}
#: tables whose archiver ignores the savepoints of a clean
TABLES = {"cow of version 6": SIX, "mor of version 6": SIX | MOR, "cow by file versions": BY_VERSIONS}


class Overlapped:
    """A commit of a writer during which two plans ran, the second one in the partition with the older file."""

    def __init__(self, trips: Table, holder: str) -> None:
        self.trips = trips
        write(rows(trips.spark, 0, 20).where("id % 2 = 1").coalesce(1), trips.base, options=trips.options)
        self.savepoint = save(trips) if holder == "a savepoint" else None
        write(rows(trips.spark, 0, 20).where("id % 2 = 0").coalesce(1), trips.base, options=trips.options)
        with trips.writer() as one, trips.writer() as two:
            rewrites = [
                writer.rewrite(writer.prepare(trips.plan(name, partitions=[partition]), 1), ignore)
                for writer, name, partition in ((one, "0198-one", ONE), (two, "0198-two", TWO))
            ]
            put(trips, 7000)
            self.time, self.rows = trips.timeline().newest_commit_time, trips.rows()
            self.first = one.commit(rewrites[0])
            if holder == "a pending plan":
                put(trips, 8000)
                with pytest.raises(Conflict, match=rf"pending {rewrites[1].prepared.instant} may replace files, and"):
                    delete(trips, self.first)
            self.second = two.commit(rewrites[1])
        assert self.first.instant < self.second.instant < self.time
        put(trips, 9000)

    @property
    def commits(self) -> tuple[Commit, Commit]:
        return self.first, self.second

    def blocker(self, retention: timedelta, *commits: Commit) -> str | None:
        """Why a file that the first plan replaced can't be deleted together with those of ``commits``."""
        versions = [version for commit in (self.first, *commits) for version in commit.superseded]
        storage, timeline = TableStorage(str(self.trips.base)), self.trips.timeline()
        options = self.trips.ref.write_options
        found = find_deletion_blockers(storage, timeline, versions, options, retention=retention)
        return found[self.first.superseded[0].path]


@pytest.mark.parametrize("holder", ["a retained file", "a pending plan", "a savepoint"])
@pytest.mark.parametrize("options", TABLES.values(), ids=TABLES)
@pytest.mark.paired("holder")
def test_files_that_a_restore_needs_wait_while_the_archiver_must_be_held_back_before_the_overlapped_commit(
    spark: Any, tmp_path: Path, options: dict[str, str], holder: str
) -> None:
    """There a clean has one bound, which can't be both before the second plan and after the writer's commit."""
    trips = Table(spark, tmp_path / "trips", options)
    made = Overlapped(trips, holder)
    why = rf"Hudi would save {made.time}, and a restore to it rolls {made.first.instant} back, since it completed"
    if made.savepoint is not None:
        with pytest.raises(Conflict, match=rf"is kept by savepoint {made.savepoint}, and while it exists, {why}"):
            delete(trips, made.first)
        release(trips, made.savepoint)
    hour = timedelta(hours=1)
    assert str(made.blocker(hour)).partition(" is retained until ")[0] == (
        f"{made.second.superseded[0].path}, which {made.second.instant} replaced,"
    )
    assert str(made.blocker(hour)).endswith("after that commit")
    assert made.blocker(hour, made.second) is None
    assert made.blocker(timedelta()) is None, "files of two lakefolds, or in two batches, never wait for each other"
    with trips.writer() as cleaner:
        cleaner.delete([version for commit in made.commits for version in commit.superseded])
    assert not try_to_save(trips, made.time)
    saved, before = save(trips), Counter(trips.rows())
    put(trips, 9500)
    restore(trips, saved)
    assert Counter(trips.rows()) == before


@pytest.mark.parametrize("options", TABLES.values(), ids=TABLES)
@pytest.mark.crossed
def test_a_later_clean_does_not_let_a_commit_be_saved_whose_restore_needs_deleted_files(
    spark: Any, tmp_path: Path, options: dict[str, str]
) -> None:
    """A clean states no instant of the last ten minutes, for writers whose instant is not on the timeline yet."""
    trips = Table(spark, tmp_path / "trips", options)
    made = Overlapped(trips, "")
    with trips.writer() as cleaner:
        cleaner.delete([version for commit in made.commits for version in commit.superseded])
    storage, timeline = TableStorage(str(trips.base)), trips.timeline()
    just_before = datetime.strptime(made.time + "000", "%Y%m%d%H%M%S%f").replace(tzinfo=UTC) - timedelta(milliseconds=1)
    clean = f"{just_before:%Y%m%d%H%M%S%f}"[:17]
    bounds = compute_clean_bounds(trips.ref, storage, timeline, clean, read_cleaner_progress(timeline))
    assert bounds.earliest_retained > made.time


@pytest.mark.parametrize("options", TABLES.values(), ids=TABLES)
@pytest.mark.crossed
def test_the_service_deletes_all_files_that_overlapping_commits_replaced_or_none(
    spark: Any, tmp_path: Path, options: dict[str, str]
) -> None:
    trips = Table(spark, tmp_path / "trips", options | {"hoodie.clean.commits.retained": "1"})
    made = Overlapped(trips, "")
    put(trips, 9100)
    inputs = {version.path for commit in made.commits for version in commit.superseded}
    with trips.writer() as cleaner:
        cleaner.maintain({"clean"}, made.second.superseded)
    assert inputs <= set(trips.data_files())
    with trips.writer() as cleaner:
        cleaner.maintain({"clean"}, ())
    assert not inputs & set(trips.data_files())
    assert not try_to_save(trips, made.time)


@pytest.mark.parametrize("options", TABLES.values(), ids=TABLES)
@pytest.mark.crossed
def test_files_that_a_restore_needs_wait_while_those_of_a_later_rewrite_are_needed_by_another_restore(
    spark: Any, tmp_path: Path, options: dict[str, str]
) -> None:
    """The later rewrite overlapped the newest commit, which Hudi always saves; so the archiver must be held back."""
    trips = Table(spark, tmp_path / "trips", options)
    write(rows(trips.spark, 0, 20).where("id % 2 = 1").coalesce(1), trips.base, options=trips.options)
    write(rows(trips.spark, 0, 20).where("id % 2 = 0").coalesce(1), trips.base, options=trips.options)
    with trips.writer() as one, trips.writer() as two:
        rewrites = [
            writer.rewrite(writer.prepare(trips.plan(name, partitions=[partition]), 1), ignore)
            for writer, name, partition in ((one, "0198-one", ONE), (two, "0198-two", TWO))
        ]
        put(trips, 7000)
        overlapped = trips.timeline().newest_commit_time
        first = one.commit(rewrites[0])
        put(trips, 8000)
        second = two.commit(rewrites[1])
    with pytest.raises(Conflict, match=r"is needed by a restore to a savepoint of .* the newest commit, .*Hudi would"):
        delete(trips, first)
    put(trips, 9000)
    with trips.writer() as cleaner:
        cleaner.delete([*first.superseded, *second.superseded])
    assert not try_to_save(trips, overlapped)


def test_hudis_cleaner_by_file_versions_lets_a_commit_be_saved_whose_restore_needs_files_that_it_deleted(
    spark: Any, tmp_path: Path
) -> None:
    """Its cleans state no bound at all; lakefold deletes nothing here."""
    trips = Table(spark, tmp_path / "trips", BY_VERSIONS)
    made = Overlapped(trips, "")
    with trips.writer() as cleaner:
        java = cleaner._open().new_unlocked_client({})
        java.clean()
        java.close()
    assert try_to_save(trips, made.time)
    restore(trips, made.time)
    lost = Counter(made.rows) - Counter(trips.rows())
    assert Counter(trips.rows()) == Counter(made.rows) - lost
    assert lost.total() == 20, "the rows of both rewrites, which are only in the deleted files"
