# SPDX-License-Identifier: Apache-2.0
"""Savepoints: what they keep is not deleted, and what readers miss since archiving went beyond one is left alone."""

from dataclasses import replace

import pytest
from hudi_writing import ARCHIVING, FORMAT, NewTable, Table, delete, insert

from lake.errors import Conflict
from lake.plan import Plan

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("nothing_unseen")]
ARCHIVED = ARCHIVING | {"hoodie.clean.automatic": "true"}
BEYOND = ARCHIVED | {"hoodie.archive.beyond.savepoint": "true"}


def save(trips: Table) -> str:
    """Save the newest commit; its time."""
    with trips.writer() as writer:
        writer._open().write_client.savepoint("somebody", "before an upgrade")
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
