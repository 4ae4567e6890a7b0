# SPDX-License-Identifier: Apache-2.0
"""Objectives of tables and their state."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from planner.slo.error_budget import BurnPace, burn_pace
from planner.slo.model import Objective, describe_objective

_RECORDING_DELAY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableObjective:
    """An objective of a table, as the last good scan evaluated it at ``judged_at``.

    ``since`` is the time since which the objective has been met, or missed. ``value`` must be at most ``bound`` during
    the share ``goal`` of the time in ``window``. The result is valid for ``valid_for`` if no other scan follows.
    ``met_seconds`` and ``missed_seconds`` are totals since the objective was set. ``share_met`` is the share of the
    known time in the window in which the objective was met; None if no time is known. ``budget_left`` is the remaining
    share of the error budget, below 0 if the budget is overspent. ``burn`` has the burn rates by the windows of
    ``planner.slo.error_budget``.
    """

    table: str
    objective: Objective
    met: bool
    value: float
    bound: float
    goal: float
    window: timedelta
    judged_at: datetime
    since: datetime
    valid_for: timedelta
    met_seconds: float
    missed_seconds: float
    share_met: float | None
    budget_left: float
    burn: Mapping[str, float]

    @property
    def pace(self) -> BurnPace | None:
        """The pace at which the error budget burns; None if the budget lasts."""
        return burn_pace(self.burn)

    @property
    def error_budget_seconds(self) -> float:
        """The time in the window in which the objective may be missed."""
        return self.window.total_seconds() * (1 - self.goal)

    @property
    def missed_seconds_in_window(self) -> float:
        """The time in the window in which the objective was missed."""
        return self.error_budget_seconds * (1 - self.budget_left)

    @property
    def exhausted(self) -> bool:
        """True if the error budget is used up."""
        return self.budget_left <= 0

    def is_valid(self, now: datetime) -> bool:
        """Return True if the result is still valid at ``now``. It expires if the table is no longer scanned."""
        return now - self.judged_at <= self.valid_for

    @property
    def text(self) -> str:
        """Value and bound as text."""
        return describe_objective(self.objective, self.value, self.bound)

    def met_and_missed_seconds(self, now: datetime) -> tuple[float, float]:
        """Return the totals as of one minute before ``now``, including time that no scan has counted yet.

        A scan that is being recorded at ``now`` may have read the clock up to a minute ago. With this delay, the totals
        of that scan are never lower than the totals that were shown before.
        """
        more = min(max(now - _RECORDING_DELAY - self.judged_at, timedelta()), self.valid_for).total_seconds()
        return self.met_seconds + (more if self.met else 0), self.missed_seconds + (0 if self.met else more)
