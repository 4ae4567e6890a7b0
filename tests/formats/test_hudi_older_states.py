# SPDX-License-Identifier: Apache-2.0
"""Older states of a table after cleans: Hudi answers them with all of their rows, or refuses; the archiver agrees."""

from typing import Any

import pytest
from hudi_writing import ARCHIVING, FORMAT, NewTable, Table, delete, insert

from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.engines.stitch.engine import HybridEngine
from lake.errors import Conflict

pytestmark = pytest.mark.spark
ONE, TWO = "dt=2026-01-01", "dt=2026-01-02"
REFUSED = "Cleaner cleaned up the timestamp of interest"


def state(trips: Table, time: str) -> Any:
    """The table as it was at ``time``, as Spark reads it."""
    return trips.spark.read.format("hudi").option("as.of.instant", time).load(str(trips.base))


def as_of(trips: Table, time: str) -> int:
    """How many rows it had."""
    return int(state(trips, time).count())


def since(trips: Table, time: str) -> set[int]:
    """The ids of an incremental read that begins after ``time``."""
    options = {"hoodie.datasource.query.type": "incremental", "hoodie.datasource.read.begin.instanttime": time}
    return {row.id for row in trips.spark.read.format("hudi").options(**options).load(str(trips.base)).collect()}


def save(trips: Table, time: str) -> None:
    with trips.writer() as writer:
        writer._open().write_client.savepoint(time, "owner", "before an upgrade")


def restore(trips: Table, time: str) -> None:
    with trips.writer() as writer:
        writer._open().write_client.restoreToSavepoint(time)


@pytest.mark.parametrize("kind", ["cow", "metadata"])
@pytest.mark.crossed(first="cow")
def test_a_state_whose_files_a_clean_deleted_is_refused_to_queries_and_savepoints(table: NewTable, kind: str) -> None:
    trips = table(kind)
    before = trips.timeline().commits[-1].time
    commit = trips.run(trips.plan(partitions=[ONE]))
    assert as_of(trips, before) == 180
    told = {time: since(trips, time) for time in ("0", before)}
    delete(trips, commit)
    with pytest.raises(Exception, match=REFUSED):
        as_of(trips, before)
    with pytest.raises(Exception, match="beyond the lookup window"):
        save(trips, before)
    assert as_of(trips, commit.instant) == 180, "the newest commit is never refused"
    assert {time: since(trips, time) for time in told} == told
    found = trips.rows()
    save(trips, commit.instant)
    trips.upsert(0, 60, 9)
    restore(trips, commit.instant)
    assert trips.rows() == found


@pytest.mark.parametrize("engine", ["spark", "arrow", "hybrid"])
@pytest.mark.crossed
def test_states_from_before_a_split_have_the_same_rows_until_the_split_file_is_deleted(
    table: NewTable, engine: str
) -> None:
    trips = table()
    trips.engines = (ArrowEngine(InProcessBackend()), HybridEngine(InProcessBackend()))
    # By a copy: a file is split at its row groups.
    trips.run(trips.plan("0198-merge", engine="stitch"))

    def states() -> dict[str, list[str]]:
        """The rows of each commit so far, with Hudi's meta columns except the file name."""
        return {
            instant.time: sorted(map(repr, state(trips, instant.time).drop("_hoodie_file_name").collect()))
            for instant in trips.timeline().commits
        }

    before = states()
    plan = trips.plan("0198-split", engine=engine, outputs=3, min_row_group_bytes=1)
    assert all(group.is_split for group in plan.groups)
    commit = trips.run(plan)
    assert len(commit.outputs) == 3 * len(plan.groups)
    trips.upsert(0, 60, 5, "id % 11 = 0")
    after = states()
    assert {time: after[time] for time in before} == before
    assert after[commit.instant] == before[max(before)]
    delete(trips, commit)
    with pytest.raises(Exception, match=REFUSED):
        as_of(trips, max(before))
    assert as_of(trips, max(after)) == len(after[max(after)]), "the newest commit is never refused"


def test_an_older_state_is_refused_after_a_compactions_inputs_were_deleted(table: NewTable) -> None:
    trips = table("mor")
    before = trips.timeline().commits[-1].time
    expected = as_of(trips, before)
    commit = trips.run(trips.compaction())
    delete(trips, commit)
    with pytest.raises(Exception, match=REFUSED):
        as_of(trips, before)
    assert as_of(trips, commit.instant) == expected


@pytest.mark.usefixtures("nothing_unseen")
def test_files_replaced_after_a_savepoints_files_are_deleted_without_wrong_states_or_rows(
    table: NewTable,
) -> None:
    trips = table()
    saved = trips.timeline().commits[-1].time
    save(trips, saved)
    kept = trips.timeline().savepoints()[saved]
    first = trips.run(trips.plan("0198-first", partitions=[ONE]))
    insert(trips, 2)
    between = trips.timeline().commits[-1].time
    second = trips.run(trips.plan("0198-second"))
    others = [version for version in second.superseded if version.path not in kept]
    insert(trips, 1, start=2000)
    with trips.writer() as cleaner:
        cleaner.delete(others)
    with pytest.raises(Exception, match=REFUSED):
        as_of(trips, between)
    assert as_of(trips, trips.timeline().newest_commit_time) == 180 + 6
    with trips.writer() as writer:
        writer._open().write_client.deleteSavepoint(saved)
    insert(trips, 6, start=3000, **ARCHIVING)
    found = trips.rows()
    assert len(found) == len({row[2] for row in found}) == 180 + 6 + 12, "no file that the savepoint kept is live again"
    assert trips.timeline().find(first.instant) is not None, "its replaced files exist"


@pytest.mark.usefixtures("nothing_unseen")
def test_files_wait_as_long_as_the_tables_own_cleaner_promises_states_that_need_them(table: NewTable) -> None:
    cleaning = {"hoodie.clean.automatic": "true", "hoodie.clean.commits.retained": "3"}
    trips = table(**cleaning)
    for version in (1, 2, 3):
        trips.upsert(0, 60, version)
    commit = trips.run(trips.plan(partitions=[ONE]))
    with pytest.raises(Conflict, match="when the table's own cleaner deletes that file, Hudi would again answer"):
        delete(trips, commit)
    for version in (4, 5, 6, 7):
        trips.upsert(0, 60, version)
        timeline = trips.timeline()
        stated = timeline.read_cleans()[-1][1]["earliestCommitToRetain"]
        for instant in timeline.commits:
            if instant.time >= stated:
                assert as_of(trips, instant.time) == 180
    assert stated > commit.instant
    delete(trips, commit)
    assert not {version.path for version in commit.superseded} & trips.data_files().keys()
    assert trips.timeline().read_cleans()[-1][1]["earliestCommitToRetain"] >= stated


def test_no_writer_that_cleans_is_waited_for_where_none_is_declared(table: NewTable) -> None:
    trips = table()
    trips.upsert(0, 60, 1)
    commit = trips.run(trips.plan(partitions=[ONE]))
    assert set(FORMAT.deletion_blockers(trips.ref, commit.superseded).values()) == {None}
    trips.options = {"hoodie.clean.automatic": "true"}
    (reason,) = {str(why)[-90:] for why in FORMAT.deletion_blockers(trips.ref, commit.superseded).values()}
    assert reason.endswith('If no writer cleans this table, set hoodie.clean.automatic = "false" in its write_options')
