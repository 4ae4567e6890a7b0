# SPDX-License-Identifier: Apache-2.0
"""Partitions that commits have moved: what is recorded of each, and what is there."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType

from lake.plan import Commit, LocatedFile, Relocation


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousLocation:
    """A place that a partition has left, last by the move ``token``; ``inputs`` are recorded files still to be there.

    ``released`` are recorded files that may be there or not, ``cleaning`` that lakefold has begun to delete some of
    them. ``plan_id`` is the plan under which what is there waits for its deletion. ``made_at`` is when the catalog made
    the partition that left it, in seconds.
    """

    location: str
    expected_files: tuple[LocatedFile, ...]
    possible_files: tuple[LocatedFile, ...] = ()
    is_cleaning_begun: bool = False
    token: str = ""
    plan_id: str = ""
    partition_created_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LateCopy:
    """A writer's file of a former place, to be copied to ``target``; ``done`` once the catalog counts it there.

    ``arrived_ms`` is when it had come under its name before lakefold gave it another one, which a file system may take
    for its arrival; None where that was not recorded.
    """

    row_id: int
    partition: str
    source: LocatedFile
    target: str
    is_done: bool = False
    arrived_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RelocatedPartition:
    """What the database knows of one partition that was moved: its last move, and the places left before.

    ``begun`` are later moves that may have been made or not: the catalog was about to be called. ``plan_id`` is the
    plan under which files of the last place wait for their deletion, should the partition leave it. ``unsettled``: the
    last answer was to wait.
    """

    latest: Relocation
    previous_locations: tuple[PreviousLocation, ...]
    late_copies: tuple[LateCopy, ...] = ()
    begun_relocations: tuple[Relocation, ...] = ()
    plan_id: str = ""
    is_waiting: bool = False
    #: the directory that was its own before lakefold first moved it
    original_location: str = ""
    #: how long ago it was last moved
    since_relocation: timedelta = timedelta()
    #: where it was before its last move, each with the token of the move that it named then
    earlier_locations: frozenset[tuple[str, str | None]] = frozenset()
    #: of the table that it was then, see ``TableRef``
    table_identity: str | None = None

    @property
    def partition(self) -> str:
        """The partition's name."""
        return self.latest.partition

    @property
    def locations(self) -> Collection[str]:
        """All directories that tell something about it."""
        formers = {former.location for former in self.previous_locations}
        return {
            self.latest.location,
            *formers,
            *(move.location for move in self.begun_relocations),
            *filter(None, (self.original_location,)),
        }

    @property
    def recorded_files(self) -> Iterator[LocatedFile]:
        """All files that are recorded, wherever they are."""
        yield from self.latest.files
        for former in self.previous_locations:
            yield from former.expected_files
            yield from former.possible_files
        yield from (carry.source for carry in self.late_copies)


@dataclass(frozen=True, slots=True, kw_only=True)
class VacatedLocation:
    """A place that a partition has left; ``number`` is that of the move in the database."""

    relocation_id: int
    partition: str
    location: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRelocation:
    """A move that was made, by its ``number`` in the database.

    ``is_cleaned_up``: it was made long ago, and all that it, and those before it, replaced was deleted long ago.
    ``is_by_plan``: a plan made it. Of others a table tells by the moves before and after that they were made.
    """

    relocation_id: int
    token: str
    previous_location: str
    location: str
    is_cleaned_up: bool
    is_by_plan: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RelocationHistory:
    """All moves of a partition, from the first to the last."""

    partition: str
    relocations: tuple[PastRelocation, ...]

    def prunable(self, missing_locations: Collection[str]) -> Sequence[PastRelocation]:
        """Those moves that nothing depends on any more, where the places ``gone`` are not there any more.

        The first one stays, since it tells which directory was the partition's own, and so do the last two. Another
        may go where what it left is gone with its version, or is the own directory that was left once more since.
        Of some that follow each other the last one stays: before it nothing is known but a place that is gone. One
        that no plan made stays with the moves before and after it, by which a table tells that it was made.
        """
        moves, home = self.relocations, self.relocations[0].previous_location
        last_left = {move.previous_location: index for index, move in enumerate(moves)}
        may_go = [
            move.is_cleaned_up
            and 0 < index < len(moves) - 2
            and (
                last_left[home] > index
                if move.previous_location == home
                else move.previous_location in missing_locations
            )
            for index, move in enumerate(moves)
        ]
        goes = {index for index in range(len(moves) - 1) if may_go[index] and may_go[index + 1]}
        # From the last to the first: one that stays for another may need those before it.
        for index in range(len(moves) - 1, 0, -1):
            if index not in goes and not moves[index].is_by_plan:
                goes.discard(index - 1)
                if moves[index].location != home:  # the first move tells that it was left
                    goes -= _indexes_until_plan(moves, index + 1)
        return [moves[index] for index in sorted(goes)]


