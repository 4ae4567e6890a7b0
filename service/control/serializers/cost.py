# SPDX-License-Identifier: Apache-2.0
"""A plan's predicted costs and savings beside the actual ones: as a document, and in words."""

import math
from collections.abc import Iterable, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from service.former_names import both_names
from service.text import format_percent, format_size, plural

if TYPE_CHECKING:
    from service.control.store import BlockedPlan, PlanView, Store, WorkBudget

#: figures that are predicted for a plan and known once it is completed
PREDICTED_FIELDS = ("cpu_seconds", "bytes", "files_saved")


def plan_cost(plan: "PlanView") -> dict[str, Any]:
    """Return the predicted and the actual cost of a plan, and the errors of the prediction.

    ``predicted`` is None for a plan of a release without predictions, ``actual`` is None until the plan is completed.
    ``errors`` are shares of the actual figures, and empty until both costs are known.
    """
    stored = plan.estimate.get("worth")
    predicted = None if stored is None else both_names("plan.cost_benefit.predicted", stored)
    actual = None
    if plan.used_cpu_seconds is not None:
        actual = {
            "cpu_seconds": plan.used_cpu_seconds,
            "cpu_measured": plan.cpu_measured,
            "bytes": plan.bytes_after,
            "files_saved": plan.files_before - plan.files_after,
        }
        if predicted is not None and predicted["cost"] is not None:
            more = (plan.used_cpu_seconds - predicted["cpu_seconds"]) / 3600 * predicted["cpu_hour"]
            actual["cost"] = predicted["cost"] + more
    errors = {}
    if predicted is not None and actual is not None:
        errors = {name: prediction_error(predicted[name], actual[name]) for name in PREDICTED_FIELDS}
    return both_names("plan.cost_benefit", {"predicted": predicted, "actual": actual, "errors": errors})


def describe_hold(held: "BlockedPlan") -> str:
    """Return the reason for which a plan waits, other than for a free executor."""
    budget_owner = (
        f"of {held.table} (budget_bytes_per_…, budget_cpu_hours_per_…)"
        if held.is_table_budget
        else "of all tables ([work])"
    )
    if held.kind == "exceeds_budget":
        return f"never starts, being larger than the whole budget {budget_owner}: raise the budget or cancel the plan"
    if held.kind == "window":
        until = "" if held.until is None else f", the next at {held.until.isoformat(timespec='minutes')}"
        return f"waits for the hours of {held.table} (run_windows){until}"
    until = "" if held.until is None else f"; some of it is free again at {held.until.isoformat(timespec='seconds')}"
    if held.blocker is None:
        return f"waits for the budget {budget_owner}{until}"
    plan_id, table = held.blocker
    return (
        f"waits for the budget {budget_owner} behind plan {plan_id}, which waits for the budget of {table} "
        "(budget_bytes_per_…, "
        f"budget_cpu_hours_per_…): raise the budget of {table} or cancel plan {plan_id}{until}"
    )


def prediction_errors(plans: "Iterable[PlanView]") -> dict[str, float]:
    """Return the median error of each predicted figure over completed ``plans``, without figures that no plan has."""
    found = [plan_cost(plan)["errors"] for plan in plans]
    known = {name: [errors[name] for errors in found if errors.get(name) is not None] for name in PREDICTED_FIELDS}
    return {name: median(errors) for name, errors in known.items() if errors}


def prediction_error(predicted: float, actual: float) -> float | None:
    """Return the error of a prediction as a share of the actual figure; None if the actual figure is 0."""
    return abs(predicted - actual) / actual if actual > 0 else None


