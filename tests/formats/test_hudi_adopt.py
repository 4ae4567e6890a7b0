# SPDX-License-Identifier: Apache-2.0
"""Plans that a Hudi writer scheduled inline and left to others: found, executed on their own instant, taken back."""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import copy, rows, write
from hudi_templates import edit_avro, timeline_file
from hudi_writing import FORMAT, Table, ignore

from lake.capabilities import PendingAction
from lake.errors import Conflict, EarlierAttemptPending, Transient
from lake.formats.hudi.client import client
from lake.formats.hudi.pending import attempt_files
from lake.formats.hudi.timeline.timeline import PLAN_KEY, InstantState, extra_metadata
from lake.plan import Plan, PlanKind, RewriteOptions

pytestmark = pytest.mark.spark
SCHEDULES = {
    "hoodie.clustering.schedule.inline": "true",
    "hoodie.clustering.async.max.commits": "2",
    "hoodie.clustering.plan.strategy.sort.columns": "id",
}
COMPACTS = {"hoodie.compact.schedule.inline": "true", "hoodie.compact.inline.max.delta.commits": "2"}
Scheduled = Callable[[], tuple[Table, Plan]]


def adopted(table: Table, plan_id: str = "0198-adopted") -> Plan:
    """A plan of ours for the one rewrite that is pending on ``table``."""
    (entry,) = FORMAT.pending_actions(table.ref)
    assert entry.kind is not None
    assert (entry.plan_id, entry.refusal) == (None, None)
    return Plan(
        plan_id=plan_id,
        table=table.ref,
        kind=entry.kind,
        groups=entry.groups,
        options=RewriteOptions(target_file_max_bytes=1 << 30, sort_columns=entry.sort_columns),
        snapshot_instant="",
        adopted_instant=entry.instant,
    )


def silence(table: Table) -> None:
    """Let every attempt look as if it had not been renewed for long; all are of this process, which lives."""
    for file in (Path(table.base) / attempt_files.DIRECTORY).iterdir():
        os.utime(file, (1e9, 1e9))


