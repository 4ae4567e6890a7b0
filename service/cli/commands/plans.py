# SPDX-License-Identifier: Apache-2.0
"""The commands ``lakefold plans``, which list, show, request, cancel, approve, decline, retry and watch plans."""

import math
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.commands.bulk_actions import run_bulk_action
from service.cli.commands.common import (
    CommandRun,
    ConfigFile,
    Json,
    PlanId,
    Table,
    Yes,
    command_run,
    note_former_settings,
    parse_key_values,
)
from service.cli.commands.plan_filter import (
    ErrorOption,
    NameOption,
    ProposedOption,
    SinceOption,
    StateOption,
    TableOption,
    UntilOption,
    plan_filter_of_options,
)
from service.cli.output.plan_response import print_plan_response
from service.cli.output.plans import print_plan, print_plans
from service.control.serializers import TERMINAL_STATES
from service.problems import INTERRUPTED, USAGE, ExitCode, ProblemError, exit_codes_help
from service.text import format_size, parse_timestamp, plural

if TYPE_CHECKING:
    from lake.plan import ProposalDecision
    from service.control.store import PlanFilter

app = typer.Typer(help="List, show, request and follow plans; decide on proposals.", no_args_is_help=True)
WAITING_NOTE_SECONDS = 15
PROGRESS_SECONDS = 10
_EXIT_CODE_BY_STATE = {"completed": ExitCode.OK, "failed": ExitCode.ERROR, "cancelled": ExitCode.PARTIAL}


@app.command("list", epilog=exit_codes_help(ExitCode.NOT_FOUND, ExitCode.PENDING, ExitCode.DATABASE))
def list_(
    table: TableOption = None,
    name: NameOption = None,
    state: StateOption = None,
    proposed: ProposedOption = False,
    error: ErrorOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, max=1000, help="Show at most this many.")] = 50,
    after: Annotated[str | None, typer.Option("--after", metavar="PLAN", help="Continue after this plan.")] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 4 when a listed plan has not ended.")] = False,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """List plans, newest first."""
    with command_run(json, config) as run:
        plan_filter = plan_filter_of_options(
            table=table, name=name, state=state, proposed=proposed or None, error=error, since=since, until=until
        )
        plans = run.client.plans(plan_filter, limit=limit, after=after)
        run.out.results(plans, lambda: print_plans(run.out, plans, limit))
    live = any(plan["state"] not in TERMINAL_STATES for plan in plans)
    return ExitCode.PENDING if exit_code and live else ExitCode.OK


@app.command("show", epilog=exit_codes_help(ExitCode.NOT_FOUND, ExitCode.DATABASE))
def show(plan: PlanId, json: Json = False, config: ConfigFile = None) -> None:
    """Show one plan: its partitions before and after, the duration of each step, and its history."""
    with command_run(json, config) as run:
        found = run.client.plan(plan)
        run.out.result(found, lambda: print_plan(run.out, found))


@app.command(
    "request",
    epilog=exit_codes_help(
        ExitCode.PARTIAL, ExitCode.NOT_FOUND, ExitCode.LIVE_PLAN, ExitCode.HALTED, ExitCode.DATABASE
    ),
)
def request(
    table: Table,
    partition: Annotated[
        list[str] | None, typer.Option("--partition", "-p", metavar="PART", help="Only this partition; repeatable.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", "-k", help="Only plans of this kind: clustering or compaction.")
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A policy setting for this request only; repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Print the exact plan; store nothing.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the plans to their end.")] = False,
    files: Annotated[bool, typer.Option("--files", help="With --dry-run: list every file of every group.")] = False,
    idempotency_key: Annotated[
        str | None,
        typer.Option("--idempotency-key", metavar="KEY", help="Repeated requests with the same key count as one."),
    ] = None,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="How long to wait for the scheduler's answer.")
    ] = "5min",
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Scan a table now and plan every partition that no live plan holds. Prints the reasons if there is nothing to do.

    The running scheduler does this, or this process if no scheduler runs. Exits 11 only if live plans hold every
    requested partition. Exits 12 if the table is halted, paused, in a mode without plans, or in use under another
    name, except with -n. In mode propose, requested plans need no approval: they run, and replace proposals.
    """
    from lake.plan import PlanKind
    from lake.units import parse_duration
    from service.control.planning.plan_request import PlanRequest, PlanResponse
    from service.text import did_you_mean

    with command_run(json, config) as run:
        overrides = parse_key_values(setting or [])
        note_former_settings(run, overrides)
        kinds = [known.value for known in PlanKind]
        if kind is not None and kind not in kinds:
            raise ProblemError(USAGE, f"--kind {kind!r} is not one of {', '.join(kinds)}{did_you_mean(kind, kinds)}")
        try:
            seconds = parse_duration(timeout).total_seconds()
        except ValueError as error:
            raise ProblemError(USAGE, f"--timeout: {error}") from error
        wanted = PlanRequest(
            partitions=partition,
            kind=PlanKind(kind) if kind else None,
            overrides=overrides,
            dry_run=dry_run,
            idempotency_key=idempotency_key,
        )
        try:
            answer = PlanResponse.from_document(run.client.request(table, wanted, timeout_seconds=seconds))
        except KeyboardInterrupt:
            text = (
                "interrupted before the answer; the scheduler may still create the plans: "
                f"lakefold plans list --table {table}"
            )
            raise ProblemError(INTERRUPTED, text) from None
        answer.raise_problem()
        run.out.result(answer.document(), lambda: print_plan_response(run.out, answer, all_files=files))
        if answer.plan_ids and not run.out.json and (no_executor := run.client.status()["no_executor_reason"]):
            run.out.note(f"Not started: {no_executor}")
        codes = _follow_all(run, answer.plan_ids) if wait else []
    return next((code for code in (ExitCode.ERROR, ExitCode.PARTIAL) if code in codes), ExitCode.OK)


