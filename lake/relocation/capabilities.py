# SPDX-License-Identifier: Apache-2.0
"""Optional capabilities of table formats whose commits relocate partitions; see ``lake.capabilities``."""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Protocol, runtime_checkable

from lake.model import TableRef, partition_label
from lake.plan import Commit, LocatedFile, Relocation, StagedWork
from lake.relocation.model import FoundRelocations, NamedRelocation, PartitionState, RelocatedPartition


@runtime_checkable
class RelocatesPartitions(Protocol):
    """The part of a ``TableFormat`` whose commits relocate partitions (``Commit.relocations``).

    A writer that began before a relocation writes to the previous location. So previous locations are checked for as
    long as they exist, and ``lake.relocation.decide.decide`` decides about the files found there.
    """

    def inspect_locations(
        self, table: TableRef, relocated: Sequence[RelocatedPartition]
    ) -> Mapping[str, PartitionState]:
        """Return for each partition, by name, its present location and the content of each of its ``locations``.

        The result shows which unrecorded files are still being written.
        """

    def other_readers(
        self, table: TableRef, locations: Mapping[str, str], *, max_age: timedelta | None = None
    ) -> Mapping[str, str]:
        """Return the partitions from whose location another partition or table is read, with a phrase that names it.

        ``locations`` has a location of each partition to check, by the partition's name. The partitions of the
        table are read at each call. Those of other tables were read at most ``max_age`` ago; without it, at most some
        minutes ago, depending on how long it takes to read them.
        """

    def named_relocations(self, table: TableRef, partitions: Collection[str]) -> Mapping[str, NamedRelocation]:
        """Return the last relocation that the catalog names for each of ``partitions``, if it names one.

        Raises as ``snapshot`` does.
        """

    def applied_commits(self, table: TableRef, staged: Collection[StagedWork]) -> Sequence[Commit]:
        """Return the commits of the ``staged`` attempts that were made, as far as this can be determined.

        A commit was made if a partition names it. A writer may have undone the commit since. Then writers' files at a
        location that only this commit can have given them show that it was made.
        """


class ChangeDetector(Protocol):
    """The state that one process keeps of a table between two checks for changes."""

    def find_changed_partitions(self) -> frozenset[str]:
        """Return the partitions that changed since the last call, in the catalog or in a directory.

        The result may also have partitions that did not change. The first calls only record the state. On large tables
        a call reads a part, and the next call continues. Raises as ``TableFormat.snapshot`` does.
        """

    def find_changed_locations(self, locations: Collection[str]) -> frozenset[str]:
        """Return the ``locations`` that changed since the last call, and those that are passed for the first time.

        The result may also have locations that did not change. The cost is that of listing the directories above the
        locations. If these directories are many or large, a call reads a part of them, and the next call continues. A
        directory that can't be listed shows no change.
        """

    @property
    def recreated_locations(self) -> Mapping[str, Collection[str]]:
        """By partition, the locations in which writers created files again after lakefold's files there were gone."""


@runtime_checkable
class PrunesRelocations(Protocol):
    """The part of a ``TableFormat`` whose tables record relocations themselves until these are pruned."""

    def missing_locations(self, table: TableRef, locations: Collection[str]) -> Collection[str]:
        """Return the ``locations`` that no longer exist, and beside which nothing of lakefold's is left.

        If a writer recreates a missing location, ``ChangeDetector.recreated_locations`` reports the location. Returns
        nothing if the storage of the table is not available. Raises Transient.
        """

    def prune_relocations(self, table: TableRef, tokens: Collection[str]) -> Collection[str]:
        """Remove these relocations from the table's record. Returns the tokens that are not in the record afterwards.

        A relocation is retained if a partition names it as its last one, or if the location that it left or the
        one that it led to may exist. Idempotent. Raises as ``TableFormat.snapshot`` does.
        """


@runtime_checkable
class DetectsChanges(Protocol):
    """The part of a ``TableFormat`` that detects a change of a partition more cheaply than by reading it."""

    def change_detector(self, table: TableRef) -> ChangeDetector:
        """Return a change detector without recorded state."""


