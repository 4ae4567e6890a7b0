# SPDX-License-Identifier: Apache-2.0
"""Trends of tables and of the lake over weeks: figures of scans. Older figures are kept at longer intervals."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, func, insert, literal, select

from lake.plan import PlanState
from service.control.store.base import StorePart
from service.control.store.database import db_now, timedelta_to_ms
from service.control.store.errors import NotFound
from service.control.store.models import ALL_TABLES, PlanRow, PlanTotalRow, TableRow, TrendRow
from service.control.store.rows import view_of
from service.modes import PLANNED_MODES

#: points of the last ``_FINE_PERIOD`` are ``_FINE_STEP`` apart, counted from midnight UTC; older points are a day
#: apart, and are deleted after ``_RETENTION``
_FINE_STEP, _FINE_PERIOD, _RETENTION = timedelta(hours=4), timedelta(days=7), timedelta(days=30)
_DAY_MS = timedelta_to_ms(timedelta(days=1))
_SCAN_FIGURES = ("files", "bytes", "small_files", "reducible_files")
_FIGURES = (*_SCAN_FIGURES, "rewritten_bytes", "freed_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendPoint:
    """The figures of a table, or of all tables in modes propose and compact, at one time.

    ``rewritten_bytes`` and ``freed_bytes`` are totals, which never decrease.
    """

    at: datetime
    files: int
    bytes: int
    small_files: int
    reducible_files: int
    rewritten_bytes: int
    freed_bytes: int


class Trends(StorePart):
    """The points of each table and of the lake in the last 30 days."""

    def record_trends(self) -> bool:
        """Store a point from the last good scan of each table. Returns False if it stored none.

        Stores none if the present step has points already, or if the first points would lack a table that was not yet
        scanned. Deletes old points, so that a table never has more than 67.
        """
        with self._database.write() as connection:
            now = int(connection.execute(select(db_now())).scalar_one())
            newest = select(func.max(TrendRow.at_ms)).where(TrendRow.table_name == ALL_TABLES)
            last = connection.execute(newest).scalar_one()
            if last is None and not _is_every_table_scanned(connection):
                return False  # otherwise the tables that are scanned later would look like growth
            if last is not None and last >= now - now % timedelta_to_ms(_FINE_STEP):
                return False
            columns = ("table_name", "at_ms", *_FIGURES)
            connection.execute(insert(TrendRow).from_select(columns, _table_points(now)))
            connection.execute(insert(TrendRow).from_select(columns, _lake_point(now)))
            _prune_points(connection, now)
            return True

    def trend(self, name: str | None) -> list[TrendPoint]:
        """Return the points of table ``name``, or of the lake if None, oldest first.

        The lake's points are sums over the tables in modes propose and compact.
        """
        if not (self._table_scope.is_unrestricted if name is None else self._table_scope.has_table(name)):
            return []
        query = (
            select(TrendRow.__table__)
            .where(TrendRow.table_name == (ALL_TABLES if name is None else name))
            .order_by(TrendRow.at_ms)
        )
        with self._database.read() as connection:
            return [view_of(TrendPoint, row) for row in connection.execute(query)]

    def byte_totals(self, name: str) -> tuple[int, int]:
        """Return the bytes that plans of table ``name`` wrote and the bytes that the cleaner freed. Raises NotFound."""
        with self._database.read() as connection:
            query = select(_rewritten(TableRow.name), TableRow.freed_bytes).where(TableRow.name == name)
            row = connection.execute(query.where(self._is_in_scope(TableRow.name))).one_or_none()
        if row is None:
            raise NotFound(f"no table {name!r} is registered")
        return int(row[0]), row.freed_bytes


def _is_every_table_scanned(connection: Connection) -> bool:
    """Return True if there is a table, and each table that is not in mode off was scanned."""
    scanned = select(TableRow.last_scan_id.is_not(None)).where(TableRow.name != ALL_TABLES, TableRow.mode != "off")
    found = list(connection.execute(scanned).scalars())
    return bool(found) and all(found)


def _rewritten(table_name: Any) -> Any:
    """Return the bytes that completed plans of ``table_name`` have written, including pruned plans."""
    sums = (
        select(func.coalesce(func.sum(row.bytes_after), 0))
        .where(row.table_name == table_name, row.state == PlanState.COMPLETED)
        .scalar_subquery()
        for row in (PlanRow, PlanTotalRow)
    )
    stored, pruned = sums
    return stored + pruned


def _table_points(now: int) -> Any:
    """Return the query of the points of tables that are not off and whose last good scan counted reducible files."""
    found = (getattr(TableRow, f"good_{name}") for name in _SCAN_FIGURES)
    totals = _rewritten(TableRow.name), TableRow.freed_bytes
    return select(TableRow.name, literal(now), *found, *totals).where(
        TableRow.mode != "off", TableRow.good_reducible_files.is_not(None)
    )


def _lake_point(now: int) -> Any:
    """Return the query of the lake's point, the sum of the points of the planned tables."""
    sums = (func.coalesce(func.sum(getattr(TrendRow, figure)), 0) for figure in _FIGURES)
    return (
        select(literal(ALL_TABLES), literal(now), *sums)
        .join(TableRow, TrendRow.table_name == TableRow.name)
        .where(TrendRow.at_ms == now, TableRow.mode.in_(PLANNED_MODES))
    )


def _prune_points(connection: Connection, now: int) -> None:
    """Delete points older than the retention. Of days before the fine period, keep only the first point of each."""
    connection.execute(delete(TrendRow).where(TrendRow.at_ms < now - timedelta_to_ms(_RETENTION)))
    first_of_day = (
        select(func.min(TrendRow.at_ms)).where(TrendRow.table_name == ALL_TABLES).group_by(TrendRow.at_ms // _DAY_MS)
    )
    kept = list(connection.execute(first_of_day).scalars())
    connection.execute(
        delete(TrendRow).where(TrendRow.at_ms < now - timedelta_to_ms(_FINE_PERIOD), TrendRow.at_ms.not_in(kept))
    )
