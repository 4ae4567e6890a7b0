# SPDX-License-Identifier: Apache-2.0
"""HDFS audit logs: which files each user opened in each minute. A reading continues where the last one ended.

The NameNode writes one line for each operation (``FSNamesystem.logAuditEvent``), its fields separated by tabs::

    2026-11-27 04:17:50,123 INFO FSNamesystem.audit: allowed=true  ugi=etl (auth:SIMPLE)  ip=/10.0.0.7  cmd=open  src=/a
"""

import gzip
import hashlib
import math
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast
from urllib.parse import urlsplit

from lake.storage.locations import DATA_DIRS
from service.control.planning.spark_event_logs import LogReading

#: the prefix of a log's key; a digest follows it
KEY_PREFIX = "hdfs-audit:"
_GZIP = ".gz"
#: maximum length of a line; an audit log has no longer lines
_MAX_LINE_BYTES = 64 << 10
#: seconds without a change after which no further line of the last minute is expected
_IDLE_SECONDS = 60
_MINUTE = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d")
_OPEN = re.compile(rb"\ballowed=true\tugi=([^\t]*)\tip=[^\t]*\tcmd=open\tsrc=(/[^\t]*)\t")
#: directories of table formats' own metadata; their hidden directories begin with a dot or an underline
_METADATA_DIRECTORY = "metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteOfOpens:
    """The files that were opened in one minute; ``opens`` are pairs of a user and the path of a file."""

    at: datetime
    opens: frozenset[tuple[str, str]]


class HdfsPaths:
    """Finds the registered table of a file by the file's path in HDFS; audit logs do not name the NameNode."""

    def __init__(self, tables: Iterable[tuple[str, str]]) -> None:
        """``tables`` are names and locations; those of other file systems are ignored."""
        found: dict[str, list[str]] = {}
        for name, location in tables:
            parts = urlsplit(location)
            if parts.scheme == "hdfs":
                found.setdefault(parts.path.rstrip("/"), []).append(name)
        # If tables on two clusters have the same path, an audit log does not show which of them was read.
        self._by_path = {path: names[0] for path, names in found.items() if len(names) == 1}

    def find(self, path: str) -> str | None:
        """Return the name of the table of a data file; None for other files, such as the metadata of a table."""
        file = PurePosixPath(path)
        for parent in file.parents:
            if (name := self._by_path.get(str(parent))) is not None:
                directories = file.relative_to(parent).parts[:-1]
                return None if any(_is_metadata(directory) for directory in directories) else name
        return None


def _is_metadata(directory: str) -> bool:
    # The directories of versions are hidden, but they contain the data files of relocated partitions.
    is_hidden = directory.startswith((".", "_")) and directory not in DATA_DIRS
    return directory == _METADATA_DIRECTORY or is_hidden


def find_audit_logs(log: str) -> list[Path]:
    """Return the audit log at the path ``log`` and its rotated files beside it, sorted by their last change.

    Raises OSError if the directory can't be listed.
    """
    path = Path(log)
    names = [
        entry for entry in path.parent.iterdir() if entry.name == path.name or entry.name.startswith(path.name + ".")
    ]
    return sorted((entry for entry in names if entry.is_file()), key=lambda entry: (entry.stat().st_mtime, entry.name))


def log_key(path: Path) -> str | None:
    """Return the key of a log, a digest of its first line: a rotated, copied or compressed log keeps it.

    Returns None if the first line is not complete yet. Raises OSError.
    """
    with _open(path) as file:
        first = file.readline(_MAX_LINE_BYTES)
    return KEY_PREFIX + hashlib.sha256(first).hexdigest()[:32] if first.endswith(b"\n") else None


def read_minutes(path: Path, reading: LogReading, max_bytes: int) -> Iterator[MinuteOfOpens]:
    """Yield the opened files of each complete minute after ``reading.position``, and move the position.

    A minute is complete when a line of another minute follows, or when the log was not changed for a minute. So two
    rounds never count the same minute. Reads to the end of the minute in which ``max_bytes`` are exceeded. Raises
    OSError.
    """
    status = path.stat()
    is_idle = time.time() - status.st_mtime > _IDLE_SECONDS
    # Lines that are appended during the reading are left for the next round: their minute may have just begun.
    limit = math.inf if path.name.endswith(_GZIP) else status.st_size
    begin = end = reading.position
    current = before = b""
    opens: set[tuple[str, str]] = set()
    with _open(path) as file:
        file.seek(begin)
        while end < limit and (line := file.readline(_MAX_LINE_BYTES)):
            if not line.endswith(b"\n") and len(line) < _MAX_LINE_BYTES:
                break
            minute = line[:16]
            # Threads may write their lines out of order: lines of the previous minute do not end the current one.
            if minute not in (current, before) and _MINUTE.fullmatch(minute):
                if current:
                    yield from _minute(current, opens)
                    reading.position, opens = end, set()
                if end - begin > max_bytes:
                    return
                before, current = current, minute
            end += len(line)
            if b"\tcmd=open\t" in line and (found := _OPEN.search(line)):
                opens.add((_user(found[1]), found[2].decode(errors="replace")))
    if is_idle:
        yield from _minute(current, opens)
        reading.position, reading.is_finished = end, True


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if path.name.endswith(_GZIP) else path.open("rb")


def _minute(minute: bytes, opens: set[tuple[str, str]]) -> Iterator[MinuteOfOpens]:
    if opens:
        at = datetime.strptime(minute.decode(), "%Y-%m-%d %H:%M").replace(tzinfo=UTC)
        yield MinuteOfOpens(at=at, opens=frozenset(opens))


def _user(ugi: bytes) -> str:
    """Return the short name of ``alice/host@REALM (auth:PROXY) via hive (auth:KERBEROS)``: ``alice``."""
    return re.split(r"[ /@]", ugi.decode(errors="replace"), maxsplit=1)[0]
