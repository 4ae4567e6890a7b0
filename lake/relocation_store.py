# SPDX-License-Identifier: Apache-2.0
"""The part of the database that the sweep of former places uses, as a protocol beside ``lake.plan_store``."""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Protocol, Self

from lake.model import TableRef
from lake.plan import LocatedFile, LockOwner, Relocation
from lake.plan_store import PlanStore
from lake.relocation.model import (
    LateCopy,
    ModifiedFile,
    PastRelocation,
    PreviousLocation,
    RelocatedPartition,
    RelocationHistory,
    VacatedLocation,
)


class RelocationStore(PlanStore, Protocol):
    """What is known of partitions that were moved. Times are the database's."""

    def under_partition_lock(self, table: TableRef, partition: str, owner: LockOwner) -> Self:
        """The same store for a round of the sweep, whose writes below hold the partition on, in one transaction.

        They raise LeaseLost where ``keeper`` has not held it without a break: another round may have written by then
        what this one would undo.
        """

    def unfinished_partitions(self, table: TableRef) -> Collection[str]:
        """The moved partitions in which a move or a carry was begun and not ended, or that are waited for."""

    def next_relocated_partitions(self, table: TableRef, partition: str, count: int) -> Sequence[str]:
        """The names of the next moved partitions after one, sorted; fewer than ``count`` at the end."""

    def recently_vacated(self, table: TableRef, within: timedelta, limit: int) -> Sequence[VacatedLocation]:
        """The places that moves begun ``within`` that time have left or leave: the ``most`` last ones, newest first."""

    def recently_relocated(self, table: TableRef, vacated: Sequence[VacatedLocation]) -> Sequence[RelocatedPartition]:
        """The partitions of these moves, as far as they tell: what was left before is not in ``former``.

        Nor is what was carried and is done with. Of a partition that was moved by none of them there is nothing.
        """

    def add_recreated_locations(self, table: TableRef, partition: str, locations: Collection[str]) -> int:
        """Have places be looked at that writers have made again after they were forgotten; how many were not known.

        Of a partition that was never moved none are.
        """

    def relocation_histories(
        self, table: TableRef, age: timedelta, after: str, limit: int
    ) -> tuple[Sequence[RelocationHistory], str]:
        """The moves of the next partitions after one that were moved often, and the name to go on after, or ''.

        A move is over where it was made longer than ``age`` ago and all that it, and those before it, replaced was
        deleted before then.
        ``most`` partitions are looked at. One in which a move was begun and not ended is left out, as is one of which
        another table's moves are known.
        """

    def tokens_used_elsewhere(self, table: TableRef, relocations: Sequence[PastRelocation]) -> Collection[str]:
        """The tokens of these moves that other moves of the table have, too: those of other partitions."""

    def prune_relocations(self, table: TableRef, relocation_ids: Collection[int]) -> int:
        """Forget the moves of these numbers; how many there were. The last move of a partition stays."""

    def begin_late_copies(
        self,
        table: TableRef,
        partition: str,
        targets: Sequence[tuple[LocatedFile, str]],
        arrived_ms: Mapping[LocatedFile, int],
    ) -> None:
        """Record what is about to be copied, each source with its target; a source that has that target stays done.

        ``arrived_ms`` is when sources came; what was recorded of one first stays.
        """

    def end_late_copies(self, table: TableRef, copies: Sequence[tuple[LateCopy, PreviousLocation | None]]) -> None:
        """Record that these are done; each source waits for its deletion where it is of a former place that is given.

        A source without one is gone.
        """

    def begin_relocation(
        self, table: TableRef, relocation: Relocation, plan_id: str, previous_files: Sequence[LocatedFile]
    ) -> None:
        """Record a move, and the files that it leaves, before its catalog is called."""

    def end_relocation(self, table: TableRef, relocation: Relocation) -> None:
        """Record that a move was made; what it left waits for its deletion under its plan."""

    def discard_relocations(self, table: TableRef, relocations: Sequence[Relocation]) -> None:
        """Forget moves that were begun and not made."""

    def record_modified_files(
        self, table: TableRef, latest: Relocation, files: Sequence[tuple[ModifiedFile, PreviousLocation, LocatedFile]]
    ) -> None:
        """Record files that grew under their names: where each was, as what it waits for its deletion, and its copy."""

    def supersede_files(
        self, table: TableRef, partition: str, previous: PreviousLocation, files: Sequence[LocatedFile]
    ) -> None:
        """Have files of a former place wait for their deletion: a later overwrite has removed their rows."""

    def record_removed_files(self, table: TableRef, previous: PreviousLocation, files: Sequence[LocatedFile]) -> None:
        """End the wait of files of a former place that a writer has removed: nobody expects them there any more."""

    def record_archived_files(
        self, table: TableRef, partition: str, previous: PreviousLocation, paths: Mapping[LocatedFile, str]
    ) -> None:
        """Record that files which wait for their deletion are at other paths now, and tell of it."""

    def quarantine_stalled_files(
        self, table: TableRef, files: Collection[LocatedFile], locations: Collection[str]
    ) -> None:
        """Quarantine files that their writers have not finished, and no other file of these places for that reason."""

    def update_waiting(self, table: TableRef, relocated: RelocatedPartition, is_waiting: bool) -> timedelta:
        """Note whether what is there is to be waited for; for how long that has been so."""
