# SPDX-License-Identifier: Apache-2.0
"""The catalogs of a run, each with a server that can crash: PostgreSQL, and Iceberg's REST fixture server."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import iceberg_rest
import postgres
from iceberg_tables import postgresql_settings, rest_settings
from support import needs_server


class Catalog(Protocol):
    """``settings`` are those of the catalog ``prod`` for Spark. What was committed outlives a crash."""

    settings: Mapping[str, str]

    def crash(self) -> None:
        """End its server at once."""

    def start(self) -> None:
        """Start it again, at the same address."""


class OnPostgreSQL:
    """A JDBC catalog."""

    def __init__(self, home: Path, server: postgres.Server) -> None:
        self._server = server
        url = postgres.new_database(server.url, "catalogs")
        self.settings = postgresql_settings(url, home / "warehouse", "prod")

    def crash(self) -> None:
        """See ``Catalog``."""
        self._server.stop(immediate=True)

    def start(self) -> None:
        """See ``Catalog``."""
        assert self._server.start()


class Served:
    """A REST catalog."""

    def __init__(self, server: iceberg_rest.Server) -> None:
        self._server = server
        self.settings = rest_settings(server.uri, "prod")

    def crash(self) -> None:
        """See ``Catalog``."""
        self._server.stop()

    def start(self) -> None:
        """See ``Catalog``."""
        self._server.start()


@contextmanager
def running(kind: str, home: Path) -> Iterator[Catalog]:
    """A catalog of kind ``postgresql`` or ``rest`` for as long as it is needed."""
    if kind == "rest":
        server = iceberg_rest.Server()
        try:
            server.start()
            yield Served(server)
        finally:
            server.remove()
        return
    if postgres.binaries() is None:
        needs_server(postgres.INSTALL)
    database = postgres.Server(durable=True)
    try:
        yield OnPostgreSQL(home, database)
    finally:
        database.remove()
