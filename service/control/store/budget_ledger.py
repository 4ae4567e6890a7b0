# SPDX-License-Identifier: Apache-2.0
"""The ledger of budgets. It charges plans and decides which waiting plans may start, in the transaction of a claim.

A claim charges the predicted cost of its plan. The end of the attempt charges any cost beyond the prediction. Charges
are never refunded. So the predictions charged in any window stay within its budget, even if several processes claim
plans. Cost beyond the prediction delays later plans.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, case, delete, func, insert, select, text

from lake.plan import PlanState, Step
from planner.budgets import (
    DAY,
    HOUR,
    UNLIMITED,
    ZERO,
    BudgetUsage,
    QueuedPlan,
    WorkAmount,
    blocked_by_table_budget,
    startable_plans,
)
from service.control.store.base import StorePart
from service.control.store.database import datetime_from_ms, db_now, timedelta_to_ms
from service.control.store.models import ChargeRow, PlanRow
from service.control.store.plan_filter import claimable_plans
from service.control.store.views import BlockedPlan, StoreSettings, WorkBudget, WorkLimits

#: the key of the lock that serializes claims under a budget: an arbitrary number, the same in every release
_CLAIM_LOCK_KEY = 0x6C616B66
_DAY_MS = timedelta_to_ms(DAY)


def serialize_claims(connection: Connection) -> None:
    """Make other claims wait until this transaction ends, so that claims read and charge the budgets one by one.

    On SQLite, transactions that write run one by one in any case.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CLAIM_LOCK_KEY})


def charge_prediction(connection: Connection, plan: QueuedPlan) -> None:
    """Charge the predicted cost of a plan, and delete charges that are too old to count in a budget.

    Call ``serialize_claims`` first.
    """
    connection.execute(delete(ChargeRow).where(ChargeRow.at_ms <= db_now() - _DAY_MS))
    _insert_charge(connection, plan.plan_id, plan.table, plan.cost)


def _insert_charge(connection: Connection, plan_id: str, table: str, amount: WorkAmount) -> None:
    values = {"bytes": amount.bytes, "cpu_ms": amount.cpu_ms}
    connection.execute(insert(ChargeRow).values(plan_id=plan_id, table_name=table, at_ms=db_now(), **values))


def predicted_cost(row: Any) -> WorkAmount:
    """Return the predicted cost in a plan's row. Plans of old releases have no predicted CPU time; it counts as 0."""
    return WorkAmount(bytes=row.input_bytes, cpu_ms=row.predicted_cpu_ms or 0)


def charge_excess(connection: Connection, plan_id: str, cores: float) -> None:
    """Charge the part of the last attempt's cost that exceeds the prediction. The plan must have left inflight."""
    row = connection.execute(select(PlanRow.__table__).where(PlanRow.id == plan_id)).one()
    completed, before = row.state == PlanState.COMPLETED, predicted_cost(row)
    written = row.bytes_after if completed else row.progress_bytes_done
    used = attempt_cpu_ms(row.milliseconds, row.rewrite_cpu_ms, cores, completed=completed)
    more = WorkAmount(bytes=max(0, written - before.bytes), cpu_ms=max(0, used - before.cpu_ms))
    if more != ZERO:
        _insert_charge(connection, row.id, row.table_name, more)


