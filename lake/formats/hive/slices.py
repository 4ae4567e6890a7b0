# SPDX-License-Identifier: Apache-2.0
"""The data files of a table, listed where the metastore says that they are."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from lake.errors import Rejected, Transient
from lake.filesystems import files_of
from lake.formats.hive.catalog import Place
from lake.formats.hive.refusals import check_location
from lake.locations import path_in
from lake.model import SLICES_SCHEMA, words_of
from lake.plan import PlacedFile, milliseconds_of

#: listing a directory over a network is waiting for it
_LISTINGS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class File:
    """A data file: its full path, bytes, and when it was written in nanoseconds since 1970."""

    path: str
    bytes: int
    modified_ns: int


def is_hidden(name: str) -> bool:
    """Whether Hive and Spark pass over what has this name in a directory; they read every other file."""
    return name.startswith(("_", "."))


def placed(location: str, path: str, size: int, modified_ns: int) -> PlacedFile:
    """A file as moves of a table at ``location`` and superseded versions know it."""
    at = datetime.fromtimestamp(modified_ns / 1e9, UTC)
    return PlacedFile(path=path_in(location, path), bytes=size, modified_ms=milliseconds_of(at))


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What is in a partition's directory. ``directories`` are those that readers may or may not look into."""

    place: Place
    files: tuple[File, ...] = ()
    directories: tuple[str, ...] = ()


def list_places(name: str, places: Sequence[Place]) -> list[Listing]:
    """What is in each of the directories now. Raises Rejected for one that may not be listed, Transient on errors."""
    for place in places:
        check_location(f"{name}, {words_of(place.name)}" if place.name else name, place.storage.location)
    with ThreadPoolExecutor(_LISTINGS_AT_ONCE) as pool:
        return list(pool.map(_listing, places, chunksize=64))


def slices_of(location: str, listings: Sequence[Listing], left_alone: Mapping[str, str]) -> pa.Table:
    """Every data file of the table at ``location`` as a row of ``SLICES_SCHEMA``."""
    partitions: list[str] = []
    paths: list[str] = []
    sizes: list[int] = []
    times: list[int] = []
    reasons: list[str | None] = []
    below = f"{location}/"
    for listing in listings:
        reason = left_alone.get(listing.place.name) or _nested(listing)
        for file in listing.files:
            partitions.append(listing.place.name)
            paths.append(file.path.removeprefix(below))
            sizes.append(file.bytes)
            times.append(file.modified_ns // 1000)
            reasons.append(reason or (None if file.bytes else "empty: readers skip a file without a byte"))
    count = len(paths)
    columns = {
        "partition": pa.array(partitions, pa.string()),
        "file_id": pa.array(paths, pa.string()),
        "path": pa.array(paths, pa.string()),
        "bytes": pa.array(sizes, pa.int64()),
        "log_files": pa.array([[]] * count, pa.list_(pa.string())),
        "log_bytes": pa.array([0] * count, pa.int64()),
        "modified_at": pa.array(times, pa.timestamp("us", tz="UTC")),
        "written_order": pa.array(times, pa.int64()),
        "busy_reason": pa.array(reasons, pa.string()),
    }
    return pa.table(
        [
            columns[one.name].cast(one.type) if one.name in columns else pa.nulls(count, one.type)
            for one in SLICES_SCHEMA
        ],
        schema=SLICES_SCHEMA,
    )


def _listing(place: Place) -> Listing:
    files: list[File] = []
    directories: list[str] = []
    storage = files_of(place.location)
    try:
        for entry in storage.list(place.location):
            if is_hidden(entry.name):
                continue
            if entry.is_directory:
                directories.append(entry.name)
                continue
            files.append(File(entry.path, entry.bytes, entry.modified_ns))
    except FileNotFoundError:
        if storage.exists(place.location):
            raise Transient(f"{place.location} changed while it was listed") from None
        return Listing(place=place)  # readers take it for empty
    except PermissionError as error:
        raise Rejected(f"{place.location} can't be listed: {error.strerror}; let lakefold's user read it") from error
    except OSError as error:
        raise Transient(f"{place.location} can't be listed: {error.strerror}") from error
    files.sort(key=lambda file: file.path)
    return Listing(place=place, files=tuple(files), directories=tuple(sorted(directories)))


def _nested(listing: Listing) -> str | None:
    """Why the files of a partition with directories in it are left alone; None where there are none."""
    if not listing.directories:
        return None
    return f"there is a directory in its own, {listing.directories[0]}: readers differ in whether they look into it"
