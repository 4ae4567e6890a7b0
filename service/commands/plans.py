# SPDX-License-Identifier: Apache-2.0
"""``lakefold plans``: what is planned, running and done, and asking for more."""

import math
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.commands.answers import answer_text
from service.commands.common import (
    ConfigFile,
    Json,
    PlanId,
    Run,
    Table,
    actor,
    command,
    partition_name,
    plural,
)
from service.documents import plan_details, plan_progress, plan_summary
from service.exitcodes import USAGE, CommandError, ExitCode, exit_codes
from service.output import Column, age, size

if TYPE_CHECKING:
    from service.store.views import PlanEvent, PlanView

app = typer.Typer(help="Plans: requested, inflight, completed, failed, cancelled.", no_args_is_help=True)
POLL_SECONDS = 0.5
PATIENCE_SECONDS = 15
PROGRESS_SECONDS = 10
TERMINAL = ("completed", "failed", "cancelled")
_ENDS = {"completed": ExitCode.OK, "failed": ExitCode.ERROR, "cancelled": ExitCode.PARTIAL}


def add_to(root: typer.Typer) -> None:
    """Register the commands."""
    root.add_typer(app, name="plans", rich_help_panel=None)


@app.command("list", epilog=exit_codes(ExitCode.NOT_FOUND, ExitCode.PENDING, ExitCode.DATABASE))
def list_(
    table: Annotated[str | None, typer.Option("--table", "-t", metavar="TABLE", help="Only this table's.")] = None,
    state: Annotated[str | None, typer.Option("--state", "-s", help="Only plans in this state.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, max=1000, help="At most so many.")] = 50,
    after: Annotated[str | None, typer.Option("--after", metavar="PLAN", help="Continue behind this plan.")] = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit 4 when a listed plan is not at its end.")
    ] = False,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """List plans, newest first."""
    from lake.plan import LIVE_STATES, PlanState
    from service.config import nearest

    with command(json, config) as run:
        states = [known.value for known in PlanState]
        if state is not None and state not in states:
            raise CommandError(USAGE, f"--state {state!r} is none of {', '.join(states)}{nearest(state, states)}")
        name = run.table_name(table) if table else None
        plans = run.store.plans(table=name, state=PlanState(state) if state else None, limit=limit, after=after)
        run.out.many((plan_summary(plan) for plan in plans), lambda: _list_text(run, plans, limit))
        live = any(plan.state in LIVE_STATES for plan in plans)
    return ExitCode.PENDING if exit_code and live else ExitCode.OK


def _list_text(run: Run, plans: "list[PlanView]", limit: int) -> None:
    now = datetime.now(UTC)
    columns = (
        Column("PLAN"), Column("TABLE"), Column("KIND"), Column("STATE"), Column("FILES", True), Column("BYTES", True),
        Column("PROGRESS", True), Column("AGE", True), Column("ERROR"),
    )  # fmt: skip
    run.out.table(
        columns,
        (
            (
                plan.plan_id, plan.table, plan.kind.value, plan.state.value,
                f"{plan.files_before or plan.input_files:,} → {plan.files_after or plan.output_files:,}",
                size(plan.input_bytes), _percent(plan), age(plan.created_at, now).removesuffix(" ago"),
                (plan.error or plan.cancel_reason or "")[:100],
            )
            for plan in plans
        ),
    )  # fmt: skip
    if len(plans) == limit:
        run.out.note(f"More may follow: --after {plans[-1].plan_id}")


def _percent(plan: "PlanView") -> str:
    if plan.state.value != "inflight" or not plan.progress_bytes_total:
        return ""
    return f"{100 * plan.progress_bytes_done / plan.progress_bytes_total:.0f} %"


@app.command("show", epilog=exit_codes(ExitCode.NOT_FOUND, ExitCode.DATABASE))
def show(plan: PlanId, json: Json = False, config: ConfigFile = None) -> None:
    """Show one plan: partitions before and after, time of each step, what happened and when."""
    with command(json, config) as run:
        view = run.store.plan(plan)
        events = run.store.events(view.plan_id)
        run.out.one(plan_details(view, events), lambda: _show_text(run, view, events))


def _show_text(run: Run, view: "PlanView", events: "list[PlanEvent]") -> None:
    from lake.plan import Step
    from lake.units import format_duration

    out, now = run.out, datetime.now(UTC)
    out.line(f"Plan {view.plan_id}  {view.state.value}  {view.kind.value} of {view.table}")
    facts = [
        ("location", view.location),
        ("created", f"{view.created_at.isoformat(timespec='seconds')} ({age(view.created_at, now)}) by {view.actor}"),
        ("request", view.request_id),
        ("adopted", view.adopted and f"instant {view.adopted}, scheduled by another process"),
        (
            "input",
            f"{plural(view.input_files, 'file')}, {size(view.input_bytes)} in {plural(view.group_count, 'group')} of "
            f"{plural(view.partition_count, 'partition')}; {plural(view.output_files, 'file')} expected",
        ),
        ("executor", view.executor and f"{view.executor}, epoch {view.epoch}, attempt {view.attempts}"),
        ("instant", view.instant or ", ".join(view.instants)),
        ("error", view.error),
        ("cancelled", view.cancel_reason and f"{view.cancel_reason} (by {view.cancel_requested_by})"),
    ]
    for label, value in facts:
        if value:
            out.line(f"  {label:<10} {value}")
    if view.state.value == "inflight" and view.progress_bytes_total:
        done = f"{size(view.progress_bytes_done)} of {size(view.progress_bytes_total)}, {_percent(view)}"
        out.line(f"  {'progress':<10} {done}")
    if view.milliseconds:
        # in the order in which they run, whatever the database made of the order
        spent = {step: view.milliseconds[step] for step in (*Step, *view.milliseconds) if step in view.milliseconds}
        steps = "  ".join(f"{step} {format_duration(ms / 1000)}" for step, ms in spent.items())
        out.line(f"  {'steps':<10} {steps}")
    out.line()
    _partitions_text(run, view)
    if view.left_out:
        out.line()
        out.line("Left out")
        for group in view.left_out:
            out.line(f"  group {group.number} of {partition_name(group.partition)}: {group.left_out}")
    out.line()
    out.table(
        (Column("AT"), Column("STATE"), Column("EPOCH", True), Column("ACTOR"), Column("REASON")),
        (
            (event.at.isoformat(timespec="milliseconds"), event.to_state.value, event.epoch, event.actor, event.reason)
            for event in events
        ),
    )


def _partitions_text(run: Run, view: "PlanView") -> None:
    titles = [
        Column("PARTITION"),
        Column("FILES", True),
        Column("BYTES", True),
        Column("AFTER", True),
        Column("BYTES", True),
    ]
    if view.figures:
        rows = [
            (partition_name(f.partition), f.files_before, size(f.bytes_before), f.files_after, size(f.bytes_after))
            for f in view.figures
        ]
        rows.append(
            ("total", view.files_before, size(view.bytes_before), view.files_after, size(view.bytes_after))
        )  # fmt: skip
        run.out.table(titles, rows)
        return
    sums: dict[str, list[int]] = {}
    for group in view.groups:
        entry = sums.setdefault(group.partition, [0, 0, 0])
        for index, count in enumerate((group.input_files, group.input_bytes, group.output_files)):
            entry[index] += count
    titles[3:] = [Column("EXPECTED", True)]
    run.out.table(titles, ((partition_name(p), f, size(b), o) for p, (f, b, o) in sorted(sums.items())))


@app.command(
    "request",
    epilog=exit_codes(ExitCode.PARTIAL, ExitCode.NOT_FOUND, ExitCode.LIVE_PLAN, ExitCode.HALTED, ExitCode.DATABASE),
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
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Print the exact plan and store none.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the plans to their end.")] = False,
    files: Annotated[bool, typer.Option("--files", help="With --dry-run: list every file of every group.")] = False,
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", metavar="KEY", help="The same key asks only once.")
    ] = None,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="How long to wait for the scheduler's answer.")
    ] = "5min",
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Scan a table now and plan all that is free of live plans; "nothing to do" is an answer, with reasons.

    A running scheduler answers; where there is none this process takes its place for the moment. Exit 11 only where
    every partition asked for is held by a live plan; a table not in mode compact is refused with 12, except with -n.
    """
    from lake.plan import PlanKind
    from lake.units import parse_duration
    from service.asking import ask
    from service.config import nearest

    with command(json, config) as run:
        overrides = _overrides(setting or [])
        kinds = [known.value for known in PlanKind]
        if kind is not None and kind not in kinds:
            raise CommandError(USAGE, f"--kind {kind!r} is none of {', '.join(kinds)}{nearest(kind, kinds)}")
        try:
            seconds = parse_duration(timeout).total_seconds()
        except ValueError as error:
            raise CommandError(USAGE, f"--timeout: {error}") from error
        answer = ask(
            run.config, run.store, run.table(table), partitions=partition, overrides=overrides, dry_run=dry_run,
            idempotency_key=idempotency_key, actor=actor(), timeout_seconds=seconds,
            kind=PlanKind(kind) if kind else None,
        )  # fmt: skip
        run.out.one(answer.document(), lambda: answer_text(run, answer, all_files=files))
        codes = [follow(run, plan_id) for plan_id in answer.plan_ids] if wait else []
    return next((code for code in (ExitCode.ERROR, ExitCode.PARTIAL) if code in codes), ExitCode.OK)


def _overrides(settings: list[str]) -> dict[str, str]:
    overrides = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key.strip():
            raise CommandError(USAGE, f"--set {setting!r} is not KEY=VALUE, such as small_file_limit=64MiB")
        overrides[key.strip()] = value.strip()
    return overrides


@app.command("cancel", epilog=exit_codes(ExitCode.NOT_FOUND, ExitCode.DATABASE))
def cancel(
    plan: PlanId,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the plan's history.")] = "cancelled by hand",
    json: Json = False,
    config: ConfigFile = None,
) -> None:
    """Cancel a plan: at once while requested; an inflight one stops before its commit."""
    with command(json, config) as run:
        view = run.store.plan(plan)
        state = run.store.request_cancel(view.plan_id, actor=actor(), reason=reason)
        at_once = state.value == "cancelled"
        text = "cancelled" if at_once else f"is {state.value}; its executor was asked to stop before the commit"
        run.out.one(
            {"plan_id": view.plan_id, "state": state, "cancel_requested": not at_once},
            lambda: run.out.line(f"Plan {view.plan_id} {text}"),
        )


@app.command("retry", epilog=exit_codes(ExitCode.NOT_FOUND, ExitCode.LIVE_PLAN, ExitCode.DATABASE))
def retry(plan: PlanId, json: Json = False, config: ConfigFile = None) -> None:
    """Request a failed plan again; its partitions must be free."""
    with command(json, config) as run:
        view = run.store.plan(plan)
        run.store.retry(view.plan_id, actor=actor())
        run.out.one(
            {"plan_id": view.plan_id, "state": "requested"},
            lambda: run.out.line(f"Plan {view.plan_id} requested again"),
        )


@app.command("watch", epilog=exit_codes(ExitCode.PARTIAL, ExitCode.NOT_FOUND, ExitCode.DATABASE))
def watch(plan: PlanId, json: Json = False, config: ConfigFile = None) -> int:
    """Follow a plan to its end: bytes and rate on a terminal, one line for each change otherwise."""
    with command(json, config) as run:
        return follow(run, run.store.plan(plan).plan_id)


def follow(run: Run, plan_id: str) -> int:
    """Follow one plan to its end; the exit code its end means.

    Progress is a bar on a terminal, a line for each change with ``--json``, and a line now and then elsewhere.
    """
    seen: tuple[Any, ...] = ()
    began = told = time.monotonic()
    warned, bytes_told = False, 0
    with run.out.progress(f"plan {plan_id[:13]}") as advance:
        while True:
            view, now = run.store.plan(plan_id), time.monotonic()
            pause = 0.0 if run.out.json else math.inf if run.out.has_bar else PROGRESS_SECONDS
            moved = view.progress_bytes_done != bytes_told and now - told >= pause
            if (view.state, view.step, view.attempts) != seen or moved:
                seen, told, bytes_told = (view.state, view.step, view.attempts), now, view.progress_bytes_done
                _change(run, view)
            advance(view.progress_bytes_done, view.progress_bytes_total)
            if view.state.value in TERMINAL:
                break
            if not warned and view.state.value == "requested" and now - began > PATIENCE_SECONDS:
                warned = True
                run.out.note(_why_waiting(run, view))
            time.sleep(POLL_SECONDS)
    return _ENDS[view.state.value]


def _why_waiting(run: Run, view: "PlanView") -> str:
    state = run.store.table_state(view.table)
    if state.halted:
        return f"{view.table} is halted: {state.halted_reason}; no executor takes its plans until lakefold resume"
    if state.paused or run.store.paused():
        return (
            f"{view.table if state.paused else 'lakefold'} is paused; no executor takes the plan until lakefold resume"
        )
    if view.not_before > datetime.now(UTC):
        return f"waiting until {view.not_before.isoformat(timespec='seconds')} after: {view.error}"
    return "no executor has taken the plan yet; is one running (lakefold serve, or lakefold worker)?"


def _change(run: Run, view: "PlanView") -> None:
    step = f" · {view.step} done" if view.step and view.state.value == "inflight" else ""
    if view.state.value == "inflight" and view.progress_bytes_done:
        step += f" · {size(view.progress_bytes_done)} of {size(view.progress_bytes_total)}"
    end = ""
    if view.state.value == "completed":
        files = f"{view.files_before:,} → {plural(view.files_after, 'file')}"
        end = f": {files}, {size(view.bytes_before)} → {size(view.bytes_after)}, instant {view.instant}"
    elif view.error or view.cancel_reason:
        end = f": {view.error or view.cancel_reason}"
    run.out.one(plan_progress(view), lambda: run.out.line(f"{view.plan_id}  {view.state.value}{step}{end}"))
