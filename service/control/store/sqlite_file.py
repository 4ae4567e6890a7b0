# SPDX-License-Identifier: Apache-2.0
"""The file of a SQLite database. Detects that the file was deleted or replaced while it is open.

Open connections continue to use a deleted file, which no other process sees and which is lost when the process ends. A
new connection would open another file with the same path.
"""

import os
import threading
from pathlib import Path
from urllib.parse import quote

from service.control.store.errors import DatabaseReplaced, DatabaseUnreachable

#: advice for a missing database
RESTORE_HINT = (
    "restore its backup (docs/operations.md#restore); a new database has no history, tokens or record of replaced files"
)


class SqliteFile:
    """The database file at ``path``, as the first connection opened it. Thread-safe."""

    def __init__(self, path: Path, setting: str) -> None:
        self.path, self._setting = path, setting
        self._lock = threading.Lock()
        #: device and inode of the file that the first connection opened
        self._opened: tuple[int, int] | None = None
        #: prevents the reuse of the inode for another file; closing an ordinary descriptor would end SQLite's locks
        self._descriptor: int | None = None

    @property
    def address(self) -> str:
        """The file's path as a SQLite URI. With the mode ``rw``, SQLite opens the file but never creates it."""
        return f"file:{quote(os.path.abspath(self.path))}"

    def create(self) -> None:
        """Create the empty file and its directory unless they exist. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644))

    def record_opened(self) -> None:
        """At the first call, record which file was opened. At later calls, do the same as ``check``."""
        with self._lock:
            if self._opened is None:
                self._opened = self._identity()
                if self._opened is not None and hasattr(os, "O_PATH"):
                    self._descriptor = os.open(self.path, os.O_PATH | os.O_CLOEXEC)
        self.check()

    def close(self) -> None:
        """Release the file. Call it when no connection is open."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
            self._descriptor = None

    def check(self) -> None:
        """Raise DatabaseReplaced if another file is now at the path, DatabaseUnreachable if no file is there."""
        found = self._identity()
        if found is None:
            raise DatabaseUnreachable(
                f"the database file {self.path} is gone; lakefold changes nothing without it. Put it back, or stop "
                f"lakefold and {RESTORE_HINT}. The setting is {self._setting}"
            )
        if self._opened not in (None, found):
            raise DatabaseReplaced(
                f"the database file {self.path} was replaced by another file while this process had it open; restart "
                f"the process. The setting is {self._setting}"
            )

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise DatabaseUnreachable(
                f"the database file {self.path} can't be read: {error.strerror}; the setting is {self._setting}"
            ) from error
        return found.st_dev, found.st_ino
