# SPDX-License-Identifier: Apache-2.0
"""HDFS without a JVM: the Hadoop configuration that Spark also reads, and its files for ``pyarrow.fs``.

Name services, Kerberos and the rest are configured by the directory ``HADOOP_CONF_DIR`` (or
``$HADOOP_HOME/etc/hadoop``), overridden by Spark's settings that begin with ``spark.hadoop.``. Each process passes
these settings to ``configure``.

``hdfs-native`` has a bridge to ``pyarrow`` of its own, by way of fsspec. The bridge parses paths as URLs, so that a
path with ``#`` or ``?`` names another file, and its errors have no errno. So this module has a bridge of its own.
"""

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pyarrow as pa
from pyarrow import fs as pafs

from lake.errors import Rejected, first_line

if TYPE_CHECKING:
    from hdfs_native import Client, FileStatus

PREFIX = "spark.hadoop."
"""The prefix of Hadoop's settings among Spark's."""

_CONFIGURATION_FILES = ("core-site.xml", "hdfs-site.xml")
#: the beginnings of the settings that concern HDFS; Spark's other settings may be secrets of other stores
_HDFS_PREFIXES = ("dfs.", "hadoop.", "fs.defaultFS", "fs.trash.", "fs.viewfs.")
#: few attempts, since lakefold's callers try again themselves; hdfs-native's own defaults take minutes
_DEFAULTS = {"dfs.client.failover.max.attempts": "5", "dfs.client.failover.sleep.max.millis": "3000"}
#: the Java class that an error names, and its errno
_ERRNO_BY_JAVA_EXCEPTION = {
    "AccessControlException": errno.EACCES,
    "AuthorizationException": errno.EACCES,
    "PathIsNotEmptyDirectoryException": errno.ENOTEMPTY,
    "DSQuotaExceededException": errno.EDQUOT,
    "NSQuotaExceededException": errno.EDQUOT,
    "QuotaByStorageTypeExceededException": errno.EDQUOT,
    "ParentNotDirectoryException": errno.ENOTDIR,
    "FileNotFoundException": errno.ENOENT,
    "FileAlreadyExistsException": errno.EEXIST,
}
_RPC_ERROR = re.compile(r'RPCError\("[\w.$]*?(\w+)", "(.*)"\)', re.DOTALL)

_settings: Mapping[str, str] = {}
_received: Mapping[str, str] | None = None


def configure(spark_settings: Mapping[str, str]) -> None:
    """Set Hadoop's settings among Spark's for this process; they replace those of an earlier call."""
    global _settings, _received
    _received = None
    named = {key.removeprefix(PREFIX): value for key, value in spark_settings.items() if key.startswith(PREFIX)}
    _settings = {key: value for key, value in named.items() if key.startswith(_HDFS_PREFIXES)}
    _client.cache_clear()


def use_configuration(configuration: Mapping[str, str]) -> None:
    """Use all of Hadoop's settings from another process's ``current_configuration``, not those of a directory."""
    global _received
    if configuration != _received:
        _received = dict(configuration)
        _client.cache_clear()


def current_configuration() -> dict[str, str]:
    """Return the settings for ``use_configuration`` in another process: the directory's, overridden by Spark's."""
    found = dict(_DEFAULTS)
    directory = configuration_directory()
    for name in _CONFIGURATION_FILES if directory else ():
        found |= _properties(Path(directory) / name)
    return found | dict(_settings)


def configuration_directory() -> str:
    """Return the directory of Hadoop's configuration from the environment; '' if it is not set."""
    given = os.environ.get("HADOOP_CONF_DIR")
    home = os.environ.get("HADOOP_HOME")
    return given or (f"{home}/etc/hadoop" if home else "")


def _properties(path: Path) -> dict[str, str]:
    try:
        root = ElementTree.fromstring(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ElementTree.ParseError) as error:
        raise Rejected(f"{path} can't be read: {error}; correct HADOOP_CONF_DIR, or the file") from error
    pairs = ((one.findtext("name"), one.findtext("value")) for one in root.iter("property"))
    return {name.strip(): value.strip() for name, value in pairs if name and value is not None}


def client(location: str) -> "Client":
    """Return the client of the name service or NameNode in ``location``. Raises Rejected if it names none."""
    authority = location.partition("://")[2].partition("/")[0]
    if not authority:
        raise Rejected(f"{location} names no name service; write it as hdfs://NAMESERVICE/…, as tables' locations do")
    return _client(authority)


@cache
def _client(authority: str) -> "Client":
    from hdfs_native import Client

    settings = current_configuration() if _received is None else dict(_received)
    try:
        with errors_with_errno():
            return Client(f"hdfs://{authority}", settings)
    except OSError as error:
        raise Rejected(
            f"hdfs://{authority}: {error.strerror or error}; name the name service in hdfs-site.xml of "
            f"HADOOP_CONF_DIR ({configuration_directory() or 'which is not set'})"
        ) from error


