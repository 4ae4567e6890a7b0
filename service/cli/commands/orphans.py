# SPDX-License-Identifier: Apache-2.0
"""The command ``lakefold tables remove-orphans``, which deletes files that no version of a table lists."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lake.units import format_duration
from service.cli.commands.common import CommandRun, ConfigFile, Json, Table, Yes, command_run, current_actor
from service.problems import NOT_SERVED, USAGE, ExitCode, ProblemError, exit_codes_help
from service.text import format_size, plural

if TYPE_CHECKING:
    from lake.capabilities import OrphanFile, OrphanSearch
    from service.control.config.table_settings import ConfiguredTable

_EPILOG = exit_codes_help(ExitCode.PARTIAL, ExitCode.NOT_FOUND, ExitCode.HALTED, ExitCode.DATABASE)


def add_to(tables: typer.Typer) -> None:
    """Register the command."""
    tables.command("remove-orphans", epilog=_EPILOG)(remove_orphans)


def remove_orphans(
    table: Table,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than", metavar="AGE", help="Only files last modified at least this long ago; 1d or more."
        ),
    ] = "3d",
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="List the orphan files; delete none.")] = False,
    yes: Yes = False,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Delete orphan files, which belong to no table version, plan or superseded version. Exits 3 if some remain.

    Killed writers leave such files. The files of a running write look the same until it commits, so choose an age that
    is longer than the longest write. Without a terminal, nothing is deleted unless --yes is given.
    """
    from lake import capabilities
    from lake.capabilities import FindsOrphans, RemovesOrphans
    from lake.ports import Capability
    from service.control.wiring import start_spark

    with command_run(json, config) as run:
        age = _parse_age(older_than)
        found = run.table(table)
        capabilities.require_capability(found.adapter, found.ref, Capability.ORPHAN_REMOVAL)
        assert isinstance(found.adapter, FindsOrphans)
        ref = capabilities.with_identity(found.adapter, found.ref)
        search = _search(run, found, age)
        files = list(found.adapter.find_orphans(ref, search))
        run.out.note(_summary(found.name, files, age))
        going = bool(files) and not dry_run and (yes or run.out.can_prompt)
        if going:
            _require_deletion_allowed(run, found)
            if not yes:
                typer.confirm(f"Delete {plural(len(files), 'file')} of {found.name}?", abort=True, err=True)
            size = format_size(sum(one.bytes for one in files))
            detail = f"{plural(len(files), 'file')}, {size}, older than {format_duration(age)}"
            run.store.record_action(current_actor(), "orphan removal", table=found.name, detail=detail)
            with found.adapter.writer(ref, lambda: start_spark(run.config, ref)) as writer:
                assert isinstance(writer, RemovesOrphans)
                deleted = set(writer.remove_orphans(files, search))
        else:
            deleted = set()
        entries = [{"table": found.name, "file": one, "deleted": one in deleted} for one in files]
        run.out.results(entries, lambda: _print_entries(run, found.name, entries, going))
    return ExitCode.PARTIAL if len(deleted) < len(files) else ExitCode.OK


def _parse_age(text: str) -> timedelta:
    from lake.capabilities import MIN_ORPHAN_AGE
    from lake.units import parse_duration

    try:
        age = parse_duration(text)
    except ValueError as error:
        raise ProblemError(USAGE, f"--older-than: {error}") from error
    if age < MIN_ORPHAN_AGE:
        raise ProblemError(
            USAGE,
            f"--older-than {text} is less than {format_duration(MIN_ORPHAN_AGE)}: no version of the table lists the "
            "files of a write that has not committed yet",
        )
    return age


def _search(run: CommandRun, table: "ConfiguredTable", age: timedelta) -> "OrphanSearch":
    from lake.capabilities import OrphanSearch

    store, ref = run.store, table.ref
    others = [one for one in run.catalog.table_refs() if one.name != table.name] + run.catalog.left_out
    for problem in run.catalog.problems:
        run.out.note(problem)
    # A source that can't be read now may have tables that were registered earlier. The table's own catalog may have had
    # tables under other names; the format lists that catalog itself.
    for state in store.figures().tables:
        is_elsewhere = state.ref.catalog is None or ref.catalog is None or state.ref.catalog.name != ref.catalog.name
        if state.name != table.name and is_elsewhere and run.catalog.covers(state.ref):
            others.append(state.ref)
    return OrphanSearch(
        older_than=age,
        tracked=lambda: {*store.staged_paths(), *store.superseded_paths(ref)},
        other_tables=others,
    )


def _require_deletion_allowed(run: CommandRun, table: "ConfiguredTable") -> None:
    """Raise ProblemError if the cleaner would not delete files of the table either."""
    from service.server.daemon.maintenance import skip_reason

    figures = run.store.figures()
    state = next((one for one in figures.tables if one.name == table.name), None)
    if state is not None and (reason := skip_reason(state, table.mode, paused=figures.paused)) is not None:
        raise ProblemError(NOT_SERVED, f"{table.name}: no file is deleted: {reason}", table=table.name)


def _summary(table: str, files: "Sequence[OrphanFile]", age: timedelta) -> str:
    if not files:
        return f"{table}: no orphan files older than {format_duration(age)}"
    times = sorted(one.modified_at for one in files)
    return (
        f"{table}: {plural(len(files), 'orphan file')} older than {format_duration(age)}, "
        f"{format_size(sum(one.bytes for one in files))}, last modified "
        f"{times[0]:%Y-%m-%d %H:%M} to {times[-1]:%Y-%m-%d %H:%M} UTC"
    )


def _print_entries(run: CommandRun, table: str, entries: Sequence[Mapping[str, Any]], going: bool) -> None:
    for entry in entries:
        file = entry["file"]
        state = "deleted" if entry["deleted"] else "kept" if going else "would be deleted"
        run.out.line(f"{state}: {file.path} {format_size(file.bytes)} {file.modified_at:%Y-%m-%d %H:%M} UTC")
    if going:
        deleted = [entry["file"].bytes for entry in entries if entry["deleted"]]
        run.out.line(f"{table}: deleted {plural(len(deleted), 'file')}, {format_size(sum(deleted))}")
