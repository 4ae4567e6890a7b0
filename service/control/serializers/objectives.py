# SPDX-License-Identifier: Apache-2.0
"""The documents of tables' objectives, and their texts."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from service.former_names import both_names
from service.modes import PLANNED_MODES
from service.text import format_percent, parse_timestamp

if TYPE_CHECKING:
    from service.control.store import TableObjective


def objective_document(objective: "TableObjective") -> dict[str, Any]:
    """Return an objective of a table with all its figures."""
    document = {
        "objective": str(objective.objective),
        "met": objective.met,
        "value": objective.value,
        "limit": objective.bound,
        "text": objective.text,
        "since": objective.since,
        "judged_at": objective.judged_at,
        "goal": objective.goal,
        "window_seconds": objective.window.total_seconds(),
        "share_met": objective.share_met,
        "budget_left": objective.budget_left,
        "burn_rates": dict(objective.burn),
        "burn_pace": objective.pace,
        "met_seconds": objective.met_seconds,
        "missed_seconds": objective.missed_seconds,
    }
    return both_names("objective", document)


def budget_problems(objectives: "Sequence[TableObjective]", mode: str, now: datetime) -> str | None:
    """Return in words which error budgets of a table in this ``mode`` burn or are used up; None if there are none.

    A table that is only observed, or that is no longer scanned, has none.
    """
    words = [
        f"{found.text}, {describe_error_budget(found.budget_left, found.pace)}"
        for found in (objectives if mode in PLANNED_MODES else ())
        if found.is_valid(now) and (found.pace is not None or (found.exhausted and not found.met))
    ]
    return "; ".join(words) or None


def describe_error_budget(left: float, pace: str | None) -> str:
    """Return the rest of an error budget and its burn rate in words."""
    spent = "its error budget is used up" if left <= 0 else f"{format_percent(left)} of its error budget is left"
    return spent + {"fast": " and burns fast", "slow": " and burns slowly", None: ""}[pace if left > 0 else None]


def describe_objective(objective: Mapping[str, Any], now: datetime) -> str:
    """Return one line about an objective's document: whether it is met, since when, and the rest of its budget."""
    from lake.units import format_duration

    lasted = format_duration(max(now - parse_timestamp(objective["since"]), timedelta(0)))
    window = format_duration(objective["window_seconds"])
    return (
        f"{objective['text']}: {'met' if objective['met'] else 'missed'} for {lasted}, "
        f"{format_percent(objective['share_met'])} of the last {window} (goal {100 * objective['goal']:.6g} %); "
        f"{describe_error_budget(objective['budget_left'], objective['burn_pace'])}"
    )