def describe_cost(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the cost and benefit of a plan as pairs of a label and a line."""
    from lake.units import format_duration, format_elapsed

    predicted, actual = document["predicted"], document["actual"]
    lines = []
    if predicted is not None:
        source = (
            f"from {plural(predicted['rate_samples'], 'earlier plan')}"
            if predicted["rate_samples"]
            else "default estimate"
        )
        lines.append(
            (
                "predicted",
                f"{format_elapsed(predicted['cpu_seconds'])} of CPU, {format_size(predicted['bytes'])} rewritten, "
                f"{_files_text(predicted)}{_format_cost(predicted, 'cost', '; ')} ({source})",
            )
        )
        days = predicted["payback_days"]
        back = "never" if days is None else f"after {format_duration(days * 86_400)}"
        lines.append(
            (
                "saves",
                f"{predicted['opens_saved_per_day']:,.0f} opens, "
                f"{format_size(round(predicted['bytes_saved_per_day']))} "
                f"and {format_elapsed(predicted['cpu_seconds_saved_per_day'])} of CPU a day"
                f"{_format_cost(predicted, 'savings_per_day', ', ')}; pays back {back}{_reads_text(predicted)}",
            )
        )
    if actual is not None:
        notes = [] if actual["cpu_measured"] else ["estimated from the duration of its steps"]
        if document["errors"].get("cpu_seconds") is not None:
            notes.append(_describe_error(predicted["cpu_seconds"], actual["cpu_seconds"]))
        off = f" ({', '.join(notes)})" if notes else ""
        lines.append(
            (
                "actual",
                f"{format_elapsed(actual['cpu_seconds'])} of CPU{off}, {format_size(actual['bytes'])} written, "
                f"{_files_text(actual)}{_format_cost(actual, 'cost', '; ', predicted)}",
            )
        )
    return lines


def _describe_error(predicted: float, actual: float) -> str:
    """Return how far ``actual``, above 0, is from ``predicted``: as a share, or from two times on as a ratio."""
    if predicted >= 2 * actual:
        return f"predicted {predicted / actual:.0f} × as much"
    if actual >= 2 * predicted > 0:
        return f"{actual / predicted:.0f} × as much as predicted"
    return f"off by {format_percent(abs(predicted - actual) / actual)}"


def _reads_text(predicted: Mapping[str, Any]) -> str:
    """Return the rate of reads behind the savings; '' for a plan of a release that did not store it."""
    rate = predicted.get("reads_per_day")
    if rate is None:
        return ""
    return f" ({rate:g} reads a day, {'observed' if predicted['are_reads_observed'] else 'configured'})"


def _files_text(entry: Mapping[str, Any]) -> str:
    """Return ``12 files fewer``; ``2 files more`` for a plan that splits files."""
    saved = entry["files_saved"]
    return f"{plural(abs(saved), 'file')} {'more' if saved < 0 else 'fewer'}"


def _format_cost(document: Mapping[str, Any], name: str, before: str, named: Mapping[str, Any] | None = None) -> str:
    """Return an amount with its currency; '' if no prices are set."""
    amount = document.get(name)
    return "" if amount is None else f"{before}{amount:.3g} {(named or document)['currency']}".rstrip()


def held_reason(store: "Store", plan: "PlanView") -> str | None:
    """Return the reason for which a requested plan waits, other than for a free executor; None if there is none."""
    if plan.state != "requested":
        return None
    held = next((held for held in store.work_budget().blocked_plans if held.plan_id == plan.plan_id), None)
    return None if held is None else describe_hold(held)


def work_budget_document(work: "WorkBudget") -> dict[str, Any]:
    """Return the budget of all tables, the used and remaining parts in 60 minutes and 24 hours, and plans held back.

    A figure without a budget is None.
    """
    spans = (("hour", work.budget.hour, work.usage.hour), ("day", work.budget.day, work.usage.day))
    document = {
        "budget": {
            f"{name}_per_{span}": both_names(
                "status.work.budget{}",
                {
                    "budget": _finite(getattr(most, field) / unit),
                    "used": getattr(used, field) / unit,
                    "remaining": _finite(max(0, getattr(most, field) - getattr(used, field)) / unit),
                },
            )
            for span, most, used in spans
            for name, field, unit in (("bytes", "bytes", 1), ("cpu_seconds", "cpu_ms", 1000))
            if work.budget.is_set
        },
        "waiting_plans": [_waiting_plan(held) for held in work.blocked_plans],
    }
    return both_names("status.work", document)


def _waiting_plan(held: "BlockedPlan") -> dict[str, Any]:
    blocker = held.blocker[0] if held.blocker else None
    fields = {"plan_id": held.plan_id, "table": held.table, "kind": held.kind, "until": held.until}
    reason = describe_hold(held)
    return both_names("status.work.waiting_plans[]", fields | {"behind_plan_id": blocker, "reason": reason})


def describe_held_work(work: Mapping[str, Any]) -> list[str]:
    """Return a line for each reason why plans are held back: the number of plans, and the first of them."""
    lines = []
    for kind, is_behind_plan in (("exceeds_budget", False), ("window", False), ("budget", True), ("budget", False)):
        held = [
            plan
            for plan in work["waiting_plans"]
            if plan["kind"] == kind and (plan["behind_plan_id"] is not None) is is_behind_plan
        ]
        if held:
            first = f"{plural(len(held), 'plan')} held back; plan {held[0]['plan_id']}"
            lines.append(f"{first} {held[0]['reason']}.")
    return lines


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
