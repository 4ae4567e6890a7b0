# SPDX-License-Identifier: Apache-2.0
"""Places on HDFS with the few methods of ``Path`` that tests use, past lakefold's own file systems."""

import shutil
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

from hdfs_native import Client, WriteOptions


@cache
def _client(authority: str) -> Client:
    return Client(f"hdfs://{authority}")


class HdfsPath:
    """``hdfs://authority/path``."""

    def __init__(self, location: str) -> None:
        self.authority, _, rest = location.removeprefix("hdfs://").partition("/")
        self.path = PurePosixPath("/", rest)

    @property
    def client(self) -> Client:
        return _client(self.authority)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def parent(self) -> "HdfsPath":
        return self._at(str(self.path.parent))

    def _at(self, path: str) -> "HdfsPath":
        return HdfsPath(f"hdfs://{self.authority}{path}")

    def __str__(self) -> str:
        return f"hdfs://{self.authority}{self.path}"

    def __eq__(self, other: object) -> bool:
        return str(other) == str(self)

    def __hash__(self) -> int:
        return hash(str(self))

    def __truediv__(self, part: str) -> "HdfsPath":
        return self._at(f"{self.path}/{part}")

    def with_name(self, name: str) -> "HdfsPath":
        return self.parent / name

    def relative_to(self, other: "HdfsPath") -> PurePosixPath:
        return self.path.relative_to(other.path)

    def exists(self) -> bool:
        try:
            self.client.get_file_info(str(self.path))
        except FileNotFoundError:
            return False
        return True

    def status(self) -> Any:
        return self.client.get_file_info(str(self.path))

    def stat(self) -> SimpleNamespace:
        status = self.status()
        return SimpleNamespace(st_size=status.length, st_mtime=status.modification_time / 1000)

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        self.client.mkdirs(str(self.path), create_parent=parents)

    def read_bytes(self) -> bytes:
        return bytes(self.client.read(str(self.path)).read())

    def read_text(self) -> str:
        return self.read_bytes().decode()

    def write_bytes(self, content: bytes) -> None:
        # Unlike a local file, one that is written again is never seen half written here.
        with self.client.create(str(self.path), WriteOptions(overwrite=True)) as file:
            file.write(content)

    def unlink(self) -> None:
        assert self.client.delete(str(self.path))

    def iterdir(self) -> Iterator["HdfsPath"]:
        return (self._at(one.path) for one in self.client.list_status(str(self.path)))

    def glob(self, pattern: str) -> Iterator["HdfsPath"]:
        depth = len(PurePosixPath(pattern).parts)
        return (
            path
            for path in self._below()
            if len((inside := path.relative_to(self)).parts) == depth and fnmatchcase(str(inside), pattern)
        )

    def rglob(self, pattern: str) -> Iterator["HdfsPath"]:
        return (path for path in self._below() if fnmatchcase(path.name, pattern))

    def _below(self) -> Iterator["HdfsPath"]:
        try:
            found = list(self.client.list_status(str(self.path), recursive=True))
        except FileNotFoundError:
            found = []
        return (self._at(one.path) for one in found)


AnyPath = Path | HdfsPath


def place(location: str) -> AnyPath:
    """A place, wherever it is."""
    return HdfsPath(location) if location.startswith("hdfs://") else Path(location.removeprefix("file:"))


def remove_tree(location: str) -> None:
    """Remove a directory, wherever it is."""
    there = place(location)
    if isinstance(there, Path):
        shutil.rmtree(there)
    else:
        assert there.client.delete(str(there.path), True)


def upload(base: Path, location: str) -> str:
    """Copy a directory to ``location``, without checksum files but with the files' times; ``location``.

    Files that seem written long after their commits are a sign of a wrong clock of the writer.
    """
    for path in sorted(base.rglob("*")):
        target = place(f"{location}/{path.relative_to(base)}")
        if path.is_dir():
            target.mkdir(parents=True)
        elif path.suffix != ".crc":
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
            if isinstance(target, HdfsPath):
                modified_ms = round(path.stat().st_mtime * 1000)
                target.client.set_times(str(target.path), modified_ms, modified_ms)
    return location
