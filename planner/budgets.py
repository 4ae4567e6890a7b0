# SPDX-License-Identifier: Apache-2.0
"""Budgets of bytes and CPU time, an hour and a day, and which of the waiting plans may start within what is left.

Plans start in their order, and a plan whose place in it is beyond a budget waits: its own cost and that of all plans
before it, those of its table for the table's budget, have to fit into what is left. Where it stands does not depend on
any budget, so a raised one lets everything start that started before and maybe more: what is picked never becomes worth
less. Nobody is passed over for somebody smaller either, so whatever fits a budget at all comes to its head and starts.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from datetime import timedelta

from planner.cost import Rates
from planner.policy.fields import PlanningSettings, TableSettings
from planner.windows import RunSchedule

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkAmount:
    """Bytes rewritten and CPU milliseconds; of a budget infinite where it has none."""

    bytes: float = 0
    cpu_ms: float = 0

    def __add__(self, other: "WorkAmount") -> "WorkAmount":
        return WorkAmount(bytes=self.bytes + other.bytes, cpu_ms=self.cpu_ms + other.cpu_ms)

    def __sub__(self, other: "WorkAmount") -> "WorkAmount":
        return WorkAmount(bytes=self.bytes - other.bytes, cpu_ms=self.cpu_ms - other.cpu_ms)

    def is_within(self, limit: "WorkAmount") -> bool:
        """Whether there is room for it."""
        return self.bytes <= limit.bytes and self.cpu_ms <= limit.cpu_ms

    def elementwise_min(self, other: "WorkAmount") -> "WorkAmount":
        """The smaller of each."""
        return WorkAmount(bytes=min(self.bytes, other.bytes), cpu_ms=min(self.cpu_ms, other.cpu_ms))


ZERO, UNLIMITED = WorkAmount(), WorkAmount(bytes=math.inf, cpu_ms=math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What may be used in any 60 minutes and in any 24 hours."""

    hour: WorkAmount = UNLIMITED
    day: WorkAmount = UNLIMITED

    @classmethod
    def from_settings(
        cls, hour_bytes: int, day_bytes: int, cpu_hours_per_hour: float, cpu_hours_per_day: float
    ) -> "Budget":
        """A budget from settings, in which 0 stands for no budget."""
        return cls(
            hour=WorkAmount(bytes=hour_bytes or math.inf, cpu_ms=cpu_hours_per_hour * _HOUR_MS or math.inf),
            day=WorkAmount(bytes=day_bytes or math.inf, cpu_ms=cpu_hours_per_day * _HOUR_MS or math.inf),
        )

    @property
    def is_set(self) -> bool:
        """Whether anything is limited."""
        return self != Budget()

    @property
    def largest_plan(self) -> WorkAmount:
        """What the largest plan may be."""
        return self.hour.elementwise_min(self.day)

    def remaining(self, usage: "BudgetUsage") -> WorkAmount:
        """What a plan may take now; negative where more was used than predicted."""
        return (self.hour - usage.hour).elementwise_min(self.day - usage.day)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUsage:
    """What was charged in the last 60 minutes and in the last 24 hours."""

    hour: WorkAmount = ZERO
    day: WorkAmount = ZERO

    def __add__(self, other: "BudgetUsage") -> "BudgetUsage":
        return BudgetUsage(hour=self.hour + other.hour, day=self.day + other.day)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLimits:
    """What the plans of one table are held to: the table's own budget, and when they may start."""

    budget: Budget = field(default_factory=Budget)
    schedule: RunSchedule = field(default_factory=RunSchedule)

    @classmethod
    def from_settings(cls, settings: TableSettings) -> "TableLimits":
        """The limits that a policy sets."""
        return cls(
            budget=Budget.from_settings(
                settings.budget_bytes_per_hour,
                settings.budget_bytes_per_day,
                settings.budget_cpu_hours_per_hour,
                settings.budget_cpu_hours_per_day,
            ),
            schedule=RunSchedule.parse(settings.run_windows, settings.run_time_zone),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedPlan:
    """A plan that waits, with what it is predicted to take."""

    plan_id: str
    table: str
    cost: WorkAmount


def startable_plans(
    queue: Iterable[QueuedPlan], remaining: WorkAmount, remaining_of_table: Callable[[str], WorkAmount]
) -> Iterator[QueuedPlan]:
    """Those of ``queue``, which is in the order of starting, that may start within what is ``left`` in all and of each
    table's budget.

    Each of them has to fit its budgets as such: larger ones would hold up all others for ever.
    """
    total, of_table = ZERO, dict[str, WorkAmount]()
    for plan in queue:
        total += plan.cost
        if not total.is_within(remaining):
            return  # neither does whatever comes after it
        own = of_table[plan.table] = of_table.get(plan.table, ZERO) + plan.cost
        if own.is_within(remaining_of_table(plan.table)):
            yield plan


def blocked_by_table_budget(
    queue: Iterable[QueuedPlan], remaining: WorkAmount, remaining_of_table: Callable[[str], WorkAmount]
) -> dict[str, QueuedPlan]:
    """Plans of ``queue`` that the budget of one table keeps back, each with the plan that waits for it.

    That is the plan itself where it is its own table's. Else it is the first plan before it whose table's budget is
    used up: without the plans that are so it would start, within what is ``left`` in all.
    """
    found, of_table = dict[str, QueuedPlan](), dict[str, WorkAmount]()
    total, startable, first = ZERO, ZERO, None
    for plan in queue:
        total += plan.cost
        own = of_table[plan.table] = of_table.get(plan.table, ZERO) + plan.cost
        if not own.is_within(remaining_of_table(plan.table)):
            first = first or plan
            found[plan.plan_id] = plan
            continue
        startable += plan.cost
        if first is not None and startable.is_within(remaining) and not total.is_within(remaining):
            found[plan.plan_id] = first
    return found


def cap_by_budgets(policy: PlanningSettings, budgets: Iterable[Budget], rates: Rates) -> PlanningSettings:
    """``policy`` with plans, and groups, that fit each of ``budgets`` as such."""
    most = max_plan_bytes(budgets, rates)
    if most >= policy.max_bytes_per_plan:
        return policy
    values = {knob.name: getattr(policy, knob.name) for knob in fields(PlanningSettings)}
    bounds = {name: max(1, int(min(values[name], most))) for name in ("max_bytes_per_group", "max_bytes_per_plan")}
    return PlanningSettings(**{**values, **bounds})


def max_plan_bytes(budgets: Iterable[Budget], rates: Rates) -> float:
    """Bytes of the largest plan that fits each of ``budgets`` as such."""
    whole = UNLIMITED
    for budget in budgets:
        whole = whole.elementwise_min(budget.largest_plan)
    by_cpu = math.inf if math.isinf(whole.cpu_ms) else rates.max_bytes(whole.cpu_ms / 1000)
    return min(whole.bytes, by_cpu)
