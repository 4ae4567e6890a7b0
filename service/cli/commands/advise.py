# SPDX-License-Identifier: Apache-2.0
"""The command ``lakefold tables advise``: the writer's setting that would have prevented most small files."""

from collections.abc import Mapping
from typing import Any

import typer

from service.cli.commands.common import CommandRun, ConfigFile, Json, Table, command_run
from service.cli.commands.replay import Days
from service.cli.output.column_widths import TableColumn
from service.problems import ExitCode, exit_codes_help
from service.text import format_percent, format_size


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("advise", epilog=exit_codes_help(ExitCode.NOT_FOUND, ExitCode.DATABASE))(advise)


def advise(table: Table, days: Days = 30, json: Json = False, config: ConfigFile = None) -> None:
    """Show which writes created a table's small files, and which setting of the writer to change, if any.

    Tries each setting that may help: a model of the writer repeats the table's history with it, and the result is
    replayed under the table's policy. Reads the table and changes nothing.
    """
    with command_run(json, config) as run:
        found = run.client.advice(table, days)
        run.out.result(found, lambda: _print_advice(run, found))


def _print_advice(run: CommandRun, found: Mapping[str, Any]) -> None:
    for note in found["notes"]:
        run.out.note(note)
    columns = (
        TableColumn("WRITES"),
        TableColumn("BY"),
        TableColumn("COMMITS", True),
        TableColumn("NEW FILES", True),
        TableColumn("SMALL", True),
        TableColumn("AVERAGE", True),
        TableColumn("BUSIEST HOURS (UTC)"),
    )
    run.out.table(columns, (_source_row(source) for source in found["sources"]))
    run.out.line()
    monthly = found["rewritten_bytes_per_month"], found["cpu_hours_per_month"]
    if None in monthly:
        size, hours = found["rewritten_bytes"], found["cpu_hours"]
        text = "in this history, compaction as configured would have rewritten {} in {:,.1f} CPU hours"
    else:
        size, hours = monthly
        text = "each month, compaction as configured rewrites {} and takes {:,.1f} CPU hours"
    run.out.line(text.format(format_size(round(size)), hours))
    run.out.line(found["text"])


def _source_row(source: Mapping[str, Any]) -> tuple[Any, ...]:
    files = source["files"]
    return (
        source["operation"],
        source["application"] or "",
        f"{source['commits']:,}",
        f"{files:,}",
        format_percent(source["small_share"]),
        format_size(source["bytes"] // files) if files else "",
        ", ".join(f"{hour:02}" for hour in source["busiest_hours"]),
    )
