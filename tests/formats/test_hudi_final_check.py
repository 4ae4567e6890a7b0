# SPDX-License-Identifier: Apache-2.0
"""The last look under the lock: what an owner or a writer does to a Hudi table between lakefold's steps."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import METADATA, rows, run_service, write
from hudi_templates import edit_properties
from hudi_writing import FORMAT, NewTable, Table, ignore
from test_hudi_abandoned_cleans import ONE, TWO, leave_a_clean

from executors.context import RunContext
from executors.outcome import RunResult
from executors.run import run_plan
from lake.errors import TableRefused, Transient
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.maintenance import services
from lake.formats.hudi.plans import withdrawal
from lake.formats.hudi.timeline.metadata_table import find_faults, index_names
from lake.formats.hudi.writer import HudiWriter
from lake.plan import Commit, PlanKind, StagedWork
from lake.ports import Rewrite
from service.control.store import Store

pytestmark = [pytest.mark.spark, pytest.mark.slow]
OFF = {"hoodie.metadata.enable": "false"}
SMALL_FILES = {"hoodie.clustering.plan.strategy.small.file.limit": "1000000000"}


def save(trips: Table) -> str:
    """Save the newest commit; its time."""
    with trips.writer() as owner:
        owner._open().write_client.savepoint("owner", "before a change")
    (time,) = trips.timeline().savepoints()
    return time


def begin_restore(trips: Table, saved: str) -> None:
    """An owner's restore as one that was killed leaves it: scheduled by Hudi, not executed."""
    with trips.writer() as owner:
        client = owner._open()
        table = client.jvm.org.apache.hudi.table.HoodieSparkTable.create(client.write_config, client.context)
        assert table.scheduleRestore(client.context, client.new_instant(), saved).isPresent()
    assert [instant.kind for instant in trips.timeline().pending if instant.kind == "restore"] == ["restore"]


def end_restore(trips: Table, saved: str) -> None:
    with trips.writer() as owner:
        owner._open().write_client.restoreToSavepoint(saved)


def ids(trips: Table) -> Counter[int]:
    """How often Spark, which lists files by the metadata table, reads each id."""
    frame = trips.spark.read.format("hudi").option("hoodie.metadata.enable", "true").load(str(trips.base))
    return Counter(row.id for row in frame.select("id").collect())


def test_no_plan_is_published_while_an_owners_restore_is_pending(table: NewTable) -> None:
    trips = table()
    before = trips.rows()
    saved = save(trips)
    trips.upsert(0, 60, 3)
    plan = trips.plan()
    begin_restore(trips, saved)
    files = trips.data_files()
    with (
        trips.writer() as writer,
        pytest.raises(
            Transient, match=r"publishing a plan waits for the pending restore \d+, which restores the table"
        ),
    ):
        writer.prepare(plan, 1)
    assert {instant.kind for instant in trips.timeline().pending} == {"restore"}
    assert trips.data_files() == files
    end_restore(trips, saved)
    assert trips.rows() == before
    trips.run(trips.plan("0198-after"))
    assert trips.rows() == before


def test_no_rewrite_is_committed_into_an_owners_restore_that_is_pending(table: NewTable) -> None:
    trips = table()
    before = trips.rows()
    saved = save(trips)
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(trips.plan(), 1), ignore)
        begin_restore(trips, saved)
        with pytest.raises(Transient, match=r"committing waits for the pending restore \d+"):
            writer.commit(rewrite)
    assert trips.rows() == before
    end_restore(trips, saved)
    assert trips.rows() == before, "no owner has to restore twice"


def committed(trips: Table, change: Callable[[], None]) -> None:
    """Commit a plan; the writer makes its change between the rewrite and the commit."""
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(trips.plan(), 1), ignore)
        change()
        writer.commit(rewrite)


def deleted(trips: Table, change: Callable[[], None]) -> None:
    """Delete what a plan superseded; the writer makes its change when the cleaner has opened the table."""
    commit = trips.run(trips.plan())
    with trips.writer() as cleaner:
        cleaner._open()
        change()
        assert cleaner.delete(commit.superseded).retained == {}


def withdrawn(trips: Table, change: Callable[[], None]) -> None:
    """Withdraw a plan that is inflight; the writer makes its change after the rewrite."""
    with trips.writer() as writer:
        writer.rewrite(writer.prepare(trips.plan(), 1), ignore)
        change()
        assert writer.withdraw("0198-plan", None) == 1


STEPS = pytest.mark.parametrize("step", [committed, deleted, withdrawn], ids=lambda step: step.__name__)


