# SPDX-License-Identifier: Apache-2.0
"""The command ``lakefold init``, which finds a lake's tables and writes their first ``lakefold.toml``."""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.commands.common import CommandRun, Json, command_run, require_local
from service.cli.commands.config_template import describe_planned_work, render_config, sort_by_reducible
from service.cli.commands.spark_defaults import catalog_settings
from service.cli.output.column_widths import TableColumn
from service.former_names import both_names
from service.problems import CONFLICT, NOT_FOUND, USAGE, ExitCode, ProblemError, exit_codes_help
from service.text import format_size, plural

if TYPE_CHECKING:
    from service.control.config.loader import Config
    from service.control.planning.table_assessment import TableAssessment

#: maximum number of tables whose files the command lists; a large table takes seconds; the daemon scans the others
MAX_TABLES_READ = 50


def add_to(root: typer.Typer) -> None:
    """Register the command."""
    codes = exit_codes_help(ExitCode.PARTIAL, ExitCode.NOT_FOUND)
    root.command("init", epilog=codes, short_help="Read a lake's tables and write its first lakefold.toml.")(init)


def init(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A table, a directory or s3://… of tables, a Hive metastore, thrift://host:9083, or with "
            "--spark-defaults the name of an Iceberg catalog.",
        ),
    ],
    json: Json = False,
    database: Annotated[
        str | None, typer.Option("--database", metavar="PATTERN", help="Only these databases or namespaces.")
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", metavar="PATTERN", help="Only these tables of a metastore or catalog.")
    ] = None,
    spark_defaults: Annotated[
        Path | None,
        typer.Option(
            "--spark-defaults", metavar="FILE", help="Spark's spark-defaults.conf, which defines the catalog PATH."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Write this file instead of ./lakefold.toml.")
    ] = None,
) -> int:
    """Read the tables in a directory, bucket, metastore or catalog and write a lakefold.toml for them, with comments.

    Writes nothing else, starts no JVM, needs no database, and never overwrites a file. Every table starts in mode
    observe. The settings of a catalog, passwords included, are copied into the file, which then only its owner may
    read. The endpoint and keys of an object store come from the environment, see docs/object-stores.md. Exits 3 if
    a table can't be used, and 10 if there is no table.
    """
    from service.control.config.catalog import Catalog
    from service.control.planning.table_assessment import assess_tables
    from service.control.wiring import open_config_for_source

    require_local()
    with command_run(json, config) as run:
        file = _target_file(config)
        source = _source_settings(path, file, database, table, is_catalog=spark_defaults is not None)
        spark = {} if spark_defaults is None else catalog_settings(spark_defaults, path)
        settings = open_config_for_source(source, spark)
        catalog = Catalog(settings)
        tables = catalog.tables()
        if not tables:
            raise ProblemError(NOT_FOUND, _no_tables_text(path, source, settings, catalog.problems), path=path)
        assessments = assess_tables(tables[:MAX_TABLES_READ])
        unseen = len(tables) - len(assessments)
        text = "\n".join(render_config(source, assessments, unseen, spark)) + "\n"
        try:
            with open(file, "x", encoding="utf-8", opener=_open_for_owner if spark else None) as new:
                new.write(text)
        except FileExistsError:
            raise _file_exists_error(file) from None
        data = {
            "file": file,
            "source": next(iter(source.values())),
            "tables": [_document(assessment) for assessment in assessments],
            "unread_tables": unseen,
            "problems": catalog.problems,
        }
        run.out.result(both_names("init", data), lambda: _print_tables(run, assessments, unseen))
        for problem in catalog.problems:
            run.out.note(problem)
        _print_next_steps(run, file, source, settings, assessments)
        return (
            ExitCode.PARTIAL if catalog.problems or any(assessment.error for assessment in assessments) else ExitCode.OK
        )


def _no_tables_text(path: str, source: Mapping[str, str], settings: "Config", problems: Sequence[str]) -> str:
    from lake.capabilities import ListedInCatalog
    from service.control.config.loader import catalog_table_hint

    if problems:
        # The only source is the command's own argument, and has no number for the user.
        start = f"source #1 ({settings.sources[0].label}): "
        why = "; ".join(problem.removeprefix(start) for problem in problems)
        if "path" in source and path.isidentifier() and not Path(path).exists():
            why += f"; if {path} is an Iceberg catalog, give its spark-defaults.conf by --spark-defaults FILE"
        return f"no tables were read: {why}"
    if "catalog" in source:
        warehouse = settings.spark.get(f"spark.sql.catalog.{path}.warehouse")
        name = f"catalog {path}" if warehouse is None else f"catalog {path} (warehouse {warehouse})"
        patterns = f"{source.get('database', '*')}.{source.get('table', '*')}"
        return f"{name} has no table {patterns}" if len(source) > 1 else f"{name} has no tables"
    formats = ", ".join(one.name for one in settings.formats if not isinstance(one, ListedInCatalog))
    text = f"no table of a supported format ({formats}) in {path}"
    hint = catalog_table_hint(settings.formats, path) if "path" in source else ""
    return f"{text}; {hint}: lakefold init CATALOG --spark-defaults FILE" if hint else text


