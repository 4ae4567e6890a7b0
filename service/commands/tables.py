# SPDX-License-Identifier: Apache-2.0
"""``lakefold tables``: what there is, how large its files are, and why each file is planned or left alone."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.commands.common import (
    LIVE_PLAN,
    NOT_FOUND,
    CommandError,
    ConfigFile,
    Json,
    Run,
    Table,
    Yes,
    command,
    partition_name,
    plural,
)
from service.documents import table_details, table_state_word, table_summary
from service.exitcodes import ExitCode, exit_codes
from service.output import Column, age, bar_chart, size

if TYPE_CHECKING:
    from lake.ports import Unfinished
    from service.account import Line
    from service.rules import ConfiguredTable
    from service.store import ScanRecord, TableState

app = typer.Typer(help="Tables: what there is and why each file is planned or left alone.", no_args_is_help=True)


def add_to(root: typer.Typer) -> None:
    """Register the commands."""
    root.add_typer(app, name="tables")


@app.command("list", epilog=exit_codes(ExitCode.PENDING, ExitCode.DATABASE))
def list_(
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 4 when a table has a backlog.")] = False,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """List the tables, the largest backlog first, as the last scan of each saw it."""
    from service.rules import configure

    with command(json, config) as run:
        states = {state.name: state for state in run.store.tables()}
        scans = run.store.last_scans()
        tables = {table.name: table for table in run.catalog.tables()}
        for state in states.values():  # seen before, but no source covers them now
            tables.setdefault(state.name, configure(run.config, state.ref))
        found = [(table, states.get(table.name), scans.get(table.name)) for table in tables.values()]
        found.sort(key=lambda entry: (-(entry[2].backlog_bytes if entry[2] else 0), entry[0].name))
        run.out.many((table_summary(*entry) for entry in found), lambda: _list_text(run, found))
        for problem in run.catalog.problems:
            run.out.note(problem)
        waiting = any(scan and scan.backlog_bytes and table.mode == "compact" for table, _, scan in found)
    return ExitCode.PENDING if exit_code and waiting else ExitCode.OK


def _list_text(run: Run, found: "Sequence[tuple[ConfiguredTable, TableState | None, ScanRecord | None]]") -> None:
    now = datetime.now(UTC)
    columns = (
        Column("TABLE"), Column("STATE"), Column("FILES", True), Column("BYTES", True), Column("SMALL", True),
        Column("BACKLOG", True), Column("SCANNED"), Column("LOCATION"),
    )  # fmt: skip
    rows = []
    for table, state, scan in found:
        word = table_state_word(table, state)
        if scan is None:
            rows.append((table.name, word, "", "", "", "", "never", table.ref.location))
        elif scan.outcome != "ok":
            seen = f"{age(scan.taken_at, now)}: {scan.error}"
            rows.append((table.name, word, "", "", "", "", seen, table.ref.location))
        else:
            rows.append(
                (
                    table.name, word, f"{scan.files:,}", size(scan.bytes), _share(scan.small_files, scan.files),
                    size(scan.backlog_bytes), age(scan.taken_at, now), table.ref.location,
                )
            )  # fmt: skip
    if rows:
        run.out.table(columns, rows)
    else:
        run.out.note('No tables; add [[sources]] path = "/where/tables/are" to lakefold.toml')


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "–"


@app.command("show", epilog=exit_codes(ExitCode.NOT_FOUND, ExitCode.DATABASE))
def show(table: Table, json: Json = False, config: ConfigFile = None) -> None:
    """Show one table: its facts, and the sizes of its files as the last scan saw them."""
    from lake.formats import load_format

    with command(json, config) as run:
        found = run.table(table)
        states = {state.name: state for state in run.store.tables()}
        state = states.get(found.name)
        scan = run.store.last_scan(found.name)
        good = scan if scan is None or scan.outcome == "ok" else run.store.last_scan(found.name, ok=True)
        adapter = load_format(found.ref.format)
        facts = dict(adapter.describe(found.ref))
        adopted = run.store.adoptions(found.name, [entry.instant for entry in adapter.unfinished(found.ref)])
        if adopted:
            facts["adopted"] = ", ".join(f"{instant} by plan {plan_id}" for instant, plan_id in sorted(adopted.items()))
        data = table_details(found, state, scan, good, facts)
        run.out.one(data, lambda: _show_text(run, found, state, scan, good, facts))


def _show_text(
    run: Run,
    table: "ConfiguredTable",
    state: "TableState | None",
    scan: "ScanRecord | None",
    good: "ScanRecord | None",
    facts: Any,
) -> None:
    out, now = run.out, datetime.now(UTC)
    out.line(f"{table.name}  {table_state_word(table, state)}  {table.ref.location}")
    if state is not None and state.halted:
        out.line(f"  halted {age(state.halted_at, now)}: {state.halted_reason}")
    for path, reason in (state.quarantined if state else {}).items():
        out.line(f"  quarantined {path}: {reason}")
    for key, value in facts.items():
        out.line(f"  {key:<18} {value}")
    for note in table.policy.notes:
        out.note(note)
    out.line()
    if scan is not None and scan.outcome != "ok":
        out.line(f"The last scan, {age(scan.taken_at, now)}, failed: {scan.error}")
    if good is None:
        out.line(f"Not scanned yet; lakefold tables explain {table.name} scans it now.")
        return
    logs = f", {plural(good.log_files, 'log file')} of {size(good.log_bytes)}" if good.log_files else ""
    out.line(
        f"Scanned {age(good.taken_at, now)} at instant {good.instant or '–'}: {plural(good.files, 'file')}, "
        f"{size(good.bytes)} in {plural(good.partitions, 'partition')}{logs}"
    )
    out.line(
        f"Small files: {good.small_files:,} ({_share(good.small_files, good.files)}), {size(good.small_bytes)}; "
        f"backlog: {plural(good.backlog_files, 'file')}, {size(good.backlog_bytes)}"
    )
    out.line()
    limits = {
        "small_file_limit": table.policy.small_file_limit_bytes, "target_file_max": table.policy.target_file_max_bytes
    }  # fmt: skip
    for line in histogram_lines(good.histogram, limits):
        out.line(line)


@app.command("rollback", epilog=exit_codes(ExitCode.NOT_FOUND, ExitCode.LIVE_PLAN, ExitCode.DATABASE))
def rollback(
    table: Table,
    instant: Annotated[str, typer.Argument(metavar="INSTANT", help="A pending instant, as tables show names it.")],
    yes: Yes = False,
    json: Json = False,
    config: ConfigFile = None,
) -> None:
    """Take back what another process began on a table and left: a dead write, clustering or compaction.

    A write is removed; a clustering or compaction stays scheduled, and what was written of it is deleted. Refused for
    completed instants, for owners that are alive, and for plans of lakefold's.
    """
    from executors.spark import spark_session
    from lake.formats import load_format

    with command(json, config) as run:
        found = run.table(table)
        adapter = load_format(found.ref.format)
        _may_roll_back(run, found.name, adapter.unfinished(found.ref), instant)
        if run.out.can_ask and not yes:
            typer.confirm(f"Delete what was written of {instant} on {found.name}?", abort=True, err=True)
        with adapter.writer(found.ref, lambda: spark_session(run.config.spark)) as writer:
            done = writer.roll_back(instant)
        run.out.one({"table": found.name, "instant": instant, "done": done}, lambda: run.out.line(done))


def _may_roll_back(run: Run, table: str, pending: "Sequence[Unfinished]", instant: str) -> None:
    """Refuse without a session what can be refused: what is not pending, and what is lakefold's."""
    from lake.plan import LIVE_STATES

    entry = next((entry for entry in pending if entry.instant == instant), None)
    if entry is None:
        remedy = f"lakefold tables show {table} lists them"
        raise CommandError(NOT_FOUND, f"{table} has no pending instant {instant}; {remedy}")
    adopted = run.store.adoptions(table, [instant]).get(instant)
    live = adopted is not None and run.store.plan(adopted).state in LIVE_STATES
    plan_id = entry.plan_id or (adopted if live else None)
    if plan_id is not None:
        held = f"{entry.action} {instant} belongs to plan {plan_id}"
        raise CommandError(LIVE_PLAN, f"{held}; to end it: lakefold plans cancel {plan_id}", plan_id=plan_id)


