# SPDX-License-Identifier: Apache-2.0
"""Writes that stay pending and hold no plan up: those of dead writers, and a delete_partition that lost."""

import os
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from hudi_tables import FS_LOCK, rows, write
from hudi_writing import FORMAT, LOCK, NewTable, Table, ignore

from lake.errors import Conflict
from lake.formats.hudi.lock_settings.on_conflict import WRITER_WINS_OPTIONS
from lake.formats.hudi.plans import publication

pytestmark = [pytest.mark.spark, pytest.mark.slow]
QUICK = FS_LOCK | {"hoodie.client.heartbeat.interval_in_ms": "1000", "hoodie.client.heartbeat.tolerable.misses": "1"}
DELETION = {"hoodie.datasource.write.partitions.to.delete": "dt=2026-01-01"}
OVERWRITE = "20260101000000000"


def lose_delete_partition(trips: Table) -> str:
    """A delete_partition that fails on a pending clustering; the instant that it leaves."""
    before = {instant.time for instant in trips.timeline().pending}
    with pytest.raises(Exception, match="Failed to drop partitions"):
        write(rows(trips.spark, 0, 2), trips.base, "delete_partition", options=trips.options | DELETION)
    (left,) = (instant for instant in trips.timeline().pending if instant.time not in before)
    assert left.kind == "replacecommit"
    return left.time


def heartbeat_of(trips: Table, instant: str) -> Path:
    return Path(trips.base) / ".hoodie/.heartbeat" / instant


def leave_overwrite(trips: Table) -> None:
    """An overwrite of unknown partitions, as a writer that was killed early leaves it."""
    for name in (f"{OVERWRITE}.replacecommit.requested", f"{OVERWRITE}.replacecommit.inflight"):
        (Path(trips.base) / ".hoodie/timeline" / name).touch()


def beat(trips: Table, age: timedelta = timedelta()) -> None:
    heartbeat = heartbeat_of(trips, OVERWRITE)
    heartbeat.parent.mkdir(exist_ok=True)
    heartbeat.touch()
    then = time.time() - age.total_seconds()
    os.utime(heartbeat, (then, then))


def busy(trips: Table) -> set[str | None]:
    return set(FORMAT.snapshot(trips.ref).slices["busy_reason"].to_pylist())


def test_a_delete_partition_that_failed_twice_delays_no_plan_while_its_jvm_runs(table: NewTable) -> None:
    trips = table(**QUICK)
    before = trips.rows()
    plan = trips.plan()
    with trips.writer() as writer:
        writer.prepare(plan, 1)
        lost = {lose_delete_partition(trips) for _ in range(2)}
        writer.withdraw(plan.plan_id, None)
    time.sleep(2.5)
    assert all(time.time() - heartbeat_of(trips, instant).stat().st_mtime < 2 for instant in lost), "renewed for ever"
    assert busy(trips) == {None}
    trips.proved(trips.plan("0198-after"))
    assert trips.rows() == before
    assert {instant.time for instant in trips.timeline().pending} == lost, "taking it back is its owner's business"


def test_a_delete_partition_that_has_just_begun_is_waited_for(table: NewTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "WRITER_GAP_TIMEOUT", timedelta(seconds=1))
    trips = table(**LOCK)
    plan, other = trips.plan(), trips.plan("0198-other")
    with trips.writer() as writer:
        writer.prepare(plan, 1)
        lost = lose_delete_partition(trips)
        writer.withdraw(plan.plan_id, None)
        assert busy(trips) == {f"inflight replacecommit {lost}"}
        with pytest.raises(Conflict, match=f"a writer is inflight .replacecommit {lost}"):
            writer.prepare(other, 1)


@pytest.mark.parametrize("wins", [{}, WRITER_WINS_OPTIONS], ids=["plan", "writer"])
def test_an_overwrite_delays_plans_only_while_its_heartbeat_is_alive(
    table: NewTable, wins: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "WRITER_GAP_TIMEOUT", timedelta(seconds=1))
    trips = table(**LOCK | wins)
    before, plan = trips.rows(), trips.plan()
    leave_overwrite(trips)
    beat(trips)
    assert busy(trips) == {f"inflight replacecommit {OVERWRITE}"}
    with trips.writer() as writer, pytest.raises(Conflict, match="a writer is inflight"):
        writer.prepare(plan, 1)
    beat(trips, timedelta(seconds=179))
    assert busy(trips) == {f"inflight replacecommit {OVERWRITE}"}, "60 s × 3 have not passed"
    beat(trips, timedelta(seconds=182))
    assert busy(trips) == {None}
    with trips.writer() as writer:
        writer.commit(writer.rewrite(writer.prepare(plan, 1), ignore))
    assert trips.rows() == before
    heartbeat_of(trips, OVERWRITE).unlink()
    assert busy(trips) == {None}, "without a heartbeat, too"
    assert [instant.time for instant in trips.timeline().pending] == [OVERWRITE]


def test_a_pending_overwrite_of_a_single_writer_holds_plans_up_since_it_has_no_heartbeat(table: NewTable) -> None:
    trips = table()
    leave_overwrite(trips)
    assert busy(trips) == {f"inflight replacecommit {OVERWRITE}"}
