# SPDX-License-Identifier: Apache-2.0
"""Slices with logs: what makes one due, which go first, who gets what both kinds want, and why the others wait."""

from collections.abc import Mapping
from datetime import timedelta
from itertools import chain
from typing import Any

import pytest
from plan_inputs import GIB, MIB, File, groups, outputs, plan, reasons, texts

from lake.model import DeltaKind
from lake.plan import PlanKind
from planner.policy.policy import PolicyError, SizingPolicy
from planner.reasons import Reason

OFF = {
    **{"compact_log_files": 0, "compact_delete_files": 0, "compact_log_bytes": 0, "compact_log_ratio": 0},
    "compact_delete_ratio": 0,
}


def logs(count: int) -> tuple[str, ...]:
    return tuple(f".log.{number}" for number in range(count))


def sliced(id: str, count: int, log_bytes: int, **more: Any) -> File:
    """A large slice with ``count`` log files."""
    return File(id=id, **{"bytes": GIB, "logs": logs(count), "log_bytes": log_bytes, **more})


@pytest.mark.parametrize(
    ("settings", "file", "delta_commits", "due"),
    [
        ({}, sliced("a", 4, MIB), 0, False),
        ({}, sliced("a", 5, MIB), 0, True),
        ({}, sliced("a", 1, 256 * MIB - 1), 0, False),
        ({}, sliced("a", 1, 256 * MIB), 0, True),
        ({}, sliced("a", 1, 10 * MIB - 1, bytes=10 * MIB), 0, False),
        ({}, sliced("a", 1, 10 * MIB, bytes=10 * MIB), 0, True),
        ({}, sliced("a", 1, 1, logs_only=True), 0, True),
        (OFF, sliced("a", 99, 9 * GIB, logs_only=True), 99, False),
        (OFF | {"compact_age": "2h"}, sliced("a", 1, 1, log_age=timedelta(hours=2)), 0, True),
        (OFF | {"compact_age": "2h"}, sliced("a", 1, 1, log_age=timedelta(minutes=119)), 0, False),
        (OFF | {"compact_delta_commits": 3}, sliced("a", 1, 1), 3, True),
        (OFF | {"compact_delta_commits": 3}, sliced("a", 1, 1), 2, False),
        (OFF | {"compact_delta_commits": 3}, File(id="a", bytes=GIB), 3, False),
        ({"compaction": False}, sliced("a", 99, 9 * GIB), 0, False),
    ],
)
def test_a_slice_is_due_when_any_trigger_is_reached(
    settings: Mapping[str, Any], file: File, delta_commits: int, due: bool
) -> None:
    planning = plan([file], {"max_bytes_per_plan": "1TiB", **settings}, delta_commits=delta_commits)
    assert (reasons(planning)["a"] == "chosen") is due
    assert (planning.plan is not None) is due
    if planning.plan is not None:
        assert planning.plan.kind is PlanKind.COMPACTION
        assert (groups(planning), outputs(planning)) == ([["a"]], [1])
        assert planning.plan.groups[0].slices[0].log_files == file.logs


@pytest.mark.parametrize(
    ("file", "settings", "reason", "text"),
    [
        (sliced("a", 3, MIB), {}, "few_logs", "3 of 5 log files"),
        (sliced("a", 1, MIB, bytes=MIB + 1), {}, "few_logs", "1 of 5 log files"),
        (
            sliced("a", 2, 2 * GIB, bytes=1),
            {"compact_log_bytes": 0, "compact_log_ratio": 0},
            "few_logs",
            "2 of 5 log files",
        ),
        (sliced("a", 2, 1), OFF, "few_logs", "2 log files, below the number that starts a compaction"),
        (sliced("a", 3, MIB), {"compaction": False}, "above_limit", "above limit 1.0 GiB ≥ 300 MiB"),
        (sliced("a", 9, MIB, busy="pending compaction 20260301"), {}, "busy", "pending compaction 20260301"),
        (sliced("a", 9, 60 * GIB), {}, "over_plan", "its group with logs is 61.0 GiB, more than 60.0 GiB per plan"),
        (
            sliced("a", 9, MIB, partition="q"),
            {"partition_regex": "p", "partition_filter": "regex"},
            "filtered",
            "partition not selected (regex)",
        ),
        (sliced("a", 9, MIB, age=timedelta(0)), {}, "chosen", "chosen, group 1"),
    ],
)
def test_a_slice_with_logs_has_its_reason(file: File, settings: Mapping[str, Any], reason: str, text: str) -> None:
    planning = plan([file], settings)
    assert (reasons(planning)["a"], texts(planning)["a"]) == (reason, text)