@runtime_checkable
class RecordsRelocations(Protocol):
    """The part of a ``TableFormat`` whose tables record all relocations themselves, independent of any database.

    A table may have been renamed since, or the database may have been lost, or may belong to another lakefold.
    """

    def find_relocations(self, table: TableRef, known: Collection[str]) -> Sequence[FoundRelocations]:
        """Return the relocations made in this very table whose tokens are not among ``known``, oldest first.

        Relocations of an earlier table, dropped and recreated under this name or at this location, are left out. Raises
        as ``snapshot`` does.
        """


@runtime_checkable
class CopiesLateFiles(Protocol):
    """The part of a ``TableWriter`` whose commits relocate partitions.

    The writer calls ``fence`` right before each change, since another process may have locked the partition in the
    meantime.
    """

    def target_path(self, source: LocatedFile, location: str, nonce: str) -> str:
        """Return the path in ``location`` to which the sweep with this ``nonce`` copies ``source``.

        The path differs for each file and each sweep: another sweep may have been suspended, and may continue when
        readers already read this copy.
        """

    def create_location(self, location: str, like: str) -> None:
        """Create the directory of a location if it is missing, with the owner and permissions of location ``like``."""

    def copy_hidden(self, pairs: Sequence[tuple[LocatedFile, str]]) -> Collection[LocatedFile]:
        """Copy each file, whole, to a path that no reader reads. Returns the files that are gone or have changed."""

    def publish_copies(self, pairs: Sequence[tuple[LocatedFile, str]]) -> None:
        """Rename copies to their target names. Raises Conflict if a copy is gone."""

    def replace_copy(self, source: LocatedFile, copy_path: str, previous: LocatedFile) -> LocatedFile:
        """Replace the copy of ``previous`` at ``copy_path`` with a copy of ``source``. Idempotent.

        Returns the file that is then at ``copy_path``. A reader sees all of one copy or all of the other. Raises
        Conflict if another file is at either path.
        """

    def remove_copies(self, targets: Collection[str], published: Collection[str]) -> None:
        """Remove copies that readers must not see, ``published`` or not yet renamed. Idempotent.

        No removed copy gets its target name later. Raises Conflict if a copy that is not in ``published`` already has
        its target name.
        """

    def remove_hidden_copies(
        self, paths: Collection[str], recorded: Collection[LocatedFile], present: Collection[LocatedFile]
    ) -> None:
        """Remove copies that no reader reads and that no record has: a killed or suspended sweep made them. Idempotent.

        ``recorded`` are the recorded files of the partition, ``present`` those in its locations. Raises Integrity if a
        hidden file is neither of them and may be one that a writer has written.
        """

    def archive_files(self, files: Sequence[LocatedFile]) -> Mapping[LocatedFile, str]:
        """Move files to paths that no reader reads. Returns the path of each moved file, earlier moves included.

        A different file of the same name stays, or is put back at once.
        """

    def record_emptied(self, latest: Relocation, emptied_ms: int) -> None:
        """Record in the table that the location of ``latest`` was emptied at this time, before late files arrived."""

    def discard_relocation(self, relocation: Relocation) -> None:
        """Remove the table's own record of a relocation that was begun and is given up. Idempotent."""

    def update_catalog(
        self,
        latest: Relocation,
        relocation: Relocation | None = None,
        *,
        reverted_to: tuple[str, str | None] | None = None,
        name: str | None = None,
    ) -> None:
        """Set the catalog's counts of the partition to those of its files; with ``relocation``, relocate it as well.

        Makes a single call. Without ``relocation`` the location of ``latest`` is set if it was reverted. Raises
        Conflict if the partition is not as ``latest`` left it, CommitUnknown if the outcome can't be determined.
        ``reverted_to`` are the location and token in the catalog if a writer has written them back, ``name`` is the
        partition's present name if it was renamed.
        """


RETURNED = " again"
"""The end of ``returned_reason``; databases have it in the reasons of closed versions."""


def returned_reason(partition: str, location: str) -> str:
    """Return why a replaced file is part of the table again: its partition is back in the file's directory."""
    return f"{partition_label(partition)} is at {location}{RETURNED}"
