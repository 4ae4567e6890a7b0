# SPDX-License-Identifier: Apache-2.0
"""Compaction plans on real merge-on-read tables: as Hudi's own leaves them, whatever writers do meanwhile."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import rows, write
from hudi_writing import FORMAT, INDEXES, QUICK_LOCK, SIX, NewTable, Table, ignore, make_table

from executors.verification import verify_rewrite
from lake.errors import Conflict, Integrity, Transient
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.pending.actions import must_execute
from lake.formats.hudi.plans import compaction
from lake.formats.hudi.timeline.timeline import (
    EPOCH_KEY,
    PLAN_KEY,
    InstantState,
    Timeline,
    extra_metadata,
    planned_slices,
)
from lake.plan import Plan, PlanKind

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("nothing_unseen")]
ARCHIVING = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3", "hoodie.clean.commits.retained": "1"}


@pytest.fixture
def table(spark: Any, tmp_path: Path) -> NewTable:
    def new(kind: str = "mor", **options: str) -> Table:
        return make_table(spark, tmp_path, kind, options)

    return new


def _inputs(plan: Plan) -> set[str]:
    """All files of the plan's slices."""
    slices = [s for group in plan.groups for s in group.slices]
    return {s.path for s in slices if s.path} | {f"{s.partition}/{name}" for s in slices for name in s.log_files}


def test_a_compaction_keeps_rows_keys_and_commit_times_and_puts_base_files_in_place_of_logs(table: NewTable) -> None:
    trips = table()
    before, rows_of_hudi_rs = trips.rows(), trips.other_rows()
    plan = trips.compaction()
    assert len(plan.groups) == 4
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 3)
        assert (prepared.live_groups, prepared.skipped) == ((0, 1, 2, 3), ())
        rewrite = writer.rewrite(prepared, ignore)
        assert trips.rows() == before, "a rewrite is invisible before its commit"
        verify_rewrite(rewrite, writer=writer)
        with pytest.raises(Integrity, match="rows: expected"):
            verify_rewrite(replace(rewrite, outputs=rewrite.outputs[1:]), writer=writer)
        commit = writer.commit(rewrite)
    assert trips.rows() == before
    assert trips.other_rows() == rows_of_hudi_rs
    after = FORMAT.snapshot(trips.ref).slices
    assert after["log_bytes"].to_pylist() == [0] * 4
    assert {s.file_id for g in plan.groups for s in g.slices} == set(after["file_id"].to_pylist())
    assert {version.path for version in commit.superseded} == _inputs(plan)
    assert all(version.bytes > 0 and version.instant == commit.instant for version in commit.superseded)
    assert FORMAT.find_commit(trips.ref, plan.plan_id) == commit
    record = extra_metadata(trips.timeline().metadata(trips.timeline().commits[-1]))
    assert (record[PLAN_KEY], record[EPOCH_KEY]) == (plan.plan_id, "3")
    assert not trips.timeline().pending
    assert trips.temporary() == []


@pytest.mark.shown_by("tests/formats/test_hudi_compaction.py::test_upserts_between_publication_and_commit_are_not_lost")
def test_a_log_appended_after_planning_is_compacted_too(table: NewTable) -> None:
    trips = table()
    plan = trips.compaction()
    trips.upsert(0, 120, 9, "id % 7 = 1")
    before = trips.rows()
    grown = _inputs(trips.compaction())
    assert grown > _inputs(plan)
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        assert _inputs(prepared.plan) == grown
        rewrite = writer.rewrite(prepared, ignore)
        verify_rewrite(rewrite, writer=writer)
        commit = writer.commit(rewrite)
    assert {version.path for version in commit.superseded} == grown
    assert trips.rows() == before


def test_upserts_between_publication_and_commit_are_not_lost(table: NewTable) -> None:
    trips = table(**QUICK_LOCK)
    plan = trips.compaction()
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        trips.upsert(0, 120, 8, "id % 7 = 1")
        rewrite = writer.rewrite(prepared, ignore)
        trips.upsert(0, 120, 9, "id % 7 = 2")
        before = trips.rows()
        verify_rewrite(rewrite, writer=writer)
        commit = writer.commit(rewrite)
    assert trips.rows() == before
    assert sum(trips.other_rows()[1].values()) == len(before)
    assert {version.path for version in commit.superseded} == _inputs(plan)
    later = trips.compaction("second")
    assert len(later.groups) == 4
    assert {s.path for g in later.groups for s in g.slices} == {output.path for output in commit.outputs}
    trips.run(later)
    assert trips.rows() == before


