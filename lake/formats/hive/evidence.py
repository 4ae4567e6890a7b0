# SPDX-License-Identifier: Apache-2.0
"""What a plan saw of its partitions, to be compared with what is there right before its commit."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from lake.engines import Choice, Task
from lake.errors import Conflict
from lake.formats.hive.catalog import Place, identity_of, places_of, table_of, without_counts
from lake.formats.hive.refusals import left_alone
from lake.formats.hive.slices import Listing, list_places
from lake.locations import path_in
from lake.metastore import Metastore, Table
from lake.model import TableRef, words_of
from lake.optional import made_anew
from lake.plan import LeftOut, Plan


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
        if without_counts(before.parameters) != without_counts(after.parameters):
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


def look(metastore: Metastore, ref: TableRef, partitions: Collection[str]) -> tuple[Table, Mapping[str, Seen]]:
    """The table and those of the named partitions that there are, as they are now. Raises TableGone."""
    table = table_of(metastore, ref)
    # Whether a directory is one partition's alone, only all partitions together tell.
    alone = left_alone(table, list(places_of(metastore, table)))
    wanted = list(places_of(metastore, table, partitions))
    return table, {
        listing.place.name: Seen(
            place=listing.place, files=identities(listing), left_alone=alone.get(listing.place.name)
        )
        for listing in list_places(ref.name, wanted)
    }


def check_identity(ref: TableRef, table: Table) -> None:
    """Raise Conflict where ``table`` is another one than ``ref`` was: made anew under its name."""
    another = made_anew(replace(ref, identity=identity_of(table)), ref.identity)
    if another is not None:
        raise Conflict(another)


def still_there(plan: Plan, seen: Mapping[str, Seen]) -> tuple[tuple[int, ...], tuple[LeftOut, ...]]:
    """The groups of ``plan`` whose partitions are as they were planned, and the others with the reason.

    A file that changed leaves out all groups of its partition: what changed it may go on doing so.
    """
    stale: dict[str, str] = {}
    for group in plan.groups:
        now = seen.get(group.partition)
        if now is None:
            stale[group.partition] = f"{words_of(group.partition)} is not in the metastore any more"
        elif now.left_alone is not None:
            stale[group.partition] = f"{words_of(group.partition)} is left alone: {now.left_alone}"
        else:
            sizes = {path_in(plan.table.location, path): size for path, (size, _) in now.files.items()}
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


def identities(listing: Listing) -> dict[str, tuple[int, int]]:
    """The bytes of each file and when it was written, by its path."""
    return {file.path: (file.bytes, file.modified_ns) for file in listing.files}
