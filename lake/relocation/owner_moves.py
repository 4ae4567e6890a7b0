# SPDX-License-Identifier: Apache-2.0
"""Finds, from the relocations of a partition, the locations from which its owner has moved it away.

A renamed partition has relocations under several names. The names alone don't show which relocations are those of one
partition, because another partition may have had a name meanwhile. So ``RenamedHistory`` follows the locations.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from lake.plan import Relocation
from lake.storage.locations import DATA_DIRS


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerMoves:
    """The moves of a partition by its owner.

    ``location`` is the last location that is in no version, so the table's owner had set it; None if there is none.
    ``moved_before`` maps the index of a relocation to the index of the first later one before which the owner had moved
    the partition. It has the relocations that were made while the owner's directory of the partition was not
    ``location``. ``moves`` are all relocations before which the owner had moved the partition, by index.
    """

    location: str | None
    moved_before: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    moves: tuple[int, ...] = ()


def find_owner_moves(relocations: Sequence[tuple[str, str]]) -> OwnerMoves:
    """Return the moves of a partition by its owner, from previous and new location of each relocation, oldest first.

    lakefold itself moves a partition to a version, or back to a location that the partition had before. So the owner
    has moved a partition if it leaves a location in no version that differs from the last such location. A relocation
    from one version to another may be missing: it shows no move by the owner. The directory of a version belongs to
    the owner's directory of its time, since a writer would have used the owner's directory without lakefold.
    """
    owner, owners, moves = None, list[str | None](), list[int]()
    for index, (previous_location, location) in enumerate(relocations):
        if not is_in_version(previous_location):
            if owner not in (None, previous_location):
                moves.append(index)
            owner = previous_location
        owners.append(owner)
        if not is_in_version(location):
            owner = location
    moved_before = {
        index: next(move for move in moves if move > index)
        for index, then in enumerate(owners)
        if then not in (None, owner) and moves and moves[-1] > index
    }
    return OwnerMoves(location=owner, moved_before=moved_before, moves=tuple(moves))


class RenamedHistory:
    """The relocations of a table's partitions under all names that lakefold has relocated them under.

    ``relocations`` are those of the table, from the oldest to the newest.
    """

    def __init__(self, relocations: Sequence[Relocation]) -> None:
        self._relocations = relocations
        self._by_name = defaultdict[tuple[str, int | None], list[int]](list)
        self._by_location = defaultdict[tuple[str, int | None], list[int]](list)
        self._of_name = defaultdict[str, list[int]](list)
        for index, move in enumerate(relocations):
            self._by_name[move.partition, move.partition_created_at].append(index)
            self._by_location[move.location, move.partition_created_at].append(index)
            self._of_name[move.partition].append(index)

    def of_partition(self, partition: str) -> Sequence[Relocation]:
        """Return the relocations under the name ``partition``, and those between them under other names."""
        found, own = list[Relocation](), self._of_name[partition]
        for before, after in zip([None, *own], own, strict=False):
            found += () if before is None else self._between(before, after)
            found.append(self._relocations[after])
        return found

    def _between(self, before: int, after: int) -> Sequence[Relocation]:
        """Return the relocations under other names that led from relocation ``before`` to ``after``, by index."""
        first, found = self._relocations[before], list[Relocation]()
        if first.location == self._relocations[after].previous_location:
            return ()
        at = self._predecessor(after)
        while at is not None and at > before and self._relocations[at].partition != first.partition:
            found.append(self._relocations[at])
            at = self._predecessor(at)
        return found[::-1] if at == before else ()

    def _predecessor(self, index: int) -> int | None:
        """Return the preceding relocation of the same partition, by index; None if there is none.

        It led to the location that this one left. If none did, the owner had moved the partition, or the record was
        pruned: then it is the preceding one under the name that the left version or, in no version, this one has.
        """
        move = self._relocations[index]
        name = partition_of_version_directory(move.previous_location) or move.partition
        created_at = move.partition_created_at
        for indexes in (self._by_location[move.previous_location, created_at], self._by_name[name, created_at]):
            if (count := bisect_left(indexes, index)) > 0:
                return indexes[count - 1]
        return None


def is_in_version(location: str) -> bool:
    """True if a location is in a version, to which only lakefold moves partitions."""
    return location.partition("/")[0] in DATA_DIRS


def partition_of_version_directory(location: str) -> str | None:
    """Return the name that a partition had when lakefold moved it to ``location``; None for a location in no version.

    The path of a version's directory ends with the name of the partition.
    """
    return location.split("/", 2)[2] if is_in_version(location) and location.count("/") > 1 else None
