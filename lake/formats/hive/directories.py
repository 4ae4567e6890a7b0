# SPDX-License-Identifier: Apache-2.0
"""The directories of all tables of a metastore, and of all partitions that are not in their table's own.

What is read is remembered for each metastore. A first look reads every partition of every table, 500 a call. Later
looks read the tables and the names of their partitions, one call a table, and only partitions whose names are new. A
partition whose directory was changed under its name is seen when its table was last read longer ago than asked for.

Of a partition in its table's own directory only a hash of its name is kept: a directory near it is near its table.
"""

import threading
import time
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from lake.errors import Transient, one_line
from lake.formats.hive.catalog import own_directory
from lake.locations import canonical_location
from lake.metastore import Metastore, Table


@dataclass(frozen=True, slots=True, order=True)
class Directory:
    """A directory, ended by a slash, and whose it is: a table's own, or that of a partition elsewhere."""

    path: str
    database: str
    table: str
    #: '' for the table's own directory
    partition: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Directories, sorted. ``unread`` are tables and databases of which they are not known, each with the reason."""

    directories: Sequence[Directory] = ()
    unread: Mapping[str, str] = field(default_factory=dict)

    def around(self, path: str) -> Iterator[Directory]:
        """The directories that are the one at ``path``, ended by a slash, or lie in it, or hold it."""
        parts = path.rstrip("/").split("/")
        for count in range(2, len(parts) + 1):
            above = "/".join(parts[:count]) + "/"
            if above != path:
                yield from self._starting(above, exactly=True)
        yield from self._starting(path, exactly=False)

    def _starting(self, prefix: str, *, exactly: bool) -> Iterator[Directory]:
        for index in range(bisect_left(self.directories, Directory(prefix, "", "")), len(self.directories)):
            found = self.directories[index]
            if not (found.path == prefix if exactly else found.path.startswith(prefix)):
                return
            yield found


@dataclass(slots=True, kw_only=True)
class _Known:
    """What was read of one table."""

    made_at: int
    own: str
    read_at: float
    #: a hash of each partition's name
    names: Sequence[int] = ()
    #: partitions elsewhere than in the table's own directory, by name
    elsewhere: dict[str, str] = field(default_factory=dict)


class Directories:
    """What was read of one metastore. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[tuple[str, str], _Known] = {}
        self._index, self._looked_at = Index(), -float("inf")

    def read(self, metastore: Metastore, *, age: timedelta, partition_age: timedelta) -> Index:
        """All directories as they were at most ``age`` ago; known names of partitions at most ``partition_age``.

        Raises Transient where the connection breaks. What the metastore refuses to tell is ``Index.unread``.
        """
        with self._lock:
            began = time.monotonic()
            stale = began - partition_age.total_seconds()
            is_old = any(known.names and known.read_at < stale for known in self._tables.values())
            if is_old or began - self._looked_at > age.total_seconds():
                self._index, self._looked_at = self._look(metastore, began, stale), began
            return self._index

    def _look(self, metastore: Metastore, began: float, stale: float) -> Index:
        unread: dict[str, str] = {}
        now: dict[tuple[str, str], _Known] = {}
        for database in metastore.databases():
            try:
                tables = list(metastore.tables(database, metastore.table_names(database)))
            except Transient as error:
                _note(metastore, error, unread, f"database {database}")
                continue
            for table in filter(lambda one: one.storage.location, tables):
                key, own = (database, table.name), f"{own_directory(table)}/"
                before = self._tables.get(key)
                if before is None or before.read_at < stale or (before.made_at, before.own) != (table.made_at, own):
                    before = _Known(made_at=table.made_at, own=own, read_at=began)
                try:
                    now[key] = _partitions_read(metastore, table, before) if table.partition_columns else before
                except Transient as error:
                    now[key] = replace(before, names=())
                    # Tables are dropped while this goes on, and have no directory then.
                    if metastore.is_in_step() and metastore.table(database, table.name) is None:
                        del now[key]
                    else:
                        _note(metastore, error, unread, f"table {database}.{table.name}")
        self._tables = now
        return Index(directories=_sorted(now), unread=unread)


def _partitions_read(metastore: Metastore, table: Table, known: _Known) -> _Known:
    names = metastore.partition_names(table.database, table.name)
    before, there = set(known.names), set(names)
    new = [name for name in names if hash(name) not in before]
    elsewhere = {name: at for name, at in known.elsewhere.items() if name in there}
    for name, partition in metastore.partitions(table.database, table.name, new):
        at = f"{canonical_location(partition.storage.location)}/"
        if not at.startswith(known.own):
            elsewhere[name] = at
    return replace(known, names=array("q", map(hash, names)), elsewhere=elsewhere)


def _sorted(tables: Mapping[tuple[str, str], _Known]) -> Sequence[Directory]:
    found = [Directory(known.own, *key) for key, known in tables.items()]
    for key, known in tables.items():
        found += [Directory(at, *key, name) for name, at in known.elsewhere.items()]
    return sorted(found)


def _note(metastore: Metastore, error: Transient, unread: dict[str, str], what: str) -> None:
    """Note what the metastore refused to tell; where it did not answer at all its error is raised."""
    if not metastore.is_in_step():
        raise error
    unread[what] = one_line(error)


class _Remembered:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[str, Directories] = defaultdict(Directories)

    def of(self, uri: str) -> Directories:
        with self._lock:
            return self._of[uri]

    def forget(self) -> None:
        with self._lock:
            self._of.clear()


_remembered = _Remembered()
#: what is remembered of the metastore at a URI
directories_of = _remembered.of
#: has all be read again
forget = _remembered.forget
