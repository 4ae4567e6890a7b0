# SPDX-License-Identifier: Apache-2.0
"""The commands ``lakefold tables``, which list, show, explain, roll back and repair tables."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from service.cli.commands.common import CommandRun, ConfigFile, Json, Table, Yes, command_run
from service.cli.output.column_widths import TableColumn
from service.cli.output.tables import format_share, print_files, print_reasons, print_table, print_tables
from service.former_names import FORMER_STATES, present_order
from service.modes import MODES, PLANNED_MODES
from service.problems import LIVE_PLAN, NOT_FOUND, USAGE, ExitCode, ProblemError, exit_codes_help
from service.text import did_you_mean, format_size, plural

if TYPE_CHECKING:
    from lake.capabilities import PendingAction, Resurrected
    from service.control.store import TableFilter

app = typer.Typer(help="List, show and repair tables; explain why a file is planned or not.", no_args_is_help=True)


NameOption = Annotated[str | None, typer.Option("--name", metavar="PART", help="Only tables whose name contains this.")]
DatabaseOption = Annotated[
    str | None,
    typer.Option("--database", "-d", metavar="NAME", help="Only tables of this database (name up to the last dot)."),
]
StateOption = Annotated[
    str | None,
    typer.Option(
        "--state",
        "-s",
        help="Only tables in state halted, paused, compact, propose, observe, off, unreadable or objective_missed.",
    ),
]
FormatOption = Annotated[str | None, typer.Option("--format", "-f", help="Only tables of this format.")]
ModeOption = Annotated[
    str | None, typer.Option("--mode", "-m", help="Only tables in mode compact, propose, observe or off.")
]
OwnerOption = Annotated[str | None, typer.Option("--owner", help="Only tables with this owner in the configuration.")]

TagOption = Annotated[str | None, typer.Option("--tag", help="Only tables with this tag in the configuration.")]


@app.command("list", epilog=exit_codes_help(ExitCode.PENDING, ExitCode.DATABASE))
def list_(
    name: NameOption = None,
    database: DatabaseOption = None,
    state: StateOption = None,
    format: FormatOption = None,
    mode: ModeOption = None,
    owner: OwnerOption = None,
    tag: TagOption = None,
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            metavar="ORDER",
            help="Sort by attention, name, state, format, mode, owner, files, reducible, median_bytes, bytes, "
            "rewrite_bytes, last_plan, last_scan or error_budget; a leading - means descending.",
        ),
    ] = "-rewrite_bytes",
    limit: Annotated[int | None, typer.Option("--limit", "-l", min=1, help="Show at most this many.")] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 4 if a table has files to rewrite.")] = False,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """List the tables as of their last scans, tables with the most bytes to rewrite first."""
    with command_run(json, config) as run:
        table_filter = build_table_filter(
            run, name=name, database=database, state=state, format=format, mode=mode, owner=owner, tag=tag
        )
        found = run.client.tables(table_filter, _check_sort(run, sort), limit)
        run.out.results(found.tables, lambda: print_tables(run.out, found.tables, filtered=bool(table_filter)))
        for problem in found.problems:
            run.out.note(problem)
    served = [entry["scan"] for entry in found.tables if entry["scan"] and entry["mode"] in PLANNED_MODES]
    waiting = any(scan["reducible_bytes"] for scan in served)
    return ExitCode.PENDING if exit_code and waiting else ExitCode.OK


@app.command("databases", epilog=exit_codes_help(ExitCode.DATABASE))
def databases(
    name: NameOption = None,
    state: StateOption = None,
    format: FormatOption = None,
    mode: ModeOption = None,
    owner: OwnerOption = None,
    tag: TagOption = None,
    json: Json = False,
    config: ConfigFile = None,
) -> None:
    """Show the totals of each database; a table's database is its name up to the last dot."""
    with command_run(json, config) as run:
        table_filter = build_table_filter(
            run, name=name, database=None, state=state, format=format, mode=mode, owner=owner, tag=tag
        )
        found = run.client.databases(table_filter)
        columns = (
            TableColumn("DATABASE"),
            TableColumn("TABLES", True),
            TableColumn("HALTED", True),
            TableColumn("FILES", True),
            TableColumn("BYTES", True),
            TableColumn("REDUCIBLE", True),
            TableColumn("TO REWRITE", True),
        )
        rows = (
            (
                entry["database"] or "(none)",
                f"{entry['tables']:,}",
                entry["halted"] or "",
                f"{entry['files']:,}",
                format_size(entry["bytes"]),
                format_share(entry["reducible_files"], entry["files"]),
                format_size(entry["reducible_bytes"]),
            )
            for entry in found
        )
        run.out.results(found, lambda: run.out.table(columns, rows))


