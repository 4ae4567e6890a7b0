# SPDX-License-Identifier: Apache-2.0
"""Budgets of bytes and CPU time per hour and per day, and the waiting plans that may start within them.

Plans start in the order of the queue. A plan may start if its own cost plus the cost of all plans before it fits into
the remaining budget; for a table's budget only the table's plans count. The order does not depend on any budget. So
with a larger budget the same plans start, and perhaps more: the value of the started plans never falls. No plan is
skipped in favour of a smaller one, so every plan that fits the whole budget reaches the head of the queue and starts.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from datetime import timedelta

from lake.units import format_bytes
from planner.policy.fields import PlanningSettings, TableSettings
from planner.rates import Rates
from planner.windows import RunSchedule

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkAmount:
    """An amount of work: bytes rewritten and CPU milliseconds; infinite if a budget does not limit them."""

    bytes: float = 0
    cpu_ms: float = 0

    def __add__(self, other: "WorkAmount") -> "WorkAmount":
        return WorkAmount(bytes=self.bytes + other.bytes, cpu_ms=self.cpu_ms + other.cpu_ms)

    def __sub__(self, other: "WorkAmount") -> "WorkAmount":
        return WorkAmount(bytes=self.bytes - other.bytes, cpu_ms=self.cpu_ms - other.cpu_ms)

    def is_within(self, limit: "WorkAmount") -> bool:
        """True if the amount does not exceed ``limit``."""
        return self.bytes <= limit.bytes and self.cpu_ms <= limit.cpu_ms

    def elementwise_min(self, other: "WorkAmount") -> "WorkAmount":
        """Return the smaller bytes and the smaller CPU time of both amounts."""
        return WorkAmount(bytes=min(self.bytes, other.bytes), cpu_ms=min(self.cpu_ms, other.cpu_ms))


ZERO, UNLIMITED = WorkAmount(), WorkAmount(bytes=math.inf, cpu_ms=math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The work allowed in any 60 minutes and in any 24 hours."""

    hour: WorkAmount = UNLIMITED
    day: WorkAmount = UNLIMITED

    @classmethod
    def from_settings(
        cls, hour_bytes: int, day_bytes: int, cpu_hours_per_hour: float, cpu_hours_per_day: float
    ) -> "Budget":
        """Return the budget of these settings, in which 0 means unlimited."""
        return cls(
            hour=WorkAmount(bytes=hour_bytes or math.inf, cpu_ms=cpu_hours_per_hour * _HOUR_MS or math.inf),
            day=WorkAmount(bytes=day_bytes or math.inf, cpu_ms=cpu_hours_per_day * _HOUR_MS or math.inf),
        )

    @property
    def is_set(self) -> bool:
        """True if the budget limits anything."""
        return self != Budget()

    @property
    def largest_plan(self) -> WorkAmount:
        """The largest plan that fits the unused budget."""
        return self.hour.elementwise_min(self.day)

    def remaining(self, usage: "BudgetUsage") -> WorkAmount:
        """Return the work that may start now; negative if plans used more than predicted."""
        return (self.hour - usage.hour).elementwise_min(self.day - usage.day)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUsage:
    """The work charged in the last 60 minutes and in the last 24 hours."""

    hour: WorkAmount = ZERO
    day: WorkAmount = ZERO

    def __add__(self, other: "BudgetUsage") -> "BudgetUsage":
        return BudgetUsage(hour=self.hour + other.hour, day=self.day + other.day)


