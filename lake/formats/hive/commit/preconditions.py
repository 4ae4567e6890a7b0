# SPDX-License-Identifier: Apache-2.0
"""The state of a plan's partitions when it was prepared, to be compared with their state right before its commit."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta

from lake.capabilities import recreated_reason
from lake.engine_choice import ChosenEngine
from lake.engines import RewriteTask
from lake.errors import Conflict, Integrity, Transient
from lake.formats.hive.catalog.refusals import excluded_partitions
from lake.formats.hive.catalog.tables import (
    CatalogPartition,
    list_partitions,
    load_table,
    table_identity,
    without_statistics,
)
from lake.formats.hive.directories.shared_directories import shared_partitions
from lake.formats.hive.files.incomplete import is_incomplete
from lake.formats.hive.files.listing import (
    ListedFile,
    PartitionListing,
    list_partition_files,
    nested_directory_reason,
)
from lake.metastore import TIMEOUT, MetastoreClient, MetastoreTable
from lake.model import TableRef, partition_label
from lake.plan import Plan, SkippedGroup
from lake.stopwatch import Stopwatch
from lake.storage.filesystems import file_io_of
from lake.storage.locations import relative_path

#: ends of files read at once from remote storage, since such a read is mostly waiting
_MAX_CONCURRENT_READS = 8

MAX_CHECK_AGE = timedelta(seconds=30)
"""The maximum time from the last check of partitions to the beginning of the call that changes them."""

MAX_CALL_AGE = MAX_CHECK_AGE + TIMEOUT
"""The maximum time from the last check of partitions to the end of the call that changes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSnapshot:
    """A partition at one time: its location, storage, creation time, properties and files.

    ``files`` has the bytes of each file and its modification time in nanoseconds, by path. ``incomplete`` are the paths
    of files that their writers have not finished; ``files`` does not contain these.
    """

    partition: CatalogPartition
    files: Mapping[str, tuple[int, int]]
    incomplete: frozenset[str] = frozenset()
    #: why its files must not be rewritten; None if they may be
    exclusion: str | None = None

    def difference(self, now: "PartitionSnapshot | None") -> str | None:
        """Return the change since this snapshot, in words. None if nothing has changed, or files were only added."""
        if now is None:
            return "it is no longer in the metastore"
        if now.exclusion != self.exclusion:
            return now.exclusion or "it is no longer excluded from rewrites"
        before, after = self.partition, now.partition
        if before.created_at != after.created_at:
            return "it was dropped and created again"
        if before.location != after.location:
            return f"it was moved to {after.location}"
        if before.storage.raw != after.storage.raw:
            return "its columns or its format changed"
        if without_statistics(before.parameters) != without_statistics(after.parameters):
            return "its properties changed"
        if gone := self.files.keys() - now.files.keys():
            return f"{min(gone)} is gone"
        changed = [path for path, identity in self.files.items() if now.files[path] != identity]
        return f"{min(changed)} is another file now" if changed else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedInputs:
    """The state on which a plan was prepared: its partitions, the rewrite tasks, and the engine of each group."""

    partitions: Mapping[str, PartitionSnapshot]
    tasks: Sequence[RewriteTask]
    choices: Mapping[int, ChosenEngine]


class CompleteFiles:
    """The files of one attempt's partitions that are known to be complete, so that each is checked only once."""

    def __init__(self) -> None:
        self._complete: set[ListedFile] = set()

    def incomplete_in(self, listings: Iterable[PartitionListing]) -> frozenset[str]:
        """Return the paths of the files that their writers have not finished. Raises Transient."""
        unknown = [file for listing in listings for file in listing.files if file not in self._complete]
        now = time.time()
        with ThreadPoolExecutor(_MAX_CONCURRENT_READS) as pool:
            flags = list(pool.map(lambda file: _is_incomplete(file, now), unknown))
        unfinished = {file for file, is_unfinished in zip(unknown, flags, strict=True) if is_unfinished}
        self._complete |= set(unknown) - unfinished
        return frozenset(file.path for file in unfinished)


def _is_incomplete(file: ListedFile, now: float) -> bool:
    try:
        return is_incomplete(file_io_of(file.path), file.path, file.modified_ns, now)
    except FileNotFoundError:
        return True
    except OSError as error:
        raise Transient(f"{file.path} can't be read: {error.strerror or error}") from error


