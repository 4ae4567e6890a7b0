# SPDX-License-Identifier: Apache-2.0
"""Files and directories of a table whose format moves them itself, on any file system.

Paths are canonical locations (``lake.storage.locations``). File systems differ in four ways: whether a file can have a
second name, whether they record when it got its name, who owns it, and when it survives a power failure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file or a directory. ``modified_ns`` is the time of its last write, in nanoseconds since 1970.

    ``arrived_ns`` is the time at which it got its name, which is later for a renamed file; see
    ``FileIO.has_arrival_times``.
    """

    path: str
    bytes: int
    modified_ns: int
    arrived_ns: int
    is_directory: bool = False

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


class FileIO(Protocol):
    """One file system. Its methods raise OSError with an errno, FileNotFoundError if nothing is at a path."""

    #: True if ``FileEntry.arrived_ns`` is the time at which a file got its name; otherwise it is the time of the last
    #: write
    has_arrival_times: bool

    def list(self, directory: str) -> Sequence[FileEntry]:
        """Return the direct entries of a directory."""

    def status(self, path: str) -> FileEntry:
        """Return the file or directory at a path."""

    def exists(self, path: str) -> bool:
        """True if anything is at a path."""

    def read_tail(self, path: str, count: int) -> bytes:
        """Return the last ``count`` bytes of a file, or all if it is shorter, as other readers see it at present."""

    def read(self, path: str) -> bytes:
        """Return a whole file."""

    def write(self, path: str, content: bytes) -> None:
        """Write or replace a file: a reader sees all of it or none. It survives a power failure."""

    def make_directory(self, path: str) -> None:
        """Create a directory in an existing one. Raises FileExistsError."""

    def make_directories(self, path: str) -> None:
        """Create a directory and the missing ones above it."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file in one step, which replaces a file of the new name."""

    def replace(self, source: str, target: str) -> None:
        """Rename ``source`` to ``target`` in one step if ``target`` exists, and raise FileNotFoundError otherwise.

        The replaced file is at ``source`` afterwards. On storage that can't exchange two names it is gone, and a
        ``target`` that another program removes right before the step is not noticed.
        """

    def link_or_copy(self, source: str, target: str) -> None:
        """Give a file a second name, or copy it if the file system has no second names. Raises FileExistsError."""

    def sync(self, path: str) -> None:
        """Make a file, or the names in a directory, survive a power failure."""

    def delete_data_file(self, path: str) -> None:
        """Delete a data file for good, or into the cluster's trash if there is one. A missing file is not an error."""

    def remove_own_file(self, path: str) -> None:
        """Remove a file of lakefold's own. A missing file is not an error."""

    def remove_empty_directory(self, directory: str) -> None:
        """Remove a directory. Raises OSError if it is not empty."""

    def remove_own_tree(self, directory: str) -> None:
        """Remove a directory of lakefold's own with its content, as far as that is possible."""

    def check_owner(self, subject: str, path: str) -> None:
        """Raise Rejected if lakefold can't create files that the owner of ``path`` can overwrite, or can't write there.

        Checks this as far as possible without a write. The error's text begins with ``subject``, such as the table.
        """

    def copy_permissions(self, path: str, reference: str) -> None:
        """Give a file or directory the owner, group, mode and access lists of ``reference``.

        Raises Rejected if that is not allowed.
        """
