# SPDX-License-Identifier: Apache-2.0
"""The trend of a table or of the lake over the last days: small charts with their figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from starlette.datastructures import URL

from lake.units import format_bytes
from service.control import serializers
from service.control.serializers import points_within
from service.control.store import TrendPoint
from service.server.web.charts import TrendChart, trend_chart
from service.server.web.formatting import format_count
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
    """The changes ``since`` a moment; ``periods`` are the available numbers of days with their addresses."""

    days: int
    since: datetime
    figures: tuple[TrendFigure, ...]
    periods: tuple[tuple[int, str], ...]


def trend_panel(points: Sequence[TrendPoint], days: int, address: URL) -> TrendPanel | None:
    """Return the trend over the last ``days`` for the page at ``address``, or None for fewer than two points."""
    known = serializers.trends(points)
    if not known:
        return None
    trend = next((entry for entry in known if entry["days"] == days), known[0])
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
    )


def _share_figure(name: str, points: Sequence[TrendPoint], of: Callable[[TrendPoint], int]) -> TrendFigure:
    shares = [share_of(of(point), point.files) for point in points]
    return TrendFigure(
        name=name,
        figure=f"{format_percent(shares[0])} → {format_percent(shares[-1])}",
        title=f"{of(points[0]):,} of {points[0].files:,} files, {of(points[-1]):,} of {points[-1].files:,} now",
        chart=_chart([(point.at, share or 0.0) for point, share in zip(points, shares, strict=True)]),
    )


def _growth_figure(name: str, points: Sequence[TrendPoint], of: Callable[[TrendPoint], int]) -> TrendFigure:
    # The total of the lake falls if a table is no longer compacted.
    grown = [max(0, of(point) - of(points[0])) for point in points]
    return TrendFigure(
        name=name,
        figure=format_bytes(grown[-1]),
        title=f"{grown[-1]:,} bytes",
        chart=_chart([(point.at, size) for point, size in zip(points, grown, strict=True)]),
    )


def _chart(values: Sequence[tuple[datetime, float]]) -> TrendChart | None:
    return trend_chart(values, width=180, height=56)
