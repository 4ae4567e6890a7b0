# SPDX-License-Identifier: Apache-2.0
"""``lakefold serve``, ``worker``, ``status``, ``pause``, ``resume`` and ``demo``: running it, and one look at it."""

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service import documents
from service.commands.common import ConfigFile, Json, MaybeTable, Run, Yes, actor, command, plural
from service.exitcodes import ExitCode, exit_codes
from service.output import Column, age, size

if TYPE_CHECKING:
    from service.store import Figures, Leader, PlanView


class Role(StrEnum):
    """What a process does; all of it in the small installation."""

    ALL = "all"
    SCHEDULER = "scheduler"
    EXECUTOR = "executor"
    API = "api"


def add_to(root: typer.Typer) -> None:
    """Register the commands."""
    for name, function, codes, short in (
        ("serve", serve, (ExitCode.PARTIAL, ExitCode.DATABASE), "Run the service."),
        ("worker", worker, (ExitCode.PARTIAL, ExitCode.DATABASE), "Run plans only."),
        ("status", status, (ExitCode.PENDING, ExitCode.DATABASE), "Say in one line how the lake is."),
        ("pause", pause, (ExitCode.NOT_FOUND, ExitCode.DATABASE), "Start no more plans."),
        ("resume", resume, (ExitCode.NOT_FOUND, ExitCode.DATABASE), "End a pause or a halt."),
        ("demo", demo, (ExitCode.PARTIAL,), "Watch a real table getting healthy."),
    ):
        root.command(name, epilog=exit_codes(*codes), short_help=short)(function)


def status(
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 4 when plans wait or run.")] = False,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Say in one line how the lake is, then who works on it and what needs a person."""
    with command(json, config) as run:
        figures = run.store.figures()
        data = documents.status(figures, list(run.store.last_scans(ok=True).values()), _recent(run))
        leaders = run.store.leaders()
        run.out.one(data | {"leaders": leaders}, lambda: _status_text(run, figures, data, leaders))
    return ExitCode.PENDING if exit_code and data["requested"] + data["inflight"] else ExitCode.OK


def _recent(run: Run) -> "list[PlanView]":
    from lake.plan import PlanState

    return run.store.plans(state=PlanState.COMPLETED, limit=documents.RECENT_PLANS)


def _status_text(run: Run, figures: "Figures", data: dict[str, Any], leaders: "list[Leader]") -> None:
    out, now = run.out, figures.taken_at
    out.line(documents.answer_line(data))
    out.line()
    live = [leader for leader in leaders if leader.live]
    if live:
        rows = ((leader.role, leader.holder, age(leader.acquired_at, now)) for leader in live)
        out.table((Column("LEADER OF"), Column("HOLDER"), Column("SINCE")), rows)
    else:
        out.line("No scheduler is running; lakefold serve starts everything.")
    if data["oldest_requested_at"]:
        out.line(f"The oldest waiting plan was stored {age(data['oldest_requested_at'], now)}.")
    if data["superseded_files"]:
        files = plural(data["superseded_files"], "superseded file")
        out.line(f"{files}, {size(data['superseded_bytes'])}, wait for their retention; lakefold clean -n lists them.")
    for table in figures.tables:
        if table.halted:
            out.line(f"{table.name} is halted since {age(table.halted_at, now)}: {table.halted_reason}")
        if table.quarantined:
            files = plural(len(table.quarantined), "file")
            out.line(f"{table.name}: {files} can't be read and are left alone; lakefold tables show {table.name}")
        if table.paused:
            out.line(f"{table.name} is paused by {table.paused_by}")


def pause(table: MaybeTable = None, json: Json = False, config: ConfigFile = None) -> None:
    """Start no more plans of one table, or of any; what runs goes on to its end."""
    with command(json, config) as run:
        name = None if table is None else _known_name(run, table)
        run.store.pause(name, actor())
        run.out.one(
            {"table": name, "paused": True}, lambda: run.out.line(f"{name or 'lakefold'} paused; running plans go on")
        )


def resume(table: MaybeTable = None, yes: Yes = False, json: Json = False, config: ConfigFile = None) -> None:
    """End a pause; of a named table also its halt and its quarantine."""
    with command(json, config) as run:
        name = None if table is None else _known_name(run, table)
        if name is not None:
            state = run.store.table_state(name)
            if state.halted and run.out.can_ask and not yes:
                typer.confirm(f"{name} was halted: {state.halted_reason}. Resume?", abort=True, err=True)
        run.store.resume(name, actor())
        run.out.one({"table": name, "paused": False}, lambda: run.out.line(f"{name or 'lakefold'} resumed"))


def _known_name(run: Run, word: str) -> str:
    """The name of a table, registered where the database has not seen it yet."""
    if word in {state.name for state in run.store.tables()}:
        return word
    found = run.table(word)
    run.store.register(found.ref, found.mode)
    return found.name


def serve(
    role: Annotated[Role, typer.Option("--role", help="Do only this part; other processes do the rest.")] = Role.ALL,
    once: Annotated[bool, typer.Option("--once", help="Do what there is to do now, and end.")] = False,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Run the service: scan, plan, rewrite, rescue, clean, and serve /metrics, until SIGTERM.

    The first signal lets running plans end, the second one stops them before their commit. With --once exit 3 when
    a plan failed or is left.
    """
    return _serve(role, once=once, json=json, config=config)


def worker(
    once: Annotated[bool, typer.Option("--once", help="End when no plan is waiting.")] = False,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Run plans only: serve --role executor. With --once exit 3 when a plan failed or is left."""
    return _serve(Role.EXECUTOR, once=once, json=json, config=config)


def _serve(role: Role, *, once: bool, json: bool, config: Path | None) -> int:
    from service.daemon import serve as run_daemon

    with command(json, config) as run:
        daemon = run.config.daemon.model_copy(update={"log_format": "json"}) if json else run.config.daemon
        return int(run_daemon(replace(run.config, daemon=daemon), role.value, once))


def demo(
    workdir: Annotated[
        Path | None, typer.Option("--workdir", metavar="DIR", help="Where table, database and logs go.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave writer and service running at the end.")] = False,
    json: Json = False,
) -> int:
    """Watch a real Hudi table being written with small files, compacted, cleaned and compared, in three minutes."""
    from service.demo.command import run as run_demo

    return int(run_demo(workdir=workdir, keep=keep, json=json) or ExitCode.OK)
