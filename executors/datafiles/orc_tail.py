# SPDX-License-Identifier: Apache-2.0
"""The tail of an ORC file and the footers of its stripes, which pyarrow does not show.

An ORC timestamp is a number of seconds since 2015 in the writer's time zone, which each stripe's footer names. Readers
show the wall clock of that zone, independent of their own zone. So equal numbers in files with different zones are
different values.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from zoneinfo import TZPATH

import pyarrow as pa

#: numbers from ``orc_proto.proto``
_TIMESTAMP, _DATE, _CHAR = 9, 15, 17
_ZLIB, _SNAPPY, _LZ4, _ZSTD, _BROTLI = 1, 2, 4, 5, 6
_CODECS = {_ZSTD: "zstd", _BROTLI: "brotli"}
_TAIL_BYTES = 16 << 10
_VERSION_OF_SPARK = "org.apache.spark.version"
#: a day within the range of nanoseconds, to allow for time zones
_FIRST_MS, _LAST_MS = -(1 << 63) // 1_000_000 + 86_400_000, (1 << 63) // 1_000_000 - 86_400_000
_UTC = frozenset({"UTC", "GMT", "Etc/UTC", "Etc/GMT", "UCT", "Etc/UCT", "Zulu", "Etc/Zulu", "Z", "Greenwich", "GMT0"})


@dataclass(frozen=True, slots=True)
class OrcColumn:
    """A column of a file, or a part of one, as the footer describes it."""

    type_number: int
    field_names: tuple[str, ...]
    children: tuple[int, ...]
    #: length, precision, scale and attributes
    detail: bytes = b""


@dataclass(frozen=True, slots=True)
class Stripe:
    """The position of a stripe in its file, its own footer included."""

    offset: int
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class OrcTail:
    """The contents of an ORC tail. ``writer_zones`` are the stripes' time zones, "" for a stripe that names none."""

    rows: int
    stripes: tuple[Stripe, ...]
    columns: tuple[OrcColumn, ...]
    writer_zones: frozenset[str]
    #: the smallest and largest timestamp of all columns, in milliseconds of the wall clock; None if not recorded
    timestamp_bounds_ms: tuple[int, int] | None
    #: version of the format, compression, version of the writer, rows between entries of the index
    encoding: tuple[int | bytes, ...]
    #: the number of the library that wrote the file
    writer: int
    is_proleptic: bool
    is_encrypted: bool
    metadata: dict[str, bytes] = field(hash=False)

    @property
    def has_timestamps(self) -> bool:
        """True if a column has the type whose values depend on the writer's time zone."""
        return self._has_type(_TIMESTAMP)

    @property
    def has_timestamps_in_nanosecond_range(self) -> bool:
        """True if all timestamps are known to be within the years 1678 to 2261, which pyarrow can read."""
        return (
            self.timestamp_bounds_ms is not None
            and self.timestamp_bounds_ms[0] > _FIRST_MS
            and self.timestamp_bounds_ms[1] < _LAST_MS
        )

    @property
    def has_dates(self) -> bool:
        """True if a column has a type whose old values depend on the writer's calendar."""
        return self._has_type(_TIMESTAMP) or self._has_type(_DATE)

    @property
    def has_chars(self) -> bool:
        """True if a column is a ``char``, whose values Hive pads to their length."""
        return self._has_type(_CHAR)

    def is_encoded_like(self, other: "OrcTail") -> bool:
        """True if the same bytes in a stripe mean the same rows in both files."""
        return (
            self.columns == other.columns
            and self.encoding == other.encoding
            and self.is_proleptic == other.is_proleptic
            and not self.is_encrypted
            and not other.is_encrypted
        )

    @property
    def is_written_by_spark(self) -> bool:
        """True if Spark wrote the file."""
        return _VERSION_OF_SPARK in self.metadata

    def _has_type(self, kind: int) -> bool:
        return any(column.type_number == kind for column in self.columns)


