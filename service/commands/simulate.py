# SPDX-License-Identifier: Apache-2.0
"""``lakefold simulate``: which files a writer will make."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from service.commands.common import Json, Run, command, key_values, partition_name, plural
from service.commands.output import Column
from service.problems import NOT_FOUND, SETTING, CommandError, ExitCode, exit_codes
from service.text import percent, size


def add_to(root: typer.Typer) -> None:
    """Register the command."""
    root.command(
        "simulate",
        epilog=exit_codes(ExitCode.NOT_FOUND, ExitCode.DATABASE),
        short_help="Show which files a writer will make.",
    )(simulate)


def simulate(
    scenario: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A scenario as TOML, or its batches as CSV; - is a scenario on stdin."),
    ] = None,
    writer: Annotated[
        str | None, typer.Option("--writer", help="hudi-cow, hudi-mor or hive, whatever the scenario says.")
    ] = None,
    batch: Annotated[
        list[str] | None,
        typer.Option("--batch", metavar="OPERATION=AMOUNT", help="One more batch: insert=96MB, update=5000 (rows)."),
    ] = None,
    row_bytes: Annotated[
        float | None, typer.Option("--row-bytes", metavar="BYTES", help="A row where nothing else is said; 1024.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the writer, by its own name.")
    ] = None,
    files: Annotated[bool, typer.Option("--files", help="List each file after each batch.")] = False,
    json: Json = False,
) -> None:
    """Show which files a writer will make: batches and its settings in, the files after each batch out.

    Nothing is read and nothing is written. docs/planning.md has the rules of each writer and what a scenario may say;
    docs/scenarios/ has some to begin with.
    """
    with command(json, None) as run:
        found = run.client.simulate(_document(scenario, writer, batch or [], row_bytes, settings or []))
        run.out.one(found, lambda: _text(run, found, files=files))


def _document(
    scenario: Path | None, writer: str | None, words: list[str], row_bytes: float | None, settings: list[str]
) -> dict[str, Any]:
    """The scenario's document with what the options say over it. Raises CommandError."""
    from planner.writers.model import SimulationError
    from planner.writers.scenario import of_csv, of_toml, of_words

    try:
        document = {} if scenario is None else (of_csv if scenario.suffix == ".csv" else of_toml)(_read(scenario))
        batches = of_words(words)
    except SimulationError as error:
        raise CommandError(SETTING, str(error)) from error
    document |= {} if writer is None else {"writer": writer}
    document |= {} if row_bytes is None else {"row_bytes": row_bytes}
    if batches:
        document["batches"] = [*document.get("batches", ()), *batches]
    if given := key_values(settings, "hoodie.parquet.max.file.size=256MB"):
        document["settings"] = {**document.get("settings", {}), **given}
    return document


def _read(path: Path) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(NOT_FOUND, f"{path} can't be read: {error}") from error


def _text(run: Run, found: Mapping[str, Any], *, files: bool) -> None:
    from service.documents import sizes_in_words

    for note in found["notes"]:
        run.out.note(note)
    limit, target = size(found["small_file_limit_bytes"]), size(found["target_bytes"])
    run.out.line(f"{found['writer']}: files below {limit} are small, {target} is what the writer fills them to")
    run.out.line()
    if files:
        _files_text(run, found)
        return
    columns = [
        Column("BATCH", True),
        Column("WRITES"),
        Column("WRITTEN", True),
        Column("FILES", True),
        Column("SMALL", True),
        Column("SIZES"),
    ]
    before = found["before"]
    small = sum(file["small"] for file in before)
    rows: list[tuple[Any, ...]] = [("", "before", "", len(before), small, sizes_in_words(before))] if before else []
    for step in found["steps"]:
        small = f"{step['small_files']:,} ({percent(step['small_share'])})"
        sizes = sizes_in_words(step["layout"])
        written = size(step["written_bytes"])
        rows.append((step["batch"], writes_in_words(step["writes"]), written, step["files"], small, sizes))
    run.out.table(columns, rows)


def writes_in_words(writes: list[Mapping[str, Any]]) -> str:
    """``insert 91.6 MiB``; of several partitions how many there are."""
    sums: dict[str, tuple[int, int]] = {}
    for write in writes:
        partitions, total = sums.get(write["operation"], (0, 0))
        sums[write["operation"]] = partitions + 1, total + write["bytes"]
    return ", ".join(
        f"{operation} {size(total)}" + (f" into {plural(partitions, 'partition')}" if partitions > 1 else "")
        for operation, (partitions, total) in sums.items()
    )


def _files_text(run: Run, found: Mapping[str, Any]) -> None:
    done = {(step["batch"], change["file"]): change["action"] for step in found["steps"] for change in step["changes"]}
    run.out.table(
        (
            Column("BATCH", True),
            Column("PARTITION"),
            Column("FILE", True),
            Column("BYTES", True),
            Column("ROWS", True),
            Column("LOGS", True),
            Column("LOG BYTES", True),
            Column("SMALL"),
            Column("THIS BATCH"),
        ),
        (
            (
                f"{step['batch']:,}",
                partition_name(file["partition"]),
                file["file"],
                size(file["bytes"]),
                f"{file['rows']:,}",
                len(file["logs"]) or "",
                size(sum(file["logs"])) if file["logs"] else "",
                "small" if file["small"] else "",
                done.get((step["batch"], file["file"]), ""),
            )
            for step in found["steps"]
            for file in step["layout"]
        ),
    )
