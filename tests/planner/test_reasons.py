# SPDX-License-Identifier: Apache-2.0
"""Every slice has one reason, with its number and its knob."""

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from plan_inputs import GIB, MIB, NOW, File, groups, plan, reasons, snapshot, texts

from planner.planner import plan_table
from planner.policy.policy import SizingPolicy
from planner.reasons import Reason

PAIR = [File(id="x", bytes=10 * MIB), File(id="y", bytes=20 * MIB)]


@pytest.mark.parametrize(
    ("files", "more", "reason", "text"),
    [
        ([File(id="a", bytes=812 * MIB), *PAIR], {}, "above_limit", "above limit 812 MiB ≥ 300 MiB"),
        (
            [File(id="a", bytes=1, age=timedelta(minutes=12)), *PAIR],
            {},
            "recent",
            "waiting: modified 12 min ago, until 12:03 UTC (quiet_period is 15 min)",
        ),
        (
            [File(id="a", bytes=1, age=timedelta(hours=-1)), *PAIR],
            {},
            "recent",
            "waiting: modified 0 s ago, until 13:15 UTC (quiet_period is 15 min)",
        ),
        (
            [File(id="a", bytes=1, busy="pending compaction 20260301"), *PAIR],
            {},
            "busy",
            "pending compaction 20260301",
        ),
        (
            [File(id="a", bytes=1), *PAIR],
            {"locked_partitions": {"p": "0198-live"}},
            "held",
            "held by live plan 0198-live",
        ),
        (
            [File(id="a", bytes=1), *PAIR],
            {"quarantined": ["p/a.parquet"]},
            "quarantined",
            "quarantined: unreadable, unfinished or impossible to rewrite",
        ),
        ([File(id="a", bytes=1, partition="q"), *PAIR], {}, "alone", "alone in its partition"),
        ([File(id="a", bytes=1)], {"settings": {"min_input_files": 1}}, "alone", "alone in its partition"),
        (
            [File(id="a", bytes=1, partition="q"), File(id="b", bytes=1, partition="q")],
            {"settings": {"min_input_files": 3}},
            "few_files",
            "only 2 small files here, 3 needed (min_input_files)",
        ),
        (
            [File(id="a", bytes=1, log_bytes=GIB), *PAIR],
            {"settings": {"compaction": False}},
            "oversized",
            "1.0 GiB with its logs, more than 1.0 GiB per file",
        ),
        (
            [File(id="a", bytes=550 * MIB), File(id="b", bytes=550 * MIB)],
            {"settings": {"small_file_limit": "600MiB"}},
            "no_gain",
            "no gain: its group would become 2 files again",
        ),
        (
            [
                File(id="a", bytes=1, partition="z"),
                File(id="b", bytes=100, partition="z"),
                *PAIR,
                File(id="w", bytes=1),
            ],
            {"settings": {"max_num_groups": 1}},
            "next_plan_groups",
            "next plan: this one has its 1 groups",
        ),
        (
            [
                *(File(id=f"a{i}" if i else "a", bytes=250 * MIB, partition="z") for i in range(4)),
                *(File(id=f"b{i}", bytes=150 * MIB) for i in range(12)),
            ],
            {"settings": {"max_bytes_per_plan": "2GiB"}},
            "next_plan_bytes",
            "next plan: 1000 MiB more would exceed 2.0 GiB",
        ),
        (
            [File(id="a", bytes=1), *PAIR],
            {"settings": {"partition_regex": "q"}},
            "filtered",
            "partition not selected (all)",
        ),
        ([File(id="a", bytes=1), *PAIR], {}, "chosen", "chosen, group 1"),
    ],
)
def test_a_slice_has_its_reason(files: list[File], more: dict[str, Any], reason: str, text: str) -> None:
    planning = plan(files, more.pop("settings", None), **more)
    assert reasons(planning)["a"] == reason
    assert texts(planning)["a"] == text


