# SPDX-License-Identifier: Apache-2.0
"""The first page: the lake in one line, notices, and the tables, worst first."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from lake.units import format_bytes, format_rough_duration
from service.control import serializers
from service.control.lake_cache import LakeState
from service.control.store import TableState
from service.modes import PLANNED_MODES
from service.server.api.context import Context
from service.server.web.formatting import format_count, shell_command
from service.server.web.notices import (
    PROPOSALS_PATH,
    Notice,
    approval_notices,
    error_budget_notice,
    foreign_files_notice,
    halted_notice,
    halted_partition_notices,
    over_budget_notice,
    overlap_notice,
    process_notices,
    retry_notice,
    scan_failure_notice,
)
from service.server.web.rendering import PageContent, table_path
from service.server.web.trend import Tile, TrendPanel
from service.text import format_age, plural, to_jsonable

#: the maximum number of notices about tables; one more notice links other tables
_MAX_NOTICES = 8
#: the maximum number of tables that this notice links
_MAX_NAMES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryPart:
    """A figure of the summary with the text around it; ``title`` has the exact figure."""

    figure: str
    title: str
    before: str = ""
    after: str = ""
    tone: str = ""
    href: str = ""


def overview_page(
    context: Context,
    lake: LakeState,
    tables: PageContent,
    tiles: tuple[Tile, ...],
    changes: TrendPanel | None,
    now: datetime,
) -> PageContent:
    """Return the first page with one page of its list of tables."""
    return PageContent(
        summary=lake.cached("answer", lambda: tuple(summary_parts(lake))),
        notices=lake.cached("notices", lambda: tuple(notices(lake, now))),
        tables=tables if lake.figures.tables or tables.total else None,
        table_count=len(lake.figures.tables),
        config_file=context.config.file_name,
        discover_seconds=context.config.daemon.discover_interval.total_seconds(),
        tiles=tiles,
        over_time=changes,
    )


def summary_parts(lake: LakeState) -> list[SummaryPart]:
    """Return the parts of the summary line, each figure with its exact value in the title."""
    status = serializers.status(lake)
    backlog, left = status["backlog_bytes"], status["backlog_seconds"]
    halted, running, proposed = len(status["halted_tables"]), status["inflight"], status["proposed"]
    waiting = status["requested"] - proposed
    speed = f", {format_bytes(status['bytes_per_second'])}/s lately" if status["bytes_per_second"] else ""
    parts = [
        SummaryPart(
            figure=format_count(status["files_removed"]),
            after=" files fewer",
            title=f"{status['files_removed']:,} files fewer through {plural(status['completed'], 'completed plan')}",
        ),
        SummaryPart(
            figure=format_bytes(status["bytes_rewritten"]),
            after=" rewritten",
            title=f"{status['bytes_rewritten']:,} bytes written by completed plans",
        ),
        SummaryPart(
            figure=format_bytes(status["freed_bytes"]),
            after=" freed",
            title=f"{status['freed_bytes']:,} bytes of replaced files deleted; {status['superseded_bytes']:,} bytes "
            "more stay until their retention has passed",
        ),
        *_reducible_parts(status["layout"]),
        SummaryPart(
            figure=str(running),
            after=" running" + (f", {waiting:,} waiting" if waiting else ""),
            title=f"{running:,} plans inflight, {waiting:,} requested{_oldest_waiting_text(status)}",
            href="/plans?state=inflight" if running or not waiting else "/plans?state=requested&proposed=false",
        ),
        *_proposal_part(proposed),
        SummaryPart(
            before="backlog ",
            figure=format_bytes(backlog) if backlog else "none",
            after=f" ≈ {format_rough_duration(left)}" if backlog and left else "",
            title=f"{backlog:,} bytes in requested and running plans{speed}",
        ),
        SummaryPart(
            figure=str(halted),
            after=" halted",
            title=f"{plural(halted, 'table')} halted until a person resumes {'it' if halted == 1 else 'them'}",
            tone="bad" if halted else "",
            href="/?state=halted" if halted else "",
        ),
    ]
    if status["paused"]:
        parts.append(SummaryPart(figure="paused", title="no executor takes a plan", tone="attention"))
    return parts


def _oldest_waiting_text(status: Mapping[str, Any]) -> str:
    oldest = to_jsonable(status["oldest_waiting_plan"])
    return f". {serializers.describe_oldest_waiting(oldest, status['taken_at'])}" if oldest else ""


def _proposal_part(proposed: int) -> Iterator[SummaryPart]:
    if proposed:
        title = f"{plural(proposed, 'plan')} to approve or decline"
        yield SummaryPart(
            figure=format_count(proposed), after=" to approve", title=title, tone="attention", href=PROPOSALS_PATH
        )


def _reducible_parts(layouts: Mapping[str, Mapping[str, Any]]) -> Iterator[SummaryPart]:
    """Yield the reducible files of the tables that lakefold compacts, and of the tables that it only observes."""
    compact, observed = layouts["compact"], layouts["observe"]
    if compact["tables"] or not observed["tables"]:
        figure, comma, rest = serializers.describe_reducible(compact).partition(", ")
        yield SummaryPart(before="reducible files ", figure=figure, after=comma + rest, title=_reducible_title(compact))
    if observed["tables"]:
        before = f"{plural(observed['tables'], 'observed table')}: reducible files "
        figure, comma, rest = serializers.describe_reducible(observed, since_first=False).partition(", ")
        yield SummaryPart(
            before=before, figure=figure, after=comma + rest, title=_reducible_title(observed), href="/?state=observe"
        )


def _reducible_title(layout: Mapping[str, Any]) -> str:
    if layout["reducible_share"] is None:
        return "the next scans show which small files are worth rewriting"
    was = ""
    if layout["reducible_share_before"] is not None:
        was = f"; at the first scan of each table {layout['reducible_files_before']:,} of {layout['files_before']:,}"
    return (
        f"{layout['reducible_files']:,} of {layout['files']:,} files are small and worth rewriting, which would read "
        f"{layout['reducible_bytes']:,} bytes; {layout['residual_files']:,} more are small, but not worth rewriting"
        f"{was}"
    )


def notices(lake: LakeState, now: datetime) -> list[Notice]:
    """Return the notices about everything that needs attention, the worst first."""
    found = list(process_notices(lake, now))
    of_tables = [(table.name, notice) for table in lake.figures.tables for notice in _table_notices(lake, table, now)]
    of_tables.sort(key=lambda named: (named[1].tone != "bad", _failure_age(lake, named[0], named[1], now)))
    shown = of_tables[:_MAX_NOTICES]
    found += [notice for _, notice in shown]
    named = {name for name, _ in shown}
    more = list(dict.fromkeys(name for name, _ in of_tables[_MAX_NOTICES:] if name not in named))
    if more:
        found.append(_more_tables_notice(lake, more))
    found += approval_notices(lake, now)
    if dead := lake.figures.notifications_dead:
        found.append(
            Notice(
                tone="attention",
                subject=f"{plural(dead, 'notification')} could not be delivered.",
                text="The receiver missed these events.",
                href="/notifications?state=dead",
                action="/notifications/retry",
                button="Send again",
            )
        )
    return found


def _failure_age(lake: LakeState, name: str, notice: Notice, now: datetime) -> timedelta:
    """Return the age of the failure that ``notice`` is about; zero for a problem that continues."""
    failed = lake.failed_plans.get(name)
    is_about_failure = failed is not None and notice.href == f"/plans/{failed.plan_id}"
    return now - (failed.finalized_at or now) if failed is not None and is_about_failure else timedelta()


def _more_tables_notice(lake: LakeState, names: Sequence[str]) -> Notice:
    """Return the notice that leads to the tables whose problems have no notice of their own."""
    links = [(name, table_path(name)) for name in names[:_MAX_NAMES]]
    if len(names) > _MAX_NAMES and any(name in lake.failed_plans for name in names):
        links.append(("all failed plans", "/plans?state=failed"))
    text = "with problems:" if len(names) <= _MAX_NAMES else f"with problems, {_MAX_NAMES} of them are:"
    return Notice(tone="attention", subject=plural(len(names), "more table"), text=text, links=tuple(links))


def _table_notices(lake: LakeState, table: TableState, now: datetime) -> list[Notice]:
    found = []
    name, scan, good = table.name, lake.last_scans.get(table.name), lake.last_good_scans.get(table.name)
    href = table_path(name)
    if table.halted:
        found.append(
            halted_notice(name, f"was halted {format_age(table.halted_at, now)}", name, table.halted_reason, href)
        )
    found += halted_partition_notices(name, table, now, href)
    if scan is not None and serializers.needs_attention(table, scan, now):
        found.append(scan_failure_notice(name, scan, now, href))
    if retrying := lake.retrying_plans.get(name):
        found.append(retry_notice(name, retrying, now))
    if good is not None and good.damaged:
        text = f"has {plural(good.damaged, 'file slice')} not matching its commits, left alone."
        command = shell_command("lakefold", "verify", name)
        found.append(Notice(tone="bad", subject=name, text=text, href=href, command=command))
    if good is not None and good.overlaps:
        found.append(overlap_notice(name, good, href))
    if good is not None and good.foreign_files:
        found.append(foreign_files_notice(name, good, href))
    if good is not None and good.not_planned:
        found.append(Notice(tone="attention", subject=name, text=f"is not planned: {good.not_planned}.", href=href))
    if good is not None and good.over_budget and table.mode in PLANNED_MODES:
        found.append(over_budget_notice(f"{name}:", good, href))
    failed = lake.failed_plans.get(name)
    if failed is not None and failed.plan_id != serializers.halting_plan_id(table.halted_reason):
        text = f"has a plan that failed {format_age(failed.finalized_at, now)}: {failed.error or 'no reason was kept'}"
        found.append(Notice(tone="attention", subject=name, text=text, href=f"/plans/{failed.plan_id}"))
    if (contest := lake.contested.get(name)) is not None:
        text = f"is contested: {serializers.describe_contention(contest)}."
        plans = f"/plans?{urlencode({'table': name, 'state': 'cancelled'})}"
        links = (("these plans", plans), ("meaning and remedy", "/docs/runbook.md#commitconflictshigh"))
        found.append(Notice(tone="attention", subject=name, text=text, href=href, links=links))
    if (budgets := serializers.budget_problems(lake.objectives.get(name, ()), table.mode, now)) is not None:
        found.append(error_budget_notice(name, budgets, href))
    if table.pause is not None:
        text = f"was paused {format_age(table.pause.at, now)} {table.pause.words}."
        action = f"{href}/resume"
        found.append(
            Notice(tone="attention", subject=name, text=text, href=href, action=action, button=f"Resume {name}")
        )
    if table.quarantined:
        files = plural(len(table.quarantined), "quarantined file")
        text = f"has {files} (unreadable, unfinished or impossible to rewrite), left alone."
        found.append(Notice(tone="attention", subject=name, text=text, href=href))
    return found
