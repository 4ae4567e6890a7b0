# SPDX-License-Identifier: Apache-2.0
"""A table's file sizes over time as a heat map: one column per moment, one row per size, coloured by number of files.

The colours are those of BuPu, a sequential palette that people with colour vision deficiency can read (ColorBrewer 2.0,
Cynthia A. Brewer, https://colorbrewer2.org). None of them is the colour of small files or of large files. The style
sheet has six of the colours for light and six for dark pages.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from lake.model import HISTOGRAM_EDGES_BYTES
from lake.units import format_bytes
from service.control.store import ScanRecord
from service.server.web.charts import Scale, Tick, axis_text, bucket_name
from service.server.web.formatting import format_clock
from service.server.web.time_axis import MomentBand, TimeAxis
from service.text import plural

#: maximum number of columns beside that of the first scan
_COLUMNS = 48
#: width, row height and left margin (for texts) of the picture for wide windows, and of that for narrow windows
_SIZES = ((960.0, 18.0, 72.0), (360.0, 15.0, 54.0))
_TOP, _BOTTOM, _RIGHT = 8.0, 26.0, 6.0
#: the share of the width that the column of the first scan takes, and the width of the gap after this column
_FIRST_SHARE, _FIRST_GAP = 0.06, 8.0
LEVELS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeColumn:
    """The numbers of files by size at one scan; they apply from this time until the next column."""

    at: datetime
    scanned_at: datetime
    counts: tuple[int, ...]
    files: int
    small_files: int
    is_first_scan: bool

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        """The sizes that have files, each with its number of files, the smallest size first."""
        return tuple((bucket_name(index), count) for index, count in enumerate(self.counts) if count)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """A heat map for windows of one width; ``paths`` has the cells of each level from 1 to 6, '' if it has none."""

    width: float
    height: float
    left: float
    right: float
    top: float
    base: float
    paths: tuple[str, ...]
    bands: tuple[MomentBand, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    limit_y: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeHistory:
    """A table's file sizes over time."""

    text: str
    columns: tuple[SizeColumn, ...]
    maps: tuple[HeatMap, ...]

    @property
    def rows(self) -> tuple[SizeColumn, ...]:
        """One column of each scan that is shown, newest first."""
        return tuple({column.scanned_at: column for column in reversed(self.columns)}.values())


def count_level(files: int) -> int:
    """Return the level of a number of files: 0 for none, 1 for 1 to 9, 2 for 10 to 99, up to 6 from 100,000 on."""
    return 0 if files <= 0 else min(LEVELS, int(math.log10(files)) + 1)


def size_history(scans: Sequence[ScanRecord], first: ScanRecord | None, small_file_limit: int) -> SizeHistory | None:
    """Return the sizes at ``scans``, newest first, and at the ``first`` scan if it is older; None for one moment only.

    There are 48 columns of equal time. A column shows the last scan until its time.
    """
    good = [scan for scan in reversed(scans) if scan.outcome == "ok" and any(scan.histogram)]
    if len(good) < 2 or good[0].taken_at == good[-1].taken_at:
        return None
    begin, end = good[0].taken_at, good[-1].taken_at
    times = [scan.taken_at for scan in good]
    # The first column shows the oldest scan, and the last one the newest.
    moments = [begin + (end - begin) * index / (_COLUMNS - 1) for index in range(_COLUMNS)]
    columns = [_column(good[bisect_right(times, moment) - 1], moment) for moment in moments]
    if first is not None and first.taken_at < begin and any(first.histogram):
        columns.insert(0, _column(first, first.taken_at, is_first_scan=True))
    drawn = [index for index in range(len(columns[0].counts)) if any(column.counts[index] for column in columns)]
    low, high = drawn[0], drawn[-1] + 1
    return SizeHistory(
        text=f"File sizes over time: {_words(columns[0])}; {_words(columns[-1])}. The table below has the numbers.",
        columns=tuple(columns),
        maps=tuple(_heat_map(columns, low, high, small_file_limit, size) for size in _SIZES),
    )