def deleting(id: str, deleted: int | None, kind: DeltaKind = DeltaKind.VECTOR, **more: Any) -> File:
    """A large file of 1,000 rows with so many of them deleted."""
    delta = {"logs": ("v.bin",), "log_bytes": 40, "delta_kind": kind, "deleted_rows": deleted}
    return File(id=id, **{"bytes": GIB, "rows": 1_000, **delta, **more})


@pytest.mark.parametrize("kind", DeltaKind)
def test_only_log_files_do_not_wait_for_the_quiet_period(kind: DeltaKind) -> None:
    file = sliced("a", 9, GIB, delta_kind=kind, age=timedelta(minutes=10))
    waits = kind is not DeltaKind.LOG
    planning = plan([file])
    assert reasons(planning)["a"] == ("recent" if waits else "chosen")
    assert planning.decisions["reducible"].to_pylist() == [True], "it is due once it has come to rest"
    if waits:
        assert texts(planning)["a"] == "waiting: modified 10 min ago, until 12:05 UTC (quiet_period is 15 min)"
    at_rest = plan([file], {"quiet_period": "10min"})
    assert groups(at_rest) == [["a"]]


@pytest.mark.parametrize("kind", [DeltaKind.DELETES, DeltaKind.VECTOR])
@pytest.mark.parametrize(
    ("settings", "file", "reason", "text"),
    [
        ({}, {"deleted": 600}, "chosen", "chosen, group 1"),
        ({}, {"deleted": 300}, "chosen", "chosen, group 1"),
        ({}, {"deleted": 299}, "few_deleted", "29.9 % of its rows are deleted, 30 % needed"),
        ({}, {"deleted": 1, "rows": 10**9}, "few_deleted", "less than 0.1 % of its rows are deleted, 30 % needed"),
        ({"compact_delete_ratio": "60%"}, {"deleted": 590}, "few_deleted", "59 % of its rows are deleted, 60 % needed"),
        ({"compact_delete_ratio": 0.05}, {"deleted": 50}, "chosen", "chosen, group 1"),
        ({"compaction": False}, {"deleted": 600}, "above_limit", "above limit 1.0 GiB ≥ 300 MiB"),
    ],
)
def test_a_slice_is_due_with_a_share_of_its_rows_deleted(
    kind: DeltaKind, settings: Mapping[str, Any], file: dict[str, Any], reason: str, text: str
) -> None:
    planning = plan([deleting("a", kind=kind, **file)], settings)
    assert (reasons(planning)["a"], texts(planning)["a"]) == (reason, text)


