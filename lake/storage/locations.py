# SPDX-License-Identifier: Apache-2.0
"""How the place of a table is written: a local path, ``hdfs://…``, or ``s3://bucket/key`` however that is spelled.

Two spellings of a place are told by their text. Two names of a directory (a symbolic link, a bind mount) are not: which
directory a path leads to, only the file system knows.
"""

import os
import re
from collections.abc import Hashable

_URI = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_S3 = re.compile(r"s3[an]?://", re.IGNORECASE)
_HDFS = re.compile(r"hdfs://(?P<authority>[^/]*)(?P<path>.*)", re.IGNORECASE | re.DOTALL)
_ABSOLUTE = re.compile(r"/|file:/|[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def canonical_location(location: str, start: str | os.PathLike[str] = "") -> str:
    """The one spelling that all spellings of a place share, without trailing slash.

    Local paths become absolute, from ``start`` where they are relative, without ``file:``; ``s3a:`` and ``s3n:``
    become ``s3:``, since they name the same bucket. Of HDFS two names of one NameNode stay two places.
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
    """A place in its canonical spelling as Hadoop takes it, whose default may be another file system than this one."""
    return f"file:{location}" if location.startswith("/") else location


def resolve_path(location: str, path: str) -> str:
    """Where a file of the table at ``location`` is, by the ``path`` that slices, outputs and superseded versions name.

    That is relative to the location for a file below it, and else absolute: a path of this machine or a URI, as where
    a partition was moved, or where a table keeps its data in another bucket. '' is the location itself.
    """
    return path if _ABSOLUTE.match(path) else f"{location}/{path}".rstrip("/")


def relative_path(location: str, path: str) -> str:
    """The ``path`` by which ``resolve_path`` finds a place."""
    return "" if path == location else path.removeprefix(f"{location}/")


def location_identity(location: str) -> Hashable:
    """What is equal for all names of one place: the directory itself where it is a local one, else its spelling.

    Looks at the file system. Where nothing is there, or can't be looked at, two names are two places.
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
    """What places on one file system share: scheme and authority; '' for this machine's own and mounted ones."""
    if is_local(location):
        return ""
    scheme, _, rest = canonical_location(location).partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def is_s3(location: str) -> bool:
    """Whether a location is on S3 or on a store with its API."""
    return _S3.match(location) is not None


def is_hdfs(location: str) -> bool:
    """Whether a location is on HDFS."""
    return _HDFS.match(location) is not None


def is_local(location: str) -> bool:
    """Whether a location is a path of this machine's file systems."""
    return location.startswith("file:") or _URI.match(location) is None


def bucket_and_key(location: str) -> tuple[str, str]:
    """The bucket of a location on S3, and its key without slashes at either end; '' for the bucket itself."""
    bucket, _, key = location.partition("://")[2].partition("/")
    return bucket, re.sub("/{2,}", "/", key).strip("/")
