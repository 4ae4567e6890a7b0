# SPDX-License-Identifier: Apache-2.0
"""Halting a table or one partition of it: one way, whoever finds the reason."""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, select, update

from lake.model import TableRef, partition_label
from service.store.audit import record_audit
from service.store.base import StorePart, storable_text, with_row_locks
from service.store.clock import db_now
from service.store.models import TableRow
from service.store.notifications import enqueue_notification
from service.store.views import StoreSettings

#: so many partitions of a table are halted one by one; a reason to halt more of them is a matter of the whole table
MAX_HALTED_PARTITIONS = 100


class Halts(StorePart):
    """Halts of tables and of partitions; implements a part of ``lake.plan_store.PlanStore``."""

    def halt_table(self, table: TableRef, reason: str) -> bool:
        """Halt a table until a person resumes it; False where it is halted already, whose first reason stays."""
        with self._database.write() as connection:
            return record_table_halt(connection, self._settings, table.name, reason)

    def halt_partition(self, table: TableRef, partition: str, reason: str) -> bool:
        """Halt one partition until a person resumes it; False where it is halted already, whose first reason stays.

        The table is halted instead where it has no partitions, and where too many of them are halted.
        """
        with self._database.write() as connection:
            return record_partition_halt(connection, self._settings, table.name, partition, reason)

    def halted_partitions(self, table: TableRef) -> Mapping[str, str]:
        """The table's partitions that are halted by themselves, each with the reason. Cheap."""
        query = select(TableRow.halted_partitions).where(TableRow.name == table.name)
        with self._database.read() as connection:
            found = connection.execute(query).scalar_one_or_none() or {}
        return {partition: one["reason"] for partition, one in found.items()}

    def resume_partitions(self, name: str, partitions: Collection[str], actor: str) -> None:
        """End the halts of these partitions of the table ``name``; others, and the table's own, stay."""
        with self._database.write() as connection:
            known = _lock_halted_partitions(connection, name) or {}
            ended = sorted(known.keys() & set(partitions))
            if not ended:
                return
            left = {partition: one for partition, one in known.items() if partition not in ended}
            connection.execute(update(TableRow).where(TableRow.name == name).values(halted_partitions=left))
            for partition in ended:
                record_audit(connection, actor, "resumed", table=name, detail=partition_label(partition))
                told = f"{partition_label(partition)}, by {actor}"
                enqueue_notification(
                    connection, self._settings, "table.resumed", table=name, partition=partition, reason=told
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
    """Halt a table; False where it was halted before, whose first reason stays: there the search begins."""
    halted = connection.execute(
        update(TableRow)
        .where(TableRow.name == table, TableRow.halted_at_ms.is_(None))
        .values(halted_at_ms=db_now(), halted_reason=storable_text(reason))
    )
    if halted.rowcount:
        enqueue_notification(
            connection, settings, "table.halted", table=table, plan=plan_id, epoch=epoch, reason=reason
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
    """Halt one partition, or the table where it has none; False where it was halted before."""
    if not partition:
        return record_table_halt(connection, settings, table, reason, plan_id=plan_id, epoch=epoch)
    known = _lock_halted_partitions(connection, table)
    if known is None or partition in known:
        return False
    if len(known) >= MAX_HALTED_PARTITIONS:
        many = f"more than {MAX_HALTED_PARTITIONS} partitions are halted, {partition_label(partition)} among them: {reason}"
        return record_table_halt(connection, settings, table, many, plan_id=plan_id, epoch=epoch)
    now = connection.execute(select(db_now())).scalar_one()
    halted = {**known, partition: {"reason": storable_text(reason), "at_ms": now}}
    connection.execute(update(TableRow).where(TableRow.name == table).values(halted_partitions=halted))
    enqueue_notification(
        connection, settings, "table.halted", table=table, partition=partition, plan=plan_id, epoch=epoch, reason=reason
    )
    return True


def _lock_halted_partitions(connection: Connection, table: str) -> Mapping[str, Any] | None:
    """The halted partitions of a table as they are stored; None where no such table is registered."""
    query = select(TableRow.halted_partitions).where(TableRow.name == table)
    found: Mapping[str, Any] | None = connection.execute(with_row_locks(query)).scalar_one_or_none()
    return found
