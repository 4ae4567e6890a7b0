# SPDX-License-Identifier: Apache-2.0
"""The axes of charts over time: positions of moments, and marks at round times and round numbers. Times are UTC."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from service.server.web.charts import Tick

#: the distances between two marks on an axis of time
_STEPS = (
    *(timedelta(seconds=seconds) for seconds in (1, 5, 15, 30)),
    *(timedelta(minutes=minutes) for minutes in (1, 5, 15, 30)),
    *(timedelta(hours=hours) for hours in (1, 3, 6, 12)),
    *(timedelta(days=days) for days in (1, 2, 7, 14, 28)),
)
#: minimum horizontal distance of two marks, so that their texts don't touch
_MIN_DISTANCE = 62.0
_EPOCH = datetime(2024, 1, 1, tzinfo=UTC)  # a Monday, so that marks of weeks are Mondays


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentBand:
    """The vertical band of one moment, and the figures at this moment as text."""

    x: float
    width: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAxis:
    """A horizontal axis from ``begin`` to ``end``, drawn from ``left`` to ``right``."""

    begin: datetime
    end: datetime
    left: float
    right: float

    def position(self, moment: datetime) -> float:
        """Return the position of a moment; moments outside of the axis are at its ends."""
        share = (moment - self.begin) / (self.end - self.begin)
        return self.left + min(max(share, 0.0), 1.0) * (self.right - self.left)

    def ticks(self, least_step: timedelta = timedelta()) -> tuple[Tick, ...]:
        """Return marks at round times, at least ``least_step`` apart.

        Midnights are shown as days, other times as hours and minutes, or seconds.
        """
        width = self.right - self.left
        span = self.end - self.begin
        step = next(
            (step for step in _STEPS if step >= least_step and step / span * width >= _MIN_DISTANCE), _STEPS[-1]
        )
        return tuple(Tick(at=self.position(moment), text=_tick_text(moment, step)) for moment in self._moments(step))

    def _moments(self, step: timedelta) -> Iterator[datetime]:
        half_text = 18.0 if step >= timedelta(minutes=1) else 28.0
        moment = _EPOCH + math.ceil((self.begin - _EPOCH) / step) * step
        while moment <= self.end:
            # The text is centred on its mark, and must not extend beyond the picture.
            if self.left + half_text <= self.position(moment) <= self.right - half_text:
                yield moment
            moment += step


def _tick_text(moment: datetime, step: timedelta) -> str:
    if step >= timedelta(days=1) or moment.hour == moment.minute == moment.second == 0:
        return f"{moment.day} {moment:%b}"
    return f"{moment:%H:%M}" if step >= timedelta(minutes=1) else f"{moment:%H:%M:%S}"


#: the number of marks of an axis, by the value at its end divided by a power of ten
_MARKS = {1.0: 4, 1.5: 3, 2.0: 4, 2.5: 5, 3.0: 3, 4.0: 4, 5.0: 5, 6.0: 3, 8.0: 4}


def axis_marks(top: float, is_whole: bool = False) -> tuple[float, ...]:
    """Return the evenly spaced numbers at the marks of an axis, without 0.

    The axis ends at ``top``, which ``round_ceiling`` returned. With ``is_whole`` all of these are whole numbers.
    """
    binary = top
    while binary >= 1024:
        binary /= 1024
    number_of_marks = _MARKS.get(_leading_figure(top)) or _MARKS.get(_leading_figure(binary), 4)
    numbers = (number_of_marks, 5, 4, 3, 2, 1)
    number = next((n for n in numbers if not is_whole or (top / n).is_integer()), 1)
    return tuple(top * index / number for index in range(1, number + 1))


def _leading_figure(value: float) -> float:
    """Return ``value`` divided by a power of ten, from 1 to below 10."""
    return round(value / 10.0 ** math.floor(math.log10(value)), 9)


def round_ceiling(value: float, binary: bool = False) -> float:
    """Return the least round number that is not below ``value``: 1, 1.5, 2, 2.5, 3, 4, 5, 6 or 8 times a power of ten.

    With ``binary``, for axes of bytes, the result is a power of 1024 times 1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 25, 30, …,
    800: the whole numbers of that series below 1024.
    """
    if value <= 0:
        return 1.0
    if binary:
        power = 1024.0 ** max(0, math.floor(math.log(value, 1024)))
        ends = [lead * 10.0**digits for digits in range(3) for lead in _MARKS]
        factors = [*(end for end in ends if end.is_integer()), 1024.0]
    else:
        power = 10.0 ** math.floor(math.log10(value))
        factors = [*_MARKS, 10.0]
    return next(factor * power for factor in factors if factor * power >= value * (1 - 1e-9))
