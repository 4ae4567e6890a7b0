# SPDX-License-Identifier: Apache-2.0
"""Withdrawals whose process died: what Hudi's rollback leaves on the timeline, and how it is finished."""

import json
import os
import re
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import METADATA, copy
from hudi_writing import ARCHIVING, COMPACTED, FORMAT, SIX, NewTable, Table, ignore, insert
from py4j.protocol import Py4JJavaError

from executors.context import RunContext
from executors.sweep import sweep_table
from lake.errors import Conflict, Rejected, Transient
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.pending import retries
from lake.formats.hudi.pending.late_files import record_path
from lake.formats.hudi.pending.rollbacks import find_orphaned_rollbacks
from lake.formats.hudi.plans import withdrawal
from lake.formats.hudi.plans.preconditions import _how_to_finish
from lake.formats.hudi.timeline.timeline import Instant, Timeline
from lake.plan import Plan, PlanKind
from service.control.store import Store

pytestmark = pytest.mark.spark
#: how far a metadata table may grow while an instant is pending
FEW_COMMITS = {"hoodie.metadata.max.deltacommits.when_pending": "2"}


def die_in_withdrawal(trips: Table, plan: Plan) -> tuple[str, Instant]:
    """The instant of ``plan`` and its pending rollback, which Hudi completes right after it deleted the instant."""
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        writer.rewrite(prepared, ignore)
        assert writer.withdraw(plan.plan_id, None) == 1
    timeline = trips.timeline()
    completed = timeline.completed[-1]
    assert completed.kind == "rollback"
    (Path(trips.base) / timeline.directory / str(completed.completed_file)).unlink()
    (rollback,) = trips.timeline().pending
    assert trips.timeline().find(prepared.instant) is None
    return prepared.instant, rollback


def metadata_compactions(trips: Table) -> int:
    timeline = Timeline(TableStorage(str(trips.base)).subdirectory(".hoodie/metadata"))
    return sum(instant.action == "commit" for instant in timeline.completed)


def versions(spark: Any, tmp_path: Path, table: NewTable, version: str) -> Table:
    """A copy-on-write table of ``version`` with a metadata table that is compacted after every commit."""
    if version == "9":
        return table("metadata", **COMPACTED)
    trips = Table(spark, tmp_path / "trips", SIX | METADATA | COMPACTED)
    insert(trips, 3, start=0)
    return trips


@pytest.mark.parametrize("version", ["6", "9"])
def test_a_rollback_whose_process_died_after_it_removed_a_plan_is_finished_by_the_sweep(
    spark: Any, tmp_path: Path, table: NewTable, store: Store, version: str
) -> None:
    trips = versions(spark, tmp_path, table, version)
    instant, rollback = die_in_withdrawal(trips, trips.plan())
    insert(trips, 2)
    before, compactions = trips.rows(), metadata_compactions(trips)
    assert trips.timeline().pending == (rollback,), "no write finishes it"
    assert FORMAT.instants_with_stragglers(trips.ref) == [instant]
    if version == "6":
        blocked = Table(spark, copy(Path(trips.base), tmp_path / "copy" / "trips"), trips.options)
        with pytest.raises(Py4JJavaError, match="deltacommits exceeded 2"):
            insert(blocked, 1, start=2000, **FEW_COMMITS)
    sweep_table(trips.ref, RunContext(store=store, spark=lambda: spark), format=FORMAT)
    assert trips.timeline().pending == ()
    assert FORMAT.instants_with_stragglers(trips.ref) == []
    insert(trips, 2, start=3000, **(FEW_COMMITS if version == "6" else {}))
    assert version == "6" or metadata_compactions(trips) > compactions
    assert [row for row in trips.rows() if row in before] == before
    assert FORMAT.verify(trips.ref, (), rows=True).missing == ()
    trips.proved(trips.plan("0198-next"))


