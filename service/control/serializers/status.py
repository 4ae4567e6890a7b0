# SPDX-License-Identifier: Apache-2.0
"""The status document of the lake, and the line that summarizes it."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lake.units import format_duration
from service.control.serializers.cost import describe_hold, work_budget_document
from service.control.serializers.objectives import budget_problems
from service.control.serializers.plans import describe_retries
from service.control.serializers.processes import (
    config_problems,
    has_scheduler,
    no_executor_reason,
    process_list,
    silent_processes,
    unserved_group_reason,
    unserved_groups,
)
from service.control.serializers.tables import (
    describe_contention,
    describe_over_budget,
    describe_scan_failure,
    halted_partitions,
    needs_attention,
    pause_fields,
)
from service.control.serializers.trend import lake_points, trends
from service.former_names import both_names
from service.modes import PLANNED_MODES
from service.text import format_age, format_percent, format_size, parse_timestamp, plural, share_of, short_id

if TYPE_CHECKING:
    from service.control.lake_cache import LakeState
    from service.control.store import ScanRecord, TableState


def status(lake: "LakeState") -> dict[str, Any]:
    """Return the status of the lake at the reading's time, ``taken_at``.

    ``files_removed`` is the number of files by which completed plans reduced their tables. The replaced files stay in
    storage until their retention has passed (``superseded_files``); ``freed_bytes`` are the bytes deleted since.
    ``backlog_seconds`` is computed from the speed of the last completed plans; None if there are no such plans, or if
    no process runs plans. ``has_scheduler`` is True if a process leads scans; without one no table is scanned and no
    request answered.

    ``attention`` has the tables to which at least one of these conditions applies: halted or paused; a halted
    partition; damage; a failed scan, a missing directory (``directory_gone``) or unreadable files; the newest plan
    failed; live plans are retried (``retrying_plans``); single_writer, but written by others during a plan; writers
    cancel most plans; an error budget burns or is used up; mode propose or compact without a setting about the writers;
    a budget smaller than groups of files; plans that wait for approval (``proposed``).

    ``silent_processes`` are the names of processes that ended without signing off and have no successor.
    ``config_problems`` says how configuration files differ from the configurations in force, and in which processes.

    ``layout`` has the files of the tables in modes propose and compact, and of the tables in mode observe; tables that
    are off are left out. ``trends`` are the changes of the tables in modes propose and compact over 7 and 30 days.
    ``source_problems`` are the parts of sources that the last search for tables could not read; tables in these parts
    are unknown; empty for a caller who may see some tables only. ``work`` has the budget of all tables and the plans
    that are held back. ``waiting_tables`` counts the tables in modes propose and compact that only wait for their quiet
    period. ``next_waiting`` is the table whose wait ends first, at ``until``; None if there is no such table.
    """
    from lake.plan import PlanState

    figures = lake.figures
    proposed = Counter[str]()
    for waiting in figures.proposals:
        proposed[waiting.table] += waiting.plans
    document = {
        "taken_at": figures.taken_at,
        "files_removed": figures.files_removed,
        "bytes_rewritten": figures.bytes_rewritten,
        "freed_bytes": figures.freed_bytes,
        "tables": len(figures.tables),
        "layout": {"compact": _layout_document(lake, PLANNED_MODES), "observe": _layout_document(lake, ("observe",))},
        **{state.value: figures.count(state) for state in PlanState},
        "proposed": figures.proposal_count,
        "oldest_proposed_at": figures.oldest_proposed_at,
        "backlog_bytes": figures.backlog_bytes,
        "backlog_seconds": backlog_seconds(lake),
        "bytes_per_second": _bytes_per_second(lake),
        "oldest_requested_at": figures.oldest_requested_at,
        "oldest_waiting_plan": _oldest_waiting_plan(lake),
        "work": work_budget_document(lake.work),
        "trends": trends(lake_points(lake)),
        "superseded_files": sum(entry.files for entry in figures.superseded),
        "superseded_bytes": sum(entry.bytes for entry in figures.superseded),
        "halted_tables": list(figures.halted_tables),
        "halted_partitions": sum(len(table.halted_partitions) for table in figures.tables),
        **pause_fields(figures.pause),
        "paused_tables": [table.name for table in figures.tables if table.paused],
        "attention": [
            entry
            for table in figures.tables
            if (entry := _attention_entry(lake, table, proposed[table.name])) is not None
        ],
        **_waiting_fields(lake),
        "source_problems": [{"problem": one.problem, "since": one.since} for one in lake.source_problems],
        "notifications_waiting": figures.notifications_waiting,
        "notifications_dead": figures.notifications_dead,
        "leaders": lake.leaders,
        "processes": process_list(lake.processes, lake.leaders, lake.running_plans),
        "silent_processes": [process.name for process in silent_processes(lake.processes)],
        "config_problems": [
            {"problem": problem, "processes": names} for problem, names in config_problems(lake.processes).items()
        ],
        "has_scheduler": has_scheduler(lake.leaders),
        "no_executor_reason": no_executor_reason(lake.processes),
        "unserved_groups": unserved_groups(lake.processes, lake.waiting_by_group.values()),
    }
    return both_names("status", document)


def _oldest_waiting_plan(lake: "LakeState") -> dict[str, Any] | None:
    """Return the plan that waits longest, the time of its next attempt, and why it waits; None if no plan waits.

    ``next_attempt_at`` is None if an event other than the passing of time must come first.
    """
    from lake.plan import PlanState

    plan = lake.next_due_plan
    if plan is None:
        return None
    now, at = lake.figures.taken_at, None
    held = next((held for held in lake.work.blocked_plans if held.plan_id == plan.plan_id), None)
    table = next((table for table in lake.figures.tables if table.name == plan.table), None)
    running = lake.figures.count_of_table(plan.table, PlanState.INFLIGHT)
    if lake.figures.paused:
        reason = "waits for the end of the pause (lakefold resume)"
    elif table is not None and (table.paused or table.halted):
        reason = f"waits until {plan.table} is resumed (lakefold resume {plan.table})"
    elif plan.not_before > now:
        at, reason = plan.not_before, plan.error or "waits until it is due"
        if plan.attempts and plan.error:
            reason = f"failed {plural(plan.attempts, 'time')}, the last time with: {plan.error}"
    elif held is not None:
        at, reason = held.until, describe_hold(held)
    elif no_executor_reason(lake.processes) is not None:
        reason = "waits for an executor to run"
    elif plan.table in lake.waiting_by_group and (
        unserved := unserved_group_reason(lake.processes, lake.waiting_by_group[plan.table].group)
    ):
        reason = f"waits: {unserved}"
    elif running:
        reason = f"waits for a free executor, or for a running plan of {plan.table} (max_inflight_per_table)"
    else:
        at, reason = now, "waits for a free executor"
    return {
        "plan_id": plan.plan_id,
        "table": plan.table,
        "attempts": plan.attempts,
        "due_at": plan.not_before,
        "next_attempt_at": at,
        "reason": reason,
    }


def describe_oldest_waiting(oldest: Mapping[str, Any], now: datetime) -> str:
    """Return a line about ``oldest_waiting_plan`` of a status document."""
    due_at, next_at = (oldest[name] and parse_timestamp(oldest[name]) for name in ("due_at", "next_attempt_at"))
    words = f"The oldest waiting plan, {short_id(oldest['plan_id'])} of {oldest['table']}, "
    words += f"became due {format_age(due_at, now)} and " if due_at <= now else ""
    if next_at is None or next_at <= now:
        return f"{words}{oldest['reason']}."
    left = format_duration(next_at - now)
    return f"{words}{oldest['reason']}. It is tried in {left}, at {next_at.astimezone(UTC):%H:%M:%S} UTC."


def backlog_seconds(lake: "LakeState") -> float | None:
    """Return how long the backlog takes at the speed of the last completed plans; None if that can't be estimated."""
    speed = _bytes_per_second(lake)
    lasting = no_executor_reason(lake.processes) is None and not lake.figures.paused
    return lake.figures.backlog_bytes / speed if speed and lasting else None


