# SPDX-License-Identifier: Apache-2.0
"""Tables and their partitions as the metastore has them now, for a ``TableRef`` that was found there."""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
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
from lake.storage.locations import DATA_DIRS, canonical_location

CATALOG_KIND = "metastore"
"""The ``CatalogRef.kind`` of a table that was found in a metastore."""

UNPARTITIONED_DIR = "data"
"""The directory in a version that holds the files of a table without partitions."""

_UNPARTITIONED_VERSION = re.compile(
    rf"(?P<own>.+)/(?:{'|'.join(map(re.escape, DATA_DIRS))})/[^/]+-e\d+-\d+/{UNPARTITIONED_DIR}"
)
_TABLE_KINDS = frozenset({"MANAGED_TABLE", "EXTERNAL_TABLE"})
#: the providers in Spark's table properties whose files belong to the table itself, not to another table format
_HIVE_PROVIDERS = frozenset({"", "hive", "parquet", "orc"})

#: properties that describe the contents of a partition; every write and every ANALYZE changes them
_STATISTICS = frozenset(
    {
        "COLUMN_STATS_ACCURATE",
        "DO_NOT_UPDATE_STATS",
        "STATS_GENERATED",
        "STATS_GENERATED_VIA_STATS_TASK",
        "impala.events.catalogServiceId",
        "impala.events.catalogVersion",
        "impala.lastComputeStatsTime",
        "numFiles",
        "numFilesErasureCoded",
        "numRows",
        "rawDataSize",
        "totalSize",
        "transient_lastDdlTime",
    }
)
_STATISTICS_PREFIXES = ("spark.sql.statistics.", "impala_intermediate_stats_")


