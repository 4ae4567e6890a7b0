# SPDX-License-Identifier: Apache-2.0
"""Clean plans that a killed process left, and files that stay though the database does not know their rewrite."""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hudi_writing import FORMAT, NO_CLEANER, SIX, NewTable, Table, delete, insert
from test_hudi_guards import _metadata_listing
from test_hudi_older_states import REFUSED, as_of

from lake.errors import Conflict, Transient
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.timeline.timeline import InstantState
from lake.formats.hudi.writer import HudiWriter
from lake.plan import Commit

pytestmark = pytest.mark.spark
ONE, TWO = "dt=2026-01-01", "dt=2026-01-02"
CLEANED = {"hoodie.clean.automatic": "true", "hoodie.clean.commits.retained": "1"}
"""The table's writers clean it."""


class KilledError(BaseException):
    """The process ends here."""


def leave_a_clean(trips: Table, commit: Commit, monkeypatch: pytest.MonkeyPatch, *, inflight: bool = False) -> str:
    """A cleaner that is killed when its plan for the inputs of ``commit`` is published, or begun; the clean's instant.

    One that had begun has deleted the first of the files.
    """
    first, *_ = sorted(version.path for version in commit.superseded)

    def killed(client: Any, instant: str) -> None:
        if inflight:
            timeline = client.meta.getActiveTimeline()
            timeline.transitionCleanRequestedToInflight(
                client.meta.getInstantGenerator().getCleanRequestedInstant(instant)
            )
            client.remove_file(first)
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr("lake.formats.hudi.client.client.HudiClient.run_clean", killed)
        with pytest.raises(KilledError):
            delete(trips, commit)
    (left,) = trips.timeline().pending
    assert (left.kind, left.inflight_file is not None) == ("clean", inflight)
    return left.time


