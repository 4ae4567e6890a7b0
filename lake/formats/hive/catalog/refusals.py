# SPDX-License-Identifier: Apache-2.0
"""Tables that can't be served, and partitions that are left alone. Each reason names rule, value and remedy."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from lake.errors import TableRefused
from lake.formats.hive.catalog.tables import CatalogPartition
from lake.metastore import MetastoreTable, StorageDescriptor
from lake.storage.locations import canonical_location, filesystem_key, is_hdfs, is_local


class FileFormat(StrEnum):
    """The format of a table's data files."""

    PARQUET = "Parquet"
    ORC = "ORC"


#: by the last part of the SerDe's and the input format's class name
_FORMATS_BY_CLASSES = {
    ("ParquetHiveSerDe", "MapredParquetInputFormat"): FileFormat.PARQUET,
    ("OrcSerde", "OrcInputFormat"): FileFormat.ORC,
}
_MANAGED_REASON = (
    "the table has no partitions and is managed: a rewrite would relocate the table itself. DROP TABLE then deletes "
    "only the new location, so CREATE TABLE fails or returns the replaced rows, and RENAME may leave the rows behind; "
    "make the table external"
)
_CACHED_REASON = (
    "the table has no partitions and was created by Spark (USING): a session that has read the table uses its cached "
    "directory until the session ends or runs REFRESH TABLE; if all sessions run REFRESH TABLE, set "
    "sessions_refresh = true in a rule"
)
_PROVIDER_KEY = "spark.sql.sources.provider"
_FORMATS_BY_PROVIDER = {"parquet": FileFormat.PARQUET, "orc": FileFormat.ORC}
#: Hive skips this many rows of each file, whatever the format of the file
_SKIP_KEYS = ("skip.header.line.count", "skip.footer.line.count")
#: if true, the metastore adds and drops partitions by the directories in the table's directory
_DISCOVERY_KEY = "discover.partitions"
_VIEW_KINDS = frozenset({"VIRTUAL_VIEW", "MATERIALIZED_VIEW"})


def file_format_of(table: MetastoreTable) -> FileFormat | None:
    """Return the format of the table's data files. None if the format is not served.

    If the table has types that Hive does not have, only Spark's property names the format; the storage names another
    one.
    """
    return _format_by_provider(table) or _format_by_storage(table.storage)


def _format_by_provider(table: MetastoreTable) -> FileFormat | None:
    return _FORMATS_BY_PROVIDER.get(table.parameters.get(_PROVIDER_KEY, "").lower())


def _format_by_storage(storage: StorageDescriptor) -> FileFormat | None:
    return _FORMATS_BY_CLASSES.get((_simple_class_name(storage.serde), _simple_class_name(storage.input_format)))


def check_table(name: str, table: MetastoreTable) -> None:
    """Raise TableRefused if the table can't be served. Its owner may change that while plans wait."""
    storage, properties = table.storage, table.parameters
    if table.table_type in _VIEW_KINDS:
        raise TableRefused(
            f"{name} is a view ({table.table_type}): it has no files of its own; leave it out of the sources"
        )
    if properties.get("transactional", "").lower() == "true":
        raise TableRefused(
            f"{name}: transactional is true but must not be set: such tables have a log of changes that Hive compacts "
            "itself (ALTER TABLE … COMPACT); leave it out"
        )
    if handler := properties.get("storage_handler"):
        raise TableRefused(f"{name}: storage_handler is {handler} but must not be set: its rows are not in plain files")
    for key in _SKIP_KEYS:
        if _int_or_zero(properties.get(key, "")) > 0:
            raise TableRefused(
                f"{name}: {key} is {properties[key]} but must not be set: Hive skips that many rows of each file, and "
                f"a rewrite merges files, so Hive would read other rows; UNSET TBLPROPERTIES ('{key}')"
            )
    if table.partition_columns and properties.get(_DISCOVERY_KEY, "").lower() == "true":
        raise TableRefused(
            f"{name}: {_DISCOVERY_KEY} is true but must not be set: Hive's metastore would drop a partition that a "
            "rewrite has relocated if its own directory is missing, as after an overwrite by Spark; SET TBLPROPERTIES "
            f"('{_DISCOVERY_KEY}' = 'false')"
        )
    buckets = max(storage.bucket_count, _int_or_zero(properties.get("spark.sql.sources.schema.numBuckets", "")))
    if buckets > 0:
        raise TableRefused(
            f"{name}: it has {buckets} buckets but must have none: each row must stay in the file of its bucket, and a "
            "rewrite merges files; leave it out"
        )
    if storage.has_list_bucketing:
        raise TableRefused(f"{name}: STORED AS DIRECTORIES must not be set: it splits a partition into directories")
    if file_format_of(table) is None:
        raise TableRefused(
            f"{name}: its SerDe is {_simple_class_name(storage.serde) or 'not set'} and its input format "
            f"{_simple_class_name(storage.input_format)}, but its files must be {' or '.join(FileFormat)}; leave it out"
        )
    provider = properties.get(_PROVIDER_KEY, "").lower()
    by_catalog = properties.get("spark.sql.partitionProvider") == "catalog"
    if provider not in ("", "hive") and table.partition_columns and not by_catalog:
        raise TableRefused(
            f"{name}: spark.sql.partitionProvider is not 'catalog': Spark takes its partitions from the directories, "
            f"not from the metastore; run MSCK REPAIR TABLE {table.database}.{table.name} in Spark"
        )
    check_location(name, storage.location)


