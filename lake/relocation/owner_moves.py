# SPDX-License-Identifier: Apache-2.0
"""Finds, from the relocations of a partition, the locations from which its owner has moved it away."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

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


def is_in_version(location: str) -> bool:
    """True if a location is in a version, to which only lakefold moves partitions."""
    return location.partition("/")[0] in DATA_DIRS


def partition_of_version_directory(location: str) -> str | None:
    """Return the name that a partition had when lakefold moved it to ``location``; None for a location in no version.

    The path of a version's directory ends with the name of the partition.
    """
    return location.split("/", 2)[2] if is_in_version(location) and location.count("/") > 1 else None
