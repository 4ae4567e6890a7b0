# SPDX-License-Identifier: Apache-2.0
"""What is in the places that moved partitions have left, and in those where they are."""

import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from lake.errors import Transient
from lake.formats.hive.catalog import Place
from lake.formats.hive.commits import token_of
from lake.formats.hive.slices import placed
from lake.locations import file_at
from lake.model import TableRef
from lake.places import WRITER_GRACE, Moved, PartitionSeen, PlaceSeen
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
            place=None if (at := by_name.get(one.partition)) is None else at.location.removeprefix(f"{ref.location}/"),
            token=None if at is None else token_of(at.parameters),
            made_at=0 if at is None else at.made_at,
            places={place: seen[place] for place in one.places},
        )
        for one in moved
    }


def _seen(location: str, place: str, recorded: Collection[PlacedFile], now: float) -> PlaceSeen:
    files: dict[PlacedFile, int] = {}
    unfinished = set()
    try:
        with os.scandir(file_at(location, place)) as entries:
            for entry in entries:
                if entry.name.startswith(("_", ".")):
                    continue
                status = entry.stat()
                file = placed(location, entry.path, status.st_size, status.st_mtime_ns)
                # A file that is renamed into a directory keeps the time at which it was written, but not this one.
                files[file] = max(file.modified_ms, status.st_ctime_ns // 1_000_000)
                if file not in recorded and (entry.is_dir() or _is_being_written(entry.path, status, now)):
                    unfinished.add(file.path)
    except FileNotFoundError:
        # The directory is gone, or a file while it was looked at: then the next look tells.
        if files:
            raise Transient(f"{place} changed while it was listed") from None
    except OSError as error:
        raise Transient(f"{place} can't be listed: {error.strerror}") from error
    return PlaceSeen(files=files, unfinished=frozenset(unfinished))


def _is_being_written(path: str, status: os.stat_result, now: float) -> bool:
    """Whether a young file has no end yet. An old one without is what its writer left, and readers see it so."""
    if now - status.st_mtime > WRITER_GRACE.total_seconds():
        return False
    try:
        with open(path, "rb") as file:
            file.seek(max(0, status.st_size - 4))
            end = file.read(4)
    except FileNotFoundError:
        return True
    return not (end in _PARQUET or end[:3] == _ORC)
