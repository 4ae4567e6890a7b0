# SPDX-License-Identifier: Apache-2.0
"""What the demo has to know of the format that its table has."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from lake.model import TableRef
from service.cli.demo.hive import HiveLake
from service.cli.demo.hudi import HudiLake
from service.cli.demo.settings import Format, free_port
from service.cli.demo.trips import TRIPS


class DemoLake(Protocol):
    """Where the table is, who writes it, and who reads it at the end."""

    @property
    def writer(self) -> str:
        """What a person calls the writer."""

    @property
    def reader(self) -> str:
        """The library that reads the table, which is none of lakefold's own."""

    @property
    def has_write_conflicts(self) -> bool:
        """Whether a commit of the writer can lose to a plan, and is tried again."""

    @property
    def has_jars(self) -> bool:
        """Whether all that Spark needs is on this machine."""

    @property
    def server_arguments(self) -> Sequence[str]:
        """A module and its arguments: a process that has to be there before the writer; empty where none has to."""

    @property
    def writer_arguments(self) -> Sequence[str]:
        """Which table the writer is to write."""

    @property
    def source_config(self) -> str:
        """The lines of lakefold.toml that say where tables are and which of them are compacted."""

    @property
    def commands_after(self) -> Sequence[tuple[str, str]]:
        """Commands that have to come before all others once the demo has ended, and what each is for."""

    def is_ready(self) -> bool:
        """Whether the ``server`` is ready."""

    def table(self) -> TableRef:
        """The table, once the writer has made it."""

    def read(self, columns: Sequence[str] = TRIPS.names, *, passengers: int | None = None) -> pa.Table:
        """The table's rows as they are now: these columns, of all trips or of those with so many passengers."""


_LAKES: Mapping[Format, Callable[[Path], DemoLake]] = {
    Format.HUDI: HudiLake,
    Format.HIVE: lambda directory: HiveLake(directory, free_port(9083)),
}


def create_lake(kind: Format, directory: Path) -> DemoLake:
    """A lake of this format below ``directory``."""
    return _LAKES[kind](directory)