def build_table_filter(run: CommandRun, **options: str | None) -> "TableFilter":
    """Build the filter from the options. Raises ProblemError for an unknown state or mode."""
    from service.control.store.views import EXTRA_STATE_FILTERS, TABLE_STATES

    if (state := options["state"]) is not None and state in FORMER_STATES:
        options["state"] = FORMER_STATES[state]
        run.out.deprecated(f"--state {state}", f"--state {options['state']}")
    known = {"state": (*TABLE_STATES, *EXTRA_STATE_FILTERS), "mode": MODES}
    for option, words in known.items():
        if (word := options[option]) is not None and word not in words:
            refusal = f"--{option} {word!r} is not one of {', '.join(words)}"
            raise ProblemError(USAGE, f"{refusal}{did_you_mean(word, words)}")
    return cast("TableFilter", {key: value for key, value in options.items() if value is not None})


def _check_sort(run: CommandRun, sort: str) -> str:
    from service.control.store import TableOrder

    if (present := present_order(sort)) != sort:
        run.out.deprecated(f"--sort {sort}", f"--sort {present}")
        sort = present
    orders = [str(order) for order in TableOrder]
    if (word := sort.removeprefix("-")) not in orders:
        raise ProblemError(USAGE, f"--sort {sort!r} is not one of {', '.join(orders)}{did_you_mean(word, orders)}")
    return sort


@app.command("show", epilog=exit_codes_help(ExitCode.NOT_FOUND, ExitCode.DATABASE))
def show(table: Table, json: Json = False, config: ConfigFile = None) -> None:
    """Show one table: its facts, and the sizes of its files at the last scan."""
    with command_run(json, config) as run:
        found = run.client.table(table)
        run.out.result(found, lambda: print_table(run.out, found))


@app.command("rollback", epilog=exit_codes_help(ExitCode.NOT_FOUND, ExitCode.LIVE_PLAN, ExitCode.DATABASE))
def rollback(
    table: Table,
    instant: Annotated[str, typer.Argument(metavar="INSTANT", help="A pending instant, as tables show names it.")],
    yes: Yes = False,
    json: Json = False,
    config: ConfigFile = None,
) -> None:
    """Roll back an action that another process began on a table and abandoned: a write, clustering or compaction.

    A write is removed. A clustering or compaction stays scheduled; the files written for it are deleted. An instant of
    a lakefold plan that has ended, or that this database does not know, is withdrawn. The command refuses completed
    instants, actions whose process is still alive (exit 1), and instants of live plans of this database (exit 11).
    """
    from lake import capabilities
    from lake.capabilities import RollsBack
    from lake.ports import Capability
    from service.control.wiring import start_spark

    with command_run(json, config) as run:
        found = run.table(table)
        capabilities.require_capability(found.adapter, found.ref, Capability.ROLL_BACK)
        _check_rollback(run, found.name, capabilities.pending_actions(found.adapter, found.ref), instant)
        if run.out.can_prompt and not yes:
            typer.confirm(f"Delete the files of {instant} on {found.name}?", abort=True, err=True)
        with found.adapter.writer(found.ref, lambda: start_spark(run.config, found.ref)) as writer:
            assert isinstance(writer, RollsBack)
            done = writer.roll_back(instant)
        run.out.result({"table": found.name, "instant": instant, "done": done}, lambda: run.out.line(done))


def _check_rollback(run: CommandRun, table: str, pending: "Sequence[PendingAction]", instant: str) -> None:
    """Check without a Spark session: raise ProblemError if ``instant`` is not pending or belongs to a known plan."""
    from lake.plan import LIVE_STATES

    entry = next((entry for entry in pending if entry.instant == instant), None)
    if entry is None:
        remedy = f"lakefold tables show {table} lists them"
        raise ProblemError(NOT_FOUND, f"{table} has no pending instant {instant}; {remedy}")
    adopted = run.store.adopted_plans(table, [instant]).get(instant)
    plan_id = entry.plan_id or adopted
    state = plan_id and run.store.plan_state(plan_id)
    if plan_id is None or state is None:
        return  # It belongs to another program or another lakefold. Heartbeats show whether the owner is alive.
    held = f"{entry.action} {instant} belongs to plan {plan_id}"
    if state in LIVE_STATES:
        raise ProblemError(LIVE_PLAN, f"{held}; to end it: lakefold plans cancel {plan_id}", plan_id=plan_id)
    if entry.plan_id is not None and entry.must_execute:
        by_itself = "the next scan creates a plan that executes it"
        raise ProblemError(LIVE_PLAN, f"{held}, which is {state}; {by_itself}", plan_id=plan_id)


