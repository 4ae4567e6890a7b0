# SPDX-License-Identifier: Apache-2.0
"""Replays of a table's history under policies, with the real planner."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from replay_inputs import MIB, SINCE, commit, generated, history, written

from lake.history import ChangeKind, FileWritten, TableHistory
from lake.model import SLICES_SCHEMA, Snapshot, TableRef
from lake.plan import PlanKind
from planner.candidates import NEVER_US, PlanningConstraints
from planner.planner import plan_table
from planner.policy.policy import SizingPolicy
from planner.replay.events import (
    FileCreated,
    FilesGrown,
    FilesMerged,
    FilesRemoved,
    LogsAppended,
    WriterCommit,
    WriterHistory,
    writer_history,
)
from planner.replay.layout import ReplayLayout
from planner.replay.policy_replay import ReplayResult, replay_policy

LIMIT = 300 * MIB
HOUR = timedelta(hours=1)
TABLE = TableRef(name="trips", format="hudi", location="/lake/trips")


def policy(**settings: Any) -> SizingPolicy:
    return SizingPolicy.from_settings(settings)


def run(found: TableHistory, settings: SizingPolicy | None) -> ReplayResult:
    return replay_policy(writer_history(found), settings, small_file_limit_bytes=LIMIT)


def files_of(layout: ReplayLayout) -> list[dict[str, int]]:
    """Every file of a layout as numbers."""
    columns = ("partition", "bytes", "rows", "log_files", "log_bytes", "modified_us", "oldest_log_us")
    return [
        {"file": file, **{name: int(layout.column(name, pa.array([file]).to_numpy())[0]) for name in columns}}
        for file in layout.live.nonzero()[0].tolist()
    ]


def moment(us: int) -> datetime:
    return datetime.fromtimestamp(us / 1_000_000, UTC)


def listing(layout: ReplayLayout, script: WriterHistory, at_us: int) -> Snapshot:
    """All files of a layout as a format would list them."""
    rows = [
        {
            "partition": script.partitions[file["partition"]],
            "file_id": f"{file['file']:09d}",
            "path": f"{file['file']}.parquet" if file["bytes"] else None,
            "bytes": file["bytes"],
            "rows": file["rows"],
            "log_files": [f"log.{number}" for number in range(file["log_files"])],
            "log_bytes": file["log_bytes"],
            "oldest_log_at": moment(file["oldest_log_us"]) if file["oldest_log_us"] < NEVER_US else None,
            "delta_kind": None,
            "deleted_rows": None,
            "modified_at": moment(file["modified_us"]),
            "written_order": file["modified_us"],
            "group_key": None,
            "busy_reason": None,
        }
        for file in files_of(layout)
    ]
    slices = pa.Table.from_pylist(rows, schema=SLICES_SCHEMA)
    commits = layout.uncompacted_commits
    return Snapshot(table=TABLE, instant="1", taken_at=moment(at_us), slices=slices, uncompacted_commits=commits)


def plan_everything_at_every_tick(script: WriterHistory, settings: SizingPolicy) -> tuple[ReplayLayout, int, int]:
    """What the scheduler would do: at each tick the whole table is listed and planned. Files, plans and bytes."""
    layout = ReplayLayout(script, LIMIT)
    for strand in script.initial_files:
        layout.create_file(strand)
    tick, step = script.since_us, int(settings.scan_interval.total_seconds() * 1_000_000)
    plans = rewritten = 0
    acts = list(script.commits)
    while tick <= script.until_us:
        while acts and acts[0].at_us <= tick:
            do(layout, acts.pop(0))
        shot, held = listing(layout, script, tick), dict[str, str]()
        for _ in range(settings.max_inflight_per_table + 1):
            planning = plan_table(
                shot, settings, now=moment(tick), plan_id="p", constraints=PlanningConstraints(locked_partitions=held)
            )
            if planning.plan is None:
                break
            plans, rewritten = plans + 1, rewritten + planning.estimate.bytes_to_move
            held |= dict.fromkeys(planning.plan.partitions, "p")
            for group in planning.plan.groups:
                files = [int(part.file_id) for part in group.slices]
                if planning.plan.kind is PlanKind.COMPACTION:
                    layout.compact(files, tick)
                else:
                    layout.rewrite(files, group.output_files, tick)
        tick += step
    for act in acts:
        do(layout, act)
    return layout, plans, rewritten


def do(layout: ReplayLayout, act: WriterCommit) -> None:
    for step in act.events:
        match step:
            case FileCreated():
                layout.create_file(step)
            case FilesGrown():
                layout.grow_files(step, act.at_us)
            case LogsAppended():
                layout.append_logs(step, act.at_us)
            case FilesRemoved():
                layout.remove_files(step)
            case FilesMerged():
                layout.merge_files(step, act.at_us)
    layout.uncompacted_commits += act.is_log_only


def layouts(layout: ReplayLayout) -> list[tuple[int, ...]]:
    return sorted((f["partition"], f["bytes"], f["rows"], f["log_bytes"], f["modified_us"]) for f in files_of(layout))


POLICIES = {
    "defaults": {},
    "four at least": {"min_input_files": 4, "target_file_max": "400MiB"},
    "few groups of few bytes": {"max_num_groups": 1, "max_bytes_per_plan": "2GiB", "scan_interval": "10min"},
    "newest day": {"partition_filter": "recent_days", "recent_partitions": 1},
    "not the newest": {"skip_latest_partitions": 1, "quiet_period": "2h"},
    "by the hour": {"partition_filter": "day_rolling", "scan_interval": "30min"},
    "hudi": {"strategy": "hudi", "small_file_limit": "200MiB", "target_file_max": "250MiB"},
    "logs of some age": {"compact_age": "2h", "compact_log_files": 0, "compact_delta_commits": 20},
    "clustering first": {"rewrite_first": "clustering", "compact_log_files": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("logs", [False, True], ids=["base files", "logs"])
@pytest.mark.parametrize("settings", POLICIES.values(), ids=POLICIES.keys())
def test_planning_changes_has_the_result_of_planning_everything_at_every_tick(
    settings: dict[str, Any], logs: bool
) -> None:
    script = writer_history(generated(60, 2, seed=len(settings) + logs, updates=0.4, logs=logs, removals=0.1))
    layout, plans, rewritten = plan_everything_at_every_tick(script, policy(**settings))
    found = replay_policy(script, policy(**settings), small_file_limit_bytes=LIMIT)
    assert layouts(found.layout) == layouts(layout)
    assert (found.work.plans, found.work.rewritten_bytes) == (plans, rewritten)
    assert plans > 0


@pytest.mark.parametrize("seed", range(5))
def test_without_compaction_a_history_ends_in_its_own_files(seed: int) -> None:
    told = generated(200, 5, seed, updates=0.5, removals=0.1)
    own: dict[tuple[str, str], FileWritten] = {}
    for past in told.commits:
        own.update({entry.group: entry for entry in past.written})
        for group in past.removed_groups:
            del own[group]
    found = run(told, None)
    assert sorted(f["bytes"] for f in files_of(found.layout)) == sorted(entry.bytes for entry in own.values())
    assert found.final_totals.rows == sum(entry.rows for entry in own.values())
    assert found.work.plans == found.work.rewritten_bytes == 0


@pytest.mark.parametrize("settings", POLICIES.values(), ids=POLICIES.keys())
def test_rows_and_bytes_are_the_same_under_every_policy(settings: dict[str, Any]) -> None:
    told = generated(300, 5, seed=11, updates=0.3)
    without, found = run(told, None), run(told, policy(**settings))
    assert (found.final_totals.rows, found.final_totals.bytes) == (
        without.final_totals.rows,
        without.final_totals.bytes,
    )
    assert sum(f["bytes"] for f in files_of(found.layout)) == found.final_totals.bytes
    assert sum(f["rows"] for f in files_of(found.layout)) == found.final_totals.rows
    assert len(files_of(found.layout)) == found.final_totals.files < without.final_totals.files


def test_the_same_history_has_the_same_end() -> None:
    told = generated(300, 5, seed=3, updates=0.3, logs=True)
    one, other = run(told, policy()), run(told, policy())
    assert (one.daily_totals, one.work, one.final_totals) == (other.daily_totals, other.work, other.final_totals)
    assert layouts(one.layout) == layouts(other.layout)


def test_replay_leaves_lakefolds_rewrites_out_and_lets_writers_continue_with_its_files() -> None:
    """Two files are merged by a plan, and a writer adds to the merged one: without the plan it adds to both."""
    told = history(
        commit(SINCE + HOUR, written("a", 10 * MIB), written("b", 30 * MIB)),
        commit(
            SINCE + 2 * HOUR,
            written("m", 40 * MIB),
            took_out=(("p", "a"), ("p", "b")),
            change=ChangeKind.REWRITE,
            plan_id="plan-1",
        ),
        commit(SINCE + 3 * HOUR, written("m", 48 * MIB), operation="upsert"),
    )
    without = run(told, None)
    assert sorted(f["bytes"] for f in files_of(without.layout)) == [12 * MIB, 36 * MIB]
    merged = run(told, policy())
    assert [f["bytes"] for f in files_of(merged.layout)] == [48 * MIB]
    assert merged.work.rewritten_bytes == 40 * MIB
    assert merged.work.writer_bytes == (40 + 48) * MIB


def test_files_that_other_processes_clustered_stay_clustered() -> None:
    told = history(
        commit(SINCE + HOUR, *(written(f"f{number}", 10 * MIB) for number in range(4))),
        commit(
            SINCE + 2 * HOUR,
            written("m", 40 * MIB),
            took_out=tuple(("p", f"f{number}") for number in range(4)),
            change=ChangeKind.REWRITE,
            operation="cluster",
        ),
    )
    assert [f["bytes"] for f in files_of(run(told, None).layout)] == [40 * MIB]


def test_overwritten_files_are_gone_after_each_kind_of_merge() -> None:
    told = history(
        commit(SINCE + HOUR, written("a", 10 * MIB), written("b", 30 * MIB)),
        commit(
            SINCE + 9 * HOUR, written("c", 5 * MIB), took_out=(("p", "a"), ("p", "b")), operation="insert_overwrite"
        ),
    )
    for settings in (None, policy()):
        assert [f["bytes"] for f in files_of(run(told, settings).layout)] == [5 * MIB]


def test_files_are_weighed_by_the_time_that_they_were_there() -> None:
    told = history(commit(SINCE + 12 * HOUR, written("a", MIB), written("b", MIB)), files=(written("0", LIMIT),))
    found = run(told, None)
    assert (found.file_days, found.small_file_days) == (2.0, 1.0)
    assert [(day.files, day.small_files) for day in found.daily_totals] == [(3, 2)]
