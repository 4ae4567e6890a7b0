# SPDX-License-Identifier: Apache-2.0
"""Partitions that commits have moved: what is recorded of each, and what is there."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType

from lake.plan import Commit, Move, PlacedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """A place that a partition has left, last by the move ``token``; ``inputs`` are recorded files still to be there.

    ``released`` are recorded files that may be there or not, ``cleaning`` that lakefold has begun to delete some of
    them. ``plan_id`` is the plan under which what is there waits for its deletion. ``made_at`` is when the catalog made
    the partition that left it, in seconds.
    """

    place: str
    inputs: tuple[PlacedFile, ...]
    released: tuple[PlacedFile, ...] = ()
    cleaning: bool = False
    token: str = ""
    plan_id: str = ""
    made_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Carry:
    """A writer's file of a former place, to be copied to ``target``; ``done`` once the catalog counts it there.

    ``came_ms`` is when it had come under its name before lakefold gave it another one, which a file system may take
    for its arrival; None where that was not recorded.
    """

    row_id: int
    partition: str
    source: PlacedFile
    target: str
    done: bool = False
    came_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What the database knows of one partition that was moved: its last move, and the places left before.

    ``begun`` are later moves that may have been made or not: the catalog was about to be called. ``plan_id`` is the
    plan under which files of the last place wait for their deletion, should the partition leave it. ``unsettled``: the
    last answer was to wait.
    """

    last: Move
    former: tuple[Former, ...]
    carries: tuple[Carry, ...] = ()
    begun: tuple[Move, ...] = ()
    plan_id: str = ""
    unsettled: bool = False
    #: the directory that was its own before lakefold first moved it
    home: str = ""
    #: how long ago it was last moved
    age: timedelta = timedelta()
    #: where it was before its last move, each with the token of the move that it named then
    earlier: frozenset[tuple[str, str | None]] = frozenset()
    #: of the table that it was then, see ``TableRef``
    identity: str | None = None

    @property
    def partition(self) -> str:
        """The partition's name."""
        return self.last.partition

    @property
    def places(self) -> Collection[str]:
        """All directories that tell something about it."""
        formers = {former.place for former in self.former}
        return {self.last.place, *formers, *(move.place for move in self.begun), *filter(None, (self.home,))}

    @property
    def files(self) -> Iterator[PlacedFile]:
        """All files that are recorded, wherever they are."""
        yield from self.last.files
        for former in self.former:
            yield from former.inputs
            yield from former.released
        yield from (carry.source for carry in self.carries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A place that a partition has left; ``number`` is that of the move in the database."""

    number: int
    partition: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PastMove:
    """A move that was made, by its ``number`` in the database.

    ``is_over``: it was made long ago, and all that it, and those before it, replaced was deleted long ago.
    ``is_of_plan``: a plan made it. Of others a table tells by the moves before and after that they were made.
    """

    number: int
    token: str
    left: str
    place: str
    is_over: bool
    is_of_plan: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """All moves of a partition, from the first to the last."""

    partition: str
    moves: tuple[PastMove, ...]

    def forgettable(self, gone: Collection[str]) -> Sequence[PastMove]:
        """Those moves that nothing depends on any more, where the places ``gone`` are not there any more.

        The first one stays, since it tells which directory was the partition's own, and so do the last two. Another
        may go where what it left is gone with its version, or is the own directory that was left once more since.
        Of some that follow each other the last one stays: before it nothing is known but a place that is gone. One
        that no plan made stays with the moves before and after it, by which a table tells that it was made.
        """
        moves, home = self.moves, self.moves[0].left
        last_left = {move.left: index for index, move in enumerate(moves)}
        may_go = [
            move.is_over
            and 0 < index < len(moves) - 2
            and (last_left[home] > index if move.left == home else move.left in gone)
            for index, move in enumerate(moves)
        ]
        goes = {index for index in range(len(moves) - 1) if may_go[index] and may_go[index + 1]}
        # From the last to the first: one that stays for another may need those before it.
        for index in range(len(moves) - 1, 0, -1):
            if index not in goes and not moves[index].is_of_plan:
                goes.discard(index - 1)
                if moves[index].place != home:  # the first move tells that it was left
                    goes -= _until_of_plan(moves, index + 1)
        return [moves[index] for index in sorted(goes)]


def _until_of_plan(moves: Sequence[PastMove], start: int) -> set[int]:
    """The indexes from ``start`` to the first move that a plan made."""
    indexes = set()
    for index in range(start, len(moves)):
        indexes.add(index)
        if moves[index].is_of_plan or moves[index].place == moves[0].left:
            break
    return indexes


class Unready(StrEnum):
    """Why a file is not taken for one of the partition's yet; it is looked at again."""

    NESTED = "is a directory"
    WRITING = "is being written"
    SETTLING = "was written a moment ago"
    STALLED = "has no end, and its writer has written nothing to it for an hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrown:
    """A file that a writer filled or wrote again under its name: ``old`` was recorded, ``new`` is there now.

    ``copy`` is the path at which readers read ``old`` where the partition is.
    """

    old: PlacedFile
    new: PlacedFile
    copy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A writer's file of a former place that was brought to ``target`` by a round that the database knows nothing of.

    ``token`` is the move that left the place.
    """

    partition: str
    source: PlacedFile
    target: str
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMoves:
    """Moves that a table tells of and a database does not know, as what one commit did.

    ``deleted`` are the paths of replaced files that lakefold has deleted, or begun to. Of a move that no plan made, the
    commit has the token of the move as its instant and no epoch. ``is_known``: the database has the moves, and may not
    know what was ``carried``, since it was set back.
    """

    commit: Commit
    deleted: frozenset[str] = frozenset()
    carried: tuple[Carried, ...] = ()
    is_known: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceSeen:
    """What is in a directory: each file with the time, in milliseconds, at which it came under its name.

    ``unready`` says, by path, which of those that are not recorded are not to be taken yet, and why. Where a file
    system does not tell when a file came, it says when it was written, and ``changed_ms`` when the directory last got
    or lost one: it came in between.
    ``is_gone``: there is no such directory. ``is_uprooted``: what lakefold had put beside the directory is gone as
    well, by an overwrite of all that is above.
    """

    files: Mapping[PlacedFile, int] = field(default_factory=lambda: MappingProxyType({}))
    unready: Mapping[str, Unready] = field(default_factory=lambda: MappingProxyType({}))
    changed_ms: int | None = None
    is_gone: bool = False
    is_uprooted: bool = False
    #: the table says that lakefold has begun to delete there, of which a database that was set back knows nothing
    is_cleaned: bool = False
    #: who reads it, in words, where another table or partition does; looked at where the partition was dropped
    read_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSeen:
    """Where the catalog says that a partition is, by which move, and what is in it and in its former places.

    ``place`` is None where the catalog does not have the partition, ``token`` where it names no move.
    """

    place: str | None
    token: str | None
    places: Mapping[str, PlaceSeen]
    #: when the catalog says that it was made, in seconds
    made_at: int = 0

    @property
    def came_ms(self) -> Mapping[PlacedFile, int]:
        """When each file in its places came, in milliseconds."""
        return {file: came for there in self.places.values() for file, came in there.files.items()}
