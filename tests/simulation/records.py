# SPDX-License-Identifier: Apache-2.0
"""The rows of the database in memory, and its calls."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lake.model import Concurrency
from lake.plan import Plan, PlanState, StagedWork, SupersededVersion
from lake.plan_store import SupersededRecord


def transaction(function: Callable[..., Any]) -> Callable[..., Any]:
    """A call from a process to the database, with the faults of the run."""
    name = function.__name__

    @functools.wraps(function)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.world.before(name)
        result = function(self, *args, **kwargs)
        self.world.after(name)
        return result

    call.site = name  # type: ignore[attr-defined]
    return call


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRow:
    """One row of ``staged``."""

    staged: StagedWork
    epoch: int
    at: float
    cleared: bool = False


@dataclass(slots=True, kw_only=True)
class Row:
    """One row of ``plan``."""

    plan: Plan
    state: PlanState = PlanState.REQUESTED
    epoch: int = 0
    attempts: int = 0
    executor: str = ""
    lease_until: float = 0.0
    #: for this long after its lease, only a process that knows the executor to be dead takes the plan over
    grace: float = 0.0
    not_before: float = 0.0
    #: its position among the waiting plans; to executors the order is arbitrary
    rank: float = 0.0
    cancel_asked: bool = False
    staged: tuple[StagedRow, ...] = ()
    instant: str | None = None


@dataclass(slots=True, kw_only=True)
class SupersededRow:
    """One row of ``superseded``."""

    row_id: int
    plan_id: str
    table: str
    version: SupersededVersion
    at: float
    deleted: bool = False
    #: it as the cleaner sees it
    due: SupersededRecord | None = None


@dataclass(slots=True, kw_only=True)
class TableRow:
    """One row of ``table_state``: what the registration says today."""

    concurrency: Concurrency
    paused: bool = False
    halted: str | None = None
    quarantined: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The policy settings that the store uses."""

    lease: float = 20.0
    backoff: float = 4.0
    backoff_max: float = 30.0
    max_attempts: int = 5
    max_inflight_per_table: int = 1
    #: how long a keeper that gives no sign of life holds partitions, and how long what was staged is looked for
    kept_for: float = 70.0
    watched_for: float = 130.0
