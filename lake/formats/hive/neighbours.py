# SPDX-License-Identifier: Apache-2.0
"""Other tables of a metastore that share a table's directory, lie in it, or hold it (rule 7)."""

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import timedelta

from lake.formats.hive.catalog import own_directory
from lake.metastore import Metastore, Table

_KEPT = timedelta(minutes=10)
"""How long the directories of all tables are remembered: ten thousand tables take seconds to read."""

Root = tuple[str, str]
"""A directory, ended by a slash, and the table that it is of."""


def shared(metastore: Metastore, table: Table) -> str | None:
    """Which other table has files in the table's directory, or the table in its own; None where none does.

    Of partitions that another table has here nothing is known: only tables' own directories are compared.
    """
    mine, own = _directory(table), f"{table.database}.{table.name}"
    for directory, other in _around(mine, _roots.of(metastore)):
        # What is remembered may have been dropped or moved since.
        now = None if other == own else metastore.table(*other.split(".", 1))
        if now is not None and _directory(now) == directory:
            return (
                f"its directory {mine.rstrip('/')} and that of table {other}, {directory.rstrip('/')}, are the same or "
                "one in the other: what is replaced here may be read there; give each one of its own"
            )
    return None


def _directory(table: Table) -> str:
    return f"{own_directory(table)}/"


class _Roots:
    """What was read last of each metastore. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, Sequence[Root]]] = {}

    def of(self, metastore: Metastore) -> Sequence[Root]:
        """The directories of all tables, sorted."""
        with self._lock:
            read_at, roots = self._known.get(metastore.uri, (0.0, ()))
            now = time.monotonic()
            if not read_at or now - read_at > _KEPT.total_seconds():
                roots = sorted(_read(metastore))
                self._known[metastore.uri] = now, roots
            return roots

    def forget(self) -> None:
        """Have all be read anew."""
        with self._lock:
            self._known.clear()


_roots = _Roots()
forget = _roots.forget


def _read(metastore: Metastore) -> Iterator[Root]:
    for database in metastore.databases():
        for table in metastore.tables(database, metastore.table_names(database)):
            if table.storage.location:
                yield _directory(table), f"{database}.{table.name}"


def _around(mine: str, roots: Sequence[Root]) -> Iterator[Root]:
    """Those of ``roots`` that are at, under or above a directory."""
    parts = mine.rstrip("/").split("/")
    for count in range(2, len(parts) + 1):
        above = "/".join(parts[:count]) + "/"
        if above != mine:
            yield from _starting(above, roots, exactly=True)
    yield from _starting(mine, roots, exactly=False)


def _starting(prefix: str, roots: Sequence[Root], *, exactly: bool) -> Iterator[Root]:
    for index in range(bisect_left(roots, (prefix, "")), len(roots)):
        directory = roots[index][0]
        if not (directory == prefix if exactly else directory.startswith(prefix)):
            return
        yield roots[index]
