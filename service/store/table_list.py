# SPDX-License-Identifier: Apache-2.0
"""Lists of tables: those that are meant, in any order, a page of them, and what their databases add up to.

The order of ten thousand tables is made from one value of each, which the database reads out; a page is read whole.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Unpack

from sqlalchemy import JSON, BigInteger, Connection, Text, case, cast, func, literal, select

from lake.model import median_bytes
from service.store.base import StorePart, at_once
from service.store.errors import WrongCursor
from service.store.models import ALL_TABLES, PlanRow, ScanRow, TableRow
from service.store.tables import number as number_in
from service.store.views import TABLE_STATES, DatabaseSum, TableOrder, TablePage, TableTerms

#: a table and its value in an order, None where it has none
_Key = Sequence[Any]


class TableLists(StorePart):
    """Tables as people look for them."""

    def list_tables(
        self,
        order: TableOrder,
        *,
        descending: bool = False,
        limit: int,
        page: int | None = None,
        after: str | None = None,
        **which: Unpack[TableTerms],
    ) -> TablePage:
        """The names of at most ``limit`` tables: the ``page`` with this number from 1, or those behind ``after``.

        Tables of equal values come by name, those without one last in both directions. ``after`` is the ``next`` of the
        page before; tables whose value changes meanwhile come twice or not at all. Raises WrongCursor.
        """
        with self._database.read() as connection:
            keys = self._keys(connection, order, which)
        keys.sort(key=itemgetter(0))
        known, missing = [key for key in keys if key[1] is not None], [key for key in keys if key[1] is None]
        known.sort(key=itemgetter(1), reverse=descending)
        ordered = known + missing
        start = 0 if after is None else _behind(ordered, after, descending)
        if page is not None:
            start = (min(page, max(1, -(-len(ordered) // limit))) - 1) * limit
        shown = ordered[start : start + limit]
        more = start + limit < len(ordered)
        return TablePage(
            names=tuple(name for name, _ in shown),
            total=len(ordered),
            number=start // limit + 1,
            next=json.dumps(shown[-1][::-1], separators=(",", ":")) if more else None,
        )

    def databases(self, **which: Unpack[TableTerms]) -> list[DatabaseSum]:
        """What the tables of each database add up to, by the last good scan of each, those with most to rewrite first.

        A table's database is its name up to the last dot.
        """
        sums: dict[str, list[int]] = {}
        with self._database.read() as connection:
            numbers = [number_in(connection, ScanRow.record, name) for name in _SUMMED]
            held = case((TableRow.halted_at_ms.is_not(None), 1), else_=0)
            for name, is_held, *values in at_once(connection, self._meant(which, TableRow.name, held, *numbers)):
                entry = sums.setdefault(database_of(name), [0] * (len(_SUMMED) + 2))
                for index, value in enumerate((1, is_held, *values)):
                    entry[index] += value or 0
        found = [
            DatabaseSum(
                database=database, tables=tables, halted=halted, files=files, bytes=bytes_,
                reducible_files=reducible, reducible_bytes=rewrite,
            )
            for database, (tables, halted, files, bytes_, reducible, rewrite) in sums.items()
        ]  # fmt: skip
        return sorted(found, key=lambda entry: (-entry.reducible_bytes, entry.database))

    def table_labels(self) -> dict[str, list[str]]:
        """The formats and owners that tables have, for whoever chooses among them."""
        labels = select(TableRow.format, TableRow.owner).where(TableRow.name != ALL_TABLES, self._seen(TableRow.name))
        with self._database.read() as connection:
            rows = connection.execute(labels.distinct()).all()
        return {
            "format": sorted({row.format for row in rows}),
            "owner": sorted({row.owner for row in rows if row.owner}),
        }

    def _keys(self, connection: Connection, order: TableOrder, which: TableTerms) -> list[_Key]:
        def number(name: str) -> Any:
            return number_in(connection, ScanRow.record, name)

        rank = case(*((_state() == state, place) for place, state in enumerate(TABLE_STATES)))
        rank_of = case((_state() == "halted", 0), (_state().in_(("observe", "off")), 2), else_=1)
        urgency = cast(rank_of, BigInteger) * literal(_MOST_BYTES, BigInteger)
        newest = select(func.max(PlanRow.id)).where(PlanRow.table_name == TableRow.name).correlate(TableRow)
        of_row: dict[TableOrder, Sequence[Any]] = {
            TableOrder.NAME: (TableRow.name,),
            TableOrder.STATE: (rank,),
            TableOrder.FORMAT: (TableRow.format,),
            TableOrder.MODE: (TableRow.mode,),
            TableOrder.OWNER: (TableRow.owner,),
            TableOrder.FILES: (number("files"),),
            TableOrder.BYTES: (number("bytes"),),
            TableOrder.REWRITE: (number("reducible_bytes"),),
            TableOrder.REDUCIBLE: (number("reducible_files"), number("files")),
            TableOrder.MEDIAN: (_text_in(connection, ScanRow.record, "histogram"),),
            TableOrder.PLAN: (newest.scalar_subquery(),),
            TableOrder.SCANNED: (ScanRow.taken_at_ms,),
            TableOrder.WORST: (urgency - func.coalesce(number("reducible_bytes"), 0),),
        }  # fmt: skip
        rows = at_once(connection, self._meant(which, TableRow.name, *of_row[order]))
        made = _MADE.get(order)
        return [(row[0], made(*row[1:])) for row in rows] if made is not None else [*rows]

    def _meant(self, which: TableTerms, *columns: Any) -> Any:
        """``columns`` of the tables that are meant, with the last good scan of each."""
        query = select(*columns).select_from(TableRow).outerjoin(ScanRow, TableRow.last_ok_scan_id == ScanRow.id)
        query = query.where(TableRow.name != ALL_TABLES, self._seen(TableRow.name))
        if name := which.get("name"):
            query = query.where(func.lower(TableRow.name).contains(name.lower(), autoescape=True))
        if (database := which.get("database")) is not None:
            inside = TableRow.name.startswith(f"{database}.", autoescape=True) if database else TableRow.name != ""
            # of a table in it nothing more than its own name is left, which has no dot
            rest = func.substr(TableRow.name, len(database) + 2) if database else TableRow.name
            query = query.where(inside, ~rest.contains("."))
        for column, value in ((TableRow.format, "format"), (TableRow.mode, "mode"), (TableRow.owner, "owner")):
            if wanted := which.get(value):
                query = query.where(column == wanted)
        state = which.get("state")
        if state == "unreadable":
            failed = select(ScanRow.id).where(ScanRow.outcome == "error").correlate(None)
            query = query.where(TableRow.last_scan_id.in_(failed))
        elif state:
            query = query.where(_state() == state)
        return query


#: more than a table has
_MOST_BYTES = 10**17
_SUMMED = ("files", "bytes", "reducible_files", "reducible_bytes")


def database_of(name: str) -> str:
    """What a table's name has before its last dot; '' where it has none."""
    return name.rpartition(".")[0]


