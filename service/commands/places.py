# SPDX-License-Identifier: Apache-2.0
"""``lakefold tables resolve`` and ``tables home``: what is done about places that moved partitions have left."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from service.commands.common import ConfigFile, Json, Run, Table, command
from service.problems import USAGE, CommandError, ExitCode, exit_codes
from service.text import nearest, plural

if TYPE_CHECKING:
    from executors.late_round import LateReport

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
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Decide which directory holds a partition's rows after a late writer changed one, and end the table's halt.

    A writer that began before the partition was moved has changed its former directory. With "old" the partition moves
    back there, with "new" it stays where it is. The files of the other directory are kept until their retention has
    passed.
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
        report = resolve_places(
            found.ref, Take(take), format=load_format(found.ref.format), store=run.store,
            spark=lambda: start_spark(run.config, found.ref),
        )  # fmt: skip
        if report.halted is None:
            run.client.resume(found.name)
        return _told(run, found.name, report)


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
            found.ref, format=load_format(found.ref.format), store=run.store, older_than=timedelta(),
            spark=lambda: start_spark(run.config, found.ref),
        )  # fmt: skip
        return _told(run, found.name, report)


def _told(run: Run, table: str, report: "LateReport") -> int:
    moved, aside = plural(report.moved_back, "partition"), plural(report.aside, "file")
    line = f"{table}: moved {moved} back, {aside} set aside, {plural(report.waiting, 'partition')} waiting"
    document = {
        "table": table, "moved_back": report.moved_back, "aside": report.aside, "waiting": report.waiting,
        "halted": report.halted,
    }  # fmt: skip
    run.out.one(document, lambda: run.out.line(line if report.halted is None else f"{line}; halted: {report.halted}"))
    return ExitCode.PARTIAL if report.waiting or report.halted else ExitCode.OK
