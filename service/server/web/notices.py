# SPDX-License-Identifier: Apache-2.0
"""The notices at the head of a page, about things that a person should know or do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from lake.plan import PlanState
from service.control import serializers
from service.control.lake_cache import LakeState
from service.control.store import RetryingPlan, ScanRecord, TableState
from service.server.web.formatting import shell_command
from service.text import format_age, join_names, plural, process_label

#: the list of plans that wait for approval
PROPOSALS_PATH = "/plans?proposed=true"
#: halted partitions of a table that are named one by one
_MAX_PARTITIONS_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something that a person should know or do.

    ``command`` is a command to run, ``block`` a text for the configuration, ``links`` are texts with addresses.
    ``button`` is the text of a button that posts to ``action``.
    """

    tone: str
    subject: str
    text: str
    href: str = ""
    command: str = ""
    block: str = ""
    links: tuple[tuple[str, str], ...] = ()
    action: str = ""
    button: str = ""


def halted_notice(subject: str, text: str, table: str, reason: str | None, href: str = "") -> Notice:
    """Return the notice that ``table`` is halted, with the command to run before it is resumed."""
    plan = serializers.halting_plan_id(reason)
    links = [("the plan", f"/plans/{plan}")] if plan else []
    return Notice(
        tone="bad",
        subject=subject,
        text=f"{text}: {reason}. Find the cause before you resume it:",
        href=href,
        command=serializers.commands_before_resume(table, reason)[-2],
        links=(*links, ("meaning and remedy", "/docs/runbook.md#tablehalted")),
    )


def halted_partition_notices(subject: str, table: TableState, now: datetime, href: str = "") -> Iterator[Notice]:
    """Yield the notices about the first halted partitions of ``table``, and one with the number of further ones."""
    halted = serializers.halted_partitions(table)
    for one in halted[:_MAX_PARTITIONS_NAMED]:
        name = one["partition"]
        yield Notice(
            tone="bad",
            subject=subject,
            href=href,
            text=f"partition {name} was halted {format_age(one['halted_at'], now)}: {one['halted_reason']}. "
            "Other partitions continue. Find the cause before you resume it:",
            command=serializers.commands_before_partition_resume(table.name, name)[0],
            links=(("meaning and remedy", "/docs/runbook.md#partitionhalted"),),
        )
    if (more := len(halted) - _MAX_PARTITIONS_NAMED) > 0:
        command = shell_command("lakefold", "tables", "show", table.name)
        yield Notice(
            tone="bad", subject=subject, href=href, text=f"{plural(more, 'more partition')} halted:", command=command
        )


def error_budget_notice(subject: str, budgets: str, href: str = "") -> Notice:
    """Return the notice that a table misses its objectives for longer than its error budget allows."""
    links = (("meaning and remedy", "/docs/runbook.md#layoutbudgetburnsfast"),)
    return Notice(tone="attention", subject=subject, text=f"misses its objectives: {budgets}.", href=href, links=links)


def overlap_notice(subject: str, scan: ScanRecord, href: str = "") -> Notice:
    """Return the notice that another program wrote to a ``single_writer`` table while lakefold worked on it."""
    text = f"{serializers.describe_overlaps(scan.table, scan.overlaps, scan.overlap)}."
    link = ("meaning and remedy", "/docs/runbook.md#singlewritertablewritten")
    return Notice(tone="bad", subject=subject, text=text, href=href, links=(link,))


def foreign_files_notice(subject: str, scan: ScanRecord, href: str = "") -> Notice:
    """Return the notice that files of other programs are among a table's data."""
    text = f"has {serializers.describe_foreign_files(scan.foreign_files, scan.foreign_file)}."
    link = ("meaning and remedy", "/docs/runbook.md#tablehasforeignfiles")
    return Notice(tone="attention", subject=subject, text=text, href=href, links=(link,))


