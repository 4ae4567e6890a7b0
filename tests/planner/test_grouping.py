# SPDX-License-Identifier: Apache-2.0
"""How candidates are put into groups, and which groups a plan takes."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from grouping import form_groups
from hudi_scheduler import hudi_groups
from hypothesis import example, given
from hypothesis import strategies as st
from plan_inputs import GIB, MIB, NOW, File, groups, outputs, plan, reasons, snapshot, texts

from lake.model import DeltaKind
from lake.plan import FailedPlan
from planner.candidates import PlanningConstraints, find_candidates
from planner.groups import cut_evenly, cut_greedily
from planner.policy.policy import BALANCED, SizingPolicy


def series(*sizes: int, partition: str = "p", name: str = "") -> list[File]:
    """Files named 0, 1, 2 … from the oldest to the newest."""
    return [
        File(id=f"{name}{i}", bytes=size, partition=partition, age=timedelta(days=2) - timedelta(minutes=i))
        for i, size in enumerate(sizes)
    ]


def test_small_files_of_one_partition_become_one_group() -> None:
    planning = plan(series(10 * MIB, 5 * MIB, 20 * MIB))
    assert groups(planning) == [["0", "1", "2"]]
    assert outputs(planning) == [1]
    assert planning.estimate.files_removed == 2
    assert planning.estimate.bytes_to_move == 35 * MIB
    assert (planning.estimate.small_files_before, planning.estimate.small_files_after) == (3, 1)


def test_a_group_has_as_many_outputs_as_its_bytes_fill_targets() -> None:
    planning = plan(series(*[256 * MIB] * 8))
    assert (outputs(planning), planning.estimate.small_files_after) == ([2], 0)
    planning = plan(series(*[256 * MIB] * 4))
    assert outputs(planning) == [1]
    planning = plan([*series(*[256 * MIB] * 4), File(id="more", bytes=1)])
    assert (outputs(planning), planning.estimate.small_files_after) == ([2], 0)


def test_a_large_file_is_split_into_files_of_at_most_the_target() -> None:
    files = [*series(10 * MIB, 20 * MIB), File(id="large", bytes=2 * GIB + 1), File(id="below", bytes=2 * GIB - 1)]
    split = {"split_file_limit": "2GiB"}
    planning = plan(files, split)
    assert groups(planning) == [["0", "1"], ["large"]]
    assert outputs(planning) == [1, 3]
    assert reasons(planning)["below"] == "above_limit"
    assert planning.estimate.files_removed == -1
    assert (planning.estimate.small_files_before, planning.estimate.small_files_after) == (2, 1)
    assert (planning.reducible_files, planning.reducible_bytes) == (2, 30 * MIB + 2 * GIB + 1)
    assert groups(plan(files)) == [["0", "1"]], "off by default"


def test_a_file_to_split_waits_as_any_other_file_does() -> None:
    large = File(id="large", bytes=3 * GIB)
    split = {"split_file_limit": "2GiB"}
    assert reasons(plan([replace(large, age=timedelta(minutes=1))], split)) == {"large": "recent"}
    assert reasons(plan([replace(large, busy="pending clustering 1")], split)) == {"large": "busy"}
    assert reasons(plan([large], {**split, "max_bytes_per_plan": "2GiB"})) == {"large": "over_plan"}
    assert groups(plan([replace(large, log_bytes=1)], {**split, "compaction": False})) == []
    assert groups(plan([large], {**split, "payback": "1d"})) == [["large"]], "no file to split has to save its cost"


def test_merging_small_files_precedes_splitting() -> None:
    files = [File(id="large", bytes=3 * GIB), *series(10 * MIB, 20 * MIB)]
    planning = plan(files, {"split_file_limit": "2GiB", "max_num_groups": 1})
    assert groups(planning) == [["0", "1"]]
    assert reasons(planning)["large"] == "next_plan_groups"


def test_a_total_exactly_at_max_bytes_per_group_fits_and_one_byte_more_does_not() -> None:
    settings = {"small_file_limit_bytes": 30, "target_file_max_bytes": 60, "max_bytes_per_group": 100}
    assert groups(plan(series(25, 25, 25, 25), settings)) == [["0", "1", "2", "3"]]
    assert groups(plan(series(25, 25, 25, 26), settings)) == [["0", "1"], ["2", "3"]]


def test_a_total_exactly_at_max_bytes_per_group_fits_as_it_does_for_hudi() -> None:
    settings = {
        "strategy": "hudi",
        "small_file_limit_bytes": 30,
        "target_file_max_bytes": 60,
        "max_bytes_per_group": 100,
    }
    assert groups(plan(series(25, 25, 25, 25), settings)) == [["0", "1", "2", "3"]]
    assert groups(plan(series(25, 25, 25, 26, 24), settings)) == [["3", "0", "1"], ["2", "4"]]


def test_groups_exactly_at_max_bytes_per_plan_fit_and_one_byte_more_does_not() -> None:
    files = [*series(50, 50, partition="a", name="a"), *series(50, 50, partition="b", name="b")]
    settings = {"small_file_limit_bytes": 60, "target_file_max_bytes": 100, "max_bytes_per_group": 100}
    assert len(groups(plan(files, {**settings, "max_bytes_per_plan": 200}))) == 2
    planning = plan(files, {**settings, "max_bytes_per_plan": 199})
    assert groups(planning) == [["a0", "a1"]]
    assert reasons(planning)["b0"] == "next_plan_bytes"


def test_groups_of_a_large_partition_are_neighbours_in_time_and_about_equal() -> None:
    planning = plan(series(*[200 * MIB] * 25))
    assert groups(planning) == [[str(i) for i in run] for run in (range(8), range(8, 16), range(16, 25))]
    shuffled = plan(list(reversed(series(*[200 * MIB] * 25))))
    assert groups(shuffled) == groups(planning)


def test_the_bytes_of_logs_count_in_a_group() -> None:
    settings = {
        "small_file_limit_bytes": 30,
        "target_file_max_bytes": 60,
        "max_bytes_per_group": 100,
        "compaction": False,
    }
    files = [File(id=str(i), bytes=10, log_bytes=16, age=timedelta(days=1, minutes=-i)) for i in range(5)]
    planning = plan(files, settings)
    assert groups(planning) == [["0", "1"], ["2", "3", "4"]]
    assert planning.plan is not None
    assert [group.bytes for group in planning.plan.groups] == [52, 78]
    assert planning.estimate.bytes_to_move == 130


def test_a_group_has_at_most_max_files_per_group() -> None:
    planning = plan(series(*[10] * 10), {"max_files_per_group": 4})
    assert [len(group) for group in groups(planning)] == [3, 3, 4]


def test_files_that_only_fit_by_size_are_merged_although_others_lie_between_them() -> None:
    settings = {"small_file_limit_bytes": 1000, "target_file_max_bytes": 1000, "max_bytes_per_group": 1000}
    planning = plan(series(995, 10, 995, 10), settings)
    assert groups(planning) == [["1", "3"]]
    assert reasons(planning) == {"0": "no_gain", "1": "chosen", "2": "no_gain", "3": "chosen"}


def test_flinks_files_of_599_mb_are_merged_three_into_two() -> None:
    planning = plan(series(*[599 * MIB] * 4), {"clustering.plan.strategy.small.file.limit": 600})
    assert (groups(planning), outputs(planning)) == ([["0", "1", "2"]], [2])
    assert planning.estimate.small_files_after == 1


def test_a_group_never_crosses_a_partition() -> None:
    planning = plan([*series(10, 10, partition="a", name="a"), *series(10, 10, partition="b", name="b")])
    assert groups(planning) == [["a0", "a1"], ["b0", "b1"]]
    assert planning.plan is not None
    assert planning.plan.partitions == ("a", "b")


def test_a_lone_file_is_not_rewritten_just_to_sort_it() -> None:
    settings = {"sort_columns": "city", "hoodie.clustering.plan.strategy.single.group.clustering.enabled": "true"}
    for strategy in (BALANCED, "hudi"):
        planning = plan(series(10), {**settings, "strategy": strategy})
        assert planning.plan is None
    planning = plan(series(10, 10), settings)
    assert planning.plan is not None
    assert planning.plan.options.sort_columns == ("city",)


def test_the_plan_takes_the_groups_that_remove_most_files_for_their_share_of_it() -> None:
    many = series(*[MIB] * 100, partition="many", name="m")
    pair = series(1, 1, partition="pair", name="p")
    heavy = series(*[250 * MIB] * 4, partition="heavy", name="h")
    planning = plan([*pair, *heavy, *many], {"max_num_groups": 1})
    assert planning.plan is not None
    assert planning.plan.partitions == ("many",)
    assert reasons(planning)["p0"] == reasons(planning)["h3"] == "next_plan_groups"
    assert (planning.reducible_files, planning.reducible_bytes) == (106, 100 * MIB + 2 + 1000 * MIB)


def test_a_smaller_group_is_taken_where_a_better_one_does_not_fit() -> None:
    best = series(*[100 * MIB] * 19, partition="best", name="b")
    good = series(*[100 * MIB] * 15, partition="good", name="g")
    tiny = series(MIB, MIB, partition="tiny", name="t")
    planning = plan([*good, *tiny, *best], {"max_bytes_per_plan": "2GiB"})
    assert planning.plan is not None
    assert planning.plan.partitions == ("best", "tiny")
    assert reasons(planning)["g0"] == "next_plan_bytes"
    assert planning.plan.bytes == 1902 * MIB


def test_held_partitions_are_left_out_of_the_plan_and_still_reducible() -> None:
    files = [*series(10, 10, partition="a", name="a"), *series(10, 10, partition="b", name="b")]
    planning = plan(files, locked_partitions={"a": "live"})
    assert groups(planning) == [["b0", "b1"]]
    assert (planning.reducible_files, planning.reducible_bytes) == (4, 40)


WAITING = {
    "its quiet period": File(id="a", bytes=10, age=timedelta(minutes=1)),
    "an action pending on the table": File(id="a", bytes=10, busy="pending clustering 7"),
}


@pytest.mark.parametrize("waiting", WAITING.values(), ids=WAITING)
def test_waiting_files_that_a_later_plan_takes_are_reducible_now(waiting: File) -> None:
    planning = plan([waiting, File(id="b", bytes=20), File(id="alone", partition="q", bytes=5)])
    assert planning.plan is None
    assert planning.decisions["reducible"].to_pylist() == [True, True, False]
    assert (planning.reducible_files, planning.reducible_bytes) == (2, 30)


def test_failed_files_stay_reducible_and_unreadable_files_do_not() -> None:
    files = series(10, 10, 10)
    first = plan(files).plan
    assert first is not None
    slices = tuple(s for group in first.groups for s in group.slices)
    failed = FailedPlan(plan_id="p", attempts=5, error="no", slices=slices)
    again = plan(files, failed=[failed])
    assert (again.plan, again.reducible_files) == (None, 3)
    assert plan(files, quarantined=[s.path for s in slices if s.path]).reducible_files == 0


def test_logs_that_are_pending_in_a_foreign_compaction_are_not_counted_as_work() -> None:
    large = File(id="a", bytes=GIB, log_bytes=GIB, logs=tuple(f".a.log.{n}" for n in range(9)))
    assert plan([large]).reducible_bytes == 2 * GIB
    assert plan([replace(large, busy="pending compaction 7")]).reducible_bytes == 0


def test_a_plan_has_its_id_its_snapshot_and_the_data_that_the_executor_needs() -> None:
    files = [File(id="a", bytes=3, rows=7), File(id="b", bytes=4, log_bytes=5, logs=(".b.log.1", ".b.log.2"))]
    settings = {"target_file_max": "500MiB", "engine": "spark", "rewrite_first": "clustering"}
    planning = plan(files, settings, plan_id="0198")
    made = planning.plan
    assert made is not None
    assert (made.plan_id, made.snapshot_instant, made.kind, made.table.name) == (
        "0198",
        "20260301",
        "clustering",
        "trips",
    )
    assert (made.options.target_file_max_bytes, made.options.engine) == (500 * MIB, "spark")
    first, second = made.groups[0].slices
    assert (first.path, first.rows, first.log_files, first.total_bytes) == ("p/a.parquet", 7, (), 3)
    assert (second.path, second.rows, second.log_files, second.total_bytes) == (
        "p/b.parquet",
        None,
        (".b.log.1", ".b.log.2"),
        9,
    )


# --- Hudi's own grouping -------------------------------------------------------------------------------------------


def hudi_by_hand(files: list[File], policy: SizingPolicy, single_groups: bool = True) -> list[tuple[list[str], int]]:
    """Hudi's rules one slice at a time, as its documentation and sources state them: (file ids, outputs)."""
    plan: list[tuple[list[str], int]] = []
    for partition in sorted({f.partition for f in files}):
        made: list[tuple[list[str], int]] = []
        small = [
            f for f in files if f.partition == partition and (f.logs_only or f.bytes < policy.small_file_limit_bytes)
        ]
        size = {f.id: policy.log_only_slice_size_bytes if f.logs_only else f.bytes for f in small}
        small.sort(key=lambda f: (-size[f.id], f.id))
        group: list[str] = []
        total = 0
        for f in small:
            if group and total + size[f.id] > policy.max_bytes_per_group:
                made.append((group, -(-total // policy.target_file_max_bytes)))
                group, total = [], 0
            group = [*group, f.id]
            total += size[f.id]
        if group:
            made.append((group, -(-total // policy.target_file_max_bytes)))
        made = [(group, max(count, 1)) for group, count in made[: policy.max_num_groups]]
        plan += [(group, count) for group, count in made if single_groups or len(group) > 1 or count > 1]
    return plan[: policy.max_num_groups]


@given(
    sizes=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 120), st.booleans(), st.integers(0, 50)), max_size=40
    ),
    limit=st.integers(1, 100),
    target=st.integers(0, 60),
    group=st.integers(0, 200),
    missing=st.integers(0, 150),
    most=st.integers(1, 5),
    single_groups=st.booleans(),
)
@pytest.mark.slow
def test_the_hudi_strategy_groups_as_hudi_does_and_then_leaves_out_groups_without_gain(
    sizes: list[tuple[str, int, bool, int]],
    limit: int,
    target: int,
    group: int,
    missing: int,
    most: int,
    single_groups: bool,
) -> None:
    files = [
        File(id=f"f{i:02d}", partition=partition, bytes=size, logs_only=only and size % 5 == 0, log_bytes=logs)
        for i, (partition, size, only, logs) in enumerate(sizes)
    ]
    policy = SizingPolicy(
        strategy="hudi",
        small_file_limit_bytes=limit,
        target_file_max_bytes=limit + target,
        max_bytes_per_group=limit + target + group,
        log_only_slice_size_bytes=missing,
        max_num_groups=most,
        quiet_period=timedelta(0),
        compaction=False,
    )
    before = hudi_groups(snapshot(files), policy, now=NOW, single_groups=single_groups)
    assert [([s.file_id for s in g.slices], g.output_files) for g in before] == hudi_by_hand(
        files, policy, single_groups
    )
    planning = plan(files, policy)
    made = list(zip(groups(planning), outputs(planning), strict=True))
    every_group = hudi_by_hand(files, replace(policy, max_num_groups=1000))
    assert made == [(group, count) for group, count in every_group if len(group) > count][:most]


def test_the_hudi_strategy_takes_the_largest_first_and_counts_no_logs() -> None:
    settings = {
        "strategy": "hudi",
        "hoodie.clustering.plan.strategy.small.file.limit": 50,
        "hoodie.clustering.plan.strategy.target.file.max.bytes": 60,
        "hoodie.clustering.plan.strategy.max.bytes.per.group": 100,
        "compaction": False,
    }
    files = [
        File(id="10", bytes=10, log_bytes=10**9),
        File(id="49", bytes=49),
        File(id="41", bytes=41),
        File(id="30", bytes=30),
        File(id="5", bytes=5),
    ]
    planning = plan(files, settings)
    assert groups(planning) == [["30", "10", "5"]]
    assert reasons(planning) == {"49": "no_gain", "41": "no_gain", "30": "chosen", "10": "chosen", "5": "chosen"}


def test_the_hudi_strategy_can_sort_by_the_instants_of_base_files_with_slices_of_logs_first() -> None:
    sizes = {"old": (5, 20260101), "big": (49, 20260102), "logs": (0, None), "new": (20, 20260102)}
    files = [
        File(id=name, bytes=size, written=written, logs_only=written is None, log_bytes=1)
        for name, (size, written) in sizes.items()
    ]
    listing = snapshot(files)
    for fields, expected in (
        (("instant_time", "size"), ["logs", "old", "big", "new"]),
        (("size",), ["logs", "big", "new", "old"]),
    ):
        (group,) = hudi_groups(listing, SizingPolicy(file_slices_sort_by=fields), now=NOW)
        assert [s.file_id for s in group.slices] == expected


def test_groups_without_gain_do_not_take_the_places_of_a_hudi_plan() -> None:
    lone = [File(id=f"lone{i}", bytes=10, partition=f"a{i:02d}") for i in range(40)]
    planning = plan([*lone, *series(10, 10, partition="z")], {"strategy": "hudi"})
    assert groups(planning) == [["0", "1"]]
    assert reasons(planning)["lone3"] == "alone"


def test_a_hudi_group_that_exceeds_a_plan_with_its_logs_has_that_reason() -> None:
    files = [File(id="a", bytes=1, log_bytes=61 * GIB), File(id="b", bytes=1)]
    planning = plan(files, {"strategy": "hudi", "compaction": False})
    assert reasons(planning) == {"a": "over_plan", "b": "over_plan"}
    assert planning.reason_text(0) == "its group with logs is 61.0 GiB, more than 60.0 GiB per plan"
    assert planning.reducible_bytes == 0


# --- cutting -------------------------------------------------------------------------------------------------------

ROWS = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=30), min_size=1, max_size=5)


@pytest.mark.parametrize("cut", [cut_evenly, cut_greedily])
@given(rows=ROWS, most=st.integers(50, 300), most_files=st.integers(1, 12))
def test_a_cut_tiles_every_row_within_its_bounds(cut, rows: list[list[int]], most: int, most_files: int) -> None:  # type: ignore[no-untyped-def]
    sizes = np.array([size for row in rows for size in row], dtype=np.int64)
    total = np.concatenate(([0], np.cumsum(sizes)))
    ends = np.cumsum([len(row) for row in rows])
    starts = ends - [len(row) for row in rows]
    start, end = cut(total, starts, ends, most, most_files)
    assert start.tolist() == [0, *end.tolist()[:-1]]
    assert end[-1] == len(sizes)
    assert set(ends.tolist()) <= set(end.tolist())
    assert all(0 < n <= most_files for n in (end - start).tolist())
    assert all(size <= most for size in (total[end] - total[start]).tolist())


# Two halves that the slices' sizes make unequal: the larger one is cut once more.
@example(row=[1] * 11 + [44, 49, 49, 49, 49, 5, 49, 49, 46, 1, 1, 1, 3, 49, 49], most=252)
@given(row=st.lists(st.integers(1, 50), min_size=1, max_size=60), most=st.integers(100, 400))
def test_an_even_cut_leaves_no_rest_below_half(row: list[int], most: int) -> None:
    total = np.concatenate(([0], np.cumsum(np.array(row, dtype=np.int64))))
    start, end = cut_evenly(total, np.array([0]), np.array([len(row)]), most, 10_000)
    runs = total[end] - total[start]
    if len(runs) > 1:
        assert runs.min() >= runs.max() / 2 - 2 * max(row)


def test_a_full_tie_is_broken_by_the_file_id() -> None:
    files = [File(id=name, bytes=10, partition=partition) for partition in "ba" for name in ("c", "a", "d", "b")]
    shot = snapshot(files, chunks=3)
    found = find_candidates(shot, SizingPolicy(), PlanningConstraints(), now=NOW)
    formed = form_groups(found, SizingPolicy())
    ids = shot.slices["file_id"].to_pylist()
    assert [ids[row] for row in formed.rows.tolist()] == ["a", "b", "c", "d"] * 2
    assert found.partitions == ["a", "b"]
    assert formed.partition.tolist() == [0, 1]


@pytest.mark.slow
def test_times_and_sizes_too_wide_to_pack_are_still_sorted() -> None:
    files = [
        File(id="new", bytes=1, partition="a"),
        File(id="epoch", bytes=1, partition="a", age=timedelta(days=365 * 50)),
        *(File(id=f"{i}", bytes=1, partition=f"p{i}") for i in range(20_000)),
    ]
    assert groups(plan(files)) == [["epoch", "new"]]


def test_slices_of_logs_only_are_planned_and_estimated_as_files_that_are_not_there_yet() -> None:
    files = [File(id=str(i), bytes=0, log_bytes=MIB, logs=("l",), logs_only=True) for i in range(3)]
    planning = plan([*files, File(id="base", bytes=MIB)], {"compaction": False})
    assert planning.plan is not None
    assert (len(planning.plan.groups[0].slices), planning.plan.input_files, planning.plan.bytes) == (4, 1, 4 * MIB)
    estimate = planning.estimate
    assert (estimate.small_files_before, estimate.small_files_after) == (1, 1)
    assert (estimate.input_files, estimate.output_files, estimate.files_removed) == (4, 1, 3)


@pytest.mark.parametrize("strategy", [BALANCED, "hudi"])
def test_slices_of_different_group_keys_are_never_in_one_group(strategy: str) -> None:
    keys = [None, "spec 1", "spec 2", None, "spec 2", "spec 1", "alone"]
    files = [File(id=f"{n}{p}", bytes=10 + n, partition=p, key=key) for p in "qp" for n, key in enumerate(keys)]
    planning = plan(files, {"strategy": strategy})
    made = {frozenset(group) for group in groups(planning)}
    assert made == {frozenset(f"{n}{p}" for n in pair) for p in "pq" for pair in ((0, 3), (1, 5), (2, 4))}
    assert [group.partition for group in planning.plan.groups] == ["p"] * 3 + ["q"] * 3  # type: ignore[union-attr]
    assert texts(planning)["6p"] == "alone in its partition with alone"


def test_reasons_name_the_kind_of_delta() -> None:
    kinds = [None, *DeltaKind]
    files = [File(id=kind or "", bytes=GIB, log_bytes=1, delta_kind=kind) for kind in kinds]
    assert texts(plan(files)) == {
        "": "1 of 5 log files",
        "log file": "1 of 5 log files",
        "delete file": "1 of 5 delete files (compact_delete_files)",
        "deletion vector": "1 deletion vector, below the number that starts a compaction",
    }
