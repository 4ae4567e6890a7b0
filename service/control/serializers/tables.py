# SPDX-License-Identifier: Apache-2.0
"""The documents of tables: in a listing and in full, and the result of a pause."""

import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from lake.units import format_duration, format_until
from service.control.serializers.objectives import objective_document
from service.text import format_age, plural

if TYPE_CHECKING:
    from service.control.config.table_settings import ConfiguredTable
    from service.control.store import ConflictCount, Pause, ScanRecord, TableObjective, TableScans, TableState

#: how long a missing table is mentioned; it may have been dropped on purpose
_GONE_MENTIONED = timedelta(days=7)


def pause_result(table: str | None, now: bool) -> dict[str, Any]:
    """Return whether a table, or with None the whole service, is paused now."""
    return {"table": table, "paused": now}


def pause_fields(pause: "Pause | None") -> dict[str, Any]:
    """Return the fields of a document that say whether its table, or the service, is paused, by whom, when and why."""
    return {
        "paused": pause is not None,
        "paused_by": pause and pause.by,
        "paused_at": pause and pause.at,
        "paused_reason": pause and pause.reason,
    }


def halting_plan_id(reason: str | None) -> str | None:
    """Return the id of the plan that halted a table; None if no plan did. The ``reason`` of the halt begins with it."""
    found = re.match(r"plan ([0-9a-f-]{36}): ", reason or "")
    return found[1] if found else None


def halted_partitions(state: "TableState | None") -> list[dict[str, Any]]:
    """Return the partitions of a table that are halted themselves, in the order of their halts."""
    halts = sorted(state.halted_partitions.items(), key=lambda item: (item[1].at, item[0])) if state else []
    return [{"partition": name, "halted_at": halt.at, "halted_reason": halt.reason} for name, halt in halts]


def commands_before_partition_resume(table: str, partition: str) -> list[str]:
    """Return the commands that show a halted partition's files, choose its files, and end the halt."""
    named = ["--partition", partition]
    return [
        shlex.join(["lakefold", "tables", "explain", table, *named]),
        shlex.join(["lakefold", "tables", "resolve", table, *named, "--keep"]) + " previous|current",
        shlex.join(["lakefold", "resume", table]),
    ]


def commands_before_resume(table: str, reason: str | None) -> list[str]:
    """Return the commands that show the cause of the halt of ``table``, and last the command that ends the halt."""
    plan = halting_plan_id(reason)
    checks = [shlex.join(["lakefold", "plans", "show", plan])] if plan else []
    return [*checks, shlex.join(["lakefold", "verify", table, "--rows"]), shlex.join(["lakefold", "resume", table])]


def describe_contention(contest: "ConflictCount") -> str:
    """Return a line about the newest plans of a table that its writers cancelled."""
    return f"writers cancelled {contest.conflicts} of its {contest.ended} newest plans; nothing was lost but the work"


def describe_overlaps(table: str, overlaps: int, overlap: str | None) -> str:
    """Return what other programs wrote to a single_writer ``table`` during a plan, and what to do about it."""
    check = shlex.join(["lakefold", "verify", table, "--rows"])
    return (
        f"is single_writer, and was written while lakefold worked on it: {plural(overlaps, 'commit')} in the last day, "
        f"the newest {overlap}. No lock separates its writers from plans, so rows may be missing or old; check with "
        f'{check}, then stop that writer while lakefold works, or set concurrency = "occ" and one lock for both'
    )


def describe_waiting(files: int, until: datetime | None, quiet_period: timedelta, now: datetime) -> str:
    """Return how long ``files`` files within their quiet period keep a table from being planned; '' if they do not."""
    if until is None or until <= now:
        return ""
    age = format_age(until - quiet_period, now)
    return (
        f"{plural(files, 'file')} modified {age}, until {format_until(until, now)} "
        f"(quiet_period is {format_duration(quiet_period)})"
    )


def describe_foreign_files(foreign_files: int, foreign_file: str | None) -> str:
    """Return which foreign files are among a table's data, and what to do about them."""
    return (
        f"{plural(foreign_files, 'file')} of other programs among its data, ignored by lakefold, such as "
        f"{foreign_file}; move them out of the table, since its own readers and writers may fail on them"
    )


def needs_attention(table: "TableState", scan: "ScanRecord | None", now: datetime) -> bool:
    """Return True if ``scan``, the last one of ``table``, failed and a person should know.

    A missing table is mentioned for a week, and not at all in mode off.
    """
    if scan is None or scan.outcome == "ok":
        return False
    return not scan.is_gone or (table.mode != "off" and now - scan.taken_at < _GONE_MENTIONED)


def describe_scan_failure(scan: "ScanRecord") -> str:
    """Return why a table could not be scanned; for a missing table, also what to do."""
    if not scan.is_gone:
        return f"could not be scanned: {scan.error}"
    cause = (scan.error or "").removeprefix(f"{scan.table}: ")
    return (
        f"is gone: {cause}. Put it back or mount its storage; for a table that was dropped on purpose, set "
        'mode = "off" in a rule, or remove its source'
    )


def describe_over_budget(table: str, slices: int) -> str:
    """Return how many slices of ``table`` no plan can take because of a budget, and the command that names it."""
    explain = shlex.join(["lakefold", "tables", "explain", table])
    words = "waits, because its group is" if slices == 1 else "wait, because their groups are"
    return f"{plural(slices, 'file slice')} {words} larger than a whole budget; raise the budget that {explain} names"


def displayed_state(table: "ConfiguredTable", state: "TableState | None") -> str:
    """Return ``halted``, ``paused``, or else the table's mode."""
    if state is not None and state.halted:
        return "halted"
    if state is not None and state.paused:
        return "paused"
    return table.mode


def table_summary(table: "ConfiguredTable", state: "TableState | None", scans: "TableScans") -> dict[str, Any]:
    """Return a table for a listing."""
    return {
        "table": table.name,
        "format": table.ref.format,
        "location": table.ref.location,
        "mode": table.mode,
        "owner": table.owner,
        "tags": table.tags,
        "state": displayed_state(table, state),
        **pause_fields(state.pause if state else None),
        "halted_at": state.halted_at if state else None,
        "halted_reason": state.halted_reason if state else None,
        "halted_partitions": halted_partitions(state),
        "quarantined": dict(state.quarantined) if state else {},
        "scan": scans.latest,
        "last_good_scan": scans.latest_ok,
        "first_scan": scans.first_ok,
    }


def table_details(
    table: "ConfiguredTable",
    state: "TableState | None",
    scans: "TableScans",
    facts: Mapping[str, str],
    trends: "list[dict[str, Any]]",
    objectives: "Sequence[TableObjective]",
) -> dict[str, Any]:
    """Return everything about a table.

    ``facts`` are its format's description of it, and ``objectives`` are its objectives with their results at the last
    successful scan.
    """
    return table_summary(table, state, scans) | {
        "trends": trends,
        "facts": facts,
        "policy": table.policy.to_settings(),
        "objectives": [objective_document(found) for found in objectives],
        "notes": table.policy.notes,
    }
