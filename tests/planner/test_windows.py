# SPDX-License-Identifier: Apache-2.0
"""The hours in which plans may start, by the clock of a time zone."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.policy.policy import SizingPolicy
from planner.windows import RunSchedule

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
NIGHTS = RunSchedule.parse(["mon-fri 20:00-06:00", "sat-sun"], "UTC")


@pytest.mark.parametrize(
    ("day", "time", "open_"),
    [
        (0, "05:59", False),  # Sunday's is over at midnight
        (0, "19:59", False),
        (0, "20:00", True),
        (1, "05:59", True),
        (1, "06:00", False),
        (5, "05:59", True),
        (5, "12:00", True),
        (6, "23:59", True),
        (7, "00:00", False),
    ],
)
def test_a_window_begins_on_its_days_and_may_end_on_the_next(day: int, time: str, open_: bool):
    hour, minute = map(int, time.split(":"))
    assert NIGHTS.is_open(MONDAY + timedelta(days=day, hours=hour, minutes=minute)) is open_


def test_without_windows_plans_start_at_any_time():
    assert RunSchedule().next_open_at(MONDAY) == MONDAY


def test_hours_follow_the_clock_of_their_zone_in_summer_too():
    berlin = RunSchedule.parse(["22:00-06:00"], "Europe/Berlin")
    winter, summer = datetime(2026, 1, 5, 12, tzinfo=UTC), datetime(2026, 7, 6, 12, tzinfo=UTC)
    assert berlin.next_open_at(winter) == winter.replace(hour=21)
    assert berlin.next_open_at(summer) == summer.replace(hour=20)


def test_a_window_may_go_round_the_week_and_last_a_whole_day():
    around = RunSchedule.parse(["sun-mon 00:00-24:00"], "UTC")
    assert [around.is_open(MONDAY + timedelta(days=day, hours=12)) for day in range(7)] == [
        True,
        False,
        False,
        False,
        False,
        False,
        True,
    ]


@given(
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31), timezones=st.just(UTC)),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"]),
    st.sampled_from([["sat"], ["mon-fri 20:00-06:00"], ["02:30-02:45"], ["wed 23:00-01:00", "sun 04:00-05:00"]]),
)
def test_when_it_opens_it_is_open_and_it_opens_within_eight_days(now: datetime, zone: str, windows: list[str]):
    hours = RunSchedule.parse(windows, zone)
    opens = hours.next_open_at(now)
    assert now <= opens <= now + timedelta(days=8)
    assert hours.is_open(opens)


@pytest.mark.parametrize("day", [datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)])
@pytest.mark.parametrize(
    "window", ["02:00-03:00", "02:00-02:45", "02:30-04:00", "01:00-02:30", "sat 22:00-02:30", "sun 02:15-02:30"]
)
def test_on_the_days_on_which_clocks_change_it_opens_at_the_first_minute_in_which_it_is_open(
    day: datetime, window: str
):
    hours = RunSchedule.parse([window], "Europe/Berlin")
    opens = None
    for minute in range(15 * 24 * 60, -1, -1):
        now = day + timedelta(minutes=minute)
        if minute < 120 or (minute < 180 and not minute % 5):  # clocks change at 01:00 UTC
            opens = now if hours.is_open(now) else opens
            if not minute % 5:
                assert hours.next_open_at(now) == opens
        elif hours.is_open(now):
            opens = now


@pytest.mark.parametrize("wrong", ["", "monday", "xyz 20:00-06:00", "20:00", "25:00-26:00", "10:60-11:00", "mon-"])
def test_an_invalid_window_is_refused_with_the_valid_forms(wrong: str):
    with pytest.raises(ValueError, match=r"not a window|not a day|not a time of day"):
        RunSchedule.parse([wrong], "UTC")


def test_a_zone_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match=r"'Mars/Base' is not a known time zone.*run_time_zone"):
        SizingPolicy.from_settings({"run_windows": ["sat"], "run_time_zone": "Mars/Base"})
