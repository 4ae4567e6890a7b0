# SPDX-License-Identifier: Apache-2.0
"""The trend of a table or of the lake over the last days: small charts with their figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import URL

from lake.units import format_bytes
from service.control import serializers
from service.control.serializers import points_within
from service.control.store import TrendPoint
from service.server.web.charts import TrendChart, trend_chart
from service.server.web.formatting import format_count
from service.server.web.time_chart import Series, TimeChart, time_chart
from service.text import format_percent, share_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendFigure:
    """One figure over time; ``chart`` is None if there are too few points."""

    name: str
    figure: str
    title: str
    chart: TrendChart | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendPanel:
    """The changes ``since`` a moment; ``periods`` are the available numbers of days with their addresses.

    ``charts`` are empty if all points are of one moment.
    """

    days: int
    since: datetime
    figures: tuple[TrendFigure, ...]
    periods: tuple[tuple[int, str], ...]
    charts: tuple[TimeChart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One figure of the lake: its present value, its recent ``change``, and its ``chart``.

    ``chart`` is None if there are too few points. ``href`` is the page with more about the figure; '' if there is none.
    """

    name: str
    figure: str
    title: str
    change: str
    href: str
    chart: TrendChart | None


def tiles(points: Sequence[TrendPoint], days: int) -> tuple[Tile, ...]:
    """Return the files and the reducible files of all planned tables, and the bytes rewritten and freed.

    The changes are those of the last ``days``. With fewer than two points the bytes are totals. Without points
    there are no tiles.
    """
    if not points:
        return ()
    trend = _trend_of(points, days)
    shown = points if trend is None else points_within(points, trend["days"])
    first, now = shown[0], shown[-1]
    period = "in total" if trend is None else f"since {first.at.astimezone(UTC):%-d %b}"
    reducible = share_of(now.reducible_files, now.files)
    return (
        Tile(
            name="Files",
            figure=format_count(now.files),
            title=f"{now.files:,} files in tables of modes propose and compact",
            change="" if trend is None else f"{format_count(first.files)} {_on(first)}",
            href="",
            chart=_chart([(point.at, point.files) for point in shown], _TILE),
        ),
        Tile(
            name="Reducible files",
            figure=format_percent(reducible),
            title=f"{now.reducible_files:,} of {now.files:,} files are small and worth rewriting",
            change=f"{format_count(now.reducible_files)} files"
            + (f"; {format_percent(share_of(first.reducible_files, first.files))} {_on(first)}" if trend else ""),
            href="",
            chart=_chart([(point.at, share_of(point.reducible_files, point.files) or 0.0) for point in shown], _TILE),
        ),
        *(
            Tile(
                name=name,
                figure=format_bytes(growth[-1][1]),
                title=f"{growth[-1][1]:,} bytes {period}",
                change=period,
                href=href,
                chart=_chart(growth, _TILE),
            )
            for name, href, growth in (
                ("Rewritten", "/plans?state=completed", _growth(shown, lambda point: point.rewritten_bytes, trend)),
                ("Freed", "/cleaning", _growth(shown, lambda point: point.freed_bytes, trend)),
            )
        ),
    )


def _on(point: TrendPoint) -> str:
    return f"on {point.at.astimezone(UTC):%-d %b}"


def _trend_of(points: Sequence[TrendPoint], days: int) -> dict[str, Any] | None:
    """Return the trend over ``days``, or if there is none, over the shortest period; None if there is no trend."""
    known = serializers.trends(points)
    return next((entry for entry in known if entry["days"] == days), known[0]) if known else None


