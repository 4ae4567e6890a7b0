# SPDX-License-Identifier: Apache-2.0
"""Files and directories of a table whose format moves them itself, wherever the table lies.

Paths are canonical locations (``lake.storage.locations``). What file systems do not share is what matters here: whether a file
can have a second name, when it came under the one it has, to whom it belongs, and when a power cut can't take it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file or a directory. ``modified_ns`` is when it was written, in nanoseconds since 1970.

    ``arrived_ns`` is when it came under its name, which a file that was renamed did later; see ``Files.has_arrival_times``.
    """

    path: str
    bytes: int
    modified_ns: int
    arrived_ns: int
    is_directory: bool = False

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]


class FileIO(Protocol):
    """One file system. Its methods raise OSError with a number, FileNotFoundError where nothing is at a path."""

    #: whether ``Entry.arrived_ns`` is when a file came under its name, and not only when it was written
    has_arrival_times: bool

    def list(self, directory: str) -> Sequence[FileEntry]:
        """What is directly in a directory."""

    def status(self, path: str) -> FileEntry:
        """The file or directory at a path."""

    def exists(self, path: str) -> bool:
        """Whether anything is at a path."""

    def read_tail(self, path: str, count: int) -> bytes:
        """The last bytes of a file, as far as others can read it by now."""

    def read(self, path: str) -> bytes:
        """A whole file."""

    def write(self, path: str, content: bytes) -> None:
        """Put a file there, or in the place of another: a reader sees all of it or none. It outlives a power cut."""

    def make_directory(self, path: str) -> None:
        """Make a directory in another one. Raises FileExistsError."""

    def make_directories(self, path: str) -> None:
        """Make a directory, and those above it, as far as they are not there."""

    def rename(self, source: str, target: str) -> None:
        """Give a file another name in one step, which replaces a file of that name."""

    def link_or_copy(self, source: str, target: str) -> None:
        """Have a file under another name, too; a copy where that can't be. Raises FileExistsError."""

    def sync(self, path: str) -> None:
        """Have a file, or the names in a directory, outlive a power cut."""

    def delete_data_file(self, path: str) -> None:
        """Delete a data file for good, or as far as whoever runs the file system lets it. One that is gone is fine."""

    def remove_own_file(self, path: str) -> None:
        """Remove a file of lakefold's own. One that is gone is fine."""

    def remove_empty_directory(self, directory: str) -> None:
        """Remove a directory. Raises OSError where anything is in it."""

    def remove_own_tree(self, directory: str) -> None:
        """Remove a directory of lakefold's own and all that is in it, as far as that is possible."""

    def check_owner(self, what: str, path: str) -> None:
        """Raise Rejected where nothing can be made that belongs to the owner of ``path``, or it may not be written.

        As far as that can be told without trying.
        """

    def copy_permissions(self, path: str, reference: str) -> None:
        """Give a file or directory the owner, the group, the mode and the access lists that its ``model`` has.

        Raises Rejected where that is not allowed.
        """
