# SPDX-License-Identifier: Apache-2.0
"""Leases: the executor of a plan extends its lease. The states of a lease are in docs/lifecycle.md#leases."""

from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Row, case, literal, select

from lake.plan import Claim, PlanState, RewriteProgress
from service.control.store.base import StorePart, fenced_update, record_event
from service.control.store.database import Database, datetime_from_ms, db_now, timedelta_to_ms
from service.control.store.models import PlanRow
from service.control.store.rows import load_plan, obsolete_reason
from service.control.store.staged_files import staged_by
from service.control.store.views import StoreSettings

#: the grace of an adopted plan: its next attempt must use the same instant, which a suspended executor may still use
ADOPTED_GRACE = timedelta(minutes=30)
#: the grace of a plan that an executor claims or takes over
GRACE_MS = case((PlanRow.adopted.is_(None), 0), else_=timedelta_to_ms(ADOPTED_GRACE))


class Leases(StorePart):
    """The part of ``lake.plan_store.PlanStore`` by which executors keep their leases."""

    def heartbeat(
        self, claim: Claim, progress: RewriteProgress | None = None, *, at_least: timedelta = timedelta()
    ) -> bool:
        """Extend the lease. Returns True if a cancel was requested. Raises LeaseLost.

        The lease lasts for at least ``at_least``, and so does the grace after it. Neither becomes shorter. If the
        database's clock was set back since the last heartbeat, the length of the old lease counts from now.
        """
        granted = case(
            (PlanRow.heartbeat_at_ms > db_now(), db_now() + PlanRow.lease_until_ms - PlanRow.heartbeat_at_ms),
            else_=PlanRow.lease_until_ms,
        )
        values: dict[str, Any] = {
            "lease_until_ms": _later_of(granted, db_now() + max(lease_ms(self._settings), timedelta_to_ms(at_least))),
            "grace_ms": _later_of(PlanRow.grace_ms, literal(timedelta_to_ms(at_least))),
            "heartbeat_at_ms": db_now(),
        }
        if progress is not None:
            values |= {
                "progress_bytes_done": progress.bytes_done,
                "progress_bytes_total": progress.bytes_total,
                "progress_rows_done": progress.rows_done,
                "spark_ui": progress.spark_ui,
                "rewrite_cpu_ms": None if progress.cpu_seconds is None else round(1000 * progress.cpu_seconds),
            }
        with self._database.write(urgent=True) as connection:
            fenced_update(connection, claim, values)
            cancel_time = select(PlanRow.cancel_requested_at_ms).where(PlanRow.id == claim.plan.plan_id)
            return connection.execute(cancel_time).scalar_one() is not None


def lease_ms(settings: StoreSettings) -> int:
    """Return the length of a lease, in milliseconds."""
    return timedelta_to_ms(settings.lease)


def load_claim(database: Database, row: Row[Any]) -> Claim:
    """Return the claim of a plan's row."""
    # In its own transaction, because unpacking long lists of files takes time and SQLite has only one write lock.
    with database.read() as connection:
        plan, refusal = load_plan(connection, row), obsolete_reason(connection, row)
        staged = staged_by(connection, row.id)
    return Claim(
        plan=plan,
        epoch=row.epoch,
        attempt=row.attempts,
        executor=row.executor,
        lease_until=datetime_from_ms(row.lease_until_ms),
        staged=staged,
        milliseconds=row.milliseconds,
        previous_error=row.error,
        traceparent=row.traceparent,
        obsolete_reason=refusal,
    )


def record_claim(connection: Connection, plan_id: str, before: PlanState, executor: str, reason: str) -> Row[Any]:
    """Record a claim or a takeover in the plan's history, and return the plan's row."""
    row = connection.execute(select(PlanRow.__table__).where(PlanRow.id == plan_id)).one()
    record_event(connection, plan_id, before, PlanState.INFLIGHT, epoch=row.epoch, actor=executor, reason=reason)
    return row


def _later_of(known: Any, wanted: Any) -> Any:
    return case((known > wanted, known), else_=wanted)
