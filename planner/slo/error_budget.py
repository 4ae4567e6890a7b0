# SPDX-License-Identifier: Apache-2.0
"""The time in which an objective was met and missed, the rest of its error budget, and the budget's burn rate.

The time between two observations has the state of the first observation. This time is stored in buckets that grow
coarser with age, so the history of an objective stays small. All moments are whole milliseconds since 1970 in UTC, and
all time spans whole milliseconds, unless they are a ``timedelta``.

Windows and burn rates are from the Site Reliability Workbook, chapter 5, "Alerting on SLOs": multiwindow,
multi-burn-rate alerts, the recommended form (https://sre.google/workbook/alerting-on-slos/). The Workbook pages at a
burn rate of 14.4 over 1 h and of 6 over 6 h, which spend 2 % and 5 % of the error budget of 30 days. It opens a ticket
at a burn rate of 1 over 3 d, which spends 10 %. A second window, a twelfth as long, must confirm each alert, so the
alert ends soon after its cause.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Literal

BurnPace = Literal["fast", "slow"]

_MINUTE_MS = 60_000
_HOUR_MS, _DAY_MS = 60 * _MINUTE_MS, 24 * 60 * _MINUTE_MS
_FINEST_STEP_MS = 5 * _MINUTE_MS
#: step, next coarser step, and the age at which the buckets of one coarser step are merged
_COARSENING = ((_FINEST_STEP_MS, _HOUR_MS, _HOUR_MS), (_HOUR_MS, _DAY_MS, 3 * _DAY_MS))
#: the longest window that may be set
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
"""The windows of the Workbook's burn rates, by their names in Prometheus."""

BURN_RATE_ALERTS: tuple[tuple[BurnPace, float, str, str], ...] = (
    ("fast", 14.4, "1h", "5m"),
    ("fast", 6.0, "6h", "30m"),
    ("slow", 1.0, "3d", "6h"),
)
"""Pace, burn rate, long and short window: a budget burns at a pace if its rate exceeds the burn rate in both windows.

The rates are the Workbook's: it pages for *fast* and opens a ticket for *slow*.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """The time within one step in which the objective was met and missed; the rest of the step is unknown.

    The step is from ``begin_ms`` (ms since 1970, a multiple of ``step_ms``) to before ``end_ms``.
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
class BurnPoint:
    """The rest of an error budget at one time (ms since 1970), as a share; below 0 if more was spent.

    ``missed_share`` is the share of the time until the next point in which the objective was missed; 0 at the last
    point.
    """

    at_ms: int
    budget_left: float
    missed_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compliance:
    """The state of an objective at its last observation, ``observed_at_ms`` since 1970, and its history.

    ``is_met`` counts for the time after the observation, for ``valid_for_ms`` at most. ``met_ms`` and ``missed_ms`` are
    totals, which only grow. ``buckets`` are in the order of time.
    """

    observed_at_ms: int
    is_met: bool
    valid_for_ms: int
    met_ms: int = 0
    missed_ms: int = 0
    buckets: tuple[Bucket, ...] = ()

    def with_observation(self, at_ms: int, *, is_met: bool, valid_for_ms: int) -> "Compliance":
        """Return the state after another observation. If the clock was set back, no time has passed."""
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
        """Return the milliseconds met and missed in the ``window`` that ends with the last observation.

        The bucket in which the window begins counts in proportion, as if its time were spread evenly.
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
        """Return the share of the known time in which the objective was met; 1 if no time is known."""
        met, missed = self.met_and_missed_ms(window)
        return met / (met + missed) if met + missed else 1.0

    def burn_rate(self, window: timedelta, goal: float) -> float:
        """Return the burn rate of the error budget; at 1 the window spends exactly the whole budget."""
        return self.met_and_missed_ms(window)[1] / _to_ms(window) / (1 - goal)

    def burn_rates(self, goal: float) -> dict[str, float]:
        """Return ``burn_rate`` over each of ``BURN_RATE_WINDOWS``."""
        return {name: self.burn_rate(window, goal) for name, window in BURN_RATE_WINDOWS.items()}

    def burn_history(self, window: timedelta, goal: float, points: int = 48) -> "list[BurnPoint]":
        """Return the rest of the error budget at ``points`` times, evenly spaced in the ``window``, oldest first.

        The first point is at the start of the window, or of the oldest bucket if that is later; the last one at the
        last observation. Empty without buckets. A bucket counts in proportion, as in ``met_and_missed_ms``.
        """
        if not self.buckets or points < 2:
            return []
        window_ms = _to_ms(window)
        begin, end = max(self.observed_at_ms - window_ms, float(self.buckets[0].begin_ms)), float(self.observed_at_ms)
        if begin >= end:
            return []
        missed_until = self._missed_until()
        moments = [begin + (end - begin) * number / (points - 1) for number in range(points)]
        return [
            BurnPoint(
                at_ms=round(moment),
                budget_left=1 - (missed_until(moment) - missed_until(moment - window_ms)) / window_ms / (1 - goal),
                missed_share=(missed_until(after) - missed_until(moment)) / (after - moment) if after > moment else 0.0,
            )
            for moment, after in zip(moments, [*moments[1:], end], strict=True)
        ]

    def _missed_until(self) -> Callable[[float], float]:
        """Return the milliseconds missed from the first bucket until a moment, as a function of the moment."""
        times, sums, total = [], [], 0.0
        for bucket in self.buckets:
            for moment, missed in (
                (bucket.begin_ms, 0),
                (min(bucket.end_ms, self.observed_at_ms), bucket.missed_ms),
            ):
                total += missed
                times.append(float(moment))
                sums.append(total)

        def until(moment: float) -> float:
            after = bisect_right(times, moment)
            if after in (0, len(times)):
                return sums[-1] if after else 0.0
            span = times[after] - times[after - 1]
            share = (moment - times[after - 1]) / span if span > 0 else 1.0
            return sums[after - 1] + share * (sums[after] - sums[after - 1])

        return until

    def budget_left(self, window: timedelta, goal: float) -> float:
        """Return the share of the error budget that is left; below 0 if more was spent."""
        return 1 - self.burn_rate(window, goal)


def burn_pace(burn_rates: Mapping[str, float]) -> BurnPace | None:
    """Return the pace at which a budget with these burn rates burns; None if no alert applies."""
    return next(
        (found for found, rate, long, short in BURN_RATE_ALERTS if min(burn_rates[long], burn_rates[short]) > rate),
        None,
    )


def _to_ms(span: timedelta) -> float:
    return span / timedelta(milliseconds=1)


def _split_into_buckets(begin: int, end: int, *, met: bool) -> Iterator[Bucket]:
    """Split the time from ``begin`` to ``end`` into buckets of the finest step."""
    while begin < end:
        start = begin - begin % _FINEST_STEP_MS
        spent = min(end, start + _FINEST_STEP_MS) - begin
        yield Bucket(begin_ms=start, step_ms=_FINEST_STEP_MS, met_ms=spent if met else 0, missed_ms=0 if met else spent)
        begin += spent


def _coarsened(buckets: Iterable[Bucket], now: int) -> tuple[Bucket, ...]:
    """Merge buckets of the same time, make old buckets coarser, and drop buckets past the retention."""
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
