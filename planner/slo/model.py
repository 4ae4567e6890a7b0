# SPDX-License-Identifier: Apache-2.0
"""What a table's layout is held to, and what a scan says of it."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from lake.units import format_duration


class Objective(StrEnum):
    """What a layout may be held to."""

    SMALL_FILE_SHARE = "small_file_share"  #: reducible small files ÷ files
    FILES_PER_GIB = "files_per_gib"  #: of the files that are not residual
    OLDEST_SMALL_FILE = "oldest_small_file"  #: seconds since the oldest reducible small file was written


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveEvaluation:
    """What a scan says of one objective: its value, and the most that is allowed.

    It is to be met for a share of the time, ``goal``, within any ``window`` that ends now. What was found holds until
    the next scan, yet for ``holds`` at most: then nobody knows.
    """

    objective: Objective
    value: float
    bound: float
    goal: float
    window: timedelta
    valid_for: timedelta

    @property
    def is_met(self) -> bool:
        """Whether the table is as it should be."""
        return self.value <= self.bound

    @property
    def text(self) -> str:
        """For a person: ``small_file_share is 61 % (at most 5 %)``."""
        return describe_objective(self.objective, self.value, self.bound)


def describe_objective(objective: Objective, value: float, bound: float) -> str:
    """The value of an objective, and what it may be at most."""
    return f"{objective} is {format_objective_value(objective, value)} (at most {format_objective_value(objective, bound)})"


def format_objective_value(objective: Objective, value: float) -> str:
    """A value of an objective as a person reads it."""
    if objective is Objective.SMALL_FILE_SHARE:
        return f"{100 * value:.3g} %"
    if objective is Objective.OLDEST_SMALL_FILE:
        return format_duration(value)
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
