# SPDX-License-Identifier: Apache-2.0
"""Where a JVM of ours keeps what is of use only while it lives: jars it was given, blocks, spilled rows.

A JVM deletes all that when it ends, but one that is killed leaves it, 80 MB or more each time. So each gets a temporary
directory of its own, and whoever starts the next one removes those whose process has ended. The kernel tells which
these are: a process holds a lock in its directory as long as it lives, whatever host, container or user it counts for.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_PREFIX, _LOCK = "lakefold-spark-", "in-use"

#: the open lock of this process's directory
_lock_descriptors: list[int] = []


def new_scratch_directory() -> Path:
    """An empty directory for the JVM that is about to start; the one before and those of ended processes go.

    Raises OSError where there is no room for it.
    """
    place = Path(tempfile.mkdtemp(prefix=_PREFIX))
    held = os.open(place / f"{_LOCK}.new", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    # Only now may another process find it: one that is not locked is nobody's.
    (place / f"{_LOCK}.new").rename(place / _LOCK)
    while _lock_descriptors:
        os.close(_lock_descriptors.pop())
    _lock_descriptors.append(held)
    _remove_abandoned(place.parent)
    return place


def _remove_abandoned(parent: Path) -> None:
    """Remove this user's directories in ``parent`` whose process has ended."""
    for entry in os.scandir(parent):
        if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
            with suppress(OSError):  # its process lives, or another one removes it now
                if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    _remove_unlocked(Path(entry.path))


def _remove_unlocked(place: Path) -> None:
    lock = os.open(place / _LOCK, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(place, ignore_errors=True)
    finally:
        os.close(lock)