class BudgetState:
    """The charges and the limits within one transaction."""

    def __init__(self, connection: Connection, limits: WorkLimits) -> None:
        self._limits = limits
        self.now_ms: int = connection.execute(select(db_now())).scalar_one()
        self.now = datetime_from_ms(self.now_ms)
        of_hour = ChargeRow.at_ms > self.now_ms - timedelta_to_ms(HOUR)
        sums = [
            func.sum(case((when, column), else_=0))
            for when in (of_hour, ChargeRow.at_ms > 0)
            for column in _COST_COLUMNS
        ]
        query = select(ChargeRow.table_name, *sums).where(ChargeRow.at_ms > self.now_ms - _DAY_MS)
        self.usage_by_table = {
            table: BudgetUsage(
                hour=WorkAmount(bytes=int(hour_bytes), cpu_ms=int(hour_cpu)),
                day=WorkAmount(bytes=int(day_bytes), cpu_ms=int(day_cpu)),
            )
            for table, hour_bytes, hour_cpu, day_bytes, day_cpu in connection.execute(
                query.group_by(ChargeRow.table_name)
            )
        }
        self.total_usage = sum(self.usage_by_table.values(), BudgetUsage())
        self.remaining = limits.budget.remaining(self.total_usage)

    def remaining_of_table(self, table: str) -> WorkAmount:
        """Return the remaining budget of one table."""
        return self._limits.for_table(table).budget.remaining(self.usage_by_table.get(table, BudgetUsage()))

    def next_open_at(self, table: str) -> datetime | None:
        """Return when plans of a table may start again by its schedule. Returns None if they may start now."""
        hours = self._limits.for_table(table).schedule
        return None if hours.is_open(self.now) else hours.next_open_at(self.now)

    def can_never_start(self, plan: QueuedPlan) -> bool:
        """Return True if a plan is larger than a whole budget; such a plan does not block other plans."""
        own = self._limits.for_table(plan.table).budget.largest_plan
        return not plan.cost.is_within(self._limits.budget.largest_plan.elementwise_min(own))

    def startable(self, queue: list[QueuedPlan]) -> Iterator[QueuedPlan]:
        """Yield the plans of ``queue`` that may start."""
        return startable_plans(self._waiting_for_budget(queue), self.remaining, self.remaining_of_table)

    def _waiting_for_budget(self, queue: list[QueuedPlan]) -> list[QueuedPlan]:
        """Return the plans of ``queue`` that only wait for budgets."""
        open_ = {table: self.next_open_at(table) is None for table in {plan.table for plan in queue}}
        return [plan for plan in queue if open_[plan.table] and not self.can_never_start(plan)]

    def blocked(self, queue: list[QueuedPlan], next_release_at: datetime | None) -> list[BlockedPlan]:
        """Return the plans of ``queue`` that may not start, each with the reason.

        ``next_release_at`` is the time at which the next charge expires.
        """
        starting = {plan.plan_id for plan in self.startable(queue)}
        by = blocked_by_table_budget(self._waiting_for_budget(queue), self.remaining, self.remaining_of_table)
        return [
            self._blocked_plan(plan, by.get(plan.plan_id), next_release_at)
            for plan in queue
            if plan.plan_id not in starting
        ]

    def _blocked_plan(
        self, plan: QueuedPlan, blocker: QueuedPlan | None, next_release_at: datetime | None
    ) -> BlockedPlan:
        held = BlockedPlan(
            plan_id=plan.plan_id, table=plan.table, kind="budget", is_table_budget=False, until=next_release_at
        )
        opens_at = self.next_open_at(plan.table)
        if self.can_never_start(plan):
            own = not plan.cost.is_within(self._limits.for_table(plan.table).budget.largest_plan)
            return replace(held, kind="exceeds_budget", is_table_budget=own, until=None)
        if opens_at is not None:
            return replace(held, kind="window", is_table_budget=True, until=opens_at)
        if blocker is None:
            return held
        return (
            replace(held, is_table_budget=True)
            if blocker == plan
            else replace(held, blocker=(blocker.plan_id, blocker.table))
        )


_COST_COLUMNS = (ChargeRow.bytes, ChargeRow.cpu_ms)


def queued_plans(rows: Any) -> list[QueuedPlan]:
    """Return the rows of claimable plans, in their order, as queued plans."""
    return [QueuedPlan(plan_id=row.id, table=row.table_name, cost=predicted_cost(row)) for row in rows]


def _next_release_at(connection: Connection, now_ms: int) -> datetime | None:
    """Return when the next charge leaves the last 60 minutes or the last 24 hours; None if there is no charge."""
    moments = []
    for span in (HOUR, DAY):
        oldest = select(func.min(ChargeRow.at_ms)).where(ChargeRow.at_ms > now_ms - timedelta_to_ms(span))
        at_ms = connection.execute(oldest).scalar_one()
        if at_ms is not None:
            moments.append(datetime_from_ms(at_ms) + span)
    return min(moments, default=None)


def blocked_plans(connection: Connection, settings: StoreSettings) -> list[BlockedPlan]:
    """Return the due plans that may not start, each with the reason."""
    if not settings.limits.is_limited:
        return []
    accounts = BudgetState(connection, settings.limits)
    queue = queued_plans(connection.execute(claimable_plans(settings)))
    return accounts.blocked(queue, _next_release_at(connection, accounts.now_ms))


