# SPDX-License-Identifier: Apache-2.0
"""The commands ``lakefold tokens``, which manage access to the HTTP API."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from service.cli.commands.common import ConfigFile, Json, command_run, current_actor
from service.cli.output.column_widths import TableColumn
from service.problems import USAGE, ExitCode, ProblemError, exit_codes_help
from service.text import format_age

app = typer.Typer(help="Add, list and revoke tokens of the HTTP API.", no_args_is_help=True)
_SCOPES = ("read", "write")
Name = Annotated[str, typer.Argument(metavar="NAME", help="A name for the token, such as airflow.")]


@app.command("add", epilog=exit_codes_help(ExitCode.DATABASE))
def add(
    name: Name,
    scope: Annotated[str, typer.Option("--scope", help="read, or write, which includes read.")],
    tables: Annotated[
        list[str] | None,
        typer.Option("--tables", metavar="PATTERN", help="Only tables that match this pattern (* and ?); repeatable."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="TIME", help="Expires after this time, such as 90d.")
    ] = None,
    json: Json = False,
    config: ConfigFile = None,
) -> None:
    """Create a token and print it once: the database stores only its hash.

    Running services accept it within seconds. To replace a token, add one with another name, change its users to that
    token, and revoke the old one.
    """
    from lake.units import parse_duration
    from service.control.store import TableScope
    from service.server.api.token_cache import new_token, token_digest

    with command_run(json, config) as run:
        if scope not in _SCOPES:
            raise ProblemError(USAGE, f"--scope {scope!r} is not one of {', '.join(_SCOPES)}")
        if not name.strip() or not name.isprintable():
            raise ProblemError(USAGE, f"the token name {name!r} is empty or has invisible characters; use visible ones")
        try:
            expires_in = None if expires is None else parse_duration(expires)
        except ValueError as error:
            raise ProblemError(USAGE, f"--expires: {error}") from error
        if expires_in is not None and expires_in.total_seconds() <= 0:
            raise ProblemError(USAGE, "--expires must be above zero")
        try:
            table_scope = TableScope(tuple(tables) if tables else None)
        except ValueError as error:
            raise ProblemError(USAGE, f"--tables: {error}") from error
        token = new_token()
        run.store.add_token(
            name,
            digest=token_digest(token),
            scope=scope,
            expires_in=expires_in,
            table_scope=table_scope,
            actor=current_actor(),
        )
        run.out.result({"name": name, "scope": scope, "tables": tables, "token": token}, lambda: run.out.line(token))
        run.out.note(f"{name}: scope {scope}, {table_scope.text}; the token is not shown again")


@app.command("list", epilog=exit_codes_help(ExitCode.DATABASE))
def list_(json: Json = False, config: ConfigFile = None) -> None:
    """List the tokens, without the secrets."""
    with command_run(json, config) as run:
        tokens, now = run.store.tokens(), datetime.now(UTC)

        def text() -> None:
            columns = ("NAME", "SCOPE", "TABLES", "STATE", "CREATED", "BY", "LAST USED")
            rows = (
                (
                    token.name,
                    token.scope,
                    ", ".join(token.tables or ("all",)),
                    _state_text(token),
                    format_age(token.created_at, now),
                    token.created_by,
                    format_age(token.last_used_at, now),
                )
                for token in tokens
            )
            if tokens:
                run.out.table([TableColumn(title) for title in columns], rows)
            else:
                run.out.note("No tokens; to create one: lakefold tokens add NAME --scope read|write")

        run.out.results(tokens, text)


def _state_text(token: Any) -> str:
    if token.revoked_at is not None:
        return "revoked"
    if not token.in_force:
        return "expired"
    if token.expires_at is not None:
        return f"until {token.expires_at.isoformat(timespec='minutes')}"
    return "in force"


@app.command("revoke", epilog=exit_codes_help(ExitCode.NOT_FOUND, ExitCode.DATABASE))
def revoke(name: Name, json: Json = False, config: ConfigFile = None) -> None:
    """Revoke a token; running services refuse it within seconds."""
    with command_run(json, config) as run:
        run.store.revoke_token(name, actor=current_actor())
        run.out.result({"name": name, "revoked": True}, lambda: run.out.line(f"{name}: revoked"))
