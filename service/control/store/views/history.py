# SPDX-License-Identifier: Apache-2.0
"""The history of plans for charts: attempts by executor, and cost and savings of completed plans."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSaving:
    """A completed plan: its CPU time, its files removed, and the CPU time that its readers save per day.

    The CPU time saved is as predicted when the plan was made; 0 for plans without a prediction.
    """

    plan_id: str
    at: datetime
    cpu_seconds: float
    files_removed: int
    cpu_seconds_saved_per_day: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAttempt:
    """One attempt at a plan on an executor, from its claim to its end; ``ended_at`` is None while it runs.

    ``outcome`` is the state of the plan after the attempt: ``requested`` if the attempt failed and the plan is retried,
    ``inflight`` if the attempt still runs or another executor took the plan over.
    """

    plan_id: str
    table: str
    kind: str
    executor: str
    epoch: int
    began_at: datetime
    ended_at: datetime | None
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptHistory:
    """The attempts that ran between ``since`` and ``until``, in the order of their begin.

    ``since`` is later than requested if there are too many attempts.
    """

    since: datetime
    until: datetime
    attempts: Sequence[PlanAttempt]
