# SPDX-License-Identifier: Apache-2.0
"""The files of one table through ``pyarrow.fs``, with the errors of lake/errors.py, and its ``hoodie.properties``."""

import os
import pwd
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import pyarrow as pa
from pyarrow import fs as pafs

from lake.errors import Rejected, TableGone, Transient
from lake.formats.hudi.files.names import PARTITION_MARKER, is_foreign_file
from lake.storage import s3
from lake.storage.filesystems import filesystem_of
from lake.storage.locations import canonical_location, filesystem_key, is_hdfs, is_local, is_s3

PROPERTIES = ".hoodie/hoodie.properties"
_BACKUP = f"{PROPERTIES}.backup"
#: Hudi writes the file right after the backup: a file that is newer than the backup by more is another's
_MAX_WRITE_DURATION = timedelta(minutes=1)
_REQUESTS_AT_ONCE = 16
_KEYS = f"check {s3.PREFIX}access.key and secret.key, or the other source of the process's credentials"
#: errors of pyarrow's S3 that a retry does not cure, with their remedies
_REMEDY_OF_S3_ERROR = {
    "ACCESS_DENIED": f"allow s3:ListBucket on the bucket and s3:GetObject on the whole table, or {_KEYS}",
    "INVALID_ACCESS_KEY_ID": _KEYS,
    "SIGNATURE_DOES_NOT_MATCH": _KEYS,
    "HTTP status 301": f"the bucket is in another region, set {s3.PREFIX}endpoint.region",
}
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_ESCAPED = re.compile(r"\\(.)")


