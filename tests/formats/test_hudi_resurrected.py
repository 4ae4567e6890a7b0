# SPDX-License-Identifier: Apache-2.0
"""Replaced file groups that became live again, found and taken out: on tables that an earlier lakefold left so."""

from pathlib import Path

import pytest
from hudi_tables import run_service
from hudi_writing import ARCHIVING, FORMAT, NewTable, Table, insert

from lake.capabilities import Resurrected
from lake.formats.hudi.plans.clean_bounds import CleanBounds
from lake.formats.hudi.plans.cleaning import publish_clean
from lake.plan import Commit

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("nothing_unseen")]
ONE, TWO = "dt=2026-01-01", "dt=2026-01-02"


def resurrect(trips: Table) -> Commit:
    """Have the archiver forget a clustering of one partition whose inputs are in storage; the clustering's commit."""
    first = trips.run(trips.plan("0198-first", partitions=[ONE]))
    second = trips.run(trips.plan("0198-second", partitions=[TWO]))
    with trips.writer() as writer:  # a clean that, as others write it, says that nothing replaced is left
        client = writer._open()
        with client.locked("a test"):
            timeline, instant = client.read_timeline(), client.new_instant()
            start = CleanBounds(earliest_retained="", newest_commit=timeline.newest_commit_time)
            publish_clean(client, timeline, instant, {ONE: [v.path for v in first.superseded]}, start)
            client.write_client.clean(False)
    insert(trips, 6, **ARCHIVING)
    assert trips.timeline().find(second.instant) is None, "the archiver has been at work"
    return second


def take_out(trips: Table) -> list[Resurrected]:
    with trips.writer() as writer:
        return list(writer.remove_resurrected())


def count_of_both(trips: Table) -> int:
    found = len(trips.rows())
    assert sum(trips.other_rows()[1].values()) == found
    return found


@pytest.mark.parametrize("kind", ["cow", "metadata"])
@pytest.mark.crossed(first="cow")
def test_groups_that_are_live_again_are_found_and_taken_out_for_good(table: NewTable, kind: str) -> None:
    trips = table(kind)
    before = {row[2] for row in trips.rows()}
    second = resurrect(trips)
    assert count_of_both(trips) == 180 + 12 + 90
    inputs = {version.path for version in second.superseded}
    found = FORMAT.find_resurrected(trips.ref)
    assert {path for group in found for path in group.files} == inputs
    assert {(group.instant, group.refusal) for group in found} == {(second.instant, None)}
    assert sum(group.rows or 0 for group in found) == 90
    assert set(FORMAT.verify(trips.ref, (), rows=False).resurrected) == inputs
    assert take_out(trips) == list(found)
    assert not inputs & set(trips.data_files())
    assert count_of_both(trips) == 180 + 12
    assert {row[2] for row in trips.rows()} >= before
    assert (FORMAT.find_resurrected(trips.ref), take_out(trips)) == ([], [])
    insert(trips, 4, start=3000, **ARCHIVING)
    assert count_of_both(trips) == 180 + 12 + 8
    assert FORMAT.verify(trips.ref, (), rows=True).resurrected == ()


def test_a_group_that_a_writer_has_written_to_since_is_left_alone_and_named(table: NewTable) -> None:
    trips = table()
    second = resurrect(trips)
    one = min(version.path for version in second.superseded)
    key = next(row[2] for row in trips.rows() if row[3] == TWO)
    trips.upsert(int(str(key)), int(str(key)) + 1, 9)
    found = {group.file_id: group for group in FORMAT.find_resurrected(trips.ref)}
    touched = [group for group in found.values() if group.refusal]
    assert touched, one
    assert all("wrote into it after" in str(group.refusal) for group in touched)
    gone = take_out(trips)
    assert {group.file_id for group in gone} == set(found) - {group.file_id for group in touched}
    assert {path for group in touched for path in group.files} <= set(trips.data_files())


@pytest.mark.shown_by(
    "tests/formats/test_hudi_resurrected.py::test_a_group_that_a_writer_has_written_to_since_is_left_alone_and_named"
)
def test_a_group_of_a_pending_plan_or_a_savepoint_stays(table: NewTable) -> None:
    trips = table()
    inputs = {version.path for version in resurrect(trips).superseded}

    def refused() -> set[str]:
        found = FORMAT.find_resurrected(trips.ref)
        assert {path for group in found for path in group.files} == inputs
        assert take_out(trips) == []
        return {str(group.refusal) for group in found}

    run_service(trips.spark, "run_clustering", Path(trips.base), "schedule")  # lakefold's plans leave such groups out
    (pending,) = trips.timeline().pending
    assert refused() == {f"pending clustering {pending.time} uses it; try again after that action has ended"}
    for file in (Path(trips.base) / ".hoodie/timeline").glob(f"*{pending.time}*"):
        file.unlink()
    with trips.writer() as writer:
        writer._open().write_client.savepoint("owner", "before an upgrade")
    (saved,) = trips.timeline().savepoints()
    assert refused() == {f"kept by savepoint {saved}; delete the savepoint first"}
