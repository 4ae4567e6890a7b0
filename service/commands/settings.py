# SPDX-License-Identifier: Apache-2.0
"""``lakefold config`` and ``lakefold db``: is what I wrote right, what is in force and why, is the schema there."""

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.commands.common import ConfigFile, Json, Run, command, plural
from service.exitcodes import ExitCode, exit_codes
from service.output import Column
from service.secrets import hide, shown

if TYPE_CHECKING:
    from service.rules import ConfiguredTable

_SIZES = (
    "small_file_limit",
    "target_file_max",
    "max_bytes_per_group",
    "max_bytes_per_plan",
    "missing_base",
    "compact_log_bytes",
)

config_app = typer.Typer(help="The configuration: is it right, and what is in force where.", no_args_is_help=True)
db_app = typer.Typer(help="The database's schema.", no_args_is_help=True)


def add_to(root: typer.Typer) -> None:
    """Register the commands."""
    root.add_typer(config_app, name="config")
    root.add_typer(db_app, name="db")


@config_app.command("check", epilog=exit_codes(ExitCode.PARTIAL))
def check(json: Json = False, config: ConfigFile = None) -> int:
    """Read file and environment, find the tables, check every rule; exit 3 when a source can't be resolved.

    Needs no database: tables of a catalog database, which only a process with Spark can list, are not searched.
    """
    from service.catalog import Catalog
    from service.rules import check_rules, matching

    with command(json, config) as run:
        loaded = run.config
        check_rules(loaded)
        catalog = Catalog(loaded)
        tables = catalog.tables()
        matched = {number for table in tables for number in matching(loaded, table.name)}
        idle = [loaded.rule_origin(number) for number in range(len(loaded.tables)) if number not in matched]
        modes = {mode: sum(table.mode == mode for table in tables) for mode in ("compact", "observe", "off")}
        data = {
            "file": loaded.file, "tables": len(tables), "modes": modes, "problems": catalog.problems,
            "rules_without_table": idle,
        }  # fmt: skip

        def text() -> None:
            run.out.line(f"{loaded.file or 'no file, defaults and environment only'}: right")
            counts = ", ".join(f"{count} {mode}" for mode, count in modes.items())
            run.out.line(f"{plural(len(tables), 'table')}: {counts}")
            for rule in idle:
                run.out.note(f"{rule} matches no table")
            for problem in catalog.problems:
                run.out.note(problem)

        run.out.one(data, text)
        return ExitCode.PARTIAL if catalog.problems else ExitCode.OK


@config_app.command("show", epilog=exit_codes(ExitCode.NOT_FOUND, ExitCode.DATABASE))
def show(
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="A table's name or path.")] = None,
    json: Json = False,
    config: ConfigFile = None,
) -> None:
    """Show every setting in force and where it came from: of the service, or of one table."""
    with command(json, config) as run:
        if table is None:
            rows = _service_settings(run)
        else:
            found = run.table(table)
            rows = table_settings(found)
            run.out.note(f"{found.name} at {found.ref.location}")
        run.out.many(
            ({"setting": key, "value": value, "origin": origin} for key, value, origin in rows),
            lambda: run.out.table(
                (Column("SETTING"), Column("VALUE"), Column("ORIGIN")),
                ((key, human(key, value), origin) for key, value, origin in rows),
            ),
        )


def _service_settings(run: Run) -> list[tuple[str, Any, str]]:
    loaded = run.config
    origins = loaded.origins

    def rows(section: str, values: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
        return [
            (f"{section}.{key}", shown(key, value), origins.get(f"{section}.{key}", "default"))
            for key, value in values.items()
        ]

    spark = [
        (key, value, origins.get(f"spark.{key}") or origins.get(f"spark.{key.removeprefix('spark.')}", "default"))
        for key, value in loaded.spark.items()
    ]
    sources = [
        ("sources", source.model_dump(exclude_defaults=True), f"{loaded.file_name} [[sources]] #{number}")
        for number, source in enumerate(loaded.sources, 1)
    ]
    return [
        *rows("database", {"url": without_password(loaded.database.url.get_secret_value())}),
        *((key, shown(key, value), origin) for key, value, origin in spark),
        *sources,
        *rows("daemon", loaded.daemon.model_dump()),
        *rows("notify", loaded.notify.model_dump()),
    ]


def without_password(url: str) -> str:
    """A database URL that may be shown."""
    scheme, separator, rest = url.partition("://")
    login, at, host = rest.rpartition("@")
    if not at:
        return hide(url)
    return hide(f"{scheme}{separator}{login.partition(':')[0]}{':***' if ':' in login else ''}@{host}")


def table_settings(table: "ConfiguredTable") -> list[tuple[str, Any, str]]:
    """Every policy knob, mode and lock setting of one table with its origin."""
    from planner.policy import KNOBS, setting_name

    rows: list[tuple[str, Any, str]] = [
        ("mode", table.mode, table.origins["mode"].place),
        ("concurrency", table.ref.concurrency.value, table.origins["concurrency"].place),
        ("on_conflict", table.ref.on_conflict or "as write_options say", table.origins["on_conflict"].place),
    ]
    for knob in KNOBS:
        origin = table.origins[knob]
        place = f"{origin.place} ({origin.key} = {origin.value!r})" if origin.key else origin.place
        rows.append((setting_name(knob), getattr(table.policy, knob), place))
    place = table.origins["write_options"].place
    rows += [
        (f"write_options.{key}", shown(key, value), place) for key, value in sorted(table.ref.write_options.items())
    ]
    return rows


def human(key: str, value: Any) -> str:
    """A setting's value for people: bytes with a unit, durations as written, lists with commas."""
    from lake.units import format_bytes, format_duration

    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, int) and not isinstance(value, bool) and key in _SIZES:
        return format_bytes(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={human(name, item)}" for name, item in value.items())
    if isinstance(value, (tuple, list, frozenset, set)):
        return ", ".join(str(item) for item in value)
    return "" if value is None else str(value)


@db_app.command("upgrade", epilog=exit_codes(ExitCode.DATABASE))
def upgrade(json: Json = False, config: ConfigFile = None) -> None:
    """Create the schema, or bring it to this lakefold's revision."""
    from service.wiring import make_store

    with command(json, config) as run:
        store = make_store(run.config)
        try:
            store.upgrade()
        finally:
            store.close()
        url = without_password(run.config.database.url.get_secret_value())
        run.out.one({"database": url, "schema": "current"}, lambda: run.out.line(f"{url}: schema is current"))


@db_app.command("check", epilog=exit_codes(ExitCode.DATABASE))
def check_schema(json: Json = False, config: ConfigFile = None) -> None:
    """Exit 13 when the database can't be reached or its schema is behind."""
    with command(json, config) as run:
        run.store.check()
        url = without_password(run.config.database.url.get_secret_value())
        run.out.one({"database": url, "schema": "current"}, lambda: run.out.line(f"{url}: schema is current"))
