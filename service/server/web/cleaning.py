# SPDX-License-Identifier: Apache-2.0
"""The page of cleaning: superseded files by the day of their deletion."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import groupby

from service.control.store import DeletionDay
from service.server.web.calendars import months
from service.server.web.rendering import PageContent
from service.server.web.size_history import LEVELS

#: the number of days in the calendar; the table below it lists all days
_DAYS_DRAWN = 92


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionDayLine:
    """The files that are deleted on one day; ``is_soon`` is true if the day is tomorrow or earlier."""

    day: date
    name: str
    files: int
    bytes: int
    tables: tuple[str, ...]
    is_soon: bool


def cleaning_page(waiting: Sequence[DeletionDay], today: date) -> PageContent:
    """Return the page for ``waiting``, which is sorted by day."""
    days = [
        _day_line(max(day, today), list(entries), today)
        for day, entries in groupby(_move_overdue_to_today(waiting, today), _by_day)
    ]
    tomorrow = today + timedelta(days=1)
    known = {day.day: day for day in days}
    shown = [day for day in days if day.day < today + timedelta(days=_DAYS_DRAWN)]
    later = days[len(shown) :]
    # The calendar begins today and ends at the end of a week. Both days are drawn even if no files are due on them.
    last = max((day.day for day in shown), default=today)
    ends = (today, last + timedelta(days=7 - last.isoweekday()))
    drawn: dict[date, DeletionDayLine | None] = dict.fromkeys(ends) | {day.day: day for day in shown}
    return PageContent(
        days=tuple(days),
        months=months(drawn.items()) if days else (),
        levels=dict(zip(known, _levels(days), strict=True)),
        later_from=later[0].name if later else "",
        tomorrow=known.get(tomorrow) or _day_line(tomorrow, [], today),
        files=sum(day.files for day in days),
        bytes=sum(day.bytes for day in days),
    )


def _levels(days: Sequence[DeletionDayLine]) -> list[int]:
    """Return the heat level of each day, from 1 to 6, in proportion to the day with most bytes."""
    most = max((day.bytes for day in days), default=0) or 1
    return [max(1, math.ceil(LEVELS * day.bytes / most)) for day in days]


def _by_day(entry: DeletionDay) -> date:
    return entry.day


def _move_overdue_to_today(waiting: Sequence[DeletionDay], today: date) -> list[DeletionDay]:
    """Move overdue files to today."""
    return [
        entry if entry.day >= today else DeletionDay(table=entry.table, day=today, files=entry.files, bytes=entry.bytes)
        for entry in waiting
    ]


def _day_line(day: date, entries: Sequence[DeletionDay], today: date) -> DeletionDayLine:
    away = (day - today).days
    named = {0: "today or overdue", 1: "tomorrow"}.get(away, "")
    return DeletionDayLine(
        day=day,
        name=f"{day:%a %d %b %Y}" + (f", {named}" if named else ""),
        files=sum(entry.files for entry in entries),
        bytes=sum(entry.bytes for entry in entries),
        tables=tuple(dict.fromkeys(entry.table for entry in entries)),
        is_soon=away <= 1,
    )
