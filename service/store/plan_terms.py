# SPDX-License-Identifier: Apache-2.0
"""The newest plans that are meant, out of a million: each way of asking has an index that ends where the page does."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, func, not_, select, union_all

from service.store.clock import to_ms
from service.store.consent import waits_for_a_yes
from service.store.models import ALL_TABLES, PlanRow, TableRow
from service.store.views import PlanTerms

#: plans have the time in their id, by the clock of the host that made them; so far it may be from the database's
_CLOCKS_APART = timedelta(days=1)


def newest(connection: Connection, which: PlanTerms, seen: Any, limit: int, after: str | None) -> list[str]:
    """The ids of the newest ``limit`` plans that are ``seen`` behind ``after``, newest first."""
    terms = [seen, *conditions(which)]
    if after is not None:
        terms.append(PlanRow.id < after)
    if not which.get("name"):
        query = select(PlanRow.id).where(*terms).order_by(PlanRow.id.desc()).limit(limit)
        return list(connection.execute(query).scalars())
    of_each = [select(_newest_of(table, terms, limit).subquery()) for table in _tables(connection, which, terms, limit)]
    found = connection.execute(union_all(*of_each)).scalars() if of_each else ()
    return sorted(found, reverse=True)[:limit]


def _tables(connection: Connection, which: PlanTerms, terms: list[Any], limit: int) -> list[str]:
    """Tables with the newest plans of all whose name has the part: others have none among the newest ``limit``.

    The newest plan of each of ``limit`` tables is already newer than anything of the tables behind them.
    """
    last = _newest_of(TableRow.name, terms, 1).correlate(TableRow).scalar_subquery().label("last")
    having = func.lower(TableRow.name).contains((which.get("name") or "").lower(), autoescape=True)
    tables = select(TableRow.name, last).where(having, TableRow.name != ALL_TABLES).subquery()
    query = select(tables.c.name).where(tables.c.last.is_not(None)).order_by(tables.c.last.desc()).limit(limit)
    return list(connection.execute(query).scalars())


def _newest_of(table: Any, terms: list[Any], limit: int) -> Any:
    query = select(PlanRow.id).where(PlanRow.table_name == table, *terms)
    return query.order_by(PlanRow.id.desc()).limit(limit)


def conditions(which: PlanTerms) -> list[Any]:
    """What the rows of the plans that are meant have, but for a part of a name, which is a matter of their tables."""
    equal = (
        (PlanRow.table_name, which.get("table")),
        (PlanRow.state, which.get("state")),
        (PlanRow.error_class, which.get("error_class")),
        (PlanRow.request_id, which.get("request_id")),
    )
    found: list[Any] = [column == value for column, value in equal if value is not None]
    if (proposed := which.get("proposed")) is not None:
        found.append(waits_for_a_yes() if proposed else not_(waits_for_a_yes()))
    if (since := which.get("since")) is not None:
        found += [PlanRow.created_at_ms >= to_ms(since), PlanRow.id >= _first_id(since - _CLOCKS_APART)]
    if (until := which.get("until")) is not None:
        found += [PlanRow.created_at_ms < to_ms(until), PlanRow.id < _first_id(until + _CLOCKS_APART)]
    return found


def _first_id(moment: datetime) -> str:
    """What no UUIDv7 from that time on is below."""
    digits = f"{max(to_ms(moment), 0):012x}"
    return f"{digits[:8]}-{digits[8:]}"
