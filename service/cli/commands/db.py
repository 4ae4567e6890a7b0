# SPDX-License-Identifier: Apache-2.0
"""The commands ``lakefold db``, which create, upgrade and check the database's schema."""

from typing import Annotated

import typer

from lake.redaction import redact_database_url
from service.cli.commands.common import ConfigFile, Json, command_run
from service.problems import ExitCode, exit_codes_help

app = typer.Typer(help="Create, upgrade and check the database's schema.", no_args_is_help=True)


@app.command("upgrade", epilog=exit_codes_help(ExitCode.DATABASE))
def upgrade(
    no_create: Annotated[
        bool, typer.Option("--no-create", help="Exit 13 if the SQLite file is missing, instead of creating it.")
    ] = False,
    json: Json = False,
    config: ConfigFile = None,
) -> None:
    """Create the schema, or upgrade it to this release's revision. Only this command creates a SQLite file."""
    from service.control.wiring import create_store

    with command_run(json, config) as run:
        store = create_store(run.config)
        try:
            store.upgrade(creates_file=not no_create)
        finally:
            store.close()
        url = redact_database_url(run.config.database.url.get_secret_value())
        run.out.result({"database": url, "schema": "current"}, lambda: run.out.line(f"{url}: schema is current"))


@app.command("check", epilog=exit_codes_help(ExitCode.DATABASE))
def check(json: Json = False, config: ConfigFile = None) -> None:
    """Check that the database can be reached and written and that its schema is current; else exit 13.

    Stores nothing.
    """
    with command_run(json, config) as run:
        run.store.check_writable()
        url = redact_database_url(run.config.database.url.get_secret_value())
        data = {"database": url, "schema": "current", "writable": True}
        run.out.result(data, lambda: run.out.line(f"{url}: schema is current, database is writable"))
