# SPDX-License-Identifier: Apache-2.0
"""Finds replaced files that must stay, because a partition is still, or again, read from their directory."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from posixpath import dirname

from lake.formats.hive.catalog.tables import CatalogPartition
from lake.model import TableRef, partition_label
from lake.plan import SupersededVersion
from lake.relocation.capabilities import returned_reason
from lake.storage.locations import DATA_DIRS, resolve_path


def parent_directories(ref: TableRef, versions: Sequence[SupersededVersion]) -> Collection[str]:
    """Return the directories of these files."""
    return {dirname(resolve_path(ref.location, version.path)) for version in versions}


def files_in_use(
    ref: TableRef, versions: Sequence[SupersededVersion], partitions: Sequence[CatalogPartition]
) -> dict[str, str]:
    """Return the files from whose directory a partition may be read, by path, each with the reason why it stays."""
    locations, reasons, found = _PartitionLocations(partitions), {}, {}
    for directory in parent_directories(ref, versions):
        if (reason := locations.find_reader(directory)) is not None:
            reasons[directory] = reason
    for version in versions:
        reason = reasons.get(dirname(resolve_path(ref.location, version.path)))
        if reason is not None:
            found[version.path] = f"{version.path}: {reason}"
    return found


def partitions_with_other_readers(
    ref: TableRef, directories: Mapping[str, str], partitions: Sequence[CatalogPartition]
) -> dict[str, str]:
    """Return the partitions from whose directory another partition of the table may be read.

    The values describe the other partition. ``directories`` has a directory of each partition to check, by name.
    """
    locations, found = _PartitionLocations(partitions), {}
    for name, directory in directories.items():
        if (reason := locations.find_reader(directory, except_partition=name)) is not None:
            found[name] = reason
    return found


def find_restored(
    ref: TableRef, versions: Sequence[SupersededVersion], partitions: Sequence[CatalogPartition]
) -> Mapping[int, str]:
    """Return the indexes of the files whose partition is at their location again, each with a text that says so."""
    locations = {partition.name: partition.location for partition in partitions}
    return {
        index: returned_reason(version.partition, locations[version.partition])
        for index, version in enumerate(versions)
        if dirname(resolve_path(ref.location, version.path)) == locations.get(version.partition)
    }


class _PartitionLocations:
    """The locations of a table's partitions, to be searched for readers of a directory."""

    def __init__(self, partitions: Sequence[CatalogPartition]) -> None:
        self._names: dict[str, list[str]] = defaultdict(list)
        for partition in partitions:
            self._names[partition.location].append(partition.name)
        self._sorted = sorted(self._names)

    def find_reader(self, directory: str, *, except_partition: str | None = None) -> str | None:
        """Return a description of a partition that may be read from ``directory``. None if there is no such one."""
        for location in self._overlapping_locations(directory):
            if not _is_skipped_by_readers(directory, location):
                for name in self._names[location]:
                    if name != except_partition:
                        return f"{partition_label(name)} is read from {location}"
        return None

    def _overlapping_locations(self, directory: str) -> Iterator[str]:
        ancestor = directory
        while ancestor.strip("/"):
            if ancestor in self._names:
                yield ancestor
            ancestor = dirname(ancestor)
        for index in range(bisect_left(self._sorted, f"{directory}/"), len(self._sorted)):
            if not self._sorted[index].startswith(f"{directory}/"):
                return
            yield self._sorted[index]


def _is_skipped_by_readers(directory: str, location: str) -> bool:
    """True if one of two directories is in the other, and readers of the outer one skip the inner one.

    Readers skip lakefold's own directories. Such a directory is inside of a readable one in two cases: a table without
    partitions is read from its own directory, which contains its versions; and replaced files of a partition outside of
    its table were moved aside below the partition's directory.
    """
    outer, inner = sorted((f"{directory}/", f"{location}/"), key=len)
    return inner.startswith(outer) and not set(DATA_DIRS).isdisjoint(inner.removeprefix(outer).split("/"))