def current_user() -> str:
    """Return the name of the process's user, for messages about permissions."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"user {os.geteuid()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageListing:
    """The files outside ``.hoodie`` by path relative to the table, without partition markers and checksums.

    ``sizes`` are in bytes. ``partitions`` are the directories with Hudi's partition marker; ``''`` is the table itself.
    """

    sizes: Mapping[str, int]
    partitions: frozenset[str]

    @property
    def foreign_files(self) -> tuple[str, ...]:
        """Sorted paths of the files in partitions that end like base files and that Hudi did not write."""
        found = (path for path in self.sizes if is_foreign_file(path))
        return tuple(sorted(path for path in found if path.rpartition("/")[0] in self.partitions))


class TableStorage:
    """The files below one directory. All paths given and returned are relative to the directory; '' is the directory.

    ``location`` is the directory's location in canonical spelling, ``uri`` its URI for Hadoop's file systems.
    ``has_directories`` is False on S3, where a directory exists only while objects are below it.

    Raises Rejected if the location can't be opened or read at all, and Transient for I/O that may work later.
    ``FileNotFoundError`` passes through, because listings and reads race with writers and cleaners.
    """

    def __init__(self, location: str) -> None:
        self.location = location if is_local(location) else canonical_location(location)
        self.is_local = is_local(location)
        self.fs, self.base = filesystem_of(location)
        self.has_directories = not is_s3(location)
        #: whether hudi-rs supports the file system
        self.is_supported_by_hudi_rs = not is_hdfs(location)
        self._root = "" if self.is_local else filesystem_key(self.location) if is_hdfs(location) else "s3://"
        self.uri = location if self.has_directories else f"s3a://{self.base}"

    def subdirectory(self, relative: str) -> "TableStorage":
        """Return the storage whose directory is ``relative``."""
        return TableStorage(f"{self.location}/{relative}")

    def map_parallel(self, function: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        """Call ``function`` with each item and return the results in order; in parallel if the storage is remote."""
        listed = list(items)
        if self.is_local or len(listed) < 2:
            return [function(item) for item in listed]
        with ThreadPoolExecutor(min(_REQUESTS_AT_ONCE, len(listed)), "storage") as pool:
            return list(pool.map(function, listed))

    def path(self, relative: str) -> str:
        """Return the path in ``fs``."""
        return f"{self.base}/{relative}" if relative else self.base

    @contextmanager
    def _translated_errors(self, relative: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except PermissionError as error:
            raise Rejected(
                f"{self.path(relative)}: permission denied for {current_user()}; grant read access to the whole table, "
                "its .hoodie directory included"
            ) from error
        except OSError as error:
            line = f"{self.display_path(relative)}: {str(error).splitlines()[0]}"
            refused = next((remedy for code, remedy in _REMEDY_OF_S3_ERROR.items() if code in line), None)
            if refused is not None and not self.has_directories:
                raise Rejected(f"{line}; {refused}") from error
            raise Transient(line) from error

    def display_path(self, relative: str) -> str:
        """Return the path as messages show it, with its scheme."""
        return f"{self._root}{self.path(relative)}"

    def read(self, relative: str) -> bytes:
        """Return the content of the file. Raises FileNotFoundError, Rejected or Transient."""
        with self._translated_errors(relative), self.fs.open_input_stream(self.path(relative)) as stream:
            return bytes(stream.read())

    def open(self, relative: str) -> pa.NativeFile:
        """Open the file for random access. Raises FileNotFoundError, Rejected or Transient."""
        with self._translated_errors(relative):
            return self.fs.open_input_file(self.path(relative))

    def info(self, relative: str) -> pafs.FileInfo:
        """Return type, size in bytes and modification time; the type is NotFound if nothing exists at the path."""
        with self._translated_errors(relative):
            return self.fs.get_file_info(self.path(relative))

    def is_file(self, relative: str) -> bool:
        """True if ``relative`` is a file."""
        return bool(self.info(relative).type == pafs.FileType.File)

    def is_writable(self, relative: str) -> bool:
        """False if this process can't create files in the directory. Remote storage is not checked: always True."""
        return not self.is_local or os.access(self.path(relative), os.W_OK, effective_ids=True)

    def size(self, relative: str) -> int | None:
        """Return the file's size in bytes, None if there is no such file."""
        info = self.info(relative)
        return info.size if info.type == pafs.FileType.File else None

    def sizes(self, relative: Collection[str]) -> dict[str, int]:
        """Return the sizes in bytes of the files that exist."""
        return {path: info.size for path, info in self._infos(relative)}

    def modified_times(self, relative: Collection[str]) -> dict[str, datetime]:
        """Return when the files that exist were last modified, as aware times in UTC."""
        return {path: info.mtime for path, info in self._infos(relative)}

    def _infos(self, relative: Collection[str]) -> Iterator[tuple[str, pafs.FileInfo]]:
        """Yield path and info of each path that is a file."""
        if not relative:
            return
        if self.is_local:
            with self._translated_errors(""):
                infos = self.fs.get_file_info([self.path(path) for path in relative])
            found = dict(zip(relative, infos, strict=True))
        else:
            # One listing request covers a thousand files, one info request a single file.
            directories = {path.rpartition("/")[0] for path in relative}
            found = {
                self.to_relative(i.path): i for infos in self.map_parallel(self.children, directories) for i in infos
            }
        for path in relative:
            if path in found and found[path].type == pafs.FileType.File:
                yield path, found[path]

    def children(self, relative: str) -> list[pafs.FileInfo]:
        """Return files and directories directly in ``relative``; an empty list if it does not exist."""
        with self._translated_errors(relative):
            return list(self.fs.get_file_info(pafs.FileSelector(self.path(relative), allow_not_found=True)))

    def list_file_names(self, relative: str) -> list[str]:
        """Return the names of the files directly in ``relative``."""
        return [i.base_name for i in self.children(relative) if i.type == pafs.FileType.File]

    def newest_modification(self, relative: str) -> datetime | None:
        """Return when a file, or anything below a directory, was last modified; None if ``relative`` is absent."""
        info = self.info(relative)
        found = [info]
        if info.type == pafs.FileType.Directory:
            with self._translated_errors(relative):
                selector = pafs.FileSelector(info.path, recursive=True, allow_not_found=True)
                found += self.fs.get_file_info(selector)
        # Directories on S3 have no modification time.
        return max((i.mtime for i in found if i.mtime is not None), default=None)

    def write(self, relative: str, content: bytes) -> None:
        """Write a small lakefold file atomically: a reader sees all of it or nothing."""
        with self._translated_errors(relative):
            draft = self.path(relative)
            if self.has_directories:
                self._create_parents(relative)
                draft += ".draft"
            with self.fs.open_output_stream(draft) as stream:
                stream.write(content)
            if self.has_directories:
                self.fs.move(draft, self.path(relative))

    def create_empty(self, relative: str) -> None:
        """Create an empty file below ``.hoodie``. Raises FileNotFoundError if the table is gone."""
        with self._translated_errors(relative):
            if self.has_directories:
                self._create_parents(relative)
            # A codec would be guessed from the file's name.
            with self.fs.open_output_stream(self.path(relative), compression=None):
                pass

    def _create_parents(self, relative: str) -> None:
        # Don't create the table's directory: a dropped table must not reappear.
        for parent in reversed(Path(relative).parents[:-2]):
            self.fs.create_dir(self.path(str(parent)), recursive=False)

    def touch(self, relative: str) -> None:
        """Set a file's modification time to now. Raises FileNotFoundError if there is no such file."""
        if self.is_local:
            os.utime(self.path(relative))
        else:
            self.write(relative, self.read(relative))

    def delete(self, relative: str) -> None:
        """Delete the file, if it exists."""
        with self._translated_errors(relative), suppress(FileNotFoundError):
            self.fs.delete_file(self.path(relative))

    def is_table_gone(self) -> bool:
        """True if the storage can be read and holds no table here (no ``.hoodie``).

        An unmounted file system looks like an empty directory, or like a missing directory without siblings. In both
        cases the result is False.
        """
        if self.info(".hoodie").type != pafs.FileType.NotFound:
            return False
        if self.info("").type != pafs.FileType.NotFound:
            return bool(self.children(""))
        with self._translated_errors(""):
            if self.has_directories:
                beside = pafs.FileSelector(str(Path(self.base).parent), allow_not_found=True)
                return bool(self.fs.get_file_info(beside))
            return bool(self.fs.get_file_info(self.base.partition("/")[0]).type != pafs.FileType.NotFound)

    def to_relative(self, path: str) -> str:
        """Return the relative path of a path in ``fs``: the inverse of ``path``."""
        return path[len(self.base) :].lstrip("/")

    def data_file_sizes(self, partitions: Collection[str] | None = None) -> Mapping[str, int]:
        """Return relative path and size of the files outside ``.hoodie``; see ``list_table_files``."""
        return self.list_table_files(partitions).sizes

    def list_table_files(self, partitions: Collection[str] | None = None) -> "StorageListing":
        """List the files outside ``.hoodie``. With ``partitions``, only the files directly in these directories."""
        if partitions is None:
            listings = self.map_parallel(
                self._files_below, (top for top in self.children("") if top.base_name != ".hoodie")
            )
        else:
            listings = self.map_parallel(self._files_in, partitions)
        sizes, marked = {}, set()
        for found in listings:
            for info in found:
                path = self.to_relative(info.path)
                directory, _, name = path.rpartition("/")
                if name.startswith(PARTITION_MARKER):
                    marked.add(directory)
                elif not name.endswith(".crc"):
                    sizes[path] = info.size
        return StorageListing(sizes=sizes, partitions=frozenset(marked))

    def _files_in(self, relative: str) -> list[pafs.FileInfo]:
        return [info for info in self.children(relative) if info.type == pafs.FileType.File]

    def _files_below(self, top: pafs.FileInfo) -> list[pafs.FileInfo]:
        if top.type == pafs.FileType.File:
            return [top]
        with self._translated_errors(self.to_relative(top.path)):
            selector = pafs.FileSelector(top.path, recursive=True, allow_not_found=True)
            return [info for info in self.fs.get_file_info(selector) if info.type == pafs.FileType.File]


