# SPDX-License-Identifier: Apache-2.0
"""Tables and their partitions as the metastore has them now, for a ``TableRef`` that was found there."""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from lake.errors import Rejected, TableGone, Transient, one_line
from lake.locations import canonical_location
from lake.metastore import Metastore, Partition, Storage, Table, as_written, connected
from lake.model import CatalogRef, TableRef, Unsearched, words_of

KIND = "metastore"
"""What a ``CatalogRef`` of such a table says its catalog is."""

HOME = ".lakefold"
"""The directory in a table's own that holds versions.

Hive, Spark, Trino, Flink and Impala pass over names that begin with a dot, below the directory that they list. Impala
passes over no other names of ours: ``docs/formats.md`` has the rule of each reader.
"""

FORMER_HOME = "_lakefold"
"""What it was called by earlier releases: versions that these have made stay there until they are replaced."""

HOMES = (HOME, FORMER_HOME)

WHOLE = "data"
"""What holds the files of a table without partitions in a version."""

_IN_VERSION = re.compile(rf"(?P<own>.+)/(?:{'|'.join(map(re.escape, HOMES))})/[^/]+-e\d+-\d+/{WHOLE}")
_TABLES = frozenset({"MANAGED_TABLE", "EXTERNAL_TABLE"})
#: what Spark says that it reads a table's files with, where they are nobody's but the table's own
_PROVIDERS = frozenset({"", "hive", "parquet", "orc"})

