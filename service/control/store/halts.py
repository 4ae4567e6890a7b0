# SPDX-License-Identifier: Apache-2.0
"""Halts of tables and of partitions, which lakefold begins and only a person ends."""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, select, update

from lake.model import TableRef, partition_label
from service.control.store.audit import record_audit
from service.control.store.base import StorePart, storable_text, with_row_locks
from service.control.store.database import db_now
from service.control.store.models import PlanRow, TableRow
from service.control.store.notifications import NotifiedEvent, enqueue_notification
from service.control.store.views import StoreSettings

#: maximum number of halted partitions of a table; one more halts the whole table
MAX_HALTED_PARTITIONS = 100


class Halts(StorePart):
    """Halts of tables and of partitions; implements a part of ``lake.plan_store.PlanStore``."""

    def halt_table(self, table: TableRef, reason: str) -> bool:
        """Halt a table until a person resumes it. Returns False if it is halted already; it keeps the first reason."""
        with self._database.write() as connection:
            return record_table_halt(connection, self._settings, table.name, reason)

    def halt_for_plan(self, plan_id: str, reason: str, partitions: Mapping[str, str] | None = None) -> None:
        """Halt the table of a plan, or only ``partitions`` of it, by the name that the plan's row has now."""
        # Locked: the sweep may be about to transfer the plan to another name of the table.
        name = with_row_locks(select(PlanRow.table_name).where(PlanRow.id == plan_id))
        with self._database.write() as connection:
            table = connection.execute(name).scalar_one()
            if not partitions:
                record_table_halt(connection, self._settings, table, reason)
                return
            for partition, why in partitions.items():
                record_partition_halt(connection, self._settings, table, partition, why)

    def halt_reason(self, plan_id: str) -> str | None:
        """Return why the table of a plan is halted, by the name that the plan's row has now; None if it is not."""
        query = select(TableRow.halted_reason).join(PlanRow, PlanRow.table_name == TableRow.name)
        halted = query.where(PlanRow.id == plan_id, TableRow.halted_at_ms.is_not(None))
        with self._database.read() as connection:
            reason: str | None = connection.execute(halted).scalar_one_or_none()
        return reason

    def halt_partition(self, table: TableRef, partition: str, reason: str) -> bool:
        """Halt one partition until a person resumes it. Returns False if it is halted already.

        The first reason is kept. Halts the table instead if it has no partitions, or if too many of them are halted.
        """
        with self._database.write() as connection:
            return record_partition_halt(connection, self._settings, table.name, partition, reason)

    def halted_partitions(self, table: TableRef) -> Mapping[str, str]:
        """Return partition → reason, for the partitions of the table with a halt of their own. Cheap."""
        query = select(TableRow.halted_partitions).where(TableRow.name == table.name)
        with self._database.read() as connection:
            found = connection.execute(query).scalar_one_or_none() or {}
        return {partition: one["reason"] for partition, one in found.items()}

    def resume_partitions(self, name: str, partitions: Collection[str], actor: str) -> None:
        """End the halts of these partitions of table ``name``. Halts of other partitions and of the table stay."""
        with self._database.write() as connection:
            known = _lock_halted_partitions(connection, name) or {}
            ended = sorted(known.keys() & set(partitions))
            if not ended:
                return
            left = {partition: one for partition, one in known.items() if partition not in ended}
            connection.execute(update(TableRow).where(TableRow.name == name).values(halted_partitions=left))
            for partition in ended:
                record_audit(connection, actor, "resumed", table=name, detail=partition_label(partition))
                detail = f"{partition_label(partition)}, by {actor}"
                enqueue_notification(
                    connection,
                    self._settings,
                    NotifiedEvent(event="table.resumed", table=name, partition=partition, reason=detail),
                )


def record_table_halt(
    connection: Connection,
    settings: StoreSettings,
    table: str,
    reason: str,
    *,
    plan_id: str | None = None,
    epoch: int | None = None,
) -> bool:
    """Halt a table. Returns False if it was halted before; it keeps the first reason, which best shows the cause."""
    halted = connection.execute(
        update(TableRow)
        .where(TableRow.name == table, TableRow.halted_at_ms.is_(None))
        .values(halted_at_ms=db_now(), halted_reason=storable_text(reason))
    )
    if halted.rowcount:
        enqueue_notification(
            connection,
            settings,
            NotifiedEvent(event="table.halted", table=table, plan=plan_id, epoch=epoch, reason=reason),
        )
    return bool(halted.rowcount)


def record_partition_halt(
    connection: Connection,
    settings: StoreSettings,
    table: str,
    partition: str,
    reason: str,
    *,
    plan_id: str | None = None,
    epoch: int | None = None,
) -> bool:
    """Halt one partition, or the table, as ``Halts.halt_partition`` does. Returns False if it was halted before."""
    if not partition:
        return record_table_halt(connection, settings, table, reason, plan_id=plan_id, epoch=epoch)
    known = _lock_halted_partitions(connection, table)
    if known is None or partition in known:
        return False
    if len(known) >= MAX_HALTED_PARTITIONS:
        label = partition_label(partition)
        many = f"more than {MAX_HALTED_PARTITIONS} partitions are halted, {label} among them: {reason}"
        return record_table_halt(connection, settings, table, many, plan_id=plan_id, epoch=epoch)
    now = connection.execute(select(db_now())).scalar_one()
    halted = {**known, partition: {"reason": storable_text(reason), "at_ms": now}}
    connection.execute(update(TableRow).where(TableRow.name == table).values(halted_partitions=halted))
    enqueue_notification(
        connection,
        settings,
        NotifiedEvent(event="table.halted", table=table, partition=partition, plan=plan_id, epoch=epoch, reason=reason),
    )
    return True


def _lock_halted_partitions(connection: Connection, table: str) -> Mapping[str, Any] | None:
    """Lock the table's row and return its halted partitions as stored; None if the table is not registered."""
    query = select(TableRow.halted_partitions).where(TableRow.name == table)
    found: Mapping[str, Any] | None = connection.execute(with_row_locks(query)).scalar_one_or_none()
    return found
