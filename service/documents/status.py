# SPDX-License-Identifier: Apache-2.0
"""The document behind "how is the lake?", and the one line that sums it up."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from service.documents.tables import pause_facts
from service.text import plural, size

if TYPE_CHECKING:
    from service.documents.lake_cache import Lake
    from service.store import TableState


def status(lake: "Lake") -> dict[str, Any]:
    """Everything about "how is the lake?", as it was when the database was read, ``taken_at``.

    ``backlog_seconds`` goes by the speed of the last completed plans and is None without any. ``attention`` has the
    tables that are halted or paused, that are damaged or could not be scanned, of which files can't be read, and those
    whose newest plan failed.
    """
    from lake.plan import PlanState

    figures, recent, scans, first = lake.figures, lake.recent, lake.good.values(), lake.first.values()
    files, small = sum(scan.files for scan in scans), sum(scan.small_files for scan in scans)
    files_before, small_before = sum(scan.files for scan in first), sum(scan.small_files for scan in first)
    seconds = sum(sum(plan.milliseconds.values()) for plan in recent) / 1000
    speed = sum(plan.input_bytes for plan in recent) / seconds if seconds else 0.0
    return {
        "taken_at": figures.taken_at,
        "files_removed": figures.files_removed,
        "bytes_rewritten": figures.bytes_rewritten,
        "tables": len(figures.tables),
        "files": files,
        "small_files": small,
        "small_file_share": small / files if files else None,
        "files_before": files_before,
        "small_files_before": small_before,
        "small_file_share_before": small_before / files_before if files_before else None,
        **{state.value: figures.count(state) for state in PlanState},
        "backlog_bytes": figures.backlog_bytes,
        "backlog_seconds": figures.backlog_bytes / speed if speed else None,
        "bytes_per_second": speed or None,
        "oldest_requested_at": figures.oldest_requested_at,
        "unplanned_bytes": sum(scan.backlog_bytes for scan in scans),
        "superseded_files": sum(entry.files for entry in figures.superseded),
        "superseded_bytes": sum(entry.bytes for entry in figures.superseded),
        "halted": list(figures.halted),
        **pause_facts(figures.pause),
        "paused_tables": [table.name for table in figures.tables if table.paused],
        "attention": [entry for table in figures.tables if (entry := _attention(lake, table)) is not None],
        "notifications_waiting": figures.notifications_waiting,
        "notifications_dead": figures.notifications_dead,
        "leaders": lake.leaders,
    }  # fmt: skip


def _attention(lake: "Lake", table: "TableState") -> dict[str, Any] | None:
    """What of a table needs a person; None where nothing does."""
    good, last, failed = lake.good.get(table.name), lake.last.get(table.name), lake.failed.get(table.name)
    damaged = good.damaged if good is not None else 0
    error = last.error if last is not None and last.outcome != "ok" else None
    if not (table.halted or table.quarantined or table.paused or damaged or error or failed):
        return None
    return {
        "table": table.name, "halted_at": table.halted_at, "halted_reason": table.halted_reason,
        "damaged_slices": damaged, "quarantined_files": len(table.quarantined), "scan_error": error,
        "failed_plan": failed and failed.plan_id, "failed_reason": failed and failed.error, **pause_facts(table.pause),
    }  # fmt: skip


def answer_line(status: Mapping[str, Any]) -> str:
    """The one line that says how the lake is."""
    from lake.units import format_duration

    share, before = status["small_file_share"], status["small_file_share_before"]
    left = "" if status["backlog_seconds"] is None else f" ≈ {format_duration(status['backlog_seconds'])}"
    parts = [
        f"{plural(status['files_removed'], 'file')} removed",
        f"{size(status['bytes_rewritten'])} rewritten",
        "small-file share "
        + ("unknown" if share is None or before is None else f"{100 * before:.0f} % → {100 * share:.0f} %"),
        f"{status['inflight']} running, {status['requested']} waiting",
        f"backlog {size(status['backlog_bytes'])}{left if status['backlog_bytes'] else ''}",
        f"{len(status['halted'])} halted",
    ]
    return " · ".join([*parts, "paused"] if status["paused"] else parts)