def test_a_slice_that_another_plan_holds_or_that_has_a_newer_base_file_is_left_out(table: NewTable) -> None:
    trips = table()
    plan = trips.compaction()
    held = trips.plan("clustering", partitions=["dt=2026-01-01"])
    with trips.writer() as first, trips.writer() as second:
        first.prepare(held, 1)
        prepared = second.prepare(plan, 1)
        assert prepared.live_groups == (2, 3)
        assert all("is in pending clustering" in left.reason for left in prepared.skipped)
        with pytest.raises(Conflict, match="is in pending compaction"):
            first.prepare(trips.plan("third", partitions=["dt=2026-01-02"]), 1)
        second.commit(second.rewrite(prepared, ignore))
        assert first.withdraw("clustering", None) == 1
    with trips.writer() as writer:
        prepared = writer.prepare(replace(plan, plan_id="again"), 1)
        assert prepared.live_groups == (0, 1)
        assert all("now, the plan names" in left.reason for left in prepared.skipped)
        writer.withdraw("again", None)


def test_logs_of_a_write_that_did_not_complete_are_not_in_the_plan(table: NewTable) -> None:
    short = {"hoodie.client.heartbeat.interval_in_ms": "1000", "hoodie.client.heartbeat.tolerable.misses": "1"}
    trips = table(**(QUICK_LOCK | short))
    before = trips.rows()
    completed = _inputs(trips.compaction())
    # The writer itself beats as slowly as elsewhere: it must not be late on a busy machine.
    trips.upsert(0, 120, 9, "id % 7 = 1", **QUICK_LOCK)
    newest = trips.timeline().commits[-1]
    assert newest.completed_file is not None
    (trips.base / ".hoodie/timeline" / newest.completed_file).unlink()
    assert trips.files_of(newest.time), "its logs are there"
    with trips.writer() as writer:
        prepared = writer.prepare(trips.compaction(), 1)
        assert _inputs(prepared.plan) == completed
        writer.commit(writer.rewrite(prepared, ignore))
    assert trips.rows() == before


@pytest.mark.parametrize("state", ["requested", "written"])
@pytest.mark.crossed
def test_a_withdrawn_compaction_leaves_nothing_and_commits_made_meanwhile_stay(table: NewTable, state: str) -> None:
    trips = table()
    plan = trips.compaction()
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        trips.upsert(0, 120, 8, "id % 7 = 1")
        if state == "written":
            writer.rewrite(prepared, ignore)
            trips.upsert(0, 120, 9, "id % 7 = 2")
            assert trips.files_of(prepared.instant)
    before, others = trips.rows(), trips.other_rows()
    with trips.writer() as writer:
        assert writer.withdraw("another plan", [prepared.instant]) == 0
        assert writer.withdraw(plan.plan_id, None) == 1
        assert writer.withdraw(plan.plan_id, None) == 0
    assert trips.timeline().find(prepared.instant) is None
    assert trips.files_of(prepared.instant) == set()
    assert trips.temporary() == []
    assert (trips.rows(), trips.other_rows()) == (before, others)
    trips.upsert(0, 120, 10, "id % 7 = 3")
    before = trips.rows()
    commit = trips.run(trips.compaction("second"))
    assert commit.instant > prepared.instant
    assert trips.rows() == before


def test_a_compaction_that_another_process_withdrew_is_not_committed(table: NewTable) -> None:
    trips = table()
    before = trips.rows()
    plan = trips.compaction()
    with trips.writer() as sleeper, trips.writer() as other:
        rewrite = sleeper.rewrite(sleeper.prepare(plan, 1), ignore)
        assert other.withdraw(plan.plan_id, None) == 1
        with pytest.raises(Conflict, match="no longer pending"):
            sleeper.commit(rewrite)
    assert trips.rows() == before
    assert FORMAT.find_commit(trips.ref, plan.plan_id) is None


