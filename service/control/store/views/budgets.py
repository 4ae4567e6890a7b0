# SPDX-License-Identifier: Apache-2.0
"""Limits of work: budgets and hours, their use, and the plans that wait for them."""

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal, Protocol

from planner.budgets import Budget, BudgetUsage, TableLimits
from service.control.store.table_scope import TableScope


class WorkLimits(Protocol):
    """The limits that a claim must respect."""

    @property
    def is_limited(self) -> bool:
        """True if any limit is set."""

    @property
    def budget(self) -> Budget:
        """The budget of all tables together."""

    def for_table(self, table: str) -> TableLimits:
        """The limits of the table of this name."""


@dataclass(frozen=True, slots=True)
class NoLimits:
    """Implements ``WorkLimits`` without any limit."""

    is_limited: bool = False
    budget: Budget = field(default_factory=Budget)

    def for_table(self, table: str) -> TableLimits:
        """Return no limits."""
        return TableLimits()


BlockReason = Literal["budget", "window", "exceeds_budget"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedPlan:
    """A plan that only waits for a budget or for its table's hours.

    The budget is the table's own if ``is_table_budget``, else that of all tables. A plan of kind ``exceeds_budget`` is
    larger than a whole budget. ``until`` is the time at which the wait may end or the next charge expires; None if it
    is unknown. ``blocker`` is the id and the table of an earlier plan that waits for its table's budget and that alone
    blocks this plan.
    """

    plan_id: str
    table: str
    kind: BlockReason
    is_table_budget: bool
    until: datetime | None
    blocker: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkBudget:
    """The budget of all tables, its usage, and the plans that wait for a budget or for their table's hours."""

    budget: Budget = field(default_factory=Budget)
    usage: BudgetUsage = field(default_factory=BudgetUsage)
    blocked_plans: tuple[BlockedPlan, ...] = ()

    def limited_to(self, table_scope: TableScope) -> "WorkBudget":
        """Return the plans of the tables in ``table_scope``, without budget and usage, which concern all tables."""
        if table_scope.is_unrestricted:
            return self
        held = tuple(
            replace(plan, blocker=plan.blocker if plan.blocker and table_scope.has_table(plan.blocker[1]) else None)
            for plan in self.blocked_plans
            if table_scope.has_table(plan.table)
        )
        return replace(self, budget=Budget(), usage=BudgetUsage(), blocked_plans=held)
