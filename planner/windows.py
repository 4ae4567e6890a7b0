# SPDX-License-Identifier: Apache-2.0
"""Off-peak windows: the hours of the week in which plans may start, in a time zone."""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_MINUTES = 24 * 60
_LOOK_AHEAD_DAYS = 16
_DAYS_PATTERN = r"(?P<first>[a-z]{3})(?:-(?P<last>[a-z]{3}))?"
_TIMES_PATTERN = r"(?P<begin>\d{2}:\d{2})-(?P<end>\d{2}:\d{2})"
_WINDOW_PATTERN = re.compile(rf"(?:{_DAYS_PATTERN})?\s*(?:{_TIMES_PATTERN})?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWindow:
    """A window on each of ``days`` (Monday is 0), from ``begin_minute`` of the day; it may end on the next day."""

    days: frozenset[int]
    begin_minute: int
    duration_minutes: int

    @classmethod
    def parse(cls, text: str) -> "RunWindow":
        """Parse ``mon-fri 20:00-06:00``, ``sat-sun`` (whole days) or ``22:00-06:00`` (each day). Raises ValueError."""
        found = _WINDOW_PATTERN.fullmatch(text.strip())
        if found is None or not text.strip():
            raise ValueError(f"{text!r} is not a window; write mon-fri 20:00-06:00, sat-sun or 22:00-06:00")
        first, last = found["first"], found["last"] or found["first"]
        for day in filter(None, (first, last)):
            if day.lower() not in _DAYS:
                raise ValueError(f"{text!r}: {day!r} is not a day; write {', '.join(_DAYS)}")
        days = frozenset(range(7))
        if first is not None:
            start, stop = _DAYS.index(first.lower()), _DAYS.index(last.lower())
            days = frozenset((start + n) % 7 for n in range((stop - start) % 7 + 1))
        if found["begin"] is None:
            return cls(days=days, begin_minute=0, duration_minutes=_DAY_MINUTES)
        begins, ends = _parse_time_of_day(found["begin"]) % _DAY_MINUTES, _parse_time_of_day(found["end"])
        return cls(days=days, begin_minute=begins, duration_minutes=(ends - begins) % _DAY_MINUTES or _DAY_MINUTES)

    def is_open(self, local: datetime) -> bool:
        """True if the window contains the local time."""
        minute = local.hour * 60 + local.minute
        today = local.weekday() in self.days and 0 <= minute - self.begin_minute < self.duration_minutes
        since_yesterday = minute + _DAY_MINUTES - self.begin_minute
        return today or ((local.weekday() - 1) % 7 in self.days and since_yesterday < self.duration_minutes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSchedule:
    """When plans may start: in one of ``windows``, or at any time if there are no windows."""

    windows: tuple[RunWindow, ...] = ()
    zone: str = "UTC"

    @classmethod
    def parse(cls, windows: Sequence[str], zone: str) -> "RunSchedule":
        """Parse a schedule from settings. Raises ValueError for an invalid window or an unknown time zone."""
        try:
            ZoneInfo(zone)
        except (OSError, ValueError, LookupError):
            raise ValueError(f"{zone!r} is not a known time zone, such as Europe/Berlin") from None
        return cls(windows=tuple(map(RunWindow.parse, windows)), zone=zone)

    def is_open(self, now: datetime) -> bool:
        """True if a plan may start now."""
        local = now.astimezone(ZoneInfo(self.zone))
        return not self.windows or any(window.is_open(local) for window in self.windows)

    def next_open_at(self, now: datetime) -> datetime:
        """Return the first moment from ``now`` on at which a plan may start."""
        if self.is_open(now):
            return now
        moments = (
            moment.astimezone(now.tzinfo)
            for moment in sorted(self._opening_candidates(now.astimezone(ZoneInfo(self.zone))))
        )
        return next(moment for moment in moments if moment > now and self.is_open(moment))

    def _opening_candidates(self, now: datetime) -> Iterator[datetime]:
        """Yield moments from today on, in UTC, among them the next opening of the schedule.

        The schedule opens when a window begins (twice if the zone's clock is set back over this time), or when the
        clock is changed. Two weeks suffice, even if a clock change skips one window of a weekly schedule.
        """
        zone, today = ZoneInfo(self.zone), now.date()
        days = [today + timedelta(days=n) for n in range(_LOOK_AHEAD_DAYS)]
        for day in days:
            for window in self.windows:
                if day.weekday() in window.days:
                    begins = datetime.combine(day, time(*divmod(window.begin_minute, 60)), zone)
                    yield from (begins.replace(fold=fold).astimezone(UTC) for fold in (0, 1))
        midnights = [datetime.combine(day, time(), zone).astimezone(UTC) for day in days]
        for before, after in pairwise(midnights):
            if _utc_offset(before, zone) != _utc_offset(after, zone):
                yield _clock_change_at(before, after, zone)


def _utc_offset(moment: datetime, zone: ZoneInfo) -> timedelta | None:
    return moment.astimezone(zone).utcoffset()


def _clock_change_at(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """Return the minute between the two moments at which the clock of ``zone`` is changed."""
    minutes = range(round((after - before) / timedelta(minutes=1)) + 1)
    first = bisect_left(
        minutes, True, key=lambda n: _utc_offset(before + timedelta(minutes=n), zone) != _utc_offset(before, zone)
    )
    return before + timedelta(minutes=first)


def _parse_time_of_day(text: str) -> int:
    hour, minute = int(text[:2]), int(text[3:])
    if hour > 24 or minute > 59 or (hour == 24 and minute):
        raise ValueError(f"{text!r} is not a time of day")
    return hour * 60 + minute
