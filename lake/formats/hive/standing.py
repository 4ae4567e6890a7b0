# SPDX-License-Identifier: Apache-2.0
"""What is in the places that moved partitions have left, and in those where they are."""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from lake.errors import Transient
from lake.files import Files
from lake.filesystems import files_of
from lake.formats.hive.catalog import Place, is_in_home
from lake.formats.hive.commits import document_of, is_cleaned, token_of
from lake.formats.hive.slices import is_hidden, placed
from lake.formats.hive.unfinished import unready
from lake.locations import file_at, path_in
from lake.model import TableRef
from lake.moved import Moved, PartitionSeen, PlaceSeen, Unready
from lake.plan import PlacedFile

_LISTINGS_AT_ONCE = 8


Readers = Callable[[Collection[str]], Mapping[str, str]]
"""Those of some directories that other partitions or tables are read from, each with which one, in words."""


def standing(
    ref: TableRef, moved: Sequence[Moved], places: Sequence[Place], readers: Readers, now: float
) -> Mapping[str, PartitionSeen]:
    """What the metastore says of these partitions, and what is in their places at ``now``. Raises Transient.

    ``readers`` are asked for of dropped partitions with replaced files in their own directory, and only for these.
    """
    by_name = {place.name: place for place in places}
    current = {path_in(ref.location, place.location) for place in places}
    listed = sorted({(ref.location, place) for one in moved for place in one.places})
    recorded = frozenset(file for one in moved for file in one.files)
    with ThreadPoolExecutor(_LISTINGS_AT_ONCE) as pool:
        found = list(pool.map(lambda item: _seen(item[0], item[1], recorded, now, item[1] not in current), listed))
    seen = {place: there for (_, place), there in zip(listed, found, strict=True)}
    dropped = {one.home for one in moved if one.partition not in by_name}
    homes = {file_at(ref.location, place): place for place in dropped if seen[place].files.keys() & recorded}
    for directory, who in (readers(homes.keys()) if homes else {}).items():
        seen[homes[directory]] = replace(seen[homes[directory]], read_by=who)
    return {
        one.partition: PartitionSeen(
            place=None if (at := by_name.get(one.partition)) is None else path_in(ref.location, at.location),
            token=None if at is None else token_of(at.parameters),
            made_at=0 if at is None else at.made_at,
            places={**{place: seen[place] for place in one.places}, **_cleaned(ref, one, seen)},
        )
        for one in moved
    }


def _cleaned(ref: TableRef, one: Moved, seen: Mapping[str, PlaceSeen]) -> Mapping[str, PlaceSeen]:
    """Former places with files missing that lakefold has deleted, of which the database says nothing.

    It was set back to before that. Else what a late writer adds there would be all there is: an overwrite.
    """
    missing = [
        former
        for former in one.former
        if not former.cleaning and any(file not in seen[former.place].files for file in former.inputs)
    ]
    try:
        noted = [former for former in missing if is_cleaned(ref, former.token, one.partition)]
    except OSError as error:
        raise Transient(f"what was deleted of {ref.name} can't be read: {error.strerror}") from error
    return {former.place: replace(seen[former.place], is_cleaned=True) for former in noted}


def _seen(location: str, place: str, recorded: Set[PlacedFile], now: float, is_former: bool) -> PlaceSeen:
    files: dict[PlacedFile, int] = {}
    waits: dict[str, Unready] = {}
    storage, directory, changed_ms, is_gone = files_of(location), file_at(location, place), None, False
    try:
        for entry in storage.list(directory):
            if is_hidden(entry.name):
                continue
            file = placed(location, entry.path, entry.bytes, entry.modified_ns)
            # A file that is renamed into a directory keeps the time at which it was written, but not this one.
            files[file] = max(file.modified_ms, entry.came_ns // 1_000_000)
            if file not in recorded and (why := unready(storage, entry, now, is_former=is_former)) is not None:
                waits[file.path] = why
        if not storage.tells_arrivals:
            # After the listing: no file in it came later.
            changed_ms = storage.status(directory).modified_ns // 1_000_000
    except FileNotFoundError:
        # The directory is gone, or a file while it was looked at: then the next look tells.
        if files:
            raise Transient(f"{place} changed while it was listed") from None
        is_gone = True
    except OSError as error:
        raise Transient(f"{place} can't be listed: {error.strerror}") from error
    is_uprooted = not files.keys() & recorded and _is_uprooted(storage, location, place)
    return PlaceSeen(
        files=files,
        unready=waits,
        changed_ms=changed_ms,
        is_gone=is_gone,
        is_uprooted=is_uprooted,
    )


def _is_uprooted(storage: Files, location: str, place: str) -> bool:
    try:
        return is_in_home(place) and not storage.exists(file_at(location, document_of(place)))
    except OSError as error:
        raise Transient(f"what is beside {place} can't be looked at: {error.strerror}") from error
