# SPDX-License-Identifier: Apache-2.0
"""Files of one table through ``pyarrow.fs``, with errors turned into outcomes, and its ``hoodie.properties``."""

import os
import pwd
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
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
_REQUESTS_AT_ONCE = 16
_KEYS = f"check {s3.PREFIX}access.key and secret.key, or where else the process has its credentials from"
#: what pyarrow's S3 says where trying again does not help, with what does
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
    """Whom the process runs as, for a message about permissions."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"user {os.geteuid()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageListing:
    """Files outside ``.hoodie`` by path relative to the table, with sizes in bytes; no markers and no checksums.

    ``partitions`` are the directories that Hudi has marked as one, ``''`` the table itself.
    """

    sizes: Mapping[str, int]
    partitions: frozenset[str]

    @property
    def foreign_files(self) -> tuple[str, ...]:
        """Paths of files of others in partitions that end as base files do, sorted."""
        found = (path for path in self.sizes if is_foreign_file(path))
        return tuple(sorted(path for path in found if path.rpartition("/")[0] in self.partitions))


class TableStorage:
    """Files below one directory; every path given and returned is relative to it, '' being the directory itself.

    ``location`` is where it is in the canonical spelling, ``uri`` what Hadoop's file systems call it. On S3 a directory
    is there as long as something is below it; elsewhere it is one by itself, which ``has_directories`` says.

    Raises Rejected where the location can't be opened or read at all, Transient for I/O that may work later;
    ``FileNotFoundError`` passes, because a listing and a read race with writers and cleaners by nature.
    """

    def __init__(self, location: str) -> None:
        self.location = location if is_local(location) else canonical_location(location)
        self.is_local = is_local(location)
        self.fs, self.base = filesystem_of(location)
        self.has_directories = not is_s3(location)
        #: whether hudi-rs knows the file system
        self.is_supported_by_hudi_rs = not is_hdfs(location)
        self._root = "" if self.is_local else filesystem_key(self.location) if is_hdfs(location) else "s3://"
        self.uri = location if self.has_directories else f"s3a://{self.base}"

    def subdirectory(self, relative: str) -> "TableStorage":
        """The directory ``relative`` by itself."""
        return TableStorage(f"{self.location}/{relative}")

    def map_parallel(self, function: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        """``look`` at every item, in their order; several at once where each is a request over a network."""
        listed = list(items)
        if self.is_local or len(listed) < 2:
            return [function(item) for item in listed]
        with ThreadPoolExecutor(min(_REQUESTS_AT_ONCE, len(listed)), "storage") as pool:
            return list(pool.map(function, listed))

    def path(self, relative: str) -> str:
        """The path that ``fs`` understands."""
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
        """The path as a person finds it."""
        return f"{self._root}{self.path(relative)}"

    def read(self, relative: str) -> bytes:
        """The whole file. Raises FileNotFoundError, Rejected or Transient."""
        with self._translated_errors(relative), self.fs.open_input_stream(self.path(relative)) as stream:
            return bytes(stream.read())

    def open(self, relative: str) -> pa.NativeFile:
        """The file, open for random access. Raises FileNotFoundError, Rejected or Transient."""
        with self._translated_errors(relative):
            return self.fs.open_input_file(self.path(relative))

    def info(self, relative: str) -> pafs.FileInfo:
        """Kind, size in bytes and modification time; kind NotFound where there is nothing."""
        with self._translated_errors(relative):
            return self.fs.get_file_info(self.path(relative))

    def is_file(self, relative: str) -> bool:
        """Whether ``relative`` is a file."""
        return bool(self.info(relative).type == pafs.FileType.File)

    def is_writable(self, relative: str) -> bool:
        """Whether files can be created in a directory, as far as that can be seen without doing it: here only."""
        return not self.is_local or os.access(self.path(relative), os.W_OK, effective_ids=True)

    def size(self, relative: str) -> int | None:
        """Size in bytes, None where there is no such file."""
        info = self.info(relative)
        return info.size if info.type == pafs.FileType.File else None

    def sizes(self, relative: Collection[str]) -> dict[str, int]:
        """Sizes in bytes of those of the files that exist."""
        return {path: info.size for path, info in self._infos(relative)}

    def modified_times(self, relative: Collection[str]) -> dict[str, datetime]:
        """When those of the files that exist were written last, as aware times in UTC."""
        return {path: info.mtime for path, info in self._infos(relative)}

    def _infos(self, relative: Collection[str]) -> Iterator[tuple[str, pafs.FileInfo]]:
        """What is known of those that are files."""
        if not relative:
            return
        if self.is_local:
            with self._translated_errors(""):
                infos = self.fs.get_file_info([self.path(path) for path in relative])
            found = dict(zip(relative, infos, strict=True))
        else:
            # A listing tells of a thousand files, a question of one.
            directories = {path.rpartition("/")[0] for path in relative}
            found = {
                self.to_relative(i.path): i for infos in self.map_parallel(self.children, directories) for i in infos
            }
        for path in relative:
            if path in found and found[path].type == pafs.FileType.File:
                yield path, found[path]

    def children(self, relative: str) -> list[pafs.FileInfo]:
        """Files and directories directly in ``relative``; none where it does not exist."""
        with self._translated_errors(relative):
            return list(self.fs.get_file_info(pafs.FileSelector(self.path(relative), allow_not_found=True)))

    def list_file_names(self, relative: str) -> list[str]:
        """Names of the files directly in ``relative``."""
        return [i.base_name for i in self.children(relative) if i.type == pafs.FileType.File]

    def newest_modification(self, relative: str) -> datetime | None:
        """When the file ``relative``, or anything below that directory, was last modified; None where nothing is."""
        info = self.info(relative)
        found = [info]
        if info.type == pafs.FileType.Directory:
            with self._translated_errors(relative):
                selector = pafs.FileSelector(info.path, recursive=True, allow_not_found=True)
                found += self.fs.get_file_info(selector)
        # A directory of S3 has no time of its own.
        return max((i.mtime for i in found if i.mtime is not None), default=None)

    def write(self, relative: str, content: bytes) -> None:
        """Write a small file of lakefold's own as a whole: a reader sees all of it or none."""
        with self._translated_errors(relative):
            draft = self.path(relative)
            if self.has_directories:
                # Not the table's directory: one that was dropped must not come back.
                for parent in reversed(Path(draft).relative_to(self.base).parents[:-2]):
                    self.fs.create_dir(f"{self.base}/{parent}", recursive=False)
                draft += ".draft"
            with self.fs.open_output_stream(draft) as stream:
                stream.write(content)
            if self.has_directories:
                self.fs.move(draft, self.path(relative))

    def touch(self, relative: str) -> None:
        """Renew the time of a file's last modification. Raises FileNotFoundError where it is gone."""
        if self.is_local:
            os.utime(self.path(relative))
        else:
            self.write(relative, self.read(relative))

    def delete(self, relative: str) -> None:
        """Remove the file; one that is gone already is fine."""
        with self._translated_errors(relative), suppress(FileNotFoundError):
            self.fs.delete_file(self.path(relative))

    def is_table_gone(self) -> bool:
        """Whether the storage answers and has no table here, no ``.hoodie``.

        An empty directory, or a missing one with nothing beside it, is what a file system that is not mounted leaves.
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
        """The inverse of ``path``."""
        return path[len(self.base) :].lstrip("/")

    def data_file_sizes(self, partitions: Collection[str] | None = None) -> Mapping[str, int]:
        """Relative path and size of every file outside ``.hoodie``, as of ``on_disk``."""
        return self.list_table_files(partitions).sizes

    def list_table_files(self, partitions: Collection[str] | None = None) -> "StorageListing":
        """What is outside ``.hoodie``. With ``partitions`` only these directories, and none below them."""
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
    """A Java properties file as far as Hudi writes them: comments, ``key=value``, escaped separators."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        key, _, value = line.partition("=")
        found[_ESCAPED.sub(r"\1", key.strip())] = _ESCAPED.sub(r"\1", value.strip())
    return found


def read_table_properties(storage: TableStorage) -> Mapping[str, str]:
    """The table's ``hoodie.properties``; Rejected where there is no Hudi table."""
    # Hudi replaces the file by way of a backup, so for a moment only the backup is there.
    for name in (PROPERTIES, PROPERTIES + ".backup", PROPERTIES):
        try:
            return MappingProxyType(parse_properties(storage.read(name).decode("utf-8", "replace")))
        except (FileNotFoundError, NotADirectoryError):
            continue
    refusal = TableGone if storage.is_table_gone() else Rejected
    raise refusal(
        f"{storage.location}: not a Hudi table, there is no {PROPERTIES}; give the table's base path or a directory "
        "that holds tables"
    )
