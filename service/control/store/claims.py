# SPDX-License-Identifier: Apache-2.0
"""Claims: executors take free plans.

A plan is claimed by compare-and-set, each time with a new epoch. Every write of the executor names that epoch, see
``service.control.store.claimed_plans``.
"""

from datetime import timedelta

from sqlalchemy import Connection, func, select, update

from lake.plan import Claim, PlanState
from planner.budgets import QueuedPlan
from service.control.store.base import StorePart, with_row_locks
from service.control.store.budget_ledger import (
    BudgetState,
    blocked_plans,
    charge_prediction,
    queued_plans,
    serialize_claims,
)
from service.control.store.database import datetime_to_ms, db_now
from service.control.store.leases import GRACE_MS, lease_ms, load_claim, record_claim
from service.control.store.models import GroupRow, PlanRow, TableRow
from service.control.store.pauses import is_served
from service.control.store.plan_filter import claimable_plans, is_approved_or_exempt, is_in_groups, runnable_plans

#: maximum number of tries to claim a plan: a try fails if another executor claims the plan first, which is rare
_CLAIM_ATTEMPTS = 50


class Claims(StorePart):
    """The part of ``lake.plan_store.PlanStore`` by which executors claim plans."""

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
                        lease_until_ms=db_now() + lease_ms(self._settings),
                        heartbeat_at_ms=db_now(),
                        grace_ms=GRACE_MS,
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
                row = record_claim(connection, candidate.plan_id, PlanState.REQUESTED, executor, "claimed")
            return load_claim(self._database, row)
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
