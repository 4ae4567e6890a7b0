# SPDX-License-Identifier: Apache-2.0
"""The common parts of all commands: options, and a run that opens configuration and database at their first use."""

import getpass
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.output.command_output import CommandOutput
from service.problems import USAGE, ProblemError

if TYPE_CHECKING:
    from service.cli.client import Client
    from service.cli.client.local import LocalClient
    from service.control.config.catalog import Catalog
    from service.control.config.loader import Config
    from service.control.config.table_settings import ConfiguredTable
    from service.control.store import Store

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per line; errors are problem objects.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Use this file instead of the default lakefold.toml.")
]
Table = Annotated[str, typer.Argument(metavar="TABLE", help="A table's name, a unique ending of it, or its path.")]
OptionalTable = Annotated[
    str | None,
    typer.Argument(metavar="TABLE", help="Only this table: its name, a unique ending of it, or its path."),
]
PlanId = Annotated[str, typer.Argument(metavar="PLAN", help="A plan's id, or any unique part of it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

#: maximum number of halted partitions of a table that a command names
MAX_PARTITIONS_NAMED = 5
#: the address from ``--url`` or ``LAKEFOLD_URL`` for the current command; None means the local machine
remote_url: ContextVar[str | None] = ContextVar("remote_url", default=None)


class CommandRun:
    """The output and the client of one command: the local client, or with ``--url`` the HTTP client."""

    def __init__(self, out: CommandOutput, config_file: Path | None) -> None:
        self.out = out
        self._config_file = config_file

    @cached_property
    def client(self) -> "Client":
        """Return the client for operations that also work over HTTP. Raises ProblemError for a wrong ``--url``."""
        url = remote_url.get()
        return self._local if url is None else self._remote(url)

    @property
    def config(self) -> "Config":
        """Return the configuration. Raises ConfigError, and ProblemError with ``--url``."""
        return self._require_local().config

    @property
    def store(self) -> "Store":
        """Return the checked database. Raises SchemaMismatch, DatabaseUnreachable, and ProblemError with ``--url``."""
        return self._require_local().store

    @property
    def catalog(self) -> "Catalog":
        """Return the tables of the configuration and the database. Raises ProblemError with ``--url``."""
        return self._require_local().catalog

    def table(self, word: str) -> "ConfiguredTable":
        """Find a table by name, name ending or path.

        Raises ProblemError if there is no such table, naming the nearest names, or if ``--url`` is given.
        """
        return self.catalog.find(word)

    def close(self) -> None:
        """Close the clients that were opened."""
        for opened in ("client", "_local"):
            if opened in self.__dict__:
                self.__dict__[opened].close()

    @cached_property
    def _local(self) -> "LocalClient":
        from service.cli.client.local import LocalClient

        return LocalClient(self._config_file, current_actor())

    def _require_local(self) -> "LocalClient":
        require_local()
        return self._local

    def _remote(self, url: str) -> "Client":
        from service.cli.client.connection import ApiConnection, token_from_environment
        from service.cli.client.remote import RemoteClient

        if self._config_file is not None:
            raise ProblemError(USAGE, "--config and --url can't be combined: the service has its own configuration")
        http = ApiConnection(url, token_from_environment())
        if http.sends_token_unencrypted:
            self.out.note(f"{http.url} is not encrypted: anyone on the network path can read the token")
        return RemoteClient(http)


def require_local() -> None:
    """Raise ProblemError if ``--url`` is given: the command works on local files and the local database only."""
    if remote_url.get() is not None:
        raise ProblemError(
            USAGE, "this command does not work over HTTP; run it on the service's host, without --url and LAKEFOLD_URL"
        )


@contextmanager
def command_run(json: bool, config: Path | None) -> Iterator[CommandRun]:
    """Yield the run of one command, and close it afterwards. Every command's body is inside this context."""
    run = CommandRun(CommandOutput(json=json), config)
    try:
        yield run
    finally:
        run.close()


def current_actor() -> str:
    """Return the actor for the audit trail: ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def parse_key_values(settings: Sequence[str], example: str = "small_file_limit=64MiB") -> dict[str, str]:
    """Parse the values of ``--set``. Raises ProblemError if one is not KEY=VALUE."""
    found = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key.strip():
            raise ProblemError(USAGE, f"--set {setting!r} is not KEY=VALUE, such as {example}")
        found[key.strip()] = value.strip()
    return found


def note_former_settings(run: CommandRun, keys: Iterable[str]) -> None:
    """Print the current name of each setting that ``--set`` gives under a former name."""
    from planner.policy.aliases import FORMER_NAMES

    for key in keys:
        if key in FORMER_NAMES:
            run.out.deprecated(f"--set {key}", f"--set {FORMER_NAMES[key]}")
