# SPDX-License-Identifier: Apache-2.0
"""``lakefold init``: looks at a directory or bucket and writes the first ``lakefold.toml`` for its tables."""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.commands.common import Json, Run, command, only_here, plural
from service.commands.first_file import first_file, worst_first, would_plan
from service.commands.output import Column
from service.problems import CONFLICT, NOT_FOUND, USAGE, CommandError, ExitCode, exit_codes
from service.text import size

if TYPE_CHECKING:
    from service.config.loader import Config
    from service.planning.survey import Sight

#: each of these is listed, which takes seconds for a large one; the daemon's first scans tell of the others
LOOKED_AT = 50


def add_to(root: typer.Typer) -> None:
    """Register the command."""
    codes = exit_codes(ExitCode.PARTIAL, ExitCode.NOT_FOUND)
    root.command("init", epilog=codes, short_help="Look at a lake and write its first lakefold.toml.")(init)


def init(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A table, a directory or s3://… that holds some, or a Hive metastore, thrift://host:9083.",
        ),
    ],
    json: Json = False,
    database: Annotated[
        str | None, typer.Option("--database", metavar="PATTERN", help="Of a metastore, these databases only.")
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", metavar="PATTERN", help="Of a metastore, these tables only.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Write this file instead of ./lakefold.toml.")
    ] = None,
) -> int:
    """Look at the tables in a directory, bucket or metastore and write a lakefold.toml for them, with comments.

    Changes nothing else, starts no Java, needs no database, and never overwrites a file. Every table starts in mode
    observe. Endpoint and keys of a store come from the environment, as in docs/object-stores.md. Exit 3 when a
    table found can't be served, 10 when there is none.
    """
    from service.config.catalog import Catalog
    from service.planning.survey import survey
    from service.wiring import open_source

    only_here()
    with command(json, config) as run:
        file = _target(config)
        source = _source(path, file, database, table)
        settings = open_source(source)
        catalog = Catalog(settings)
        tables = catalog.tables()
        if not tables:
            why = f": {'; '.join(catalog.problems)}" if catalog.problems else ""
            formats = ", ".join(settings.formats)
            raise CommandError(NOT_FOUND, f"no table of a format that is served ({formats}) in {path}{why}", path=path)
        sights = survey(tables[:LOOKED_AT])
        unseen = len(tables) - len(sights)
        text = "\n".join(first_file(source, sights, unseen)) + "\n"
        try:
            with file.open("x", encoding="utf-8") as new:
                new.write(text)
        except FileExistsError:
            raise _exists(file) from None
        data = {
            "file": file,
            "source": next(iter(source.values())),
            "tables": [_document(sight) for sight in sights],
            "not_looked_at": unseen,
            "problems": catalog.problems,
        }
        run.out.one(data, lambda: _text(run, sights, unseen))
        for problem in catalog.problems:
            run.out.note(problem)
        _next(run, file, source, settings, sights)
        return ExitCode.PARTIAL if catalog.problems or any(sight.refused for sight in sights) else ExitCode.OK


def _target(chosen: Path | None) -> Path:
    """The file to write, which is the one that commands read here. Raises CommandError where it exists."""
    from service.config.loader import ENV_PREFIX, FILE_NAME

    file = (chosen or Path(os.environ.get(f"{ENV_PREFIX}CONFIG") or FILE_NAME)).expanduser()
    if file.exists():
        raise _exists(file)
    if not file.absolute().parent.is_dir():
        raise CommandError(NOT_FOUND, f"{file.parent} is not a directory; create it first", path=str(file.parent))
    return file


def _exists(file: Path) -> CommandError:
    text = f"{file} exists and stays as it is; add a [[sources]] to it, or write another file with --config FILE"
    return CommandError(CONFLICT, text, file=str(file))


def _source(path: str, file: Path, database: str | None, table: str | None) -> dict[str, str]:
    """The settings of the file's ``[[sources]]``, where its tables are first. Raises CommandError."""
    patterns = {"database": database, "table": table}
    given = {setting: pattern for setting, pattern in patterns.items() if pattern is not None}
    if path.startswith("thrift://"):
        return {"metastore": path} | given
    if given:
        options = " and ".join(f"--{setting}" for setting in given)
        raise CommandError(USAGE, f"{options}: only of a metastore, thrift://host:9083; {path} is a path")
    return {"path": _written(path, file)}


def _written(path: str, file: Path) -> str:
    """``path`` as the file names it: its own paths are relative to where it is."""
    from lake.locations import canonical_location, is_local

    beside = file.absolute().parent == Path.cwd()
    return path if beside or not is_local(path) else canonical_location(path)


def _document(sight: "Sight") -> dict[str, Any]:
    from service.planning.writers import writer_document

    layout, ref = sight.layout, sight.table.ref
    figures = ("files", "bytes", "small_files", "small_bytes", "partitions", "reducible_files", "reducible_bytes")
    return {
        "table": ref.name,
        "format": ref.format,
        "location": ref.location,
        **{name: layout and getattr(layout, name) for name in figures},
        "left_alone": sight.left_alone,
        "writers": sight.writers,
        "likely_writers": [writer_document(writer, sight.table) for writer in sight.likely],
        "refused": sight.refused,
    }


def _text(run: Run, sights: "Sequence[Sight]", unseen: int) -> None:
    out = run.out
    out.table(
        (
            Column("TABLE"),
            Column("FORMAT"),
            Column("FILES", True),
            Column("SMALL", True),
            Column("SIZE", True),
            Column("WOULD BE PLANNED"),
        ),
        (
            (
                sight.table.name,
                sight.table.ref.format,
                *_figures(sight),
                would_plan(sight),
            )
            for sight in sights
        ),
    )
    if unseen:
        out.line(f"… and {plural(unseen, 'table')} more, not looked at yet")
    for sight in sights:
        if sight.refused is not None:
            out.note(sight.refusal)


def _figures(sight: "Sight") -> tuple[str, str, str]:
    layout = sight.layout
    return (f"{layout.files:,}", f"{layout.small_files:,}", size(layout.bytes)) if layout else ("", "", "")


def _next(run: Run, file: Path, source: Mapping[str, str], settings: "Config", sights: "Sequence[Sight]") -> None:
    from lake.redaction import without_password
    from service.config.loader import find_file

    in_force = find_file()
    option = "" if in_force is not None and in_force.samefile(file) else f" --config {shlex.quote(str(file))}"
    served = next((sight.table.name for sight in worst_first(sights) if sight.refused is None), None)
    database = without_password(settings.database.url.get_secret_value())
    page = f"http://{settings.http.address}:{settings.http.port}/"
    steps = [(f"lakefold db upgrade{option}", f"create the database, {database}")]
    if served is not None:
        steps.append(
            (f"lakefold plans request {shlex.quote(served)} -n{option}", "show the exact plan; nothing is stored")
        )
    steps.append((f"lakefold serve{option}", f"scan every table at intervals; page on {page}"))
    width = max(len(step) for step, _ in steps)
    run.out.note(f"\nWrote {file}. Every table is in mode observe: nothing is rewritten before a rule says so.\nNext:")
    for step, why in steps:
        run.out.note(f"  {step.ljust(width)}  # {why}")
    how = "how it is read and written" if "metastore" in source else "how its writers work"
    run.out.note(f"To have a table compacted uncomment its rule in {file}, and say {how}.")
