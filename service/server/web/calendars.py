# SPDX-License-Identifier: Apache-2.0
"""Calendars: the days on which replaced files are deleted, and the partitions of a table by their date and key."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Generic, TypeVar

Entry = TypeVar("Entry")

#: maximum number of months of a calendar, and of calendars of a table
_MAX_MONTHS, _MAX_CALENDARS = 24, 8
#: in a narrow window: the width of a row's cells, of a letter of a column's heading, and of the gap between cells
_NARROW_WIDTH, _KEY_LETTER_WIDTH, _CELL_GAP = 285.0, 4.9, 2.0
_MAX_KEYS = 31
_DATE = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)")
_YEAR, _PART = re.compile(r"[12]\d{3}"), re.compile(r"\d{1,2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarDay(Generic[Entry]):
    """One day; ``entry`` is None if there is nothing on it. ``column`` is its weekday, from 1 for Monday to 7."""

    day: date
    column: int
    entry: Entry | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarMonth(Generic[Entry]):
    """Consecutive days of one month."""

    name: str
    days: tuple[CalendarDay[Entry], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCalendar(Generic[Entry]):
    """The months of all partitions with one key; the key is '' if the partition's path has only the date."""

    key: str
    months: tuple[CalendarMonth[Entry], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow(Generic[Entry]):
    """The partitions of one day, in the order of the keys; None for keys without a partition."""

    day: date
    entries: tuple[Entry | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCalendar(Generic[Entry]):
    """Partitions by date and key: either ``rows`` with one column for each of ``keys``, or a calendar for each key."""

    keys: tuple[str, ...]
    rows: tuple[KeyRow[Entry], ...]
    calendars: tuple[KeyCalendar[Entry], ...]


def months(entries: Iterable[tuple[date, Entry]]) -> tuple[CalendarMonth[Entry], ...]:
    """Return all days from the first of ``entries`` to the last, by months; ``entries`` have distinct days."""
    known = dict(entries)
    day, last = min(known), max(known)
    found: list[tuple[str, list[CalendarDay[Entry]]]] = []
    while day <= last:
        name = f"{day:%B %Y}"
        if not found or found[-1][0] != name:
            found.append((name, []))
        found[-1][1].append(CalendarDay(day=day, column=day.isoweekday(), entry=known.get(day)))
        day += timedelta(days=1)
    return tuple(CalendarMonth(name=name, days=tuple(days)) for name, days in found)


def date_and_key(path: str) -> tuple[date, str] | None:
    """Return the date in a partition's path, and the rest of the path; None if it has no date.

    A date is one directory such as ``dt=2026-11-21`` or ``20261121``, or three in a row, such as ``2026/11/21``.
    """
    parts = path.split("/")
    values = [part.rpartition("=")[2] for part in parts]
    for number, value in enumerate(values):
        match, taken = _DATE.fullmatch(value), 1
        numbers: Sequence[str] = match.groups() if match else ()
        three = values[number : number + 3]
        if not numbers and len(three) == 3 and _YEAR.fullmatch(value) and all(map(_PART.fullmatch, three[1:])):
            numbers, taken = three, 3
        if numbers:
            try:
                found = date(*map(int, numbers))
            except ValueError:
                continue
            return found, "/".join([*parts[:number], *parts[number + taken :]])
    return None


def partition_calendar(entries: Sequence[Entry], path_of: Callable[[Entry], str]) -> PartitionCalendar[Entry] | None:
    """Return the calendar of ``entries``; ``path_of`` returns the partition of an entry.

    Short keys, such as hours, are columns beside the date; each of a few long keys has a calendar of its own. Returns
    None if a partition has no date, if two have the same date and key, or if there are too many keys or months.
    """
    placed = [(date_and_key(path_of(entry)), entry) for entry in entries]
    by_key: dict[str, dict[date, Entry]] = {}
    for place, entry in placed:
        if place is None or place[0] in by_key.setdefault(place[1], {}):
            return None
        by_key[place[1]][place[0]] = entry
    if not by_key:
        return None
    keys = sorted(by_key)
    labels = tuple(key.rpartition("=")[2] for key in keys)
    room = _NARROW_WIDTH / len(keys) - _CELL_GAP
    are_short = all("/" not in key for key in keys) and max(map(len, labels)) * _KEY_LETTER_WIDTH <= room
    if 1 < len(keys) <= _MAX_KEYS and are_short:
        days = sorted({day for known in by_key.values() for day in known})
        rows = tuple(KeyRow(day=day, entries=tuple(by_key[key].get(day) for key in keys)) for day in days)
        return PartitionCalendar(keys=labels, rows=rows, calendars=())
    if len(keys) > _MAX_CALENDARS or any(_months_between(known) > _MAX_MONTHS for known in by_key.values()):
        return None
    calendars = tuple(KeyCalendar(key=key, months=months(by_key[key].items())) for key in keys)
    return PartitionCalendar(keys=(), rows=(), calendars=calendars)


def _months_between(days: Iterable[date]) -> int:
    known = list(days)
    first, last = min(known), max(known)
    return 12 * (last.year - first.year) + last.month - first.month + 1
