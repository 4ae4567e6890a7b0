# SPDX-License-Identifier: Apache-2.0
"""Each property of budgets and of the order of plans is broken by the mistakes that it is there for."""

import random
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import test_budgets
import test_priority
from hypothesis import Phase, settings
from test_budgets import (
    test_budgets_are_never_exceeded as never_exceeded,
)
from test_budgets import (
    test_identical_input_picks_identical_plans as identical_plans,
)
from test_budgets import (
    test_in_no_hour_and_no_day_more_is_charged_than_the_budget as no_window_is_exceeded,
)
from test_budgets import (
    test_no_table_starves_under_a_steady_arrival_of_better_plans as no_table_starves,
)
from test_budgets import (
    test_raising_any_budget_starts_all_that_started_before as more_is_never_worth_less,
)
from test_priority import (
    test_no_plan_is_overtaken_by_one_made_later_than_forty_times_the_ageing as overtaken_for_so_long_only,
)

from planner.budgets import ZERO, Budget, BudgetUsage, QueuedPlan, WorkAmount, startable_plans
from planner.priority import priority_offset

Rooms = Callable[[str], WorkAmount]
#: the first example that breaks a property is not made smaller
MANY = settings(max_examples=2_000, phases=[Phase.generate], database=None, derandomize=True, deadline=None)


def filling_gaps(queue: Iterable[QueuedPlan], left: WorkAmount, left_of: Rooms) -> Iterator[QueuedPlan]:
    """Lets a smaller plan pass one that does not fit."""
    total, of_table = ZERO, dict[str, WorkAmount]()
    for plan in queue:
        own = of_table.get(plan.table, ZERO) + plan.cost
        if (total + plan.cost).is_within(left) and own.is_within(left_of(plan.table)):
            total += plan.cost
            of_table[plan.table] = own
            yield plan


def smallest_first(queue: Iterable[QueuedPlan], left: WorkAmount, left_of: Rooms) -> Iterator[QueuedPlan]:
    """Starts as many as fit."""
    return filling_gaps(sorted(queue, key=lambda plan: plan.cost.bytes), left, left_of)


def each_by_itself(queue: Iterable[QueuedPlan], left: WorkAmount, left_of: Rooms) -> Iterator[QueuedPlan]:
    """Forgets what the plans before it take."""
    return (plan for plan in queue if plan.cost.is_within(left) and plan.cost.is_within(left_of(plan.table)))


def without_cpu(queue: Iterable[QueuedPlan], left: WorkAmount, left_of: Rooms) -> Iterator[QueuedPlan]:
    """Counts bytes only."""
    endless = WorkAmount(bytes=0, cpu_ms=float("inf"))
    return startable_plans(queue, left + endless, lambda table: left_of(table) + endless)


def without_tables(queue: Iterable[QueuedPlan], left: WorkAmount, left_of: Rooms) -> Iterator[QueuedPlan]:
    """Holds plans to the budget of all tables only."""
    return startable_plans(queue, left, lambda _: left)


def in_any_order(queue: Iterable[QueuedPlan], left: WorkAmount, left_of: Rooms) -> Iterator[QueuedPlan]:
    """Takes plans as they come out of a set."""
    plans = list(queue)
    return startable_plans(random.sample(plans, len(plans)), left, left_of)


def of_an_hour_only(budget: Budget, used: BudgetUsage) -> WorkAmount:
    """Forgets the day."""
    return budget.hour - used.hour


def without_bounds(per_cost: float, weight: float, ageing: timedelta) -> timedelta:
    """Counts worth as it is, so that a plan may be overtaken for ever."""
    return timedelta(days=min(per_cost * weight, 1e6))


def beyond_the_bound(per_cost: float, weight: float, ageing: timedelta) -> timedelta:
    """Three times as much of a start as is promised."""
    return 3 * priority_offset(per_cost, weight, ageing)


@pytest.mark.parametrize(
    ("property_", "where", "name", "defect"),
    [
        (never_exceeded, test_budgets, "startable_plans", each_by_itself),
        (never_exceeded, test_budgets, "startable_plans", without_cpu),
        (never_exceeded, test_budgets, "startable_plans", without_tables),
        (more_is_never_worth_less, test_budgets, "startable_plans", filling_gaps),
        (more_is_never_worth_less, test_budgets, "startable_plans", smallest_first),
        (identical_plans, test_budgets, "startable_plans", in_any_order),
        (no_window_is_exceeded, Budget, "remaining", of_an_hour_only),
        (no_table_starves, test_budgets, "priority_offset", without_bounds),
        (overtaken_for_so_long_only, test_priority, "priority_offset", beyond_the_bound),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_mistake_is_found(
    monkeypatch: pytest.MonkeyPatch, property_: Callable[[], None], where: Any, name: str, defect: Callable[..., Any]
):
    monkeypatch.setattr(where, name, defect)
    monkeypatch.setattr(property_, "_hypothesis_internal_use_settings", MANY)
    with pytest.raises(AssertionError):
        property_()
