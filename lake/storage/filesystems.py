# SPDX-License-Identifier: Apache-2.0
"""The file system of a location, as ``pyarrow.fs`` and as ``lake.storage.files`` define one."""

from pyarrow import fs as pafs

from lake.errors import Rejected
from lake.storage import hdfs, s3
from lake.storage.files import FileIO
from lake.storage.hdfs_files import HdfsFileIO
from lake.storage.local import LocalFileIO
from lake.storage.locations import bucket_and_key, canonical_location, is_hdfs, is_local, is_s3, resolve_path


def filesystem_of(location: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of ``location`` and the path of ``location`` in it, without trailing slash.

    Raises Rejected for an unsupported scheme or setting.
    """
    if is_local(location):
        return pafs.LocalFileSystem(), canonical_location(location)
    if is_s3(location):
        bucket, key = bucket_and_key(location)
        return s3.access(bucket).filesystem(bucket), f"{bucket}/{key}".rstrip("/")
    if is_hdfs(location):
        canonical = canonical_location(location)
        return hdfs.filesystem(canonical), hdfs.hdfs_path(canonical)
    scheme = location.partition(":")[0]
    raise Rejected(
        f"{location}: scheme {scheme!r} is not supported; give a local path, or a file://, hdfs:// or s3:// URI"
    )


def filesystem_of_file(location: str, path: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system and the path in it of a table's file; ``path`` as in ``resolve_path``.

    Raises Rejected as ``filesystem_of`` does.
    """
    return filesystem_of(resolve_path(location, path))


def file_io_of(location: str) -> FileIO:
    """Return the file system of a location for moving files. Raises Rejected for stores that can't move files."""
    if is_local(location):
        return LocalFileIO()
    if is_hdfs(location):
        return HdfsFileIO(location)
    raise Rejected(f"{location}: such tables must be on HDFS, or on a local or mounted file system")
