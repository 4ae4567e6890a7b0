# SPDX-License-Identifier: Apache-2.0
"""Other tables of a metastore that are read from a table's directories, or from one in or around them (rule 7)."""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from lake.errors import Conflict
from lake.formats.hive.catalog import Place, own_directory
from lake.formats.hive.directories import Directory, Index, directories_of, forget
from lake.formats.hive.slices import is_hidden
from lake.locations import canonical_location
from lake.metastore import Metastore, Table
from lake.model import words_of

__all__ = ["AGE", "check_unread_by_others", "forget", "readers", "shared", "shared_places", "unread"]

AGE = timedelta(minutes=10)
"""How long the directories of all tables are remembered where nothing is deleted after the look."""

DELETION_AGE = timedelta(minutes=2)
"""How old a look may be after which files are deleted."""

PARTITION_AGE = timedelta(hours=1)
"""After which time a partition is seen that was given another directory under its name."""


def shared(metastore: Metastore, table: Table, *, age: timedelta = AGE) -> str | None:
    """Which other table's own directory is the table's, or lies in it, or holds it; None where none does."""
    mine = f"{own_directory(table)}/"
    for found in _index(metastore, age).around(mine):
        if not found.partition and _is_another(found, table) and _is_there(metastore, found):
            return (
                f"its directory {mine.rstrip('/')} and that of table {found.database}.{found.table}, "
                f"{found.path.rstrip('/')}, are the same or one in the other: what is replaced here may be read there; "
                "give each one of its own"
            )
    return None


def readers(
    metastore: Metastore,
    table: Table,
    directories: Collection[str],
    *,
    age: timedelta = AGE,
    partition_age: timedelta = PARTITION_AGE,
) -> Mapping[str, str]:
    """Those of ``directories`` from which another table may be read, each with which one, in words."""
    index, found = _index(metastore, age, partition_age), {}
    for directory in directories:
        for other in index.around(f"{directory}/"):
            if _is_another(other, table) and not _passes_over(other, directory) and _is_there(metastore, other):
                found[directory] = _words(other)
                break
    return found


def shared_places(metastore: Metastore, table: Table, places: Sequence[Place]) -> Mapping[str, str]:
    """Partitions, by name, that are not rewritten since another table is read from their directory, with the reason.

    Its readers would go on with the files of before, and see no more of what is written to the partition.
    """
    by_location = {place.location: place.name for place in places}
    found = readers(metastore, table, by_location.keys())
    return {
        by_location[at]: f"{who}, and this partition from {at}: give each one a directory of its own"
        for at, who in found.items()
    }


def check_unread_by_others(
    metastore: Metastore, table: Table, directories: Collection[str], retention: timedelta = PARTITION_AGE
) -> None:
    """Raise Conflict where another table may be read from one of ``directories``, in which files are to be removed.

    ``retention`` is for how long these have been replaced at least. Who began to read them in the first half of it is
    seen in any case.
    """
    age, partition_age = min(DELETION_AGE, retention / 2), min(PARTITION_AGE, retention / 2)
    found = readers(metastore, table, directories, age=age, partition_age=partition_age)
    if (why := shared(metastore, table)) is not None:
        raise Conflict(f"{table.database}.{table.name}: {why}")
    if (why := unread(metastore)) is not None:
        raise Conflict(why)
    for who in found.values():
        raise Conflict(who)


def unread(metastore: Metastore, *, age: timedelta = AGE) -> str | None:
    """Why it is not known of all tables which directories they are read from; None where it is."""
    for what, reason in _index(metastore, age).unread.items():
        return f"whether {what} is read from its directory is not known, since the metastore does not tell: {reason}"
    return None


def _index(metastore: Metastore, age: timedelta, partition_age: timedelta = PARTITION_AGE) -> Index:
    return directories_of(metastore.uri).read(metastore, age=age, partition_age=partition_age)


def _is_another(found: Directory, table: Table) -> bool:
    return (found.database, found.table) != (table.database, table.name)


def _is_there(metastore: Metastore, found: Directory) -> bool:
    """Whether it is still so: what is remembered may have been dropped or moved since."""
    now = metastore.table(found.database, found.table)
    if now is None or not found.partition:
        return now is not None and f"{own_directory(now)}/" == found.path
    partitions = metastore.partitions(found.database, found.table, [found.partition])
    return any(f"{canonical_location(one.storage.location)}/" == found.path for _, one in partitions)


def _passes_over(other: Directory, directory: str) -> bool:
    """Whether readers of a partition at ``other`` pass over a directory below it, since it is hidden there."""
    path = f"{directory}/"
    below = path.removeprefix(other.path) if path.startswith(other.path) else ""
    return bool(other.partition) and any(map(is_hidden, below.split("/")))


def _words(found: Directory) -> str:
    what = f"table {found.database}.{found.table}"
    if not found.partition:
        return f"{what} has the directory {found.path.rstrip('/')}"
    return f"{words_of(found.partition)} of {what} is read from {found.path.rstrip('/')}"
