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

BurnPace = Literal["fast", "slow"]

_MINUTE_MS = 60_000
_HOUR_MS, _DAY_MS = 60 * _MINUTE_MS, 24 * 60 * _MINUTE_MS
_FINEST_STEP_MS = 5 * _MINUTE_MS
#: buckets of one step become one of the next when all of the time that it covers is so long ago
_COARSENING = ((_FINEST_STEP_MS, _HOUR_MS, _HOUR_MS), (_HOUR_MS, _DAY_MS, 3 * _DAY_MS))
#: as long as the longest window that may be set
_RETENTION_MS = 90 * _DAY_MS

BURN_RATE_WINDOWS: Mapping[str, timedelta] = MappingProxyType(
    {
        "5m": timedelta(minutes=5),
        "30m": timedelta(minutes=30),
        "1h": timedelta(hours=1),
        "6h": timedelta(hours=6),
        "3d": timedelta(days=3),
    }
)
"""The times over which burn rates are told, by the name that Prometheus gives them: the Workbook's."""

BURN_RATE_ALERTS: tuple[tuple[BurnPace, float, str, str], ...] = (
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

    begin_ms: int
    step_ms: int
    met_ms: int = 0
    missed_ms: int = 0

    @property
    def end_ms(self) -> int:
        return self.begin_ms + self.step_ms

    def __add__(self, other: "Bucket") -> "Bucket":
        return replace(self, met_ms=self.met_ms + other.met_ms, missed_ms=self.missed_ms + other.missed_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compliance:
    """An objective as it was found ``at`` a moment, ms since 1970, with its past.

    Whether it was ``met`` then counts for what follows, for ``holds`` ms at most. ``met_ms`` and ``missed_ms`` are
    totals, which only grow; ``buckets`` are in the order of time.
    """

    observed_at_ms: int
    is_met: bool
    valid_for_ms: int
    met_ms: int = 0
    missed_ms: int = 0
    buckets: tuple[Bucket, ...] = ()

    def with_observation(self, at_ms: int, *, is_met: bool, valid_for_ms: int) -> "Compliance":
        """What follows when the objective is looked at again; a clock that went back counts as no time."""
        known = min(max(0, at_ms - self.observed_at_ms), self.valid_for_ms)
        spent = list(_split_into_buckets(self.observed_at_ms, self.observed_at_ms + known, met=self.is_met))
        return Compliance(
            observed_at_ms=max(at_ms, self.observed_at_ms),
            is_met=is_met,
            valid_for_ms=valid_for_ms,
            met_ms=self.met_ms + (known if self.is_met else 0),
            missed_ms=self.missed_ms + (0 if self.is_met else known),
            buckets=_coarsened([*self.buckets, *spent], max(at_ms, self.observed_at_ms)),
        )

    def met_and_missed_ms(self, window: timedelta) -> tuple[float, float]:
        """Milliseconds met and missed in the ``window`` that ends with the last look.

        Of the bucket in which it begins as much counts as of its time, as if that had been spread evenly.
        """
        since = self.observed_at_ms - window // timedelta(milliseconds=1)
        met = missed = 0.0
        for bucket in self.buckets:
            end = min(bucket.end_ms, self.observed_at_ms)
            if end > since and end > bucket.begin_ms:
                share = (end - max(bucket.begin_ms, since)) / (end - bucket.begin_ms)
                met, missed = met + share * bucket.met_ms, missed + share * bucket.missed_ms
        return met, missed

    def share_met(self, window: timedelta) -> float:
        """The share of the time of which anything is known in which the objective was met; 1 where nothing is."""
        met, missed = self.met_and_missed_ms(window)
        return met / (met + missed) if met + missed else 1.0

    def burn_rate(self, window: timedelta, goal: float) -> float:
        """How many times as fast as it may the error budget is spent: 1 spends just all of it."""
        return self.met_and_missed_ms(window)[1] / _to_ms(window) / (1 - goal)

    def burn_rates(self, goal: float) -> dict[str, float]:
        """``burn`` over each of ``BURN_RATE_WINDOWS``."""
        return {name: self.burn_rate(window, goal) for name, window in BURN_RATE_WINDOWS.items()}

    def budget_left(self, window: timedelta, goal: float) -> float:
        """The share of the error budget that is left; below 0 where more was spent than there was."""
        return 1 - self.burn_rate(window, goal)


def burn_pace(burn_rates: Mapping[str, float]) -> BurnPace | None:
    """How a budget with these burn rates burns; None where it lasts."""
    return next(
        (found for found, rate, long, short in BURN_RATE_ALERTS if min(burn_rates[long], burn_rates[short]) > rate),
        None,
    )


def _to_ms(span: timedelta) -> float:
    return span / timedelta(milliseconds=1)


def _split_into_buckets(begin: int, end: int, *, met: bool) -> Iterator[Bucket]:
    """The time from ``begin`` to ``end`` in buckets of the finest step."""
    while begin < end:
        start = begin - begin % _FINEST_STEP_MS
        spent = min(end, start + _FINEST_STEP_MS) - begin
        yield Bucket(begin_ms=start, step_ms=_FINEST_STEP_MS, met_ms=spent if met else 0, missed_ms=0 if met else spent)
        begin += spent


def _coarsened(buckets: Iterable[Bucket], now: int) -> tuple[Bucket, ...]:
    """Buckets added up where they are of the same time, coarser with age, without what is past its time."""
    sums: dict[tuple[int, int], Bucket] = {}
    for bucket in buckets:
        begin, step = bucket.begin_ms, bucket.step_ms
        for fine, coarse, kept in _COARSENING:
            start = begin - begin % coarse
            if step == fine and start + coarse <= now - kept:
                begin, step = start, coarse
        into = Bucket(begin_ms=begin, step_ms=step, met_ms=bucket.met_ms, missed_ms=bucket.missed_ms)
        if into.end_ms > now - _RETENTION_MS:
            sums[begin, step] = sums[begin, step] + into if (begin, step) in sums else into
    return tuple(sums[key] for key in sorted(sums))