def scan_failure_notice(subject: str, scan: ScanRecord, now: datetime, href: str = "") -> Notice:
    """Return the notice that the last scan of a table failed."""
    link = ("meaning and remedy", "/docs/runbook.md#tablescanfailing")
    text = f"{serializers.describe_scan_failure(scan)} ({format_age(scan.taken_at, now)})."
    return Notice(tone="attention", subject=subject, text=text, href=href, links=(link,))


def retry_notice(subject: str, plans: Sequence[RetryingPlan], now: datetime) -> Notice:
    """Return the notice that attempts of live ``plans`` failed."""
    text = f"has a plan that is retried, {serializers.describe_retries(plans, now)}."
    link = ("meaning and remedy", "/docs/runbook.md#plansretrying")
    return Notice(tone="attention", subject=subject, text=text, href=f"/plans/{plans[0].plan_id}", links=(link,))


def over_budget_notice(subject: str, scan: ScanRecord, href: str = "") -> Notice:
    """Return the notice that a budget is too small for groups of a table's files."""
    text = f"{serializers.describe_over_budget(scan.table, scan.over_budget)}."
    link = ("meaning and remedy", "/docs/runbook.md#filesoverbudget")
    return Notice(tone="attention", subject=subject, text=text, href=href, links=(link,))


def process_notices(lake: LakeState, now: datetime) -> Iterator[Notice]:
    """Yield notices about work that is not done: no scheduler, no executor, unreadable sources, broken Spark."""
    if not serializers.has_scheduler(lake.leaders):
        text = "Nothing is scanned and no request is answered until one is started:"
        yield Notice(tone="attention", subject="No scheduler is running.", text=text, command="lakefold serve")
    waiting = lake.figures.count(PlanState.REQUESTED) - lake.figures.proposal_count
    no_executor = serializers.no_executor_reason(lake.processes)
    if no_executor is not None:
        subject = plural(waiting, "plan") if waiting else "No plan can run:"
        text = f"wait{'s' if waiting == 1 else ''}: {no_executor}." if waiting else f"{no_executor}."
        yield Notice(tone="attention", subject=subject, text=text, href="/processes")
    for group in serializers.unserved_groups(lake.processes, lake.waiting_by_group.values()):
        many = group["plans"]
        text = f"wait{'s' if many == 1 else ''}: {group['reason']}."
        yield Notice(tone="attention", subject=plural(many, "plan"), text=text, href="/processes")
    for one in lake.source_problems:
        link = ("meaning and remedy", "/docs/runbook.md#sourceunreadable")
        text = f"{one.problem} (first seen {format_age(one.since, now)})"
        yield Notice(tone="attention", subject="Not all tables can be found:", text=text, links=(link,))
    for problem, names in serializers.config_problems(lake.processes).items():
        link = ("meaning and remedy", "/docs/runbook.md#confignotloaded")
        yield Notice(tone="attention", subject=f"{join_names(names)}:", text=problem, href="/settings", links=(link,))
    for silent in serializers.silent_processes(lake.processes):
        seen, link = format_age(silent.seen_at, now), ("meaning and remedy", "/docs/runbook.md#processsilent")
        text = f"{serializers.describe_silence(silent.role, seen, runs_plans=silent.slots > 0)}."
        subject = process_label(silent.name)
        yield Notice(tone="attention", subject=subject, text=text, href="/processes", links=(link,))
    for line in serializers.describe_held_work(serializers.work_budget_document(lake.work)):
        yield Notice(tone="attention", subject="Work waits:", text=line, href="/plans?state=requested")
    for process in lake.processes:
        if process.live and process.problem is not None:
            text = f"can't use Spark: {process.problem}"
            yield Notice(tone="attention", subject=process_label(process.name), text=text, href="/processes")


def approval_notices(lake: LakeState, now: datetime) -> Iterator[Notice]:
    """Yield the notice that plans wait for approval."""
    since, plans = lake.figures.oldest_proposed_at, lake.figures.proposal_count
    if since is not None:
        subject = f"{plural(plans, 'plan')} to approve or decline."
        text = f"The oldest was proposed {format_age(since, now)}."
        yield Notice(tone="attention", subject=subject, text=text, href=PROPOSALS_PATH)
