# SPDX-License-Identifier: Apache-2.0
"""The commands ``lakefold pause`` and ``lakefold resume``."""

from typing import Annotated

import typer

from service.cli.commands.common import MAX_PARTITIONS_NAMED, ConfigFile, Json, OptionalTable, Yes, command_run
from service.control import serializers
from service.problems import ExitCode, exit_codes_help
from service.text import plural


def add_to(root: typer.Typer) -> None:
    """Register the commands."""
    epilog = exit_codes_help(ExitCode.NOT_FOUND, ExitCode.DATABASE)
    root.command("pause", epilog=epilog, short_help="Pause a table, or the whole service.")(pause)
    root.command("resume", epilog=epilog, short_help="End a pause or a halt.")(resume)


def pause(
    table: OptionalTable = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; shown to others.")] = "",
    json: Json = False,
    config: ConfigFile = None,
) -> None:
    """Pause one table, or the whole service: no further plan starts; running plans finish."""
    with command_run(json, config) as run:
        done = run.client.pause(table, reason)
        run.out.result(done, lambda: run.out.line(f"{done['table'] or 'lakefold'} paused; running plans finish"))


def resume(table: OptionalTable = None, yes: Yes = False, json: Json = False, config: ConfigFile = None) -> None:
    """End the pause of one table, or of the service.

    With TABLE, also ends the table's halts and its quarantine, and lets the files of its failed plans be planned again.
    """
    with command_run(json, config) as run:
        if table is not None and run.out.can_prompt and not yes:
            halts = run.client.halts(table)
            reason, partitions = halts["halted_reason"], halts["halted_partitions"]
            if reason is not None:
                *checks, _ = serializers.commands_before_resume(table, reason)
                run.out.note(f"{table} was halted: {reason}")
                run.out.note(f"To check first: {'; '.join(checks)} (docs/runbook.md#tablehalted)")
            for one in partitions[:MAX_PARTITIONS_NAMED]:
                run.out.note(f"{table}, partition {one['partition']}, was halted: {one['halted_reason']}")
                *checks, _ = serializers.commands_before_partition_resume(table, one["partition"])
                run.out.note(f"To check and resolve it first: {'; '.join(checks)} (docs/runbook.md#partitionhalted)")
            if (more := len(partitions) - MAX_PARTITIONS_NAMED) > 0:
                run.out.note(f"{plural(more, 'more partition')} halted; lakefold tables show {table}")
            if reason is not None or partitions:
                typer.confirm(f"Resume {table}?", abort=True, err=True)
        done = run.client.resume(table)
        run.out.result(done, lambda: run.out.line(f"{done['table'] or 'lakefold'} resumed"))