@pytest.mark.parametrize(
    ("kind", "file", "settings", "text"),
    [
        (DeltaKind.VECTOR, {}, {}, "1 deletion vector, below the number that starts a compaction"),
        (DeltaKind.VECTOR, {"rows": None}, {}, "1 deletion vector, below the number that starts a compaction"),
        (DeltaKind.VECTOR, {"rows": 0}, {}, "1 deletion vector, below the number that starts a compaction"),
        (DeltaKind.DELETES, {}, {}, "1 of 5 delete files (compact_delete_files)"),
        (
            DeltaKind.DELETES,
            {},
            {"compact_delete_files": 2, "compact_log_files": 1},
            "1 of 2 delete files (compact_delete_files)",
        ),
        (
            DeltaKind.DELETES,
            {},
            {"compact_delete_files": 0, "compact_log_files": 1},
            "1 delete file, below the number that starts a compaction",
        ),
        (
            DeltaKind.DELETES,
            {"deleted": 600},
            {"compact_delete_ratio": 0},
            "1 of 5 delete files (compact_delete_files)",
        ),
    ],
)
def test_if_deleted_rows_are_unknown_or_not_a_trigger_the_other_triggers_hold(
    kind: DeltaKind, file: dict[str, Any], settings: Mapping[str, Any], text: str
) -> None:
    deleted = 600 if file.get("rows", 1_000) != 1_000 else None
    planning = plan([deleting("a", kind=kind, **{"deleted": deleted, **file})], settings)
    assert (reasons(planning)["a"], texts(planning)["a"]) == ("few_logs", text)


def test_one_deletion_vector_of_one_row_is_no_reason_to_rewrite_a_file() -> None:
    files = [deleting("vector", 1), deleting("deletes", 1, DeltaKind.DELETES), sliced("log", 1, 40)]
    assert reasons(plan(files, {"compact_log_files": 1, "compact_delete_files": 1, "rewrite_first": "compaction"})) == {
        "vector": "few_deleted",
        "deletes": "chosen",
        "log": "chosen",
    }