@pytest.mark.shown_by(
    "tests/formats/test_hudi_guards.py::test_trap_archiving_after_a_partial_clean_restores_no_superseded_file"
)
def test_superseded_slices_are_deleted_and_stay_deleted_after_archiving_and_native_cleaning(
    table: NewTable, spark: Any
) -> None:
    trips = table()
    first = trips.run(trips.compaction("first", partitions=["dt=2026-01-01"]))
    left = {(row["partition"], bool(row["log_files"])) for row in FORMAT.snapshot(trips.ref).slices.to_pylist()}
    assert left == {("dt=2026-01-01", False), ("dt=2026-01-02", True)}, "exactly the named slices were compacted"
    second = trips.run(trips.compaction("second", partitions=["dt=2026-01-02"]))
    clustering = trips.plan("third", partitions=["dt=2026-01-01"])
    third = trips.run(clustering)
    trips.upsert(0, 120, 9, "id % 7 = 1")
    before = trips.rows()
    with trips.writer() as writer:
        writer.delete(first.superseded)
        assert not set(trips.data_files()) & {version.path for version in first.superseded}
        assert trips.rows() == before
        writer.delete(second.superseded)
    (older, newer) = (instant for instant in trips.timeline().completed if instant.action == "clean")
    kept = [trips.timeline().plan(instant) or {} for instant in (older, newer)]
    starts = [record["earliestInstantToRetain"] for record in kept]
    assert {(start["timestamp"], start["action"]) for start in starts} == {(third.instant, "replacecommit")}
    options = ARCHIVING | {"hoodie.clean.automatic": "true"}
    for number in range(4):
        frame = rows(spark, 1000 + number * 4, 1004 + number * 4, version=number).coalesce(1)
        write(frame, trips.base, "upsert", merge_on_read=True, options=options)
    timeline = trips.timeline()
    assert timeline.find(second.instant) is None, "the archiver has been at work"
    assert any(instant.action == "clean" and instant.time > newer.time for instant in timeline.completed)
    assert len(trips.rows()) == len(before) + 16
    assert sum(trips.other_rows()[1].values()) == len(before) + 16
    assert FORMAT.find_commit(trips.ref, "second") is not None, "found in the archive"
    assert FORMAT.verify(trips.ref, third.superseded, rows=True).resurrected == ()


@pytest.mark.shown_by(
    "tests/formats/test_hudi_conformance.py::test_version_and_indexes_stay_and_hudis_validation_finds_nothing"
)
def test_metadata_table_and_every_index_are_kept_by_a_compaction_and_its_cleaning(spark: Any, tmp_path: Path) -> None:
    trips = Table(spark, tmp_path / "trips")
    write(rows(spark, 0, 60).coalesce(1), trips.base, merge_on_read=True, options=INDEXES)
    write(rows(spark, 0, 60, version=1).where("id % 3 = 0"), trips.base, "upsert", merge_on_read=True, options=INDEXES)
    indexes = "hoodie.table.metadata.partitions"
    kept = trips.timeline().properties[indexes]
    assert "record_index" in kept
    before = trips.rows()
    commit = trips.run(trips.compaction())
    with trips.writer() as writer:
        writer.delete(commit.superseded)
    assert trips.timeline().properties[indexes] == kept
    assert set(trips.data_files()) == {output.path for output in commit.outputs}
    spark.sql(f"CREATE TABLE compacted_trips USING hudi LOCATION '{trips.base}'")
    try:
        assert spark.sql("CALL validate_metadata_table_files(table => 'compacted_trips')").collect() == []
    finally:
        spark.sql("DROP TABLE compacted_trips")
    trips.upsert(0, 70, 9, "id % 4 = 0", **INDEXES, **{"hoodie.index.type": "RECORD_INDEX"})
    after = trips.rows()
    assert len(after) == len(before) + 3, "60, 64 and 68 are new; every other key was found"


def test_slices_of_logs_only_get_a_base_file(table: NewTable) -> None:
    trips = table("logs_only")
    before = trips.rows()
    plan = trips.compaction()
    assert all(s.path is None for g in plan.groups for s in g.slices)
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        verify_rewrite(rewrite, writer=writer)
        commit = writer.commit(rewrite)
    assert {version.path for version in commit.superseded} == _inputs(plan)
    assert trips.rows() == before
    assert sum(trips.other_rows()[1].values()) == len(before), "hudi-rs reads them from now on"