def trend_panel(points: Sequence[TrendPoint], days: int, address: URL) -> TrendPanel | None:
    """Return the trend over the last ``days`` for the page at ``address``, or None for fewer than two points."""
    known = serializers.trends(points)
    if not known:
        return None
    trend = _trend_of(points, days) or known[0]
    shown = points_within(points, trend["days"])
    # If the history is shorter than the shortest period, all periods show the same, and there is no choice.
    several = known[0]["since"] != known[-1]["since"]
    return TrendPanel(
        days=trend["days"],
        since=trend["since"],
        figures=(
            _share_figure("Reducible files", shown, lambda point: point.reducible_files),
            _share_figure("Small files", shown, lambda point: point.small_files),
            TrendFigure(
                name="Files",
                figure=f"{format_count(trend['files_before'])} → {format_count(trend['files'])}",
                title=f"{trend['files_before']:,} files, {trend['files']:,} now",
                chart=_chart([(point.at, point.files) for point in shown]),
            ),
            _growth_figure("Rewritten", shown, lambda point: point.rewritten_bytes),
            _growth_figure("Freed", shown, lambda point: point.freed_bytes),
        ),
        periods=tuple(
            (entry["days"], f"?{address.include_query_params(days=entry['days']).query}#over-time") for entry in known
        )
        if several
        else (),
        charts=_charts(shown),
    )


def _charts(points: Sequence[TrendPoint]) -> tuple[TimeChart, ...]:
    """Return the chart of files and the chart of bytes of ``points``.

    Points are hours apart, so they are joined by straight lines: with steps, a change that took place gradually between
    two points would appear at the later one.
    """
    rewritten, freed = (
        _growth(points, lambda point: point.rewritten_bytes, True),
        _growth(points, lambda point: point.freed_bytes, True),
    )
    drawn = (
        time_chart(
            "Files over time",
            (
                Series(
                    name="files",
                    key="first",
                    points=[(point.at, point.files) for point in points],
                    format=_files,
                    is_step=False,
                ),
                Series(
                    name="reducible files",
                    key="second",
                    points=[(point.at, point.reducible_files) for point in points],
                    format=_files,
                    is_step=False,
                    is_filled=True,
                ),
            ),
            is_whole=True,
        ),
        time_chart(
            "Bytes rewritten and freed",
            (
                Series(name="rewritten", key="first", points=rewritten, format=_bytes, is_step=False),
                Series(name="freed", key="second", points=freed, format=_bytes, is_step=False, is_filled=True),
            ),
            is_bytes=True,
        ),
    )
    return tuple(chart for chart in drawn if chart is not None)


def _files(number: float) -> str:
    return format_count(round(number))


def _bytes(number: float) -> str:
    return format_bytes(round(number))


def _share_figure(name: str, points: Sequence[TrendPoint], of: Callable[[TrendPoint], int]) -> TrendFigure:
    shares = [share_of(of(point), point.files) for point in points]
    return TrendFigure(
        name=name,
        figure=f"{format_percent(shares[0])} → {format_percent(shares[-1])}",
        title=f"{of(points[0]):,} of {points[0].files:,} files, {of(points[-1]):,} of {points[-1].files:,} now",
        chart=_chart([(point.at, share or 0.0) for point, share in zip(points, shares, strict=True)]),
    )


def _growth_figure(name: str, points: Sequence[TrendPoint], of: Callable[[TrendPoint], int]) -> TrendFigure:
    growth = _growth(points, of, True)
    return TrendFigure(
        name=name,
        figure=format_bytes(growth[-1][1]),
        title=f"{growth[-1][1]:,} bytes",
        chart=_chart(growth),
    )


def _growth(
    points: Sequence[TrendPoint], of: Callable[[TrendPoint], int], since_first: object
) -> list[tuple[datetime, int]]:
    """Return the growth of a total since the first of ``points``, or the total itself without ``since_first``.

    The total of the lake falls if a table is no longer compacted; the growth is then 0.
    """
    base = of(points[0]) if since_first else 0
    return [(point.at, max(0, of(point) - base)) for point in points]


#: width and height of a figure's chart, and of a tile's chart
_FIGURE, _TILE = (180.0, 56.0), (220.0, 48.0)


def _chart(values: Sequence[tuple[datetime, float]], size: tuple[float, float] = _FIGURE) -> TrendChart | None:
    return trend_chart(values, width=size[0], height=size[1])
