# SPDX-License-Identifier: Apache-2.0
"""The documents of tables' objectives, and their texts."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from service.former_names import both_names
from service.modes import PLANNED_MODES
from service.text import format_percent, parse_timestamp

if TYPE_CHECKING:
    from service.control.store import Store, TableObjective


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
        "error_budget_seconds": objective.error_budget_seconds,
        "missed_seconds_in_window": objective.missed_seconds_in_window,
        "burn_rates": dict(objective.burn),
        "burn_pace": objective.pace,
        "met_seconds": objective.met_seconds,
        "missed_seconds": objective.missed_seconds,
    }
    return both_names("objective", document)


def load_objectives(store: "Store", table: str) -> list[dict[str, Any]]:
    """Return the objectives of ``table``, each with the ``history`` of its error budget in its window, oldest first."""
    histories = store.burn_history(table)
    return [
        objective_document(objective)
        | {
            "history": [
                {
                    "at": datetime.fromtimestamp(point.at_ms / 1000, UTC),
                    "budget_left": point.budget_left,
                    "missed_share": point.missed_share,
                }
                for point in histories.get(objective.objective, ())
            ]
        }
        for objective in store.objectives([table]).get(table, ())
    ]


def budget_problems(objectives: "Sequence[TableObjective]", mode: str, now: datetime) -> str | None:
    """Return a text about the error budgets of a table in ``mode`` that burn or are used up; None if there are none.

    A table that is only observed, or that is no longer scanned, has none.
    """
    words = [
        f"{found.text}, {describe_error_budget(found.budget_left, found.pace)}"
        for found in (objectives if mode in PLANNED_MODES else ())
        if found.is_valid(now) and (found.pace is not None or (found.exhausted and not found.met))
    ]
    return "; ".join(words) or None


def describe_error_budget(left: float, pace: str | None) -> str:
    """Return the rest of an error budget and its burn rate as text."""
    spent = "its error budget is used up" if left <= 0 else f"{format_percent(left)} of its error budget is left"
    return spent + {"fast": " and burns fast", "slow": " and burns slowly", None: ""}[pace if left > 0 else None]


def describe_objective(objective: Mapping[str, Any]) -> str:
    """Return one line about an objective's document: whether it is met, since when, and the rest of its budget.

    All times end with the last good scan. The missed time and the budget are those of the same window, so that they
    agree.
    """
    from lake.units import format_duration

    lasted = parse_timestamp(objective["judged_at"]) - parse_timestamp(objective["since"])
    since = f"for {format_duration(lasted)}" if lasted >= timedelta(seconds=1) else "at the last scan"
    window, missed, allowed = (
        format_duration(objective[name]) if objective[name] else "0 s"
        for name in ("window_seconds", "missed_seconds_in_window", "error_budget_seconds")
    )
    return (
        f"{objective['text']}: {'met' if objective['met'] else 'missed'} {since}; in the last {window} missed for "
        f"{missed} of {allowed} allowed (goal {100 * objective['goal']:.6g} %); "
        f"{describe_error_budget(objective['budget_left'], objective['burn_pace'])}"
    )