@STEPS
def test_a_metadata_table_that_a_writer_builds_meanwhile_contains_lakefolds_actions(
    table: NewTable, step: Callable[[Table, Callable[[], None]], None]
) -> None:
    trips = table()
    step(trips, lambda: write(rows(trips.spark, 1000, 1020).coalesce(1), trips.base, "insert", options=METADATA))
    assert ids(trips) == Counter([*range(180), *range(1000, 1020)])
    assert trips.other_rows()[1].total() == 200
    timeline = trips.timeline()
    assert "files" in index_names(timeline.properties)
    assert list(find_faults(timeline.storage, timeline)) == []
    trips.upsert(0, 180, 3)
    assert ids(trips) == Counter([*range(180), *range(1000, 1020)]), "and the writer's next upsert finds every key"


@STEPS
def test_a_metadata_table_that_a_writer_switches_off_meanwhile_is_not_made_again(
    table: NewTable, step: Callable[[Table, Callable[[], None]], None]
) -> None:
    trips = table("metadata")
    step(trips, lambda: write(rows(trips.spark, 1000, 1020).coalesce(1), trips.base, "insert", options=OFF))
    assert ids(trips) == Counter([*range(180), *range(1000, 1020)])
    assert not (Path(trips.base) / ".hoodie/metadata").exists()
    assert index_names(trips.timeline().properties) == []
    FORMAT.check(trips.ref)


def test_files_of_a_plan_that_meets_an_index_under_construction_are_planned_again_afterwards(
    table: NewTable, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = table("metadata")
    before, plan = trips.rows(), trips.plan()
    store.register_table(trips.ref, "compact")
    store.add_plan(plan, request_id=None, actor="scheduler", estimate={})
    context, commit = RunContext(store=store, spark=lambda: trips.spark), HudiWriter.commit
    unfinished = "hoodie.table.metadata.partitions.inflight"

    def beside_an_indexer(writer: HudiWriter, rewrite: Rewrite) -> Commit:
        edit_properties(Path(trips.base), {unfinished: "record_index"})
        return commit(writer, rewrite)

    with monkeypatch.context() as patch:
        patch.setattr(HudiWriter, "commit", beside_an_indexer)
        claim = store.claim("executor")
        assert claim is not None
        outcome = run_plan(claim, context, format=FORMAT)
    assert (outcome.result, outcome.reason) == (RunResult.CANCELLED, "TableRefused")
    assert trips.timeline().pending == ()
    with pytest.raises(TableRefused, match="record_index: that index is being built"):
        FORMAT.check(trips.ref)
    edit_properties(Path(trips.base), {unfinished: None})
    FORMAT.check(trips.ref)
    assert store.failed_plans("trips", "") == []
    trips.run(trips.plan("0198-after"))
    assert trips.rows() == before


def test_no_rewrite_is_committed_beside_an_index_that_was_built_meanwhile_and_that_no_rewrite_is_known_to_keep(
    table: NewTable,
) -> None:
    trips = table("metadata")
    before = trips.rows()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(trips.plan(), 1), ignore)
        (Path(trips.base) / ".hoodie/metadata/expr_index_day").mkdir()
        edit_properties(Path(trips.base), {"hoodie.table.metadata.partitions": "files,expr_index_day"})
        with pytest.raises(TableRefused, match="has expr_index_day: rewrites are not verified to keep that index"):
            writer.commit(rewrite)
        writer.withdraw("0198-plan", None)
    assert trips.timeline().pending == ()
    assert trips.rows() == before


def test_no_rewrite_is_committed_whose_instant_another_process_is_rolling_back(table: NewTable) -> None:
    """A writer's inline clustering first takes back what is begun, without a lock: here it has stopped half-way."""
    trips = table()
    before = trips.rows()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(trips.plan(), 1), ignore)
        with trips.writer() as other:
            take_back = begin_to_take_back(other._open(), rewrite.prepared.instant)
            with pytest.raises(Transient, match=r"committing waits for the pending rollback \d+, which rolls back"):
                writer.commit(rewrite)
            take_back()
    assert trips.rows() == before
    with trips.writer() as sweeper:
        sweeper.withdraw("0198-plan", None)
    assert not trips.timeline().pending
    assert trips.rows() == before
    trips.run(trips.plan("0198-after"))
    assert trips.rows() == before


def begin_to_take_back(client: HudiClient, instant: str) -> Callable[[], None]:
    """Schedule Hudi's rollback of an inflight clustering as another process does; what executes it."""
    table = client.jvm.org.apache.hudi.table.HoodieSparkTable.create(client.write_config, client.context)
    inflight = client.bundle.inflight_clustering(client.meta, instant)
    time = client.new_instant()
    assert table.scheduleRollback(client.context, time, inflight, False, True, False).isPresent()

    def execute() -> None:
        now = client.jvm.org.apache.hudi.table.HoodieSparkTable.create(client.write_config, client.context)
        now.rollback(client.context, time, inflight, False, False)

    return execute