def test_a_file_exactly_at_the_limit_is_not_small() -> None:
    files = [File(id="at", bytes=300 * MIB), File(id="below", bytes=300 * MIB - 1), File(id="other", bytes=1)]
    planning = plan(files)
    assert reasons(planning) == {"at": "above_limit", "below": "chosen", "other": "chosen"}


def test_a_file_exactly_as_old_as_the_quiet_period_may_be_planned() -> None:
    quiet = timedelta(minutes=15)
    files = [
        File(id="at", bytes=1, age=quiet),
        File(id="old", bytes=1),
        File(id="young", bytes=1, age=quiet - timedelta(microseconds=1)),
    ]
    assert reasons(plan(files)) == {"at": "chosen", "old": "chosen", "young": "recent"}


def test_one_young_file_does_not_keep_its_partition_from_being_planned() -> None:
    planning = plan([*PAIR, File(id="young", bytes=1, age=timedelta(0))])
    assert groups(planning) == [["x", "y"]]


def test_without_a_quiet_period_a_file_of_this_moment_may_be_planned() -> None:
    assert reasons(plan([*PAIR, File(id="a", bytes=1, age=timedelta(0))], {"quiet_period": 0}))["a"] == "chosen"


def test_an_intrinsic_reason_precedes_a_passing_one() -> None:
    young = timedelta(0)
    files = [
        File(id="large", bytes=GIB, busy="pending clustering", age=young),
        File(id="busy", bytes=1, busy="pending clustering", age=young),
        File(id="sick", bytes=1, busy="pending clustering"),
        File(id="young", bytes=1, age=young),
        File(id="logs", bytes=1, log_bytes=2 * GIB),
        File(id="free", bytes=1),
    ]
    planning = plan(files, {"compaction": False}, locked_partitions={"p": "live"}, quarantined=["p/sick.parquet"])
    assert reasons(planning) == {
        "large": "above_limit",
        "busy": "busy",
        "sick": "quarantined",
        "young": "recent",
        "logs": "held",
        "free": "held",
    }
    assert planning.plan is None


def test_a_slice_of_logs_only_is_a_candidate_and_no_small_base_file() -> None:
    files = [File(id="a", bytes=0, logs_only=True, log_bytes=MIB), *PAIR]
    planning = plan(files, {"compaction": False})
    assert reasons(planning)["a"] == "chosen"
    assert planning.estimate.small_files_before == 2
    assert planning.plan is not None
    (group,) = planning.plan.groups
    assert {(s.file_id, s.path, s.log_files, s.log_bytes) for s in group.slices} == {
        ("a", None, (".a.log.1",), MIB),
        ("x", "p/x.parquet", (), 0),
        ("y", "p/y.parquet", (), 0),
    }


def test_every_reason_that_a_setting_decides_names_a_setting() -> None:
    from planner.policy.policy import FIELD_PARSERS, setting_name

    names = {setting_name(knob) for knob in FIELD_PARSERS}
    commands = (Reason.QUARANTINED, Reason.DAMAGED, Reason.FAILED, Reason.DECLINED)
    for reason in Reason:
        if reason not in (Reason.CHOSEN, Reason.BUSY, Reason.HELD, Reason.NOT_CLUSTERED, *commands):
            assert reason.setting in names, reason


def test_an_empty_table_has_no_plan_and_nothing_to_explain() -> None:
    planning = plan([])
    assert planning.plan is None
    assert planning.decisions.num_rows == 0
    assert (planning.reducible_files, planning.reducible_bytes, planning.estimate.small_files_before) == (0, 0, 0)


def test_decisions_have_the_columns_of_the_contract() -> None:
    planning = plan(PAIR)
    assert planning.decisions.schema.names == [
        "partition",
        "file_id",
        "path",
        "bytes",
        "log_bytes",
        "reason",
        "number",
        "reducible",
    ]
    assert pa.types.is_dictionary(planning.decisions.schema.field("reason").type)


def test_a_naive_time_is_refused() -> None:
    with pytest.raises(ValueError, match="timezone-aware"):
        plan_table(snapshot(PAIR), SizingPolicy(), now=NOW.replace(tzinfo=None), plan_id="x")
