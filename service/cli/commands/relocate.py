# SPDX-License-Identifier: Apache-2.0
"""The commands ``lakefold tables resolve`` and ``tables home``, which settle relocated partitions."""

import time
from collections.abc import Collection
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.commands.common import CommandRun, ConfigFile, Json, Table, command_run, current_actor
from service.problems import NOT_FOUND, USAGE, ExitCode, ProblemError, exit_codes_help
from service.text import did_you_mean, plural

if TYPE_CHECKING:
    from executors.relocation.partition_sweep import SweepReport
    from lake.model import TableRef

#: pauses between attempts while the sweep, the cleaner or a plan holds a partition; then the command gives up
_RETRY_SECONDS = (1.0, 2.0, 4.0, 0.0)
_EPILOG = exit_codes_help(ExitCode.PARTIAL, ExitCode.NOT_FOUND, ExitCode.DATABASE)


def add_to(tables: typer.Typer) -> None:
    """Register the commands."""
    tables.command("resolve", epilog=_EPILOG)(resolve)
    tables.command("home", epilog=_EPILOG)(restore_locations)


def resolve(
    table: Table,
    take: Annotated[
        str,
        typer.Option(
            "--take", metavar="old|new", help="Which directory holds the rows: the former or the present one."
        ),
    ],
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition", metavar="NAME", help="Only this partition; may be repeated. All that wait without."
        ),
    ] = None,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Decide which directory holds a partition's rows after a late writer changed one, and end the halt.

    A writer that began before the partition was moved has changed its former directory. With "old" the partition moves
    back there, with "new" it stays where it is. The files of the other directory are kept until their retention has
    passed. With --partition the halts of these partitions end, and those of the table and of its other partitions stay.
    """
    from executors.context import RunContext
    from executors.relocation.sweep import resolve_partitions
    from lake.relocation.decide import LocationChoice
    from service.control.wiring import start_spark

    words = [str(one) for one in LocationChoice]
    with command_run(json, config) as run:
        if take not in words:
            raise ProblemError(USAGE, f"--take {take!r} is none of {', '.join(words)}{did_you_mean(take, words)}")
        found = run.table(table)
        wanted = [one.strip("/") for one in partition] if partition else None
        _check_partitions(run, found.ref, wanted or ())
        for seconds in _RETRY_SECONDS:
            report = resolve_partitions(
                found.ref,
                LocationChoice(take),
                RunContext(store=run.store, spark=lambda: start_spark(run.config, found.ref)),
                format=found.adapter,
                partitions=wanted,
            )
            if not report.deferred:
                break
            time.sleep(seconds)  # a round of the sweep lasts seconds
        if wanted is not None:
            settled = set(wanted).difference(report.halt_reasons, report.deferred)
            run.store.resume_partitions(found.name, settled, current_actor())
        elif not report.halt_reasons and not report.deferred:
            run.client.resume(found.name)
        return _report_relocation(run, found.name, report)


def _check_partitions(run: CommandRun, table: "TableRef", partitions: Collection[str]) -> None:
    """Raise ProblemError for a partition that is not halted and that lakefold has never relocated."""
    known = {one.partition for one in run.store.relocated_partitions(table, partitions)} | run.store.halted_partitions(
        table
    ).keys()
    for one in partitions:
        if one not in known:
            text = f"partition {one!r} of {table.name} is not halted, and lakefold has not moved it"
            raise ProblemError(NOT_FOUND, f"{text}{did_you_mean(one, sorted(known))}", partition=one)


def restore_locations(table: Table, json: Json = False, config: ConfigFile = None) -> int:
    """Move partitions back into the directories that were their own, so that the table is an ordinary one at rest.

    A partition whose own directory still has replaced files in it waits for their retention. The daemon does the same
    by itself when the retention has passed.
    """
    from executors.context import RunContext
    from executors.relocation.sweep import restore_original_locations
    from service.control.wiring import start_spark

    with command_run(json, config) as run:
        found = run.table(table)
        report = restore_original_locations(
            found.ref,
            RunContext(store=run.store, spark=lambda: start_spark(run.config, found.ref)),
            format=found.adapter,
            older_than=timedelta(),
        )
        return _report_relocation(run, found.name, report)


def _report_relocation(run: CommandRun, table: str, report: "SweepReport") -> int:
    from lake.model import partition_label

    moved, aside = plural(report.relocated_back, "partition"), plural(report.superseded, "file")
    line = f"{table}: moved {moved} back, {aside} set aside, {plural(report.waiting, 'partition')} waiting"
    document = {
        "table": table,
        "moved_back": report.relocated_back,
        "aside": report.superseded,
        "waiting": report.waiting,
        "halted": report.first_halt_reason,
        "halted_partitions": report.halt_reasons,
        "held": report.deferred,
    }

    def print_report() -> None:
        run.out.line(line)
        for name, reason in report.halt_reasons.items():
            run.out.line(f"{partition_label(name)} stays halted: {reason}")
        for name in report.deferred:
            run.out.line(f"{partition_label(name)} is held by the sweep, by the cleaner or by a plan; try again")

    run.out.result(document, print_report)
    return ExitCode.PARTIAL if report.waiting or report.halt_reasons or report.deferred else ExitCode.OK