def table_budget(settings: TableSettings) -> Budget:
    """Return the budget of one table in these settings."""
    return Budget.from_settings(
        settings.budget_bytes_per_hour,
        settings.budget_bytes_per_day,
        settings.budget_cpu_hours_per_hour,
        settings.budget_cpu_hours_per_day,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLimits:
    """The limits of one table's plans: the table's own budget, and when plans may start."""

    budget: Budget = field(default_factory=Budget)
    schedule: RunSchedule = field(default_factory=RunSchedule)

    @classmethod
    def from_settings(cls, settings: TableSettings) -> "TableLimits":
        """Return the limits of these settings."""
        return cls(
            budget=table_budget(settings),
            schedule=RunSchedule.parse(settings.run_windows, settings.run_time_zone),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedPlan:
    """A waiting plan with its predicted cost."""

    plan_id: str
    table: str
    cost: WorkAmount


def startable_plans(
    queue: Iterable[QueuedPlan], remaining: WorkAmount, remaining_of_table: Callable[[str], WorkAmount]
) -> Iterator[QueuedPlan]:
    """Yield the plans of ``queue`` that may start within ``remaining`` and their table's remaining budget.

    ``queue`` is in the order of starting. Each plan must fit the unused budgets: a larger plan would block all later
    plans for ever.
    """
    total, of_table = ZERO, dict[str, WorkAmount]()
    for plan in queue:
        total += plan.cost
        if not total.is_within(remaining):
            return  # no later plan fits either
        own = of_table[plan.table] = of_table.get(plan.table, ZERO) + plan.cost
        if own.is_within(remaining_of_table(plan.table)):
            yield plan


def blocked_by_table_budget(
    queue: Iterable[QueuedPlan], remaining: WorkAmount, remaining_of_table: Callable[[str], WorkAmount]
) -> dict[str, QueuedPlan]:
    """Return the plans of ``queue`` that the budget of one table blocks: plan id → the plan that exceeds this budget.

    A plan that exceeds the budget of its own table maps to itself. Another plan is blocked if it would start within
    ``remaining`` without the earlier plans that exceed their tables' budgets; it maps to the first of these.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSizeLimit:
    """The bytes of the largest plan that fits the unused budgets, and the budget that allows no more.

    ``setting`` is the name of this budget's setting, ``value`` its value as text.
    """

    setting: str
    value: str
    max_bytes: int

    @property
    def text(self) -> str:
        """Setting and value, for a sentence; for a budget of CPU time with the bytes that it allows."""
        allows = "" if "bytes" in self.setting else f", which allows {format_bytes(self.max_bytes)}"
        return f"{self.setting} ({self.value}{allows})"

    def warning(self, policy: PlanningSettings) -> str | None:
        """Return the consequence of a budget below two files of the small-file limit; None for any other budget."""
        least = 2 * policy.small_file_limit_bytes
        if self.max_bytes >= least:
            return None
        return (
            f"{self.text} is less than two files just below small_file_limit ({format_bytes(least)}): such files are "
            f"never rewritten; raise {self.setting} or lower small_file_limit"
        )

    def capped(self, policy: PlanningSettings) -> PlanningSettings:
        """Return ``policy`` with sizes of plans and groups limited to ``max_bytes``."""
        values = {knob.name: getattr(policy, knob.name) for knob in fields(PlanningSettings)}
        bounds = {name: max(1, min(values[name], self.max_bytes)) for name in _SIZES_OF_PLANS}
        return PlanningSettings(**{**values, **bounds})


_SIZES_OF_PLANS = ("max_bytes_per_group", "max_bytes_per_plan")


def plan_size_limit(table: Budget, common: Budget, rates: Rates) -> PlanSizeLimit | None:
    """Return the limit of plans by the budgets of one table and of all tables; None if both are unlimited."""
    limits = []
    for prefix, budget in (("budget_", table), ("work.", common)):
        for span, most in (("hour", budget.hour), ("day", budget.day)):
            if math.isfinite(most.bytes):
                value = format_bytes(int(most.bytes))
                limits.append(
                    PlanSizeLimit(setting=f"{prefix}bytes_per_{span}", value=value, max_bytes=int(most.bytes))
                )
            if math.isfinite(most.cpu_ms):
                name, size = f"{prefix}cpu_hours_per_{span}", rates.max_bytes(most.cpu_ms / 1000)
                limits.append(PlanSizeLimit(setting=name, value=f"{most.cpu_ms / _HOUR_MS:g}", max_bytes=size))
    return min(limits, key=lambda limit: limit.max_bytes, default=None)
