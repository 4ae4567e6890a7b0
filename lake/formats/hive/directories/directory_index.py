# SPDX-License-Identifier: Apache-2.0
"""The directories of all tables of a metastore, and of all partitions outside of their table's own directory.

The index is cached for each metastore. The first load reads every partition of every table, 500 per call. Later loads
read the tables, the names of their partitions (one call per table), and only partitions with new names. If a
partition keeps its name but gets another directory, the index has the new directory once its table's entry is older
than the caller allows.

For a partition in its table's own directory, the index keeps only a hash of the name: any directory that overlaps the
partition's directory also overlaps the table's directory.
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
from lake.formats.hive.catalog.tables import table_root
from lake.metastore import MetastoreClient, MetastoreTable
from lake.stopwatch import Stopwatch
from lake.storage.locations import canonical_location

_MAX_LISTS = 10
"""Maximum number of listings of tables, or of a table's partitions, if some vanish before they are read."""

_MAX_CLOCK_DIFFERENCE = 600
"""By how many seconds the clock of the metastore's host may be behind."""


@dataclass(frozen=True, slots=True, order=True)
class TableDirectory:
    """A directory, ending with a slash, and its owner: a table, or a partition outside of its table's directory."""

    path: str
    database: str
    table: str
    #: '' for the table's own directory
    partition: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryIndex:
    """Directories, sorted. ``unreadable`` are tables and databases whose directories are unknown, with the reasons."""

    directories: Sequence[TableDirectory] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def overlapping(self, path: str) -> Iterator[TableDirectory]:
        """Yield the directories that are equal to ``path``, which ends with a slash, lie in it, or contain it."""
        parts = path.rstrip("/").split("/")
        for count in range(2, len(parts) + 1):
            above = "/".join(parts[:count]) + "/"
            if above != path:
                yield from self._with_prefix(above, exactly=True)
        yield from self._with_prefix(path, exactly=False)

    def _with_prefix(self, prefix: str, *, exactly: bool) -> Iterator[TableDirectory]:
        for index in range(bisect_left(self.directories, TableDirectory(prefix, "", "")), len(self.directories)):
            found = self.directories[index]
            if not (found.path == prefix if exactly else found.path.startswith(prefix)):
                return
            yield found


@dataclass(slots=True, kw_only=True)
class _TableEntry:
    """The cached data of one table."""

    created_at: int
    root: str
    read_at: float
    #: a hash of each partition's name
    name_hashes: Sequence[int] = ()
    #: the directories of partitions outside of the table's own directory, by name
    external_directories: dict[str, str] = field(default_factory=dict)

    def is_read_within(self, period: tuple[float, float]) -> bool:
        """True if the table's partitions were read between the two times of ``period``."""
        return period[0] <= self.read_at <= period[1]