def test_trap_a_compaction_plan_names_files_and_the_sizes_of_their_logs(table: NewTable) -> None:
    trips = table()
    plan = trips.compaction(most=1)
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        instant = trips.timeline().find(prepared.instant, action="commit")
        assert instant is not None
        assert instant.state is InstantState.REQUESTED
        record = trips.timeline().plan(instant)
        assert record is not None
        (operation,) = record["operations"]
        (only,) = plan.groups[0].slices
        assert only.path is not None
        assert record["version"] == 2
        assert (operation["dataFilePath"], operation["deltaFilePaths"]) == (
            only.path.rsplit("/", 1)[-1],
            list(only.log_files),
        )
        assert operation["baseInstantTime"] in only.path
        # without it Hudi's merge ends in a NullPointerException and leaves the compaction inflight
        assert operation["metrics"]["TOTAL_LOG_FILES_SIZE"] == float(only.log_bytes) > 0
        (planned,) = planned_slices(record)
        assert set(planned.paths) == _inputs(plan)
        assert (extra_metadata(record)[PLAN_KEY], extra_metadata(record)[EPOCH_KEY]) == (plan.plan_id, "1")
        writer.withdraw(plan.plan_id, None)


def updated_six(spark: Any, tmp_path: Path) -> Table:
    """A merge-on-read table of version 6 with one update in logs."""
    trips = Table(spark, tmp_path / "trips")
    write(rows(spark, 0, 60).coalesce(1), trips.base, merge_on_read=True, options=SIX)
    trips.upsert(0, 60, 1, "id % 3 = 0", **SIX)
    return trips