#: properties in which Trino names the query that has written an entry, by its UTC time and number
_QUERY_ID_KEYS = ("trino_query_id", "presto_query_id")
_QUERY_ID = re.compile(r"(?P<time>\d{8}_\d{6})_\d+_\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogPartition:
    """A partition, or a whole table without partitions, whose ``name`` is then ''.

    ``created_at`` is its creation time in seconds. When Trino overwrites a partition, it writes a new entry without the
    creation time. Then ``created_at`` is the time of the query that the entry names, or 0.
    """

    name: str
    storage: StorageDescriptor
    parameters: Mapping[str, str]
    created_at: int
    #: the partition as the metastore has it, to be changed and written back
    metastore_object: MetastorePartition | MetastoreTable

    @property
    def has_creation_time(self) -> bool:
        """False if a program has written the entry anew without the creation time."""
        return self.metastore_object.created_at != 0

    @property
    def location(self) -> str:
        """Its directory, in the canonical spelling of ``lake.storage.locations``."""
        return canonical_location(self.storage.location)

    def with_location(self, location: str) -> "CatalogPartition":
        """Return the same partition in another directory. Also changes the location in the property that Spark sets."""
        storage = self.storage.with_location(location)
        if isinstance(self.metastore_object, MetastoreTable) and storage.spark_path is not None:
            storage = storage.with_spark_path(location)
        return replace(self, storage=storage)

    def updated_object(self, parameters: Mapping[str, str]) -> MetastorePartition | MetastoreTable:
        """Return the metastore object to write back: at this location, with these properties."""
        return self.metastore_object.with_changes(self.storage, parameters)


def find_tables(uri: str, database_pattern: str, table_pattern: str) -> Iterator[TableRef | SearchFailure]:
    """Yield the tables of a metastore whose database and name match these patterns; no views, no other formats.

    A database that the metastore refuses to list is a ``SearchFailure``. Raises Transient if the connection breaks.
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
    """Connect to the metastore in which the table was found. Raises Rejected if it was not found in a metastore."""
    return pooled_connection(_catalog_ref(ref).name)


def load_table(metastore: MetastoreClient, ref: TableRef) -> MetastoreTable:
    """Return the table as it is now. Raises TableGone if there is no such table, or if it is in another directory."""
    database, _, name = _catalog_ref(ref).table.partition(".")
    found = metastore.table(database, name)
    if found is None:
        raise TableGone(f"{ref.name}: the metastore {metastore.uri} has no table {database}.{name}")
    # A view has no location; ``refusals.check_table`` refuses it.
    if found.storage.location and table_root(found) != ref.location:
        raise TableGone(f"{ref.name} is no longer at {ref.location}, but at {found.storage.location}")
    return found


def table_identity(table: MetastoreTable) -> str:
    """Return the table's creation time and directory, which distinguish it from another table of the same name."""
    return f"{table.created_at} {table_root(table)}"


def table_root(table: MetastoreTable) -> str:
    """Return the table's own directory. A table without partitions may itself be read from a version in it."""
    location = canonical_location(table.storage.location)
    version = None if table.partition_columns else _UNPARTITIONED_VERSION.fullmatch(location)
    return version["own"] if version else location


def is_in_data_dir(path: str) -> bool:
    """True if a path, relative to the table's own directory, lies in the directory of versions."""
    return path.partition("/")[0] in DATA_DIRS and "/" in path


def list_partitions(
    metastore: MetastoreClient, table: MetastoreTable, partitions: Collection[str] | None = None
) -> Iterator[CatalogPartition]:
    """Yield all partitions, or the named ones that exist. A table without partitions is one partition.

    Raises Transient or TableGone if the table was renamed meanwhile, and its directory with it.
    """
    if not table.partition_columns:
        if partitions is None or "" in partitions:
            yield _to_catalog_partition("", table)
        return
    names = metastore.partition_names(table.database, table.name) if partitions is None else sorted(partitions)
    inside, is_verified, found = f"{table_root(table)}/", False, 0
    for name, raw in metastore.partitions(table.database, table.name, [name for name in names if name]):
        partition, found = _to_catalog_partition(name, raw), found + 1
        if not is_verified and not partition.location.startswith(inside):
            _verify_not_renamed(metastore, table)
            is_verified = True
        yield partition
    if is_verified or not found or found < len(names):
        _verify_not_renamed(metastore, table)


def _verify_not_renamed(metastore: MetastoreClient, table: MetastoreTable) -> None:
    """Raise Transient or TableGone if the table was renamed.

    A metastore answers one call by several queries of its own. If a table is renamed between these queries, the answer
    may have the changed locations of partitions, or no partitions under the old name. Both would look like another
    program's change.
    """
    label = f"{table.database}.{table.name}"
    now = metastore.table(table.database, table.name)
    if now is None:
        raise TableGone(f"the metastore {metastore.uri} has no table {label}")
    if table_identity(now) != table_identity(table):
        raise Transient(f"{label} was renamed or recreated while its partitions were read")


def put_partitions(
    metastore: MetastoreClient, table: MetastoreTable, updated: Collection[MetastorePartition | MetastoreTable]
) -> None:
    """Replace partitions of the table, or the table itself, in the metastore."""
    partitions = [one for one in updated if isinstance(one, MetastorePartition)]
    if partitions:
        metastore.alter_partitions(table.database, table.name, partitions)
    for one in updated:
        if isinstance(one, MetastoreTable):
            metastore.alter_table(table.database, table.name, one)


def find_lost_updates(
    before: Mapping[str, CatalogPartition],
    written: Mapping[str, MetastorePartition | MetastoreTable],
    now: Mapping[str, CatalogPartition],
) -> Mapping[str, str]:
    """Return the partitions that differ ``now`` from those that a call has ``written``, with the difference of each.

    A partition that is missing now, or has another creation time, does not count as different. The metastore refuses
    the call if a partition is missing, so the owner dropped it after the call. Then the call undid no change of the
    owner. A partition that is as it was ``before`` the call, except for its counts, does not count either: a program
    that had read it then, such as an INSERT of Hive, has written it back. The sweep repeats the call's change.
    """
    differences = {
        name: _find_difference(name, one, now.get(name))
        for name, one in written.items()
        if not _is_written_back(before[name], now.get(name))
    }
    return {name: difference for name, difference in differences.items() if difference is not None}


def _is_written_back(before: CatalogPartition, found: CatalogPartition | None) -> bool:
    return (
        found is not None
        and (found.storage, found.created_at) == (before.storage, before.created_at)
        and without_statistics(found.parameters) == without_statistics(before.parameters)
    )


def _find_difference(
    name: str, written: MetastorePartition | MetastoreTable, found: CatalogPartition | None
) -> str | None:
    what, created_at = partition_label(name), None if found is None else found.metastore_object.created_at
    if isinstance(written, MetastorePartition) and created_at != written.created_at:
        return None
    if found is None:
        return f"{what} is not in the metastore"
    if found.location != canonical_location(written.storage.location):
        return f"{what} is at {found.storage.location}"
    if found.storage.with_location("") != written.storage.with_location("") or created_at != written.created_at:
        return f"the columns or the format of {what} changed"
    if without_statistics(found.parameters) != without_statistics(written.parameters):
        return f"the properties of {what} changed"
    return None


def without_statistics(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the properties, except counts of a partition's contents."""
    return {
        name: value
        for name, value in parameters.items()
        if name not in _STATISTICS and not name.startswith(_STATISTICS_PREFIXES)
    }


def _to_catalog_partition(name: str, metastore_object: MetastorePartition | MetastoreTable) -> CatalogPartition:
    return CatalogPartition(
        name=name,
        storage=metastore_object.storage,
        parameters=metastore_object.parameters,
        created_at=metastore_object.created_at or _query_time(metastore_object.parameters),
        metastore_object=metastore_object,
    )


def _query_time(parameters: Mapping[str, str]) -> int:
    """Return the time of the query that has written an entry, in seconds since 1970. 0 if the entry names none."""
    for key in _QUERY_ID_KEYS:
        if found := _QUERY_ID.fullmatch(parameters.get(key, "")):
            with suppress(ValueError):
                return int(datetime.strptime(f"{found['time']}+0000", "%Y%m%d_%H%M%S%z").timestamp())
    return 0


def _table_ref(uri: str, table: MetastoreTable) -> TableRef:
    name = f"{table.database}.{table.name}"
    return TableRef(
        name=name,
        format="hive",
        location=table_root(table),
        catalog=CatalogRef(kind=CATALOG_KIND, name=uri, table=name),
    )


def _is_other_format(table: MetastoreTable) -> bool:
    """True if the metastore only lists the table, and another format's own metadata describes its files."""
    provider = table.parameters.get("spark.sql.sources.provider", "").lower()
    return provider not in _HIVE_PROVIDERS or "table_type" in table.parameters


def _catalog_ref(ref: TableRef) -> CatalogRef:
    if ref.catalog is None or ref.catalog.kind != CATALOG_KIND:
        raise Rejected(
            f"{ref.name}: a Hive table is found through its metastore, not by its directory; "
            'add [[sources]] metastore = "thrift://host:9083"'
        )
    return ref.catalog
