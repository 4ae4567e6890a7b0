# SPDX-License-Identifier: Apache-2.0
"""The commands ``lakefold config``, which check and show settings."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.commands.common import ConfigFile, Json, command_run
from service.cli.output.column_widths import TableColumn
from service.former_names import both_names
from service.problems import ExitCode, exit_codes_help
from service.text import join_names, plural

if TYPE_CHECKING:
    from service.control.config.loader import Config
    from service.control.config.sections import SourceSettings

app = typer.Typer(help="Check the configuration and show the settings in force.", no_args_is_help=True)


@app.command("check", epilog=exit_codes_help(ExitCode.PARTIAL))
def check(
    strict: Annotated[bool, typer.Option("--strict", help="Exit 3 also on warnings.")] = False,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Read file and environment, find the tables, and check every rule and table as a scan does.

    Prints every error in the settings with its line. Exits 3 if a source can't be resolved, or if a table is refused or
    can't be read. Needs no database. Does not list the tables of a Spark catalog's database, which requires Spark.

    Warns about rules that match no table, values that are probably unintended, unknown environment variables, and
    former names of settings.
    """
    from planner.budgets import TableLimits, plan_size_limit
    from planner.policy.validation import validation_warnings
    from planner.rates import Rates
    from service.control.config.catalog import Catalog
    from service.control.config.environment import unknown_variables
    from service.control.config.table_settings import (
        check_rules,
        default_policy,
        global_budget,
        unmatched_rules,
    )
    from service.control.planning.refusals import refused_tables
    from service.control.store.database import parse_url

    with command_run(json, config) as run:
        loaded = run.config
        parse_url(loaded.database.url.get_secret_value())
        check_rules(loaded)
        catalog = Catalog(loaded)
        tables = catalog.tables()
        refused = refused_tables(loaded, tables)
        idle = unmatched_rules(loaded, [table.name for table in tables])
        modes = {mode: sum(table.mode == mode for table in tables) for mode in ("compact", "propose", "observe", "off")}
        sources = [
            {"source": source.label, "tables": catalog.names_by_source[number]}
            for number, source in enumerate(loaded.sources, 1)
        ]
        unread = unknown_variables()
        careful: dict[str, list[str]] = {}
        common, rates = global_budget(loaded), Rates()
        for name, policy in (("[defaults]", default_policy(loaded)), *((table.name, table.policy) for table in tables)):
            limit = plan_size_limit(TableLimits.from_settings(policy).budget, common, rates)
            budget = None if limit is None else limit.warning(policy)
            for caution in (*validation_warnings(policy), *([budget] if budget else [])):
                careful.setdefault(caution, []).append(name)
        fields = {
            "file": loaded.file,
            "tables": len(tables),
            "modes": modes,
            "sources": sources,
            "problems": catalog.problems,
            "refused": refused,
            "unmatched_rules": list(idle),
            "unknown_variables": list(unread),
            "warnings": careful,
            "renamed_settings": list(loaded.renamed),
        }

        def text() -> None:
            counts = ", ".join(f"{count} {mode}" for mode, count in modes.items() if count)
            found = plural(len(tables), "table") + (f": {counts}" if counts else "")
            missing = [
                *([f"{plural(len(refused), 'table')} can't be used"] if refused else []),
                *([f"{plural(len(catalog.problems), 'problem')} with sources"] if catalog.problems else []),
            ]
            but = f", but {' and '.join(missing)}" if missing else ""
            run.out.line(f"{loaded.file or 'no file, defaults and environment only'}: OK ({found}){but}")
            run.out.table(
                (TableColumn("SOURCE"), TableColumn("TABLES", True), TableColumn("NAMES")),
                (
                    (
                        entry["source"],
                        len(entry["tables"]),
                        join_names(entry["tables"]) or _no_tables_text(loaded, source),
                    )
                    for entry, source in zip(sources, loaded.sources, strict=True)
                ),
            )
            for problem in catalog.problems:
                run.out.note(problem)
            cautions = (f"{join_names(where)}: {caution}" for caution, where in careful.items())
            for warning in (*idle.values(), *loaded.renamed, *unread.values(), *cautions):
                run.out.note(f"warning: {warning}")
            for name, why in refused.items():
                run.out.note(why if why.startswith(name) else f"{name}: {why}")

        run.out.result(both_names("config check", fields), text)
        has_warnings = bool(idle or loaded.renamed or unread or careful)
        return ExitCode.PARTIAL if catalog.problems or refused or (strict and has_warnings) else ExitCode.OK


def _no_tables_text(config: "Config", source: "SourceSettings") -> str:
    from service.control.config.loader import catalog_listers, catalog_table_hint

    if source.path is not None:
        path = Path(source.path).expanduser()
        hint = catalog_table_hint(config.formats, str(config.file.parent / path if config.file else path))
        return f"none; {hint}, as [[sources]] with catalog" if hint else "none"
    by_spark = source.metastore is None and not catalog_listers(source)
    return "not listed: listing this catalog requires Spark" if by_spark else "none"


@app.command("show", epilog=exit_codes_help(ExitCode.NOT_FOUND, ExitCode.DATABASE))
def show(
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="A table's name or path.")] = None,
    json: Json = False,
    config: ConfigFile = None,
) -> None:
    """Show the settings in force and the origin of each: for the service, or for one table."""
    with command_run(json, config) as run:
        found = run.client.settings(table)
        if found.table is not None:
            run.out.note(f"{found.table} at {found.location}")
        run.out.results(
            found.settings,
            lambda: run.out.table(
                (TableColumn("SETTING"), TableColumn("VALUE"), TableColumn("ORIGIN")),
                ((row["setting"], row["text"], row["origin"]) for row in found.settings),
            ),
        )
