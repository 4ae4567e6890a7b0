# SPDX-License-Identifier: Apache-2.0
"""The base class of the store's parts, and the helpers they share."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Text,
    bindparam,
    cast,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import DeclarativeBase

from lake.errors import LeaseLost
from lake.plan import Claim, PlanState
from lake.redaction import redact
from service.control.store.database import Database, db_now
from service.control.store.models import EventRow, PlanRow
from service.control.store.table_scope import UNRESTRICTED
from service.control.store.views import StoreSettings

#: maximum number of values in one statement, or of rows in one result; SQLite allows at most 32,766 parameters
_BATCH_SIZE = 1000
#: the maximum length of a stored text; a JVM's error can be a page long, but its beginning names the cause
_MAX_TEXT_LENGTH = 4000
_DECODER = json.JSONDecoder()


Made = TypeVar("Made")
Query = TypeVar("Query", bound=Select[*tuple[Any, ...]])


class RowCache:
    """A cache of the objects that were made from rows, so that an unchanged row is not converted again.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._made: dict[str, dict[tuple[Any, ...], Any]] = {}

    def uncached_rows(self, noun: str, rows: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
        """Return the rows that the last reading did not have."""
        before = self._made.get(noun, {})
        return [row for row in rows if tuple(row) not in before]

    def objects_of(self, noun: str, rows: Iterable[Sequence[Any]], make: Callable[[Sequence[Any]], Made]) -> list[Made]:
        """Return the object of each of ``rows``, which are distinct; discard the objects of other rows."""
        before, made = self._made.get(noun, {}), {}
        for row in map(tuple, rows):
            there = before.get(row)
            made[row] = make(row) if there is None else there
        self._made[noun] = made
        return list(made.values())


class StorePart:
    """A part of ``Store``: the methods for one noun, on one database.

    ``_table_scope`` limits the tables that the part reads and changes.
    """

    def __init__(self, database: Database, settings: StoreSettings) -> None:
        self._database = database
        self._settings = settings
        self._table_scope = UNRESTRICTED

    def _is_in_scope(self, table_name: Any) -> ColumnElement[bool]:
        """Return the condition that the table whose name is in this column is in the scope."""
        return self._table_scope.sql_condition(table_name, self._database.dialect)

    def _rows_of_tables(
        self, connection: Connection, query: "TablesQuery", names: Collection[str] | None
    ) -> list[list[Any]]:
        """Return the rows of ``query`` for all tables in the scope, or for those of ``names`` that are in it."""
        if names is None:
            return fetch_packed(connection, query.all_tables.where(self._is_in_scope(query.name_column)))
        return query.named_tables.rows(connection, names=[name for name in names if self._table_scope.has_table(name)])


def storable_text(text: str) -> str:
    """Return ``text`` shortened, without secrets, and without the characters that PostgreSQL can't store."""
    return redact(text).replace("\x00", "").encode("utf-8", "replace").decode()[:_MAX_TEXT_LENGTH]


def actor_idempotency_key(actor: str, key: str | None) -> str | None:
    """Return an idempotency key as stored: with its actor, so that different actors may use the same key.

    An actor's name contains no line break.
    """
    return None if key is None else f"{actor}\n{key}"


def insert_if_absent(connection: Connection, row: type[DeclarativeBase], **values: Any) -> bool:
    """Insert a row unless its key exists; return True if it was inserted."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(row).values(**values).on_conflict_do_nothing()
    # RETURNING, because drivers need not report how many rows an INSERT has added.
    return connection.execute(statement.returning(literal(1))).one_or_none() is not None


def record_event(
    connection: Connection,
    plan_id: str,
    before: PlanState | None,
    after: PlanState,
    *,
    epoch: int,
    actor: str,
    reason: str,
) -> None:
    """Add an event to a plan's history, in the transaction of the change."""
    connection.execute(
        insert(EventRow).values(
            plan_id=plan_id,
            at_ms=db_now(),
            from_state=before,
            to_state=after,
            epoch=epoch,
            actor=actor,
            reason=storable_text(reason),
        )
    )


class PackedQuery:
    """A query whose rows arrive as one JSON value. Cells are numbers, texts and None; a JSON column is a text.

    SQLite's driver releases the interpreter lock at each row. If another thread is computing, a query of ten thousand
    rows would have to wait for the lock ten thousand times. An instance compiles its query once; use it again with
    other named parameters.
    """

    def __init__(self, query: Select[*tuple[Any, ...]]) -> None:
        self._query = query
        self._queries_by_dialect: dict[str, Select[Any]] = {}

    def rows(self, connection: Connection, **parameters: Any) -> list[list[Any]]:
        """Return the rows, in no guaranteed order."""
        dialect = connection.dialect.name
        if dialect not in self._queries_by_dialect:
            self._queries_by_dialect[dialect] = _packed_query(self._query, dialect)
        return _parse_rows(connection.execute(self._queries_by_dialect[dialect], parameters).scalar_one() or "[]")


class TablesQuery:
    """A query whose rows arrive as one value: for all tables, or for the tables with given names.

    ``name_column`` has the table's name. The parameter of ``named_tables`` is ``names``.
    """

    def __init__(self, all_tables: Select[*tuple[Any, ...]], name_column: Any) -> None:
        self.all_tables, self.name_column = all_tables, name_column
        self.named_tables = PackedQuery(all_tables.where(name_column.in_(bindparam("names", expanding=True))))


def fetch_packed(connection: Connection, query: Select[*tuple[Any, ...]]) -> list[list[Any]]:
    """Return the rows of a query that is used only once. They arrive as one value, see ``PackedQuery``."""
    return PackedQuery(query).rows(connection)


def _packed_query(query: Select[*tuple[Any, ...]], dialect: str) -> Select[Any]:
    rows = query.subquery()
    if dialect == "postgresql":
        return select(cast(func.json_agg(func.json_build_array(*rows.c)), Text))
    return select(func.json_group_array(func.json_array(*rows.c)))


def _parse_rows(text: str) -> list[list[Any]]:
    """Parse a JSON array of arrays row by row, so that other threads can run in between."""
    rows, at = [], text.find("[", 1)
    while at > 0:
        row, at = _DECODER.raw_decode(text, at)
        rows.append(row)
        at = text.find("[", at)
    return rows


def in_batches(items: Sequence[Made]) -> Iterator[Sequence[Made]]:
    """Yield ``items`` in batches that fit into one statement."""
    for begin in range(0, len(items), _BATCH_SIZE):
        yield items[begin : begin + _BATCH_SIZE]


def with_row_locks(query: Query) -> Query:
    """Return ``query`` with its rows locked until the transaction ends; SQLite has and needs no row locks."""
    return query.with_for_update(key_share=True)


def claim_conditions(claim: Claim) -> tuple[Any, ...]:
    """Return the conditions on a plan's row that hold while ``claim`` is in force."""
    return (
        PlanRow.id == claim.plan.plan_id,
        PlanRow.epoch == claim.epoch,
        PlanRow.executor == claim.executor,
        PlanRow.state == PlanState.INFLIGHT,
    )


def lease_lost_error(claim: Claim) -> LeaseLost:
    """Return the error for a write that found no row of the claim."""
    return LeaseLost(f"plan {claim.plan.plan_id} is no longer held by {claim.executor} (epoch {claim.epoch} has ended)")


def lock_claimed_row(connection: Connection, claim: Claim) -> Row[Any]:
    """Return the plan's row, locked. Raises LeaseLost unless the claim still holds the plan."""
    row = connection.execute(with_row_locks(select(PlanRow.__table__).where(*claim_conditions(claim)))).one_or_none()
    if row is None:
        raise lease_lost_error(claim)
    return row


def fenced_update(connection: Connection, claim: Claim, values: Mapping[str, Any]) -> None:
    """Change the plan's row while the claim holds it. Raises LeaseLost."""
    if connection.execute(update(PlanRow).where(*claim_conditions(claim)).values(**values)).rowcount != 1:
        raise lease_lost_error(claim)
