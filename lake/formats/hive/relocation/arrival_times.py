# SPDX-License-Identifier: Apache-2.0
"""The times at which late files arrived, recorded in the table before lakefold gives such a file a second name.

The second name, and its removal by an overwrite, make the file look newer to a file system with hard links. The
database has the times as well, but may be lost, or be restored from an earlier backup. Without the times, a late file
whose copy was overwritten would look like one that arrived after the overwrite, and its rows would be read again.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256

from lake.formats.hive.commit.commit_record import RECORD_ARCHIVE_DIR, create_record_archive
from lake.formats.hive.commit.marker_set import (
    add_to_marker_set,
    read_marker_set,
    remove_marker_set,
    replace_marker_set,
)
from lake.formats.hive.commit.version_names import data_dir
from lake.formats.hive.files.listing import is_hidden, to_located_file
from lake.model import TableRef
from lake.plan import LocatedFile
from lake.storage.filesystems import file_io_of
from lake.storage.locations import resolve_path

_MAX_TIMES = 1000
"""If a location would have more recorded times than this, the times of files that no longer exist are removed."""


def record_arrivals(ref: TableRef, files: Iterable[LocatedFile]) -> None:
    """Record when ``files`` arrived, unless their file system does not show it, or they are gone. Raises OSError."""
    storage, arrived = file_io_of(ref.location), dict[str, dict[str, int]]()
    if not storage.has_arrival_times:
        return
    for file in files:
        with suppress(FileNotFoundError):
            found = storage.status(resolve_path(ref.location, file.path))
            arrived.setdefault(file.directory, {})[source_digest(file)] = found.arrived_ns // 1_000_000
    for location, times in arrived.items():
        path, known = _times_path(ref, location), recorded_arrivals(ref, location)
        create_record_archive(ref)
        if len(known.keys() | times.keys()) > _MAX_TIMES:
            replace_marker_set(ref, path, partial(_without_missing_files, ref, location, times))
        else:
            add_to_marker_set(ref, path, _marks(_with_first_times(times, known)))


def _without_missing_files(
    ref: TableRef, location: str, times: Mapping[str, int], marks: Collection[str]
) -> Collection[str]:
    """Return the marks of ``times``, and those of ``marks`` whose files exist."""
    known = _times_of(marks)
    present = known.keys() & set(_present_digests(ref, location))
    return _marks({digest: known[digest] for digest in present} | _with_first_times(times, known))


def _with_first_times(times: Mapping[str, int], known: Mapping[str, int]) -> dict[str, int]:
    """Return ``times``, or the ``known`` time of a file if that is earlier.

    The first time is the right one: a copy may be made again after the copy before it was removed.
    """
    return {digest: min(at, known.get(digest, at)) for digest, at in times.items()}


def _marks(times: Mapping[str, int]) -> Collection[str]:
    return [f"{digest} {at}" for digest, at in times.items()]


def _times_of(marks: Collection[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for mark in marks:
        digest, _, at = mark.partition(" ")
        found[digest] = min(found.get(digest, int(at)), int(at))
    return found


def recorded_arrivals(ref: TableRef, location: str) -> Mapping[str, int]:
    """Return the recorded arrival times of a location's files in milliseconds, by ``source_digest``. Raises OSError."""
    return _times_of(read_marker_set(ref, _times_path(ref, location)))


def forget_arrivals(ref: TableRef, location: str) -> None:
    """Remove the recorded arrival times of a location that no longer exists. Raises OSError."""
    remove_marker_set(ref, _times_path(ref, location))


def source_digest(source: LocatedFile) -> str:
    """Return the digest of a file's path, bytes and modification time; it is part of the names of the file's copies."""
    return sha256(f"{source.path}\n{source.bytes}\n{source.modified_ms}".encode()).hexdigest()[:32]


def _present_digests(ref: TableRef, location: str) -> Collection[str]:
    try:
        entries = file_io_of(ref.location).list(resolve_path(ref.location, location))
    except FileNotFoundError:
        return ()
    return {
        source_digest(to_located_file(ref.location, one.path, one.bytes, one.modified_ns))
        for one in entries
        if not (one.is_directory or is_hidden(one.name))
    }


def _times_path(ref: TableRef, location: str) -> str:
    return f"{data_dir(ref)}/{RECORD_ARCHIVE_DIR}/{sha256(location.encode()).hexdigest()[:32]}.arrived"