_BULK_EXIT_CODES = (ExitCode.PARTIAL, ExitCode.NOT_FOUND, ExitCode.LIVE_PLAN, ExitCode.DATABASE)
OptionalPlan = Annotated[
    str | None,
    typer.Argument(metavar="[PLAN]", help="A plan's id, or any unique part of it; or select with options."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="List the selected plans; change none.")]


@app.command("cancel", epilog=exit_codes_help(*_BULK_EXIT_CODES))
def cancel(
    plan: OptionalPlan = None,
    table: TableOption = None,
    name: NameOption = None,
    state: StateOption = None,
    error: ErrorOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept in the plan's history.")] = "cancelled by hand",
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Cancel one plan, or all that the options select: requested ones at once, inflight ones before they commit.

    Asks for confirmation if options select the plans; without a terminal, --yes is required. Exits 3 if some of the
    plans have ended in the meantime.
    """
    with command_run(json, config) as run:
        plan_filter = plan_filter_of_options(table=table, name=name, state=state, error=error, since=since, until=until)
        if _plan_selected_by_options(plan, plan_filter, dry_run):
            return run_bulk_action(run, "cancel", plan_filter, reason, dry_run=dry_run, yes=yes)
        done = run.client.cancel(plan or "", reason)
        asked = f"is {done['state']}; its executor was asked to stop before the commit"
        text = asked if done["cancel_requested"] else "cancelled"
        run.out.result(done, lambda: run.out.line(f"Plan {done['plan_id']} {text}"))
        return ExitCode.OK


Plans = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PLAN]...", help="Plans' ids, or any unique parts of them; or select with options."),
]
All = Annotated[bool, typer.Option("--all", help="All plans that wait for approval.")]
DecisionReason = Annotated[str, typer.Option("--reason", help="Why; kept in the plan's history and the audit.")]
_DECISION_EXIT_CODES = (ExitCode.PARTIAL, ExitCode.NOT_FOUND, ExitCode.DATABASE)


@app.command("approve", epilog=exit_codes_help(*_DECISION_EXIT_CODES))
def approve(
    plans: Plans = None,
    all_: All = False,
    table: TableOption = None,
    name: NameOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    reason: DecisionReason = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Approve plans that scans have proposed for tables in mode propose, so that they run.

    Asks for confirmation if options select the plans; without a terminal, --yes is required. Exits 3 if other people
    have decided on some of the plans in the meantime.
    """
    from lake.plan import ProposalDecision

    with command_run(json, config) as run:
        plan_filter = plan_filter_of_options(table=table, name=name, proposed=all_ or None, since=since, until=until)
        if _plans_selected_by_options(plans, plan_filter, dry_run):
            return run_bulk_action(run, "approve", plan_filter, reason, dry_run=dry_run, yes=yes)
        return _decide(run, plans or (), ProposalDecision.APPROVED, reason)


@app.command("decline", epilog=exit_codes_help(*_DECISION_EXIT_CODES))
def decline(
    plans: Plans = None,
    all_: All = False,
    table: TableOption = None,
    name: NameOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    reason: DecisionReason = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Decline plans that wait for approval; their files are not proposed again until they change.

    To rewrite the files nevertheless: lakefold plans request. Asks for confirmation if options select the plans;
    without a terminal, --yes is required. Exits 3 if other people have decided on some of the plans in the meantime.
    """
    from lake.plan import ProposalDecision

    with command_run(json, config) as run:
        plan_filter = plan_filter_of_options(table=table, name=name, proposed=all_ or None, since=since, until=until)
        if _plans_selected_by_options(plans, plan_filter, dry_run):
            return run_bulk_action(run, "decline", plan_filter, reason, dry_run=dry_run, yes=yes)
        return _decide(run, plans or (), ProposalDecision.DECLINED, reason)


def _decide(run: CommandRun, plans: Sequence[str], decision: "ProposalDecision", reason: str) -> int:
    """Apply one decision to each plan in turn. Stops with an error at the first plan that does not wait for one."""
    done = []
    for plan in plans:
        done.append(run.client.decide(plan, decision, reason))
        run.out.note(f"Plan {done[-1]['plan_id']} {decision.value}")
    run.out.results(done, lambda: None)
    return ExitCode.OK


@app.command("retry", epilog=exit_codes_help(*_BULK_EXIT_CODES))
def retry(
    plan: OptionalPlan = None,
    table: TableOption = None,
    name: NameOption = None,
    state: StateOption = None,
    error: ErrorOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept in the history if several are retried.")] = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Request a failed plan again, or all that the options select. No other live plan may hold their partitions.

    Asks for confirmation if options select the plans; without a terminal, --yes is required. Exits 3 if the partitions
    of some plans are held.
    """
    with command_run(json, config) as run:
        plan_filter = plan_filter_of_options(table=table, name=name, state=state, error=error, since=since, until=until)
        if _plan_selected_by_options(plan, plan_filter, dry_run):
            return run_bulk_action(run, "retry", plan_filter, reason, dry_run=dry_run, yes=yes)
        done = run.client.retry(plan or "")
        run.out.result(done, lambda: run.out.line(f"Plan {done['plan_id']} will be tried again"))
        return ExitCode.OK


def _plan_selected_by_options(plan: str | None, plan_filter: "PlanFilter", dry_run: bool) -> bool:
    """Return True if options select the plans, False if an id does. Raises ProblemError for both."""
    return _plans_selected_by_options(None if plan is None else [plan], plan_filter, dry_run)


def _plans_selected_by_options(plans: Sequence[str] | None, plan_filter: "PlanFilter", dry_run: bool) -> bool:
    """Return True if options select the plans, False if ids do. Raises ProblemError for both."""
    if plans and (plan_filter or dry_run):
        raise ProblemError(
            USAGE, "give either PLAN or options that select plans; --dry-run works only with such options"
        )
    return not plans


@app.command("watch", epilog=exit_codes_help(ExitCode.PARTIAL, ExitCode.NOT_FOUND, ExitCode.DATABASE))
def watch(plan: PlanId, json: Json = False, config: ConfigFile = None) -> int:
    """Follow a plan to its end: shows bytes and rate on a terminal, and one line for each change elsewhere."""
    with command_run(json, config) as run:
        return _follow_all(run, [plan])[0]


def _follow_all(run: CommandRun, plans: Sequence[str]) -> list[int]:
    """Follow one plan after the other and return the exit code of each. Raises ProblemError if interrupted."""
    codes: list[int] = []
    for number, plan in enumerate(plans):
        try:
            codes.append(follow(run, plan))
        except KeyboardInterrupt:
            left = plans[number:]
            what = f"plan {plan} continues" if len(left) == 1 else f"{len(left)} plans continue"
            how = f"To follow: lakefold plans watch {plan}; to stop: lakefold plans cancel {plan}"
            text = f"interrupted; {what} without this command. {how}"
            raise ProblemError(INTERRUPTED, text, plans=list(left)) from None
    return codes


def follow(run: CommandRun, plan: str) -> int:
    """Follow one plan to its end and return the exit code of its final state.

    Progress is a bar on a terminal, a line for each change with ``--json``, and a line at intervals elsewhere.
    """
    seen: tuple[Any, ...] = ()
    began = printed_at = time.monotonic()
    warned, printed_bytes, state = False, 0, ""
    with run.out.progress(f"plan {plan[:13]}") as advance:
        for news in run.client.watch(plan):
            now, state = time.monotonic(), news["state"]
            done = news["progress_bytes_done"]
            pause = 0.0 if run.out.json else math.inf if run.out.shows_progress_bar else PROGRESS_SECONDS
            moved = done != printed_bytes and now - printed_at >= pause
            if (state, news["step"], news["attempts"]) != seen or moved:
                seen, printed_at, printed_bytes = (state, news["step"], news["attempts"]), now, done
                _print_change(run, news)
            advance(done, news["progress_bytes_total"])
            if not warned and state == "requested" and now - began > WAITING_NOTE_SECONDS:
                warned = True
                run.out.note(_waiting_reason(run, news))
    return _EXIT_CODE_BY_STATE[state]


def _waiting_reason(run: CommandRun, plan: Mapping[str, Any]) -> str:
    if plan["waits_for_approval"]:
        return f"waiting for approval: lakefold plans approve {plan['plan_id']}"
    status, name = run.client.status(), plan["table"]
    table = next((entry for entry in status["attention"] if entry["table"] == name), None)
    if table and table["halted_at"]:
        return f"{name} is halted: {table['halted_reason']}; no executor takes its plans until lakefold resume {name}"
    if status["paused"] or (table and table["paused_by"]):
        what, command = (name, f"resume {name}") if table and table["paused_by"] else ("lakefold", "resume")
        return f"{what} is paused; no executor takes the plan until lakefold {command}"
    if parse_timestamp(plan["not_before"]) > datetime.now(UTC):
        return (
            f"waiting until {parse_timestamp(plan['not_before']).isoformat(timespec='seconds')} after: {plan['error']}"
        )
    held = next((entry for entry in status["work"]["waiting_plans"] if entry["plan_id"] == plan["plan_id"]), None)
    if held is not None:
        return f"the plan {held['reason']}"
    busy = "no executor has taken the plan yet; all of them are busy: lakefold plans list --state inflight"
    return str(status["no_executor_reason"] or busy)


def _print_change(run: CommandRun, plan: Mapping[str, Any]) -> None:
    state = plan["state"]
    text = f"{plan['plan_id']}  {state}"
    if state == "inflight":
        text += f" · {plan['step']} done" if plan["step"] else ""
        if plan["progress_bytes_done"]:
            text += f" · {format_size(plan['progress_bytes_done'])} of {format_size(plan['progress_bytes_total'])}"
    if state == "completed":
        files = f"{plan['files_before']:,} → {plural(plan['files_after'], 'file')}"
        sizes = f"{format_size(plan['bytes_before'])} → {format_size(plan['bytes_after'])}"
        text += f": {files}, {sizes}, instant {plan['instant']}"
    elif plan["error"] or plan["cancel_reason"]:
        text += f": {plan['error'] or plan['cancel_reason']}"
    run.out.result(plan, lambda: run.out.line(text))
