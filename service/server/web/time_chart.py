# SPDX-License-Identifier: Apache-2.0
"""A chart of figures over time, with axes, a text for each moment, and the same figures as a table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from service.server.web.charts import Tick, axis_text
from service.server.web.formatting import format_clock
from service.server.web.time_axis import MomentBand, TimeAxis, axis_marks, round_ceiling

#: width, height and left margin (for texts) of a chart for wide windows, and of one for narrow windows
_SIZES = ((540.0, 210.0, 64.0), (360.0, 200.0, 62.0))
_TOP, _BOTTOM, _RIGHT = 10.0, 26.0, 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A figure over time. ``key`` is its colour in the style sheet: ``first`` or ``second``."""

    name: str
    key: str
    points: Sequence[tuple[datetime, float]]
    format: Callable[[float], str]
    #: True if the figure keeps its value until the next point, False if it changes evenly
    is_step: bool = True
    #: True if the area under the line is filled
    is_filled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesPath:
    """A series as a line, and as the area under it; '' if the area is not filled."""

    key: str
    line: str
    area: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureChart:
    """The chart of several series for windows of one width."""

    width: float
    height: float
    left: float
    right: float
    top: float
    base: float
    paths: tuple[SeriesPath, ...]
    bands: tuple[MomentBand, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeChart:
    """Series on one vertical axis from zero: the chart in two widths, and the figures as rows, newest first.

    Each row has the time and the texts of all series at this time.
    """

    title: str
    text: str
    names: tuple[tuple[str, str], ...]
    charts: tuple[FigureChart, ...]
    rows: tuple[tuple[datetime, tuple[str, ...]], ...]


def time_chart(
    title: str, series: Sequence[Series], *, is_bytes: bool = False, is_whole: bool = False
) -> TimeChart | None:
    """Return the chart of ``series``, which have the same moments, oldest first.

    Returns None if there are fewer than two different moments. With ``is_bytes`` or ``is_whole`` the marks of the
    vertical axis are whole numbers.
    """
    moments = [moment for moment, _ in series[0].points]
    if len(moments) < 2 or moments[0] == moments[-1]:
        return None
    highest = max((value for one in series for _, value in one.points), default=0.0)
    marks = axis_marks(round_ceiling(highest, is_bytes), is_bytes or is_whole)
    rows = tuple(
        (moment, tuple(one.format(one.points[index][1]) for one in series)) for index, moment in enumerate(moments)
    )
    ends = "; ".join(
        f"{one.name} {one.format(one.points[0][1])} at first, {one.format(one.points[-1][1])} now" for one in series
    )
    return TimeChart(
        title=title,
        text=f"{title}: {ends}. The table below has the numbers.",
        names=tuple((one.key, one.name) for one in series),
        charts=tuple(_figure_chart(series, rows, marks, size) for size in _SIZES),
        rows=tuple(reversed(rows)),
    )


def _figure_chart(
    series: Sequence[Series],
    rows: Sequence[tuple[datetime, tuple[str, ...]]],
    marks: Sequence[float],
    size: tuple[float, float, float],
) -> FigureChart:
    width, height, left = size
    base, right = height - _BOTTOM, width - _RIGHT
    axis = TimeAxis(begin=rows[0][0], end=rows[-1][0], left=left, right=right)

    def y_of(value: float) -> float:
        return base - max(value, 0.0) / marks[-1] * (base - _TOP)

    return FigureChart(
        width=width,
        height=height,
        left=left,
        right=right,
        top=_TOP,
        base=base,
        paths=tuple(_path(one, axis, y_of, base) for one in series),
        bands=_bands(series, rows, axis),
        x_ticks=axis.ticks(),
        y_ticks=tuple(Tick(at=y_of(value), text=axis_text(series[0].format(value))) for value in marks),
    )


def _path(series: Series, axis: TimeAxis, y_of: Callable[[float], float], base: float) -> SeriesPath:
    placed = [(axis.position(moment), y_of(value)) for moment, value in series.points]
    (x, y), *others = placed
    line = f"M{x:.1f} {y:.1f}" + "".join(
        f"H{x:.1f}V{y:.1f}" if series.is_step else f"L{x:.1f} {y:.1f}" for x, y in others
    )
    area = f"{line}V{base:.1f}H{placed[0][0]:.1f}z" if series.is_filled else ""
    return SeriesPath(key=series.key, line=line, area=area)


def _bands(
    series: Sequence[Series], rows: Sequence[tuple[datetime, tuple[str, ...]]], axis: TimeAxis
) -> tuple[MomentBand, ...]:
    """Return a band around each moment; two neighbouring bands meet halfway between their moments."""
    places = [axis.position(moment) for moment, _ in rows]
    edges = [places[0], *((a + b) / 2 for a, b in pairwise(places)), places[-1]]
    return tuple(
        MomentBand(
            x=edges[index],
            width=edges[index + 1] - edges[index],
            text=f"{format_clock(moment)}: "
            + ", ".join(f"{one.name} {text}" for one, text in zip(series, texts, strict=True)),
        )
        for index, (moment, texts) in enumerate(rows)
    )
