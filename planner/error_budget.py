# SPDX-License-Identifier: Apache-2.0
"""How long an objective was met and missed, how much of its error budget is left, and how fast that burns.

The time between two looks counts as the first of them found it. It is kept in buckets that grow coarser with age, so
that what is kept of an objective stays small for ever. All moments are whole milliseconds since 1970 in UTC, and all
spans of time whole milliseconds, unless they are a ``timedelta``.

Windows and burn rates are those of the Site Reliability Workbook, chapter 5, "Alerting on SLOs", in its last and
recommended form, multiwindow, multi-burn-rate alerts (https://sre.google/workbook/alerting-on-slos/): it pages for 14.4
over 1 h and for 6 over 6 h, which are 2 % and 5 % of the error budget of 30 days, opens a ticket for 1 over 3 d, which
is 10 %, and has each confirmed by a window of a twelfth of that, so that an alert ends soon after its cause.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Literal

Pace = Literal["fast", "slow"]

_MINUTE = 60_000
_HOUR, _DAY = 60 * _MINUTE, 24 * 60 * _MINUTE
_STEP = 5 * _MINUTE
#: buckets of one step become one of the next when all of the time that it covers is so long ago
_COARSER = ((_STEP, _HOUR, _HOUR), (_HOUR, _DAY, 3 * _DAY))
#: as long as the longest window that may be set
_KEPT = 90 * _DAY

WINDOWS: Mapping[str, timedelta] = MappingProxyType(
    {
        "5m": timedelta(minutes=5),
        "30m": timedelta(minutes=30),
        "1h": timedelta(hours=1),
        "6h": timedelta(hours=6),
        "3d": timedelta(days=3),
    }
)
"""The times over which burn rates are told, by the name that Prometheus gives them: the Workbook's."""

PACES: tuple[tuple[Pace, float, str, str], ...] = (
    ("fast", 14.4, "1h", "5m"),
    ("fast", 6.0, "6h", "30m"),
    ("slow", 1.0, "3d", "6h"),
)
"""Pace, burn rate, long and short window: a budget burns so when its rate is above that in both windows.

The rates are the Workbook's; *fast* is what it pages for, *slow* what it opens a ticket for.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Time within one step, and how much of it the objective was met and missed; nobody knows of the rest.

    It is the time from ``begin``, ms since 1970 and a multiple of ``step``, to before ``begin + step``; ``step``,
    ``met`` and ``missed`` are ms.
    """

    begin: int
    step: int
    met: int = 0
    missed: int = 0

    @property
    def end(self) -> int:
        return self.begin + self.step

    def __add__(self, other: "Bucket") -> "Bucket":
        return replace(self, met=self.met + other.met, missed=self.missed + other.missed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compliance:
    """An objective as it was found ``at`` a moment, ms since 1970, with its past.

    Whether it was ``met`` then counts for what follows, for ``holds`` ms at most. ``met_ms`` and ``missed_ms`` are
    totals, which only grow; ``buckets`` are in the order of time.
    """

    at: int
    met: bool
    holds: int
    met_ms: int = 0
    missed_ms: int = 0
    buckets: tuple[Bucket, ...] = ()

    def then(self, at: int, *, met: bool, holds: int) -> "Compliance":
        """What follows when the objective is looked at again; a clock that went back counts as no time."""
        known = min(max(0, at - self.at), self.holds)
        spent = list(_split(self.at, self.at + known, met=self.met))
        return Compliance(
            at=max(at, self.at),
            met=met,
            holds=holds,
            met_ms=self.met_ms + (known if self.met else 0),
            missed_ms=self.missed_ms + (0 if self.met else known),
            buckets=_thinned([*self.buckets, *spent], max(at, self.at)),
        )

    def within(self, window: timedelta) -> tuple[float, float]:
        """Milliseconds met and missed in the ``window`` that ends with the last look.

        Of the bucket in which it begins as much counts as of its time, as if that had been spread evenly.
        """
        since = self.at - window // timedelta(milliseconds=1)
        met = missed = 0.0
        for bucket in self.buckets:
            end = min(bucket.end, self.at)
            if end > since and end > bucket.begin:
                share = (end - max(bucket.begin, since)) / (end - bucket.begin)
                met, missed = met + share * bucket.met, missed + share * bucket.missed
        return met, missed

    def share_met(self, window: timedelta) -> float:
        """The share of the time of which anything is known in which the objective was met; 1 where nothing is."""
        met, missed = self.within(window)
        return met / (met + missed) if met + missed else 1.0

    def burn(self, window: timedelta, goal: float) -> float:
        """How many times as fast as it may the error budget is spent: 1 spends just all of it."""
        return self.within(window)[1] / _milliseconds(window) / (1 - goal)

    def burns(self, goal: float) -> dict[str, float]:
        """``burn`` over each of ``WINDOWS``."""
        return {name: self.burn(window, goal) for name, window in WINDOWS.items()}

    def budget_left(self, window: timedelta, goal: float) -> float:
        """The share of the error budget that is left; below 0 where more was spent than there was."""
        return 1 - self.burn(window, goal)


def pace(burns: Mapping[str, float]) -> Pace | None:
    """How a budget with these burn rates burns; None where it lasts."""
    return next((found for found, rate, long, short in PACES if min(burns[long], burns[short]) > rate), None)


def _milliseconds(span: timedelta) -> float:
    return span / timedelta(milliseconds=1)


def _split(begin: int, end: int, *, met: bool) -> Iterator[Bucket]:
    """The time from ``begin`` to ``end`` in buckets of the finest step."""
    while begin < end:
        start = begin - begin % _STEP
        spent = min(end, start + _STEP) - begin
        yield Bucket(begin=start, step=_STEP, met=spent if met else 0, missed=0 if met else spent)
        begin += spent


def _thinned(buckets: Iterable[Bucket], now: int) -> tuple[Bucket, ...]:
    """Buckets added up where they are of the same time, coarser with age, without what is past its time."""
    sums: dict[tuple[int, int], Bucket] = {}
    for bucket in buckets:
        begin, step = bucket.begin, bucket.step
        for fine, coarse, kept in _COARSER:
            start = begin - begin % coarse
            if step == fine and start + coarse <= now - kept:
                begin, step = start, coarse
        into = Bucket(begin=begin, step=step, met=bucket.met, missed=bucket.missed)
        if into.end > now - _KEPT:
            sums[begin, step] = sums[begin, step] + into if (begin, step) in sums else into
    return tuple(sums[key] for key in sorted(sums))
