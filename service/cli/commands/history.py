# SPDX-License-Identifier: Apache-2.0
"""The command ``lakefold tables history``: the actions on a table, newest first."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from service.cli.commands.common import CommandRun, ConfigFile, Json, Table, command_run
from service.cli.output.column_widths import TableColumn
from service.problems import ExitCode, exit_codes_help
from service.text import describe_file_changes, format_age, parse_timestamp, short_id


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("history", epilog=exit_codes_help(ExitCode.NOT_FOUND, ExitCode.DATABASE))(history)


def history(
    table: Table,
    limit: Annotated[int, typer.Option("--limit", min=1, max=200, help="Show at most this many, newest first.")] = 20,
    after: Annotated[
        str | None, typer.Option("--after", metavar="KEY", help="Continue after the action with this key.")
    ] = None,
    files: Annotated[
        int, typer.Option("--files", min=0, max=1000, help="List this many added and removed files of each action.")
    ] = 0,
    json: Json = False,
    config: ConfigFile = None,
) -> None:
    """List the actions on a table, newest first: when, by whom, and which files were added and removed.

    Reads the table's own records and changes nothing.
    """
    with command_run(json, config) as run:
        found = run.client.history(table, limit=limit, after=after, files=files)
        run.out.results(found["items"], lambda: _print_actions(run, found))


def _print_actions(run: CommandRun, found: Mapping[str, Any]) -> None:
    for note in found["notes"]:
        run.out.note(note)
    if not found["items"]:
        run.out.note("No actions.")
        return
    now = datetime.now(UTC)
    titles = ("WHEN", "ACTION", "STATE", "BY", "ADDED", "REMOVED", "INSTANT")
    run.out.table(
        [TableColumn(title, title in ("ADDED", "REMOVED")) for title in titles],
        (_row(action, now) for action in found["items"]),
    )
    for action in found["items"]:
        _print_files(run, action)
    if found["next"] is not None:
        run.out.note(f"More may follow: --after {found['next']}")


def _row(action: Mapping[str, Any], now: datetime) -> tuple[Any, ...]:
    what = action["operation"] or action["action"]
    return (
        format_age(parse_timestamp(action["completed_at"] or action["began_at"]), now),
        what if what == action["action"] else f"{action['action']} ({what})",
        action["state"],
        _by(action),
        describe_file_changes(action["added"]),
        describe_file_changes(action["removed"]),
        action["instant"],
    )


def _by(action: Mapping[str, Any]) -> str:
    if action["plan_id"] is None:
        return action["by"] or "a writer"
    actor = f", {action['actor']}" if action["actor"] else ""
    return f"plan {short_id(action['plan_id'])}{actor}"


def _print_files(run: CommandRun, action: Mapping[str, Any]) -> None:
    lines = [f"  {sign} {_file_name(file)}" for sign, key in (("+", "added"), ("-", "removed"))
             for file in action[key]["files"]]  # fmt: skip
    if lines or action["notes"]:
        run.out.line()
        run.out.line("; ".join((f"{action['key']}:", *action["notes"])).replace(":;", ":"))
    for line in lines:
        run.out.line(line)


def _file_name(file: Mapping[str, Any]) -> str:
    return str(file["path"] or "/".join(part for part in (file["partition"], file["file_id"]) if part))
