# SPDX-License-Identifier: Apache-2.0
"""Listings of a table's data files, in the directories that the metastore names."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from lake.errors import Rejected, Transient
from lake.formats.hive.catalog.refusals import check_location
from lake.formats.hive.catalog.tables import CatalogPartition
from lake.model import SLICES_SCHEMA, partition_label
from lake.plan import LocatedFile, milliseconds_of
from lake.storage.filesystems import file_io_of
from lake.storage.locations import relative_path

#: the end of the names to which ``hdfs dfs -put`` writes
_COPYING = "._COPYING_"
#: directories listed at once in remote storage, since such a listing is mostly waiting
_MAX_CONCURRENT_LISTINGS = 8


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A data file: its full path, its bytes, and its modification time in nanoseconds since 1970."""

    path: str
    bytes: int
    modified_ns: int


def is_hidden(name: str) -> bool:
    """True if Hive and Spark skip a name in a directory; they read every other file."""
    return name.startswith(("_", "."))


def to_located_file(table_location: str, path: str, size: int, modified_ns: int) -> LocatedFile:
    """Return a file as relocations and superseded versions of a table at ``table_location`` record it."""
    at = datetime.fromtimestamp(modified_ns / 1e9, UTC)
    return LocatedFile(path=relative_path(table_location, path), bytes=size, modified_ms=milliseconds_of(at))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionListing:
    """The contents of a partition's directory. Readers differ in whether they read from the ``directories`` inside."""

    partition: CatalogPartition
    files: tuple[ListedFile, ...] = ()
    directories: tuple[str, ...] = ()


def list_partition_files(table_name: str, partitions: Sequence[CatalogPartition]) -> list[PartitionListing]:
    """List each partition's directory. Raises Rejected if one may not be listed, Transient on other errors."""
    for partition in partitions:
        check_location(
            f"{table_name}, {partition_label(partition.name)}" if partition.name else table_name,
            partition.storage.location,
        )
    with ThreadPoolExecutor(_MAX_CONCURRENT_LISTINGS) as pool:
        return list(pool.map(_list_partition, partitions, chunksize=64))


def nested_directory_reason(listing: PartitionListing) -> str | None:
    """Return why a partition whose directory contains directories is left alone. None if it contains none."""
    if not listing.directories:
        return None
    return f"its directory contains the directory {listing.directories[0]}: readers differ in whether they read it"


def slices_table(table_location: str, listings: Sequence[PartitionListing], excluded: Mapping[str, str]) -> pa.Table:
    """Return every data file of the table at ``table_location`` as a row of ``SLICES_SCHEMA``.

    ``excluded`` has the reason by partition for the partitions that are left alone.
    """
    partitions: list[str] = []
    paths: list[str] = []
    sizes: list[int] = []
    times: list[int] = []
    reasons: list[str | None] = []
    below = f"{table_location}/"
    for listing in listings:
        reason = excluded.get(listing.partition.name) or nested_directory_reason(listing)
        for file in listing.files:
            partitions.append(listing.partition.name)
            paths.append(file.path.removeprefix(below))
            sizes.append(file.bytes)
            times.append(file.modified_ns // 1000)
            reasons.append(reason or _file_reason(file))
    count = len(paths)
    columns = {
        "partition": pa.array(partitions, pa.string()),
        "file_id": pa.array(paths, pa.string()),
        "path": pa.array(paths, pa.string()),
        "bytes": pa.array(sizes, pa.int64()),
        "log_files": pa.array([[]] * count, pa.list_(pa.string())),
        "log_bytes": pa.array([0] * count, pa.int64()),
        "modified_at": pa.array(times, pa.timestamp("us", tz="UTC")),
        "written_order": pa.array(times, pa.int64()),
        "busy_reason": pa.array(reasons, pa.string()),
    }
    return pa.table(
        [
            columns[one.name].cast(one.type) if one.name in columns else pa.nulls(count, one.type)
            for one in SLICES_SCHEMA
        ],
        schema=SLICES_SCHEMA,
    )


def _file_reason(file: ListedFile) -> str | None:
    """Return why a file is not planned. None if it may be."""
    if file.path.endswith(_COPYING):
        return f"its name ends with {_COPYING}: Hive reads it and Spark does not; rename or remove it"
    return None if file.bytes else "empty: readers skip a file without a byte"


def _list_partition(partition: CatalogPartition) -> PartitionListing:
    files: list[ListedFile] = []
    directories: list[str] = []
    storage = file_io_of(partition.location)
    try:
        for entry in storage.list(partition.location):
            if is_hidden(entry.name):
                continue
            if entry.is_directory:
                directories.append(entry.name)
                continue
            files.append(ListedFile(entry.path, entry.bytes, entry.modified_ns))
    except FileNotFoundError:
        if storage.exists(partition.location):
            raise Transient(f"{partition.location} changed while it was listed") from None
        return PartitionListing(partition=partition)  # for readers, the partition is empty
    except PermissionError as error:
        raise Rejected(
            f"{partition.location} can't be listed: {error.strerror}; let lakefold's user read it"
        ) from error
    except OSError as error:
        raise Transient(f"{partition.location} can't be listed: {error.strerror}") from error
    files.sort(key=lambda file: file.path)
    return PartitionListing(partition=partition, files=tuple(files), directories=tuple(sorted(directories)))