def test_a_metadata_table_that_is_built_under_the_lock_of_a_commit_contains_the_commit(table: NewTable) -> None:
    """A lock can be lost, and a writer of a single-writer table takes none."""
    trips = table()
    built: list[bool] = []

    def build() -> None:
        if not built:
            built.append(True)
            write(rows(trips.spark, 1000, 1020).coalesce(1), trips.base, "insert", options=METADATA)

    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(trips.plan(), 1), ignore)
        writer.fence = build
        writer.commit(rewrite)
    assert ids(trips) == Counter([*range(180), *range(1000, 1020)])
    assert trips.other_rows()[1].total() == 200
    timeline = trips.timeline()
    assert list(find_faults(timeline.storage, timeline)) == []


def test_a_metadata_table_that_is_deleted_and_built_again_meanwhile_contains_the_commit(table: NewTable) -> None:
    trips = table("metadata")

    def rebuild() -> None:
        write(rows(trips.spark, 1000, 1010).coalesce(1), trips.base, "insert", options=OFF)
        write(rows(trips.spark, 1010, 1020).coalesce(1), trips.base, "insert", options=METADATA)

    committed(trips, rebuild)
    assert ids(trips) == Counter([*range(180), *range(1000, 1020)])
    timeline = trips.timeline()
    assert list(find_faults(timeline.storage, timeline)) == []


def test_no_plan_is_published_beside_one_that_a_writer_schedules_for_the_same_files_meanwhile(table: NewTable) -> None:
    """Readers of a table with two pending plans for one file group fail. The writer's clock is a second behind."""
    trips = table()
    before = trips.rows()
    plan = trips.plan()

    def schedule(staged: StagedWork) -> None:
        run_service(trips.spark, "run_clustering", Path(trips.base), "schedule", **SMALL_FILES)
        (scheduled,) = trips.timeline().pending
        requested = Path(trips.base) / trips.timeline().directory / (scheduled.requested_file or "")
        requested.rename(requested.with_name(requested.name.replace(scheduled.time, f"{int(staged.token) - 1000}")))

    with trips.writer() as writer:
        writer.journal = schedule
        with pytest.raises(Transient, match=r"clustering \d+ was scheduled while publishing a plan"):
            writer.prepare(plan, 1)
    assert [instant.kind for instant in trips.timeline().pending] == ["clustering"]
    assert trips.rows() == before


def test_a_clean_that_a_killed_cleaner_left_stays_while_an_owners_restore_is_pending(
    table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = table()
    commit = trips.run(trips.plan(partitions=[ONE]))
    saved = save(trips)
    other = trips.run(trips.plan("0198-other", partitions=[TWO]))
    left = leave_a_clean(trips, commit, monkeypatch)
    begin_restore(trips, saved)
    with (
        trips.writer() as cleaner,
        pytest.raises(Transient, match=r"withdrawing a clean waits for the pending restore \d+"),
    ):
        cleaner.maintain(["clean"], other.superseded)
    assert trips.timeline().find(left) is not None


@pytest.mark.parametrize("kind", [PlanKind.CLUSTERING, PlanKind.COMPACTION])
def test_an_instant_that_a_writer_completes_during_its_withdrawal_stays(
    table: NewTable, monkeypatch: pytest.MonkeyPatch, kind: PlanKind
) -> None:
    trips = table("mor")
    before = trips.rows()
    plan = trips.plan() if kind is PlanKind.CLUSTERING else trips.compaction()
    looks = withdrawal.is_executed_by_writer

    def meanwhile(*arguments: Any) -> bool:
        found = looks(*arguments)
        run_service(trips.spark, f"run_{kind}", Path(trips.base), "execute")
        return found

    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        writer.rewrite(prepared, ignore)
        monkeypatch.setattr(withdrawal, "is_executed_by_writer", meanwhile)
        with pytest.raises(
            Transient, match=f"{kind} {prepared.instant} was completed by another process while withdrawing a plan"
        ):
            writer.withdraw(plan.plan_id, None)
    found = trips.timeline().find(prepared.instant)
    assert found is not None
    assert not found.pending
    assert trips.rows() == before
    assert not FORMAT.verify(trips.ref, (), rows=False).missing


def test_a_write_that_completes_while_it_is_being_rolled_back_stays(
    table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = table()
    before = trips.rows()
    newest = trips.timeline().commits[-1]
    completed = Path(trips.base) / trips.timeline().directory / (newest.completed_file or "")
    completed.rename(aside := completed.with_suffix(".aside"))
    for path in completed.parent.glob(f"{newest.time}.*"):
        os.utime(path, (path.stat().st_mtime - 3600,) * 2)
    abandoned = services._find_abandoned

    def meanwhile(*arguments: Any) -> Any:
        found = abandoned(*arguments)
        aside.rename(completed)
        return found

    monkeypatch.setattr(services, "_find_abandoned", meanwhile)
    with (
        trips.writer() as owner,
        pytest.raises(Transient, match=f"{newest.time} was completed by another process while rolling"),
    ):
        owner.roll_back(newest.time)
    assert trips.rows() == before
