# SPDX-License-Identifier: Apache-2.0
"""Replaced files that a partition is still, or again, read from."""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from posixpath import dirname

from lake.formats.hive.catalog.tables import DATA_DIRS, CatalogPartition
from lake.model import TableRef, partition_label
from lake.plan import SupersededVersion
from lake.storage.locations import resolve_path


def parent_directories(ref: TableRef, versions: Sequence[SupersededVersion]) -> Collection[str]:
    """Return the directories of these files."""
    return {dirname(resolve_path(ref.location, version.path)) for version in versions}


def files_in_use(
    ref: TableRef, versions: Sequence[SupersededVersion], partitions: Sequence[CatalogPartition]
) -> dict[str, str]:
    """Return the files that a partition may be read from, by path, each with the reason why it must not be deleted."""
    reasons, found = directories_in_use(ref, parent_directories(ref, versions), partitions), {}
    for version in versions:
        reason = reasons.get(dirname(resolve_path(ref.location, version.path)))
        if reason is not None:
            found[version.path] = f"{version.path}: {reason}"
    return found


def directories_in_use(
    ref: TableRef, directories: Collection[str], partitions: Sequence[CatalogPartition]
) -> dict[str, str]:
    """Return the ``directories`` that a partition of the table may be read from, each with the partition."""
    names = {partition.location: partition.name for partition in partitions}
    sorted_locations = sorted(names)
    found = {}
    for directory in directories:
        around = _overlapping_locations(directory, names, sorted_locations)
        used = next((one for one in around if not _is_skipped_by_readers(ref, directory, one)), None)
        if used is not None:
            found[directory] = f"{partition_label(names[used])} is read from {used}"
    return found


def find_restored(
    ref: TableRef, versions: Sequence[SupersededVersion], partitions: Sequence[CatalogPartition]
) -> Mapping[int, str]:
    """Return the indexes of the files whose partition is at their location again, each with that reason."""
    locations = {partition.name: partition.location for partition in partitions}
    return {
        index: f"{partition_label(version.partition)} is at {locations[version.partition]} again"
        for index, version in enumerate(versions)
        if dirname(resolve_path(ref.location, version.path)) == locations.get(version.partition)
    }


def _is_skipped_by_readers(ref: TableRef, directory: str, location: str) -> bool:
    """True if readers of one of two directories skip the other, since only one of them is in the directory of versions.

    Only a table without partitions is read from its own directory, above the versions.
    """
    data_dirs = tuple(f"{ref.location}/{name}/" for name in DATA_DIRS)
    return ref.location in (directory, location) and directory.startswith(data_dirs) != location.startswith(data_dirs)


def _overlapping_locations(directory: str, names: Mapping[str, str], locations: Sequence[str]) -> Iterator[str]:
    over = directory
    while over.strip("/"):
        if over in names:
            yield over
        over = dirname(over)
    for index in range(bisect_left(locations, f"{directory}/"), len(locations)):
        if not locations[index].startswith(f"{directory}/"):
            return
        yield locations[index]
