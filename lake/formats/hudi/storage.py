# SPDX-License-Identifier: Apache-2.0
"""Files of one table through ``pyarrow.fs``, with errors turned into outcomes, and its ``hoodie.properties``."""

import os
import pwd
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from types import MappingProxyType

import pyarrow as pa
from pyarrow import fs as pafs

from lake.errors import Rejected, Transient

PROPERTIES = ".hoodie/hoodie.properties"
_ESCAPED = re.compile(r"\\(.)")


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"user {os.geteuid()}"


class Storage:
    """Files below one directory; every path given and returned is relative to it, '' being the directory itself.

    Raises Rejected where the location can't be opened or read at all, Transient for I/O that may work later;
    ``FileNotFoundError`` passes, because a listing and a read race with writers and cleaners by nature.
    """

    def __init__(self, location: str, filesystem: pafs.FileSystem | None = None) -> None:
        scheme, colon, rest = location.partition(":")
        if colon and scheme == "file":
            path = "/" + rest.lstrip("/")
        elif colon and "/" not in scheme and rest.startswith("//"):
            raise Rejected(f"{location}: scheme {scheme!r} is not served; give a local path or a file:// URI")
        else:
            path = os.path.abspath(location)
        self.base = path.rstrip("/") or "/"
        self.location = location
        self.fs = filesystem or pafs.LocalFileSystem()

    def path(self, relative: str) -> str:
        """The path that ``fs`` understands."""
        return f"{self.base}/{relative}" if relative else self.base

    @contextmanager
    def _outcomes(self, relative: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except PermissionError as error:
            raise Rejected(
                f"{self.path(relative)}: permission denied for {_user()}; grant read access to the whole table, "
                "its .hoodie directory included"
            ) from error
        except OSError as error:
            raise Transient(f"{self.path(relative)}: {str(error).splitlines()[0]}") from error

    def read(self, relative: str) -> bytes:
        """The whole file. Raises FileNotFoundError, Rejected or Transient."""
        with self._outcomes(relative), self.fs.open_input_stream(self.path(relative)) as stream:
            return bytes(stream.read())

    def open(self, relative: str) -> pa.NativeFile:
        """The file, open for random access. Raises FileNotFoundError, Rejected or Transient."""
        with self._outcomes(relative):
            return self.fs.open_input_file(self.path(relative))

    def info(self, relative: str) -> pafs.FileInfo:
        """Kind, size in bytes and modification time; kind NotFound where there is nothing."""
        with self._outcomes(relative):
            return self.fs.get_file_info(self.path(relative))

    def is_file(self, relative: str) -> bool:
        """Whether ``relative`` is a file."""
        return bool(self.info(relative).type == pafs.FileType.File)

    def size(self, relative: str) -> int | None:
        """Size in bytes, None where there is no such file."""
        info = self.info(relative)
        return info.size if info.type == pafs.FileType.File else None

    def sizes(self, relative: Sequence[str]) -> dict[str, int]:
        """Sizes in bytes of those of the files that exist."""
        if not relative:
            return {}
        with self._outcomes(""):
            infos = self.fs.get_file_info([self.path(path) for path in relative])
        pairs = zip(relative, infos, strict=True)
        return {path: info.size for path, info in pairs if info.type == pafs.FileType.File}

    def modified(self, relative: Sequence[str]) -> dict[str, datetime]:
        """When those of the files that exist were written last, as aware times in UTC."""
        if not relative:
            return {}
        with self._outcomes(""):
            infos = self.fs.get_file_info([self.path(path) for path in relative])
        pairs = zip(relative, infos, strict=True)
        return {path: info.mtime for path, info in pairs if info.type == pafs.FileType.File}

    def children(self, relative: str) -> list[pafs.FileInfo]:
        """Files and directories directly in ``relative``; none where it does not exist."""
        with self._outcomes(relative):
            return list(self.fs.get_file_info(pafs.FileSelector(self.path(relative), allow_not_found=True)))

    def names(self, relative: str) -> list[str]:
        """Names of the files directly in ``relative``."""
        return [i.base_name for i in self.children(relative) if i.type == pafs.FileType.File]

    def newest(self, relative: str) -> datetime | None:
        """When the file ``relative``, or anything below that directory, was last modified; None where nothing is."""
        info = self.info(relative)
        found = [info]
        if info.type == pafs.FileType.Directory:
            with self._outcomes(relative):
                selector = pafs.FileSelector(info.path, recursive=True, allow_not_found=True)
                found += self.fs.get_file_info(selector)
        return max((i.mtime for i in found if i.type != pafs.FileType.NotFound), default=None)

    def delete(self, relative: str) -> None:
        """Remove the file; one that is gone already is fine."""
        with self._outcomes(relative), suppress(FileNotFoundError):
            self.fs.delete_file(self.path(relative))

    def relative(self, path: str) -> str:
        """The inverse of ``path``."""
        return path[len(self.base) :].lstrip("/")

    def data_files(self) -> Iterator[tuple[str, int]]:
        """Relative path and size of every file outside ``.hoodie``, without partition markers and checksums."""
        for top in self.children(""):
            if top.type == pafs.FileType.File:
                found = [top]
            elif top.base_name == ".hoodie":
                continue
            else:
                with self._outcomes(self.relative(top.path)):
                    selector = pafs.FileSelector(top.path, recursive=True, allow_not_found=True)
                    found = [i for i in self.fs.get_file_info(selector) if i.type == pafs.FileType.File]
            for info in found:
                name = info.base_name
                if not name.startswith(".hoodie_partition_metadata") and not name.endswith(".crc"):
                    yield self.relative(info.path), info.size


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


def table_properties(storage: Storage) -> Mapping[str, str]:
    """The table's ``hoodie.properties``; Rejected where there is no Hudi table."""
    # Hudi replaces the file by way of a backup, so for a moment only the backup is there.
    for name in (PROPERTIES, PROPERTIES + ".backup", PROPERTIES):
        try:
            return MappingProxyType(parse_properties(storage.read(name).decode("utf-8", "replace")))
        except (FileNotFoundError, NotADirectoryError):
            continue
    raise Rejected(
        f"{storage.location}: not a Hudi table, there is no {PROPERTIES}; give the table's base path or a directory "
        "that holds tables"
    )
