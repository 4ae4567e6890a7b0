# SPDX-License-Identifier: Apache-2.0
"""The commands ``lakefold tables resolve`` and ``tables restore-locations``, about relocated partitions."""

import time
from collections.abc import Collection
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.commands.common import CommandRun, ConfigFile, Json, Table, command_run, current_actor
from service.cli.output.command_output import CommandOutput
from service.former_names import FORMER_LOCATIONS, both_names
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
    tables.command("restore-locations", epilog=_EPILOG)(restore_locations)
    tables.command("home", epilog=_EPILOG, hidden=True)(home)


def resolve(
    table: Table,
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep",
            metavar="previous|current",
            help="Required: the location that holds the partition's rows.",
        ),
    ] = None,
    take: Annotated[str | None, typer.Option("--take", hidden=True)] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition", metavar="NAME", help="Only this partition; may be repeated. Default: all waiting partitions."
        ),
    ] = None,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Decide whether a partition's previous or current location holds its rows, and end the halt.

    This is necessary if a writer that began before the partition was moved has changed the previous location. With
    "previous" the partition moves back there, with "current" it stays where it is. The files of the other location are
    kept until their retention has passed. With --partition only the halts of these partitions end.
    """
    from executors.context import RunContext
    from executors.relocation.sweep import resolve_partitions
    from lake.relocation.decide import LocationChoice
    from service.control.wiring import start_spark

    words = [str(one) for one in LocationChoice]
    with command_run(json, config) as run:
        if take is not None:
            if keep is not None:
                raise ProblemError(USAGE, "--take is the former name of --keep; give only one of them")
            keep = FORMER_LOCATIONS.get(take, take)
            run.out.deprecated(f"--take {take}", f"--keep {keep}")
        if keep is None:
            raise ProblemError(USAGE, f"--keep is required: {' or '.join(words)}")
        if keep not in words:
            raise ProblemError(USAGE, f"--keep {keep!r} is not one of {', '.join(words)}{did_you_mean(keep, words)}")
        found = run.table(table)
        wanted = [one.strip("/") for one in partition] if partition else None
        _check_partitions(run, found.ref, wanted or ())
        for seconds in _RETRY_SECONDS:
            report = resolve_partitions(
                found.ref,
                LocationChoice(keep),
                RunContext(store=run.store, spark=lambda: start_spark(run.config, found.ref)),
                format=found.adapter,
                partitions=wanted,
            )
            if not report.deferred:
                break
            time.sleep(seconds)  # a round of the sweep takes some seconds
        if wanted is not None:
            settled = set(wanted).difference(report.halt_reasons, report.deferred)
            run.store.resume_partitions(found.name, settled, current_actor())
        elif not report.halt_reasons and not report.deferred:
            run.client.resume(found.name)
        return _report_relocation(run, found.name, report)


def _check_partitions(run: CommandRun, table: "TableRef", partitions: Collection[str]) -> None:
    """Raise ProblemError if one of ``partitions`` is not halted and was never relocated."""
    known = {one.partition for one in run.store.relocated_partitions(table, partitions)} | run.store.halted_partitions(
        table
    ).keys()
    for one in partitions:
        if one not in known:
            text = f"partition {one!r} of {table.name} is not halted, and lakefold has not moved it"
            raise ProblemError(NOT_FOUND, f"{text}{did_you_mean(one, sorted(known))}", partition=one)


def restore_locations(table: Table, json: Json = False, config: ConfigFile = None) -> int:
    """Move partitions from lakefold's directories back into their original directories.

    A partition waits while its original directory contains superseded files whose retention has not passed. The daemon
    moves partitions back by itself after the retention.
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


def home(table: Table, json: Json = False, config: ConfigFile = None) -> int:
    """Do the same as ``restore-locations``, under the command's former name."""
    CommandOutput(json=json).deprecated("lakefold tables home", "lakefold tables restore-locations")
    return restore_locations(table, json, config)


def _report_relocation(run: CommandRun, table: str, report: "SweepReport") -> int:
    from lake.model import partition_label

    moved, superseded = plural(report.relocated_back, "partition"), plural(report.superseded, "file")
    line = f"{table}: moved {moved} back, {superseded} set aside, {plural(report.waiting, 'partition')} waiting"
    document = {
        "table": table,
        "restored_partitions": report.relocated_back,
        "archived_files": report.superseded,
        "waiting_partitions": report.waiting,
        "halted": report.first_halt_reason,
        "halted_partitions": report.halt_reasons,
        "locked_partitions": report.deferred,
    }

    def print_report() -> None:
        run.out.line(line)
        for name, reason in report.halt_reasons.items():
            run.out.line(f"{partition_label(name)} stays halted: {reason}")
        for name in report.deferred:
            run.out.line(f"{partition_label(name)} is locked by the sweep, the cleaner or a plan; try again")

    run.out.result(both_names("relocation", document), print_report)
    return ExitCode.PARTIAL if report.waiting or report.halt_reasons or report.deferred else ExitCode.OK
