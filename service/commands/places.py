# SPDX-License-Identifier: Apache-2.0
"""``lakefold tables resolve`` and ``tables home``: what is done about places that moved partitions have left."""

import time
from collections.abc import Collection
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from service.commands.common import ConfigFile, Json, Run, Table, actor, command
from service.problems import NOT_FOUND, USAGE, CommandError, ExitCode, exit_codes
from service.text import nearest, plural

if TYPE_CHECKING:
    from executors.late_round import LateReport
    from lake.model import TableRef

#: how long to wait before the sweep, the cleaner or a plan is taken to hold a partition for long
_ASKED_AGAIN_SECONDS = (1.0, 2.0, 4.0, 0.0)
_EPILOG = exit_codes(ExitCode.PARTIAL, ExitCode.NOT_FOUND, ExitCode.DATABASE)


def add_to(tables: typer.Typer) -> None:
    """Register the commands."""
    tables.command("resolve", epilog=_EPILOG)(resolve)
    tables.command("home", epilog=_EPILOG)(home)


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
    from executors.late import resolve_places
    from lake.formats import load_format
    from lake.places import Take
    from service.wiring import start_spark

    words = [str(one) for one in Take]
    with command(json, config) as run:
        if take not in words:
            raise CommandError(USAGE, f"--take {take!r} is none of {', '.join(words)}{nearest(take, words)}")
        found = run.table(table)
        wanted = [one.strip("/") for one in partition] if partition else None
        _known(run, found.ref, wanted or ())
        for seconds in _ASKED_AGAIN_SECONDS:
            report = resolve_places(
                found.ref,
                Take(take),
                format=load_format(found.ref.format),
                store=run.store,
                spark=lambda: start_spark(run.config, found.ref),
                partitions=wanted,
            )
            if not report.held:
                break
            time.sleep(seconds)  # a round of the sweep lasts seconds
        if wanted is not None:
            settled = set(wanted).difference(report.halts, report.held)
            run.store.end_halts(found.name, settled, actor())
        elif not report.halts and not report.held:
            run.client.resume(found.name)
        return _told(run, found.name, report)


def _known(run: Run, table: "TableRef", partitions: Collection[str]) -> None:
    """Raise CommandError for a partition that is neither halted nor was ever moved."""
    known = {one.partition for one in run.store.moved(table, partitions)} | run.store.halted_partitions(table).keys()
    for one in partitions:
        if one not in known:
            said = f"partition {one!r} of {table.name} is not halted, and lakefold has not moved it"
            raise CommandError(NOT_FOUND, f"{said}{nearest(one, sorted(known))}", partition=one)


def home(table: Table, json: Json = False, config: ConfigFile = None) -> int:
    """Move partitions back into the directories that were their own, so that the table is an ordinary one at rest.

    A partition whose own directory still has replaced files in it waits for their retention. The daemon does the same
    by itself when the retention has passed.
    """
    from executors.late import bring_home
    from lake.formats import load_format
    from service.wiring import start_spark

    with command(json, config) as run:
        found = run.table(table)
        report = bring_home(
            found.ref,
            format=load_format(found.ref.format),
            store=run.store,
            older_than=timedelta(),
            spark=lambda: start_spark(run.config, found.ref),
        )
        return _told(run, found.name, report)


def _told(run: Run, table: str, report: "LateReport") -> int:
    from lake.model import words_of

    moved, aside = plural(report.moved_back, "partition"), plural(report.aside, "file")
    line = f"{table}: moved {moved} back, {aside} set aside, {plural(report.waiting, 'partition')} waiting"
    document = {
        "table": table,
        "moved_back": report.moved_back,
        "aside": report.aside,
        "waiting": report.waiting,
        "halted": report.halted,
        "halted_partitions": report.halts,
        "held": report.held,
    }

    def tell() -> None:
        run.out.line(line)
        for name, reason in report.halts.items():
            run.out.line(f"{words_of(name)} stays halted: {reason}")
        for name in report.held:
            run.out.line(f"{words_of(name)} is held by the sweep, by the cleaner or by a plan; try again")

    run.out.one(document, tell)
    return ExitCode.PARTIAL if report.waiting or report.halts or report.held else ExitCode.OK
