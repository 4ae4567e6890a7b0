# SPDX-License-Identifier: Apache-2.0
"""The command ``lakefold verify``: compares a table's files with its commits."""

from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.commands.common import CommandRun, ConfigFile, Json, Table, command_run
from service.problems import ExitCode, exit_codes_help
from service.text import format_size, plural

if TYPE_CHECKING:
    from lake.ports import TableVerification


def add_to(root: typer.Typer) -> None:
    """Register the command."""
    epilog = exit_codes_help(ExitCode.PARTIAL, ExitCode.NOT_FOUND, ExitCode.DATABASE)
    root.command("verify", epilog=epilog, short_help="Compare a table's files with its commits.")(verify)


def verify(
    table: Table,
    rows: Annotated[bool, typer.Option("--rows", help="Also count the rows; reads every live file.")] = False,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Compare the files in storage with the table's last commits. Exits 3 on a difference.

    Checks that every live file exists with its size and that no superseded file is live again. Lists the files that
    belong to no slice, plan or superseded version. With --rows, also checks that the row count equals that of the
    commits, that each commit was built on the newest files before it, and that it wrote as many rows as these files
    have, plus its inserts, minus its deletes.
    """
    from service.control.planning.missing_directory import naming_missing_directory, refuse_missing_directory

    with command_run(json, config) as run:
        found = run.table(table)
        superseded = [due.version for due in run.store.awaiting_deletion(found.ref)]
        with naming_missing_directory(found.ref):
            found.adapter.check(found.ref)
            result = found.adapter.verify(found.ref, superseded, rows=rows)
        if not result.files:
            refuse_missing_directory(found.ref)
        rows_differ = result.rows_expected is not None and result.rows != result.rows_expected
        files_differ = result.missing or result.wrong_size or result.resurrected or result.unowned
        differs = bool(files_differ or result.contradictions or rows_differ)
        data = {"table": found.name, "location": found.ref.location, "equal": not differs, "verification": result}
        run.out.result(data, lambda: _print_verification(run, found.name, result, differs, rows_differ))
    return ExitCode.PARTIAL if differs else ExitCode.OK


def _print_verification(
    run: CommandRun, name: str, result: "TableVerification", differs: bool, rows_differ: bool
) -> None:
    out = run.out
    files = f"{plural(result.files, 'live file')}, {format_size(result.bytes)}"
    counted = "" if result.rows is None else f", {plural(result.rows, 'row')}"
    out.line(f"{name}: {files}{counted}: {'differences found' if differs else 'matches its last commits'}")
    for title, paths in (
        ("missing: a live file is not in storage", result.missing),
        ("wrong size: differs from the commit", result.wrong_size),
        (f"resurrected: superseded but live again (lakefold tables repair {name})", result.resurrected),
        ("unowned: it belongs to no slice, plan or superseded version", result.unowned),
    ):
        for path in paths:
            out.line(f"  {title}: {path}")
    if rows_differ:
        out.line(f"  rows: {result.rows:,} counted, {result.rows_expected:,} according to the commits")
    for sentence in result.contradictions:
        out.line(f"  contradiction: {sentence}")
