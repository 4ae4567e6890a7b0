# SPDX-License-Identifier: Apache-2.0
"""What work is held to: budgets and hours, what was used of them, and what waits for it."""

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal, Protocol

from planner.budgets import Budget, BudgetUsage, TableLimits
from service.control.store.table_scope import TableScope


class WorkLimits(Protocol):
    """What claims are held to."""

    @property
    def is_limited(self) -> bool:
        """Whether anything is limited at all."""

    @property
    def budget(self) -> Budget:
        """The budget of all tables together."""

    def for_table(self, table: str) -> TableLimits:
        """The limits of the table of this name."""


@dataclass(frozen=True, slots=True)
class NoLimits:
    """Limits where none are set."""

    is_limited: bool = False
    budget: Budget = field(default_factory=Budget)

    def for_table(self, table: str) -> TableLimits:
        """None either."""
        return TableLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedPlan:
    """A plan that an executor could take but for a budget, its table's ``own`` or that of all, or its table's hours.

    One that is larger than a whole budget ``never`` starts. ``until`` is when that may be over, or when the next charge
    is no longer counted; None where nobody knows. ``behind`` is the plan, and its table, before it that waits for the
    budget of that table, where this one would start but for that.
    """

    plan_id: str
    table: str
    kind: Literal["budget", "window", "never"]
    is_table_budget: bool
    until: datetime | None
    blocker: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkBudget:
    """The budget of all tables, what was used of it, and the plans that are held."""

    budget: Budget = field(default_factory=Budget)
    usage: BudgetUsage = field(default_factory=BudgetUsage)
    blocked_plans: tuple[BlockedPlan, ...] = ()

    def limited_to(self, table_scope: TableScope) -> "WorkBudget":
        """The part of it for somebody who sees only the tables within ``reach``: without the sums over all tables."""
        if table_scope.is_unrestricted:
            return self
        held = tuple(
            replace(plan, blocker=plan.blocker if plan.blocker and table_scope.has_table(plan.blocker[1]) else None)
            for plan in self.blocked_plans
            if table_scope.has_table(plan.table)
        )
        return replace(self, budget=Budget(), usage=BudgetUsage(), blocked_plans=held)