def histogram_lines(counts: Sequence[int], limits: dict[str, int]) -> list[str]:
    """A size histogram as bars, with the buckets that hold the limits marked; empty ends are cut off."""
    from lake.model import HISTOGRAM_EDGES_BYTES
    from lake.units import format_bytes

    edges = HISTOGRAM_EDGES_BYTES
    used = [index for index, count in enumerate(counts) if count]
    if not used:
        return []
    places = {
        name: next((i for i, edge in enumerate(edges) if limit <= edge), len(edges)) for name, limit in limits.items()
    }
    first, last = min(used), max(*used, min(max(used) + 2, max(places.values())))
    rows, marks = [], {}
    for index in range(first, last + 1):
        label = f"≤ {format_bytes(edges[index])}" if index < len(edges) else f"> {format_bytes(edges[-1])}"
        rows.append((label, counts[index]))
        named = [f"{name} {format_bytes(limits[name])}" for name, place in places.items() if place == index]
        if named:
            marks[len(rows) - 1] = ", ".join(named)
    return bar_chart(rows, marks=marks)


@app.command("explain", epilog=exit_codes(ExitCode.NOT_FOUND, ExitCode.DATABASE))
def explain(
    table: Table,
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", metavar="PART", help="Only this partition.")
    ] = None,
    files: Annotated[bool, typer.Option("--files", help="List each file with its reason.")] = False,
    json: Json = False,
    config: ConfigFile = None,
) -> None:
    """Scan a table now and account for every file: chosen for a plan, or left alone, why, and by which setting."""
    from service import planning
    from service.account import account, each_file, total

    with command(json, config) as run:
        found = run.table(table)
        name = None if partition is None else partition.strip("/")
        snapshot, decided = planning.explain(run.store, found, name)
        lines = account(decided, snapshot, by_partition=True)
        sums = total(lines)
        if json:
            rows = each_file(decided, snapshot) if files else (line.document() for line in lines)
            run.out.many(rows, lambda: None)
            run.out.many([{"total": True, "table": found.name, "instant": snapshot.instant, **sums}], lambda: None)
            return
        run.out.note(f"{found.name} at instant {snapshot.instant or '–'}, mode {found.mode}")
        for note in found.policy.notes:
            run.out.note(note)
        if files:
            _files_text(run, each_file(decided, snapshot), sums)
        else:
            _lines_text(run, lines, sums)