def check_location(name: str, location: str) -> None:
    """Raise TableRefused if a directory is on a file system that is not served."""
    if not (is_local(location) or is_hdfs(location)):
        raise TableRefused(
            f"{name}: it is at {location}, but Hive tables must be on HDFS, or on a local or mounted file system"
        )


def excluded_partitions(table: MetastoreTable, partitions: Sequence[CatalogPartition]) -> Mapping[str, str]:
    """Return the partitions whose files are not planned, by name, each with the reason."""
    if not table.partition_columns:
        why = _not_relocatable_reason(table)
        return {} if why is None else {"": why}
    kind = _format_by_storage(table.storage)
    others = {
        partition.name: f"its files are read by {_simple_class_name(partition.storage.serde)}, those of the table by "
        f"{_simple_class_name(table.storage.serde)}: set the partition's format, or rewrite it"
        for partition in partitions
        if _format_by_storage(partition.storage) != kind and _format_by_provider(table) is None
    }
    # Hive's joins use the buckets of a partition, which ALTER TABLE … NOT CLUSTERED does not change.
    bucketed = {
        partition.name: f"it has {partition.storage.bucket_count} buckets, although the table has none, and a rewrite "
        "would merge their files: drop it and write it again"
        for partition in partitions
        if partition.storage.bucket_count > 0
    }
    table_filesystem = filesystem_key(table.storage.location)
    elsewhere = {
        partition.name: f"it is at {partition.location}, on another file system than its table: rewrite it"
        for partition in partitions
        if filesystem_key(partition.location) != table_filesystem
    }
    return _overlapping_partitions(partitions) | others | bucketed | elsewhere


def excluded_as_cached(table: MetastoreTable) -> Mapping[str, str]:
    """Return why the table is left alone if Spark sessions may cache its directory; see ``excluded_partitions``."""
    is_by_name = not table.partition_columns and table.parameters.get(_PROVIDER_KEY, "hive").lower() != "hive"
    return {"": _CACHED_REASON} if is_by_name else {}


def _not_relocatable_reason(table: MetastoreTable) -> str | None:
    """Return why a table without partitions can't be relocated. None if it can."""
    if table.table_type != "EXTERNAL_TABLE" or table.parameters.get("external.table.purge", "").lower() == "true":
        return _MANAGED_REASON
    noted, location = table.storage.spark_path, table.storage.location
    if noted is not None and canonical_location(noted) != canonical_location(location):
        return f"the table's location is {noted} for Spark, but {location} in the metastore: set both to one directory"
    return None


def _overlapping_partitions(partitions: Sequence[CatalogPartition]) -> dict[str, str]:
    """Return the partitions whose directory equals, contains or lies in the directory of another partition."""
    found: dict[str, str] = {}
    above: list[tuple[str, str]] = []  # directories that may contain the next one, each with its partition's name
    for below, name in sorted((f"{partition.location}/", partition.name) for partition in partitions):
        while above and not below.startswith(above[-1][0]):
            above.pop()
        for directory, other in above:
            remedy = "give each partition its own directory"
            found[name] = f"its directory equals the directory of partition {other} or lies in it: {remedy}"
            found.setdefault(other, f"its directory {directory.rstrip('/')} also contains partition {name}: {remedy}")
        above.append((below, name))
    return found


def _simple_class_name(name: str) -> str:
    return name.rpartition(".")[2]


def _int_or_zero(text: str) -> int:
    return int(text) if text.isdecimal() else 0
