# SPDX-License-Identifier: Apache-2.0
"""What every command shares: its options, and a run that opens configuration and database when first needed."""

import getpass
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.exitcodes import LIVE_PLAN, NOT_FOUND, CommandError
from service.output import Output, partition_name, plural

if TYPE_CHECKING:
    from service.catalog import Catalog
    from service.config import Config
    from service.rules import ConfiguredTable
    from service.store import Store

Json = Annotated[bool, typer.Option("--json", help="One JSON object a line on stdout; errors as problem objects.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Use this file instead of the lakefold.toml found.")
]
Table = Annotated[str, typer.Argument(metavar="TABLE", help="A table's name, the unique end of one, or its path.")]
MaybeTable = Annotated[
    str | None, typer.Argument(metavar="TABLE", help="One table instead of all: name, unique end of one, or path.")
]
PlanId = Annotated[str, typer.Argument(metavar="PLAN", help="A plan's id, or the unique beginning of one.")]
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


class Run:
    """One command's configuration, database and tables, each opened at its first use."""

    def __init__(self, out: Output, config_file: Path | None) -> None:
        self.out = out
        self._config_file = config_file

    @cached_property
    def config(self) -> "Config":
        """The configuration. Raises ConfigError."""
        from service.config import load

        return load(self._config_file)

    @cached_property
    def store(self) -> "Store":
        """The database, checked. Raises SchemaBehind or DatabaseUnreachable."""
        from service.wiring import open_store

        return open_store(self.config)

    @cached_property
    def catalog(self) -> "Catalog":
        """The tables of the configuration, and those the database remembers."""
        from service.catalog import Catalog

        return Catalog(self.config, known=self.store.tables)

    def table(self, word: str) -> "ConfiguredTable":
        """The table a person means. Raises CommandError with the nearest names."""
        return self.catalog.find(word)

    def table_name(self, word: str) -> str:
        """The name of a table a person means, one that only the database knows included."""
        known = [state.name for state in self.store.tables()]
        return word if word in known else self.table(word).name

    def close(self) -> None:
        """Close what was opened."""
        if "store" in self.__dict__:
            self.store.close()


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


def names(words: Sequence[str], most: int = 5) -> str:
    """The first few, and how many more."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
