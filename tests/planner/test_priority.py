# SPDX-License-Identifier: Apache-2.0
"""The order in which plans start: by benefit for their cost, weight and age, so that no plan waits for ever."""

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.priority import MAX_DOUBLINGS, objective_urgency, priority_offset

HOUR = timedelta(hours=1)
RATIOS = st.floats(0, 1e12)
WEIGHTS = st.floats(1e-6, 1e6)
#: the shares left of the error budgets of objectives that a table misses
MISSED = st.lists(st.floats(-10, 1), max_size=3)


def test_each_doubling_of_a_plans_saving_for_its_cost_equals_a_fixed_waiting_time():
    assert [priority_offset(ratio, 1, HOUR) for ratio in (0.5, 1, 2, 8)] == [-HOUR, 0 * HOUR, HOUR, 3 * HOUR]


def test_a_weight_counts_like_the_worth():
    assert priority_offset(2, 4, HOUR) == priority_offset(8, 1, HOUR) == 3 * HOUR


def test_without_ageing_only_age_counts():
    assert priority_offset(1e9, 7, timedelta()) == priority_offset(0, 1, timedelta()) == timedelta()


@given(RATIOS, RATIOS, WEIGHTS)
def test_a_plan_that_saves_more_for_its_cost_is_never_later(less: float, more: float, weight: float):
    less, more = sorted((less, more))
    assert priority_offset(less, weight, HOUR) <= priority_offset(more, weight, HOUR)


@settings(deadline=None)
@given(st.lists(st.tuples(RATIOS, WEIGHTS, st.integers(0, 10**6)), min_size=1, max_size=50), st.integers(1, 10**5))
def test_no_plan_is_overtaken_by_one_made_later_than_forty_times_the_ageing(plans, ageing_seconds: int):
    ageing = timedelta(seconds=ageing_seconds)
    ranks = [timedelta(seconds=made) - priority_offset(ratio, weight, ageing) for ratio, weight, made in plans]
    for mine, (_, _, made) in zip(ranks, plans, strict=True):
        for other, (_, _, later) in zip(ranks, plans, strict=True):
            if timedelta(seconds=later - made) > 2 * MAX_DOUBLINGS * ageing:
                assert mine < other


@given(st.lists(st.tuples(RATIOS, WEIGHTS, st.integers(0, 10**6), MISSED), min_size=1, max_size=50))
def test_no_plan_is_overtaken_by_an_urgent_one_made_later_than_a_hundred_times_the_ageing(plans):
    ranks = [
        timedelta(seconds=made) - priority_offset(ratio, weight, HOUR) - objective_urgency(left, HOUR)
        for ratio, weight, made, left in plans
    ]
    for mine, (_, _, made, _) in zip(ranks, plans, strict=True):
        for other, (_, _, later, _) in zip(ranks, plans, strict=True):
            if timedelta(seconds=later - made) > 5 * MAX_DOUBLINGS * HOUR:
                assert mine < other


@given(RATIOS, WEIGHTS, RATIOS, WEIGHTS, st.floats(-10, 1))
def test_the_plan_of_a_table_that_misses_an_objective_precedes_plans_made_at_the_same_time(
    ours, weight, theirs, other, left
):
    assert priority_offset(ours, weight, HOUR) + objective_urgency([left], HOUR) >= priority_offset(theirs, other, HOUR)


@given(MISSED, st.floats(-10, 1))
def test_the_less_is_left_of_an_error_budget_the_earlier(left: list[float], more: float):
    assert objective_urgency([*left, more], HOUR) >= objective_urgency(left, HOUR) >= timedelta()
    assert objective_urgency([more - 0.5], HOUR) >= objective_urgency([more], HOUR)


def test_a_table_that_meets_its_objectives_has_no_urgency():
    assert objective_urgency([], HOUR) == timedelta()
    assert [objective_urgency([left], HOUR) / HOUR for left in (1, 0.5, 0, -3)] == [40, 50, 60, 60]
    assert objective_urgency([1, 0.5], HOUR) == 50 * HOUR


def test_without_ageing_nothing_is_urgent():
    assert objective_urgency([-1.0], timedelta()) == timedelta()
