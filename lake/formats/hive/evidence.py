# SPDX-License-Identifier: Apache-2.0
"""What a plan saw of its partitions, to be compared with what is there right before its commit."""

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from lake.engines import Choice, Task
from lake.errors import Conflict, Transient
from lake.filesystems import files_of
from lake.formats.hive.catalog import Place, identity_of, places_of, table_of, without_counts
from lake.formats.hive.neighbours import shared_places
from lake.formats.hive.refusals import left_alone
from lake.formats.hive.slices import File, Listing, list_places
from lake.formats.hive.unfinished import is_unfinished
from lake.locations import path_in
from lake.metastore import Metastore, Table
from lake.model import TableRef, words_of
from lake.optional import made_anew
from lake.plan import LeftOut, Plan

#: looking at the end of a file over a network is waiting for it
_ENDS_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A partition as it was: where and how it is stored, since when, under which properties, with which files.

    ``unfinished`` are the paths of those that their writers have not finished, which are not among its ``files``.
    """

    place: Place
    files: Mapping[str, tuple[int, int]]
    unfinished: frozenset[str] = frozenset()
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


class Finished:
    """The files of one attempt's partitions that are known to be whole, each looked at once."""

    def __init__(self) -> None:
        self._known: set[File] = set()

    def without(self, listing: Listing) -> frozenset[str]:
        """The paths of the files that their writers have not finished. Raises Transient."""
        unknown, now = [file for file in listing.files if file not in self._known], time.time()
        with ThreadPoolExecutor(_ENDS_AT_ONCE) as pool:
            are = list(pool.map(lambda file: _is_unfinished(file, now), unknown))
        unfinished = {file for file, is_so in zip(unknown, are, strict=True) if is_so}
        self._known |= set(unknown) - unfinished
        return frozenset(file.path for file in unfinished)


def _is_unfinished(file: File, now: float) -> bool:
    try:
        return is_unfinished(files_of(file.path), file.path, file.modified_ns, now)
    except FileNotFoundError:
        return True
    except OSError as error:
        raise Transient(f"{file.path} can't be read: {error.strerror or error}") from error


def look(
    metastore: Metastore, ref: TableRef, partitions: Collection[str], finished: Finished
) -> tuple[Table, Mapping[str, Seen]]:
    """The table and those of the named partitions that there are, as they are now. Raises TableGone, Transient."""
    table = table_of(metastore, ref)
    # Whether a directory is one partition's alone, only all partitions of all tables together tell.
    alone = left_alone(table, list(places_of(metastore, table)))
    wanted = list(places_of(metastore, table, partitions))
    alone = {**shared_places(metastore, table, wanted), **alone}
    seen = {}
    for listing in list_places(ref.name, wanted):
        unfinished = finished.without(listing)
        seen[listing.place.name] = Seen(
            place=listing.place,
            files={path: one for path, one in identities(listing).items() if path not in unfinished},
            unfinished=unfinished,
            left_alone=alone.get(listing.place.name),
        )
    return table, seen


def check_identity(ref: TableRef, table: Table) -> None:
    """Raise Conflict where ``table`` is another one than ``ref`` was: made anew under its name."""
    another = made_anew(replace(ref, identity=identity_of(table)), ref.identity)
    if another is not None:
        raise Conflict(another)


def still_there(plan: Plan, seen: Mapping[str, Seen]) -> tuple[tuple[int, ...], tuple[LeftOut, ...]]:
    """The groups of ``plan`` whose partitions are as they were planned, and the others with the reason.

    A file that changed leaves out all groups of its partition: what changed it may go on doing so. One that its writer
    has not finished is quarantined until it has another size, and leaves out its own group.
    """
    stale: dict[str, str] = {}
    begun: dict[int, tuple[str, ...]] = {}
    for index, group in enumerate(plan.groups):
        now = seen.get(group.partition)
        if now is None:
            stale[group.partition] = f"{words_of(group.partition)} is not in the metastore any more"
        elif now.left_alone is not None:
            stale[group.partition] = f"{words_of(group.partition)} is left alone: {now.left_alone}"
        else:
            sizes = {path_in(plan.table.location, path): size for path, (size, _) in now.files.items()}
            unfinished = {path_in(plan.table.location, path) for path in now.unfinished}
            begun[index] = tuple(str(item.path) for item in group.slices if str(item.path) in unfinished)
            for item in group.slices:
                if item.path not in unfinished and sizes.get(str(item.path)) != item.bytes:
                    stale.setdefault(group.partition, f"{item.path} changed since the plan was made")
    left_out = tuple(
        LeftOut(group=index, reason=stale[group.partition])
        if group.partition in stale
        else LeftOut(group=index, reason=f"{begun[index][0]} is being written", quarantine=begun[index])
        for index, group in enumerate(plan.groups)
        if group.partition in stale or begun.get(index)
    )
    left = {one.group for one in left_out}
    return tuple(index for index in range(len(plan.groups)) if index not in left), left_out


def identities(listing: Listing) -> dict[str, tuple[int, int]]:
    """The bytes of each file and when it was written, by its path."""
    return {file.path: (file.bytes, file.modified_ns) for file in listing.files}