def _bytes_per_second(lake: "LakeState") -> float | None:
    """Return the bytes a second of the last completed plans, without the time in which Spark was started."""
    from lake.plan import Step

    seconds = sum(sum(p.milliseconds.values()) - p.milliseconds.get(Step.START, 0) for p in lake.recent_plans) / 1000
    return sum(plan.input_bytes for plan in lake.recent_plans) / seconds if seconds > 0 else None


def _layout_document(lake: "LakeState", modes: Collection[str]) -> dict[str, Any]:
    """Return the files of the tables in ``modes``, by the last good scan of each.

    Reducible small files are worth a plan, now or once the condition they wait for has passed; residual ones are not.
    The share at first is None unless the first scan of every one of these tables distinguished these two kinds.
    """
    names = [table.name for table in lake.figures.tables if table.mode in modes]
    # After an upgrade a table counts from its next scan on, which distinguishes reducible files from residual ones.
    scans = [
        lake.last_good_scans[name]
        for name in names
        if name in lake.last_good_scans and lake.last_good_scans[name].reducible_files is not None
    ]
    first = [lake.first_scans[scan.table] for scan in scans]
    is_known = bool(first) and all(scan.reducible_files is not None for scan in first)
    files, reducible = _sum(scans, "files"), _sum(scans, "reducible_files")
    files_before, reducible_before = _sum(first, "files"), _sum(first, "reducible_files")
    return {
        "tables": len(names),
        "scanned": len(scans),
        "files": files,
        "small_files": _sum(scans, "small_files"),
        "reducible_files": reducible,
        "residual_files": _sum(scans, "residual_files"),
        "reducible_bytes": _sum(scans, "reducible_bytes"),
        "reducible_share": share_of(reducible, files),
        "reducible_share_before": share_of(reducible_before, files_before) if is_known else None,
        "files_before": files_before if is_known else None,
        "reducible_files_before": reducible_before if is_known else None,
    }


