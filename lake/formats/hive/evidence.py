# SPDX-License-Identifier: Apache-2.0
"""What a plan saw of its partitions, to be compared with what is there right before its commit."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from lake.engines import Choice, Task
from lake.formats.hive.catalog import Place, places_of, table_of
from lake.formats.hive.refusals import left_alone
from lake.formats.hive.slices import Listing, list_places
from lake.locations import canonical_location
from lake.metastore import Metastore, Partition, Table
from lake.model import TableRef
from lake.plan import LeftOut, Plan

#: properties that say how much is in a partition: whoever writes or analyses it changes them
_COUNTS = frozenset(
    {"COLUMN_STATS_ACCURATE", "numFiles", "numRows", "rawDataSize", "totalSize", "transient_lastDdlTime"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A partition as it was: where and how it is stored, since when, under which properties, with which files."""

    place: Place
    files: Mapping[str, tuple[int, int]]
    #: why its files are to be left alone; None where they are not
    left_alone: str | None = None

    def difference(self, now: "Seen | None") -> str | None:
        """What has changed since, in words; None where nothing has, or files were only added."""
        if now is None:
            return "it is not in the metastore any more"
        if now.left_alone != self.left_alone:
            return now.left_alone or "it is not left alone any more"
        before, after = self.place, now.place
        if before.made_at != after.made_at:
            return "it was made anew"
        if before.location != after.location:
            return f"it was moved to {after.location}"
        if before.storage.raw != after.storage.raw:
            return "its columns or its format changed"
        if _without_counts(before.parameters) != _without_counts(after.parameters):
            return "its properties changed"
        if gone := self.files.keys() - now.files.keys():
            return f"{min(gone)} is gone"
        changed = [path for path, identity in self.files.items() if now.files[path] != identity]
        return f"{min(changed)} is another file now" if changed else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a plan was prepared on: its partitions as they were, and what rewrites each of its groups."""

    seen: Mapping[str, Seen]
    tasks: Sequence[Task]
    choices: Mapping[int, Choice]


def undone(made: Sequence[Partition], now: Mapping[tuple[str, ...], Partition]) -> str | None:
    """How a partition, by its values, differs from what a call has just made of it; None where none does."""
    for one in made:
        name, found = "/".join(one.values), now.get(one.values)
        if found is None:
            return f"partition {name} is not in the metastore"
        if canonical_location(found.storage.location) != canonical_location(one.storage.location):
            return f"partition {name} is at {found.storage.location}"
        if found.storage.moved("") != one.storage.moved("") or found.made_at != one.made_at:
            return f"the columns or the format of partition {name} are others"
        if _without_counts(found.parameters) != _without_counts(one.parameters):
            return f"the properties of partition {name} are others"
    return None


def look(metastore: Metastore, ref: TableRef, partitions: Collection[str]) -> tuple[Table, Mapping[str, Seen]]:
    """The table and those of the named partitions that there are, as they are now. Raises TableGone."""
    table = table_of(metastore, ref)
    # Whether a directory is one partition's alone, only all partitions together tell.
    alone = left_alone(table, list(places_of(metastore, table)))
    wanted = list(places_of(metastore, table, partitions))
    return table, {
        listing.place.name: Seen(
            place=listing.place, files=_identities(listing), left_alone=alone.get(listing.place.name)
        )
        for listing in list_places(ref.name, wanted)
    }


def still_there(plan: Plan, seen: Mapping[str, Seen]) -> tuple[tuple[int, ...], tuple[LeftOut, ...]]:
    """The groups of ``plan`` whose partitions are as they were planned, and the others with the reason.

    A file that changed leaves out all groups of its partition: what changed it may go on doing so.
    """
    stale: dict[str, str] = {}
    for group in plan.groups:
        now = seen.get(group.partition)
        if now is None:
            stale[group.partition] = f"partition {group.partition} is not in the metastore any more"
        elif now.left_alone is not None:
            stale[group.partition] = f"partition {group.partition} is left alone: {now.left_alone}"
        else:
            sizes = {_relative(path, plan.table): size for path, (size, _) in now.files.items()}
            for item in group.slices:
                if sizes.get(str(item.path)) != item.bytes:
                    stale.setdefault(group.partition, f"{item.path} changed since the plan was made")
    left_out = tuple(
        LeftOut(group=index, reason=stale[group.partition])
        for index, group in enumerate(plan.groups)
        if group.partition in stale
    )
    left = {one.group for one in left_out}
    return tuple(index for index in range(len(plan.groups)) if index not in left), left_out


def _identities(listing: Listing) -> dict[str, tuple[int, int]]:
    return {file.path: (file.bytes, file.modified_ns) for file in listing.files}


def _relative(path: str, ref: TableRef) -> str:
    return path.removeprefix(f"{ref.location}/")


def _without_counts(parameters: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in parameters.items()
        if name not in _COUNTS and not name.startswith("spark.sql.statistics.")
    }
