# SPDX-License-Identifier: Apache-2.0
"""The table formats of the demo, behind one protocol."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from lake.model import TableRef
from service.cli.demo.hive import HiveLake
from service.cli.demo.hudi import HudiLake
from service.cli.demo.iceberg import IcebergLake
from service.cli.demo.settings import Format, free_port
from service.cli.demo.trips import TRIPS


class DemoLake(Protocol):
    """The demo's table in one format, with its writer and its reader."""

    @property
    def writer(self) -> str:
        """The writer's name for people."""

    @property
    def reader(self) -> str:
        """The library that reads the table at the end; it is not part of lakefold."""

    @property
    def has_write_conflicts(self) -> bool:
        """True if a commit of the writer can conflict with a plan and is then repeated."""

    @property
    def missing_jars(self) -> str:
        """The name of the jars that Spark has to fetch first, or '' if they are on this machine."""

    @property
    def spark_settings(self) -> Mapping[str, str]:
        """The settings that lakefold's Spark needs for this table."""

    @property
    def server_arguments(self) -> Sequence[str]:
        """The module and arguments of a server that must run before the writer, or nothing if there is none."""

    @property
    def writer_arguments(self) -> Sequence[str]:
        """The writer's arguments that name the table."""

    @property
    def source_config(self) -> str:
        """The lines of lakefold.toml that locate the tables and select the compacted ones."""

    @property
    def commands_after(self) -> Sequence[tuple[str, str]]:
        """The commands that a user must run first after the demo, each with its purpose."""

    def is_ready(self) -> bool:
        """Return True if the server of ``server_arguments`` is ready."""

    def table(self) -> TableRef:
        """Return the table, after the writer has created it."""

    def read(self, columns: Sequence[str] = TRIPS.names, *, passengers: int | None = None) -> pa.Table:
        """Return the table's current rows: ``columns`` of all trips, or of trips with at least ``passengers``."""


_LAKES: Mapping[Format, Callable[[Path], DemoLake]] = {
    Format.HUDI: HudiLake,
    Format.HIVE: lambda directory: HiveLake(directory, free_port(9083)),
    Format.ICEBERG: IcebergLake,
}


def create_lake(kind: Format, directory: Path) -> DemoLake:
    """Return a lake of this format below ``directory``."""
    return _LAKES[kind](directory)