def _state() -> Any:
    return case(
        (TableRow.halted_at_ms.is_not(None), "halted"), (TableRow.paused_at_ms.is_not(None), "paused"),
        else_=TableRow.mode,
    )  # fmt: skip


def _share(reducible: int | None, files: int | None) -> float | None:
    return reducible / files if reducible is not None and files else None


def _median(histogram: str | None) -> int | None:
    return median_bytes(json.loads(histogram)) if histogram else None


#: the value in an order of which the database reads something else
_MADE: Mapping[TableOrder, Callable[..., Any]] = {TableOrder.REDUCIBLE: _share, TableOrder.MEDIAN: _median}


def _text_in(connection: Connection, document: Any, name: str) -> Any:
    if connection.dialect.name == "postgresql":
        return cast(document, JSON)[name].as_string()
    return cast(func.json_extract(document, f"$.{name}"), Text) + ""  # a new text: SQLite knows the other to be JSON


def _behind(ordered: Sequence[_Key], after: str, descending: bool) -> int:
    """Where the list goes on behind a cursor. Raises WrongCursor."""
    try:
        value, name = json.loads(after)
        for place, key in enumerate(ordered):
            if _follows(key, (str(name), value), descending):
                return place
    except (ValueError, TypeError) as error:
        raise WrongCursor(f"query.after: {after!r} is not the next of a list of tables") from error
    return len(ordered)


def _follows(key: _Key, cursor: _Key, descending: bool) -> bool:
    if key[1] is None or cursor[1] is None:
        return key[1] is None and (cursor[1] is not None or key[0] > cursor[0])
    if key[1] == cursor[1]:
        return bool(key[0] > cursor[0])
    return bool((key[1] < cursor[1]) if descending else (key[1] > cursor[1]))