def parse_properties(text: str) -> dict[str, str]:
    """Parse a Java properties file as Hudi writes it: comments, ``key=value``, escaped separators."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        key, _, value = line.partition("=")
        found[_ESCAPED.sub(r"\1", key.strip())] = _ESCAPED.sub(r"\1", value.strip())
    return found


def _is_edited_by_owner(storage: TableStorage) -> bool:
    """True if ``hoodie.properties`` is so much newer than its backup that no writer of Hudi wrote it."""
    times = storage.modified_times([PROPERTIES, _BACKUP])
    return len(times) == 2 and times[PROPERTIES] - times[_BACKUP] > _MAX_WRITE_DURATION


def read_table_properties(storage: TableStorage) -> Mapping[str, str]:
    """Return the table's ``hoodie.properties``.

    Raises Rejected if it isn't a Hudi table, TableGone if dropped, and Transient if the file has no complete content.
    """
    # Hudi replaces the file: it copies the file to the backup, deletes it, writes it anew and deletes the backup. For a
    # moment only the backup exists, and then a new file that is still empty or, above 8 KiB, ends within a line. After
    # a writer's death this may last. Hudi also reads the backup then. If the last line has no end in the second round
    # either, an owner wrote it so. An owner's file counts more than the backup that a dead writer left: Hudi's readers
    # read the backup only if they can't read the file, and Hudi's next writer keeps a file that has its checksum.
    is_found = False
    for may_lack_newline, name in product((False, True), (PROPERTIES, _BACKUP)):
        try:
            text = storage.read(name).decode("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError):
            continue
        is_found = True
        properties = parse_properties(text)
        if "hoodie.table.name" not in properties:
            continue
        if may_lack_newline or text.endswith("\n") or (name == PROPERTIES and _is_edited_by_owner(storage)):
            return MappingProxyType(properties)
    if is_found:
        raise Transient(
            f"{storage.location}: {PROPERTIES} lacks hoodie.table.name, which Hudi requires: a writer is replacing the "
            f"file, or it was damaged; if this lasts, write it again from {_BACKUP} or a copy"
        )
    refusal = TableGone if storage.is_table_gone() else Rejected
    raise refusal(
        f"{storage.location}: not a Hudi table, there is no {PROPERTIES}; give the table's base path or a directory "
        "that holds tables"
    )
