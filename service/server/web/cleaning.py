# SPDX-License-Identifier: Apache-2.0
"""The page of cleaning: superseded files by the day of their deletion."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import groupby

from lake.units import format_bytes
from service.control.store import DeletionDay
from service.server.web.charts import column_chart
from service.server.web.rendering import PageContent
from service.text import plural

#: the number of days in the chart; the table below it lists all days
_DAYS_DRAWN = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionDayLine:
    """The files that are deleted on one day; ``is_soon`` is true if the day is tomorrow or earlier."""

    day: date
    name: str
    label: str
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
    known = {day.day: day for day in days}
    first = today + timedelta(days=0 if today in known else 1)
    charted = [
        known.get(first + timedelta(days=n)) or _day_line(first + timedelta(days=n), [], today)
        for n in range(_DAYS_DRAWN)
    ]
    tomorrow = today + timedelta(days=1)
    files, size = sum(day.files for day in days), sum(day.bytes for day in days)
    return PageContent(
        days=tuple(days),
        charted_days=tuple(charted),
        chart=column_chart([day.bytes for day in charted], width=960, height=220),
        tomorrow=known.get(tomorrow) or _day_line(tomorrow, [], today),
        files=files,
        bytes=size,
        chart_text=f"{format_bytes(size)} in {plural(files, 'file')} by day of deletion; the numbers are in the table.",
    )


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
        label={0: "today", 1: "tomorrow"}.get(away, f"{day:%d %b}"),
        files=sum(entry.files for entry in entries),
        bytes=sum(entry.bytes for entry in entries),
        tables=tuple(dict.fromkeys(entry.table for entry in entries)),
        is_soon=away <= 1,
    )
