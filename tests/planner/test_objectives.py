# SPDX-License-Identifier: Apache-2.0
"""Layout objectives, evaluated from a scan; files that no plan can improve are not counted."""

from datetime import timedelta

import pytest
from plan_inputs import GIB, MIB, File, plan

from planner.policy.policy import PolicyError, SizingPolicy
from planner.policy.validation import validation_warnings
from planner.slo.evaluate import evaluate_objectives
from planner.slo.model import Objective, ObjectiveEvaluation

SHARE, FILES, OLDEST = Objective


def judged(files, **settings) -> dict[Objective, ObjectiveEvaluation]:
    policy = SizingPolicy.from_settings({"payback": "0", **settings})
    return {found.objective: found for found in evaluate_objectives(plan(files, policy), policy)}


def small(count: int, *, partition: str = "p", hours: float = 1, size: int = 8 * MIB) -> list[File]:
    return [
        File(id=f"{partition}-{number}", bytes=size, partition=partition, age=timedelta(hours=hours))
        for number in range(count)
    ]


def test_a_table_without_objectives_is_held_to_nothing():
    assert judged(small(9)) == {}


def test_each_objective_is_judged_by_the_files_that_plans_would_take():
    files = [*small(3, hours=5), File(id="large", bytes=GIB)]
    found = judged(
        files,
        slo_small_file_share="5%",
        slo_files_per_gib=4,
        slo_oldest_small_file="2h",
        slo_goal="99.5%",
        slo_window="7d",
    )
    assert list(found) == [SHARE, FILES, OLDEST]
    assert found[SHARE].value == 0.75
    assert found[FILES].value == pytest.approx(4 * GIB / (GIB + 24 * MIB))
    assert found[OLDEST].value == 5 * 3600
    assert [one.is_met for one in found.values()] == [False, True, False]
    assert {(one.goal, one.window) for one in found.values()} == {(0.995, timedelta(days=7))}
    assert found[SHARE].text == "small_file_share is 75 % (at most 5 %)"
    assert found[OLDEST].text == "oldest_small_file is 5 h (at most 2 h)"
    assert found[FILES].text == "files_per_gib is 3.91 (at most 4)"


def test_small_files_that_no_plan_is_worth_count_in_no_objective():
    alone = [file for number in range(50) for file in small(1, partition=f"p{number}", hours=500)]
    found = judged(alone, slo_small_file_share=0.01, slo_files_per_gib=4, slo_oldest_small_file="1h")
    assert [one.value for one in found.values()] == [0, 0, 0]
    assert all(one.is_met for one in found.values())


def test_a_small_file_that_waits_for_its_quiet_period_counts_since_a_plan_will_take_it():
    found = judged(small(4, hours=0.1), slo_small_file_share=0.1, slo_oldest_small_file="1h")
    assert found[SHARE].value == 1
    assert found[OLDEST].is_met


def test_an_empty_table_meets_everything():
    found = judged([], slo_small_file_share=0.01, slo_files_per_gib=1, slo_oldest_small_file="1h")
    assert all(one.is_met for one in found.values())


def test_a_scans_result_is_valid_for_three_scans_and_an_hour_at_least():
    assert judged([], slo_files_per_gib=4)[FILES].valid_for == timedelta(hours=1)
    assert judged([], slo_files_per_gib=4, scan_interval="2h")[FILES].valid_for == timedelta(hours=6)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("slo.small_file_share", 5, "slo_small_file_share is 5 but must be at least 0 and below 1 .*set slo_small"),
        ("slo.small_file_share", "few", "slo.small_file_share: 'few' is not a share; write .* 0.05, or 5%"),
        ("slo.small_file_share", "nan", "slo_small_file_share is nan but must be"),
        ("slo.files_per_gib", -1, "slo_files_per_gib is -1 but must be a number from 0"),
        ("slo.files_per_gib", "inf", "slo_files_per_gib is inf but must be a number from 0"),
        ("slo.goal", 99, "slo_goal is 99 but must be above 0 and below 1 .99% is 0.99.; set slo_goal"),
        ("slo.goal", "100%", "slo_goal is 1 but must be above 0 and below 1"),
        ("slo.goal", 0, "slo_goal is 0 but must be above 0"),
        ("slo.window", "1h", "slo_window is 60 min but must be between 24 h and 90 d; set slo_window"),
        ("slo.window", "91d", "slo_window is 91 d but must be between"),
        ("slo.oldest_small_file", "soon", "slo.oldest_small_file: 'soon' is not a duration"),
        ("slo.oldest_small_file", "10min", "10 min must be longer than quiet_period 15 min, .* raise slo_oldest"),
        ("slo.small_files_share", 0.1, "slo.small_files_share is not a setting; did you mean slo_small_file_share"),
    ],
)
def test_nonsense_is_refused_in_one_line_with_the_rule_the_value_and_the_setting(key: str, value, expected: str):
    with pytest.raises(PolicyError, match=expected) as refused:
        SizingPolicy.from_settings({key: value})
    assert "\n" not in str(refused.value)


def test_a_nested_table_and_flat_names_mean_the_same():
    nested = SizingPolicy.from_settings({"slo": {"small_file_share": "5 %", "goal": 0.995, "window": "7d"}})
    flat = SizingPolicy.from_settings({"slo_small_file_share": 0.05, "slo_goal": "99.5%", "slo_window": "1w"})
    assert nested == flat
    assert SizingPolicy.from_settings(nested.to_settings()) == nested


def test_a_caution_tells_of_an_objective_that_files_left_alone_can_break():
    assert list(validation_warnings(SizingPolicy.from_settings({"slo.files_per_gib": 2}))) == [
        "slo_files_per_gib is 2: files of small_file_limit 300 MiB are left alone, and 3.4 of them make a GiB"
    ]
    assert not list(validation_warnings(SizingPolicy.from_settings({"slo.files_per_gib": 4})))
