# SPDX-License-Identifier: Apache-2.0
"""The document of a replay: the outcome of each policy over a table's history, and the recommended policy."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lake.history import ChangeKind
from service.control.serializers.advice import short_history_notes
from service.former_names import both_names

if TYPE_CHECKING:
    from lake.history import TableHistory
    from planner.rates import Rates
    from planner.replay.comparison import PolicyComparison, PolicyOutcome
    from planner.replay.policy_replay import DailyTotals
    from service.control.config.table_settings import ConfiguredTable


def replay(
    table: "ConfiguredTable", history: "TableHistory", comparison: "PolicyComparison", rates: "Rates"
) -> dict[str, Any]:
    """Return everything about a replay of ``table``; its ``toml`` is the text to paste, '' if nothing is to change."""
    recommended = next(one for one in comparison.outcomes if one.variant.name == comparison.recommended)
    return {
        "table": table.name,
        "mode": table.mode,
        "since": history.since,
        "until": history.until,
        "days": comparison.days,
        "commits": sum(commit.change is ChangeKind.WRITE for commit in history.commits),
        "rewrites": sum(commit.change is ChangeKind.REWRITE for commit in history.commits),
        "notes": [*history.notes, *short_history_notes(comparison.days)],
        "small_file_limit_bytes": table.policy.small_file_limit_bytes,
        "rates": rates,
        "policies": [_policy_document(one, comparison) for one in comparison.outcomes],
        "recommended": {
            "name": comparison.recommended,
            "reason": comparison.reason,
            "toml": _recommended_toml(table.name, recommended),
        },
    }


def _policy_document(outcome: "PolicyOutcome", comparison: "PolicyComparison") -> dict[str, Any]:
    """Return a policy's outcome; figures per day are None if the history is too short."""
    from planner.replay.comparison import MIN_RATE_DAYS

    work, end = outcome.result.work, outcome.result.final_totals
    has_rates = comparison.days >= MIN_RATE_DAYS
    document = {
        "name": outcome.variant.name,
        "settings": dict(outcome.variant.settings),
        "is_pareto_optimal": outcome.is_pareto_optimal,
        "files": outcome.files,
        "small_files": outcome.small_files,
        "small_share": outcome.small_share,
        "final": {"files": end.files, "small_files": end.small_files, "bytes": end.bytes},
        "plans": work.plans,
        "input_files": work.input_files,
        "output_files": work.output_files,
        "rewritten_bytes": work.rewritten_bytes,
        "rewritten_bytes_per_day": outcome.rewritten_bytes_a_day if has_rates else None,
        "writer_bytes": work.writer_bytes,
        "write_amplification": outcome.write_amplification,
        "cpu_seconds": outcome.cpu_seconds_a_day * comparison.days,
        "cpu_seconds_per_day": outcome.cpu_seconds_a_day if has_rates else None,
        "by_day": [_day_document(day) for day in outcome.result.daily_totals],
    }
    return both_names("replay.policies[]", document)


def _day_document(day: "DailyTotals") -> Mapping[str, Any]:
    from planner.replay.events import from_microseconds

    return {
        "at": from_microseconds(day.at_us),
        "files": day.files,
        "small_files": day.small_files,
        "bytes": day.bytes,
        "plans": day.plans,
        "rewritten_bytes": day.rewritten_bytes,
    }


def _recommended_toml(table: str, outcome: "PolicyOutcome") -> str:
    """Return the lines for lakefold.toml if the policy differs from the configured one; else ''."""
    if not outcome.variant.settings:
        return ""
    lines = ["[[tables]]", f"match = {_toml_value(table)}"]
    return "\n".join([*lines, *(f"{key} = {_toml_value(value)}" for key, value in outcome.variant.settings.items())])


def _toml_value(value: str) -> str:
    """Return a TOML value: numbers and booleans as they are, any other text quoted."""
    if value.isdecimal() or value in ("true", "false"):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