def read_partitions(
    metastore: MetastoreClient, ref: TableRef, partitions: Collection[str], complete_files: CompleteFiles
) -> tuple[MetastoreTable, Mapping[str, PartitionSnapshot]]:
    """Return the table and the present state of those ``partitions`` that exist. Raises TableGone, Transient."""
    table = load_table(metastore, ref)
    # All partitions of all tables are needed to see whether a directory belongs to only one partition.
    found, names = list(list_partitions(metastore, table)), set(partitions)
    excluded = excluded_partitions(table, found)
    wanted = [partition for partition in found if partition.name in names]
    excluded = {**shared_partitions(metastore, table, wanted), **excluded}
    listings = list_partition_files(ref.name, wanted)
    unfinished = complete_files.incomplete_in(listings)
    seen = {}
    for listing in listings:
        files = file_identities(listing)
        seen[listing.partition.name] = PartitionSnapshot(
            partition=listing.partition,
            files={path: one for path, one in files.items() if path not in unfinished},
            incomplete=unfinished.intersection(files),
            exclusion=excluded.get(listing.partition.name) or nested_directory_reason(listing),
        )
    return table, seen


def check_identity(ref: TableRef, table: MetastoreTable) -> None:
    """Raise Conflict if ``table`` is not the table of ``ref``, but one that was created later under the same name."""
    another = recreated_reason(replace(ref, identity=table_identity(table)), ref.identity)
    if another is not None:
        raise Conflict(another)


def verify_call_in_time(ref: TableRef, since_check: Stopwatch) -> None:
    """Raise Integrity if a call ended so long after its check that a partition may have been changed in between.

    A process may be suspended between the check and the call for any time. If the owner changes a partition
    meanwhile, the call undoes the change, and nothing in the table shows it.
    """
    if since_check.elapsed_seconds > MAX_CALL_AGE.total_seconds():
        raise Integrity(
            f"lakefold's process was suspended, so its metastore call for {ref.name} ended "
            f"{since_check.elapsed_seconds:.0f} s after the last check of the partitions. If you changed a partition's "
            "location or properties meanwhile, the call has undone your change: repeat the change, then run "
            f"lakefold resume {ref.name}"
        )


def unchanged_groups(
    plan: Plan, partitions: Mapping[str, PartitionSnapshot]
) -> tuple[tuple[int, ...], tuple[SkippedGroup, ...]]:
    """Return the groups of ``plan`` whose partitions are as they were planned, and the other groups with the reason.

    If a file changed, all groups of its partition are skipped, since the program that changed the file may change
    others. If a writer has not finished a file, only the group of this file is skipped, and the file is quarantined
    until its size changes.
    """
    stale: dict[str, str] = {}
    begun: dict[int, tuple[str, ...]] = {}
    for index, group in enumerate(plan.groups):
        now = partitions.get(group.partition)
        if now is None:
            stale[group.partition] = f"{partition_label(group.partition)} is no longer in the metastore"
        elif now.exclusion is not None:
            stale[group.partition] = f"{partition_label(group.partition)} is left alone: {now.exclusion}"
        else:
            sizes = {relative_path(plan.table.location, path): size for path, (size, _) in now.files.items()}
            unfinished = {relative_path(plan.table.location, path) for path in now.incomplete}
            begun[index] = tuple(str(item.path) for item in group.slices if str(item.path) in unfinished)
            for item in group.slices:
                if item.path not in unfinished and sizes.get(str(item.path)) != item.bytes:
                    stale.setdefault(group.partition, f"{item.path} changed since the plan was made")
    left_out = tuple(
        SkippedGroup(group=index, reason=stale[group.partition])
        if group.partition in stale
        else SkippedGroup(group=index, reason=f"{begun[index][0]} is being written", quarantine=begun[index])
        for index, group in enumerate(plan.groups)
        if group.partition in stale or begun.get(index)
    )
    left = {one.group for one in left_out}
    return tuple(index for index in range(len(plan.groups)) if index not in left), left_out


def file_identities(listing: PartitionListing) -> dict[str, tuple[int, int]]:
    """Return the bytes and the modification time in nanoseconds of each file, by its path."""
    return {file.path: (file.bytes, file.modified_ns) for file in listing.files}