@app.command("repair", epilog=exit_codes_help(ExitCode.PARTIAL, ExitCode.NOT_FOUND, ExitCode.DATABASE))
def repair(
    table: Table,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="List the files to be deleted; delete none.")
    ] = False,
    yes: Yes = False,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Delete replaced file groups that readers see again. Exits 3 if some could not be deleted.

    Readers see replaced files again, and read their rows twice, if a commit leaves the timeline before the files that
    it replaced are deleted. The archived timeline proves that they were replaced. A group that a writer has changed
    since then is left alone. Without a terminal, nothing is deleted unless --yes is given.
    """
    from lake.capabilities import FindsResurrected, RepairsResurrected
    from service.control.wiring import start_spark

    with command_run(json, config) as run:
        found = run.table(table)
        groups = list(found.adapter.find_resurrected(found.ref)) if isinstance(found.adapter, FindsResurrected) else []
        able = [group for group in groups if group.refusal is None]
        run.out.note(_describe_resurrected(found.name, groups))
        going = bool(able) and not dry_run and (yes or run.out.can_prompt)
        if going and not yes:
            typer.confirm(f"Delete {plural(len(able), 'file group')} of {found.name}?", abort=True, err=True)
        if going:
            with found.adapter.writer(found.ref, lambda: start_spark(run.config, found.ref)) as writer:
                assert isinstance(writer, RepairsResurrected)
                able = list(writer.remove_resurrected())
        gone = {(group.partition, group.file_id) for group in able} if going else set()
        entries = [
            {"table": found.name, "group": group, "deleted": (group.partition, group.file_id) in gone}
            for group in groups
        ]
        run.out.results(entries, lambda: _print_repaired(run, entries))
    return ExitCode.OK if all(entry["deleted"] for entry in entries) else ExitCode.PARTIAL


def _describe_resurrected(table: str, groups: "Sequence[Resurrected]") -> str:
    if not groups:
        return f"{table}: no replaced file group is live again"
    rows = [group.rows for group in groups if group.rows is not None]
    counted = f", {plural(sum(rows), 'row')} read twice" if len(rows) == len(groups) else ""
    return f"{table}: {plural(len(groups), 'replaced file group')} live again{counted}"


def _print_repaired(run: CommandRun, entries: Sequence[Mapping[str, Any]]) -> None:
    for entry in entries:
        group = entry["group"]
        state = (
            "deleted" if entry["deleted"] else f"left alone: {group.refusal}" if group.refusal else "would be deleted"
        )
        run.out.line(f"{state}, replaced by {group.instant}:")
        for path, number in group.files.items():
            run.out.line(f"  {path} {format_size(number)}")


@app.command("explain", epilog=exit_codes_help(ExitCode.NOT_FOUND, ExitCode.DATABASE))
def explain(
    table: Table,
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", metavar="PART", help="Only this partition.")
    ] = None,
    files: Annotated[bool, typer.Option("--files", help="List each file with its reason.")] = False,
    json: Json = False,
    config: ConfigFile = None,
) -> None:
    """Scan a table now and explain every file: chosen for a plan, or left alone, with the reason and the setting."""
    with command_run(json, config) as run:
        found = run.client.explain(table, partition, files=files)
        if json:
            run.out.results(found["items"], lambda: None)
            of_table = {
                key: found[key]
                for key in ("table", "instant", "writers", "reads_per_day", "reads_source")
                if key in found
            }
            sums = {"total": True, **of_table, **found["total"]}
            run.out.results([sums], lambda: None)
            return
        run.out.note(f"{found['table']} at instant {found['instant'] or '–'}, mode {found['mode']}")
        if found.get("reads_source", "configured") != "configured":  # a service of an earlier release omits the source
            run.out.note(f"{found['reads_per_day']:g} reads a day ({found['reads_source']})")
        for note in found["notes"]:
            run.out.note(note)
        for writer in found["writers"]:
            run.out.note(writer["text"])
        for objective in found["objectives"]:
            run.out.note(f"Objective: {objective['text']}: {'met' if objective['met'] else 'missed'}")
        if files:
            print_files(run.out, found["items"], found["total"])
        else:
            print_reasons(run.out, found["items"], found["total"])
