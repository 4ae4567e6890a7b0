# SPDX-License-Identifier: Apache-2.0
"""Registered tables: their registration, mode, formats and quarantine."""

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, select, update

from lake.model import TableRef
from lake.plan import LIVE_STATES
from service.control.store.base import StorePart, TablesQuery, insert_if_absent, with_row_locks
from service.control.store.database import db_now
from service.control.store.errors import NotFound
from service.control.store.models import ALL_TABLES, PlanRow, SupersededRow, TableRow
from service.control.store.rows import TABLE_COLUMNS, table_state, table_state_from_texts
from service.control.store.views import TableState
from service.modes import PLANNED_MODES

_STATES_QUERY = TablesQuery(select(*TABLE_COLUMNS).where(TableRow.name != ALL_TABLES), TableRow.name)


def table_values(table: TableRef, mode: str) -> dict[str, Any]:
    """Return the values of the columns of a newly registered table."""
    return {
        "name": table.name,
        "format": table.format,
        "location": table.location,
        "catalog": table.catalog and asdict(table.catalog),
        "identity": table.identity,
        "concurrency": table.concurrency.value,
        "on_conflict": table.on_conflict and table.on_conflict.value,
        "write_options": dict(table.write_options),
        "mode": mode,
        "registered_at_ms": db_now(),
    }


def join_tags(tags: Collection[str]) -> str | None:
    """Return ``tags`` as the text to store, each tag between two blanks. Returns None if there are no tags."""
    return f" {' '.join(sorted(tags))} " if tags else None


class Tables(StorePart):
    """Registered tables."""

    def register_table(
        self,
        table: TableRef,
        mode: str,
        owner: str | None = None,
        tags: Collection[str] = (),
        resource_group: str | None = None,
    ) -> None:
        """Register ``table``, or update its registration to the present configuration.

        A tag must not contain a blank. Every later use of the table reads the registration; so do executors of older
        plans. Pause, halts and quarantine do not change. The identity does not change if ``table`` has none.
        """
        values = table_values(table, mode) | {"owner": owner, "tags": join_tags(tags), "resource_group": resource_group}
        with self._database.write() as connection:
            if not insert_if_absent(connection, TableRow, **values):
                kept = {"name", "registered_at_ms"} | ({"identity"} if table.identity is None else set())
                changed = {key: value for key, value in values.items() if key not in kept}
                connection.execute(update(TableRow).where(TableRow.name == table.name).values(**changed))

    def table_states(self, names: Collection[str] | None = None) -> list[TableState]:
        """Return the registered tables, all or only those among ``names``, sorted by name."""
        with self._database.read() as connection:
            rows = self._rows_of_tables(connection, _STATES_QUERY, names)
        return [table_state_from_texts(row) for row in sorted(rows)]

    def formats_in_use(self) -> Collection[str]:
        """Return the formats of tables that are planned, have a live plan, or have files awaiting deletion."""
        waiting = select(SupersededRow.table_name).where(SupersededRow.deleted_at_ms.is_(None))
        planned = TableRow.mode.in_(PLANNED_MODES) | TableRow.name.in_(waiting)
        with self._database.read() as connection:
            of_tables = connection.execute(
                select(TableRow.format).where(TableRow.name != ALL_TABLES, planned).distinct()
            )
            return frozenset(of_tables.scalars()) | _formats_of_live_plans(connection)

    def formats_of_live_plans(self) -> Collection[str]:
        """Return the formats of the tables with a live plan. Cheap."""
        with self._database.read() as connection:
            return _formats_of_live_plans(connection)

    def table_state(self, name: str) -> TableState:
        """Return the registered table ``name``. Raises NotFound."""
        with self._database.read() as connection:
            row = connection.execute(
                select(TableRow.__table__).where(
                    TableRow.name == name, TableRow.name != ALL_TABLES, self._is_in_scope(TableRow.name)
                )
            ).one_or_none()
        if row is None:
            raise NotFound(f"no table {name!r} is registered")
        return table_state(row)

    def end_quarantine(self, name: str, replaced: Mapping[str, int]) -> None:
        """End the quarantine of the paths in ``replaced`` (path → size) whose recorded size is still that size."""
        this_table = TableRow.name == name
        columns = select(TableRow.quarantined, TableRow.quarantined_bytes).where(this_table)
        with self._database.write() as connection:
            known, sizes = connection.execute(with_row_locks(columns)).one()
            ended = {path for path, size in replaced.items() if sizes.get(path) == size}
            both = {
                "quarantined": {path: reason for path, reason in known.items() if path not in ended},
                "quarantined_bytes": {path: size for path, size in sizes.items() if path not in ended},
            }
            connection.execute(update(TableRow).where(this_table).values(both))


def _formats_of_live_plans(connection: Connection) -> frozenset[str]:
    live = select(PlanRow.format).where(PlanRow.state.in_(LIVE_STATES)).distinct()
    return frozenset(connection.execute(live).scalars())
