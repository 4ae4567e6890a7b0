# SPDX-License-Identifier: Apache-2.0
"""The command ``lakefold audit``: actions and their actors."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from service.cli.commands.common import CommandRun, ConfigFile, Json, command_run
from service.cli.output.column_widths import TableColumn
from service.problems import ExitCode, exit_codes_help
from service.text import format_age, parse_timestamp, short_id


def add_to(root: typer.Typer) -> None:
    """Register the command."""
    root.command("audit", epilog=exit_codes_help(ExitCode.DATABASE), short_help="List actions and their actors.")(audit)


def audit(
    table: Annotated[str | None, typer.Option("--table", help="Only entries about this table.")] = None,
    actor: Annotated[str | None, typer.Option("--actor", help="Only entries of this actor.")] = None,
    action: Annotated[str | None, typer.Option("--action", help="Only this action, such as paused.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show at most this many, newest first.")] = 50,
    after: Annotated[
        int | None, typer.Option("--after", metavar="NUMBER", help="Continue after the entry with this number.")
    ] = None,
    json: Json = False,
    config: ConfigFile = None,
) -> None:
    """List the actions of people and programs, newest first: by command line, HTTP API or page."""
    with command_run(json, config) as run:
        found = run.client.audit(table=table, actor=actor, action=action, limit=limit, after=after)
        run.out.results(found, lambda: _print_entries(run, found, limit))


def _print_entries(run: CommandRun, found: Sequence[Mapping[str, Any]], limit: int) -> None:
    if not found:
        run.out.note("No entries.")
        return
    now = datetime.now(UTC)
    rows = (
        (
            format_age(parse_timestamp(entry["at"]), now),
            entry["actor"],
            entry["channel"],
            entry["action"],
            entry["table"] or "",
            short_id(entry["subject"]),
            entry["detail"],
        )
        for entry in found
    )
    titles = ("WHEN", "WHO", "BY", "ACTION", "TABLE", "SUBJECT", "DETAIL")
    run.out.table([TableColumn(title) for title in titles], rows)
    if len(found) == limit:
        run.out.note(f"More may follow: --after {found[-1]['number']}")
