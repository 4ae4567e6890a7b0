# SPDX-License-Identifier: Apache-2.0
"""Claims: free plans, the executors that hold plans, and their leases.

A plan is claimed by compare-and-set, each time with a new epoch. Every write of the executor names that epoch, see
``service.control.store.claimed_plans``.
"""

from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Row, case, func, literal, select, update

from lake.plan import Claim, PlanState, RewriteProgress
from lake.process_identity import has_executor_ended
from planner.budgets import QueuedPlan
from service.control.store.base import StorePart, fenced_update, record_event, with_row_locks
from service.control.store.budget_ledger import (
    BudgetState,
    blocked_plans,
    charge_prediction,
    queued_plans,
    serialize_claims,
    step_times_until_heartbeat,
)
from service.control.store.database import datetime_from_ms, datetime_to_ms, db_now, timedelta_to_ms
from service.control.store.models import GroupRow, PlanRow, TableRow
from service.control.store.pauses import is_served
from service.control.store.plan_filter import claimable_plans, is_approved_or_exempt, is_in_groups, runnable_plans
from service.control.store.rows import load_plan, obsolete_reason
from service.control.store.staged_files import staged_by

#: maximum number of tries to claim a plan: a try fails if another executor claims the plan first, which is rare
_CLAIM_ATTEMPTS = 50
#: the grace of an adopted plan: its next attempt must use the same instant, which a suspended executor may still use
ADOPTED_GRACE = timedelta(minutes=30)
_GRACE = case((PlanRow.adopted.is_(None), 0), else_=timedelta_to_ms(ADOPTED_GRACE))


class Claims(StorePart):
    """The part of ``lake.plan_store.PlanStore`` by which executors claim plans and keep their leases."""

    def claim(self, executor: str) -> Claim | None:
        """Claim the first due requested plan by compare-and-set. Returns None if there is none.

        Skips plans of other resource groups, plans that wait for approval, and plans that wait for a budget or for the
        hours of their table. Also skips the plans of tables that are paused, halted or at ``max_inflight_per_table``.
        Increments epoch and attempt.
        """
        for _ in range(_CLAIM_ATTEMPTS):
            with self._database.read() as connection:
                candidate = self._next_startable(connection)
            if candidate is None:
                return None
            limited = self._settings.limits.is_limited
            with self._database.write() as connection:
                if limited:  # otherwise two concurrent claims could use the same remaining budget
                    serialize_claims(connection)
                # Locked, because two concurrent claims could otherwise exceed ``max_inflight_per_table``.
                connection.execute(with_row_locks(select(TableRow.name).where(TableRow.name == candidate.table)))
                if self._next_startable(connection, candidate.plan_id) is None:
                    continue
                taken = connection.execute(
                    update(PlanRow)
                    .where(
                        PlanRow.id == candidate.plan_id, PlanRow.state == PlanState.REQUESTED, is_approved_or_exempt()
                    )
                    .values(
                        state=PlanState.INFLIGHT,
                        epoch=PlanRow.epoch + 1,
                        attempts=PlanRow.attempts + 1,
                        executor=executor,
                        lease_until_ms=db_now() + self._lease_ms,
                        heartbeat_at_ms=db_now(),
                        grace_ms=_GRACE,
                        claimed_at_ms=db_now(),
                        step=None,
                        error=None,
                        error_class=None,
                        milliseconds={},
                        rewrite_cpu_ms=None,
                        step_at_ms=db_now(),
                        progress_bytes_done=0,
                        progress_bytes_total=PlanRow.input_bytes,
                        progress_rows_done=0,
                        spark_ui=None,
                    )
                )
                if taken.rowcount != 1:
                    continue
                connection.execute(update(GroupRow).where(GroupRow.plan_id == candidate.plan_id).values(left_out=None))
                if limited:
                    charge_prediction(connection, candidate)
                row = _record_claim(connection, candidate.plan_id, PlanState.REQUESTED, executor, "claimed")
            return self._load_claim(row)
        return None

    def take_over_expired(self, executor: str) -> Claim | None:
        """Take over one inflight plan whose lease has expired (epoch + 1, new lease). Returns None if there is none.

        The plan stays inflight. The new executor must first check in the table whether the plan was committed. During
        the grace that follows the lease, a plan is taken over only from ``executor`` itself or from a process that is
        known to have ended.
        """
        for _ in range(_CLAIM_ATTEMPTS):
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
                        lease_until_ms=db_now() + self._lease_ms,
                        grace_ms=_GRACE,
                        milliseconds=step_times_until_heartbeat(found),
                        step_at_ms=db_now(),
                    )
                )
                reason = f"the lease of {silent.executor} expired; taken over"
                row = _record_claim(connection, silent.id, PlanState.INFLIGHT, executor, reason)
            return self._load_claim(row)
        return None

    def time_until_due(self) -> timedelta | None:
        """Return the time until a requested plan can be claimed or an inflight lease expires; zero if that is now.

        A plan that waits for a budget or for its table's hours is due when its wait may end. A plan of a table at
        ``max_inflight_per_table`` is due when the next lease of that table expires. Returns None if all live plans wait
        for a person, such as plans of paused and halted tables.
        """
        backoff = (
            runnable_plans(self._settings)
            .where(PlanRow.not_before_ms > db_now(), is_in_groups(self._settings))
            .order_by(None)
            .with_only_columns(func.min(PlanRow.not_before_ms))
        )
        lease = select(func.min(PlanRow.lease_until_ms)).where(
            PlanRow.state == PlanState.INFLIGHT, is_served(PlanRow.table_name)
        )
        with self._database.read() as connection:
            if self._next_startable(connection) is not None:
                return timedelta()
            moments = [connection.execute(query).scalar_one() for query in (backoff, lease)]
            now = connection.execute(select(db_now())).scalar_one()
            held = blocked_plans(connection, self._settings)
            moments += [datetime_to_ms(plan.until) for plan in held if plan.until is not None]
        known = [ms for ms in moments if ms is not None]
        return timedelta(milliseconds=max(min(known) - now, 0)) if known else None

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
            "lease_until_ms": _later_of(granted, db_now() + max(self._lease_ms, timedelta_to_ms(at_least))),
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

    @property
    def _lease_ms(self) -> int:
        return timedelta_to_ms(self._settings.lease)

    def _next_startable(self, connection: Connection, plan_id: str | None = None) -> QueuedPlan | None:
        """Return the first plan that may start now, or with ``plan_id`` that plan if it may. Returns None otherwise."""
        limits = self._settings.limits
        plans = claimable_plans(self._settings).where(is_in_groups(self._settings))
        if limits.is_limited:
            startable = BudgetState(connection, limits).startable(queued_plans(connection.execute(plans)))
            return next((plan for plan in startable if plan_id in (None, plan.plan_id)), None)
        if plan_id is not None:
            plans = plans.where(PlanRow.id == plan_id)
        return next(iter(queued_plans(connection.execute(plans.limit(1)))), None)

    def _load_claim(self, row: Row[Any]) -> Claim:
        # In its own transaction, because unpacking long lists of files takes time and SQLite has only one write lock.
        with self._database.read() as connection:
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


def _record_claim(connection: Connection, plan_id: str, before: PlanState, executor: str, reason: str) -> Row[Any]:
    row = connection.execute(select(PlanRow.__table__).where(PlanRow.id == plan_id)).one()
    record_event(connection, plan_id, before, PlanState.INFLIGHT, epoch=row.epoch, actor=executor, reason=reason)
    return row


def _later_of(known: Any, wanted: Any) -> Any:
    return case((known > wanted, known), else_=wanted)
