# SPDX-License-Identifier: Apache-2.0
"""The documents of tables: in a listing and in full, and whether one is paused."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from service.control.serializers.objectives import objective_document
from service.text import plural

if TYPE_CHECKING:
    from service.control.config.tables import ConfiguredTable
    from service.control.store import ConflictCount, Pause, ScanRecord, TableObjective, TableState


def pause_result(table: str | None, now: bool) -> dict[str, Any]:
    """Whether a table is paused now, or with None the whole service."""
    return {"table": table, "paused": now}


def pause_fields(pause: "Pause | None") -> dict[str, Any]:
    """Who paused a table or the service, when and why; for the documents that contain it."""
    return {
        "paused": pause is not None,
        "paused_by": pause and pause.by,
        "paused_at": pause and pause.at,
        "paused_reason": pause and pause.reason,
    }


def halting_plan_id(reason: str | None) -> str | None:
    """The plan that halted a table, which the ``reason`` begins with."""
    found = re.match(r"plan ([0-9a-f-]{36}): ", reason or "")
    return found[1] if found else None


def halted_partitions(state: "TableState | None") -> list[dict[str, Any]]:
    """The partitions of a table that are halted by themselves, the first one first."""
    halts = sorted(state.halted_partitions.items(), key=lambda item: (item[1].at, item[0])) if state else []
    return [{"partition": name, "halted_at": halt.at, "halted_reason": halt.reason} for name, halt in halts]


def commands_before_partition_resume(table: str, partition: str) -> list[str]:
    """The command that shows a halted partition's files, the one that settles it, and the one that ends the halt."""
    named = ["--partition", partition]
    return [
        shlex.join(["lakefold", "tables", "explain", table, *named]),
        shlex.join(["lakefold", "tables", "resolve", table, *named, "--take"]) + " old|new",
        shlex.join(["lakefold", "resume", table]),
    ]


def commands_before_resume(table: str, reason: str | None) -> list[str]:
    """The commands that tell what halted ``table``, and the one to end the halt with, last."""
    plan = halting_plan_id(reason)
    look = [shlex.join(["lakefold", "plans", "show", plan])] if plan else []
    return [*look, shlex.join(["lakefold", "verify", table, "--rows"]), shlex.join(["lakefold", "resume", table])]


def describe_contention(contest: "ConflictCount") -> str:
    """That the writers of a table let few plans through."""
    return f"writers cancelled {contest.conflicts} of its {contest.ended} newest plans; nothing was lost but the work"


def describe_overlaps(table: str, overlaps: int, overlap: str | None) -> str:
    """What others wrote of ``table`` where it is to have a single writer, and what to do about it."""
    check = shlex.join(["lakefold", "verify", table, "--rows"])
    return (
        f"is single_writer, and was written while lakefold worked on it: {plural(overlaps, 'commit')} in the last day, "
        f"the newest {overlap}. Nothing keeps such a write and a plan apart, so rows may be missing or old; check with "
        f'{check}, then stop that writer while lakefold works, or set concurrency = "occ" and one lock for both'
    )


def describe_foreign_files(foreign_files: int, foreign_file: str | None) -> str:
    """Which files of others are among a table's data, and what to do about them."""
    return (
        f"{plural(foreign_files, 'file')} of others among its data, left alone, the first {foreign_file}; move them "
        "out of the table, since its own readers and writers may fail on them"
    )


def displayed_state(table: "ConfiguredTable", state: "TableState | None") -> str:
    """``halted``, ``paused``, or else the table's mode."""
    if state is not None and state.halted:
        return "halted"
    if state is not None and state.paused:
        return "paused"
    return table.mode


def table_summary(table: "ConfiguredTable", state: "TableState | None", scan: "ScanRecord | None") -> dict[str, Any]:
    """A table in a listing; ``scan`` is its last one, None before the first."""
    return {
        "table": table.name,
        "format": table.ref.format,
        "location": table.ref.location,
        "mode": table.mode,
        "owner": table.owner,
        "state": displayed_state(table, state),
        **pause_fields(state.pause if state else None),
        "halted_at": state.halted_at if state else None,
        "halted_reason": state.halted_reason if state else None,
        "halted_partitions": halted_partitions(state),
        "quarantined": dict(state.quarantined) if state else {},
        "scan": scan,
    }


def table_details(
    table: "ConfiguredTable",
    state: "TableState | None",
    scan: "ScanRecord | None",
    good: "ScanRecord | None",
    facts: Mapping[str, str],
    trends: "list[dict[str, Any]]",
    objectives: "Sequence[TableObjective]",
) -> dict[str, Any]:
    """Everything about a table: ``good`` is its last scan that succeeded, ``facts`` what its format says of it.

    ``objectives`` are what it is held to, as that scan judged it.
    """
    return table_summary(table, state, scan) | {
        "last_good_scan": good,
        "trends": trends,
        "facts": facts,
        "policy": table.policy.to_settings(),
        "objectives": [objective_document(found) for found in objectives],
        "notes": table.policy.notes,
    }
