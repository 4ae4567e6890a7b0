# SPDX-License-Identifier: Apache-2.0
"""Tables and their partitions as the metastore has them now, for a ``TableRef`` that was found there."""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from lake.errors import Rejected, TableGone, Transient, one_line
from lake.metastore import (
    MetastoreClient,
    MetastorePartition,
    MetastoreTable,
    StorageDescriptor,
    normalized_uri,
    pooled_connection,
)
from lake.model import CatalogRef, SearchFailure, TableRef, partition_label
from lake.storage.locations import canonical_location

CATALOG_KIND = "metastore"
"""What a ``CatalogRef`` of such a table says its catalog is."""

DATA_DIR = ".lakefold"
"""The directory in a table's own that holds versions.

Hive, Spark, Trino, Flink and Impala pass over names that begin with a dot, below the directory that they list. Impala
passes over no other names of ours: ``docs/formats.md`` has the rule of each reader.
"""

LEGACY_DATA_DIR = "_lakefold"
"""What it was called by earlier releases: versions that these have made stay there until they are replaced."""

DATA_DIRS = (DATA_DIR, LEGACY_DATA_DIR)

UNPARTITIONED_DIR = "data"
"""What holds the files of a table without partitions in a version."""

_UNPARTITIONED_VERSION = re.compile(
    rf"(?P<own>.+)/(?:{'|'.join(map(re.escape, DATA_DIRS))})/[^/]+-e\d+-\d+/{UNPARTITIONED_DIR}"
)
_TABLE_KINDS = frozenset({"MANAGED_TABLE", "EXTERNAL_TABLE"})
#: what Spark says that it reads a table's files with, where they are nobody's but the table's own
_HIVE_PROVIDERS = frozenset({"", "hive", "parquet", "orc"})

