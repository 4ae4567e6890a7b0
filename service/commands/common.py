# SPDX-License-Identifier: Apache-2.0
"""Parts shared by all commands: their options, and a run that opens configuration and database when first needed."""

import getpass
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.commands.output import Output
from service.problems import LIVE_PLAN, NOT_FOUND, USAGE, CommandError
from service.text import partition_name, plural

if TYPE_CHECKING:
    from service.client import Client
    from service.client.local import LocalClient
    from service.config.catalog import Catalog
    from service.config.loader import Config
    from service.config.tables import ConfiguredTable
    from service.store import Store

Json = Annotated[bool, typer.Option("--json", help="One JSON object a line on stdout; errors as problem objects.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Use this file instead of the lakefold.toml found.")
]
Table = Annotated[str, typer.Argument(metavar="TABLE", help="A table's name, a unique ending of it, or its path.")]
MaybeTable = Annotated[
    str | None,
    typer.Argument(metavar="TABLE", help="Only this table: its name, a unique ending of it, or its path."),
]
PlanId = Annotated[str, typer.Argument(metavar="PLAN", help="A plan's id, or any unique part of it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

__all__ = [
    "LIVE_PLAN",
    "NOT_FOUND",
    "CommandError",
    "ConfigFile",
    "Json",
    "MaybeTable",
    "PlanId",
    "Run",
    "Table",
    "Yes",
    "partition_name",
    "plural",
]


#: the address behind ``--url`` or ``LAKEFOLD_URL`` for the command under way; None for this machine
remote_url: ContextVar[str | None] = ContextVar("remote_url", default=None)


class Run:
    """One command's output, and whom it asks: this machine, or with ``--url`` another one."""

    def __init__(self, out: Output, config_file: Path | None) -> None:
        self.out = out
        self._config_file = config_file

    @cached_property
    def client(self) -> "Client":
        """For what can be asked here and from another machine. Raises CommandError for a wrong ``--url``."""
        url = remote_url.get()
        return self._local if url is None else self._remote(url)

    @property
    def config(self) -> "Config":
        """The configuration. Raises ConfigError, CommandError with ``--url``."""
        return self._here().config

    @property
    def store(self) -> "Store":
        """The database, checked. Raises SchemaBehind or DatabaseUnreachable, CommandError with ``--url``."""
        return self._here().store

    @property
    def catalog(self) -> "Catalog":
        """The tables of the configuration, and those the database remembers. Raises CommandError with ``--url``."""
        return self._here().catalog

    def table(self, word: str) -> "ConfiguredTable":
        """The table a person means. Raises CommandError with the nearest names, or with ``--url``."""
        return self.catalog.find(word)

    def close(self) -> None:
        """Close what was opened."""
        for opened in ("client", "_local"):
            if opened in self.__dict__:
                self.__dict__[opened].close()

    @cached_property
    def _local(self) -> "LocalClient":
        from service.client.local import LocalClient

        return LocalClient(self._config_file, actor())

    def _here(self) -> "LocalClient":
        only_here()
        return self._local

    def _remote(self, url: str) -> "Client":
        from service.client.connection import Connection, token_of_environment
        from service.client.remote import RemoteClient

        if self._config_file is not None:
            raise CommandError(USAGE, "--config names a file of this machine; the service at --url has its own")
        http = Connection(url, token_of_environment())
        if http.token_in_clear:
            self.out.note(f"{http.url} is not encrypted: anyone on the network path can read the token")
        return RemoteClient(http)


def only_here() -> None:
    """Raise CommandError where ``--url`` is given: this command works with files and database of its own machine."""
    if remote_url.get() is not None:
        raise CommandError(
            USAGE, "this command works on its own machine only; leave out --url and LAKEFOLD_URL, and run it there"
        )


@contextmanager
def command(json: bool, config: Path | None) -> Iterator[Run]:
    """The frame of every command's body."""
    run = Run(Output(json=json), config)
    try:
        yield run
    finally:
        run.close()


def actor() -> str:
    """Who acts, for the audit trail: ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def key_values(settings: Sequence[str], example: str = "small_file_limit=64MiB") -> dict[str, str]:
    """What ``--set`` was given. Raises CommandError."""
    found = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key.strip():
            raise CommandError(USAGE, f"--set {setting!r} is not KEY=VALUE, such as {example}")
        found[key.strip()] = value.strip()
    return found


def names(words: Sequence[str], most: int = 5) -> str:
    """The first few, and how many more."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