def test_an_orphaned_rollback_of_a_plan_is_finished_although_the_plan_was_committed_before(
    table: NewTable, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner rolled the commit back, a writer began the plan again and died, and then lakefold died."""
    trips = table()
    before = trips.rows()
    instant = trips.run(trips.plan()).instant
    with trips.writer() as owner:
        client = owner._open()
        client.write_client.rollback(instant)
        with client.locked("beginning as a writer"):
            client.begin_rewrite(PlanKind.CLUSTERING, instant)
    monkeypatch.setattr(withdrawal, "record_withdrawal", lambda *_, **__: None)
    with trips.writer() as dead:
        assert "is withdrawn" in dead.roll_back(instant)
    timeline = trips.timeline()
    completed = timeline.completed[-1]
    assert completed.kind == "rollback"
    (Path(trips.base) / timeline.directory / str(completed.completed_file)).unlink()
    assert FORMAT.instants_with_stragglers(trips.ref) == [instant]
    sweep_table(trips.ref, RunContext(store=store, spark=lambda: trips.spark), format=FORMAT)
    assert trips.timeline().pending == ()
    assert trips.rows() == before


@pytest.mark.parametrize("version", ["6", "9"])
def test_another_processs_unfinished_rollback_is_finished_by_the_command_of_the_message(
    spark: Any, tmp_path: Path, table: NewTable, version: str
) -> None:
    trips = versions(spark, tmp_path, table, version)
    instant, rollback = die_in_withdrawal(trips, trips.plan())
    (Path(trips.base) / record_path(instant)).unlink()  # a clustering that another tool purged
    assert FORMAT.instants_with_stragglers(trips.ref) == []
    timeline = trips.timeline()
    assert [left.target for left in find_orphaned_rollbacks(timeline)] == [instant]
    assert _how_to_finish("trips", timeline, rollback) == f"lakefold tables rollback trips {rollback.time} finishes it"
    before = trips.rows()
    with trips.writer() as operator:
        with pytest.raises(Conflict, match=rf"rollback {rollback.time} is alive"):
            operator.roll_back(rollback.time)
        for path in (Path(trips.base) / timeline.directory).glob(f"{rollback.time}*"):
            os.utime(path, (path.stat().st_mtime - 3600,) * 2)
        assert operator.roll_back(rollback.time).endswith(f" {instant} is finished")
    assert trips.timeline().pending == ()
    assert trips.rows() == before
    insert(trips, 1)


def test_a_rollback_of_a_plan_that_is_still_there_is_finished_with_the_plan(table: NewTable) -> None:
    trips = table()
    with trips.writer() as writer:
        prepared = writer.prepare(trips.plan(), 1)
        writer.rewrite(prepared, ignore)
        client = writer._open()
        java = client.jvm.org.apache.hudi.table.HoodieSparkTable.create(client.write_config, client.context)
        with client.locked("planning a rollback"):
            inflight = client.bundle.inflight_clustering(client.meta, prepared.instant)
            java.scheduleRollback(client.context, client.new_instant(), inflight, False, True, False)
        rollback = trips.timeline().pending[-1]
        assert FORMAT.instants_with_stragglers(trips.ref) == []
        os.utime(Path(trips.base) / trips.timeline().directory / str(rollback.requested_file), (0, 0))
        with pytest.raises(Rejected, match=r"is not a write"):
            writer.roll_back(rollback.time)
        assert writer.withdraw(prepared.plan.plan_id, None) == 1
    assert trips.timeline().pending == ()


def test_a_rollback_that_lakefold_left_is_finished_on_a_halted_table_at_once(table: NewTable, store: Store) -> None:
    """An owner's rollback of a completed commit is left alone there for half an hour."""
    trips = table()
    plan = trips.plan()
    store.register_table(trips.ref, "compact")
    store.add_plan(plan, request_id=None, actor="scheduler", estimate={})
    claim = store.claim("executor")
    assert claim is not None
    with trips.writer() as dead:
        prepared = dead.prepare(plan, 1)
        dead.rewrite(prepared, ignore)
        client = dead._open()
        java = client.jvm.org.apache.hudi.table.HoodieSparkTable.create(client.write_config, client.context)
        inflight = client.bundle.inflight_clustering(client.meta, prepared.instant)
        java.scheduleRollback(client.context, client.new_instant(), inflight, False, True, False)
    store.cancel(claim, "a test", actor="executor")
    assert [entry.kind for entry in trips.timeline().pending] == ["clustering", "rollback"]
    assert sweep_table(trips.ref, RunContext(store=store, spark=lambda: trips.spark), format=FORMAT, halted=True) == 1
    assert trips.timeline().pending == ()
    assert trips.files_of(prepared.instant) == set()


def test_an_owners_rollback_that_a_single_writer_continues_is_left_to_it_on_a_halted_table(
    table: NewTable, store: Store
) -> None:
    """The process that began the rollback renewed a heartbeat; the one that continues it renews none."""
    trips = table()
    plan, before = trips.plan(), trips.rows()
    store.register_table(trips.ref, "compact")
    store.add_plan(plan, request_id=None, actor="scheduler", estimate={})
    claim = store.claim("executor")
    assert claim is not None
    instant = trips.run(plan).instant
    store.fail(claim, "a test", halt=True)
    with trips.writer() as owner:
        client = owner._open()
        java = client.jvm.org.apache.hudi.table.HoodieSparkTable.create(client.write_config, client.context)
        committed = java.getActiveTimeline().getCommitsTimeline().filterCompletedInstants().lastInstant().get()
        java.scheduleRollback(client.context, client.new_instant(), committed, False, False, False)
    (rollback,) = trips.timeline().pending
    done = trips.timeline().find(instant)
    assert done is not None
    (Path(trips.base) / trips.timeline().directory / str(done.completed_file)).unlink()
    heartbeat = Path(trips.base) / ".hoodie/.heartbeat" / rollback.time
    heartbeat.parent.mkdir(exist_ok=True)
    heartbeat.touch()
    os.utime(heartbeat, (time.time() - 300,) * 2)
    pending = trips.timeline().pending
    context = RunContext(store=store, spark=lambda: trips.spark)
    assert sweep_table(trips.ref, context, format=FORMAT, halted=True) == 0
    assert trips.timeline().pending == pending
    with trips.writer() as owner:
        client = owner._open()
        java = client.jvm.org.apache.hudi.table.HoodieSparkTable.create(client.write_config, client.context)
        inflight = client.bundle.inflight_clustering(client.meta, instant)
        java.rollback(client.context, rollback.time, inflight, True, False)
    sweep_table(trips.ref, context, format=FORMAT, halted=True)
    assert trips.timeline().pending == ()
    assert (trips.rows(), trips.files_of(instant)) == (before, set())


@pytest.mark.parametrize("whose", ["owner", "writer"])
def test_a_rollback_of_a_commit_that_is_archived_now_is_never_executed(
    table: NewTable, store: Store, whose: str
) -> None:
    """Its process died before it removed the commit from the timeline; no writer finishes such a rollback."""
    trips = table()
    instant = trips.run(trips.plan()).instant
    with trips.writer() as dead:
        client = dead._open()
        java = client.jvm.org.apache.hudi.table.HoodieSparkTable.create(client.write_config, client.context)
        committed = java.getActiveTimeline().getCommitsTimeline().filterCompletedInstants().lastInstant().get()
        target = committed if whose == "owner" else client.bundle.inflight_clustering(client.meta, instant)
        java.scheduleRollback(client.context, client.new_instant(), target, False, False, False)
    (rollback,) = trips.timeline().pending
    insert(trips, 8, **ARCHIVING | {"hoodie.clean.automatic": "true"})
    assert trips.timeline().find(instant) is None, "it is archived"
    assert trips.timeline().pending == (rollback,), "no write finishes it"
    before, files = trips.rows(), trips.files_of(instant)
    assert files
    (Path(trips.base) / record_path(instant)).write_text(
        json.dumps({"instant": instant, "partitions": ["dt=2026-01-01", "dt=2026-01-02"]})
    )  # as if its process had died before it recorded the commit
    assert FORMAT.instants_with_stragglers(trips.ref) == []
    sweep_table(trips.ref, RunContext(store=store, spark=lambda: trips.spark), format=FORMAT)
    assert (trips.rows(), trips.files_of(instant)) == (before, files)
    os.utime(Path(trips.base) / trips.timeline().directory / str(rollback.requested_file), (0, 0))
    advice = (
        rf"delete .*{rollback.time}\.rollback\.requested: .* files of \w+ {instant}, which has completed and is arch"
    )
    assert re.match(advice, _how_to_finish("trips", trips.timeline(), rollback))
    with trips.writer() as operator, pytest.raises(Rejected, match=f"must not be finished; {advice}"):
        operator.roll_back(rollback.time)
    assert (trips.rows(), trips.files_of(instant)) == (before, files)


def test_a_rollback_that_can_not_be_finished_is_tried_again_at_growing_intervals(table: NewTable, store: Store) -> None:
    trips = table("metadata")
    instant, _ = die_in_withdrawal(trips, trips.plan())
    restore = Path(trips.base) / trips.timeline().directory / "20200101000000000.restore.inflight"
    restore.touch()  # an owner's restore that does not end
    context = RunContext(store=store, spark=lambda: trips.spark)
    with pytest.raises(Transient, match=r"finishing a rollback waits for the pending restore 20200101000000000"):
        sweep_table(trips.ref, context, format=FORMAT)
    assert FORMAT.instants_with_stragglers(trips.ref) == []
    assert sweep_table(trips.ref, context, format=FORMAT) == 0, "neither the lock nor a JVM is needed"
    (entry,) = [one for one in FORMAT.pending_actions(trips.ref) if one.action == "rollback"]
    assert entry.is_begun, "it is shown as a pending action"
    (tries,) = [tries for key, tries in retries._tries.items() if key[0] == str(trips.base)]
    assert tries.interval == timedelta(minutes=1)
    tries.interval = timedelta()
    restore.unlink()
    assert FORMAT.instants_with_stragglers(trips.ref) == [instant]
    sweep_table(trips.ref, context, format=FORMAT)
    assert trips.timeline().pending == ()