def _column(scan: ScanRecord, at: datetime, *, is_first_scan: bool = False) -> SizeColumn:
    return SizeColumn(
        at=at,
        scanned_at=scan.taken_at,
        counts=tuple(scan.histogram),
        files=scan.files,
        small_files=scan.small_files,
        is_first_scan=is_first_scan,
    )


def _words(column: SizeColumn) -> str:
    name = "first scan, " if column.is_first_scan else ""
    return f"{name}{format_clock(column.at)}: {plural(column.files, 'file')}, {column.small_files:,} small"


def _heat_map(
    columns: Sequence[SizeColumn], low: int, high: int, small_file_limit: int, size: tuple[float, float, float]
) -> HeatMap:
    width, row_height, left = size
    height = _TOP + (high - low) * row_height + _BOTTOM
    base, right = height - _BOTTOM, width - _RIGHT
    others = [column for column in columns if not column.is_first_scan]
    begin = left
    places: list[tuple[float, float]] = []
    if len(others) < len(columns):
        first_width = (right - left) * _FIRST_SHARE
        places.append((left, first_width))
        begin = left + first_width + _FIRST_GAP
    slot = (right - begin) / len(others)
    places += [(begin + index * slot, slot) for index in range(len(others))]
    # A column's time is at its left edge.
    axis = TimeAxis(
        begin=others[0].at,
        end=others[-1].at + (others[-1].at - others[0].at) / (len(others) - 1),
        left=begin,
        right=right,
    )

    def y_of(edge: float) -> float:
        return base - (edge - low) * row_height

    return HeatMap(
        width=width,
        height=height,
        left=left,
        right=right,
        top=_TOP,
        base=base,
        paths=_level_paths(columns, places, range(low, high), y_of, row_height),
        bands=tuple(
            MomentBand(x=x, width=wide, text=_words(column)) for column, (x, wide) in zip(columns, places, strict=True)
        ),
        # The last column, which shows the newest scan, continues beyond the time of this scan.
        x_ticks=tuple(tick for tick in axis.ticks() if tick.at <= axis.position(others[-1].at)),
        y_ticks=tuple(
            Tick(at=y_of(edge + 1), text=axis_text(format_bytes(HISTOGRAM_EDGES_BYTES[edge])))
            for edge in range(max(low - 1, 0), min(high, len(HISTOGRAM_EDGES_BYTES)))
            if (edge % 5 == 0 or high - low < 8) and low <= edge + 1 <= high
        ),
        limit_y=_limit_position(small_file_limit, low, high, y_of),
    )


def _limit_position(small_file_limit: int, low: int, high: int, y_of: Scale) -> float | None:
    """Return the position of the small-file limit; None if it is outside of the drawn sizes."""
    edge = math.log2(max(small_file_limit, 1) / HISTOGRAM_EDGES_BYTES[0]) + 1
    return y_of(edge) if low <= edge <= high else None


def _level_paths(
    columns: Sequence[SizeColumn],
    places: Sequence[tuple[float, float]],
    buckets: range,
    y_of: Scale,
    row_height: float,
) -> tuple[str, ...]:
    """Return the cells of each level as one path; neighbours of one level in a row are one rectangle."""
    paths: list[list[str]] = [[] for _ in range(LEVELS)]
    for bucket in buckets:
        levels = [count_level(column.counts[bucket]) for column in columns]
        top = y_of(bucket + 1)
        start = 0
        for index in range(1, len(columns) + 1):
            is_run = index < len(columns) and levels[index] == levels[start] and not columns[start].is_first_scan
            if is_run:
                continue
            if levels[start]:
                x, end = places[start][0], sum(places[index - 1])
                paths[levels[start] - 1].append(f"M{x:.1f} {top:.1f}H{end:.1f}v{row_height - 1:.1f}H{x:.1f}z")
            start = index
    return tuple("".join(path) for path in paths)
