# SPDX-License-Identifier: Apache-2.0
"""What tables are held to, and how they keep to it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from planner.slo.burn_rate import BurnPace, burn_pace
from planner.slo.model import Objective, describe_objective

_RECORDING_DELAY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableObjective:
    """An objective of a table as its last good scan judged it, ``judged_at``; it is met, or missed, since ``since``.

    ``value`` may be ``bound`` at most, for a share of the time, ``goal``, within ``window``. What the scan found stands
    for ``holds`` if no other one follows. ``met_seconds`` and ``missed_seconds`` are totals since the objective was
    set. ``share_met`` is that of the window's time of which anything is known, None where nothing is, ``budget_left``
    what is left of the time in which it may be missed, below 0 where that is overdrawn, and ``burn`` how many times as
    fast as it may that is spent, by the windows of ``planner.slo.burn_rate``.
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
        """How its budget burns; None where it lasts."""
        return burn_pace(self.burn)

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left of its budget."""
        return self.budget_left <= 0

    def is_valid(self, now: datetime) -> bool:
        """Whether it still stands ``now``; not of a table that nobody scans any more."""
        return now - self.judged_at <= self.valid_for

    @property
    def text(self) -> str:
        """Its value and its bound in words."""
        return describe_objective(self.objective, self.value, self.bound)

    def met_and_missed_seconds(self, now: datetime) -> tuple[float, float]:
        """The totals as they were a minute before ``now``, be it that no scan has counted the time until then.

        A scan that is being recorded at ``now`` has looked at the clock already; so late, it never counts less than was
        told before.
        """
        more = min(max(now - _RECORDING_DELAY - self.judged_at, timedelta()), self.valid_for).total_seconds()
        return self.met_seconds + (more if self.met else 0), self.missed_seconds + (0 if self.met else more)
