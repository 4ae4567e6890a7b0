# SPDX-License-Identifier: Apache-2.0
"""The file system of a location, as ``pyarrow.fs`` opens it."""

from pyarrow import fs as pafs

from lake import s3
from lake.errors import Rejected
from lake.locations import bucket_and_key, canonical_location, file_at, is_local, is_s3


def filesystem_of(location: str) -> tuple[pafs.FileSystem, str]:
    """The file system of ``location`` and the path of ``location`` in it, without trailing slash.

    Raises Rejected for a scheme that is not served and for settings that can't be followed.
    """
    if is_local(location):
        return pafs.LocalFileSystem(), canonical_location(location)
    if is_s3(location):
        bucket, key = bucket_and_key(location)
        return s3.access(bucket).filesystem(bucket), f"{bucket}/{key}".rstrip("/")
    scheme = location.partition(":")[0]
    raise Rejected(f"{location}: scheme {scheme!r} is not served; give a local path, a file:// URI or an s3:// URI")


def file_of(location: str, path: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a file of the table at ``location``, and its path in it; ``path`` as ``file_at`` takes it.

    Raises Rejected as ``filesystem_of`` does.
    """
    return filesystem_of(file_at(location, path))
