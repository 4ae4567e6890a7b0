# SPDX-License-Identifier: Apache-2.0
"""The command ``lakefold tables replay``, which replays a table's own history under other policies."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from lake.units import format_duration
from service.cli.commands.common import CommandRun, ConfigFile, Json, Table, command_run, note_former_settings
from service.cli.output.column_widths import TableColumn
from service.problems import ExitCode, exit_codes_help
from service.text import format_percent, format_size, parse_timestamp, plural


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("replay", epilog=exit_codes_help(ExitCode.NOT_FOUND, ExitCode.DATABASE))(replay)


Days = Annotated[float, typer.Option("--days", min=0.01, help="The length of the replayed history, in days.")]


def replay(
    table: Table,
    days: Days = 30,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE,…", help="Values to try; several --set are tried in combination."),
    ] = None,
    json: Json = False,
    config: ConfigFile = None,
) -> None:
    """Replay a table's own history under other policies, and show the resulting files and the cost.

    Reads the table's history and changes nothing. Without --set, compares the configured policy with no compaction.
    docs/planning.md has the formula of each number.
    """
    with command_run(json, config) as run:
        note_former_settings(run, (one.partition("=")[0].strip() for one in settings or ()))
        found = run.client.replay(table, days, settings or [])
        run.out.result(found, lambda: _print_replay(run, found))


def _print_replay(run: CommandRun, found: Mapping[str, Any]) -> None:
    for note in found["notes"]:
        run.out.note(note)
    since, until = parse_timestamp(found["since"]), parse_timestamp(found["until"])
    run.out.line(
        f"{found['table']}: {plural(found['commits'], 'commit')} of writers from {since:%Y-%m-%d %H:%M} to "
        f"{until:%Y-%m-%d %H:%M} UTC; files below {format_size(found['small_file_limit_bytes'])} are small"
    )
    run.out.line()
    has_rates = all(policy["rewritten_bytes_per_day"] is not None for policy in found["policies"])
    columns = [
        TableColumn("POLICY"),
        TableColumn("FILES", True),
        TableColumn("SMALL", True),
        TableColumn("REWRITTEN A DAY" if has_rates else "REWRITTEN", True),
        TableColumn("WRITTEN", True),
        TableColumn("CPU A DAY" if has_rates else "CPU", True),
        TableColumn("PLANS", True),
        TableColumn("BEST"),
    ]
    run.out.table(columns, (_policy_row(policy) for policy in found["policies"]))
    take = found["recommended"]
    run.out.line()
    run.out.line(f"recommended: {take['name']}: {take['reason']}")
    if take["toml"]:
        run.out.line()
        run.out.line(take["toml"])


def _policy_row(policy: Mapping[str, Any]) -> tuple[Any, ...]:
    amplification, a_day = policy["write_amplification"], policy["rewritten_bytes_per_day"]
    cpu_seconds = policy["cpu_seconds"] if a_day is None else policy["cpu_seconds_per_day"]
    return (
        policy["name"],
        f"{policy['files']:,.0f}",
        format_percent(policy["small_share"]),
        format_size(policy["rewritten_bytes"] if a_day is None else round(a_day)),
        "–" if amplification is None else f"{amplification:.2f}×",
        format_duration(cpu_seconds) if cpu_seconds else "",
        f"{policy['plans']:,}" if policy["plans"] else "",
        "best" if policy["is_pareto_optimal"] else "",
    )
