# SPDX-License-Identifier: Apache-2.0
"""Plans that a writer begins while lakefold withdraws them: the writer, and every other one, can still read them."""

import os
from pathlib import Path
from typing import Any

import pytest
from hudi_other_writer import OtherWriter
from hudi_tables import METADATA
from hudi_writing import FORMAT, SIX, NewTable, Table, ignore, insert
from py4j.protocol import Py4JJavaError
from waiting import wait_for

from executors.context import RunContext
from executors.sweep import sweep_table
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.pending.late_files import DIRECTORY
from lake.formats.hudi.timeline.timeline import Instant, InstantState
from lake.plan import Plan
from service.control.store import Store

pytestmark = pytest.mark.spark


def versions(spark: Any, tmp_path: Path, table: NewTable, how: str) -> tuple[Table, Plan]:
    """A table and a plan for it."""
    if how == "compaction":
        trips = table("mor")
        return trips, trips.compaction()
    if how == "clustering":
        trips = table("metadata")
        return trips, trips.plan()
    trips = Table(spark, tmp_path / "six", SIX | METADATA)
    insert(trips, 3, start=0)
    return trips, trips.plan()


def sweep(trips: Table, store: Store) -> None:
    sweep_table(trips.ref, RunContext(store=store, spark=lambda: trips.spark), format=FORMAT)


def create_inflight(trips: Table, instant: str, kind: str) -> None:
    """What a writer does right after it has seen the request; Hudi's inflight file of a rewrite is empty."""
    (Path(trips.base) / trips.timeline().directory / f"{instant}.{kind}.inflight").touch()


def silent(trips: Table, instant: str) -> None:
    """The writer of ``instant`` is dead: nothing of it has been touched for an hour."""
    for path in (Path(trips.base) / ".hoodie").rglob(f"*{instant}*"):
        os.utime(path, (path.stat().st_mtime - 3600,) * 2)


def copies(trips: Table) -> list[Path]:
    return list((Path(trips.base) / DIRECTORY).glob("*.request"))


def pending(trips: Table, instant: str) -> Instant:
    found = trips.timeline().find(instant)
    assert found is not None
    return found


@pytest.mark.parametrize("how", ["clustering", "clustering on version 6", "compaction"])
def test_a_plan_that_a_writer_begins_just_after_its_withdrawal_is_written_back_by_the_sweep(
    spark: Any, tmp_path: Path, table: NewTable, store: Store, how: str
) -> None:
    trips, plan = versions(spark, tmp_path, table, how)
    before = trips.rows()
    with trips.writer() as writer:
        instant = writer.prepare(plan, 1).instant
        kind = pending(trips, instant).kind
        assert writer.withdraw(plan.plan_id, None) == 1
    assert FORMAT.instants_with_stragglers(trips.ref) == []
    create_inflight(trips, instant, kind)
    with pytest.raises(Py4JJavaError):
        trips.upsert(0, 20, 1)
    assert FORMAT.instants_with_stragglers(trips.ref) == [instant]
    sweep(trips, store)
    left = pending(trips, instant)
    assert (left.state, bool(trips.timeline().plan(left))) == (InstantState.INFLIGHT, True)
    assert (FORMAT.instants_with_stragglers(trips.ref), copies(trips)) == ([], [])
    insert(trips, 1, start=5000)
    with trips.writer() as writer:
        assert writer.withdraw(plan.plan_id, None) == 0, "the writer may be at work"
        silent(trips, instant)
        assert writer.withdraw(plan.plan_id, None) == 1
    assert trips.timeline().pending == ()
    assert [row for row in trips.rows() if row in before] == before
    trips.upsert(0, 20, 1)


@pytest.mark.slow
def test_a_withdrawal_that_is_killed_after_a_writer_began_the_plan_takes_no_plan_from_the_writer(
    table: NewTable, store: Store, tmp_path: Path
) -> None:
    trips = table("metadata")
    before, plan = (trips.rows(), trips.other_rows()), trips.plan()
    with trips.writer() as writer:
        instant = writer.prepare(plan, 1).instant
    gates = {name: tmp_path / name for name in ("request_copied", "request_deleted")}
    failpoints = ",".join(f"{name}=wait:{gate}" for name, gate in gates.items())
    lakefold = OtherWriter(tmp_path / "lakefold.log", {"LAKEFOLD_FAILPOINTS": failpoints})
    try:
        lakefold.withdraw(trips.base, plan.plan_id, trips.options)
        wait_for((tmp_path / "request_copied.reached").exists, "the deletion of the request", 120)
        inline = HudiClient(trips.ref, trips.spark)
        begun = inline.write_client.cluster(instant, False)
        gates["request_copied"].touch()
        wait_for((tmp_path / "request_deleted.reached").exists, "the look for a writer", 120)
    finally:
        lakefold.end()
    left = pending(trips, instant)
    assert (left.state, left.requested_file) == (InstantState.INFLIGHT, None)
    with pytest.raises(Py4JJavaError, match=f"Error reading clustering plan {instant}"):
        insert(trips, 1, start=5000)
    sweep(trips, store)
    assert (FORMAT.instants_with_stragglers(trips.ref), copies(trips)) == ([], [])
    inline.bundle.run_write(inline.write_client, begun)
    java = trips.spark._jvm.org.apache.hudi.table.HoodieSparkTable.create(inline.write_config, inline.context)
    inline.bundle.commit_clustering(inline.write_client, begun, java, instant)
    inline.close()
    assert (trips.rows(), trips.other_rows()) == before
    assert FORMAT.find_commit(trips.ref, plan.plan_id) is not None
    insert(trips, 1, start=6000)


def test_a_plan_that_a_writer_begins_while_hudi_rolls_it_back_keeps_its_request(
    table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hudi's rollback deletes the inflight file, then the request; a writer begins in between."""
    trips = table("metadata")
    before, plan = trips.rows(), trips.plan()
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        writer.rewrite(prepared, ignore)
        client = writer._client
        assert client is not None
        purge = client.write_client.purgePendingClustering

        class Client:
            """Hudi's client, with a writer that is quick."""

            def __getattr__(self, name: str) -> Any:
                return getattr(java, name)

            def purgePendingClustering(self, instant: str) -> Any:  # noqa: N802
                done = purge(instant)
                create_inflight(trips, instant, "clustering")
                return done

        java = client.write_client
        monkeypatch.setattr(client, "write_client", Client())
        writer.withdraw(plan.plan_id, None)
        left = pending(trips, prepared.instant)
        assert (left.state, bool(trips.timeline().plan(left))) == (InstantState.INFLIGHT, True)
    insert(trips, 1, start=5000)
    assert [row for row in trips.rows() if row in before] == before