def _indexes_until_plan(moves: Sequence[PastRelocation], start: int) -> set[int]:
    """The indexes from ``start`` to the first move that a plan made."""
    indexes = set()
    for index in range(start, len(moves)):
        indexes.add(index)
        if moves[index].is_by_plan or moves[index].location == moves[0].previous_location:
            break
    return indexes


class UnreadyReason(StrEnum):
    """Why a file is not taken for one of the partition's yet; it is looked at again."""

    DIRECTORY = "is a directory"
    WRITING = "is being written"
    RECENT = "was written a moment ago"
    STALLED = "has no end, and its writer has written nothing to it for an hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModifiedFile:
    """A file that a writer filled or wrote again under its name: ``old`` was recorded, ``new`` is there now.

    ``copy`` is the path at which readers read ``old`` where the partition is.
    """

    recorded: LocatedFile
    current: LocatedFile
    copy_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrecordedLateCopy:
    """A writer's file of a former place that was brought to ``target`` by a round that the database knows nothing of.

    ``token`` is the move that left the place.
    """

    partition: str
    source: LocatedFile
    target: str
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRelocations:
    """Moves that a table tells of and a database does not know, as what one commit did.

    ``deleted`` are the paths of replaced files that lakefold has deleted, or begun to. Of a move that no plan made, the
    commit has the token of the move as its instant and no epoch. ``is_known``: the database has the moves, and may not
    know what was ``carried``, since it was set back.
    """

    commit: Commit
    deleted_paths: frozenset[str] = frozenset()
    late_copies: tuple[UnrecordedLateCopy, ...] = ()
    is_recorded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationState:
    """What is in a directory: each file with the time, in milliseconds, at which it came under its name.

    ``unready`` says, by path, which of those that are not recorded are not to be taken yet, and why. Where a file
    system does not tell when a file came, it says when it was written, and ``directory_changed_ms`` when the directory last got
    or lost one: it came in between.
    ``is_gone``: there is no such directory. ``is_tree_removed``: what lakefold had put beside the directory is gone as
    well, by an overwrite of all that is above.
    """

    files: Mapping[LocatedFile, int] = field(default_factory=lambda: MappingProxyType({}))
    unready: Mapping[str, UnreadyReason] = field(default_factory=lambda: MappingProxyType({}))
    directory_changed_ms: int | None = None
    is_missing: bool = False
    is_tree_removed: bool = False
    #: the table says that lakefold has begun to delete there, of which a database that was set back knows nothing
    is_cleaning_begun: bool = False
    #: who reads it, in words, where another table or partition does; looked at where the partition was dropped
    read_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Where the catalog says that a partition is, by which move, and what is in it and in its former places.

    ``place`` is None where the catalog does not have the partition, ``token`` where it names no move.
    """

    location: str | None
    token: str | None
    locations: Mapping[str, LocationState]
    #: when the catalog says that it was made, in seconds
    created_at: int = 0

    @property
    def arrived_ms(self) -> Mapping[LocatedFile, int]:
        """When each file in its places came, in milliseconds."""
        return {file: came for there in self.locations.values() for file, came in there.files.items()}