@pytest.fixture(scope="module")
def template(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two bulk inserts, the second of which scheduled a clustering."""
    base = tmp_path_factory.mktemp("scheduled") / "trips"
    for commit in range(2):
        write(rows(spark, commit * 60, (commit + 1) * 60).coalesce(1), base, options=SCHEDULES)
    return base


@pytest.fixture
def scheduled(spark: Any, template: Path, tmp_path: Path) -> Scheduled:
    """A private copy of the template, and a plan that adopts what is scheduled there."""

    def new() -> tuple[Table, Plan]:
        table = Table(spark, copy(template, tmp_path / "trips"))

        def move(record: dict[str, Any]) -> None:
            for group in record["clusteringPlan"]["inputGroups"]:
                for entry in group["slices"]:
                    entry["dataFilePath"] = entry["dataFilePath"].replace(str(template), str(table.base))

        edit_avro(timeline_file(table.base, "*.clustering.requested"), move)
        return table, adopted(table)

    return new


@pytest.mark.shown_by(
    "tests/formats/test_hudi_adopt.py::test_a_compaction_that_a_writer_scheduled_is_executed_while_it_writes_on"
)
def test_a_clustering_that_a_writer_scheduled_is_executed_on_its_own_instant(scheduled: Scheduled) -> None:
    table, plan = scheduled()
    before, other = table.rows(), table.other_rows()
    assert plan.options.sort_columns == ("id",), "the writer's choice, from its plan"
    assert [len(group.slices) for group in plan.groups] == [2, 2]
    commit = table.run(plan)
    assert (commit.instant, len(commit.outputs)) == (plan.adopted_instant, 2)
    assert (table.rows(), table.other_rows()) == (before, other)
    assert {v.path for v in commit.superseded} == {s.path for g in plan.groups for s in g.slices}
    assert FORMAT.find_commit(table.ref, plan.plan_id) == commit, "only the commit has our id, not the writer's plan"
    assert FORMAT.pending_actions(table.ref) == []
    timeline = table.timeline()
    instant = timeline.find(commit.instant)
    assert instant is not None
    assert PLAN_KEY not in extra_metadata(timeline.plan(instant))
    write(rows(table.spark, 0, 120, version=9).where("id % 7 = 0").coalesce(1), table.base, "upsert")
    assert len(table.rows()) == len(before), "the writer goes on"


def test_a_compaction_that_a_writer_scheduled_is_executed_while_it_writes_on(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_files, "_RENEWAL_INTERVAL", timedelta(hours=1))
    base = tmp_path / "trips"
    for version in range(3):
        changed = rows(spark, 0, 60, version=version).where(f"{version} = 0 or id % 4 = {version}").coalesce(1)
        write(changed, base, "upsert" if version else "bulk_insert", merge_on_read=True, options=COMPACTS)
    table = Table(spark, base)
    before, other = table.rows(), table.other_rows()
    plan = adopted(table)
    assert (plan.kind, plan.partitions) == (PlanKind.COMPACTION, ("dt=2026-01-01", "dt=2026-01-02"))
    with table.writer() as dead, table.writer() as successor:
        written = dead.rewrite(dead.prepare(plan, 1), ignore)
        assert table.rows() == before
        assert successor.abort_adopted(plan.adopted_instant, plan.plan_id)
        (entry,) = FORMAT.pending_actions(table.ref)
        assert (entry.instant, entry.is_begun) == (plan.adopted_instant, False)
        assert not [path for path in table.files_of(entry.instant) if path.endswith(".parquet")]
        with pytest.raises(Conflict, match="rolled back its files"):
            dead.commit(written)
        with pytest.raises(Transient, match="may still be writing"):
            successor.prepare(plan, 2)
        silence(table)
        again = successor.rewrite(successor.prepare(plan, 2), ignore)
        assert (table.rows(), table.other_rows()) == (before, other)
        table.upsert(0, 60, 9, "id % 7 = 0")
        expected, other = table.rows(), table.other_rows()
        (entry,) = FORMAT.pending_actions(table.ref)
        assert entry.groups == plan.groups, (
            "what is listed has later logs, too; a scan leaves its proposal alone by this"
        )
        commit = successor.commit(again)
    assert (table.rows(), table.other_rows()) == (expected, other)
    assert (commit.instant, FORMAT.find_commit(table.ref, plan.plan_id)) == (plan.adopted_instant, commit)
    assert FORMAT.pending_actions(table.ref) == []
    assert {v.path for v in commit.superseded} >= {s.path for g in plan.groups for s in g.slices}


def test_begun_work_is_rolled_back_and_a_suspended_executor_can_not_commit_it(
    scheduled: Scheduled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_files, "_RENEWAL_INTERVAL", timedelta(hours=1))
    table, plan = scheduled()
    before = table.rows()
    with table.writer() as sleeper, table.writer() as successor:
        written = sleeper.rewrite(sleeper.prepare(plan, 1), ignore)
        (begun,) = FORMAT.pending_actions(table.ref)
        assert (begun.is_begun, begun.is_alive, begun.is_abandoned) == (True, True, False)
        assert successor.abort_adopted(plan.adopted_instant, plan.plan_id)
        assert (table.files_of(begun.instant), table.temporary()) == (set(), [])
        (entry,) = FORMAT.pending_actions(table.ref)
        assert (entry.instant, entry.is_begun, entry.groups) == (plan.adopted_instant, False, plan.groups)
        with pytest.raises(Conflict, match="rolled back its files"):
            sleeper.commit(written)
        with pytest.raises(Transient, match="may still be writing"):
            successor.prepare(plan, 2)
        silence(table)
        again = successor.rewrite(successor.prepare(plan, 2), ignore)
        with pytest.raises(Conflict, match="rolled back its files"):
            sleeper.commit(written)
        commit = successor.commit(again)
        with pytest.raises(Conflict, match="took over"):
            sleeper.commit(written)
        assert not sleeper.abort_adopted(plan.adopted_instant, plan.plan_id)
    assert (table.rows(), commit.instant) == (before, plan.adopted_instant)
    assert table.files_of(commit.instant) == {output.path for output in commit.outputs}


def test_a_clustering_that_another_process_began_and_abandoned_is_rolled_back_by_an_operator(
    scheduled: Scheduled,
) -> None:
    table, plan = scheduled()
    before = table.rows()
    with table.writer() as dead:
        dead.rewrite(dead.prepare(plan, 1), ignore)
    with table.writer() as writer, pytest.raises(Conflict, match="is alive, last active at"):
        writer.roll_back(str(plan.adopted_instant))
    assert list((table.base / attempt_files.DIRECTORY).iterdir()) == [], "its attempt is over"
    for file in [*(table.base / ".hoodie/timeline").glob("*.clustering.*"), *(table.base / ".hoodie/.temp").rglob("*")]:
        os.utime(file, (1e9, 1e9))
    with table.writer() as writer:
        assert "is rolled back to requested" in writer.roll_back(str(plan.adopted_instant))
    (entry,) = FORMAT.pending_actions(table.ref)
    assert (entry.instant, entry.is_begun, table.files_of(entry.instant)) == (plan.adopted_instant, False, set())
    assert table.rows() == before


def test_a_clustering_that_another_process_has_begun_is_left_to_that_process(scheduled: Scheduled) -> None:
    table, plan = scheduled()
    requested = timeline_file(table.base, "*.clustering.requested")
    inflight = requested.with_name(requested.name.replace(".requested", ".inflight"))
    inflight.write_bytes(b"")
    begun = r"another process has begun clustering .* rollback"
    with table.writer() as writer:
        with pytest.raises(EarlierAttemptPending, match=begun):
            writer.prepare(plan, 1)
        for file in (requested, inflight):
            os.utime(file, (1e9, 1e9))
        with pytest.raises(Transient, match=begun) as silent:
            writer.prepare(plan, 1)
    assert not isinstance(silent.value, EarlierAttemptPending), "its owner may be dead, which an operator must judge"
    (entry,) = FORMAT.pending_actions(table.ref)
    assert entry.is_begun


def test_a_clustering_whose_executor_died_in_hudis_begin_is_aborted_at_once(
    scheduled: Scheduled, monkeypatch: pytest.MonkeyPatch
) -> None:
    from py4j.protocol import Py4JNetworkError

    monkeypatch.setattr(attempt_files, "_RENEWAL_INTERVAL", timedelta(hours=1))
    table, plan = scheduled()
    before = table.rows()

    def dead(_: str) -> None:
        raise Py4JNetworkError("Answer from Java side is empty")

    with table.writer() as executor, table.writer() as successor:
        with monkeypatch.context() as patched:
            patched.setattr(client, "failpoint", dead)  # at begun_unrecorded
            with pytest.raises(Transient, match="did not answer"):
                executor.prepare(plan, 1)
        (entry,) = FORMAT.pending_actions(table.ref)
        assert entry.is_begun
        assert successor.abort_adopted(plan.adopted_instant, plan.plan_id, epoch=2)
        silence(table)
        commit = successor.commit(successor.rewrite(successor.prepare(plan, 3), ignore))
    assert (table.rows(), commit.instant) == (before, plan.adopted_instant)


def test_trap_a_stale_clustering_of_others_would_lose_rows_and_is_left_to_its_owner(scheduled: Scheduled) -> None:
    table, _ = scheduled()

    def outdate(record: dict[str, Any]) -> None:
        entry = record["clusteringPlan"]["inputGroups"][0]["slices"][0]
        entry["dataFilePath"] = entry["dataFilePath"].replace(".parquet", "0.parquet")

    edit_avro(timeline_file(table.base, "*.clustering.requested"), outdate)
    plan = adopted(table)
    stale = r"is stale and is left to that process: .* now, the plan names"
    with table.writer() as writer, pytest.raises(Conflict, match=stale):
        writer.prepare(plan, 1)
    (instant,) = table.timeline().pending
    assert instant.state is InstantState.REQUESTED


def test_a_plan_that_changed_since_it_was_adopted_is_not_executed(scheduled: Scheduled) -> None:
    table, plan = scheduled()

    def shrink(record: dict[str, Any]) -> None:
        record["clusteringPlan"]["inputGroups"].pop()

    edit_avro(timeline_file(table.base, "*.clustering.requested"), shrink)
    with table.writer() as writer, pytest.raises(Conflict, match="names other files than when it was adopted"):
        writer.prepare(plan, 1)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"preserveHoodieMetadata": False}, "it drops commit times"),
        ({"inputGroups": []}, "names no file slices"),
    ],
)
def test_a_plan_whose_result_could_not_be_verified_has_the_reason(
    scheduled: Scheduled, change: dict[str, Any], refusal: str
) -> None:
    table, _ = scheduled()
    edit_avro(
        timeline_file(table.base, "*.clustering.requested"), lambda record: record["clusteringPlan"].update(change)
    )
    (entry,) = FORMAT.pending_actions(table.ref)
    assert refusal in (entry.refusal or "")


def test_a_write_is_alive_by_its_heartbeat_or_without_one_by_its_files(scheduled: Scheduled) -> None:
    table, _ = scheduled()
    requested = timeline_file(table.base, "*.clustering.requested")
    inflight = requested.with_name(requested.name.replace(".requested", ".inflight"))
    inflight.write_bytes(b"")
    instant = requested.name.partition(".")[0]

    def aged(path: Path, age: timedelta) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        then = path.stat().st_mtime - age.total_seconds()
        os.utime(path, (then, then))

    def seen() -> PendingAction:
        (entry,) = FORMAT.pending_actions(table.ref)
        return entry

    for file in (requested, inflight):
        aged(file, timedelta(hours=1))
    assert seen().is_abandoned
    aged(table.base / f".hoodie/.temp/{instant}/dt=1/x.parquet.marker.CREATE", timedelta(minutes=9))
    for directory in ("dt=1", "."):
        aged(table.base / f".hoodie/.temp/{instant}/{directory}", timedelta(hours=1))
    assert seen().is_alive
    aged(table.base / f".hoodie/.heartbeat/{instant}", timedelta(minutes=3))
    assert seen().is_abandoned, "Hudi's own limit is two minutes"
    aged(table.base / f".hoodie/.heartbeat/{instant}", timedelta(minutes=1))
    assert not seen().is_abandoned
