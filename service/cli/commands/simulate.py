# SPDX-License-Identifier: Apache-2.0
"""The command ``lakefold simulate``: the files that a writer will create."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.commands.common import CommandRun, Json, command_run, parse_key_values
from service.cli.output.column_widths import TableColumn
from service.problems import BAD_SETTING, NOT_FOUND, ExitCode, ProblemError, exit_codes_help
from service.text import format_percent, format_size, partition_name, plural


def add_to(root: typer.Typer) -> None:
    """Register the command."""
    root.command(
        "simulate",
        epilog=exit_codes_help(ExitCode.NOT_FOUND, ExitCode.DATABASE),
        short_help="Show which files a writer will create.",
    )(simulate)


def simulate(
    scenario: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A scenario as TOML, or its batches as CSV; - is a scenario on stdin."),
    ] = None,
    writer: Annotated[
        str | None, typer.Option("--writer", help="hudi-cow, hudi-mor or hive, instead of the scenario's writer.")
    ] = None,
    batch: Annotated[
        list[str] | None,
        typer.Option("--batch", metavar="OPERATION=AMOUNT", help="Add a batch: insert=96MB, update=5000 (rows)."),
    ] = None,
    row_bytes: Annotated[
        float | None,
        typer.Option("--row-bytes", metavar="BYTES", help="Bytes per row, unless a batch gives its own; default 1024."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the writer, by its own name.")
    ] = None,
    files: Annotated[bool, typer.Option("--files", help="List each file after each batch.")] = False,
    json: Json = False,
) -> None:
    """Show which files a writer will create with its settings: the files after each of its batches.

    Reads and writes no table. docs/planning.md describes the rules of each writer and the syntax of a scenario;
    docs/scenarios/ has examples.
    """
    with command_run(json, None) as run:
        found = run.client.simulate(_scenario_document(scenario, writer, batch or [], row_bytes, settings or []))
        run.out.result(found, lambda: _print_simulation(run, found, files=files))


def _scenario_document(
    scenario: Path | None, writer: str | None, words: list[str], row_bytes: float | None, settings: list[str]
) -> dict[str, Any]:
    """Read the scenario and apply the options to it. Raises ProblemError."""
    from planner.writers.model import SimulationError
    from planner.writers.scenario import parse_batch_words, parse_csv, parse_toml

    try:
        document = (
            {}
            if scenario is None
            else (parse_csv if scenario.suffix == ".csv" else parse_toml)(_read_scenario_file(scenario))
        )
        batches = parse_batch_words(words)
    except SimulationError as error:
        raise ProblemError(BAD_SETTING, str(error)) from error
    document |= {} if writer is None else {"writer": writer}
    document |= {} if row_bytes is None else {"row_bytes": row_bytes}
    if batches:
        document["batches"] = [*document.get("batches", ()), *batches]
    if given := parse_key_values(settings, "hoodie.parquet.max.file.size=256MB"):
        document["settings"] = {**document.get("settings", {}), **given}
    return document


def _read_scenario_file(path: Path) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProblemError(NOT_FOUND, f"{path} can't be read: {error}") from error


def _print_simulation(run: CommandRun, found: Mapping[str, Any], *, files: bool) -> None:
    from service.control.serializers import describe_sizes

    for note in found["notes"]:
        run.out.note(note)
    limit, target = format_size(found["small_file_limit_bytes"]), format_size(found["target_bytes"])
    run.out.line(f"{found['writer']}: files below {limit} are small; the writer fills files up to {target}")
    run.out.line()
    if files:
        _print_files(run, found)
        return
    columns = [
        TableColumn("BATCH", True),
        TableColumn("WRITES"),
        TableColumn("WRITTEN", True),
        TableColumn("FILES", True),
        TableColumn("SMALL", True),
        TableColumn("SIZES"),
    ]
    before = found["before"]
    small = sum(file["small"] for file in before)
    rows: list[tuple[Any, ...]] = [("", "before", "", len(before), small, describe_sizes(before))] if before else []
    for step in found["steps"]:
        small = f"{step['small_files']:,} ({format_percent(step['small_share'])})"
        sizes = describe_sizes(step["layout"])
        written = format_size(step["written_bytes"])
        rows.append((step["batch"], describe_writes(step["writes"]), written, step["files"], small, sizes))
    run.out.table(columns, rows)


def describe_writes(writes: list[Mapping[str, Any]]) -> str:
    """Describe writes, such as ``insert 91.6 MiB``, with the number of partitions if there are several."""
    sums: dict[str, tuple[int, int]] = {}
    for write in writes:
        partitions, total = sums.get(write["operation"], (0, 0))
        sums[write["operation"]] = partitions + 1, total + write["bytes"]
    return ", ".join(
        f"{operation} {format_size(total)}" + (f" into {plural(partitions, 'partition')}" if partitions > 1 else "")
        for operation, (partitions, total) in sums.items()
    )


def _print_files(run: CommandRun, found: Mapping[str, Any]) -> None:
    done = {(step["batch"], change["file"]): change["action"] for step in found["steps"] for change in step["changes"]}
    run.out.table(
        (
            TableColumn("BATCH", True),
            TableColumn("PARTITION"),
            TableColumn("FILE", True),
            TableColumn("BYTES", True),
            TableColumn("ROWS", True),
            TableColumn("LOGS", True),
            TableColumn("LOG BYTES", True),
            TableColumn("SMALL"),
            TableColumn("THIS BATCH"),
        ),
        (
            (
                f"{step['batch']:,}",
                partition_name(file["partition"]),
                file["file"],
                format_size(file["bytes"]),
                f"{file['rows']:,}",
                len(file["logs"]) or "",
                format_size(sum(file["logs"])) if file["logs"] else "",
                "small" if file["small"] else "",
                done.get((step["batch"], file["file"]), ""),
            )
            for step in found["steps"]
            for file in step["layout"]
        ),
    )
