# SPDX-License-Identifier: Apache-2.0
"""Halting a table: one way, whoever finds the reason."""

from sqlalchemy import Connection, update

from service.store.base import storable
from service.store.clock import db_now
from service.store.models import TableRow
from service.store.notifications import tell
from service.store.views import StoreSettings


def halt(
    connection: Connection,
    settings: StoreSettings,
    table: str,
    why: str,
    *,
    plan_id: str | None = None,
    epoch: int | None = None,
) -> None:
    """Halt a table. A second error keeps the first reason: there the search begins."""
    halted = connection.execute(
        update(TableRow)
        .where(TableRow.name == table, TableRow.halted_at_ms.is_(None))
        .values(halted_at_ms=db_now(), halted_reason=storable(why))
    )
    if halted.rowcount:
        tell(connection, settings, "table.halted", table=table, plan=plan_id, epoch=epoch, reason=why)
