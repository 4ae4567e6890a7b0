# SPDX-License-Identifier: Apache-2.0
"""Spark's event logs: which tables each query scanned. A reading continues where the last one ended.

A log is a file with a JSON event in each line, plain or compressed as a whole by ``zstd`` or ``lz4``. While its
application runs, its name ends in ``.inprogress``. Rolling logs are files in a directory ``eventlog_v2_…``.
"""

import json
import os
import re
import struct
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import zstandard

_IN_PROGRESS = ".inprogress"
_ROLLING_PREFIX = "eventlog_v2_"
_CODECS = (".zstd", ".lz4")
#: Spark's other codecs; logs compressed by them are not read
_UNREADABLE = (".lzf", ".snappy")
_CHUNK_BYTES = 1 << 20
#: longer events are skipped: an event describes its query plan, which may name thousands of partitions
_MAX_LINE_BYTES = 32 << 20
_START_EVENT = b"SparkListenerSQLExecutionStart"
_APPLICATION_EVENT = b"SparkListenerApplicationStart"
_OWN_NAME = re.compile(rb'"App Name"\s*:\s*"lakefold"')
_LZ4_MAGIC = b"LZ4Block"
_LZ4_HEADER = struct.Struct("<8sBiii")
_LZ4_RAW = 0x10
#: the paths in the description of a scan's location; Spark truncates a long list of paths
_PATHS = re.compile(r"\[([^\]]*)(\]?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableScan:
    """One scan of a table by a query: the table's ``name`` in the catalog, '' if it was read by ``paths``."""

    at: datetime
    name: str
    paths: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class LogReading:
    """The reading of one log: ``position`` is the number of uncompressed bytes that were read, ending with a line."""

    position: int
    #: True for a log of lakefold's own Spark application, whose scans do not count as reads
    is_own: bool = False
    #: True if the whole log was read
    is_finished: bool = False


def find_logs(directory: str) -> Iterator[tuple[str, Path]]:
    """Yield each log below ``directory``: a key that stays the same when the application ends, and its path.

    Raises OSError if the directory can't be listed.
    """
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if entry.is_file() and not entry.name.startswith("."):
            yield from _keyed(Path(entry.path))
        elif entry.is_dir() and entry.name.startswith(_ROLLING_PREFIX):
            for name in sorted(os.listdir(entry.path)):
                if name.startswith("events_"):
                    yield from _keyed(Path(entry.path, name))


def _keyed(path: Path) -> Iterator[tuple[str, Path]]:
    key = str(path).removesuffix(_IN_PROGRESS)
    if not key.endswith(_UNREADABLE):
        yield key, path


def read_scans(path: Path, reading: LogReading, max_bytes: int) -> Iterator[TableScan]:
    """Yield the scans in the complete lines behind ``reading.position``, and move the position.

    Reads at most ``max_bytes`` of new uncompressed content, and one line more. A compressed log is decompressed from
    its beginning. The end of a log that is being written may be incomplete: it is read the next time. Raises OSError.
    """
    with path.open("rb") as file, closing(_chunks(path, file, reading.position)) as chunks:
        pending, is_too_long, read = b"", False, 0
        for chunk in chunks:
            read += len(chunk)
            lines = (pending + chunk).split(b"\n")
            pending = lines.pop()
            for number, line in enumerate(lines):
                if _APPLICATION_EVENT in line and _OWN_NAME.search(line):
                    reading.is_own = True
                    return
                if _START_EVENT in line and not (is_too_long and number == 0):
                    yield from _scans_of(line)
            reading.position += sum(len(line) + 1 for line in lines)
            is_too_long = is_too_long and not lines
            if len(pending) > _MAX_LINE_BYTES:
                reading.position += len(pending)
                pending, is_too_long = b"", True
            if read >= max_bytes and lines:
                return
        reading.is_finished = True


def _chunks(path: Path, file: BinaryIO, position: int) -> Generator[bytes]:
    """Yield the uncompressed content behind ``position``, as far as it is complete."""
    codec = path.name.removesuffix(_IN_PROGRESS)
    if not codec.endswith(_CODECS):
        file.seek(position)
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
        return
    for chunk in _zstd_chunks(file) if codec.endswith(".zstd") else _lz4_chunks(file):
        skipped = min(position, len(chunk))
        position -= skipped
        if skipped < len(chunk):
            yield chunk[skipped:]


def _zstd_chunks(file: BinaryIO) -> Iterator[bytes]:
    reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    while True:
        try:
            chunk = reader.read(_CHUNK_BYTES)
        except zstandard.ZstdError:  # the last frame is being written
            return
        if not chunk:
            return
        yield chunk


def _lz4_chunks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the blocks of lz4-java's ``LZ4BlockOutputStream``, which has a frame of its own."""
    codec = pa.Codec("lz4_raw")
    while len(head := file.read(_LZ4_HEADER.size)) == _LZ4_HEADER.size:
        magic, token, compressed, size, _ = _LZ4_HEADER.unpack(head)
        if magic != _LZ4_MAGIC or compressed < 0 or size < 0:
            return
        block = file.read(compressed)
        if len(block) < compressed:
            return
        if size:
            yield block if token & 0xF0 == _LZ4_RAW else codec.decompress(block, size, asbytes=True)


def _scans_of(line: bytes) -> Iterator[TableScan]:
    """Yield one scan for each table of a query; nothing for a line with another event."""
    try:
        event: Mapping[str, Any] = json.loads(line)
        at = datetime.fromtimestamp(event["time"] / 1000, UTC)
        nodes = [event["sparkPlanInfo"]]
    except (ValueError, KeyError, TypeError, OverflowError):
        return
    seen = set()
    while nodes:
        node = nodes.pop()
        nodes += node.get("children") or ()
        name = node.get("nodeName") or ""
        if not name.startswith(("Scan ", "BatchScan ")):
            continue
        words, metadata = name.split(), node.get("metadata") or {}
        paths = _paths_of(metadata.get("Location") or "")
        table = words[-1] if len(words) > 2 or name.startswith("BatchScan ") else ""
        if (table or paths) and (table, paths) not in seen:
            seen.add((table, paths))
            yield TableScan(at=at, name=table, paths=paths)


def _paths_of(location: str) -> tuple[str, ...]:
    found = _PATHS.search(location)
    if found is None:
        return ()
    paths = [path.strip() for path in found[1].split(",") if path.strip()]
    return tuple(paths if found[2] else paths[:-1])  # the last one was cut short