@pytest.mark.parametrize("service", ["delete", "clean"])
@pytest.mark.crossed(first="delete")
def test_a_clean_that_a_killed_cleaner_left_is_withdrawn_after_its_owner_rolled_the_commit_back(
    table: NewTable, monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    trips = table(**{"hoodie.clean.commits.retained": "1"})
    other = trips.run(trips.plan("0198-other", partitions=[TWO]))
    rows = trips.rows()
    commit = trips.run(trips.plan("0198-first", partitions=[ONE]))
    left = leave_a_clean(trips, commit, monkeypatch)
    with trips.writer() as writer:
        writer._open().write_client.rollback(commit.instant)
    assert trips.rows() == rows
    if service == "delete":
        delete(trips, other)
    else:
        with trips.writer() as writer:
            writer.maintain(["clean"], other.superseded)
    assert trips.rows() == rows
    assert {version.path for version in commit.superseded} <= trips.data_files().keys()
    assert trips.timeline().find(left) is None


def age(trips: Table, instant: str, minutes: int = 2, files: str = "*") -> None:
    """As if the files of ``instant`` had been written that long ago."""
    then = time.time() - 60 * minutes
    for path in (Path(trips.base) / trips.timeline().directory).glob(f"{instant}{files}"):
        os.utime(path, (then, then))


@pytest.mark.parametrize("version", ["6", "9"])
def test_a_writers_cleaner_executes_no_clean_that_a_killed_cleaner_left_once_lakefold_has_swept_the_table(
    table: NewTable, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """The owner has rolled the commit back, so that the files of the clean are read again."""
    trips = table() if version == "9" else Table(spark, tmp_path / "trips", SIX)
    if version == "6":
        insert(trips, 3, start=0)
    rows = trips.rows()
    commit = trips.run(trips.plan())
    left = leave_a_clean(trips, commit, monkeypatch)
    with trips.writer() as owner:
        owner._open().write_client.rollback(commit.instant)
    assert FORMAT.instants_with_stragglers(trips.ref) == [], "it may still be running"
    age(trips, left)
    found = FORMAT.instants_with_stragglers(trips.ref)
    with trips.writer() as sweep:
        sweep.remove_straggler_files(found)
    insert(trips, 1, start=5000, **{"hoodie.clean.automatic": "true", "hoodie.clean.commits.retained": "1"})
    assert [row for row in trips.rows() if row in rows] == rows
    assert {version.path for version in commit.superseded} <= trips.data_files().keys()
    assert (found, trips.timeline().find(left)) == ([left], None)


def test_a_clean_that_a_writer_may_be_executing_is_not_withdrawn_by_the_sweep(
    table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer's cleaner executes the clean that a killed cleaner left, and another one has been abandoned."""
    trips = table(**CLEANED)
    commit = trips.run(trips.plan(partitions=[ONE]))
    left = leave_a_clean(trips, commit, monkeypatch, inflight=True)
    age(trips, left, minutes=60, files="*.requested")
    age(trips, left, minutes=9, files="*.inflight")
    assert FORMAT.instants_with_stragglers(trips.ref) == []
    with trips.writer() as sweep:
        sweep.remove_straggler_files([left])
    assert trips.timeline().find(left) is not None
    age(trips, left, minutes=11, files="*.inflight")
    assert FORMAT.instants_with_stragglers(trips.ref) == [left]
    with trips.writer() as sweep:
        sweep.remove_straggler_files([left])
    assert trips.timeline().find(left) is None


@pytest.mark.parametrize("caller", ["delete", "clean", "repair"])
@pytest.mark.crossed(first="delete")
def test_a_clean_that_a_writer_may_be_executing_is_withdrawn_by_no_deletion_service_or_repair(
    table: NewTable, monkeypatch: pytest.MonkeyPatch, caller: str
) -> None:
    """The writer's cleaner executes what a killed cleaner had begun, and leaves the inflight file as it is."""
    trips = table(**CLEANED)
    commit = trips.run(trips.plan(partitions=[ONE]))
    left = leave_a_clean(trips, commit, monkeypatch, inflight=True)
    calls: dict[str, Callable[[HudiWriter], object]] = {
        "delete": lambda lakefold: lakefold.delete(commit.superseded),
        "clean": lambda lakefold: lakefold.maintain(["clean"], commit.superseded),
        "repair": lambda lakefold: lakefold.remove_resurrected(),
    }
    with trips.writer() as lakefold, pytest.raises(Transient, match=f"may be executing the pending clean {left}"):
        calls[caller](lakefold)
    assert [instant.time for instant in trips.timeline().pending] == [left]
    insert(trips, 1, start=5000, **CLEANED)
    done = trips.timeline().find(left)
    assert done is not None
    assert not done.pending
    assert not {version.path for version in commit.superseded} & trips.data_files().keys()


def begin(trips: Table, instant: str) -> None:
    """What a writer's cleaner does first with a pending clean."""
    with trips.writer() as writer:
        meta = writer._open().meta
        meta.getActiveTimeline().transitionCleanRequestedToInflight(
            meta.getInstantGenerator().getCleanRequestedInstant(instant)
        )


@pytest.mark.parametrize("version", ["6", "9"])
@pytest.mark.crossed(first="9")
def test_a_clean_that_a_writer_begins_while_it_is_withdrawn_keeps_its_request(
    table: NewTable, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    trips = table(**CLEANED) if version == "9" else Table(spark, tmp_path / "trips", SIX | CLEANED)
    if version == "6":
        insert(trips, 3, start=0, **NO_CLEANER)
    commit = trips.run(trips.plan(partitions=[ONE]))
    left = leave_a_clean(trips, commit, monkeypatch)

    def is_held(client: HudiClient, doing: str) -> None:
        if doing == "withdrawing a clean":
            begin(trips, left)

    with monkeypatch.context() as patch:
        patch.setattr(HudiClient, "assert_lock_held", is_held)
        with trips.writer() as lakefold, pytest.raises(Transient, match=f"a writer began clean {left}"):
            lakefold.delete(commit.superseded)
    found = trips.timeline().find(left)
    assert found is not None
    assert (found.state, bool(trips.timeline().plan(found))) == (InstantState.INFLIGHT, True)
    insert(trips, 1, start=5000, **CLEANED)
    done = trips.timeline().find(left)
    assert done is not None
    assert not done.pending


def test_a_clean_that_a_writer_begins_just_after_its_withdrawal_is_written_back_by_the_sweep(
    table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = table(**CLEANED)
    commit = trips.run(trips.plan(partitions=[ONE]))
    left = leave_a_clean(trips, commit, monkeypatch)
    inflight = Path(trips.base) / trips.timeline().directory / f"{left}.clean.inflight"
    delete(trips, commit)
    assert (trips.timeline().find(left), FORMAT.instants_with_stragglers(trips.ref)) == (None, [])
    inflight.touch()  # the writer had seen the request, and dies
    assert FORMAT.instants_with_stragglers(trips.ref) == [left]
    with trips.writer() as sweep:
        sweep.remove_straggler_files([left])
    found = trips.timeline().find(left)
    assert found is not None
    assert trips.timeline().plan(found)
    age(trips, left, minutes=11)
    assert FORMAT.instants_with_stragglers(trips.ref) == [left]
    with trips.writer() as sweep:
        sweep.remove_straggler_files([left])
    assert trips.timeline().pending == ()


def test_deletions_of_a_killed_cleaner_enter_the_metadata_table_and_the_rest_is_planned_again(
    table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = table("metadata")
    commit = trips.run(trips.plan(partitions=[ONE]))
    rows = trips.rows()
    left = leave_a_clean(trips, commit, monkeypatch, inflight=True)
    with trips.writer() as cleaner:
        deletion = cleaner.delete(commit.superseded)
    assert deletion.retained == {}
    timeline = trips.timeline()
    assert (timeline.find(left), timeline.pending) == (None, ())
    entries = [entry for _, record in timeline.read_cleans() for entry in record["partitionMetadata"].values()]
    named = {path for entry in entries for path in entry["successDeleteFiles"]}
    assert {version.path.rpartition("/")[2] for version in commit.superseded} <= named
    assert trips.rows() == rows
    assert _metadata_listing(trips) == set(trips.data_files()), "the metadata table lists what exists"


def test_a_clean_that_another_process_left_is_not_executed(table: NewTable, monkeypatch: pytest.MonkeyPatch) -> None:
    trips = table()
    other = trips.run(trips.plan("0198-other", partitions=[TWO]))
    rows = trips.rows()
    commit = trips.run(trips.plan("0198-first", partitions=[ONE]))
    monkeypatch.setattr("lake.formats.hudi.plans.clean_bounds.CLEAN_KEY", "somebody.clean")
    left = leave_a_clean(trips, commit, monkeypatch)
    monkeypatch.undo()
    with trips.writer() as writer:
        writer._open().write_client.rollback(commit.instant)
    delete(trips, other)
    assert trips.rows() == rows
    assert trips.timeline().find(left) is not None, "its owner's matter"


def test_files_of_a_rewrite_that_no_database_has_recorded_outlive_the_tables_clean_service_and_other_cleaners(
    table: NewTable,
) -> None:
    trips = table(**{"hoodie.clean.commits.retained": "1"})
    commit = trips.run(trips.plan())
    trips.upsert(0, 60, 1)
    paths = {version.path for version in commit.superseded}
    with trips.writer() as writer:
        writer.retention = timedelta(days=7)
        assert writer.maintain(["clean"], ()) == []
        with pytest.raises(Conflict, match=f"retained until .* UTC: plan 0198-plan replaced it at {commit.instant}"):
            writer.delete(commit.superseded)
    assert paths <= trips.data_files().keys()
    with trips.writer() as writer:
        (line,) = writer.maintain(["clean"], ())
    assert line == f"the table's clean policy deleted {len(paths)} files"


@pytest.mark.parametrize("kind", ["metadata", "mor"])
@pytest.mark.crossed(first="metadata")
def test_states_before_the_deletions_of_a_killed_cleaner_are_refused_if_its_successor_is_killed_too(
    table: NewTable, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    trips = table(kind)
    before = trips.timeline().commits[-1].time
    commit = trips.run(trips.plan(partitions=[ONE]) if kind == "metadata" else trips.compaction(partitions=[ONE]))
    leave_a_clean(trips, commit, monkeypatch, inflight=True)
    first = sorted(commit.superseded, key=lambda version: version.path)[:1]

    steps = iter(("last look", "killed"))

    def killed(*_: Any, **__: Any) -> None:
        if next(steps) == "killed":
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr("lake.formats.hudi.client.client.HudiClient.assert_lock_held", killed)
        with trips.writer() as cleaner, pytest.raises(KilledError):
            cleaner.delete(first)
    with trips.writer() as cleaner:
        cleaner.delete(first)
    assert trips.timeline().pending == ()
    with pytest.raises(Exception, match=REFUSED):
        as_of(trips, before)
    assert kind != "metadata" or _metadata_listing(trips) == set(trips.data_files())