def _sum(scans: "Iterable[ScanRecord]", name: str) -> int:
    return sum(getattr(scan, name) or 0 for scan in scans)


def _waiting_fields(lake: "LakeState") -> dict[str, Any]:
    """Return how many tables wait for their quiet period only, and the first of them to be planned."""
    good, now = lake.last_good_scans, lake.figures.taken_at
    planned = (good[table.name] for table in lake.figures.tables if table.mode in PLANNED_MODES and table.name in good)
    waiting = [(until, scan.table) for scan in planned if (until := scan.waiting_until) is not None and until > now]
    first = min(waiting, default=None)
    return {
        "waiting_tables": len(waiting),
        "next_waiting": None if first is None else {"table": first[1], "until": first[0]},
    }


def _attention_entry(lake: "LakeState", table: "TableState", proposed: int) -> dict[str, Any] | None:
    """Return the conditions of a table that need a person; None if there are none. ``proposed`` counts proposals."""
    good, last, failed = (
        lake.last_good_scans.get(table.name),
        lake.last_scans.get(table.name),
        lake.failed_plans.get(table.name),
    )
    damaged = good.damaged if good is not None else 0
    failing = last if needs_attention(table, last, lake.figures.taken_at) else None
    retrying = lake.retrying_plans.get(table.name, ())
    overlaps = good.overlaps if good is not None else 0
    foreign = good.foreign_files if good is not None else 0
    not_planned = good.not_planned if good is not None else None
    over_budget = good.over_budget if good is not None and table.mode in PLANNED_MODES else 0
    contest = lake.contested.get(table.name)
    budgets = budget_problems(lake.objectives.get(table.name, ()), table.mode, lake.figures.taken_at)
    states = (table.halted, table.halted_partitions, table.quarantined, table.paused)
    if not any(
        (
            *(*states, damaged, failing, retrying, failed, overlaps, foreign, not_planned, over_budget),
            *(contest, proposed, budgets),
        )
    ):
        return None
    entry = {
        "table": table.name,
        "halted_at": table.halted_at,
        "halted_reason": table.halted_reason,
        "halted_partitions": halted_partitions(table),
        "damaged_slices": damaged,
        "quarantined_files": len(table.quarantined),
        "scan_error": failing and failing.error,
        "scan_failure": failing and describe_scan_failure(failing),
        "directory_gone": failing is not None and failing.is_gone,
        "retrying_plans": [asdict(plan) for plan in retrying],
        "retries": describe_retries(retrying, lake.figures.taken_at),
        "failed_plan": failed and failed.plan_id,
        "failed_reason": failed and failed.error,
        "conflicting_commits": overlaps,
        "write_conflicts": contest and describe_contention(contest),
        "last_conflicting_commit": good and good.overlap,
        "foreign_files": foreign,
        "foreign_file": good and good.foreign_file,
        "not_planned_reason": not_planned,
        "over_budget_slices": over_budget,
        "over_budget_reason": describe_over_budget(table.name, over_budget) if over_budget else None,
        "proposed": proposed,
        "error_budget_problems": budgets,
        **pause_fields(table.pause),
    }
    return both_names("status.attention[]", entry)


def describe_reducible(layout: Mapping[str, Any], *, since_first: bool = True) -> str:
    """Return the share of reducible files, with the share at the first scans: ``61 % → 3 %, 1.2 GiB to rewrite``."""
    now, before = layout["reducible_share"], layout["reducible_share_before"] if since_first else None
    if now is None:
        return "unknown"
    moved = format_percent(now) if before is None else f"{format_percent(before)} → {format_percent(now)}"
    return f"{moved}, {format_size(layout['reducible_bytes'])} to rewrite" if layout["reducible_bytes"] else moved


def summary_line(status: Mapping[str, Any]) -> str:
    """Return one line that summarizes the lake."""
    compact, observed = status["layout"]["compact"], status["layout"]["observe"]
    left = "" if status["backlog_seconds"] is None else f" ≈ {format_duration(status['backlog_seconds'])}"
    parts = [
        f"{plural(status['files_removed'], 'file')} fewer",
        f"{format_size(status['bytes_rewritten'])} rewritten",
        f"{format_size(status['freed_bytes'])} freed",
    ]
    if compact["tables"] or not observed["tables"]:
        parts.append(f"reducible files {describe_reducible(compact)}")
    if observed["tables"]:
        words = describe_reducible(observed, since_first=False)
        parts.append(f"{plural(observed['tables'], 'observed table')}: reducible files {words}")
    parts += [
        f"{status['inflight']} running, {status['requested'] - status['proposed']} waiting",
        *([f"{status['proposed']} to approve"] if status["proposed"] else []),
        f"backlog {format_size(status['backlog_bytes'])}{left if status['backlog_bytes'] else ''}",
        f"{len(status['halted_tables'])} halted",
        *([f"{plural(status['halted_partitions'], 'partition')} halted"] if status["halted_partitions"] else []),
    ]
    return " · ".join([*parts, "paused"] if status["paused"] else parts)