def test_trap_on_table_version_6_a_request_stays_that_a_writer_may_have_seen_which_began_during_the_withdrawal(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers of older Hudi begin without the table's lock, and name their logs after what is pending then."""
    trips = updated_six(spark, tmp_path)
    plan = trips.compaction()
    looks = must_execute

    def meanwhile(*arguments: Any) -> bool:
        found = looks(*arguments)
        Path(begun).touch()
        return found

    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        begun = f"{trips.base}/.hoodie/{int(prepared.instant) + 1}.deltacommit.requested"
        monkeypatch.setattr("lake.formats.hudi.plans.compaction.must_execute", meanwhile)
        assert writer.withdraw(plan.plan_id, None) == 0
    pending = trips.timeline().find(prepared.instant, action="commit")
    assert pending is not None
    assert trips.timeline().plan(pending) is not None


def test_trap_on_table_version_6_a_request_that_logs_are_named_after_stays_and_is_executed_later(
    spark: Any, tmp_path: Path
) -> None:
    trips = updated_six(spark, tmp_path)
    plan = trips.compaction()
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        assert writer.withdraw(plan.plan_id, None) == 1
        assert trips.timeline().find(prepared.instant, action="commit") is None, "no log is named after it"
        prepared = writer.prepare(plan, 2)
        writer.rewrite(prepared, ignore)
        trips.upsert(0, 60, 2, "id % 5 = 0", **SIX)
        logs = {path for path in trips.files_of(prepared.instant) if ".log." in path}
        assert len(logs) == 2
        before = trips.rows()
        assert writer.withdraw(plan.plan_id, None) == 1
    pending = trips.timeline().find(prepared.instant, action="commit")
    assert pending is not None
    assert pending.state is InstantState.REQUESTED
    assert trips.files_of(prepared.instant) == logs, "only what was written of the compaction is gone"
    assert trips.rows() == before
    with trips.writer() as writer:
        again = writer.prepare(plan, 3)
        assert (again.instant, _inputs(again.plan)) == (prepared.instant, _inputs(plan))
        rewrite = writer.rewrite(again, ignore)
        verify_rewrite(rewrite, writer=writer)
        commit = writer.commit(rewrite)
    assert trips.rows() == before
    assert sum(trips.other_rows()[1].values()) == len(before)
    assert {version.path for version in commit.superseded} == _inputs(plan)
    with trips.writer() as writer, pytest.raises(Conflict, match="it waits for the next commit"):
        writer.delete(commit.superseded)  # the newest commit completed before the compaction, and could be saved
    older = set(trips.data_files())
    trips.upsert(0, 60, 3, "id % 7 = 0", **SIX)
    newer = set(trips.data_files()) - older
    before = trips.rows()
    with trips.writer() as writer:
        writer.delete(commit.superseded)
    assert set(trips.data_files()) == logs | newer | {output.path for output in commit.outputs}
    assert trips.rows() == before


def test_trap_on_table_version_6_a_writer_that_began_before_the_publication_may_have_seen_the_request(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has requested its commit after the last check and before the request, which must stay nevertheless."""
    trips = updated_six(spark, tmp_path)
    other, check, begun = HudiClient(trips.ref, spark), compaction.check_preconditions, list[str]()

    def begin_after(*arguments: Any, **more: Any) -> Timeline:
        found = check(*arguments, **more)
        begun.append(str(other.write_client.startCommit()))
        return found

    plan = trips.compaction()
    with monkeypatch.context() as patch, trips.writer() as writer:
        patch.setattr(compaction, "check_preconditions", begin_after)
        with pytest.raises(Transient, match="may not have seen it"):
            writer.prepare(plan, 1)
    (request,) = (instant for instant in trips.timeline().pending if instant.kind == "compaction")
    keys = spark._jvm.java.util.ArrayList()
    keys.add(spark._jvm.org.apache.hudi.common.model.HoodieKey("0", "dt=2026-01-01"))
    deleted = other.write_client.delete(spark.sparkContext._jsc.parallelize(keys), begun[0])
    assert other.write_client.commit(begun[0], deleted)
    other.close()
    assert [path for path in trips.files_of(request.time) if ".log." in path]
    before = trips.rows()
    assert len(before) == 59
    with trips.writer() as writer:
        writer.commit(writer.rewrite(writer.prepare(plan, 2), ignore))
    assert trips.rows() == before


def test_trap_on_table_version_6_a_request_stays_unexecuted_that_the_first_of_two_writers_did_not_see(
    spark: Any, tmp_path: Path
) -> None:
    """The way out that the message names: a writer writes the partitions anew."""
    trips = updated_six(spark, tmp_path)
    plan = trips.compaction()
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        requested = Path(trips.base) / f".hoodie/{prepared.instant}.compaction.requested"
        hidden = requested.rename(tmp_path / "requested")
        trips.upsert(0, 60, 2, "id % 5 = 0", **SIX)
        hidden.rename(requested)
        trips.upsert(0, 60, 3, "id % 7 = 0", **SIX)
        before = trips.rows()
        assert trips.files_of(prepared.instant), "the second writer's logs are named after the request"
        assert writer.withdraw(plan.plan_id, None) == 0
        with pytest.raises(Conflict, match=rf"is not in compaction {prepared.instant} .*INSERT OVERWRITE"):
            writer.prepare(plan, 2)
        assert writer.withdraw(plan.plan_id, None) == 0
        kept = spark.read.format("hudi").load(str(trips.base))
        kept = kept.select([name for name in kept.columns if not name.startswith("_hoodie_")]).localCheckpoint()
        write(kept.coalesce(1), trips.base, "insert_overwrite", merge_on_read=True, options=SIX)
    values = sorted((row[4:] for row in before), key=repr)
    assert sorted((row[4:] for row in trips.rows()), key=repr) == values
    trips.upsert(0, 60, 4, "id % 11 = 0", **SIX)
    assert len(trips.rows()) == len(before)
    trips.run(trips.plan("0198-next"))
    assert len(trips.rows()) == len(before)


@pytest.mark.parametrize("kind", PlanKind)
def test_rows_of_a_base_file_that_share_a_key_are_kept(spark: Any, tmp_path: Path, kind: PlanKind) -> None:
    """Bulk inserts do not deduplicate."""
    trips = Table(spark, tmp_path / "trips")
    twice = rows(spark, 0, 60).union(rows(spark, 0, 20)).coalesce(1)
    write(twice, trips.base, merge_on_read=True)
    trips.upsert(0, 60, 1, "id % 3 = 0")
    before = trips.rows()
    assert len(before) == 80
    trips.proved(trips.compaction() if kind is PlanKind.COMPACTION else trips.plan())
    assert trips.rows() == before
