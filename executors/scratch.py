# SPDX-License-Identifier: Apache-2.0
"""Temporary directories for Spark's JVMs: jars, blocks and spilled rows that are useless after the JVM's end.

A JVM deletes them when it ends, but a killed JVM leaves 80 MB or more each time. So each JVM gets a temporary directory
of its own, and the start of the next JVM removes directories whose process has ended. A lock in the directory shows
whether the process has ended: a process holds the lock until its end, independent of host, container and user.
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
    """Return an empty directory for the next JVM; remove the previous directory and directories of ended processes.

    Raises OSError if there is no space for it.
    """
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
    held = os.open(directory / f"{_LOCK}.new", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    # Lock first: other processes search for this name, and treat a directory without a held lock as abandoned.
    (directory / f"{_LOCK}.new").rename(directory / _LOCK)
    while _lock_descriptors:
        os.close(_lock_descriptors.pop())
    _lock_descriptors.append(held)
    _remove_abandoned(directory.parent)
    return directory


def _remove_abandoned(parent: Path) -> None:
    """Remove this user's directories in ``parent`` whose process has ended."""
    for entry in os.scandir(parent):
        if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
            with suppress(OSError):  # its process runs, or another process removes it now
                if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    _remove_unlocked(Path(entry.path))


def _remove_unlocked(directory: Path) -> None:
    lock = os.open(directory / _LOCK, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(lock)
