# SPDX-License-Identifier: Apache-2.0
"""The documents of the changes of a table, or of the lake, over 7 and 30 days."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from service.modes import PLANNED_MODES
from service.text import format_percent, format_size, parse_timestamp, share_of

if TYPE_CHECKING:
    from service.control.lake_cache import LakeState
    from service.control.store import ScanRecord, Store, TrendPoint

#: the periods that are shown, in days
TREND_DAYS = (7, 30)
_SCAN_FIGURES = ("files", "bytes", "small_files", "reducible_files")


def table_points(
    store: "Store", name: str, good: "ScanRecord | None", first: "ScanRecord | None"
) -> "list[TrendPoint]":
    """Return the points of a table, oldest first; the last point is its last ``good`` scan.

    The ``first`` scan of the table is its first point if it is within the longest period.
    """
    from service.control.store import TrendPoint

    if good is None or good.reducible_files is None:
        return []
    rewritten, freed = store.byte_totals(name)
    last = TrendPoint(
        at=good.taken_at,
        files=good.files,
        bytes=good.bytes,
        small_files=good.small_files,
        reducible_files=good.reducible_files,
        rewritten_bytes=rewritten,
        freed_bytes=freed,
    )
    stored = [point for point in store.trend(name) if point.at < last.at]
    return [*_first_point([] if first is None else [first], [*stored, last]), *stored, last]


def _first_point(first: "Sequence[ScanRecord]", points: "Sequence[TrendPoint]") -> "list[TrendPoint]":
    """Return the point of the tables' ``first`` scans, before which no plan had run.

    Returns an empty list if the scans are not older than all ``points``, or if they are older than the longest trend.
    """
    from service.control.store import TrendPoint

    begin = points[-1].at - timedelta(days=TREND_DAYS[-1])
    known = bool(first) and all(scan.reducible_files is not None for scan in first)
    if not known or not all(begin < scan.taken_at < points[0].at for scan in first):
        return []
    figures = {name: sum(getattr(scan, name) for scan in first) for name in _SCAN_FIGURES}
    return [TrendPoint(at=min(scan.taken_at for scan in first), **figures, rewritten_bytes=0, freed_bytes=0)]


def lake_points(lake: "LakeState") -> "list[TrendPoint]":
    """Return the points of all tables in modes propose and compact together, oldest first; the last point is now.

    If all tables were first scanned before the oldest stored point, and within the longest period, the first point has
    their first scans, like the share "at first" of ``status``.
    """
    from lake.plan import PlanState
    from service.control.store import TrendPoint

    names = {table.name for table in lake.figures.tables if table.mode in PLANNED_MODES}
    scans = [scan for name, scan in lake.last_good_scans.items() if name in names and scan.reducible_files is not None]
    if not scans:
        return []
    last = TrendPoint(
        at=lake.figures.taken_at,
        files=sum(scan.files for scan in scans),
        bytes=sum(scan.bytes for scan in scans),
        small_files=sum(scan.small_files for scan in scans),
        reducible_files=sum(scan.reducible_files or 0 for scan in scans),
        rewritten_bytes=sum(
            row.bytes_after for row in lake.figures.plans if row.table in names and row.state is PlanState.COMPLETED
        ),
        freed_bytes=sum(table.freed_bytes for table in lake.figures.tables if table.name in names),
    )
    stored = [point for point in lake.trend_points if point.at < last.at]
    # There are no stored points for a caller who sees some tables only, and then there is no trend.
    first = [lake.first_scans[scan.table] for scan in scans] if stored else []
    return [*_first_point(first, [*stored, last]), *stored, last]


def points_within(points: "Sequence[TrendPoint]", days: int) -> "Sequence[TrendPoint]":
    """Return the points of the last ``days``.

    The first one is the last point at or before the beginning of this period, if there is one.
    """
    if not points:
        return ()
    begin = points[-1].at - timedelta(days=days)
    before = sum(point.at <= begin for point in points)
    return points[max(0, before - 1) :]


def trends(points: "Sequence[TrendPoint]") -> list[dict[str, Any]]:
    """Return the changes in each of ``TREND_DAYS``. A period with fewer than two points is left out.

    If the first point is younger than the period, the change is counted from that point, ``since``.
    """
    return [
        _trend(days, chosen[0], chosen[-1]) for days in TREND_DAYS if len(chosen := points_within(points, days)) > 1
    ]


def _trend(days: int, first: "TrendPoint", last: "TrendPoint") -> dict[str, Any]:
    return {
        "days": days,
        "since": first.at,
        "files_before": first.files,
        "files": last.files,
        "small_share_before": share_of(first.small_files, first.files),
        "small_share": share_of(last.small_files, last.files),
        "reducible_share_before": share_of(first.reducible_files, first.files),
        "reducible_share": share_of(last.reducible_files, last.files),
        # The totals fall if a table is no longer compacted.
        "rewritten_bytes": max(0, last.rewritten_bytes - first.rewritten_bytes),
        "freed_bytes": max(0, last.freed_bytes - first.freed_bytes),
    }


def trend_point(point: "TrendPoint") -> dict[str, Any]:
    """Return one point; bytes rewritten and freed are totals."""
    return {
        "at": point.at,
        "files": point.files,
        "bytes": point.bytes,
        "small_files": point.small_files,
        "small_share": share_of(point.small_files, point.files),
        "reducible_files": point.reducible_files,
        "reducible_share": share_of(point.reducible_files, point.files),
        "rewritten_bytes": point.rewritten_bytes,
        "freed_bytes": point.freed_bytes,
    }


def describe_trends(trends: "Sequence[Mapping[str, Any]]") -> list[tuple[str, str]]:
    """Return the periods and their changes as text, from JSON documents.

    If all periods begin at the same point, the change is shown once.
    """
    if trends and trends[0]["since"] == trends[-1]["since"]:
        return [(f"since {parse_timestamp(trends[0]['since']):%Y-%m-%d %H:%M} UTC", _describe_trend(trends[0]))]
    return [(f"{trend['days']} days", _describe_trend(trend)) for trend in trends]


def _describe_trend(trend: Mapping[str, Any]) -> str:
    return (
        f"reducible {format_percent(trend['reducible_share_before'])} → {format_percent(trend['reducible_share'])}, "
        f"small {format_percent(trend['small_share_before'])} → {format_percent(trend['small_share'])}, "
        f"files {trend['files_before']:,} → {trend['files']:,}; "
        f"{format_size(trend['rewritten_bytes'])} rewritten, {format_size(trend['freed_bytes'])} freed"
    )
