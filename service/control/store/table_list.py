# SPDX-License-Identifier: Apache-2.0
"""Lists of tables: filtered, sorted, by page, and summed by database.

The database sorts by columns of the tables' own rows and returns only one page, even of ten thousand tables.
"""

import json
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Unpack

from sqlalchemy import BigInteger, ColumnElement, Subquery, and_, case, cast, delete, func, insert, literal, or_, select

from service.control.store.base import StorePart, fetch_packed, storable_text
from service.control.store.database import datetime_from_ms, db_now
from service.control.store.errors import InvalidCursor
from service.control.store.models import ALL_TABLES, ObjectiveRow, PlanRow, ScanRow, SourceProblemRow, TableRow
from service.control.store.objectives import is_in_force
from service.control.store.views import (
    TABLE_STATES,
    DatabaseSum,
    SourceProblem,
    TableFilter,
    TableNamesPage,
    TableOrder,
    TableTotals,
)


class TableQueries(StorePart):
    """Queries about lists of tables."""

    def list_tables(
        self,
        order: TableOrder,
        *,
        descending: bool = False,
        limit: int,
        page: int | None = None,
        after: str | None = None,
        **which: Unpack[TableFilter],
    ) -> TableNamesPage:
        """Return the names of at most ``limit`` tables: page number ``page`` (from 1), or the tables after ``after``.

        Tables with equal values are sorted by name. Tables without a value come last in both directions. ``after`` is
        the cursor ``next`` of the previous page. A table whose value changes between two calls may appear twice or not
        at all. Raises InvalidCursor.
        """
        columns = self._bytewise(TableRow.name).label("name"), self._sort_value(order).label("value")
        keys = select(*columns).where(*self._filter_conditions(which)).subquery()
        after_cursor = [] if after is None else [_is_after_cursor(keys, order, after, descending)]
        by_value = keys.c.value.desc() if descending else keys.c.value
        query = select(keys).where(*after_cursor).order_by(by_value.nulls_last(), keys.c.name).limit(limit)
        with self._database.read() as connection:
            counted = select(func.count()).select_from(TableRow).where(*self._filter_conditions(which))
            total, start = int(connection.execute(counted).scalar_one()), 0
            if after is not None:
                remaining = select(func.count()).select_from(keys).where(*after_cursor)
                start = total - int(connection.execute(remaining).scalar_one())
            if page is not None:
                start = (min(page, max(1, -(-total // limit))) - 1) * limit
                query = query.offset(start)
            rows = fetch_packed(connection, query)
        rows.sort(key=itemgetter(0))  # packing the rows does not preserve their order
        known, missing = [row for row in rows if row[1] is not None], [row for row in rows if row[1] is None]
        known.sort(key=itemgetter(1), reverse=descending)
        shown = known + missing
        return TableNamesPage(
            names=tuple(name for name, _ in shown),
            total=total,
            number=start // limit + 1,
            next=json.dumps(shown[-1][::-1], separators=(",", ":")) if start + limit < total else None,
        )

    def database_sums(self, **which: Unpack[TableFilter]) -> list[DatabaseSum]:
        """Return the sums over each database's tables at their last good scans, most bytes to rewrite first.

        A table's database is its name up to the last dot.
        """
        held = case((TableRow.halted_at_ms.is_not(None), 1), else_=0)
        query = select(TableRow.name, held, *_SUMMED).where(*self._filter_conditions(which))
        sums: dict[str, list[int]] = {}
        with self._database.read() as connection:
            for name, is_held, *values in fetch_packed(connection, query):
                entry = sums.setdefault(database_of(name), [0] * (len(_SUMMED) + 2))
                for index, value in enumerate((1, is_held, *values)):
                    entry[index] += value or 0
        found = [
            DatabaseSum(
                database=database,
                tables=tables,
                halted=halted,
                files=files,
                bytes=bytes_,
                reducible_files=reducible,
                reducible_bytes=rewrite,
            )
            for database, (tables, halted, files, bytes_, reducible, rewrite) in sums.items()
        ]
        return sorted(found, key=lambda entry: (-entry.reducible_bytes, entry.database))

    def table_totals(self, **which: Unpack[TableFilter]) -> list[TableTotals]:
        """Return the figures of each table that matches, sorted by name."""
        labels = TableRow.name, TableRow.owner, TableRow.tags, TableRow.halted_at_ms, TableRow.freed_bytes
        query = select(*labels, *_SUMMED).where(*self._filter_conditions(which))
        with self._database.read() as connection:
            rows = sorted(fetch_packed(connection, query), key=itemgetter(0))
        return [
            TableTotals(
                table=name,
                owner=owner,
                tags=tuple((tags or "").split()),
                is_halted=halted_at is not None,
                files=files or 0,
                bytes=bytes_ or 0,
                reducible_files=reducible or 0,
                reducible_bytes=rewrite or 0,
                freed_bytes=freed,
            )
            for name, owner, tags, halted_at, freed, files, bytes_, reducible, rewrite in rows
        ]

    def table_labels(self) -> dict[str, list[str]]:
        """Return the formats, owners and tags of all tables, as choices for filters."""
        labels = select(TableRow.format, TableRow.owner, TableRow.tags).where(
            TableRow.name != ALL_TABLES, self._is_in_scope(TableRow.name)
        )
        with self._database.read() as connection:
            rows = connection.execute(labels.distinct()).all()
        return {
            "format": sorted({row.format for row in rows}),
            "owner": sorted({row.owner for row in rows if row.owner}),
            "tag": sorted({tag for row in rows for tag in (row.tags or "").split()}),
        }

    def _sort_value(self, order: TableOrder) -> Any:
        """Return the sort key: a text, or a whole number, since drivers and JSON may round other numbers."""
        match order:
            case TableOrder.NAME | TableOrder.FORMAT | TableOrder.MODE | TableOrder.OWNER:
                return self._bytewise(getattr(TableRow, order))
            case TableOrder.STATE:
                return case(*((_state_expression() == state, index) for index, state in enumerate(TABLE_STATES)))
            case TableOrder.PLAN:
                newest = select(func.max(PlanRow.id)).where(PlanRow.table_name == TableRow.name)
                return self._bytewise(newest.correlate(TableRow).scalar_subquery())
            case TableOrder.REDUCIBLE:
                billionths = TableRow.good_reducible_files * literal(_BILLION, BigInteger)
                return billionths // func.nullif(TableRow.good_files, 0, type_=BigInteger)
            case TableOrder.BUDGET:
                least = select(func.min(ObjectiveRow.budget_left)).where(
                    ObjectiveRow.table_name == TableRow.name, is_in_force()
                )
                return cast(least.correlate(TableRow).scalar_subquery() * _BILLION, BigInteger)
            case TableOrder.ATTENTION:
                unserved = and_(TableRow.paused_at_ms.is_(None), TableRow.mode != "compact")
                rank = case((TableRow.halted_at_ms.is_not(None), 0), (unserved, 2), else_=1)
                urgency = cast(rank, BigInteger) * literal(_MAX_TABLE_BYTES, BigInteger)
                return urgency - func.coalesce(TableRow.good_reducible_bytes, 0)
        return _SCAN_COLUMNS[order]

    def _bytewise(self, text: Any) -> ColumnElement[Any]:
        """Return a text that PostgreSQL sorts like SQLite and Python, regardless of the locale of its database."""
        found: ColumnElement[Any] = text.collate("C") if self._database.dialect == "postgresql" else text
        return found

    def _filter_conditions(self, table_filter: TableFilter) -> list[ColumnElement[bool]]:
        """Return the conditions on the tables that match the filter."""
        found = [TableRow.name != ALL_TABLES, self._is_in_scope(TableRow.name)]
        if name := table_filter.get("name"):
            found.append(func.lower(TableRow.name).contains(name.lower(), autoescape=True))
        if (database := table_filter.get("database")) is not None:
            if database:
                found.append(TableRow.name.startswith(f"{database}.", autoescape=True))
            # The table is directly in the database if the rest of its name has no dot.
            rest = func.substr(TableRow.name, len(database) + 2) if database else TableRow.name
            found.append(~rest.contains("."))
        for column, value in ((TableRow.format, "format"), (TableRow.mode, "mode"), (TableRow.owner, "owner")):
            if wanted := table_filter.get(value):
                found.append(column == wanted)
        if tag := table_filter.get("tag"):
            found.append(TableRow.tags.contains(f" {tag} ", autoescape=True))
        state = table_filter.get("state")
        if state == "unreadable":
            last = select(ScanRow.outcome).where(ScanRow.id == TableRow.last_scan_id).correlate(TableRow)
            found.append(last.scalar_subquery() == "error")
        elif state == "objective_missed":
            missed = select(ObjectiveRow.table_name).where(ObjectiveRow.met.is_(False), is_in_force())
            found += [TableRow.name.in_(missed), TableRow.mode != "off"]
        elif state:
            found.append(_state_expression() == state)
        return found


#: shares are whole numbers of billionths
_BILLION = 10**9
#: bits of a database's integer, without its sign
_MAX_BITS = 63
#: more bytes than any table has
_MAX_TABLE_BYTES = 10**17
#: columns of the last good scan
_SCAN_COLUMNS: Mapping[TableOrder, Any] = {
    TableOrder.FILES: TableRow.good_files,
    TableOrder.BYTES: TableRow.good_bytes,
    TableOrder.REWRITE: TableRow.good_reducible_bytes,
    TableOrder.MEDIAN: TableRow.good_median_bytes,
    TableOrder.SCANNED: TableRow.good_scanned_at_ms,
}
_SUMMED = (TableRow.good_files, TableRow.good_bytes, TableRow.good_reducible_files, TableRow.good_reducible_bytes)
_TEXT_ORDERS = frozenset({TableOrder.NAME, TableOrder.FORMAT, TableOrder.MODE, TableOrder.OWNER, TableOrder.PLAN})


def database_of(name: str) -> str:
    """Return the part of a table's name before its last dot; '' without a dot."""
    return name.rpartition(".")[0]


def _state_expression() -> Any:
    return case(
        (TableRow.halted_at_ms.is_not(None), "halted"),
        (TableRow.paused_at_ms.is_not(None), "paused"),
        else_=TableRow.mode,
    )


def _is_after_cursor(keys: Subquery, order: TableOrder, cursor: str, descending: bool) -> ColumnElement[bool]:
    """Return the condition that a row comes after the cursor. Raises InvalidCursor."""
    try:
        value, name = json.loads(cursor)
        _check_cursor_part(name, str)
        if value is not None:
            _check_cursor_part(value, str if order in _TEXT_ORDERS else int)
    except (ValueError, TypeError) as error:
        raise InvalidCursor(f"query.after: {cursor!r} is not the value of next in a list of tables") from error
    of_equals = keys.c.name > name
    if value is None:
        return and_(keys.c.value.is_(None), of_equals)
    further = keys.c.value < value if descending else keys.c.value > value
    return or_(further, and_(keys.c.value == value, of_equals), keys.c.value.is_(None))


def _check_cursor_part(value: Any, kind: type) -> None:
    """Check that a database can compare this part of a cursor. Raises TypeError, ValueError."""
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not a {kind.__name__}")
    if isinstance(value, str) and "\x00" in value.encode().decode():  # encode() raises for a lone surrogate
        raise ValueError("the database can't store the text")
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise ValueError("the database can't store the number")


#: maximum number of stored problems; an unreadable file system causes one for each of its directories
_MAX_PROBLEMS = 100


class SourceProblems(StorePart):
    """Problems with sources, in the order in which the search for tables found them."""

    def record_source_problems(self, problems: Sequence[str]) -> None:
        """Replace the problems of the last search with ``problems``. A problem that persists keeps its time.

        Of more than a hundred problems, the first hundred are stored, and a line with the number of the others.
        """
        lines = [storable_text(problem) for problem in problems[:_MAX_PROBLEMS]]
        if (more := len(problems) - len(lines)) > 0:
            lines.append(f"{more} more parts of sources could not be searched; the log names each")
        with self._database.write() as connection:
            query = select(SourceProblemRow.problem, SourceProblemRow.since_ms).order_by(SourceProblemRow.position)
            before = {row.problem: row.since_ms for row in connection.execute(query)}
            if list(before) == lines:
                return
            connection.execute(delete(SourceProblemRow))
            for position, line in enumerate(dict.fromkeys(lines)):
                since = before.get(line, db_now())
                row = insert(SourceProblemRow).values(position=position, problem=line, since_ms=since)
                connection.execute(row)

    def source_problems(self) -> list[SourceProblem]:
        """Return the problems of the last search. A caller with a limited table scope gets none."""
        if not self._table_scope.is_unrestricted:
            return []
        query = select(SourceProblemRow.__table__).order_by(SourceProblemRow.position)
        with self._database.read() as connection:
            return [
                SourceProblem(problem=row.problem, since=datetime_from_ms(row.since_ms))
                for row in connection.execute(query)
            ]
