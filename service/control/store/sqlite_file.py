# SPDX-License-Identifier: Apache-2.0
"""The file of a SQLite database: whether its path still names the file that this process has opened.

SQLite keeps a deleted file open. A process would then write to a file that no other process sees and that is lost when
the process ends, and a new connection would open another file under the same path.
"""

import os
import threading
from pathlib import Path
from urllib.parse import quote

from service.control.store.errors import DatabaseReplaced, DatabaseUnreachable

#: what to do about a missing database, and what a new one costs
RESTORE_HINT = (
    "restore its backup (docs/operations.md#restore); a new database does not know replaced files, tokens and history"
)


class SqliteFile:
    """The database file at ``path``. Thread-safe; the first connection determines which file it is."""

    def __init__(self, path: Path, setting: str) -> None:
        self.path, self._setting = path, setting
        self._lock = threading.Lock()
        #: device and inode of the file that the first connection opened
        self._opened: tuple[int, int] | None = None
        #: keeps the inode from being used for another file; other kinds of descriptors would end SQLite's locks
        self._descriptor: int | None = None

    @property
    def address(self) -> str:
        """The file's path in a URI of SQLite, which the mode ``rw`` makes it open and never create."""
        return f"file:{quote(os.path.abspath(self.path))}"

    def create(self) -> None:
        """Create the file, empty, and its directory, unless they exist. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644))

    def record_opened(self) -> None:
        """Record which file was opened, at the first call; ``check`` it at later calls."""
        with self._lock:
            if self._opened is None:
                self._opened = self._identity()
                if self._opened is not None and hasattr(os, "O_PATH"):
                    self._descriptor = os.open(self.path, os.O_PATH | os.O_CLOEXEC)
        self.check()

    def close(self) -> None:
        """Release the file, once no connection to it is open."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
            self._descriptor = None

    def check(self) -> None:
        """Raise DatabaseReplaced if the path names another file than the opened one, DatabaseUnreachable if none."""
        found = self._identity()
        if found is None:
            raise DatabaseUnreachable(
                f"the database file {self.path} is gone; nothing is changed without it. Put it back, or stop lakefold "
                f"and {RESTORE_HINT}. The setting is {self._setting}"
            )
        if self._opened not in (None, found):
            raise DatabaseReplaced(
                f"the database file {self.path} was replaced by another file while this process had it open; the "
                f"process has to be started again. The setting is {self._setting}"
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
