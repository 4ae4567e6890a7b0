# SPDX-License-Identifier: Apache-2.0
"""The document of a replay: what each policy would have left of a table's history, and which one to take."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lake.history import Change

if TYPE_CHECKING:
    from lake.history import History
    from planner.cost import Rates
    from planner.replay.comparison import Comparison, Outcome
    from planner.replay.loop import Day
    from service.config.tables import ConfiguredTable


def replay(table: "ConfiguredTable", history: "History", comparison: "Comparison", rates: "Rates") -> dict[str, Any]:
    """Everything about a replay of ``table``; ``toml`` is what to paste, empty where nothing is to be changed."""
    recommended = next(one for one in comparison.outcomes if one.tried.name == comparison.recommended)
    return {
        "table": table.name,
        "mode": table.mode,
        "since": history.since,
        "until": history.until,
        "days": comparison.days,
        "commits": sum(commit.change is Change.WRITE for commit in history.commits),
        "rewrites": sum(commit.change is Change.REWRITE for commit in history.commits),
        "notes": list(history.notes),
        "small_file_limit_bytes": table.policy.small_file_limit_bytes,
        "rates": rates,
        "policies": [_policy(one) for one in comparison.outcomes],
        "recommended": {
            "name": comparison.recommended,
            "reason": comparison.reason,
            "toml": _toml(table.name, recommended),
        },
    }


def _policy(one: "Outcome") -> dict[str, Any]:
    work, end = one.replayed.work, one.replayed.end
    return {
        "name": one.tried.name,
        "settings": dict(one.tried.settings),
        "best": one.best,
        "files": one.files,
        "small_files": one.small_files,
        "small_share": one.small_share,
        "end": {"files": end.files, "small_files": end.small_files, "bytes": end.bytes},
        "plans": work.plans,
        "input_files": work.input_files,
        "output_files": work.output_files,
        "rewritten_bytes": work.rewritten_bytes,
        "rewritten_bytes_a_day": one.rewritten_bytes_a_day,
        "writer_bytes": work.writer_bytes,
        "write_amplification": one.write_amplification,
        "cpu_seconds_a_day": one.cpu_seconds_a_day,
        "by_day": [_day(day) for day in one.replayed.days],
    }


def _day(day: "Day") -> Mapping[str, Any]:
    from planner.replay.script import moment_of

    return {
        "at": moment_of(day.at_us),
        "files": day.files,
        "small_files": day.small_files,
        "bytes": day.bytes,
        "plans": day.plans,
        "rewritten_bytes": day.rewritten_bytes,
    }


def _toml(table: str, one: "Outcome") -> str:
    """What to put into lakefold.toml for a policy that is not as configured."""
    if not one.tried.settings:
        return ""
    lines = ["[[tables]]", f"match = {_quoted(table)}"]
    return "\n".join([*lines, *(f"{key} = {_quoted(value)}" for key, value in one.tried.settings.items())])


def _quoted(value: str) -> str:
    """A string of TOML; a number stays one."""
    if value.isdecimal() or value in ("true", "false"):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