#: properties that say how much is in a partition: whoever writes or analyses it changes them
_COUNTS = frozenset(
    {"COLUMN_STATS_ACCURATE", "numFiles", "numRows", "rawDataSize", "totalSize", "transient_lastDdlTime"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One partition, or a whole table without partitions, whose name is then ''."""

    name: str
    storage: Storage
    parameters: Mapping[str, str]
    made_at: int
    #: what the metastore has of it, for when it is written back
    holder: Partition | Table

    @property
    def location(self) -> str:
        """Its directory, in the one spelling of ``lake.locations``."""
        return canonical_location(self.storage.location)

    def moved(self, location: str) -> "Place":
        """The same in another directory. Of a table Spark has a note of its own, which it goes by."""
        storage = self.storage.moved(location)
        if isinstance(self.holder, Table) and storage.noted is not None:
            storage = storage.with_note(location)
        return replace(self, storage=storage)

    def changed(self, parameters: Mapping[str, str]) -> Partition | Table:
        """As it is to be written back, where this is, with these properties."""
        return self.holder.changed(self.storage, parameters)


def found_in(uri: str, databases: str, tables: str) -> Iterator[TableRef | Unsearched]:
    """The tables of a metastore whose database and name match these patterns; no views, no tables of other formats.

    A database that the metastore refuses to list is ``Unsearched``. Raises Transient where the connection breaks.
    """
    with connected(uri) as metastore:
        for database in metastore.databases():
            if not fnmatchcase(database, databases):
                continue
            try:
                names = [name for name in metastore.table_names(database) if fnmatchcase(name, tables)]
                found = sorted(metastore.tables(database, names), key=lambda table: table.name)
            except Transient as error:
                if not metastore.is_in_step():
                    raise
                yield Unsearched(location=database, reason=f"database {database}: {one_line(error)}")
                continue
            for table in found:
                if table.kind in _TABLES and table.storage.location and not _is_of_another_format(table):
                    yield _reference(as_written(uri), table)


def open_metastore(ref: TableRef) -> AbstractContextManager[Metastore]:
    """A connection to the metastore that the table was found in. Raises Rejected where it was not found in one."""
    return connected(_catalog(ref).name)


def table_of(metastore: Metastore, ref: TableRef) -> Table:
    """The table as it is now. Raises TableGone where there is none, or where it is elsewhere by now."""
    database, _, name = _catalog(ref).table.partition(".")
    found = metastore.table(database, name)
    if found is None:
        raise TableGone(f"{ref.name}: the metastore {metastore.uri} has no table {database}.{name}")
    # A view has no place of its own, and is refused as one.
    if found.storage.location and own_directory(found) != ref.location:
        raise TableGone(f"{ref.name} is not at {ref.location} any more, but at {found.storage.location}")
    return found


def identity_of(table: Table) -> str:
    """What tells the table from another one under its name: when it was made, and where."""
    return f"{table.made_at} {own_directory(table)}"


def own_directory(table: Table) -> str:
    """The directory that is the table's own: without partitions it may itself be read from a version in there."""
    location = canonical_location(table.storage.location)
    version = None if table.partition_columns else _IN_VERSION.fullmatch(location)
    return version["own"] if version else location


def is_in_home(place: str) -> bool:
    """Whether something lies among the versions of its table, by its path below the table's own directory."""
    return place.partition("/")[0] in HOMES and "/" in place


def places_of(metastore: Metastore, table: Table, partitions: Collection[str] | None = None) -> Iterator[Place]:
    """All partitions, or those of these names that there are; a table without partitions is one place itself."""
    if not table.partition_columns:
        if partitions is None or "" in partitions:
            yield _place("", table)
        return
    names = metastore.partition_names(table.database, table.name) if partitions is None else sorted(partitions)
    for name, partition in metastore.partitions(table.database, table.name, [name for name in names if name]):
        yield _place(name, partition)


def alter(metastore: Metastore, table: Table, changed: Collection[Partition | Table]) -> None:
    """The call that puts partitions of the table, or the table itself, in the place of what is there."""
    partitions = [one for one in changed if isinstance(one, Partition)]
    if partitions:
        metastore.alter_partitions(table.database, table.name, partitions)
    for one in changed:
        if isinstance(one, Table):
            metastore.alter_table(table.database, table.name, one)


def undone(metastore: Metastore, table: Table, made: Mapping[str, Partition | Table]) -> str | None:
    """How a partition, by its name, differs from what a call has just made of it; None where none does.

    The call is refused where a partition is missing. So one that is missing now, or was made anew, was dropped after
    the call: its owner has undone nothing but what is dropped anyway, and nothing of the owner's is undone.
    """
    now = {place.name: place for place in places_of(metastore, table, made.keys())}
    for name, one in made.items():
        found, what = now.get(name), words_of(name)
        if isinstance(one, Partition) and (found is None or found.made_at != one.made_at):
            continue
        if found is None:
            return f"{what} is not in the metastore"
        if found.location != canonical_location(one.storage.location):
            return f"{what} is at {found.storage.location}"
        if found.storage.moved("") != one.storage.moved("") or found.made_at != one.made_at:
            return f"the columns or the format of {what} changed"
        if without_counts(found.parameters) != without_counts(one.parameters):
            return f"the properties of {what} changed"
    return None


def without_counts(parameters: Mapping[str, str]) -> dict[str, str]:
    """Properties but for those that say how much is in a partition."""
    return {
        name: value
        for name, value in parameters.items()
        if name not in _COUNTS and not name.startswith("spark.sql.statistics.")
    }


def _place(name: str, holder: Partition | Table) -> Place:
    return Place(name=name, storage=holder.storage, parameters=holder.parameters, made_at=holder.made_at, holder=holder)


def _reference(uri: str, table: Table) -> TableRef:
    name = f"{table.database}.{table.name}"
    return TableRef(
        name=name,
        format="hive",
        location=own_directory(table),
        catalog=CatalogRef(kind=KIND, name=uri, table=name),
    )


def _is_of_another_format(table: Table) -> bool:
    """Whether the metastore only lists it: what its files mean another format's own metadata says."""
    provider = table.parameters.get("spark.sql.sources.provider", "").lower()
    return provider not in _PROVIDERS or "table_type" in table.parameters


def _catalog(ref: TableRef) -> CatalogRef:
    if ref.catalog is None or ref.catalog.kind != KIND:
        raise Rejected(
            f"{ref.name}: a Hive table is found through its metastore, not by its directory; "
            'add [[sources]] metastore = "thrift://host:9083"'
        )
    return ref.catalog
