# SPDX-License-Identifier: Apache-2.0
"""The part of the database that a format with relocations needs, as a protocol beside ``lake.plan_store``."""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from datetime import timedelta
from typing import Protocol, Self, cast

from lake.model import TableRef
from lake.plan import Claim, Commit, LocatedFile, LockOwner, PartitionFigures, Plan, Relocation
from lake.plan_store import PlanStore
from lake.relocation.model import (
    DiscoveryResult,
    FoundRelocations,
    LateCopy,
    ModifiedFile,
    NamedRelocation,
    PastRelocation,
    PlanElsewhere,
    PreviousLocation,
    RelocatedPartition,
    RelocationHistory,
    VacatedLocation,
)


class RelocationStore(PlanStore, Protocol):
    """The records of relocated partitions. Times are by the database's clock."""

    def begin_commit(self, claim: Claim) -> Collection[str]:
        """Reserve the plan's partitions for its commit. Returns the locked ones; if there are any, it reserves none.

        Raises LeaseLost.
        """

    def halted_partitions(self, table: TableRef) -> Mapping[str, str]:
        """Return the table's partitions that are halted by themselves, each with the reason. Cheap."""

    def add_relocations(self, table: TableRef, commit: Commit) -> bool:
        """Record the relocations of a second commit of a completed plan. Returns False if nothing is recorded."""

    def known_relocation_tokens(self, table: TableRef) -> Collection[str]:
        """Return the tokens of all relocations of the table that are recorded as applied under its name."""

    def add_discovered_relocations(
        self,
        table: TableRef,
        found: Sequence[FoundRelocations],
        figures: Callable[[Plan, Commit], Sequence[PartitionFigures]],
    ) -> DiscoveryResult:
        """Record relocations of the table that are not known under its name, oldest first.

        Records under another name of the table are transferred. The run of an inflight plan records its own
        relocations. Three kinds of plans are completed with the ``figures`` of their commits: requested plans, plans
        that ended before the attempt that made the commit, and inflight plans under another name whose executor is
        silent.
        """

    def relocated_partitions(
        self, table: TableRef, partitions: Collection[str] | None = None
    ) -> Sequence[RelocatedPartition]:
        """Return the table's relocated partitions: all, or those with the given names."""

    def under_partition_lock(self, table: TableRef, partition: str, owner: LockOwner) -> Self:
        """Return this store for one sweep: each write below also renews the partition's lock, in one transaction.

        The writes raise LeaseLost if ``owner`` has lost the lock, even for a moment: otherwise a sweep could undo the
        writes of a later sweep.
        """

    def unfinished_partitions(self, table: TableRef) -> Collection[str]:
        """Return relocated partitions with an unfinished relocation or late copy, or with a decision to wait."""

    def next_relocated_partitions(self, table: TableRef, partition: str, count: int) -> Sequence[str]:
        """Return the next relocated partitions after ``partition`` by name, sorted; fewer than ``count`` at the end."""

    def outside_locations(
        self, table: TableRef, partitions: Collection[str] | None = None
    ) -> Mapping[str, Collection[str]]:
        """Return the previous locations outside of the table's directory, by partition: all, or of ``partitions``."""

    def recently_vacated(self, table: TableRef, within: timedelta, limit: int) -> Sequence[VacatedLocation]:
        """Return at most ``limit`` previous locations of relocations begun less than ``within`` ago, newest first."""

    def recently_relocated(self, table: TableRef, vacated: Sequence[VacatedLocation]) -> Sequence[RelocatedPartition]:
        """Return the partitions of these relocations, only with the locations in ``vacated``.

        Left out are older previous locations, finished late copies, and partitions that none of these relocations
        concerns.
        """

    def add_recreated_locations(self, table: TableRef, partition: str, locations: Collection[str]) -> int:
        """Add locations that writers recreated after they were pruned, to be swept. Returns how many were not known.

        Returns 0 for a partition that was never relocated.
        """

    def relocation_histories(
        self, table: TableRef, age: timedelta, after: str, limit: int
    ) -> tuple[Sequence[RelocationHistory], str]:
        """Return the relocations of often relocated partitions after ``after`` by name, and the next call's ``after``.

        Partitions with a discarded relocation are among them. The next call's ``after`` is '' at the end. A relocation
        is cleaned up if it was made longer than ``age`` ago and all files that it and its predecessors replaced were
        deleted before then. At most ``limit`` partitions are read. A partition with an unfinished relocation is left
        out, as is one with known relocations of another table.
        """

    def tokens_used_elsewhere(self, table: TableRef, relocations: Sequence[PastRelocation]) -> Collection[str]:
        """Return the tokens of these relocations that relocations of other partitions of the table have as well."""

    def prune_relocations(self, table: TableRef, relocation_ids: Collection[int]) -> int:
        """Delete the relocations with these ids, and the records that the locations which they left are released.

        Returns the number of relocations. The latest relocation of a partition stays.
        """

    def begin_late_copies(
        self,
        table: TableRef,
        partition: str,
        targets: Sequence[tuple[LocatedFile, str]],
        arrived_ms: Mapping[LocatedFile, int],
        former_names: Collection[str] = (),
    ) -> None:
        """Record late copies before they are made: each source with its target. A finished pair stays finished.

        ``arrived_ms`` has the arrival times of the sources; the first record of a source stays. Raises Integrity if a
        source is recorded under one of ``former_names``, the other names of this partition.
        """

    def end_late_copies(self, table: TableRef, copies: Sequence[tuple[LateCopy, PreviousLocation | None]]) -> None:
        """Record late copies as done; a source with a previous location is recorded as replaced there.

        A source without a previous location needs no copy.
        """

    def discard_late_copies(self, table: TableRef, copies: Sequence[LateCopy]) -> None:
        """Delete the records of unfinished late copies whose sources and targets do not exist.

        A source that a suspended sweep publishes later is then a late file like any other.
        """

    def begin_relocation(
        self, table: TableRef, relocation: Relocation, plan_id: str, previous_files: Sequence[LocatedFile]
    ) -> None:
        """Record a relocation and its previous files before the catalog is called."""

    def end_relocation(self, table: TableRef, relocation: Relocation) -> None:
        """Record that a relocation was made; its previous files await their deletion under its plan."""

    def discard_relocations(self, table: TableRef, relocations: Sequence[Relocation]) -> None:
        """Record that relocations were begun and not made.

        If the catalog still executes the call of one of them, a sweep sets the location of the latest relocation again.
        """

    def record_modified_files(
        self, table: TableRef, latest: Relocation, files: Sequence[tuple[ModifiedFile, PreviousLocation, LocatedFile]]
    ) -> None:
        """Record files that grew under their names: the old file, its previous location, and its present copy."""

    def supersede_files(
        self, table: TableRef, partition: str, previous: PreviousLocation, files: Sequence[LocatedFile]
    ) -> None:
        """Record that files of a previous location await their deletion: a later overwrite has removed their rows."""

    def record_removed_files(self, table: TableRef, previous: PreviousLocation, files: Sequence[LocatedFile]) -> None:
        """Record that a writer has removed these files of a previous location: they are not expected there now."""

    def release_locations(self, table: TableRef, partition: str, locations: Sequence[PreviousLocation]) -> None:
        """Record that all late files in these locations are not the partition's: its owner had moved it away."""

    def record_archived_files(self, table: TableRef, partition: str, paths: Mapping[LocatedFile, str]) -> None:
        """Record the new paths of files that await their deletion, and add an audit record about it."""

    def partitions_of_relocations(self, table: TableRef, relocations: Collection[NamedRelocation]) -> Set[str]:
        """Return the partitions that have these relocations on record, with the same creation times."""

    def partitions_that_left(self, table: TableRef, locations: Collection[str]) -> Set[str]:
        """Return the partitions with a recorded relocation away from one of ``locations``."""

    def other_tables_that_left(
        self, table: TableRef, locations: Collection[str]
    ) -> Sequence[tuple[TableRef, Set[str]]]:
        """Return the partitions of other tables with a recorded relocation away from one of ``locations``.

        The other tables have the format of ``table``. Some may no longer exist.
        """

    def undecided_plans_elsewhere(self, table: TableRef, locations: Collection[str]) -> Sequence[PlanElsewhere]:
        """Return the plans of other tables with inputs in ``locations`` whose commit may not be recorded yet.

        The other tables have the format of ``table``. Some may no longer exist.
        """

    def quarantine_stalled_files(
        self, table: TableRef, files: Collection[LocatedFile], locations: Collection[str]
    ) -> None:
        """Quarantine files that their writers have not finished.

        Other files of ``locations`` that are quarantined for this reason are released.
        """

    def update_waiting(self, table: TableRef, relocated: RelocatedPartition, is_waiting: bool) -> timedelta:
        """Record whether the decision for the partition is to wait. Returns how long the decision has been to wait."""


def relocation_store(store: PlanStore) -> RelocationStore:
    """Return ``store`` with its records of relocations. Only for formats whose commits relocate partitions.

    An executor of other formats works on a store without these records.
    """
    return cast(RelocationStore, store)