class DirectoryCache:
    """The cached directories of one metastore. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: measures the age of the cached entries, also while this machine is suspended
        self._watch = Stopwatch()
        self._tables: dict[tuple[str, str], _TableEntry] = {}
        self._index, self._indexed_at = DirectoryIndex(), -float("inf")
        #: the approximate duration of a load of all partitions
        self._full_load_seconds = 0.0

    @property
    def full_load_duration(self) -> timedelta:
        """The approximate duration of a load of the partitions of all tables; zero before the first such load."""
        return timedelta(seconds=self._full_load_seconds)

    def load(self, metastore: MetastoreClient, *, max_age: timedelta, max_partition_age: timedelta) -> DirectoryIndex:
        """Return all directories, at most ``max_age`` old; those of known partitions at most ``max_partition_age`` old.

        Raises Transient if the connection breaks. ``DirectoryIndex.unreadable`` has the tables and databases
        that the metastore refuses to return.
        """
        with self._lock:
            began, started = self._watch.elapsed_seconds, time.monotonic()
            recent = began - max_partition_age.total_seconds(), began
            is_old = any(known.name_hashes and not known.is_read_within(recent) for known in self._tables.values())
            # The age is negative if the clock was set back after the load.
            if is_old or not 0 <= began - self._indexed_at <= max_age.total_seconds():
                is_full = is_old or not self._tables
                self._index, self._indexed_at = self._refresh(metastore, began, recent), began
                if is_full:
                    # Monotonic: a suspension does not count. If only few entries were too old, the load was short, so
                    # the estimate at most halves.
                    self._full_load_seconds = max(time.monotonic() - started, self._full_load_seconds / 2)
            return self._index

    def forget(self, database: str, table: str) -> None:
        """Let the next ``load`` read all partitions of a table anew, and the names of all tables."""
        with self._lock:
            self._tables.pop((database, table), None)
            self._indexed_at = -float("inf")

    def _refresh(self, metastore: MetastoreClient, started: float, recent: tuple[float, float]) -> DirectoryIndex:
        unread: dict[str, str] = {}
        now: dict[tuple[str, str], _TableEntry] = {}
        listed: set[tuple[str, str]] = set()
        # A table that is renamed in between keeps its creation time; only a later list has its new name.
        created_before = time.time() - _MAX_CLOCK_DIFFERENCE
        for number in range(_MAX_LISTS):
            new, is_settled = _list_new_tables(metastore, listed, unread), number > 0
            for database, names in new.items():
                try:
                    tables = list(metastore.tables(database, names))
                except Transient as error:
                    _record_unreadable(metastore, error, unread, f"database {database}")
                    continue
                is_settled &= len(tables) == len(names) and all(one.created_at >= created_before for one in tables)
                for table in filter(lambda one: one.storage.location, tables):
                    self._refresh_table(metastore, table, now, unread, started, recent)
            if is_settled:
                break
        self._tables = now
        return DirectoryIndex(directories=_sorted_directories(now), unreadable=unread)

    def _refresh_table(
        self,
        metastore: MetastoreClient,
        table: MetastoreTable,
        entries: dict[tuple[str, str], _TableEntry],
        unreadable: dict[str, str],
        started: float,
        recent: tuple[float, float],
    ) -> None:
        key, own = (table.database, table.name), f"{table_root(table)}/"
        before = self._tables.get(key)
        if (
            before is None
            or not before.is_read_within(recent)
            or (before.created_at, before.root) != (table.created_at, own)
        ):
            before = _TableEntry(created_at=table.created_at, root=own, read_at=started)
        try:
            entries[key] = _read_partitions(metastore, table, before) if table.partition_columns else before
        except Transient as error:
            # A table may have been dropped meanwhile; it then has no directory.
            if metastore.is_reusable() and metastore.table(table.database, table.name) is None:
                return
            entries[key] = replace(before, name_hashes=())
            _record_unreadable(metastore, error, unreadable, f"table {table.database}.{table.name}")


def _list_new_tables(
    metastore: MetastoreClient, listed: set[tuple[str, str]], unreadable: dict[str, str]
) -> dict[str, list[str]]:
    """Return the names of the tables that are not ``listed`` yet, by database, and add them to ``listed``."""
    found = {}
    for database in metastore.databases():
        try:
            names = [name for name in metastore.table_names(database) if (database, name) not in listed]
        except Transient as error:
            _record_unreadable(metastore, error, unreadable, f"database {database}")
            continue
        if names:
            found[database] = names
            listed.update((database, name) for name in names)
    return found


def _read_partitions(metastore: MetastoreClient, table: MetastoreTable, entry: _TableEntry) -> _TableEntry:
    before, found = set(entry.name_hashes), dict(entry.external_directories)
    names: Sequence[str] = ()
    # If a partition is renamed before it is read, only a later list has its new name.
    for _ in range(_MAX_LISTS):
        names = metastore.partition_names(table.database, table.name)
        new = [name for name in names if hash(name) not in before]
        for name, partition in metastore.partitions(table.database, table.name, new):
            before.add(hash(name))
            at = f"{canonical_location(partition.storage.location)}/"
            if not at.startswith(entry.root):
                found[name] = at
        if all(hash(name) in before for name in names):
            break
    there = set(names)
    return replace(
        entry,
        name_hashes=array("q", [hash(name) for name in names if hash(name) in before]),
        external_directories={name: at for name, at in found.items() if name in there},
    )


def _sorted_directories(tables: Mapping[tuple[str, str], _TableEntry]) -> Sequence[TableDirectory]:
    found = [TableDirectory(known.root, *key) for key, known in tables.items()]
    for key, known in tables.items():
        found += [TableDirectory(at, *key, name) for name, at in known.external_directories.items()]
    return sorted(found)


def _record_unreadable(metastore: MetastoreClient, error: Transient, unreadable: dict[str, str], name: str) -> None:
    """Record that the metastore refused a call. Raises the call's error if the metastore did not answer."""
    if not metastore.is_reusable():
        raise error
    unreadable[name] = one_line(error)


class _DirectoryCaches:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_uri: dict[str, DirectoryCache] = defaultdict(DirectoryCache)

    def cache_of(self, uri: str) -> DirectoryCache:
        with self._lock:
            return self._by_uri[uri]

    def clear(self) -> None:
        with self._lock:
            self._by_uri.clear()


_caches = _DirectoryCaches()
#: returns the cache of the metastore at a URI
directory_cache = _caches.cache_of
#: drops all caches, so that everything is read again
clear_directory_caches = _caches.clear
