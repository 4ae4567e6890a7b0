# SPDX-License-Identifier: Apache-2.0
"""The command ``lakefold report``: tables and savings by owner, tag or database."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from service.cli.commands.common import ConfigFile, Json, command_run
from service.cli.commands.tables import ModeOption, NameOption, OwnerOption, TagOption, build_table_filter
from service.cli.output.column_widths import TableColumn
from service.cli.output.tables import format_share
from service.problems import USAGE, ExitCode, ProblemError, exit_codes_help
from service.text import did_you_mean, format_size


def add_to(root: typer.Typer) -> None:
    """Register the command."""
    help_line = "Sum up tables and savings by owner, tag or database."
    root.command("report", epilog=exit_codes_help(ExitCode.DATABASE), short_help=help_line)(report)


def report(
    by: Annotated[str, typer.Option("--by", help="Group by owner, tag or database.")] = "owner",
    name: NameOption = None,
    mode: ModeOption = None,
    owner: OwnerOption = None,
    tag: TagOption = None,
    json: Json = False,
    config: ConfigFile = None,
) -> None:
    """Sum up tables and savings by owner, tag or database; the group with the most rewritten bytes comes first.

    Numbers of files are from the last successful scans. Completed plans, removed files, rewritten bytes and freed bytes
    are totals since the database was created. A table with several tags counts in each of them.
    """
    from service.control.serializers import GROUPINGS

    if by not in GROUPINGS:
        raise ProblemError(USAGE, f"--by {by!r} is not one of {', '.join(GROUPINGS)}{did_you_mean(by, GROUPINGS)}")
    with command_run(json, config) as run:
        options = {"name": name, "database": None, "state": None, "format": None, "mode": mode, "owner": owner}
        found = run.client.report(by, build_table_filter(run, **options, tag=tag))
        titles = ("TABLES", "FILES", "BYTES", "REDUCIBLE", "PLANS", "FILES REMOVED", "REWRITTEN", "FREED")
        columns = (TableColumn(by.upper()), *(TableColumn(title, True) for title in titles))
        run.out.results(found, lambda: run.out.table(columns, (_row(entry) for entry in found)))


def _row(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        entry["group"] or "(none)",
        f"{entry['tables']:,}",
        f"{entry['files']:,}",
        format_size(entry["bytes"]),
        format_share(entry["reducible_files"], entry["files"]),
        f"{entry['plans_completed']:,}",
        f"{entry['files_removed']:,}",
        format_size(entry["rewritten_bytes"]),
        format_size(entry["freed_bytes"]),
    )
