# SPDX-License-Identifier: Apache-2.0
"""The page of one table: its file sizes before and now, its partitions, plans and last scans."""

import glob
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, islice
from typing import Any

from lake.units import format_bytes
from service.control import serializers
from service.control.config.table_settings import ConfiguredTable
from service.control.planning.refusals import required_rule_setting
from service.control.store import PartitionLayout, PlanView, RetryingPlan, ScanRecord, TableObjective, TableState
from service.modes import PLANNED_MODES
from service.server.web.burn_chart import BurnChart
from service.server.web.charts import histogram_chart, trend_chart
from service.server.web.formatting import shell_command
from service.server.web.notices import (
    Notice,
    error_budget_notice,
    foreign_files_notice,
    halted_notice,
    halted_partition_notices,
    over_budget_notice,
    overlap_notice,
    retry_notice,
    scan_failure_notice,
)
from service.server.web.partitions import StripPosition, partition_strip, worst_partition_list
from service.server.web.rendering import PageContent, table_path
from service.server.web.request_form import RequestForm
from service.server.web.savings import SavingsPanel
from service.server.web.size_history import size_history
from service.server.web.trend import TrendPanel
from service.text import format_age, partition_name, plural

_SCANS_SHOWN = 8
#: mode of a table that is not compacted → the title of its notice, and the text
_MODE_NOTICES = {
    "observe": ("Only observed", "lakefold scans this table and changes nothing."),
    "off": ("Off", "lakefold neither scans this table nor changes it."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanLine:
    """The newest of ``times`` consecutive scans with the same result, the first of them at ``since``."""

    scan: ScanRecord
    times: int
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRecords:
    """The records of a table in the database. ``scans`` are newest first; ``layout`` has the last scan's partitions."""

    state: TableState
    scans: Sequence[ScanRecord]
    last_good_scan: ScanRecord | None
    first_scan: ScanRecord | None
    plans: Sequence[PlanView]
    layout: PartitionLayout | None
    over_time: TrendPanel | None
    objectives: Sequence[TableObjective]
    retrying: Sequence[RetryingPlan]
    savings: SavingsPanel | None
    burn_charts: Sequence[BurnChart]


def table_page(
    table: ConfiguredTable,
    known: TableRecords,
    *,
    form: RequestForm,
    partition: str | None,
    start: int,
    search: str,
    now: datetime,
) -> PageContent:
    """Return the page of ``table``: the strip begins at partition number ``start``, and ``partition`` is explained.

    The worst partitions are those whose path contains ``search``.
    """
    state, good, first = known.state, known.last_good_scan, known.first_scan
    path, word = table_path(state.name), serializers.displayed_state(table, state)
    small, target = table.policy.small_file_limit_bytes, table.policy.target_file_max_bytes
    limits = {"small-file limit": small, "target": target}
    before = first.histogram if first and good and first.taken_at < good.taken_at else None
    now_counts = good.histogram if good else ()
    position = StripPosition(path=path, start=start, search=search)
    strip = partition_strip(known.layout, position, partition)
    moved = [(scan.taken_at, float(scan.files)) for scan in reversed(known.scans) if scan.outcome == "ok"]
    only = ("--partition", partition) if partition else ()
    return PageContent(
        state_record=state,
        path=path,
        displayed_state=word,
        notices=tuple(_notices(table, known, now)),
        last_good_scan=good,
        first_scan=first,
        has_before=before is not None,
        small_file_limit=small,
        chart=histogram_chart(now_counts, before, limits, width=960, height=300) if good else None,
        narrow_chart=histogram_chart(now_counts, before, limits, width=360, height=250) if good else None,
        sizes_text=_sizes_text(good, first if before else None, small),
        strip=strip,
        worst=worst_partition_list(known.layout, position),
        partitions=strip.total if strip else good.partitions if good else 0,
        partition=partition,
        partition_name=partition_name(partition or ""),
        plans=tuple(known.plans),
        scans=tuple(islice(scan_lines(known.scans), _SCANS_SHOWN)),
        over_time=known.over_time,
        size_history=size_history(known.scans, first, small),
        savings=known.savings,
        objectives=tuple(known.objectives),
        burn_charts=tuple(known.burn_charts),
        trend=trend_chart(moved, width=360, height=84),
        trend_points=len(moved),
        trend_text=f"{moved[0][1]:,.0f} files at first, {moved[-1][1]:,.0f} files now" if moved else "",
        scan_interval_seconds=table.policy.scan_interval.total_seconds(),
        is_scanned=table.mode != "off",
        form=form,
        can_pause=not state.paused,
        can_resume=state.paused or state.halted or bool(state.halted_partitions) or bool(state.quarantined),
        commands=(
            shell_command("lakefold", "tables", "explain", state.name, *only),
            shell_command("lakefold", "plans", "request", state.name, *only, "--dry-run"),
        ),
    )


def scan_lines(scans: Iterable[ScanRecord]) -> Iterator[ScanLine]:
    """Yield the scans newest first; consecutive scans with the same result are one line."""
    for _, equal_scans in groupby(scans, _scan_result):
        newest, *older = equal_scans
        yield ScanLine(scan=newest, times=1 + len(older), since=(older or [newest])[-1].taken_at)


def _scan_result(scan: ScanRecord) -> tuple[Any, ...]:
    return (
        scan.outcome,
        scan.error,
        scan.instant,
        scan.files,
        scan.small_files,
        scan.reducible_files,
        scan.reducible_bytes,
    )


def _sizes_text(now: ScanRecord | None, before: ScanRecord | None, limit: int) -> str:
    if now is None:
        return ""
    small = f"{now.small_files:,} below {format_bytes(limit)}"
    was = f"; before, {plural(before.files, 'file')}, {before.small_files:,} below" if before else ""
    return f"Files by size: now {plural(now.files, 'file')}, {small}{was}. The table below has the numbers."


def _notices(table: ConfiguredTable, known: TableRecords, now: datetime) -> list[Notice]:
    state, last = known.state, known.scans[0] if known.scans else None
    found = []
    if state.halted:
        found.append(halted_notice("Halted", format_age(state.halted_at, now), state.name, state.halted_reason))
    found += halted_partition_notices("Halted", state, now)
    if state.pause is not None:
        text = f"{format_age(state.pause.at, now)} {state.pause.words}. Running plans finish; no new ones start."
        found.append(Notice(tone="attention", subject="Paused", text=text))
    if last is not None and last.outcome != "ok":
        found.append(scan_failure_notice("This table", last, now))
    if known.retrying:
        found.append(retry_notice("This table", known.retrying, now))
    if last is not None and last.damaged:
        text = f"{plural(last.damaged, 'file slice')} not matching the table's commits, left alone. Which files:"
        found.append(
            Notice(tone="bad", subject="Damaged", text=text, command=shell_command("lakefold", "verify", state.name))
        )
    if last is not None and last.overlaps:
        found.append(overlap_notice("This table", last))
    if last is not None and last.foreign_files:
        found.append(foreign_files_notice("This table", last))
    if (budgets := serializers.budget_problems(known.objectives, table.mode, now)) is not None:
        found.append(error_budget_notice("This table", budgets))
    if last is not None and last.over_budget and table.mode in PLANNED_MODES:
        found.append(over_budget_notice("Over budget:", last))
    if last is not None and last.not_planned:
        found.append(Notice(tone="attention", subject="Not planned", text=f": {last.not_planned}."))
    if last is not None and table.mode in PLANNED_MODES:
        files, quiet_period = last.skipped.get("recent", 0), table.policy.quiet_period
        if waiting := serializers.describe_waiting(files, last.waiting_until, quiet_period, now):
            found.append(Notice(tone="", subject="Waiting", text=f"{waiting}."))
    for path, reason in state.quarantined.items():
        found.append(Notice(tone="attention", subject="Quarantined", text=f"{path}: {reason}"))
    if table.mode not in PLANNED_MODES:
        subject, does = _MODE_NOTICES[table.mode]
        match = f"match = {json.dumps(glob.escape(state.name), ensure_ascii=False)}"
        rule = ["[[tables]]", match, 'mode = "compact"']
        if (wanted := required_rule_setting(table)) is not None:
            setting, values = wanted
            page = "formats" if setting == "access" else "writers"
            choice = " or ".join(map(json.dumps, values))
            rule += [f"# {choice}, see docs/{page}.md", f'{setting} = "?"']
        text = f"(mode {table.mode}): {does} To compact it, add this to the configuration, then send SIGHUP or restart:"
        found.append(Notice(tone="", subject=subject, text=text, block="\n".join(rule)))
    return found
