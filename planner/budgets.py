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
from planner.knobs import Care, Sizing
from planner.windows import Hours

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """Bytes rewritten and CPU milliseconds; of a budget infinite where it has none."""

    bytes: float = 0
    cpu_ms: float = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(bytes=self.bytes + other.bytes, cpu_ms=self.cpu_ms + other.cpu_ms)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(bytes=self.bytes - other.bytes, cpu_ms=self.cpu_ms - other.cpu_ms)

    def fits(self, room: "Amount") -> bool:
        """Whether there is room for it."""
        return self.bytes <= room.bytes and self.cpu_ms <= room.cpu_ms

    def least(self, other: "Amount") -> "Amount":
        """The smaller of each."""
        return Amount(bytes=min(self.bytes, other.bytes), cpu_ms=min(self.cpu_ms, other.cpu_ms))


NOTHING, UNLIMITED = Amount(), Amount(bytes=math.inf, cpu_ms=math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What may be used in any 60 minutes and in any 24 hours."""

    hour: Amount = UNLIMITED
    day: Amount = UNLIMITED

    @classmethod
    def of(cls, hour_bytes: int, day_bytes: int, cpu_hours_per_hour: float, cpu_hours_per_day: float) -> "Budget":
        """A budget from settings, in which 0 stands for no budget."""
        return cls(
            hour=Amount(bytes=hour_bytes or math.inf, cpu_ms=cpu_hours_per_hour * _HOUR_MS or math.inf),
            day=Amount(bytes=day_bytes or math.inf, cpu_ms=cpu_hours_per_day * _HOUR_MS or math.inf),
        )

    @property
    def is_set(self) -> bool:
        """Whether anything is limited."""
        return self != Budget()

    @property
    def whole(self) -> Amount:
        """What the largest plan may be."""
        return self.hour.least(self.day)

    def left(self, used: "Used") -> Amount:
        """What a plan may take now; negative where more was used than predicted."""
        return (self.hour - used.hour).least(self.day - used.day)


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What was charged in the last 60 minutes and in the last 24 hours."""

    hour: Amount = NOTHING
    day: Amount = NOTHING

    def __add__(self, other: "Used") -> "Used":
        return Used(hour=self.hour + other.hour, day=self.day + other.day)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLimits:
    """What the plans of one table are held to: the table's own budget, and when they may start."""

    budget: Budget = field(default_factory=Budget)
    hours: Hours = field(default_factory=Hours)

    @classmethod
    def of(cls, care: Care) -> "TableLimits":
        """The limits that a policy sets."""
        return cls(
            budget=Budget.of(
                care.budget_bytes_per_hour,
                care.budget_bytes_per_day,
                care.budget_cpu_hours_per_hour,
                care.budget_cpu_hours_per_day,
            ),
            hours=Hours.parse(care.run_windows, care.run_time_zone),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A plan that waits, with what it is predicted to take."""

    plan_id: str
    table: str
    cost: Amount


def pick(queue: Iterable[Waiting], left: Amount, left_of: Callable[[str], Amount]) -> Iterator[Waiting]:
    """Those of ``queue``, which is in the order of starting, that may start within what is ``left`` in all and of each
    table's budget.

    Each of them has to fit its budgets as such: larger ones would hold up all others for ever.
    """
    total, of_table = NOTHING, dict[str, Amount]()
    for plan in queue:
        total += plan.cost
        if not total.fits(left):
            return  # neither does whatever comes after it
        own = of_table[plan.table] = of_table.get(plan.table, NOTHING) + plan.cost
        if own.fits(left_of(plan.table)):
            yield plan


def keep_back(queue: Iterable[Waiting], left: Amount, left_of: Callable[[str], Amount]) -> dict[str, Waiting]:
    """Plans of ``queue`` that the budget of one table keeps back, each with the plan that waits for it.

    That is the plan itself where it is its own table's. Else it is the first plan before it whose table's budget is
    used up: without the plans that are so it would start, within what is ``left`` in all.
    """
    found, of_table = dict[str, Waiting](), dict[str, Amount]()
    total, startable, first = NOTHING, NOTHING, None
    for plan in queue:
        total += plan.cost
        own = of_table[plan.table] = of_table.get(plan.table, NOTHING) + plan.cost
        if not own.fits(left_of(plan.table)):
            first = first or plan
            found[plan.plan_id] = plan
            continue
        startable += plan.cost
        if first is not None and startable.fits(left) and not total.fits(left):
            found[plan.plan_id] = first
    return found


def within(policy: Sizing, budgets: Iterable[Budget], rates: Rates) -> Sizing:
    """``policy`` with plans, and groups, that fit each of ``budgets`` as such."""
    most = most_bytes(budgets, rates)
    if most >= policy.max_bytes_per_plan:
        return policy
    values = {knob.name: getattr(policy, knob.name) for knob in fields(Sizing)}
    bounds = {name: max(1, int(min(values[name], most))) for name in ("max_bytes_per_group", "max_bytes_per_plan")}
    return Sizing(**{**values, **bounds})


def most_bytes(budgets: Iterable[Budget], rates: Rates) -> float:
    """Bytes of the largest plan that fits each of ``budgets`` as such."""
    whole = UNLIMITED
    for budget in budgets:
        whole = whole.least(budget.whole)
    by_cpu = math.inf if math.isinf(whole.cpu_ms) else rates.most_bytes(whole.cpu_ms / 1000)
    return min(whole.bytes, by_cpu)
