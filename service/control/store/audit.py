# SPDX-License-Identifier: Apache-2.0
"""The audit trail: who requested which action, written in the transaction of the action."""

from contextvars import ContextVar
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select

from service.control.store.base import StorePart, storable_text
from service.control.store.database import db_now, timedelta_to_ms
from service.control.store.models import AuditRow
from service.control.store.rows import view_of
from service.control.store.views import AccessChannel, AuditEntry

#: the channel of the current action; by default a command on this machine
current_channel: ContextVar[AccessChannel] = ContextVar("door", default=AccessChannel.CLI)
#: maximum number of entries that are kept, regardless of their age
MAX_ENTRIES = 100_000


def record_audit(
    connection: Connection, actor: str, action: str, *, table: str | None = None, subject: str = "", detail: str = ""
) -> None:
    """Record that ``actor`` did ``action`` to ``subject`` (a plan, a request, a token) of ``table``."""
    connection.execute(
        insert(AuditRow).values(
            at_ms=db_now(),
            actor=storable_text(actor),
            door=current_channel.get(),
            action=action,
            table_name=table,
            subject=storable_text(subject),
            detail=storable_text(detail),
        )
    )


class AuditTrail(StorePart):
    """The audit trail: who requested which action."""

    def audit_entries(
        self,
        *,
        table: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        limit: int = 50,
        after: int | None = None,
    ) -> list[AuditEntry]:
        """Return at most ``limit`` entries, newest first; with ``after`` only entries with lower numbers."""
        query = select(AuditRow.__table__).where(self._is_in_scope(AuditRow.table_name))
        for value, column in ((table, AuditRow.table_name), (actor, AuditRow.actor), (action, AuditRow.action)):
            if value is not None:
                query = query.where(column == value)
        if after is not None:
            query = query.where(AuditRow.id < after)
        with self._database.read() as connection:
            return [_entry(row) for row in connection.execute(query.order_by(AuditRow.id.desc()).limit(limit))]

    def record_action(self, actor: str, action: str, *, table: str, detail: str) -> None:
        """Record an action on a table that changes nothing in the database."""
        with self._database.write() as connection:
            record_audit(connection, actor, action, table=table, detail=detail)

    def prune_audit(self, retention: timedelta) -> int:
        """Delete entries older than ``retention`` (0: no limit), and all but the newest ``MAX_ENTRIES`` entries.

        Returns the number of deleted entries.
        """
        newest = select(func.coalesce(func.max(AuditRow.id), 0)).scalar_subquery()
        gone = AuditRow.id <= newest - MAX_ENTRIES
        if retention:
            gone |= AuditRow.at_ms < db_now() - timedelta_to_ms(retention)
        with self._database.write() as connection:
            return int(connection.execute(delete(AuditRow).where(gone)).rowcount)


def _entry(row: Any) -> AuditEntry:
    return view_of(AuditEntry, row, number=row.id, table=row.table_name)
