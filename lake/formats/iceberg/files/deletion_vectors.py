# SPDX-License-Identifier: Apache-2.0
"""The deleted positions of a deletion vector, for an engine.

Spark's executors may lack PyIceberg and its library of bitmaps, so numpy decodes the vector here. The verification
reads the same vectors by PyIceberg. Sources of the format: Iceberg's Puffin specification, "deletion-vector-v1 blob
type", and https://github.com/RoaringBitmap/RoaringFormatSpec.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lake.errors import Conflict, Transient, first_line

Positions = npt.NDArray[np.int64]

_MAGIC = bytes.fromhex("d1d33964")
_HAS_RUNS, _NO_RUNS = 12347, 12346
_MIN_CONTAINERS_WITH_OFFSETS = 4
"""If there are fewer containers, and some are runs, the bitmap does not have the offsets of containers."""
_MAX_ARRAY = 4096
"""A container with more values is a bitset."""
_BITSET_BYTES = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorLocation:
    """A deletion vector: the path of its file, its first byte there, its size in bytes, and how many rows it deletes.

    These are figures of the table's metadata. Other vectors may be in the same file.
    """

    path: str
    offset: int
    bytes: int
    rows: int


def read_vector(location: VectorLocation) -> Iterator[Positions]:
    """Yield the deleted positions, at most 65,536 at a time.

    Raises Conflict if the file is gone, Transient if it can't be read or its content is not what the metadata states.
    """
    path = location.path
    try:
        with open(path, "rb") as file:
            file.seek(location.offset)
            blob = file.read(location.bytes)
        count = 0
        for positions in _positions(_bitmap(blob, location.bytes)):
            count += len(positions)
            yield positions
        if count != location.rows:
            raise ValueError(f"the deletion vector has {count} rows, and the table's metadata states {location.rows}")
    except FileNotFoundError as error:
        raise Conflict(f"{path} was deleted while the plan ran") from error
    except (OSError, ValueError) as error:
        raise Transient(f"{path} can't be read now: {first_line(error)}") from error


def _bitmap(blob: bytes, size: int) -> memoryview:
    """Return the bitmap in a blob: behind the length and the magic bytes, before the checksum."""
    if len(blob) != size or size < 12 or int.from_bytes(blob[:4], "big") != size - 8 or blob[4:8] != _MAGIC:
        raise ValueError("there is no deletion vector where the table's metadata places it")
    if zlib.crc32(blob[4:-4]) != int.from_bytes(blob[-4:], "big"):
        raise ValueError("the checksum of the deletion vector is wrong")
    return memoryview(blob)[8:-4]


class _BitmapReader:
    """The parts of a bitmap, one after the other."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def bytes(self, count: int) -> memoryview:
        """Return the next bytes."""
        self._at += count
        if self._at > len(self._data):
            raise ValueError("the deletion vector is cut short")
        return self._data[self._at - count : self._at]

    def integer(self, size: int) -> int:
        """Return the next integer of ``size`` bytes."""
        return int.from_bytes(self.bytes(size), "little")

    def shorts(self, count: int) -> Positions:
        """Return the next integers of two bytes."""
        return np.frombuffer(self.bytes(2 * count), dtype="<u2").astype(np.int64)

    def require_end(self) -> None:
        """Raise ValueError if bytes are left."""
        if self._at != len(self._data):
            raise ValueError("the deletion vector is longer than its bitmaps")


def _positions(data: memoryview) -> Iterator[Positions]:
    """Yield the positions of a bitmap of 64 bits, which has a bitmap of 32 bits for each value of the upper bits."""
    reader, last_key = _BitmapReader(data), -1
    for _ in range(reader.integer(8)):
        key = reader.integer(4)
        if key <= last_key or key >= 1 << 31:
            raise ValueError("the bitmaps of the deletion vector are not in order")
        last_key = key
        for positions in _values(reader):
            yield positions + (key << 32)
    reader.require_end()


def _values(reader: _BitmapReader) -> Iterator[Positions]:
    """Yield the values of a bitmap of 32 bits, which has a container for each value of the upper 16 bits."""
    cookie = reader.integer(4)
    has_runs = cookie & 0xFFFF == _HAS_RUNS
    if not has_runs and cookie != _NO_RUNS:
        raise ValueError("the deletion vector has a bitmap of unknown format")
    count = (cookie >> 16) + 1 if has_runs else reader.integer(4)
    if count > 1 << 16:
        raise ValueError("the deletion vector has too many containers")
    flags = np.frombuffer(reader.bytes(-(-count // 8) if has_runs else 0), dtype=np.uint8)
    is_run = np.unpackbits(flags, bitorder="little")[:count] if has_runs else np.zeros(count, dtype=np.uint8)
    header = reader.shorts(2 * count)
    if not has_runs or count >= _MIN_CONTAINERS_WITH_OFFSETS:
        reader.bytes(4 * count)  # the containers are read one after the other
    for key, size, run in zip(header[::2], header[1::2] + 1, is_run, strict=True):
        if run:
            found = _run(reader)
        elif size <= _MAX_ARRAY:
            found = reader.shorts(int(size))
        else:
            bits = np.frombuffer(reader.bytes(_BITSET_BYTES), dtype=np.uint8)
            found = np.flatnonzero(np.unpackbits(bits, bitorder="little")).astype(np.int64)
        if len(found) != size:
            raise ValueError("a container of the deletion vector has another number of values than it states")
        yield found + (key << 16)


def _run(reader: _BitmapReader) -> Positions:
    """Return the values of a container of runs, each of which has its first value and the number of further values."""
    runs = reader.shorts(2 * reader.integer(2))
    firsts, lengths = runs[::2], runs[1::2] + 1
    behind = np.cumsum(lengths)
    found: Positions = np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(firsts - (behind - lengths), lengths)
    return found
