# SPDX-License-Identifier: Apache-2.0
"""Former names in commands, requests and JSON, accepted for one release beside the present names."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

#: values of ``sort`` for tables
FORMER_ORDERS: Mapping[str, str] = MappingProxyType(
    {
        "worst": "attention",
        "median": "median_bytes",
        "rewrite": "rewrite_bytes",
        "plan": "last_plan",
        "scanned": "last_scan",
        "budget": "error_budget",
    }
)
#: values of ``state`` for tables
FORMER_STATES: Mapping[str, str] = MappingProxyType({"missed": "objective_missed"})
#: values of ``lakefold tables resolve --take``, which is called ``--keep`` now
FORMER_LOCATIONS: Mapping[str, str] = MappingProxyType({"old": "previous", "new": "current"})
#: document → former field → present field; ``both_names`` adds the missing name of each pair to a document. The key of
#: a nested document is its path, in which ``[]`` is an item of a list and ``{}`` is a value of a mapping
FORMER_FIELDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "plan": {
            "adopted": "adopted_instant",
            "group_list": "group_details",
            "held": "wait_reason",
            "how_it_ended": "end_reason",
            "waits_since_nobody_runs_plans": "no_executor_reason",
            "worth": "cost_benefit",
        },
        "plan.options": {"receipt": "verification"},
        "plan.cost_benefit": {"happened": "actual"},
        "plan.cost_benefit.predicted": {
            "bytes_saved_a_day": "bytes_saved_per_day",
            "cpu_seconds_saved_a_day": "cpu_seconds_saved_per_day",
            "history": "rate_samples",
            "opens_saved_a_day": "opens_saved_per_day",
            "saved_a_day": "savings_per_day",
        },
        "bulk action": {"left": "skipped"},
        "status": {
            "halted": "halted_tables",
            "nobody_runs_plans": "no_executor_reason",
            "scheduler": "has_scheduler",
        },
        "status.attention[]": {
            "contested": "write_conflicts",
            "error_budgets": "error_budget_problems",
            "not_planned": "not_planned_reason",
            "overlap": "last_conflicting_commit",
            "overlaps": "conflicting_commits",
        },
        "status.work": {"held": "waiting_plans"},
        "status.work.waiting_plans[]": {"behind": "behind_plan_id", "why": "reason"},
        "status.work.budget{}": {"left": "remaining"},
        "decision": {"knob": "setting", "varies": "has_several_values"},
        "likely writer": {"warns": "has_warning"},
        "objective": {"bound": "limit", "burn": "burn_rates", "pace": "burn_pace"},
        "audit entry": {"door": "channel"},
        "replay.policies[]": {
            "best": "is_pareto_optimal",
            "cpu_seconds_a_day": "cpu_seconds_per_day",
            "end": "final",
            "rewritten_bytes_a_day": "rewritten_bytes_per_day",
        },
        "advice": {
            "change": "recommended_change",
            "cpu_hours_a_month": "cpu_hours_per_month",
            "rewritten_bytes_a_month": "rewritten_bytes_per_month",
            "tried": "trials",
        },
        "advice.trials[]": {"saves": "monthly_savings", "worth": "is_worthwhile"},
        "simulation.steps[].changes[]": {"of_files": "merged_files"},
        "relocation": {
            "aside": "archived_files",
            "held": "locked_partitions",
            "moved_back": "restored_partitions",
            "waiting": "waiting_partitions",
        },
        "clean": {"closed": "closed_entries", "held": "skip_reason", "kept": "retained"},
        "superseded file": {"due": "is_due", "kept": "retained_reason"},
        "config check": {
            "cautions": "warnings",
            "rules_without_table": "unmatched_rules",
            "unread_variables": "unknown_variables",
        },
        "init": {"not_looked_at": "unread_tables"},
        "init table": {"left_alone": "main_skip_reason", "refused": "error"},
        "notification test": {"answered": "response_status"},
    }
)


def both_names(document: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a document; a renamed field has both its present and its former name.

    ``document`` is a key of ``FORMER_FIELDS``. ``fields`` may have either name: an earlier release stored or sent only
    the former name.
    """
    found = dict(fields)
    for former, present in FORMER_FIELDS[document].items():
        if present in found:
            found[former] = found[present]
        elif former in found:
            found[present] = found[former]
    return found


def present_order(sort: str) -> str:
    """Return ``sort`` with the present name of its order; a leading ``-`` stays."""
    word = sort.removeprefix("-")
    return sort.replace(word, FORMER_ORDERS.get(word, word)) if word else sort
