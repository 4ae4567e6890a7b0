# SPDX-License-Identifier: Apache-2.0
"""The order in which plans start: worth for its cost, weight, and age, so that nobody waits for ever."""

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.ranking import MOST_DOUBLINGS, head_start, urgency

HOUR = timedelta(hours=1)
RATIOS = st.floats(0, 1e12)
WEIGHTS = st.floats(1e-6, 1e6)
#: the shares left of the error budgets of objectives that a table misses
MISSED = st.lists(st.floats(-10, 1), max_size=3)


def test_each_doubling_of_what_a_plan_saves_for_its_cost_is_worth_so_much_waiting():
    assert [head_start(ratio, 1, HOUR) for ratio in (0.5, 1, 2, 8)] == [-HOUR, 0 * HOUR, HOUR, 3 * HOUR]


def test_a_weight_counts_like_the_worth():
    assert head_start(2, 4, HOUR) == head_start(8, 1, HOUR) == 3 * HOUR


def test_without_ageing_only_age_counts():
    assert head_start(1e9, 7, timedelta()) == head_start(0, 1, timedelta()) == timedelta()


@given(RATIOS, RATIOS, WEIGHTS)
def test_whatever_saves_more_for_its_cost_never_goes_later(less: float, more: float, weight: float):
    less, more = sorted((less, more))
    assert head_start(less, weight, HOUR) <= head_start(more, weight, HOUR)


@settings(deadline=None)
@given(st.lists(st.tuples(RATIOS, WEIGHTS, st.integers(0, 10**6)), min_size=1, max_size=50), st.integers(1, 10**5))
def test_no_plan_is_overtaken_by_one_made_later_than_forty_times_the_ageing(plans, ageing_seconds: int):
    ageing = timedelta(seconds=ageing_seconds)
    ranks = [timedelta(seconds=made) - head_start(ratio, weight, ageing) for ratio, weight, made in plans]
    for mine, (_, _, made) in zip(ranks, plans, strict=True):
        for other, (_, _, later) in zip(ranks, plans, strict=True):
            if timedelta(seconds=later - made) > 2 * MOST_DOUBLINGS * ageing:
                assert mine < other


@given(st.lists(st.tuples(RATIOS, WEIGHTS, st.integers(0, 10**6), MISSED), min_size=1, max_size=50))
def test_no_plan_is_overtaken_by_an_urgent_one_made_later_than_a_hundred_times_the_ageing(plans):
    ranks = [
        timedelta(seconds=made) - head_start(ratio, weight, HOUR) - urgency(left, HOUR)
        for ratio, weight, made, left in plans
    ]
    for mine, (_, _, made, _) in zip(ranks, plans, strict=True):
        for other, (_, _, later, _) in zip(ranks, plans, strict=True):
            if timedelta(seconds=later - made) > 5 * MOST_DOUBLINGS * HOUR:
                assert mine < other


@given(RATIOS, WEIGHTS, RATIOS, WEIGHTS, st.floats(-10, 1))
def test_the_plan_of_a_table_that_misses_an_objective_goes_before_all_made_then(ours, weight, theirs, other, left):
    assert head_start(ours, weight, HOUR) + urgency([left], HOUR) >= head_start(theirs, other, HOUR)


@given(MISSED, st.floats(-10, 1))
def test_the_less_is_left_of_an_error_budget_the_earlier(left: list[float], more: float):
    assert urgency([*left, more], HOUR) >= urgency(left, HOUR) >= timedelta()
    assert urgency([more - 0.5], HOUR) >= urgency([more], HOUR)


def test_a_table_that_meets_its_objectives_has_no_urgency():
    assert urgency([], HOUR) == timedelta()
    assert [urgency([left], HOUR) / HOUR for left in (1, 0.5, 0, -3)] == [40, 50, 60, 60]
    assert urgency([1, 0.5], HOUR) == 50 * HOUR


def test_without_ageing_nothing_is_urgent():
    assert urgency([-1.0], timedelta()) == timedelta()
