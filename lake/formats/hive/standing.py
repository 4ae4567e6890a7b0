# SPDX-License-Identifier: Apache-2.0
"""What is in the places that moved partitions have left, and in those where they are."""

from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor

from lake.errors import Transient
from lake.files import Entry, Files
from lake.filesystems import files_of
from lake.formats.hive.catalog import HOME, Place
from lake.formats.hive.commits import document_of, token_of
from lake.formats.hive.slices import is_hidden, placed
from lake.locations import file_at, path_in
from lake.model import TableRef
from lake.moved import Moved, PartitionSeen, PlaceSeen
from lake.places import WRITER_GRACE
from lake.plan import PlacedFile

_LISTINGS_AT_ONCE = 8
#: what a Parquet file ends with, encrypted or not
_PARQUET = (b"PAR1", b"PARE")
_ORC = b"ORC"


def standing(ref: TableRef, moved: Sequence[Moved], places: Sequence[Place], now: float) -> Mapping[str, PartitionSeen]:
    """What the metastore says of these partitions, and what is in their places at ``now``. Raises Transient."""
    by_name = {place.name: place for place in places}
    listed = sorted({(ref.location, place) for one in moved for place in one.places})
    recorded = frozenset(file for one in moved for file in one.files)
    with ThreadPoolExecutor(_LISTINGS_AT_ONCE) as pool:
        found = list(pool.map(lambda item: _seen(item[0], item[1], recorded, now), listed))
    seen = {place: there for (_, place), there in zip(listed, found, strict=True)}
    return {
        one.partition: PartitionSeen(
            place=None if (at := by_name.get(one.partition)) is None else path_in(ref.location, at.location),
            token=None if at is None else token_of(at.parameters),
            made_at=0 if at is None else at.made_at,
            places={place: seen[place] for place in one.places},
        )
        for one in moved
    }


def _seen(location: str, place: str, recorded: Set[PlacedFile], now: float) -> PlaceSeen:
    files: dict[PlacedFile, int] = {}
    unfinished = set()
    storage, directory, changed_ms, is_gone = files_of(location), file_at(location, place), None, False
    try:
        for entry in storage.list(directory):
            if is_hidden(entry.name):
                continue
            file = placed(location, entry.path, entry.bytes, entry.modified_ns)
            # A file that is renamed into a directory keeps the time at which it was written, but not this one.
            files[file] = max(file.modified_ms, entry.came_ns // 1_000_000)
            if file not in recorded and (entry.is_directory or _is_being_written(storage, entry, now)):
                unfinished.add(file.path)
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
        unfinished=frozenset(unfinished),
        changed_ms=changed_ms,
        is_gone=is_gone,
        is_uprooted=is_uprooted,
    )


def _is_uprooted(storage: Files, location: str, place: str) -> bool:
    try:
        return place.startswith(f"{HOME}/") and not storage.exists(file_at(location, document_of(place)))
    except OSError as error:
        raise Transient(f"what is beside {place} can't be looked at: {error.strerror}") from error


def _is_being_written(storage: Files, entry: Entry, now: float) -> bool:
    """Whether a young file has no end yet. An old one without is what its writer left, and readers see it so."""
    if now - entry.modified_ns / 1e9 > WRITER_GRACE.total_seconds():
        return False
    try:
        end = storage.end(entry.path, 4)
    except FileNotFoundError:
        return True
    return not (end in _PARQUET or end[:3] == _ORC)
