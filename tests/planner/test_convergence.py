# SPDX-License-Identifier: Apache-2.0
"""Properties that hold for every valid policy: a full account, bounds, repeatability, and an end of planning."""

import random
from dataclasses import replace
from datetime import timedelta
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_inputs import MIB, NOW, File, outputs, plan, snapshot
from support import SOAK

from lake.model import DeltaKind
from lake.plan import Plan, PlanKind
from planner import slice_columns
from planner.candidates import PlanningConstraints
from planner.planner import plan_table
from planner.policy.policy import BALANCED, RewriteFirst, SizingPolicy
from planner.reasons import Reason
from planner.result import PlanningResult

pytestmark = pytest.mark.soak
FEW = settings(
    max_examples=3000 if SOAK else 60, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
UNIT = 1000


@st.composite
def policies(draw: st.DrawFn, *, splitting: bool = False) -> SizingPolicy:
    """Any valid policy for tables of small integers: the limit from tiny up to the target itself.

    With ``splitting`` some of them split large files.
    """
    limit = draw(st.integers(1, UNIT))
    target = limit + draw(st.sampled_from([0, 0, 1, limit // 3, limit, UNIT - limit]) | st.integers(0, UNIT))
    group = target + draw(st.sampled_from([0, 0, 1, target // 2, target, 4 * target]) | st.integers(0, 3 * UNIT))
    strategy = draw(st.sampled_from([BALANCED, "hudi"]))
    split = draw(st.sampled_from([0, 2 * target, 3 * target])) if splitting and strategy == BALANCED else 0
    return SizingPolicy(
        small_file_limit_bytes=limit,
        target_file_max_bytes=target,
        split_file_limit_bytes=split,
        max_bytes_per_group=group,
        max_bytes_per_plan=group * draw(st.sampled_from([1, 2, 30])),
        max_num_groups=draw(st.sampled_from([1, 2, 30])),
        min_input_files=draw(st.sampled_from([1, 2, 2, 4])),
        max_files_per_group=draw(st.sampled_from([4, 9, 10_000])),
        strategy=strategy,
        log_only_slice_size_bytes=draw(st.integers(0, UNIT)),
        sort_columns=draw(st.sampled_from([(), ("city",)])),
        quiet_period=timedelta(minutes=15),
        compaction=draw(st.sampled_from([True, True, False])),
        compact_log_files=draw(st.sampled_from([0, 1, 2, 5])),
        compact_delete_files=draw(st.sampled_from([0, 1, 2, 5])),
        compact_log_bytes=draw(st.sampled_from([0, 50, 5000])),
        compact_log_ratio=draw(st.sampled_from([0.0, 0.5, 1.0])),
        compact_delete_ratio=draw(st.sampled_from([0.0, 0.3, 1.0])),
        compact_age=timedelta(hours=draw(st.sampled_from([0, 100]))),
        compact_delta_commits=draw(st.sampled_from([0, 3])),
        max_slices_per_compaction=draw(st.sampled_from([1, 3, 1000])),
        rewrite_first=draw(st.sampled_from(RewriteFirst)),
    )


@st.composite
def tables(draw: st.DrawFn) -> list[File]:
    """Up to 40 slices in up to three partitions, with deltas, group keys, young, busy and log-only ones among them."""
    top = draw(st.sampled_from([10, 300, UNIT, 2 * UNIT, 9 * UNIT]))
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["", "a", "b=1/c=2"]),
                st.integers(0, top),
                st.sampled_from([0, 0, 0, 1, 50, 5000]),
                st.sampled_from([1, 1, 2, 300, 10**6]),
                st.sampled_from(["", "", "", "", "", "busy", "logs"]),
                st.sampled_from([None, None, None, "k", "l"]),
                st.sampled_from([None, *DeltaKind]),
                st.sampled_from([None, 0, 3, 10]),
            ),
            max_size=40,
        )
    )
    return [
        File(
            id=f"f{i:02d}",
            partition=partition,
            bytes=size,
            log_bytes=logs,
            age=timedelta(minutes=15) - timedelta(seconds=1) if age == 2 else timedelta(hours=age),
            busy="pending clustering 1" if kind == "busy" else None,
            logs_only=kind == "logs",
            key=key,
            delta_kind=deltas,
            rows=10,
            deleted_rows=deleted if deltas is not None and deltas.is_conflicting else None,
        )
        for i, (partition, size, logs, age, kind, key, deltas, deleted) in enumerate(rows)
    ]


@FEW
@given(
    files=tables(),
    policy=policies(splitting=True),
    held=st.sets(st.sampled_from(["", "a", "x"])),
    chunks=st.integers(1, 4),
)
def test_every_slice_has_exactly_one_reason_and_the_sums_are_those_of_the_table(
    files: list[File], policy: SizingPolicy, held: set[str], chunks: int
) -> None:
    shot = snapshot(files, chunks=chunks)
    planning = plan_table(
        shot,
        policy,
        now=NOW,
        plan_id="p",
        constraints=PlanningConstraints(locked_partitions=dict.fromkeys(held, "live")),
    )
    decisions = planning.decisions
    assert decisions["file_id"].to_pylist() == [f.id for f in files]
    assert set(decisions["reason"].to_pylist()) <= set(Reason)
    assert all(planning.reason_texts(range(len(files))))
    assert decisions["bytes"].to_pylist() == [f.base_bytes for f in files]
    assert decisions["log_bytes"].to_pylist() == [f.log_bytes for f in files]
    in_plan = [s.file_id for g in planning.plan.groups for s in g.slices] if planning.plan else []
    chosen = [f.id for f, r in zip(files, decisions["reason"].to_pylist(), strict=True) if r == Reason.CHOSEN]
    assert sorted(in_plan) == chosen
    check_bounds(planning, held, {f.id: f for f in files})


def check_bounds(planning: PlanningResult, held: set[str], files: dict[str, File]) -> None:
    """What every plan keeps to."""
    policy, estimate = planning.policy, planning.estimate
    assert planning.reducible_bytes >= estimate.bytes_to_move
    if planning.plan is None:
        assert (estimate.groups, estimate.bytes_to_move, estimate.files_removed) == (0, 0, 0)
        return
    made = planning.plan
    assert not set(made.partitions) & held
    assert made.groups
    assert made.bytes == estimate.bytes_to_move <= policy.max_bytes_per_plan
    assert estimate.output_files == sum(g.output_files for g in made.groups)
    if made.kind is PlanKind.COMPACTION:
        assert policy.compaction
        assert len(made.groups) <= policy.max_slices_per_compaction
        for group in made.groups:
            (only,) = group.slices
            source = files[only.file_id]
            assert (group.partition, group.output_files) == (only.partition, 1)
            assert (only.path, only.bytes, only.log_bytes) == (source.path, source.base_bytes, source.log_bytes)
            assert only.log_files
            assert source.busy is None
            assert source.age >= policy.quiet_period or not (source.delta_kind and source.delta_kind.is_conflicting)
        return
    assert len(made.groups) <= policy.max_num_groups
    for group in made.groups:
        assert {s.partition for s in group.slices} == {group.partition}
        assert len({files[s.file_id].key for s in group.slices}) == 1
        if group.is_split:
            (only,) = group.slices
            assert policy.is_splitting
            assert only.bytes >= policy.split_file_limit_bytes
            assert not only.log_files
            assert group.output_files == -(-only.bytes // policy.target_file_max_bytes) >= 2
            assert files[only.file_id].busy is None
            assert files[only.file_id].age >= policy.quiet_period
            continue
        assert len(group.slices) >= max(2, policy.min_input_files)
        assert group.output_files < len(group.slices)
        counted = group.bytes
        if policy.strategy != BALANCED:
            counted = sum(policy.log_only_slice_size_bytes if s.path is None else s.bytes for s in group.slices)
        else:
            assert len(group.slices) <= policy.max_files_per_group
        assert counted <= policy.max_bytes_per_group
        assert group.output_files == max(1, -(-counted // policy.target_file_max_bytes))
        for s in group.slices:
            source = files[s.file_id]
            assert (s.partition, s.path, s.log_bytes) == (source.partition, source.path, source.log_bytes)
            assert s.bytes < policy.small_file_limit_bytes
            assert source.busy is None
            assert source.age >= policy.quiet_period


@FEW
@given(files=tables(), policy=policies(splitting=True), seed=st.integers(0, 99), chunks=st.integers(1, 4))
def test_the_order_of_the_listing_does_not_change_the_plan(
    files: list[File], policy: SizingPolicy, seed: int, chunks: int
) -> None:
    def made(listed: list[File], chunks: int) -> tuple[Plan | None, dict[str, tuple[str, int]]]:
        planning = plan_table(snapshot(listed, chunks=chunks), policy, now=NOW, plan_id="p")
        rows = planning.decisions.select(["file_id", "reason", "number"]).to_pylist()
        return planning.plan, {row["file_id"]: (row["reason"], row["number"]) for row in rows}

    shuffled = random.Random(seed).sample(files, len(files))
    assert made(files, 1) == made(shuffled, chunks)


@FEW
@given(
    files=tables(),
    policy=policies(splitting=True),
    chunks=st.integers(1, 4),
    range_size=st.integers(1, 6),
    block_size=st.integers(1, 6),
)
def test_a_table_planned_in_ranges_of_partitions_has_the_same_plan_and_reasons(
    files: list[File], policy: SizingPolicy, chunks: int, range_size: int, block_size: int
) -> None:
    shot = snapshot(files, chunks=chunks)
    whole = plan_table(shot, policy, now=NOW, plan_id="p")
    with (
        mock.patch.object(slice_columns, "SLICES_PER_RANGE", range_size),
        mock.patch.object(slice_columns, "_SLICES_PER_BLOCK", block_size),
    ):
        in_ranges = plan_table(shot, policy, now=NOW, plan_id="p")
    assert in_ranges.plan == whole.plan
    assert in_ranges.decisions.equals(whole.decisions)
    assert (in_ranges.estimate, in_ranges.benefit) == (whole.estimate, whole.benefit)


@given(
    partition=st.lists(st.integers(0, 9), max_size=60),
    range_size=st.integers(1, 20),
    block_size=st.integers(1, 20),
)
def test_ranges_tile_the_table_and_divide_no_partition(partition: list[int], range_size: int, block_size: int) -> None:
    numbers = np.array(partition, dtype=np.int32)
    rows = np.arange(len(numbers), dtype=np.int64)
    columns = slice_columns.SliceColumns(
        rows=rows, grouping_key=numbers, bytes=rows * 3, log_bytes=rows * 5, modified_us=rows * 7
    )
    with mock.patch.object(slice_columns, "_SLICES_PER_BLOCK", block_size):
        ranges = list(slice_columns.partition_ranges(numbers, columns, range_size))
    assert sorted(row for part in ranges for row in part.rows.tolist()) == rows.tolist()
    last = -1
    for part in ranges:
        assert part.rows.tolist() == sorted(part.rows.tolist())
        assert part.grouping_key.tolist() == numbers[part.rows].tolist()
        for column, factor in ((part.bytes, 3), (part.log_bytes, 5), (part.modified_us, 7)):
            assert column.tolist() == (part.rows * factor).tolist()
        if len(part.rows):
            assert part.grouping_key.min() > last
            last = int(part.grouping_key.max())
        largest = max(np.bincount(part.grouping_key).tolist(), default=0)
        assert len(part.rows) <= range_size + largest


def rewritten(files: list[File], made: Plan, rng: random.Random | None, round_: int) -> list[File]:
    """The table after ``made``: equal outputs, or with ``rng`` what real writers do.

    A real writer gets an uneven share, grows or shrinks it by up to a tenth, and goes on to a further file once
    it has written between the target and 1.1 × the target.
    """
    keys = {f.id: f.key for f in files}
    gone = {s.file_id for group in made.groups for s in group.slices}
    left = [f for f in files if f.id not in gone]
    if made.kind is PlanKind.COMPACTION:
        return left + [
            File(
                id=s.file_id,
                bytes=s.total_bytes if s.path is None else s.bytes,
                partition=s.partition,
                key=keys[s.file_id],
            )
            for group in made.groups
            for s in group.slices
        ]
    target = made.options.target_file_max_bytes
    for place, group in enumerate(made.groups):
        count = group.output_files
        if rng is None:
            sizes = [group.bytes // count] * count
        else:
            shares = [rng.random() ** 2 + 1e-9 for _ in range(count)]
            sizes = []
            for share in shares:
                rest = int(group.bytes * rng.uniform(0.9, 1.1) * share / sum(shares))
                while rest > 0:
                    sizes.append(min(rest, int(target * rng.uniform(1, 1.1))))
                    rest -= sizes[-1]
        left += [
            File(id=f"r{round_}-{place}-{i}", bytes=size, partition=group.partition, key=keys[group.slices[0].file_id])
            for i, size in enumerate(sizes)
        ]
    return left


def small(files: list[File], policy: SizingPolicy) -> int:
    return sum(f.logs_only or f.bytes < policy.small_file_limit_bytes for f in files)


def run_to_the_end(
    files: list[File], policy: SizingPolicy, rng: random.Random | None, delta_commits: int = 0
) -> tuple[list[File], int, int]:
    """Plan and apply until there is no plan: the table, bytes moved and groups applied, of clusterings."""
    moved = applied = compacted = 0
    logs = sum(f.log_bytes > 0 for f in files)
    while (planning := plan(files, policy, delta_commits=delta_commits)).plan is not None:
        before = small(files, policy)
        files = rewritten(files, planning.plan, rng, applied)
        if planning.plan.kind is PlanKind.COMPACTION:
            compacted += len(planning.plan.groups)
            delta_commits = 0
            assert small(files, policy) <= before
            continue
        moved += planning.estimate.bytes_to_move
        applied += len(planning.plan.groups)
        assert small(files, policy) <= before - len(planning.plan.groups), "every group removes a small file"
    assert compacted <= logs, "no slice is compacted twice"
    return files, moved, applied


@FEW
@given(
    files=tables(), policy=policies(), noise=st.none() | st.integers(0, 10**6), delta_commits=st.sampled_from([0, 4])
)
def test_planning_ends_for_every_valid_policy_with_bounded_bytes(
    files: list[File], policy: SizingPolicy, noise: int | None, delta_commits: int
) -> None:
    start = small(files, policy)
    logs = sum(f.log_bytes for f in files)
    rng = None if noise is None else random.Random(noise)
    settled, moved, applied = run_to_the_end(files, policy, rng, delta_commits)
    assert applied <= max(start - 1, 0)
    assert moved <= applied * policy.max_bytes_per_group + (logs if policy.strategy != BALANCED else 0)
    again = plan(settled, policy)
    assert again.plan is None
    # What is still reducible waits for something, and is planned when that is over; the rest is residual.
    over = plan(
        [replace(f, busy=None) for f in settled],
        replace(policy, quiet_period=timedelta()),
        delta_commits=0,
    )
    if not any(f.busy and f.log_bytes for f in settled):
        assert any(again.decisions["reducible"].to_pylist()) == (over.plan is not None)


@FEW
@given(files=tables(), policy=policies(splitting=True), noise=st.none() | st.integers(0, 10**6))
def test_a_large_file_is_split_once_and_planning_ends(
    files: list[File], policy: SizingPolicy, noise: int | None
) -> None:
    rng = None if noise is None else random.Random(noise)
    limit = policy.split_file_limit_bytes
    # A slice of logs only becomes a base file as large as its logs.
    large = {f.id for f in files if max(f.base_bytes, f.log_bytes if f.logs_only else 0) >= limit > 0}
    split: set[str] = set()
    for round_ in range(10 * len(files) + 10):
        planning = plan(files, policy)
        if planning.plan is None:
            break
        divided = {group.slices[0].file_id for group in planning.plan.groups if group.is_split}
        assert divided <= large - split
        split |= divided
        files = rewritten(files, planning.plan, rng, round_)
    else:
        pytest.fail("planning does not end")
    for file in files:
        if policy.is_splitting and file.base_bytes >= policy.split_file_limit_bytes:
            waits = file.busy or file.log_bytes or file.age < policy.quiet_period
            assert waits or file.bytes > policy.max_bytes_per_plan


@FEW
@given(files=tables(), policy=policies(), noise=st.none() | st.integers(0, 10**6))
def test_balanced_planning_omits_no_files_that_could_become_fewer(
    files: list[File], policy: SizingPolicy, noise: int | None
) -> None:
    policy = SizingPolicy.from_settings({"strategy": "balanced"}, base=policy)
    settled, _, _ = run_to_the_end(files, policy, None if noise is None else random.Random(noise))
    for partition, key in {(f.partition, f.key) for f in settled}:
        sizes = sorted(
            (0 if f.logs_only else f.bytes) + f.log_bytes
            for f in settled
            if (f.partition, f.key) == (partition, key)
            and f.busy is None
            and f.age >= policy.quiet_period
            and (f.logs_only or f.bytes < policy.small_file_limit_bytes)
        )
        sizes = [size for size in sizes if size <= policy.target_file_max_bytes]
        for count in range(max(2, policy.min_input_files), min(len(sizes), policy.max_files_per_group) + 1):
            total = sum(sizes[:count])
            if total <= policy.max_bytes_per_group:
                assert max(1, -(-total // policy.target_file_max_bytes)) >= count


@pytest.mark.parametrize("strategy", [BALANCED, "hudi"])
@pytest.mark.parametrize(
    ("limit", "target", "most_moved"),
    [(300, 1024, 1.6), (512, 1024, 1.8), (600, 1024, 1.8), (768, 1024, 2.2), (1024, 1024, 2.5)],
)
@pytest.mark.parametrize("noisy", [False, True])
def test_a_byte_is_moved_about_once_on_the_way_to_the_end(
    strategy: str, limit: int, target: int, most_moved: float, noisy: bool
) -> None:
    policy = SizingPolicy(
        strategy=strategy, small_file_limit_bytes=limit * MIB, target_file_max_bytes=target * MIB, max_num_groups=5
    )
    for seed in range(20 if SOAK else 4):
        rng = random.Random(seed)
        files = [
            File(id=f"f{i}", bytes=rng.randint(1, limit * MIB - 1), age=timedelta(hours=rng.randint(1, 99)))
            for i in range(60)
        ]
        total = sum(f.bytes for f in files)
        settled, moved, _ = run_to_the_end(files, policy, rng if noisy else None)
        assert moved <= most_moved * total
        assert small(settled, policy) <= 60 * (0.75 if limit > 512 else 0.1)
        if not noisy and 2 * limit <= target:
            assert moved <= total


def test_a_settled_table_stays_settled_when_only_large_files_are_added() -> None:
    policy = SizingPolicy.from_settings({"clustering.plan.strategy.small.file.limit": 600})
    files = [File(id=f"f{i}", bytes=(100 + i) * MIB) for i in range(30)]
    settled, _, _ = run_to_the_end(files, policy, None)
    planning = plan([*settled, File(id="new", bytes=700 * MIB)], policy)
    assert planning.plan is None
    assert outputs(planning) == []