def test_savings_of_deleted_rows_count_like_bytes_of_logs() -> None:
    files = [
        sliced("tenth", 9, 100 * MIB, bytes=GIB),
        deleting("third", 333),
        sliced("half", 9, GIB // 2),
        deleting("most", 900),
    ]
    assert groups(plan(files)) == [["most"], ["half"], ["third"], ["tenth"]]


def test_a_slice_in_a_held_partition_or_in_quarantine_is_not_compacted() -> None:
    file = sliced("a", 9, MIB)
    assert reasons(plan([file], locked_partitions={"p": "live"})) == {"a": "held"}
    assert reasons(plan([file], quarantined=["p/a.parquet"])) == {"a": "quarantined"}


def test_most_log_bytes_for_each_byte_of_the_base_file_go_first_within_the_bounds_of_a_plan() -> None:
    files = [
        sliced("heavy", 9, GIB),
        sliced("light", 9, MIB),
        sliced("none", 0, 0),
        sliced("small", 9, 100 * MIB, bytes=10 * MIB),
        sliced("only", 9, 1, logs_only=True),
    ]
    # the order in which the plan lists them is the order in which they were taken
    assert groups(plan(files)) == [["small"], ["heavy"], ["only"], ["light"]]
    two = plan(files, {"max_slices_per_compaction": 2})
    assert groups(two) == [["small"], ["heavy"]]
    assert texts(two)["light"] == "next plan: this one has its 2 slices"
    assert reasons(two) | {"small": "", "heavy": ""} == {
        "heavy": "",
        "small": "",
        "light": "next_plan_slices",
        "only": "next_plan_slices",
        "none": "above_limit",
    }
    tight = plan(files, {"max_bytes_per_plan": 2 * GIB})
    assert groups(tight) == [["small"], ["only"], ["light"]]
    assert texts(tight)["heavy"] == "next plan: 2.0 GiB more would exceed 2.0 GiB"


BOTH = [
    sliced("due", 9, MIB, bytes=10 * MIB),
    sliced("few", 1, MIB, bytes=10 * MIB),
    File(id="plain", bytes=10 * MIB),
    File(id="q1", bytes=MIB, partition="q"),
    File(id="q2", bytes=MIB, partition="q"),
]


def test_compaction_precedes_clustering_and_gets_the_slices_of_both() -> None:
    planning = plan(BOTH)
    assert planning.plan is not None
    assert (planning.plan.kind, groups(planning)) == (PlanKind.COMPACTION, [["due"]])
    assert reasons(planning) == {"due": "chosen"} | dict.fromkeys(["few", "plain", "q1", "q2"], "next_plan_kind")
    assert texts(planning)["q1"] == "next plan: compaction comes first"
    assert (planning.reducible_files, planning.estimate.bytes_to_move) == (5, 11 * MIB)
    # with its partition held, the next plan is the other partition's clustering
    after = plan(BOTH, locked_partitions={"p": "live"})
    assert after.plan is not None
    assert (after.plan.kind, groups(after)) == (PlanKind.CLUSTERING, [["q1", "q2"]])
    assert reasons(after)["due"] == "held"


def test_clustering_precedes_compaction_and_merges_the_logs_where_the_policy_says_so() -> None:
    planning = plan([*BOTH, sliced("large", 9, MIB)], {"rewrite_first": "clustering"})
    assert planning.plan is not None
    assert planning.plan.kind is PlanKind.CLUSTERING
    assert sorted(chain(*groups(planning))) == ["due", "few", "plain", "q1", "q2"]
    assert texts(planning)["large"] == "next plan: clustering comes first"
    rest = plan([sliced("large", 9, MIB)], {"rewrite_first": "clustering"})
    assert groups(rest) == [["large"]]


@pytest.mark.parametrize("first", ["compaction", "clustering"])
def test_a_plan_of_one_kind_can_be_requested(first: str) -> None:
    policy = {"rewrite_first": first}
    compaction = plan(BOTH, policy, kinds=[PlanKind.COMPACTION])
    assert groups(compaction) == [["due"]]
    clustering = plan(BOTH, policy, kinds=[PlanKind.CLUSTERING])
    assert sorted(chain(*groups(clustering))) == ["due", "few", "plain", "q1", "q2"]
    nothing = plan(BOTH[1:], policy, kinds=[PlanKind.COMPACTION])
    assert nothing.plan is None
    assert nothing.reducible_files == 4
    assert reasons(nothing) == dict.fromkeys(["few", "plain", "q1", "q2"], "next_plan_kind")


def test_knobs_of_compaction_are_validated_in_one_line() -> None:
    for settings, told in [
        ({"compact_log_files": -1}, "compact_log_files is -1 but must be at least 0; set compact_log_files"),
        ({"compact_log_ratio": "-0.5"}, "compact_log_ratio is -0.5 but must be at least 0; set compact_log_ratio"),
        (
            {"compact_delete_ratio": 30},
            "compact_delete_ratio is 30 but must be a share from 0 to 1 (30% is 0.3; 0: off); set compact_delete_ratio",
        ),
        ({"compact_delete_ratio": "nan"}, "compact_delete_ratio is nan but must be"),
        ({"max_slices_per_compaction": 0}, "max_slices_per_compaction is 0 but must be at least 1"),
        ({"compact_log_bytes": "much"}, "compact_log_bytes: 'much' is not a size"),
        ({"rewrite_first": "both"}, "rewrite_first: 'both' is not one of compaction, clustering"),
        ({"compaction": "perhaps"}, "compaction: 'perhaps' is neither true nor false"),
    ]:
        with pytest.raises(PolicyError) as refused:
            SizingPolicy.from_settings(settings)
        assert str(refused.value).startswith(told)
    with pytest.raises(PolicyError, match="compact_age is -5 s but must not be negative"):
        SizingPolicy(compact_age=timedelta(seconds=-5))


def test_settings_of_compaction_read_back_under_their_own_names() -> None:
    policy = SizingPolicy.from_settings(
        {"compact_log_bytes": "64MiB", "compact_age": "2h", "rewrite_first": "clustering"}
    )
    written = policy.to_settings()
    assert (written["compact_log_bytes"], written["compact_age"], written["rewrite_first"]) == (
        "64MiB",
        "7200s",
        "clustering",
    )
    assert SizingPolicy.from_settings(written) == policy


def test_hudi_settings_of_compaction_mean_the_same_here() -> None:
    given = {
        "hoodie.compact.inline.max.delta.commits": "7",
        "hoodie.compact.inline.max.delta.seconds": "3600",
        "hoodie.compaction.logfile.num.threshold": "3",
        "hoodie.compaction.logfile.size.threshold": "1048576",
        "hoodie.compact.inline": "true",
    }
    policy = SizingPolicy.from_settings(given)
    assert (policy.compact_delta_commits, policy.compact_log_files, policy.compact_log_bytes) == (7, 3, MIB)
    assert policy.compact_age == timedelta(0), "Hudi's default strategy does not look at the time"
    assert any("needs the trigger strategy TIME_ELAPSED" in note for note in policy.notes)
    assert any("turn this off at the writer" in note for note in policy.notes)
    timed = SizingPolicy.from_settings(given | {"hoodie.compact.inline.trigger.strategy": "TIME_ELAPSED"})
    assert (timed.compact_delta_commits, timed.compact_age) == (0, timedelta(hours=1))
    flink = SizingPolicy.from_settings(
        {"compaction.delta_commits": 4, "compaction.delta_seconds": 60, "compaction.trigger.strategy": "num_or_time"},
        dialect="flink",
    )
    assert (flink.compact_delta_commits, flink.compact_age) == (4, timedelta(minutes=1))
    unknown = SizingPolicy.from_settings({"hoodie.compact.inline.trigger.strategy": "MOON"})
    assert any("is not one of num_commits" in note for note in unknown.notes)


def test_only_slices_with_logs_speak_of_logs() -> None:
    planning = plan([File(id="a", bytes=GIB), File(id="b", bytes=1)])
    assert Reason.FEW_LOGS not in reasons(planning).values()


def test_delete_files_that_serve_many_slices_are_counted_once_in_all() -> None:
    # 600 equality deletes of 2 MiB that all 20 files have to be read with, shared out among them by their format
    names = tuple(f"/lake/trips/data/delete-{number}.parquet" for number in range(600))
    files = [
        File(id=f"f{n}", bytes=8 * MIB, logs=names, log_bytes=600 * 2 * MIB // 20, delta_kind=DeltaKind.DELETES)
        for n in range(20)
    ]
    for settings, kind in (({}, PlanKind.COMPACTION), ({"rewrite_first": "clustering"}, PlanKind.CLUSTERING)):
        planning = plan(files, settings)
        assert planning.plan is not None
        assert planning.plan.kind is kind
        assert planning.plan.bytes == planning.reducible_bytes == 1_200 * MIB + 20 * 8 * MIB
        assert set(reasons(planning).values()) == {"chosen"}


@pytest.mark.parametrize("settings", [{}, {"rewrite_first": "clustering"}])
def test_a_table_that_can_only_be_compacted_gets_compactions_and_each_other_file_the_tables_reason(
    settings: Mapping[str, Any],
) -> None:
    files = [
        sliced("due", 5, MIB, bytes=MIB),
        sliced("few", 1, 1, bytes=MIB),
        File(id="a", bytes=MIB),
        File(id="b", bytes=MIB),
        File(id="large", bytes=GIB),
    ]
    why = "its index names file groups"
    planning = plan(files, settings, clustering_refusal=why)
    assert planning.plan is not None
    assert (planning.plan.kind, groups(planning)) == (PlanKind.COMPACTION, [["due"]])
    kept = {"few": "few_logs", "a": "not_clustered", "b": "not_clustered", "large": "above_limit"}
    assert reasons(planning) == {"due": "chosen"} | kept
    assert texts(planning)["a"] == why
    assert planning.reducible_files == 1, "only the slice with enough logs"
    assert plan(files, settings, clustering_refusal=why, kinds=[PlanKind.CLUSTERING]).plan is None
    assert plan(files, settings | {"compaction": False}, clustering_refusal=why).plan is None
    assert plan(files, settings, kinds=[PlanKind.CLUSTERING]).plan is not None