def hdfs_path(location: str) -> str:
    """Return the path of a location in its name service."""
    return "/" + location.partition("://")[2].partition("/")[2]


@contextmanager
def errors_with_errno() -> Iterator[None]:
    """Turn errors of ``hdfs-native`` in the block into OSError with an errno."""
    try:
        yield
    except OSError as error:
        text = first_line(error)
        number = error.errno or next(
            (known for kind, known in _ERRNO_BY_PYTHON_EXCEPTION.items() if isinstance(error, kind)), errno.EIO
        )
        raise OSError(number, text) from error
    except RuntimeError as error:
        match = _RPC_ERROR.match(str(error))
        kind, text = (match[1], match[2].replace("\\n", "\n").replace('\\"', '"')) if match else ("", str(error))
        raise OSError(_ERRNO_BY_JAVA_EXCEPTION.get(kind, errno.EIO), (text.splitlines() or [kind])[0]) from error


_ERRNO_BY_PYTHON_EXCEPTION = {
    FileNotFoundError: errno.ENOENT,
    FileExistsError: errno.EEXIST,
    PermissionError: errno.EACCES,
}


def filesystem(location: str) -> pafs.FileSystem:
    """Return the name service in ``location`` as a pyarrow file system. Raises Rejected."""
    return pafs.PyFileSystem(_Handler(location.partition("://")[2].partition("/")[0], client(location)))


class _Handler(pafs.FileSystemHandler):  # type: ignore[misc]
    """A name service as a handler for pyarrow."""

    def __init__(self, authority: str, files: "Client") -> None:
        self._authority, self._files = authority, files

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handler) and other._authority == self._authority

    __hash__ = None  # type: ignore[assignment]

    def get_type_name(self) -> str:
        return "hdfs"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> pafs.FileInfo:
        try:
            with errors_with_errno():
                return _info(self._files.get_file_info(path))
        except (FileNotFoundError, NotADirectoryError):
            return pafs.FileInfo(path, pafs.FileType.NotFound)

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        try:
            with errors_with_errno():
                found = list(self._files.list_status(selector.base_dir, selector.recursive))
        except FileNotFoundError:
            if selector.allow_not_found:
                return []
            raise
        return [_info(one) for one in found]

    def create_dir(self, path: str, recursive: bool) -> None:
        with errors_with_errno():
            self._files.mkdirs(path, create_parent=recursive)

    def delete_dir(self, path: str) -> None:
        with errors_with_errno():
            if not self._files.delete(path, True):
                raise FileNotFoundError(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        selector = pafs.FileSelector(path, allow_not_found=missing_dir_ok)
        for one in self.get_file_info_selector(selector):
            with errors_with_errno():
                self._files.delete(one.path, True)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError("a whole name service is never emptied")

    def delete_file(self, path: str) -> None:
        with errors_with_errno():
            if not self._files.delete(path, False):
                raise FileNotFoundError(path)

    def move(self, src: str, dest: str) -> None:
        with errors_with_errno():
            self._files.rename(src, dst=dest, overwrite=True)

    def copy_file(self, src: str, dest: str) -> None:
        copy_file(self._files, src, dest)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        with errors_with_errno():
            return pa.PythonFile(_FileWithErrno(self._files.read(path)), mode="r")

    def open_output_stream(self, path: str, metadata: Mapping[str, str]) -> pa.NativeFile:
        from hdfs_native import WriteOptions

        with errors_with_errno():
            opened = self._files.create(path, WriteOptions(overwrite=True, create_parent=False))
        return pa.PythonFile(_FileWithErrno(opened), mode="w")

    def open_append_stream(self, path: str, metadata: Mapping[str, str]) -> pa.NativeFile:
        raise NotImplementedError("appending to a file is not supported")


class _FileWithErrno:
    """An open file whose errors have an errno."""

    def __init__(self, opened: Any) -> None:
        self._opened = opened
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def read(self, size: int = -1) -> bytes:
        with errors_with_errno():
            return bytes(self._opened.read(size))

    def write(self, data: Any) -> int:
        with errors_with_errno():
            return int(self._opened.write(bytes(data)))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with errors_with_errno():
                self._opened.close()


def _info(status: "FileStatus") -> pafs.FileInfo:
    kind = pafs.FileType.Directory if status.isdir else pafs.FileType.File
    size = None if status.isdir else status.length
    return pafs.FileInfo(status.path, kind, size=size, mtime_ns=status.modification_time * 1_000_000)


_CHUNK_BYTES = 8 << 20


def copy_file(files: "Client", source: str, target: str) -> None:
    """Copy a file to ``target``, which must not exist. Raises FileNotFoundError, FileExistsError, OSError."""
    from hdfs_native import WriteOptions

    with errors_with_errno():
        read, status = files.read(source), files.get_file_info(source)
        options = WriteOptions(block_size=status.blocksize, replication=status.replication, create_parent=False)
        with files.create(target, options) as written:
            while chunk := read.read(_CHUNK_BYTES):
                written.write(chunk)