class BudgetLedger(StorePart):
    """Budgets and hours, to explain why work waits."""

    def work_budget(self) -> WorkBudget:
        """Return the usage of the budgets, and the plans that only wait for a budget or for their table's hours."""
        limits = self._settings.limits
        with self._database.read() as connection:
            used = BudgetState(connection, limits).total_usage if limits.is_limited else BudgetUsage()
            held = blocked_plans(connection, self._settings)
        return WorkBudget(budget=limits.budget, usage=used, blocked_plans=tuple(held)).limited_to(self._table_scope)

    def remaining_table_budget(self, table: str, excluded: Collection[str] = ()) -> WorkAmount:
        """Return the budget of ``table`` that remains for new plans, after the cost of the plans that already wait.

        The cost of ``excluded`` plans and of plans that can never start is not subtracted.
        """
        limits = self._settings.limits
        if not limits.for_table(table).budget.is_set:
            return UNLIMITED
        requested = select(PlanRow.id, PlanRow.table_name, PlanRow.input_bytes, PlanRow.predicted_cpu_ms).where(
            PlanRow.table_name == table, PlanRow.state == PlanState.REQUESTED
        )
        with self._database.read() as connection:
            accounts = BudgetState(connection, limits)
            waits = [plan for plan in queued_plans(connection.execute(requested)) if plan.plan_id not in excluded]
            return accounts.remaining_of_table(table) - sum(
                (plan.cost for plan in waits if not accounts.can_never_start(plan)), ZERO
            )


#: the number of completed plans from which the cost of the next plan is predicted
_HISTORY_PLANS = 100


def attempt_cpu_ms(
    step_milliseconds: Mapping[str, int], rewrite_cpu_ms: int | None, cores: float, *, completed: bool = True
) -> int:
    """Return the CPU time of an attempt: the measured time of its rewrite, and ``cores`` times the other steps.

    If the attempt did not complete the plan, its last tasks may not have reported their CPU time. Then the CPU time of
    the rewrite is at least its duration times ``cores``. The start of Spark does not count, because the next plan may
    not need it.
    """
    rewriting = cores * step_milliseconds.get(Step.REWRITE, 0)
    if rewrite_cpu_ms is not None:
        rewriting = rewrite_cpu_ms if completed else max(rewrite_cpu_ms, rewriting)
    others = sum(took for step, took in step_milliseconds.items() if step not in (Step.START, Step.REWRITE))
    return round(rewriting + cores * others)


def add_step_time(step_milliseconds: Mapping[str, int], step: Step, milliseconds: int) -> Mapping[str, int]:
    """Return the durations of an attempt's steps with ``milliseconds`` added to ``step``."""
    return {**step_milliseconds, step.value: step_milliseconds.get(step, 0) + milliseconds}


def step_times_until_heartbeat(row: Row[Any]) -> Mapping[str, int]:
    """Return the durations of the steps of an attempt whose executor is silent.

    The last step is counted until the last heartbeat.
    """
    steps = list(Step)
    underway = steps[0] if row.step is None else steps[min(steps.index(Step(row.step)) + 1, len(steps) - 1)]
    known = row.step_at_ms is not None  # None if an earlier release began the attempt
    since = row.step_at_ms if known else row.claimed_at_ms + sum(row.milliseconds.values())
    return add_step_time(row.milliseconds, underway, max(0, row.heartbeat_at_ms - since))


class CpuHistory(StorePart):
    """The cost of completed plans."""

    def cpu_history(self, format_name: str, engine: str) -> Sequence[tuple[int, float]]:
        """Return input bytes and CPU seconds of each of the newest completed plans of this format and engine."""
        query = (
            select(PlanRow.input_bytes, PlanRow.used_cpu_ms)
            .where(PlanRow.format == format_name, PlanRow.engine == engine, PlanRow.used_cpu_ms.is_not(None))
            .order_by(PlanRow.finalized_at_ms.desc())
            .limit(_HISTORY_PLANS)
        )
        with self._database.read() as connection:
            return [(row.input_bytes, row.used_cpu_ms / 1000) for row in connection.execute(query)]
