# SPDX-License-Identifier: Apache-2.0
"""Operators' actions on one plan: cancel and retry."""

import logging
from typing import Any

from sqlalchemy import Connection, Row, select, update

from lake.plan import PlanState
from service.control.store.audit import record_audit
from service.control.store.base import StorePart, record_event, storable_text, with_row_locks
from service.control.store.claimed_plans import cancel_requested_plan
from service.control.store.database import datetime_from_ms, db_now
from service.control.store.errors import WrongState
from service.control.store.models import GroupRow, PlanRow
from service.control.store.partition_locks import lock_plan_partitions, write_with_partitions
from service.control.store.plan_queries import resolve_plan_id
from service.control.store.rows import planned_table

logger = logging.getLogger(__name__)


class PlanActions(StorePart):
    """Cancel and retry."""

    def request_cancel(self, plan_id: str, actor: str, reason: str = "") -> PlanState:
        """Cancel a requested plan, or request that an inflight plan is cancelled. Returns the plan's new state.

        ``plan_id`` may be a unique part of an id. Raises NotFound, or WrongState for a plan that has ended.
        """
        reason = storable_text(reason or f"cancelled by {actor}")
        with self._database.write() as connection:
            plan_id = resolve_plan_id(connection, plan_id, self._is_in_scope(PlanRow.table_name))
            row = connection.execute(with_row_locks(select(PlanRow.__table__).where(PlanRow.id == plan_id))).one()
            if row.state == PlanState.REQUESTED:
                cancel_requested_plan(connection, self._settings, row, actor=actor, reason=reason)
                after = PlanState.CANCELLED
            elif row.state == PlanState.INFLIGHT:
                if row.cancel_requested_at_ms is not None:
                    return PlanState.INFLIGHT
                cancel_values = {
                    "cancel_requested_by": actor,
                    "cancel_requested_at_ms": db_now(),
                    "cancel_reason": reason,
                }
                connection.execute(update(PlanRow).where(PlanRow.id == plan_id).values(**cancel_values))
                after, reason = PlanState.INFLIGHT, f"cancel requested: {reason}"
                record_event(connection, plan_id, after, after, epoch=row.epoch, actor=actor, reason=reason)
            else:
                raise WrongState(f"plan {plan_id} is {row.state}; only requested and inflight plans can be cancelled")
            record_audit(connection, actor, "plan cancelled", table=row.table_name, subject=plan_id, detail=reason)
        log_fields = {"plan": plan_id, "table": row.table_name, "epoch": row.epoch}
        outcome = "cancelled" if after is PlanState.CANCELLED else "to be cancelled"
        logger.info("plan %s of %s %s by %s: %s", plan_id, row.table_name, outcome, actor, reason, extra=log_fields)
        return after

    def retry(self, plan_id: str, actor: str, reason: str = "") -> None:
        """Request a failed plan again, with all its attempts. Its partitions must be free under all names of its table.

        ``plan_id`` may be a unique part of an id. Raises NotFound, WrongState, or PartitionsLocked.
        """
        with self._database.write() as connection:
            plan_id = resolve_plan_id(connection, plan_id, self._is_in_scope(PlanRow.table_name))
            planned = planned_table(connection, _lock_failed_plan(connection, plan_id))
            table = planned.name
            groups = select(GroupRow.partition_path).where(GroupRow.plan_id == plan_id).distinct()
            partitions = tuple(connection.execute(groups).scalars())

        def request_again(connection: Connection) -> None:
            row = _lock_failed_plan(connection, plan_id)
            lock_plan_partitions(connection, table, plan_id, partitions)
            connection.execute(
                update(PlanRow)
                .where(PlanRow.id == plan_id, PlanRow.state == PlanState.FAILED)
                .values(
                    state=PlanState.REQUESTED,
                    failure=None,
                    attempts=0,
                    not_before_ms=db_now(),
                    finalized_at_ms=None,
                    step=None,
                    cancel_requested_by=None,
                    cancel_requested_at_ms=None,
                    cancel_reason=None,
                )
            )
            record_event(
                connection,
                plan_id,
                PlanState.FAILED,
                PlanState.REQUESTED,
                epoch=row.epoch,
                actor=actor,
                reason=f"retried: {storable_text(reason)}" if reason else "retried",
            )
            record_audit(connection, actor, "plan retried", table=table, subject=plan_id, detail=storable_text(reason))

        write_with_partitions(self._database, planned, partitions, request_again)
        log_fields = {"plan": plan_id, "table": table}
        logger.info("plan %s of %s retried by %s", plan_id, table, actor, extra=log_fields)


def _advice_instead_of_retry(row: Row[Any]) -> str:
    """Return advice for a plan that can't be retried in its present state; '' for a completed plan."""
    if row.state == PlanState.REQUESTED:
        due = datetime_from_ms(row.not_before_ms)
        return f". It runs by itself after {due:%H:%M:%S} UTC{f'; last error: {row.error}' if row.error else ''}"
    if row.state == PlanState.INFLIGHT:
        lease = datetime_from_ms(row.lease_until_ms)
        return (
            f". If its executor {row.executor} has died, another executor takes the plan over when the lease expires "
            f"({lease:%H:%M:%S} UTC)"
        )
    again = f"lakefold plans request {row.table_name}"
    return f". To plan its files again: {again}" if row.state == PlanState.CANCELLED else ""


def _lock_failed_plan(connection: Connection, plan_id: str) -> Row[Any]:
    row = connection.execute(with_row_locks(select(PlanRow.__table__).where(PlanRow.id == plan_id))).one()
    if row.state != PlanState.FAILED:
        refusal = f"plan {plan_id} is {row.state}; only failed plans can be retried"
        raise WrongState(refusal + _advice_instead_of_retry(row))
    return row