def read_tail(file: pa.NativeFile) -> OrcTail:
    """Return the tail of an open ORC file. Raises OSError, or ``pa.ArrowInvalid`` if the file has no readable tail."""
    try:
        return _read_tail(file)
    except (IndexError, ValueError, zlib.error) as error:
        raise pa.ArrowInvalid(f"the ORC file has a footer that can't be read: {error}") from error


def _read_tail(file: pa.NativeFile) -> OrcTail:
    size = file.size()
    tail = file.read_at(min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
    script_length = tail[-1]
    script = _ProtobufMessage(tail[-1 - script_length : -1])
    if script.bytes_field(8000) != b"ORC":
        raise pa.ArrowInvalid("the file does not end as an ORC file does")
    length, compression = script.number_field(1), script.number_field(2)
    needed = length + script_length + 1
    if needed > len(tail):
        tail = file.read_at(needed, size - needed)
    footer = _ProtobufMessage(_decompress(tail[-needed : len(tail) - script_length - 1], compression))
    columns = tuple(map(_column, footer.repeated_field(4)))
    zones: set[str] = set()
    stripes = []
    has_zones = any(column.type_number == _TIMESTAMP for column in columns)
    for stripe in map(_ProtobufMessage, footer.repeated_field(3)):
        begin, body, end = (
            stripe.number_field(1),
            stripe.number_field(2) + stripe.number_field(3),
            stripe.number_field(4),
        )
        stripes.append(Stripe(begin, body + end, stripe.number_field(5)))
        if has_zones:
            stripe_footer = _ProtobufMessage(_decompress(file.read_at(end, begin + body), compression))
            zones.add(stripe_footer.bytes_field(3).decode())
    metadata = {
        item.bytes_field(1).decode(): item.bytes_field(2) for item in map(_ProtobufMessage, footer.repeated_field(5))
    }
    return OrcTail(
        rows=footer.number_field(6),
        stripes=tuple(stripes),
        columns=columns,
        writer_zones=frozenset(zones),
        timestamp_bounds_ms=_timestamp_bounds(columns, footer.repeated_field(7)),
        encoding=(*script.repeated_field(4), compression, script.number_field(6), footer.number_field(8)),
        writer=footer.number_field(9),
        is_proleptic=footer.number_field(11) == 2,
        is_encrypted=bool(footer.repeated_field(10)),
        metadata=metadata,
    )


def _timestamp_bounds(columns: Sequence[OrcColumn], statistics: Sequence[bytes]) -> tuple[int, int] | None:
    bounds = []
    for number, column in enumerate(columns):
        if column.type_number != _TIMESTAMP:
            continue
        if number >= len(statistics):
            return None
        known = _ProtobufMessage(statistics[number])
        if known.number_field(1):
            found = _ProtobufMessage(known.bytes_field(9))
            pairs = [pair for pair in ((3, 4), (1, 2)) if found.has(*pair)]
            if not pairs:
                return None
            bounds.append(tuple(_signed(found.number_field(which)) for which in pairs[0]))
    return (min(low for low, _ in bounds), max(high for _, high in bounds)) if bounds else (0, 0)


def _signed(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def _column(message: bytes) -> OrcColumn:
    one = _ProtobufMessage(message)
    parts = tuple(number for packed in one.repeated_field(2) for number in _unpack(packed))
    detail = b"".join(
        b"%d=%s;" % (number, bytes(value)) for number in (4, 5, 6) for value in one.number_as_text(number)
    )
    attributes = sorted(bytes(value) for value in one.repeated_field(7))
    names = tuple(bytes(name).decode() for name in one.repeated_field(3))
    return OrcColumn(one.number_field(1), names, parts, detail + b"".join(attributes))


class _ProtobufMessage:
    """A protobuf message: its values by field number."""

    def __init__(self, content: bytes) -> None:
        self._fields: dict[int, list[int | bytes]] = {}
        at = 0
        while at < len(content):
            key, at = _varint(content, at)
            value: int | bytes
            if key & 7 == 0:
                value, at = _varint(content, at)
            elif key & 7 == 2:
                length, at = _varint(content, at)
                value, at = content[at : at + length], at + length
            elif key & 7 in (1, 5):
                length = 8 if key & 7 == 1 else 4
                value, at = content[at : at + length], at + length
            else:
                raise ValueError(f"wire type {key & 7}")
            self._fields.setdefault(key >> 3, []).append(value)

    def number_field(self, field: int) -> int:
        """Return a number. 0 if the message lacks the field."""
        found = self._fields.get(field, [0])[-1]
        return found if isinstance(found, int) else 0

    def bytes_field(self, field: int) -> bytes:
        """Return a text or a message. Empty if the message lacks the field."""
        found = self._fields.get(field, [b""])[-1]
        return found if isinstance(found, bytes) else b""

    def has(self, *which: int) -> bool:
        """True if the message has all of these fields."""
        return all(one in self._fields for one in which)

    def repeated_field(self, field: int) -> list[bytes]:
        """Return each occurrence of a field as bytes; an unpacked number is returned as a packed number."""
        return [one if isinstance(one, bytes) else _packed(one) for one in self._fields.get(field, ())]

    def number_as_text(self, field: int) -> list[bytes]:
        """Return a number as text, in a list that is empty if the message lacks the field."""
        return [b"%d" % self.number_field(field)] if field in self._fields else []


def _packed(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


def _unpack(packed: bytes) -> Iterator[int]:
    at = 0
    while at < len(packed):
        number, at = _varint(packed, at)
        yield number


def _varint(content: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = content[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def _decompress(content: bytes, compression: int) -> bytes:
    """Decompress content that was compressed in chunks, each with a header of three bytes."""
    if compression == 0:
        return content
    found, at = [], 0
    while at < len(content):
        header = int.from_bytes(content[at : at + 3], "little")
        chunk = content[at + 3 : at + 3 + (header >> 1)]
        at += 3 + len(chunk)
        found.append(chunk if header & 1 else _decompress_chunk(chunk, compression))
    return b"".join(found)


def _decompress_chunk(chunk: bytes, compression: int) -> bytes:
    if compression == _ZLIB:
        return zlib.decompress(chunk, -zlib.MAX_WBITS)
    if compression == _SNAPPY:
        size, _ = _varint(chunk, 0)
        return bytes(pa.Codec("snappy").decompress(chunk, size, asbytes=True))
    if compression == _LZ4:
        return _lz4(chunk)
    if compression in _CODECS:
        with pa.CompressedInputStream(pa.BufferReader(chunk), _CODECS[compression]) as stream:
            return bytes(stream.read())
    raise ValueError(f"compression {compression} is unknown")


def _lz4(chunk: bytes) -> bytes:
    """Decompress an LZ4 block. pyarrow's codec needs the decompressed length, which ORC does not store."""
    found, at = bytearray(), 0
    while at < len(chunk):
        token, at = chunk[at], at + 1
        length, at = _lz4_length(chunk, at, token >> 4)
        found += chunk[at : at + length]
        at += length
        if at >= len(chunk):
            break
        back, at = int.from_bytes(chunk[at : at + 2], "little"), at + 2
        length, at = _lz4_length(chunk, at, token & 15)
        start = len(found) - back
        for index in range(start, start + length + 4):
            found.append(found[index])
    return bytes(found)


def _lz4_length(chunk: bytes, at: int, length: int) -> tuple[int, int]:
    if length == 15:
        while True:
            byte, at = chunk[at], at + 1
            length += byte
            if byte != 0xFF:
                break
    return length, at


@lru_cache(maxsize=64)
def zone_rules(zone: str) -> bytes | str:
    """Return a value that all names of one time zone share: its rules in the system's database, else the name."""
    if zone in _UTC:
        return "UTC"
    parts = zone.split("/")
    if zone and all(part and part not in (".", "..") for part in parts):
        for folder in TZPATH:
            path = Path(folder, *parts)
            if path.is_file():
                return path.read_bytes()
    return zone
