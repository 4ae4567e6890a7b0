# SPDX-License-Identifier: Apache-2.0
"""Other tables of a metastore whose directories equal or overlap those of a table (hazard 7 of decision 13)."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial

from lake.errors import Conflict, Transient
from lake.formats.hive.catalog.tables import CatalogPartition, table_root
from lake.formats.hive.directories.directory_index import (
    DirectoryIndex,
    TableDirectory,
    directory_cache,
)
from lake.formats.hive.files.listing import is_hidden
from lake.metastore import MetastoreClient, MetastoreTable
from lake.model import partition_label
from lake.storage.locations import canonical_location

INDEX_MAX_AGE = timedelta(minutes=10)
"""Maximum age of the cached directories of all tables for a check that no deletion follows."""

DELETION_MAX_AGE = timedelta(minutes=2)
"""Maximum age of the cached directories of all tables for a check before a deletion."""

PARTITION_MAX_AGE = timedelta(hours=1)
"""Maximum age of the cached directory of a partition: a partition of the same name may have another directory now."""

_LOAD_INTERVAL_FACTOR = 3
"""Partitions of all tables are read again after this many times the duration of their last load, or later."""

_MAX_LOADS = 5


def table_root_conflict(
    metastore: MetastoreClient, table: MetastoreTable, *, max_age: timedelta = INDEX_MAX_AGE
) -> str | None:
    """Return a sentence that names another table whose own directory overlaps the table's; None if there is none."""
    own_root = f"{table_root(table)}/"
    found = _find_other_directory(metastore, table, own_root, lambda other: not other.partition, max_age=max_age)
    if found is None:
        return None
    return (
        f"its directory {own_root.rstrip('/')} and that of table {found.database}.{found.table}, "
        f"{found.path.rstrip('/')}, are the same, or one contains the other: files replaced in one table may "
        "be read by the other; give each table a directory of its own"
    )


def foreign_readers(
    metastore: MetastoreClient,
    table: MetastoreTable,
    directories: Collection[str],
    *,
    max_age: timedelta = INDEX_MAX_AGE,
    max_partition_age: timedelta = PARTITION_MAX_AGE,
) -> Mapping[str, str]:
    """Return the ``directories`` from which another table may be read, each with a sentence that names this table."""
    found = {}
    for directory in directories:
        shows_files = partial(_shows_files, directory=directory)
        other = _find_other_directory(
            metastore, table, f"{directory}/", shows_files, max_age=max_age, max_partition_age=max_partition_age
        )
        if other is not None:
            found[directory] = _reader_label(other)
    return found


def present_readers(
    metastore: MetastoreClient,
    table: MetastoreTable,
    directories: Collection[str],
    *,
    max_age: timedelta,
    strict_age: timedelta | None = None,
) -> Mapping[str, str]:
    """Return the same as ``foreign_readers``, from directories of partitions that were read at most ``max_age`` ago.

    The partitions of all tables are read again only if the cached ones show no reader. If a load takes longer than a
    third of ``max_age``, the directories may be as old as three loads take: otherwise every call would wait for a load.
    The directories are never older than ``strict_age``.
    """
    cache = directory_cache(metastore.uri)
    age = max(max_age, _LOAD_INTERVAL_FACTOR * cache.full_load_duration)
    found = dict(foreign_readers(metastore, table, directories, max_age=age))
    if unread := set(directories) - found.keys():
        max_age = max(max_age, _LOAD_INTERVAL_FACTOR * cache.full_load_duration)
        max_age = max_age if strict_age is None else min(max_age, strict_age)
        found |= foreign_readers(metastore, table, unread, max_age=max_age, max_partition_age=max_age)
    return found


def shared_partitions(
    metastore: MetastoreClient, table: MetastoreTable, partitions: Sequence[CatalogPartition]
) -> Mapping[str, str]:
    """Return the partitions, by name, from whose directory another table is read; they are not rewritten.

    Readers of the other table would keep reading the replaced files, and miss later writes to the partition.
    """
    by_location = {partition.location: partition.name for partition in partitions}
    found = foreign_readers(metastore, table, by_location.keys())
    return {
        by_location[at]: f"{reader}, and this partition from {at}: give each one a directory of its own"
        for at, reader in found.items()
    }


