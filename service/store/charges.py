# SPDX-License-Identifier: Apache-2.0
"""What plans were charged, and which of the waiting ones may start: budgets and windows, inside a claim's transaction.

A claim charges what its plan is predicted to take; what the attempt takes beyond that is charged at its end. Nothing is
given back. So the predictions charged in any window stay within its budget whoever claims, and whatever came on top of
them delays the plans that follow.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, case, delete, func, insert, select, text

from lake.plan import PlanState
from planner.budgets import DAY, HOUR, NOTHING, UNLIMITED, Amount, Used, Waiting, keep_back, pick
from service.store.base import StorePart
from service.store.clock import db_now, milliseconds, moment
from service.store.models import ChargeRow, PlanRow
from service.store.queue import claimable
from service.store.views import HeldPlan, Limits, StoreSettings, WorkBudget
from service.store.work import cpu_milliseconds

#: any number, the same in every lakefold: claims that are held to budgets take turns
_TURN = 0x6C616B66
_DAY_MS = milliseconds(DAY)


def take_turns(connection: Connection) -> None:
    """Let one claim after the other look at what is left and charge, until the transaction ends.

    SQLite's writers take turns anyway.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _TURN})


def charge(connection: Connection, plan: Waiting) -> None:
    """Charge what a plan is predicted to take, and forget what no budget counts any more; in one's turn."""
    connection.execute(delete(ChargeRow).where(ChargeRow.at_ms <= db_now() - _DAY_MS))
    _insert(connection, plan.plan_id, plan.table, plan.cost)


def _insert(connection: Connection, plan_id: str, table: str, amount: Amount) -> None:
    values = {"bytes": amount.bytes, "cpu_ms": amount.cpu_ms}
    connection.execute(insert(ChargeRow).values(plan_id=plan_id, table_name=table, at_ms=db_now(), **values))


def predicted(row: Any) -> Amount:
    """What a plan's row says it takes; of one from before predictions were made its bytes."""
    return Amount(bytes=row.input_bytes, cpu_ms=row.predicted_cpu_ms or 0)


def settle(connection: Connection, plan_id: str, cores: float) -> None:
    """Charge what the last attempt at a plan took beyond its prediction; it has left inflight."""
    row = connection.execute(select(PlanRow.__table__).where(PlanRow.id == plan_id)).one()
    completed, before = row.state == PlanState.COMPLETED, predicted(row)
    written = row.bytes_after if completed else row.progress_bytes_done
    used = cpu_milliseconds(row.milliseconds, row.rewrite_cpu_ms, cores, completed=completed)
    more = Amount(bytes=max(0, written - before.bytes), cpu_ms=max(0, used - before.cpu_ms))
    if more != NOTHING:
        _insert(connection, row.id, row.table_name, more)


