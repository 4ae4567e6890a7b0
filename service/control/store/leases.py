# SPDX-License-Identifier: Apache-2.0
"""Leases: executors extend the leases of their plans, and take over plans whose lease has expired.

The states of a lease are in docs/lifecycle.md#leases.
"""

from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Row, case, literal, select, update

from lake.plan import Claim, PlanState, RewriteProgress
from lake.process_identity import has_executor_ended
from service.control.store.base import StorePart, fenced_update, record_event, with_row_locks
from service.control.store.budget_ledger import (
    step_times_until_heartbeat,
)
from service.control.store.database import Database, datetime_from_ms, db_now, timedelta_to_ms
from service.control.store.models import PlanRow
from service.control.store.rows import load_plan, obsolete_reason
from service.control.store.staged_files import staged_by
from service.control.store.views import StoreSettings

#: maximum number of tries to take over a plan: a try fails if another executor takes it over first, which is rare
_MAX_TRIES = 50
#: the grace of an adopted plan: its next attempt must use the same instant, which a suspended executor may still use
ADOPTED_GRACE = timedelta(minutes=30)
#: the grace of a plan that an executor claims or takes over
GRACE_MS = case((PlanRow.adopted.is_(None), 0), else_=timedelta_to_ms(ADOPTED_GRACE))


class Leases(StorePart):
    """The part of ``lake.plan_store.PlanStore`` by which executors keep leases and take over expired ones."""

    def take_over_expired(self, executor: str) -> Claim | None:
        """Take over one inflight plan whose lease has expired (epoch + 1, new lease). Returns None if there is none.

        The plan stays inflight. The new executor must first check in the table whether the plan was committed. During
        the grace that follows the lease, a plan is taken over only from ``executor`` itself or from a process that is
        known to have ended.
        """
        for _ in range(_MAX_TRIES):
            with self._database.read() as connection:
                candidates = connection.execute(
                    select(
                        PlanRow.id,
                        PlanRow.epoch,
                        PlanRow.executor,
                        (PlanRow.lease_until_ms + PlanRow.grace_ms <= db_now()).label("free"),
                    )
                    .where(PlanRow.state == PlanState.INFLIGHT, PlanRow.lease_until_ms <= db_now())
                    .order_by(PlanRow.lease_until_ms)
                ).all()
            silent = next(
                (c for c in candidates if c.free or c.executor == executor or has_executor_ended(c.executor)), None
            )
            if silent is None:
                return None
            with self._database.write() as connection:
                still = (
                    PlanRow.id == silent.id,
                    PlanRow.epoch == silent.epoch,
                    PlanRow.state == PlanState.INFLIGHT,
                    PlanRow.lease_until_ms <= db_now(),
                )
                found = connection.execute(with_row_locks(select(PlanRow.__table__).where(*still))).one_or_none()
                if found is None:
                    continue
                connection.execute(
                    update(PlanRow)
                    .where(*still)
                    .values(
                        epoch=PlanRow.epoch + 1,
                        executor=executor,
                        heartbeat_at_ms=db_now(),
                        lease_until_ms=db_now() + lease_ms(self._settings),
                        grace_ms=GRACE_MS,
                        milliseconds=step_times_until_heartbeat(found),
                        step_at_ms=db_now(),
                    )
                )
                reason = f"the lease of {silent.executor} expired; taken over"
                row = record_claim(connection, silent.id, PlanState.INFLIGHT, executor, reason)
            return load_claim(self._database, row)
        return None

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
