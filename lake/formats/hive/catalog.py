# SPDX-License-Identifier: Apache-2.0
"""Tables and their partitions as the metastore has them now, for a ``TableRef`` that was found there."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from lake.errors import Rejected, TableGone
from lake.locations import canonical_location
from lake.metastore import Metastore, Partition, Storage, Table, as_written
from lake.model import CatalogRef, TableRef

KIND = "metastore"
"""What a ``CatalogRef`` of such a table says its catalog is."""

_TABLES = frozenset({"MANAGED_TABLE", "EXTERNAL_TABLE"})
#: what Spark says that it reads a table's files with, where they are nobody's but the table's own
_PROVIDERS = frozenset({"", "hive", "parquet", "orc"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One partition, or a whole table without partitions, whose name is then ''."""

    name: str
    storage: Storage
    parameters: Mapping[str, str]
    made_at: int
    #: as it is to be written back; None for a table without partitions
    partition: Partition | None = None

    @property
    def location(self) -> str:
        """Its directory, in the one spelling of ``lake.locations``."""
        return canonical_location(self.storage.location)


def found_in(uri: str, databases: str, tables: str) -> Iterator[TableRef]:
    """The tables of a metastore whose database and name match these patterns; no views, no tables of other formats."""
    with Metastore(uri) as metastore:
        for database in metastore.databases():
            if not fnmatchcase(database, databases):
                continue
            names = [name for name in metastore.table_names(database) if fnmatchcase(name, tables)]
            for table in sorted(metastore.tables(database, names), key=lambda table: table.name):
                if table.kind in _TABLES and table.storage.location and not _is_of_another_format(table):
                    yield _reference(as_written(uri), table)


def open_metastore(ref: TableRef) -> Metastore:
    """A connection to the metastore that the table was found in. Raises Rejected where it was not found in one."""
    return Metastore(_catalog(ref).name)


def table_of(metastore: Metastore, ref: TableRef) -> Table:
    """The table as it is now. Raises TableGone where there is none, or where it is elsewhere by now."""
    database, _, name = _catalog(ref).table.partition(".")
    found = metastore.table(database, name)
    if found is None:
        raise TableGone(f"{ref.name}: the metastore {metastore.uri} has no table {database}.{name}")
    # A view has no place of its own, and is refused as one.
    if found.storage.location and canonical_location(found.storage.location) != ref.location:
        raise TableGone(f"{ref.name} is not at {ref.location} any more, but at {found.storage.location}")
    return found


def identity_of(table: Table) -> str:
    """What tells the table from another one under its name: when it was made, and where."""
    return f"{table.made_at} {canonical_location(table.storage.location)}"


def places_of(metastore: Metastore, table: Table, partitions: Collection[str] | None = None) -> Iterator[Place]:
    """All partitions, or those of these names that there are; a table without partitions is one place itself."""
    if not table.partition_columns:
        if partitions is None or "" in partitions:
            yield Place(name="", storage=table.storage, parameters=table.parameters, made_at=table.made_at)
        return
    names = metastore.partition_names(table.database, table.name) if partitions is None else sorted(partitions)
    for name, partition in metastore.partitions(table.database, table.name, [name for name in names if name]):
        yield _place(name, partition)


def _place(name: str, partition: Partition) -> Place:
    return Place(
        name=name,
        storage=partition.storage,
        parameters=partition.parameters,
        made_at=partition.made_at,
        partition=partition,
    )


def _reference(uri: str, table: Table) -> TableRef:
    name = f"{table.database}.{table.name}"
    return TableRef(
        name=name,
        format="hive",
        location=canonical_location(table.storage.location),
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