def check_no_foreign_readers(
    metastore: MetastoreClient,
    table: MetastoreTable,
    directories: Collection[str],
    retention: timedelta = PARTITION_MAX_AGE,
) -> None:
    """Raise Conflict if another table may be read from one of ``directories``, in which files are to be removed.

    ``retention`` is the minimum time since the files were replaced. A table that began to read them in the first half
    of that time is noticed in any case.
    """
    age, partition_age = min(DELETION_MAX_AGE, retention / 2), min(PARTITION_MAX_AGE, retention / 2)
    found = foreign_readers(metastore, table, directories, max_age=age, max_partition_age=partition_age)
    if (why := table_root_conflict(metastore, table)) is not None:
        raise Conflict(f"{table.database}.{table.name}: {why}")
    if (why := unreadable_reason(metastore)) is not None:
        raise Conflict(why)
    for reader in found.values():
        raise Conflict(reader)


def unreadable_reason(metastore: MetastoreClient, *, max_age: timedelta = INDEX_MAX_AGE) -> str | None:
    """Return why the directories of some table are unknown. None if those of all tables are known."""
    for what, reason in _load_index(metastore, max_age).unreadable.items():
        return f"the directories of {what} are unknown, because the metastore does not return them: {reason}"
    return None


def _find_other_directory(
    metastore: MetastoreClient,
    table: MetastoreTable,
    path: str,
    matches: Callable[[TableDirectory], bool],
    *,
    max_age: timedelta,
    max_partition_age: timedelta = PARTITION_MAX_AGE,
) -> TableDirectory | None:
    """Return a directory of another table that ``matches`` and overlaps ``path``; None if there is none.

    ``path`` ends with a slash.

    If a cached directory is no longer current, its owner may have been renamed, so all tables are listed again. Raises
    Transient if directories change during every listing.
    """
    for _ in range(_MAX_LOADS):
        others = _load_index(metastore, max_age, max_partition_age).overlapping(path)
        for other in others:
            if _is_other_table(other, table) and matches(other):
                if _is_current(metastore, other):
                    return other
                directory_cache(metastore.uri).forget(other.database, other.table)
                break
        else:
            return None
    raise Transient(f"tables with directories in or above {path} are changed again and again")


def _load_index(
    metastore: MetastoreClient, max_age: timedelta, max_partition_age: timedelta = PARTITION_MAX_AGE
) -> DirectoryIndex:
    return directory_cache(metastore.uri).load(metastore, max_age=max_age, max_partition_age=max_partition_age)


def _is_other_table(directory: TableDirectory, table: MetastoreTable) -> bool:
    return (directory.database, directory.table) != (table.database, table.name)


def _is_current(metastore: MetastoreClient, directory: TableDirectory) -> bool:
    """True if the table or partition of the cached directory still exists and still has this directory."""
    now = metastore.table(directory.database, directory.table)
    if now is None or not directory.partition:
        return now is not None and f"{table_root(now)}/" == directory.path
    partitions = metastore.partitions(directory.database, directory.table, [directory.partition])
    return any(f"{canonical_location(one.storage.location)}/" == directory.path for _, one in partitions)


def _shows_files(other: TableDirectory, directory: str) -> bool:
    """False if readers of a partition at ``other`` skip ``directory`` below it, because it is hidden there."""
    path = f"{directory}/"
    below = path.removeprefix(other.path) if path.startswith(other.path) else ""
    return not other.partition or not any(map(is_hidden, below.split("/")))


def _reader_label(directory: TableDirectory) -> str:
    what = f"table {directory.database}.{directory.table}"
    if not directory.partition:
        return f"{what} has the directory {directory.path.rstrip('/')}"
    return f"{partition_label(directory.partition)} of {what} is read from {directory.path.rstrip('/')}"
