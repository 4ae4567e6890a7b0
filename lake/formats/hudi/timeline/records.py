# SPDX-License-Identifier: Apache-2.0
"""The records in files of the timeline: Avro containers, JSON, and blocks of Hudi's log format.

A log file is a sequence of blocks: the bytes ``#HUDI#``, the block's length, format version, type, a header of
numbered strings, the content with its length, a footer like the header, and the block's length once more. Numbers are
big-endian. The content of an Avro block is its version, the number of records, and each record with its length.
"""

import io
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO, cast

import fastavro

from lake.errors import Transient

_MAGIC = b"#HUDI#"
_FORMAT_VERSION = 1
_AVRO_DATA_BLOCK = 3
#: the header entry that holds the writer's schema
_SCHEMA = 2


def decode_record(content: bytes | None) -> dict[str, Any] | None:
    """Decode the single record of a timeline file, an Avro container or JSON.

    Returns None if the file is empty. Raises Transient if the record is damaged or incomplete.
    """
    if not content:
        return None
    try:
        if content.startswith(b"Obj\x01"):
            return cast(dict[str, Any], next(iter(fastavro.reader(io.BytesIO(content)))))
        return cast(dict[str, Any], json.loads(content))
    except (ValueError, EOFError, StopIteration, IndexError, KeyError) as error:
        raise Transient(f"a timeline file can't be decoded ({type(error).__name__}: {error})") from error


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One undecoded Avro record of a log file."""

    schema: str
    content: bytes

    def decode(self, *fields: str) -> dict[str, Any]:
        """Decode the record, or only ``fields`` of it (of plain types), which is much faster."""
        stream = io.BytesIO(self.content)
        wanted = _projected_schema(self.schema, fields) if fields else None
        return cast(dict[str, Any], fastavro.schemaless_reader(stream, _parsed(self.schema), wanted))


@lru_cache(maxsize=16)
def _parsed(schema: str) -> Any:
    return fastavro.parse_schema(json.loads(schema))


@lru_cache(maxsize=16)
def _projected_schema(schema: str, fields: tuple[str, ...]) -> Any:
    record = json.loads(schema)
    record["fields"] = [field for field in record["fields"] if field["name"] in fields]
    return fastavro.parse_schema(record)


def read_log_records(content: bytes) -> Iterator[LogRecord]:
    """Yield the records of all Avro blocks of a log file, in the order of writing.

    A block that a crash cut short is skipped, as Hudi's own reader does.
    """
    position = content.find(_MAGIC)
    while position >= 0:
        start = position + len(_MAGIC)
        end = _block_end(content, start)
        if end is not None:
            yield from _read_block(content[start:end])
        position = content.find(_MAGIC, position + 1 if end is None else end)


def _block_end(content: bytes, start: int) -> int | None:
    """Return the end of the block whose length field is at ``start``; None if the block is incomplete."""
    if start + 8 > len(content):
        return None
    (length,) = struct.unpack_from(">q", content, start)
    end = start + 8 + length
    if length < 0 or end > len(content):
        return None
    (repeated,) = struct.unpack_from(">q", content, end - 8)
    whole = repeated == length + len(_MAGIC) and _MAGIC.startswith(content[end : end + len(_MAGIC)])
    return end if whole else None


def is_intact_log(source: BinaryIO, size: int) -> bool:
    """True if a log file of ``size`` bytes consists of complete blocks. Reads only the start and the end of each."""
    position = 0
    while position < size:
        source.seek(position)
        head = source.read(len(_MAGIC) + 8)
        if len(head) < len(_MAGIC) + 8 or not head.startswith(_MAGIC):
            return False
        (length,) = struct.unpack_from(">q", head, len(_MAGIC))
        end = position + len(head) + length
        if length < 8 or end > size:
            return False
        source.seek(end - 8)
        (repeated,) = struct.unpack(">q", source.read(8))
        if repeated != length + len(_MAGIC):
            return False
        position = end
    return size > 0


def read_log_schemas(source: BinaryIO, size: int) -> Iterator[str]:
    """Yield the writer's schema of each block of a log file of ``size`` bytes that has one; reads no records.

    Raises Transient if the log is not a sequence of complete blocks.
    """
    position = 0
    while position < size:
        source.seek(position)
        if source.read(len(_MAGIC)) != _MAGIC:
            raise Transient(f"no block of a log begins at {position}")
        length = _read_number(source, ">q")
        if length <= 0:
            raise Transient(f"the block of a log at {position} has the length {length}")
        _, header = _read_header(source)
        if _SCHEMA in header:
            yield header[_SCHEMA]
        position += len(_MAGIC) + 8 + length


def _read_number(stream: BinaryIO, form: str) -> int:
    return int(struct.unpack(form, stream.read(struct.calcsize(form)))[0])


def _read_header(stream: BinaryIO) -> tuple[int, dict[int, str]]:
    """Return the type and the header of the block whose length has just been read from ``stream``."""
    version, kind = _read_number(stream, ">i"), _read_number(stream, ">i")
    if version != _FORMAT_VERSION:
        raise Transient(f"log format version {version} is unknown")
    header = {}
    for _ in range(_read_number(stream, ">i")):
        key = _read_number(stream, ">i")
        header[key] = stream.read(_read_number(stream, ">i")).decode()
    return kind, header


def _read_block(block: bytes) -> Iterator[LogRecord]:
    stream = io.BytesIO(block)
    _read_number(stream, ">q")
    kind, header = _read_header(stream)
    if kind != _AVRO_DATA_BLOCK:
        return
    _read_number(stream, ">q")  # length of the content
    _read_number(stream, ">i")  # version of the content
    for _ in range(_read_number(stream, ">i")):
        yield LogRecord(header[_SCHEMA], stream.read(_read_number(stream, ">i")))