#: properties that say how much is in a partition: whoever writes or analyses it changes them
_STATISTICS = frozenset(
    {"COLUMN_STATS_ACCURATE", "numFiles", "numRows", "rawDataSize", "totalSize", "transient_lastDdlTime"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogPartition:
    """One partition, or a whole table without partitions, whose name is then ''."""

    name: str
    storage: StorageDescriptor
    parameters: Mapping[str, str]
    created_at: int
    #: what the metastore has of it, for when it is written back
    metastore_object: MetastorePartition | MetastoreTable

    @property
    def location(self) -> str:
        """Its directory, in the one spelling of ``lake.storage.locations``."""
        return canonical_location(self.storage.location)

    def with_location(self, location: str) -> "CatalogPartition":
        """The same in another directory. Of a table Spark has a note of its own, which it goes by."""
        storage = self.storage.with_location(location)
        if isinstance(self.metastore_object, MetastoreTable) and storage.spark_path is not None:
            storage = storage.with_spark_path(location)
        return replace(self, storage=storage)

    def updated_object(self, parameters: Mapping[str, str]) -> MetastorePartition | MetastoreTable:
        """As it is to be written back, where this is, with these properties."""
        return self.metastore_object.with_changes(self.storage, parameters)


def find_tables(uri: str, database_pattern: str, table_pattern: str) -> Iterator[TableRef | SearchFailure]:
    """The tables of a metastore whose database and name match these patterns; no views, no tables of other formats.

    A database that the metastore refuses to list is ``SearchFailure``. Raises Transient where the connection breaks.
    """
    with pooled_connection(uri) as metastore:
        for database in metastore.databases():
            if not fnmatchcase(database, database_pattern):
                continue
            try:
                names = [name for name in metastore.table_names(database) if fnmatchcase(name, table_pattern)]
                found = sorted(metastore.tables(database, names), key=lambda table: table.name)
            except Transient as error:
                if not metastore.is_reusable():
                    raise
                yield SearchFailure(location=database, reason=f"database {database}: {one_line(error)}")
                continue
            for table in found:
                if table.table_type in _TABLE_KINDS and table.storage.location and not _is_other_format(table):
                    yield _table_ref(normalized_uri(uri), table)


def open_metastore(ref: TableRef) -> AbstractContextManager[MetastoreClient]:
    """A connection to the metastore that the table was found in. Raises Rejected where it was not found in one."""
    return pooled_connection(_catalog_ref(ref).name)


def load_table(metastore: MetastoreClient, ref: TableRef) -> MetastoreTable:
    """The table as it is now. Raises TableGone where there is none, or where it is elsewhere by now."""
    database, _, name = _catalog_ref(ref).table.partition(".")
    found = metastore.table(database, name)
    if found is None:
        raise TableGone(f"{ref.name}: the metastore {metastore.uri} has no table {database}.{name}")
    # A view has no place of its own, and is refused as one.
    if found.storage.location and table_root(found) != ref.location:
        raise TableGone(f"{ref.name} is not at {ref.location} any more, but at {found.storage.location}")
    return found


def table_identity(table: MetastoreTable) -> str:
    """What tells the table from another one under its name: when it was made, and where."""
    return f"{table.created_at} {table_root(table)}"


def table_root(table: MetastoreTable) -> str:
    """The directory that is the table's own: without partitions it may itself be read from a version in there."""
    location = canonical_location(table.storage.location)
    version = None if table.partition_columns else _UNPARTITIONED_VERSION.fullmatch(location)
    return version["own"] if version else location


def is_in_data_dir(path: str) -> bool:
    """Whether something lies among the versions of its table, by its path below the table's own directory."""
    return path.partition("/")[0] in DATA_DIRS and "/" in path


def list_partitions(
    metastore: MetastoreClient, table: MetastoreTable, partitions: Collection[str] | None = None
) -> Iterator[CatalogPartition]:
    """All partitions, or those of these names that there are; a table without partitions is one place itself."""
    if not table.partition_columns:
        if partitions is None or "" in partitions:
            yield _to_catalog_partition("", table)
        return
    names = metastore.partition_names(table.database, table.name) if partitions is None else sorted(partitions)
    for name, partition in metastore.partitions(table.database, table.name, [name for name in names if name]):
        yield _to_catalog_partition(name, partition)


def put_partitions(
    metastore: MetastoreClient, table: MetastoreTable, updated: Collection[MetastorePartition | MetastoreTable]
) -> None:
    """The call that puts partitions of the table, or the table itself, in the place of what is there."""
    partitions = [one for one in updated if isinstance(one, MetastorePartition)]
    if partitions:
        metastore.alter_partitions(table.database, table.name, partitions)
    for one in updated:
        if isinstance(one, MetastoreTable):
            metastore.alter_table(table.database, table.name, one)


def find_lost_update(
    metastore: MetastoreClient, table: MetastoreTable, written: Mapping[str, MetastorePartition | MetastoreTable]
) -> str | None:
    """How a partition, by its name, differs from what a call has just made of it; None where none does.

    The call is refused where a partition is missing. So one that is missing now, or was made anew, was dropped after
    the call: its owner has undone nothing but what is dropped anyway, and nothing of the owner's is undone.
    """
    now = {place.name: place for place in list_partitions(metastore, table, written.keys())}
    for name, one in written.items():
        found, what = now.get(name), partition_label(name)
        if isinstance(one, MetastorePartition) and (found is None or found.created_at != one.created_at):
            continue
        if found is None:
            return f"{what} is not in the metastore"
        if found.location != canonical_location(one.storage.location):
            return f"{what} is at {found.storage.location}"
        if found.storage.with_location("") != one.storage.with_location("") or found.created_at != one.created_at:
            return f"the columns or the format of {what} changed"
        if without_statistics(found.parameters) != without_statistics(one.parameters):
            return f"the properties of {what} changed"
    return None


def without_statistics(parameters: Mapping[str, str]) -> dict[str, str]:
    """Properties but for those that say how much is in a partition."""
    return {
        name: value
        for name, value in parameters.items()
        if name not in _STATISTICS and not name.startswith("spark.sql.statistics.")
    }


def _to_catalog_partition(name: str, metastore_object: MetastorePartition | MetastoreTable) -> CatalogPartition:
    return CatalogPartition(
        name=name,
        storage=metastore_object.storage,
        parameters=metastore_object.parameters,
        created_at=metastore_object.created_at,
        metastore_object=metastore_object,
    )


def _table_ref(uri: str, table: MetastoreTable) -> TableRef:
    name = f"{table.database}.{table.name}"
    return TableRef(
        name=name,
        format="hive",
        location=table_root(table),
        catalog=CatalogRef(kind=CATALOG_KIND, name=uri, table=name),
    )


def _is_other_format(table: MetastoreTable) -> bool:
    """Whether the metastore only lists it: what its files mean another format's own metadata says."""
    provider = table.parameters.get("spark.sql.sources.provider", "").lower()
    return provider not in _HIVE_PROVIDERS or "table_type" in table.parameters


def _catalog_ref(ref: TableRef) -> CatalogRef:
    if ref.catalog is None or ref.catalog.kind != CATALOG_KIND:
        raise Rejected(
            f"{ref.name}: a Hive table is found through its metastore, not by its directory; "
            'add [[sources]] metastore = "thrift://host:9083"'
        )
    return ref.catalog