def _target_file(chosen: Path | None) -> Path:
    """Return the file to write, which is the file that commands read by default. Raises ProblemError if it exists."""
    from service.control.config.loader import ENV_PREFIX, FILE_NAME

    file = (chosen or Path(os.environ.get(f"{ENV_PREFIX}CONFIG") or FILE_NAME)).expanduser()
    if file.exists():
        raise _file_exists_error(file)
    if not file.absolute().parent.is_dir():
        raise ProblemError(NOT_FOUND, f"{file.parent} is not a directory; create it first", path=str(file.parent))
    return file


def _file_exists_error(file: Path) -> ProblemError:
    text = f"{file} exists and was not changed; add a [[sources]] section to it, or write another --config FILE"
    return ProblemError(CONFLICT, text, file=str(file))


def _open_for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _source_settings(
    path: str, file: Path, database: str | None, table: str | None, *, is_catalog: bool
) -> dict[str, str]:
    """Return the settings of the file's ``[[sources]]`` entry, the location first.

    Raises ProblemError if a path is combined with ``--database`` or ``--table``.
    """
    patterns = {"database": database, "table": table}
    given = {setting: pattern for setting, pattern in patterns.items() if pattern is not None}
    if is_catalog:
        return {"catalog": path} | given
    if path.startswith("thrift://"):
        return {"metastore": path} | given
    if given:
        options = " and ".join(f"--{setting}" for setting in given)
        raise ProblemError(
            USAGE,
            f"{options}: only for a metastore, thrift://host:9083, or a catalog, --spark-defaults; {path} is a path",
        )
    return {"path": _path_for_file(path, file)}


def _path_for_file(path: str, file: Path) -> str:
    """Return ``path`` for use in ``file``: relative paths in the file are relative to the file's directory."""
    from lake.storage.locations import canonical_location, is_local

    beside = file.absolute().parent == Path.cwd()
    return path if beside or not is_local(path) else canonical_location(path)


def _document(assessment: "TableAssessment") -> dict[str, Any]:
    from service.control.planning.likely_writers import writer_document

    layout, ref = assessment.layout, assessment.table.ref
    figures = ("files", "bytes", "small_files", "small_bytes", "partitions", "reducible_files", "reducible_bytes")
    document = {
        "table": ref.name,
        "format": ref.format,
        "location": ref.location,
        **{name: layout and getattr(layout, name) for name in figures},
        "main_skip_reason": assessment.main_skip_reason,
        "writers": assessment.writers,
        "likely_writers": [writer_document(writer, assessment.table) for writer in assessment.likely_writers],
        "error": assessment.error,
    }
    return both_names("init table", document)


def _print_tables(run: CommandRun, assessments: "Sequence[TableAssessment]", unread_count: int) -> None:
    out = run.out
    out.table(
        (
            TableColumn("TABLE"),
            TableColumn("FORMAT"),
            TableColumn("FILES", True),
            TableColumn("SMALL", True),
            TableColumn("SIZE", True),
            TableColumn("WOULD BE PLANNED"),
        ),
        (
            (
                assessment.table.name,
                assessment.table.ref.format,
                *_table_figures(assessment),
                describe_planned_work(assessment),
            )
            for assessment in assessments
        ),
    )
    if unread_count:
        out.line(f"… and {plural(unread_count, 'table')} more, not read yet")
    for assessment in assessments:
        if assessment.error is not None:
            out.note(assessment.error_text)


def _table_figures(assessment: "TableAssessment") -> tuple[str, str, str]:
    layout = assessment.layout
    return (f"{layout.files:,}", f"{layout.small_files:,}", format_size(layout.bytes)) if layout else ("", "", "")


def _print_next_steps(
    run: CommandRun, file: Path, source: Mapping[str, str], settings: "Config", assessments: "Sequence[TableAssessment]"
) -> None:
    from lake.redaction import redact_database_url
    from service.control.config.loader import find_config_file

    in_force = find_config_file()
    option = "" if in_force is not None and in_force.samefile(file) else f" --config {shlex.quote(str(file))}"
    served = next(
        (assessment.table.name for assessment in sort_by_reducible(assessments) if assessment.error is None), None
    )
    database = redact_database_url(settings.database.url.get_secret_value())
    page = f"http://{settings.http.address}:{settings.http.port}/"
    steps = [(f"lakefold db upgrade{option}", f"create the database, {database}")]
    if served is not None:
        steps.append((f"lakefold plans request {shlex.quote(served)} -n{option}", "show the exact plan; creates none"))
    steps.append((f"lakefold serve{option}", f"scan every table at intervals; page on {page}"))
    width = max(len(step) for step, _ in steps)
    run.out.note(
        f"\nWrote {file}. Every table is in mode observe: nothing is rewritten before a rule allows it.\nNext:"
    )
    for step, why in steps:
        run.out.note(f"  {step.ljust(width)}  # {why}")
    if "catalog" in source:
        run.out.note(f"To have a table compacted, uncomment its rule in {file}.")
        return
    how = "how it is read and written" if "metastore" in source else "how its writers work"
    run.out.note(f"To have a table compacted, uncomment its rule in {file} and declare {how}.")