def _lines_text(run: Run, lines: "Sequence[Line]", sums: dict[str, int]) -> None:
    logs = bool(sums["log_files"])
    columns = [
        Column("PARTITION"), Column("FILES", True), Column("BYTES", True),
        *([Column("LOGS", True), Column("LOG BYTES", True)] if logs else []), Column("REASON"), Column("SETTING"),
    ]  # fmt: skip
    rows: list[tuple[Any, ...]] = []
    before = None
    for line in lines:
        partition = partition_name(line.partition or "") if line.partition != before else ""
        before = line.partition
        log_cells = (f"{line.log_files:,}", size(line.log_bytes)) if logs else ()
        text = line.text + (" …" if line.varies else "")
        rows.append((partition, f"{line.files:,}", size(line.bytes), *log_cells, text, line.knob))
    log_cells = (f"{sums['log_files']:,}", size(sums["log_bytes"])) if logs else ()
    rows.append(("total", f"{sums['files']:,}", size(sums["bytes"]), *log_cells, f"{sums['bytes']} bytes", ""))
    run.out.table(columns, rows)


def _files_text(run: Run, entries: Any, sums: dict[str, int]) -> None:
    rows: list[tuple[Any, ...]] = [
        (
            entry["path"] or f"{entry['partition']}/{entry['file_id']} (logs only)", size(entry["bytes"]),
            len(entry["log_files"]) or "", entry["text"],
        )
        for entry in entries
    ]  # fmt: skip
    rows.append((f"total: {plural(sums['files'], 'file')}", size(sums["bytes"]), sums["log_files"] or "", ""))
    run.out.table((Column("FILE"), Column("BYTES", True), Column("LOGS", True), Column("REASON")), rows)
