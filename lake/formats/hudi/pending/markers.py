# SPDX-License-Identifier: Apache-2.0
"""Keeps a writer from taking back a rewrite that lakefold has committed while the writer waited for the lock.

A writer with inline clustering or compaction executes whatever is pending. Where it finds an instant begun it takes the
lock, plans a rollback of the instant and executes it. Hudi does not look once it has the lock whether the instant has
completed meanwhile: the rollback then takes the commit out of the metadata table, and readers see none of its files.

Hudi plans the rollback of an instant that it takes for inflight by the markers of the instant, and fails where it can't
read their type. So lakefold leaves such a type file under the instant, while it still has the lock. Hudi asks for no
markers where it knows that an instant is completed, as in a rollback or a restore by the table's owner, and deletes
them when it archives the instant.
"""

import logging

from lake.errors import LakefoldError
from lake.formats.hudi.files.storage import TableStorage

log = logging.getLogger(__name__)
#: where writers show which files they are about to write, by instant
MARKER_DIRECTORY = ".hoodie/.temp"
_TYPE = "MARKERS.type"
_CONTENT = b"this instant was completed by lakefold\n"


def write_rollback_guard(storage: TableStorage, instant: str) -> None:
    """Leave the guard under a completed ``instant``; call it under the lock of its commit. Never raises."""
    try:
        storage.write(f"{MARKER_DIRECTORY}/{instant}/{_TYPE}", _CONTENT)
    except (LakefoldError, OSError) as error:
        log.warning("%s: no guard could be left under %s: %s", storage.location, instant, error)


def has_markers(storage: TableStorage, instant: str) -> bool:
    """Whether there are markers of ``instant`` besides a guard."""
    names = [info.base_name for info in storage.children(f"{MARKER_DIRECTORY}/{instant}")]
    return bool(names) and (names != [_TYPE] or storage.read(f"{MARKER_DIRECTORY}/{instant}/{_TYPE}") != _CONTENT)
