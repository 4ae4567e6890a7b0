# SPDX-License-Identifier: Apache-2.0
"""The guard against a writer that rolls back a rewrite which lakefold committed while the writer waited for the lock.

A writer with inline clustering or compaction executes all pending plans. If it finds an instant begun, it takes the
lock, plans a rollback of the instant and executes it. Under the lock Hudi does not check again whether the instant has
completed meanwhile. The rollback then removes the commit from the metadata table, and readers see none of its files.

Hudi plans the rollback of an instant that it considers inflight from the instant's markers, and fails if it can't read
the markers' type. So lakefold writes an unreadable type file under the instant while it still holds the lock. Hudi
reads no markers of an instant that it considers completed, as in a rollback or a restore by the table's owner. It
deletes the markers when it archives the instant.
"""

import logging
from collections.abc import Collection

from lake.errors import LakefoldError
from lake.formats.hudi.files.names import MARKER_DIRECTORY, relative_path
from lake.formats.hudi.files.storage import TableStorage

log = logging.getLogger(__name__)
_TYPE = "MARKERS.type"
#: the prefix of the files in which Hudi's timeline server lists markers, one a line, instead of creating them
_LIST_PREFIX = "MARKERS"
#: a marker is named after its file, followed by this and by how the file is written, as CREATE
_MARKER_SUFFIX = ".marker."
_CONTENT = b"this instant was completed by lakefold\n"


def write_rollback_guard(storage: TableStorage, instant: str) -> None:
    """Write the guard under a completed ``instant``; call it under the lock of its commit. Never raises."""
    try:
        storage.write(f"{MARKER_DIRECTORY}/{instant}/{_TYPE}", _CONTENT)
    except (LakefoldError, OSError) as error:
        log.warning("%s: can't write the rollback guard under %s: %s", storage.location, instant, error)


def has_markers(storage: TableStorage, instant: str) -> bool:
    """True if ``instant`` has markers besides a guard."""
    names = [info.base_name for info in storage.children(f"{MARKER_DIRECTORY}/{instant}")]
    return bool(names) and (names != [_TYPE] or storage.read(f"{MARKER_DIRECTORY}/{instant}/{_TYPE}") != _CONTENT)


def list_marked_files(storage: TableStorage, instant: str, paths: Collection[str]) -> frozenset[str]:
    """Return those of ``paths``, relative to the table, that have a marker under ``instant``."""
    if not paths:
        return frozenset()
    directory = f"{MARKER_DIRECTORY}/{instant}"
    markers = {
        line
        for name in storage.list_file_names(directory)
        if name.startswith(_LIST_PREFIX) and name != _TYPE
        for line in storage.read(f"{directory}/{name}").decode().splitlines()
    }
    for partition in {path.rpartition("/")[0] for path in paths}:
        names = storage.list_file_names(relative_path(directory, partition) if partition else directory)
        markers.update(relative_path(partition, name) for name in names)
    marked = {marker.rpartition(_MARKER_SUFFIX)[0] for marker in markers}
    return frozenset(path for path in paths if path in marked)