class Accounts:
    """What was charged, and the limits, as one transaction sees them."""

    def __init__(self, connection: Connection, limits: Limits) -> None:
        self._limits = limits
        self.now_ms: int = connection.execute(select(db_now())).scalar_one()
        self.now = moment(self.now_ms)
        of_hour = ChargeRow.at_ms > self.now_ms - milliseconds(HOUR)
        sums = [
            func.sum(case((when, column), else_=0)) for when in (of_hour, ChargeRow.at_ms > 0) for column in _AMOUNT
        ]
        query = select(ChargeRow.table_name, *sums).where(ChargeRow.at_ms > self.now_ms - _DAY_MS)
        self.used = {
            table: Used(
                hour=Amount(bytes=int(hour_bytes), cpu_ms=int(hour_cpu)),
                day=Amount(bytes=int(day_bytes), cpu_ms=int(day_cpu)),
            )
            for table, hour_bytes, hour_cpu, day_bytes, day_cpu in connection.execute(
                query.group_by(ChargeRow.table_name)
            )
        }
        self.used_in_all = sum(self.used.values(), Used())
        self.left = limits.budget.left(self.used_in_all)

    def left_of(self, table: str) -> Amount:
        """What is left of the budget of one table."""
        return self._limits.of(table).budget.left(self.used.get(table, Used()))

    def opens_at(self, table: str) -> datetime | None:
        """When plans of a table may start again; None where they may now."""
        hours = self._limits.of(table).hours
        return None if hours.are_open(self.now) else hours.open_at(self.now)

    def never(self, plan: Waiting) -> bool:
        """Whether a plan is larger than a whole budget, so that it is not in anybody's way either."""
        own = self._limits.of(plan.table).budget.whole
        return not plan.cost.fits(self._limits.budget.whole.least(own))

    def startable(self, queue: list[Waiting]) -> Iterator[Waiting]:
        """Those of ``queue`` that may start."""
        return pick(self._in_line(queue), self.left, self.left_of)

    def _in_line(self, queue: list[Waiting]) -> list[Waiting]:
        """Those of ``queue`` that wait for nothing but budgets."""
        open_ = {table: self.opens_at(table) is None for table in {plan.table for plan in queue}}
        return [plan for plan in queue if open_[plan.table] and not self.never(plan)]

    def held(self, queue: list[Waiting], frees_at: datetime | None) -> list[HeldPlan]:
        """Those of ``queue`` that may not start, each with the reason; something is given back at ``frees_at``."""
        starting = {plan.plan_id for plan in self.startable(queue)}
        by = keep_back(self._in_line(queue), self.left, self.left_of)
        return [self._why(plan, by.get(plan.plan_id), frees_at) for plan in queue if plan.plan_id not in starting]

    def _why(self, plan: Waiting, by: Waiting | None, frees_at: datetime | None) -> HeldPlan:
        held = HeldPlan(plan_id=plan.plan_id, table=plan.table, kind="budget", own=False, until=frees_at)
        opens_at = self.opens_at(plan.table)
        if self.never(plan):
            own = not plan.cost.fits(self._limits.of(plan.table).budget.whole)
            return replace(held, kind="never", own=own, until=None)
        if opens_at is not None:
            return replace(held, kind="window", own=True, until=opens_at)
        if by is None:
            return held
        return replace(held, own=True) if by == plan else replace(held, behind=(by.plan_id, by.table))


_AMOUNT = (ChargeRow.bytes, ChargeRow.cpu_ms)


def waiting(rows: Any) -> list[Waiting]:
    """Rows of claimable plans, in their order, as what is picked from."""
    return [Waiting(plan_id=row.id, table=row.table_name, cost=predicted(row)) for row in rows]


def _frees_at(connection: Connection, now_ms: int) -> datetime | None:
    """When the next charge leaves the last 60 minutes or the last 24 hours; None without any."""
    moments = []
    for span in (HOUR, DAY):
        oldest = select(func.min(ChargeRow.at_ms)).where(ChargeRow.at_ms > now_ms - milliseconds(span))
        at_ms = connection.execute(oldest).scalar_one()
        if at_ms is not None:
            moments.append(moment(at_ms) + span)
    return min(moments, default=None)


def held_plans(connection: Connection, settings: StoreSettings) -> list[HeldPlan]:
    """The plans that are due and may not start, each with the reason."""
    if not settings.limits.any:
        return []
    accounts = Accounts(connection, settings.limits)
    queue = waiting(connection.execute(claimable(settings)))
    return accounts.held(queue, _frees_at(connection, accounts.now_ms))


class Charges(StorePart):
    """Budgets and hours, for whoever asks why work waits."""

    def work_budget(self) -> WorkBudget:
        """What was used of the budgets, and the plans that could start but for a budget or their table's hours."""
        limits = self._settings.limits
        with self._database.read() as connection:
            used = Accounts(connection, limits).used_in_all if limits.any else Used()
            held = held_plans(connection, self._settings)
        return WorkBudget(budget=limits.budget, used=used, held=tuple(held)).within(self._reach)

    def room(self, table: str, without: Collection[str] = ()) -> Amount:
        """What may yet be planned within the budget of ``table``: what is left of it, without what waits already.

        Plans ``without`` which it is planned, and those that can never start, take none of it.
        """
        limits = self._settings.limits
        if not limits.of(table).budget.is_set:
            return UNLIMITED
        requested = select(PlanRow.id, PlanRow.table_name, PlanRow.input_bytes, PlanRow.predicted_cpu_ms).where(
            PlanRow.table_name == table, PlanRow.state == PlanState.REQUESTED
        )
        with self._database.read() as connection:
            accounts = Accounts(connection, limits)
            waits = [plan for plan in waiting(connection.execute(requested)) if plan.plan_id not in without]
            return accounts.left_of(table) - sum((plan.cost for plan in waits if not accounts.never(plan)), NOTHING)
