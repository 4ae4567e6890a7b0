# SPDX-License-Identifier: Apache-2.0
"""The geometry of the page's charts, as pure functions from counts to coordinates; ``templates/charts.html`` draws it.

Each bar's height is the square root of its file count, so that ten files are visible beside a hundred thousand.
The axis names this scale.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from lake.model import HISTOGRAM_EDGES_BYTES
from lake.units import format_bytes
from service.server.web.formatting import format_count

#: from data to a coordinate
Scale = Callable[[float], float]

_SLOTS = len(HISTOGRAM_EDGES_BYTES) + 1
#: minimum height of a bar with a value above zero
_MIN_BAR_HEIGHT = 1.5
#: minimum vertical distance of two labels, and of a bar's end from a line above the bar's label
_LABEL_HEIGHT = 18.0
#: the approximate width of a letter in a label
_LETTER_WIDTH = 7.2
#: the least horizontal distance of two numbers of a histogram
_LABEL_GAP = 4.0


def bucket_name(index: int) -> str:
    """Return the size range of a bucket of ``HISTOGRAM_EDGES_BYTES``, such as ``32.0 – 64.0 KiB``."""
    edges = HISTOGRAM_EDGES_BYTES
    if index == 0:
        return f"up to {format_bytes(edges[0])}"
    if index >= len(edges):
        return f"above {format_bytes(edges[-1])}"
    low, high = format_bytes(edges[index - 1]), format_bytes(edges[index])
    return f"{low.removesuffix(high[high.index(' ') :])} – {high}"


def axis_text(text: str) -> str:
    """Return the text of a round figure on an axis: without decimals that are zero, such as ``50 GiB``."""
    return re.sub(r"\.0+(?= )|(?<=\.[1-9])0(?= )", "", text)


def _edge_label(index: int) -> str:
    return axis_text(format_bytes(HISTOGRAM_EDGES_BYTES[index]))


def _axis_position(size_bytes: float) -> float:
    """Return the position of a size on the axis, in slots: the edge with index i is at i + 1."""
    return min(max(math.log2(max(size_bytes, 1) / HISTOGRAM_EDGES_BYTES[0]) + 1, 0.0), float(_SLOTS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bucket of a histogram. ``label_y`` and ``before_label_y`` are None if the number would touch another."""

    x: float
    y: float
    width: float
    height: float
    name: str
    files: int
    before: int | None
    small: bool
    label_x: float
    label_y: float | None
    before_label_y: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitLine:
    """A vertical line at a size, with its text."""

    x: float
    name: str
    text: str
    #: True if the text is left of the line
    left: bool
    text_y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A tick on an axis."""

    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramChart:
    """A size histogram. ``outline`` is the path of the earlier histogram, '' without one."""

    width: float
    height: float
    base: float
    left: float
    right: float
    bars: tuple[Bar, ...]
    outline: str
    limit_lines: tuple[LimitLine, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


def histogram_chart(
    now: Sequence[int],
    before: Sequence[int] | None,
    limits: Mapping[str, int],
    *,
    width: float,
    height: float,
) -> HistogramChart | None:
    """Return the size histogram of a table's files, with a line at each of ``limits`` (setting → bytes).

    The first of ``limits`` separates small files from the others. Empty buckets at the ends are cut. Returns None
    without files.
    """
    drawn = [index for index in range(_SLOTS) if now[index] or (before and before[index])]
    if not drawn:
        return None
    positions = {name: _axis_position(limit) for name, limit in limits.items()}
    first = max(0, min(drawn[0], *(math.ceil(position) - 1 for position in positions.values())) - 1)
    last = min(_SLOTS, max(drawn[-1] + 1, *(math.ceil(position) for position in positions.values())) + 1)
    # Half of the last text on the axis is right of its mark.
    top, left, right, base = 48.0, 40.0, width - 24.0, height - 26.0
    slot = (right - left) / (last - first)
    most = max(max(now), max(before or (0,)))

    def x_of(position: float) -> float:
        return left + (position - first) * slot

    def y_of(files: float) -> float:
        return base - max(math.sqrt(files / most) * (base - top), _MIN_BAR_HEIGHT if files else 0.0)

    def fits(index: int, series: Sequence[int]) -> bool:
        """Return True if the number of a bar touches no number beside it; the largest number is always shown once."""
        largest = series.index(max(series))
        if index == largest:
            return True
        wide, widest = _number_width(series[index]), _number_width(series[largest])
        return wide <= slot and abs(index - largest) * slot >= (wide + widest) / 2

    boundary = next(iter(positions.values()), 0.0)
    gap = min(2.0, slot * 0.08)
    bars = []
    for index in range(first, last):
        files, earlier = now[index], before[index] if before else None
        y, earlier_y = y_of(files), y_of(earlier or 0)
        # The earlier number appears only well above the current bar; the current number never crosses the outline.
        shows_before = bool(earlier) and earlier_y < y - _LABEL_HEIGHT and fits(index, before or ())
        label_y = min(y, earlier_y) if abs(y - earlier_y) <= _LABEL_HEIGHT else y
        bars.append(
            Bar(
                x=x_of(index) + gap,
                y=y,
                width=slot - 2 * gap,
                height=base - y,
                name=bucket_name(index),
                files=files,
                before=earlier,
                small=index + 1 <= boundary,
                label_x=x_of(index) + slot / 2,
                label_y=label_y - 5 if files and fits(index, now) else None,
                before_label_y=earlier_y - 5 if shows_before else None,
            )
        )
    return HistogramChart(
        width=width,
        height=height,
        base=base,
        left=left,
        right=right,
        bars=tuple(bars),
        outline=_outline(before, first, last, x_of, y_of, base) if before else "",
        limit_lines=_limit_lines(limits, positions, x_of, left, right),
        x_ticks=_x_ticks(first, last, slot, x_of),
        y_ticks=tuple(Tick(at=y_of(files), text=axis_text(format_count(files))) for files in _round_counts(most)),
    )


def _number_width(files: int) -> float:
    return _LETTER_WIDTH * len(format_count(files)) + _LABEL_GAP


def _outline(before: Sequence[int], first: int, last: int, x_of: Scale, y_of: Scale, base: float) -> str:
    """Return the outline of the earlier histogram as a path."""
    path = [f"M{x_of(first):.1f} {base:.1f}"]
    for index in range(first, last):
        path += [f"V{y_of(before[index]):.1f}", f"H{x_of(index + 1):.1f}"]
    return " ".join([*path, f"V{base:.1f}"])


def _limit_lines(
    limits: Mapping[str, int], positions: Mapping[str, float], x_of: Scale, left: float, right: float
) -> tuple[LimitLine, ...]:
    """Return the lines of the limits. Each text is on the outer side of its line if there is room.

    If two texts would overlap, the text of the right line moves up, so that it crosses no line on its left.
    """
    marks: list[LimitLine] = []
    taken: list[tuple[float, float]] = []
    for name, limit in sorted(limits.items(), key=lambda entry: -positions[entry[0]]):
        x, text = x_of(positions[name]), f"{name} {format_bytes(limit)}"
        long = _LETTER_WIDTH * len(text) + 10
        on_left = x - long > left if name == next(iter(limits)) else x + long > right
        start, end = (x - long, x) if on_left else (x, x + long)
        clash = any(start < other_end and other_start < end for other_start, other_end in taken)
        taken.append((start, end))
        marks.append(LimitLine(x=x, name=name, text=text, left=on_left, text_y=26.0 if clash else 12.0))
    return tuple(reversed(marks))


def _x_ticks(first: int, last: int, slot: float, x_of: Scale) -> tuple[Tick, ...]:
    step = next(step for step in (1, 2, 5, 10, 20) if step * slot >= 50 or step == 20)
    edges = range(max(first, 1), min(last, len(HISTOGRAM_EDGES_BYTES)) + 1)
    # Counted from 1 KiB, so that a step of ten gives KiB, MiB, GiB.
    return tuple(Tick(at=x_of(edge), text=_edge_label(edge - 1)) for edge in edges if (edge - 1) % step == 0)


def _round_counts(most: int) -> Iterable[int]:
    """Return round file counts that are well apart on the square-root axis, largest first."""
    chosen: list[int] = []
    power = 10 ** int(math.log10(most))
    for value in (5 * power, 2 * power, power, power // 2, power // 5, power // 10, power // 100, power // 1000):
        if 0 < value <= most and all(abs(math.sqrt(value / most) - math.sqrt(c / most)) > 0.13 for c in chosen):
            chosen.append(value)
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparkline:
    """A small histogram on an axis that all tables share, as paths; '' if there is nothing to draw."""

    width: float
    height: float
    small: str
    large: str
    before: str
    limit_x: float


@lru_cache(maxsize=1024)  # a page draws fifty sparklines at each request
def sparkline(
    now: tuple[int, ...],
    before: tuple[int, ...] | None,
    small_file_limit: int,
    *,
    most: int = 0,
    width: float = 104,
    height: float = 24,
) -> Sparkline:
    """Return a size histogram for a table row. Every size has a fixed position, so that rows are comparable.

    The full height stands for the largest bar or, so that two histograms have one scale, for ``most`` files.
    """
    slot, base, boundary = width / _SLOTS, height - 1.0, _axis_position(small_file_limit)

    def path(counts: Sequence[int], chosen: Callable[[int], bool]) -> str:
        highest = most or max(counts, default=0)
        parts = []
        for index, files in enumerate(counts):
            if files and chosen(index):
                tall = max(math.sqrt(files / highest) * (base - 2), _MIN_BAR_HEIGHT)
                parts.append(f"M{index * slot + 0.5:.1f} {base:.1f}v-{tall:.1f}h{slot - 1:.1f}v{tall:.1f}z")
        return "".join(parts)

    return Sparkline(
        width=width,
        height=height,
        small=path(now, lambda index: index + 1 <= boundary),
        large=path(now, lambda index: index + 1 > boundary),
        before=path(before, lambda index: True) if before else "",
        limit_x=boundary * slot,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendChart:
    """A figure over time: a step line, the area under it, and its end point."""

    width: float
    height: float
    line: str
    area: str
    end_x: float
    end_y: float


def trend_chart(points: Sequence[tuple[datetime, float]], *, width: float, height: float) -> TrendChart | None:
    """Return the chart of a figure, oldest point first, with an axis from zero; None for fewer than three points."""
    if len(points) < 3 or points[0][0] == points[-1][0]:
        return None
    start, span = points[0][0], (points[-1][0] - points[0][0]).total_seconds()
    most = max(value for _, value in points) or 1.0
    top, base = 6.0, height - 2.0

    def x_of(at: datetime) -> float:
        return (at - start).total_seconds() / span * (width - 8) + 2

    def y_of(value: float) -> float:
        return base - value / most * (base - top)

    line = f"M{x_of(points[0][0]):.1f} {y_of(points[0][1]):.1f}" + "".join(
        f"H{x_of(at):.1f}V{y_of(value):.1f}" for at, value in points[1:]
    )
    end_x, end_y = x_of(points[-1][0]), y_of(points[-1][1])
    return TrendChart(width=width, height=height, line=line, area=f"{line}V{base:.1f}H2z", end_x=end_x, end_y=end_y)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A segment of a bar of 100 units."""

    name: str
    start: float
    length: float


def spans(lengths: Iterable[tuple[str, float]]) -> tuple[Span, ...]:
    """Return consecutive segments as shares of their sum; even the shortest segment stays visible."""
    listed = [(name, max(length, 0.0)) for name, length in lengths]
    whole = sum(length for _, length in listed) or 1.0
    result, start = [], 0.0
    for name, length in listed:
        shown = max(100 * length / whole, 0.4)
        result.append(Span(name=name, start=min(start, 100 - shown), length=shown))
        start += 100 * length / whole
    return tuple(result)


def heat_level(share: float | None) -> int:
    """Return the heat level of a share: 0 for none or unknown, then one level per quarter, up to 4."""
    return 0 if not share else min(4, math.ceil(share * 4))
