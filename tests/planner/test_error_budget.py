# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of error budgets: no time is lost or counted twice, however often it is evaluated."""

from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.slo.error_budget import BURN_RATE_ALERTS, BURN_RATE_WINDOWS, Compliance, burn_pace

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
BEGIN = 1_700_000_000_000
GOAL = 0.99
WINDOW = timedelta(days=28)
LOOKS = st.lists(st.tuples(st.integers(0, 3 * HOUR), st.booleans()), max_size=40)


def seen(looks, *, first: bool = True, holds: int = DAY, begin: int = BEGIN) -> Compliance:
    """An objective looked at so long after each other, and whether it was met."""
    found, at = Compliance(observed_at_ms=begin, is_met=first, valid_for_ms=holds), begin
    for later, met in looks:
        at += later
        found = found.with_observation(at, is_met=met, valid_for_ms=holds)
    return found


def missed_for(minutes: float, *, before: timedelta = timedelta(days=3)) -> Compliance:
    """Met for a while, then missed for so long, until now; a look every five minutes."""
    found = seen([(5 * MINUTE, True)] * int(before / timedelta(minutes=5)))
    found = found.with_observation(found.observed_at_ms, is_met=False, valid_for_ms=DAY)
    for _ in range(int(minutes * MINUTE) // (5 * MINUTE)):
        found = found.with_observation(found.observed_at_ms + 5 * MINUTE, is_met=False, valid_for_ms=DAY)
    return found


@given(LOOKS, st.booleans())
def test_the_time_between_two_measurements_counts_as_the_first_one_found_it(looks, first: bool):
    found = seen(looks, first=first)
    states = [first, *(met for _, met in looks)]
    met = sum(later for (later, _), state in zip(looks, states, strict=False) if state)
    missed = sum(later for (later, _), state in zip(looks, states, strict=False) if not state)
    assert (found.met_ms, found.missed_ms) == (met, missed)
    assert sum(bucket.met_ms for bucket in found.buckets) == met
    assert sum(bucket.missed_ms for bucket in found.buckets) == missed


@given(LOOKS, st.booleans(), st.integers(1, 5))
def test_looking_more_often_changes_nothing_where_the_same_is_found(looks, first: bool, times: int):
    between, state = [], first
    for later, met in looks:
        between += [(later // times, state)] * (times - 1) + [(later - later // times * (times - 1), met)]
        state = met
    once, often = seen(looks, first=first), seen(between, first=first)
    assert (once.observed_at_ms, once.is_met, once.met_ms, once.missed_ms) == (
        often.observed_at_ms,
        often.is_met,
        often.met_ms,
        often.missed_ms,
    )
    assert once.buckets == often.buckets


@given(LOOKS, st.booleans(), st.sampled_from([*BURN_RATE_WINDOWS.values(), WINDOW]))
def test_a_window_holds_no_more_time_than_it_is_long_and_no_more_than_there_was(looks, first: bool, window: timedelta):
    found = seen(looks, first=first)
    met, missed = found.met_and_missed_ms(window)
    assert 0 <= met <= found.met_ms
    assert 0 <= missed <= found.missed_ms
    assert met + missed <= min(window / timedelta(milliseconds=1), found.met_ms + found.missed_ms) + 1e-3


@given(LOOKS, st.booleans(), st.sampled_from([timedelta(hours=6), timedelta(days=3), WINDOW]))
def test_the_history_of_a_budget_ends_at_the_budget_and_has_all_the_time_missed(looks, first: bool, window: timedelta):
    found = seen(looks, first=first)
    history = found.burn_history(window, GOAL)
    if not history:
        assert not found.met_ms + found.missed_ms
        return
    assert history[-1].budget_left == pytest.approx(found.budget_left(window, GOAL), abs=1e-6)
    assert (history[-1].at_ms, history[-1].missed_share) == (found.observed_at_ms, 0)
    missed = sum(point.missed_share * (after.at_ms - point.at_ms) for point, after in pairwise(history))
    assert missed == pytest.approx(found.met_and_missed_ms(window)[1], abs=60)
    assert all(-1e-9 <= point.missed_share <= 1 + 1e-9 for point in history)


@given(LOOKS, st.booleans())
def test_burn_rates_are_between_none_and_all_of_the_time_missed(looks, first: bool):
    for rate in seen(looks, first=first).burn_rates(GOAL).values():
        assert 0 <= rate <= 1 / (1 - GOAL) + 1e-6


@given(LOOKS, LOOKS, st.integers(1, HOUR))
def test_more_time_missed_never_leaves_more_of_the_budget(before, after, minutes: int):
    begun = seen(before)

    def left(met: bool) -> float:
        found = begun.with_observation(begun.observed_at_ms, is_met=met, valid_for_ms=DAY).with_observation(
            begun.observed_at_ms + minutes, is_met=True, valid_for_ms=DAY
        )
        for later, state in after:
            found = found.with_observation(found.observed_at_ms + later, is_met=state, valid_for_ms=DAY)
        return found.budget_left(WINDOW, GOAL)

    assert left(met=False) <= left(met=True)


@given(st.integers(0, 10 * DAY), st.integers(1, DAY), st.booleans())
def test_an_evaluation_is_valid_for_a_limited_time_and_then_unknown(later: int, holds: int, met: bool):
    found = Compliance(observed_at_ms=BEGIN, is_met=met, valid_for_ms=holds).with_observation(
        BEGIN + later, is_met=True, valid_for_ms=holds
    )
    assert found.met_ms + found.missed_ms == min(later, holds)


@given(LOOKS, st.integers(1, DAY))
def test_a_clock_that_is_set_back_loses_nothing_and_counts_nothing_twice(looks, back: int):
    found = seen(looks)
    again = found.with_observation(found.observed_at_ms - back, is_met=False, valid_for_ms=DAY)
    assert (again.observed_at_ms, again.met_ms, again.missed_ms, again.buckets) == (
        found.observed_at_ms,
        found.met_ms,
        found.missed_ms,
        found.buckets,
    )


@pytest.mark.slow
def test_measurements_of_an_objective_stay_few_and_are_pruned_after_the_longest_window():
    hourly = [(HOUR, number % 2 == 0) for number in range(99 * 24)]
    found = seen([*hourly, *((5 * MINUTE, number % 2 == 0) for number in range(288))])
    assert len(found.buckets) < 200
    assert found.buckets[0].end_ms > found.observed_at_ms - 90 * DAY
    total = found.met_ms + found.missed_ms
    assert total == 100 * DAY
    met, missed = found.met_and_missed_ms(timedelta(days=90))
    assert met + missed == pytest.approx(90 * DAY)
    assert found.share_met(WINDOW) == pytest.approx(0.5, abs=0.01)


def test_half_of_the_missed_time_that_the_goal_allows_is_half_of_the_budget():
    allowed = WINDOW * (1 - GOAL)
    found = missed_for(allowed / timedelta(minutes=2))
    assert found.budget_left(WINDOW, GOAL) == pytest.approx(0.5, abs=0.01)
    assert seen([]).budget_left(WINDOW, GOAL) == 1


def test_a_budget_may_be_overdrawn():
    allowed = WINDOW * (1 - GOAL)
    assert missed_for(2 * (allowed / timedelta(minutes=1))).budget_left(WINDOW, GOAL) == pytest.approx(-1, abs=0.02)


def test_a_burn_rate_spends_its_share_of_the_budget_in_its_window():
    found = missed_for(30)
    burn = found.burn_rate(timedelta(hours=1), GOAL)
    assert burn == pytest.approx(50)
    spent = 1 - found.budget_left(WINDOW, GOAL)
    assert spent == pytest.approx(burn * (timedelta(hours=1) / WINDOW))


@pytest.mark.parametrize(("minutes", "expected"), [(0, None), (5, None), (10, "fast"), (60, "fast")])
def test_a_table_with_a_goal_of_99_percent_burns_fast_after_nine_minutes(minutes: int, expected: str | None):
    assert burn_pace(missed_for(minutes).burn_rates(GOAL)) == expected


def test_a_pace_ends_soon_after_the_objective_is_met_again():
    found = missed_for(45)
    assert burn_pace(found.burn_rates(GOAL)) == "fast"
    found = found.with_observation(found.observed_at_ms, is_met=True, valid_for_ms=DAY).with_observation(
        found.observed_at_ms + 35 * MINUTE, is_met=True, valid_for_ms=DAY
    )
    assert burn_pace(found.burn_rates(GOAL)) == "slow"
    assert (
        burn_pace(
            found.with_observation(found.observed_at_ms + 7 * HOUR, is_met=True, valid_for_ms=DAY).burn_rates(GOAL)
        )
        is None
    )


def test_a_little_missed_every_hour_burns_slowly():
    hourly = [(56 * MINUTE, False), (4 * MINUTE, True)]
    assert burn_pace(seen(hourly * 80).burn_rates(0.99)) == "fast"
    assert burn_pace(seen(hourly * 80).burn_rates(0.95)) == "slow"
    assert burn_pace(seen(hourly * 80).burn_rates(0.90)) is None


def test_the_paces_are_those_of_the_workbook():
    assert [(rate, long, short) for _, rate, long, short in BURN_RATE_ALERTS] == [
        (14.4, "1h", "5m"),
        (6.0, "6h", "30m"),
        (1.0, "3d", "6h"),
    ]
