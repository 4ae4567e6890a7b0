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

from lake.errors import LakefoldError
from lake.formats.hudi.files.names import MARKER_DIRECTORY
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.pending.markers import MARKER_TYPE_FILE

log = logging.getLogger(__name__)
#: the content of the type file by which lakefold recognises its guard
ROLLBACK_GUARD = b"this instant was completed by lakefold\n"


def write_rollback_guard(storage: TableStorage, instant: str) -> None:
    """Write the guard under a completed ``instant``; call it under the lock of its commit. Never raises."""
    try:
        storage.write(f"{MARKER_DIRECTORY}/{instant}/{MARKER_TYPE_FILE}", ROLLBACK_GUARD)
    except (LakefoldError, OSError) as error:
        log.warning("%s: can't write the rollback guard under %s: %s", storage.location, instant, error)


def has_markers(storage: TableStorage, instant: str) -> bool:
    """True if ``instant`` has markers besides a guard."""
    names = [info.base_name for info in storage.children(f"{MARKER_DIRECTORY}/{instant}")]
    type_file = f"{MARKER_DIRECTORY}/{instant}/{MARKER_TYPE_FILE}"
    return bool(names) and (names != [MARKER_TYPE_FILE] or storage.read(type_file) != ROLLBACK_GUARD)
