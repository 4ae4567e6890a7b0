# SPDX-License-Identifier: Apache-2.0
"""Pauses of tables and of the whole service, and the end of pauses and halts."""

import logging
from typing import Any

from sqlalchemy import select, update

from lake.model import TableRef
from service.control.store.audit import record_audit
from service.control.store.base import StorePart, insert_if_absent, storable_text
from service.control.store.database import db_now
from service.control.store.errors import NotFound
from service.control.store.models import ALL_TABLES, PlanRow, TableRow
from service.control.store.notifications import NotifiedEvent, enqueue_notification
from service.control.store.rows import pause_of
from service.control.store.tables import table_values
from service.control.store.views import Pause

logger = logging.getLogger(__name__)


class Pauses(StorePart):
    """Pauses, which only an operator begins and ends."""

    def pause(self, name: str | None, actor: str, reason: str = "") -> None:
        """Pause the table ``name``, or the service if None: no plan is claimed until ``resume``. Raises NotFound."""
        reason = storable_text(" ".join(reason.split()))
        with self._database.write() as connection:
            if name is None:
                everything = TableRef(name=ALL_TABLES, format="", location="")
                insert_if_absent(connection, TableRow, **table_values(everything, "observe"))
            why = f"by {actor}: {reason}" if reason else f"by {actor}"
            self._notify_change(connection, "table.paused", name, why, TableRow.paused_at_ms.is_(None))
            self._update_registered(
                connection, name, paused_at_ms=db_now(), paused_by=actor, paused_reason=reason or None
            )
            record_audit(connection, actor, "paused", table=name, detail=reason)
        _log_change("paused", name, why)

    def resume(self, name: str | None, actor: str) -> None:
        """End the pause, the halts and the quarantine of table ``name``, and allow new plans for files of failed plans.

        If ``name`` is None, ends the pause of the service. Pauses and halts of single tables stay. Raises NotFound.
        """
        with self._database.write() as connection:
            halted = TableRow.halted_at_ms.is_not(None) | (TableRow.halted_partitions != {})
            held = TableRow.paused_at_ms.is_not(None) | halted
            self._notify_change(connection, "table.resumed", name, f"by {actor}", held)
            unpaused = {"paused_at_ms": None, "paused_by": None, "paused_reason": None}
            if name is None and self._table_scope.is_unrestricted:
                self._update(connection, ALL_TABLES, **unpaused)
            else:
                self._update_registered(
                    connection,
                    name,
                    **unpaused,
                    halted_at_ms=None,
                    halted_reason=None,
                    halted_partitions={},
                    quarantined={},
                    quarantined_bytes={},
                )
                failed = update(PlanRow).where(PlanRow.table_name == name, PlanRow.failure.is_not(None))
                connection.execute(failed.values(failure=None))
            record_audit(connection, actor, "resumed", table=name)
        _log_change("resumed", name, f"by {actor}")

    def service_pause(self) -> Pause | None:
        """Return the pause of the whole service; None if it is not paused."""
        with self._database.read() as connection:
            return service_pause(connection)

    def _update_registered(self, connection: Any, name: str | None, **values: Any) -> None:
        if (
            name == ALL_TABLES
            or not self._table_scope.has_table(name)
            or self._update(connection, name or ALL_TABLES, **values) != 1
        ):
            raise NotFound(f"no table {name!r} is registered")

    def _notify_change(self, connection: Any, event: str, name: str | None, reason: str, condition: Any) -> None:
        """Notify of a pause or resume of table ``name``, or of the service if None, if ``condition`` holds for it."""
        here = select(TableRow.name).where(TableRow.name == (name or ALL_TABLES), condition)
        if connection.execute(here).one_or_none() is not None:
            enqueue_notification(connection, self._settings, NotifiedEvent(event=event, table=name, reason=reason))

    @staticmethod
    def _update(connection: Any, name: str, **values: Any) -> int:
        return int(connection.execute(update(TableRow).where(TableRow.name == name).values(**values)).rowcount)


def service_pause(connection: Any) -> Pause | None:
    """Return the pause of the whole service; None if it is not paused."""
    everything = select(TableRow.__table__).where(TableRow.name == ALL_TABLES)
    row = connection.execute(everything).one_or_none()
    return None if row is None else pause_of(row)


def is_served(table_name: Any) -> Any:
    """Return the condition that the table is neither paused nor halted, and that the service is not paused."""
    held_back = select(TableRow.name).where(TableRow.paused_at_ms.is_not(None) | TableRow.halted_at_ms.is_not(None))
    everything = select(TableRow.name).where(TableRow.name == ALL_TABLES, TableRow.paused_at_ms.is_not(None))
    return table_name.not_in(held_back) & ~everything.exists()


def _log_change(change: str, name: str | None, why: str) -> None:
    if name is None:
        logger.info("everything %s %s", change, why)
    else:
        logger.info("table %s %s %s", name, change, why, extra={"table": name})
