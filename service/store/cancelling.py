# SPDX-License-Identifier: Apache-2.0
"""The end of a plan that nobody has claimed: cancelled at once, its partitions free."""

from typing import Any

from sqlalchemy import Connection, Row, update

from lake.plan import PlanState
from service.store.base import record_event
from service.store.clock import db_now
from service.store.holds import release_plan_partitions
from service.store.models import PlanRow
from service.store.notifications import enqueue_notification
from service.store.views import StoreSettings


def cancel_requested_plan(
    connection: Connection, settings: StoreSettings, row: Row[Any], *, actor: str, reason: str, **values: Any
) -> None:
    """Cancel the requested plan of a locked ``row``; ``values`` are what its row says of it besides."""
    connection.execute(
        update(PlanRow)
        .where(PlanRow.id == row.id)
        .values(
            state=PlanState.CANCELLED,
            finalized_at_ms=db_now(),
            error=reason,
            error_class=None,
            cancel_requested_by=actor,
            cancel_requested_at_ms=db_now(),
            cancel_reason=reason,
            **values,
        )
    )
    release_plan_partitions(connection, row.id)
    figures = {"input_files": row.input_files, "input_bytes": row.input_bytes, "attempts": row.attempts}
    enqueue_notification(
        connection,
        settings,
        "plan.cancelled",
        table=row.table_name,
        plan=row.id,
        epoch=row.epoch,
        reason=reason,
        figures=figures,
    )
    record_event(
        connection, row.id, PlanState.REQUESTED, PlanState.CANCELLED, epoch=row.epoch, actor=actor, reason=reason
    )
