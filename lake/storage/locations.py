# SPDX-License-Identifier: Apache-2.0
"""Spellings of a table's location: a local path, ``hdfs://…``, or ``s3://bucket/key`` in any of its spellings.

Two spellings of one location are recognized as equal by their text alone. Two names of one directory (a symbolic link,
a bind mount) are not: only the file system shows that they are equal, see ``location_identity``.
"""

import os
import re
from collections.abc import Hashable

DATA_DIR = ".lakefold"
"""The directory, in a Hive table's own directory, that holds versions.

Hive, Spark, Trino, Flink and Impala skip names that begin with a dot, below the directory that they list. Impala skips
no name that begins with ``_``, as ``LEGACY_DATA_DIR`` and lakefold's names below ``.lakefold`` do. ``docs/hive.md``
has the rule of each reader.
"""

LEGACY_DATA_DIR = "_lakefold"
"""The name that earlier releases gave to ``DATA_DIR``. The partition versions that they wrote stay there until they are
replaced.
"""

DATA_DIRS = (DATA_DIR, LEGACY_DATA_DIR)

_URI = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_S3 = re.compile(r"s3[an]?://", re.IGNORECASE)
_HDFS = re.compile(r"hdfs://(?P<authority>[^/]*)(?P<path>.*)", re.IGNORECASE | re.DOTALL)
_ABSOLUTE = re.compile(r"/|file:/|[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def canonical_location(location: str, start: str | os.PathLike[str] = "") -> str:
    """Return the canonical spelling of a location, without trailing slash.

    A local path becomes absolute (relative to ``start``) and loses ``file:``; ``s3a:`` and ``s3n:`` become ``s3:``,
    since they name the same bucket. On HDFS, two names of one NameNode stay two locations.
    """
    if location.startswith("file:"):
        location = "/" + location.removeprefix("file:").lstrip("/")
    if is_local(location):
        return os.path.abspath(os.path.join(start, os.path.expanduser(location)))
    if (hdfs := _HDFS.fullmatch(location)) is not None:
        path = re.sub("/{2,}", "/", hdfs["path"]).rstrip("/")
        return f"hdfs://{hdfs['authority'].lower()}{path}"
    return _S3.sub("s3://", location, count=1).rstrip("/") if is_s3(location) else location.rstrip("/")


def hadoop_uri(location: str) -> str:
    """Return a canonical location as a URI for Hadoop, whose default file system may be another one."""
    return f"file:{location}" if location.startswith("/") else location


def resolve_path(location: str, path: str) -> str:
    """Return the full path of a table's file; ``path`` as in slices, outputs and superseded versions.

    ``path`` is relative to the location for a file below it. Otherwise it is absolute, a local path or a URI: for
    example of a relocated partition, or of a table with data in another bucket. '' is the location itself.
    """
    return path if _ABSOLUTE.match(path) else f"{location}/{path}".rstrip("/")


def relative_path(location: str, path: str) -> str:
    """Return the ``path`` that ``resolve_path`` resolves to the given full path."""
    return "" if path == location else path.removeprefix(f"{location}/")


def is_below_table(path: str) -> bool:
    """True if ``path``, as ``relative_path`` returns it, is a table's own location or lies below it."""
    return _ABSOLUTE.match(path) is None


def location_identity(location: str) -> Hashable:
    """Return a value that is equal for all names of one location: a local directory's inode, else the spelling.

    Reads the file system. If nothing is there, or access fails, two names are two locations.
    """
    spelled = canonical_location(location)
    if not is_local(spelled):
        return spelled
    try:
        status = os.stat(spelled)
    except (OSError, ValueError):
        return spelled
    return status.st_dev, status.st_ino


def filesystem_key(location: str) -> str:
    """Return the key of a location's file system: scheme and authority; '' for local and mounted ones."""
    if is_local(location):
        return ""
    scheme, _, rest = canonical_location(location).partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def is_s3(location: str) -> bool:
    """True if a location is on S3 or on a store with its API."""
    return _S3.match(location) is not None


def is_hdfs(location: str) -> bool:
    """True if a location is on HDFS."""
    return _HDFS.match(location) is not None


def is_local(location: str) -> bool:
    """True if a location is a path of this machine's file systems."""
    return location.startswith("file:") or _URI.match(location) is None


def bucket_and_key(location: str) -> tuple[str, str]:
    """Return the bucket of a location on S3, and its key without slashes at either end; '' for the bucket itself."""
    bucket, _, key = location.partition("://")[2].partition("/")
    return bucket, re.sub("/{2,}", "/", key).strip("/")
