# SPDX-License-Identifier: Apache-2.0
"""The objectives of a table's layout, and their evaluation by a scan."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from lake.units import format_duration


class Objective(StrEnum):
    """An objective of a table's layout."""

    SMALL_FILE_SHARE = "small_file_share"  #: reducible small files ÷ files
    FILES_PER_GIB = "files_per_gib"  #: files per GiB, without residual files
    OLDEST_SMALL_FILE = "oldest_small_file"  #: seconds since the oldest reducible small file was written


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveEvaluation:
    """The evaluation of one objective by a scan: its value, and the largest allowed value, ``bound``.

    The objective is to be met for the share ``goal`` of the ``window`` that ends now. The evaluation is valid until the
    next scan, but for ``valid_for`` at most; afterwards the state is unknown.
    """

    objective: Objective
    value: float
    bound: float
    goal: float
    window: timedelta
    valid_for: timedelta

    @property
    def is_met(self) -> bool:
        """True if the objective is met."""
        return self.value <= self.bound

    @property
    def text(self) -> str:
        """The text for people: ``small_file_share is 61 % (at most 5 %)``."""
        return describe_objective(self.objective, self.value, self.bound)


def describe_objective(objective: Objective, value: float, bound: float) -> str:
    """Return the text of an objective's value and bound."""
    found, most = format_objective_value(objective, value), format_objective_value(objective, bound)
    return f"{objective} is {found} (at most {most})"


def format_objective_value(objective: Objective, value: float) -> str:
    """Return the text of an objective's value."""
    if objective is Objective.SMALL_FILE_SHARE:
        return f"{100 * value:.3g} %"
    if objective is Objective.OLDEST_SMALL_FILE:
        return format_duration(value)
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
