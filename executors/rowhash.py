# SPDX-License-Identifier: Apache-2.0
"""An order-free fingerprint of rows: equal for equal multisets of rows, in any division into files and batches.

Every value becomes 64 bits, by numpy over whole columns. A null is 0 and adds nothing, so that a column which older
files do not have equals a column of nulls. The hash of a row is the mixed sum of its values, each mixed with the name
of its column. The hashes of rows are summed modulo 2^64 in two different ways. Differences of encoding do not change
the fingerprint: width of an integer, unit of a timestamp, precision of a decimal, dictionary, large and view variants,
payload of a NaN, sign of a zero, order of the entries of a map.
"""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from executors.nested_types import is_list, without_view
from lake.errors import Rejected

Words = npt.NDArray[np.uint64]
Signed = npt.NDArray[np.int64]

_MASK = (1 << 64) - 1
# Odd constants without structure, each for one purpose, so that different kinds of values don't get equal hashes.
_POSITION = np.uint64(0x9E3779B97F4A7C15)
_LENGTH = np.uint64(0xD1342543DE82EF95)
_VALUE = np.uint64(0xA0761D6478BD642F)
_STRUCT = np.uint64(0xE7037ED1A0B428DB)
_HIGH = np.uint64(0x8EBC6AF09C88C6E3)
_ROW = np.uint64(0x589965CC75374CC3)
_SECOND = np.uint64(0x1D8E4E27C47D124F)
_BYTES_IN_WORD = np.arange(9)
#: keeps the lowest n bytes of a word
_LOW_BYTES = np.array([(1 << 8 * int(count)) - 1 for count in _BYTES_IN_WORD], dtype=np.uint64)


@dataclass(slots=True)
class Fingerprint:
    """The sums of a multiset of rows. ``column_sums`` has the sum of each top-level column that is not all null."""

    rows: int = 0
    column_sums: dict[str, int] = field(default_factory=dict)
    row_sum: int = 0
    second_row_sum: int = 0

    def add(self, batch: pa.RecordBatch, ignore: Collection[str] = ()) -> None:
        """Add the rows of ``batch``, without the top-level columns in ``ignore``. Raises Rejected for unknown types."""
        if batch.num_rows == 0:
            return
        row = np.full(batch.num_rows, _ROW, np.uint64)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name not in ignore:
                hashes = _hash_with_name(_hash(column, name), name)
                row += hashes
                self.column_sums[name] = (self.column_sums.get(name, 0) + int(hashes.sum())) & _MASK
        row = _mix(row)
        self.rows += batch.num_rows
        self.row_sum = (self.row_sum + int(row.sum())) & _MASK
        self.second_row_sum = (self.second_row_sum + int(_mix(row ^ _SECOND).sum())) & _MASK

    def merge(self, other: "Fingerprint") -> None:
        """Add the rows of ``other``."""
        self.rows += other.rows
        for name, value in other.column_sums.items():
            self.column_sums[name] = (self.column_sums.get(name, 0) + value) & _MASK
        self.row_sum = (self.row_sum + other.row_sum) & _MASK
        self.second_row_sum = (self.second_row_sum + other.second_row_sum) & _MASK

    def differing_column(self, other: "Fingerprint") -> str | None:
        """Return the first column, by name, whose values differ; None if there is none."""
        names = sorted(self.column_sums.keys() | other.column_sums.keys())
        return next((n for n in names if self.column_sums.get(n, 0) != other.column_sums.get(n, 0)), None)


def sum_of_hashes(array: pa.Array, name: str) -> int:
    """Return the sum of a column's hashes, whatever their order. Raises Rejected for an unknown type."""
    return int(_hash(array, name).sum()) & _MASK if len(array) else 0


def _mix(words: Words) -> Words:
    """The finalizer of splitmix64: a bijection in which each input bit flips about half of the output bits."""
    mixed = words ^ (words >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


@lru_cache(maxsize=4096)
def _seed(name: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little"))


def _hash_with_name(hashes: Words, name: str) -> Words:
    """Return the hashes of a column under its name; a null stays 0."""
    return np.where(hashes == 0, np.uint64(0), _mix(hashes + _seed(name)))


def _hash(array: pa.Array, name: str) -> Words:
    """Return 64 bits for each value, 0 for a null."""
    if len(array) == array.null_count:
        return np.zeros(len(array), np.uint64)
    if isinstance(array, pa.ExtensionArray):
        return _hash(array.storage, name)
    kind = array.type
    if pat.is_dictionary(kind):
        hashes = _hash(array.dictionary, name)[np.asarray(array.indices.fill_null(0))]
    elif pat.is_boolean(kind) or pat.is_integer(kind):
        hashes = _integers(array)
    elif pat.is_floating(kind):
        hashes = _floats(array)
    elif pat.is_decimal(kind):
        hashes = _decimals(array)
    elif pat.is_temporal(kind) and not pat.is_interval(kind):
        hashes = _times(array)
    elif _is_bytes(kind):
        hashes = _strings(array)
    elif pat.is_struct(kind):
        hashes = np.full(len(array), _STRUCT, np.uint64)
        for index in range(kind.num_fields):
            child = kind.field(index).name
            hashes += _hash_with_name(_hash(array.field(index), f"{name}.{child}"), child)
        hashes = _mix(hashes)
    elif pat.is_map(kind) or is_list(kind):
        hashes = _lists(array, name)
    else:
        raise Rejected(
            f"column {name} has type {kind}, which verification = hash can't compare; set verification = footer"
        )
    if array.null_count:
        hashes[np.asarray(array.is_null())] = 0
    result: Words = hashes
    return result


def _is_bytes(kind: pa.DataType) -> bool:
    return any(
        check(kind)
        for check in (
            pat.is_string,
            pat.is_binary,
            pat.is_large_string,
            pat.is_large_binary,
            pat.is_fixed_size_binary,
            pat.is_string_view,
            pat.is_binary_view,
        )
    )


def _values(array: pa.Array, dtype: str, words: int = 1) -> npt.NDArray[Any]:
    """Return the data buffer of a fixed-width array, ``words`` numbers for each value."""
    kind = np.dtype(dtype)
    return np.frombuffer(array.buffers()[1], kind, len(array) * words, array.offset * words * kind.itemsize)


def _integers(array: pa.Array) -> Words:
    if pat.is_boolean(array.type):
        array = array.cast(pa.uint8())
    sign, target = ("u", np.uint64) if pat.is_unsigned_integer(array.type) else ("i", np.int64)
    values = _values(array, f"<{sign}{array.type.bit_width // 8}").astype(target)
    return _mix(values.view(np.uint64) + _POSITION)


def _floats(array: pa.Array) -> Words:
    values = _values(array, f"<f{array.type.bit_width // 8}").astype(np.float64)
    values += 0.0  # the negative zero becomes the positive one
    values[np.isnan(values)] = np.nan
    return _mix(values.view(np.uint64) + _POSITION)


def _decimals(array: pa.Array) -> Words:
    if array.type.bit_width < 128:
        array = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    words = array.type.bit_width // 64
    parts = _values(array, "<i8", words).reshape(len(array), words)
    hashes: Words = _mix(parts[:, 0].view(np.uint64) + _POSITION) + parts[:, 1].view(np.uint64) * _HIGH
    sign = parts[:, 1] >> 63
    for index in range(2, words):  # words that only repeat the sign add nothing: 128 and 256 bits agree
        hashes += (parts[:, index] ^ sign).view(np.uint64) * (_LENGTH + np.uint64(2 * index))
    return _mix(hashes)


_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def _times(array: pa.Array) -> Words:
    """Hash dates by day; other times by microsecond and the remaining nanoseconds."""
    kind = array.type
    values: Signed = _values(array, f"<i{kind.bit_width // 8}").astype(np.int64)
    if pat.is_date(kind):
        return _mix((values // 86_400_000 if pat.is_date64(kind) else values).view(np.uint64) + _POSITION)
    if kind.unit == "ns":
        whole, rest = np.divmod(values, 1000)
        return _mix(whole.view(np.uint64) + rest.view(np.uint64) * _HIGH + _POSITION)
    return _mix((values * (1_000_000 // _PER_SECOND[kind.unit])).view(np.uint64) + _POSITION)


def _strings(array: pa.Array) -> Words:
    """Hash strings and bytes: eight bytes at a time, each word mixed with its position, and the length."""
    if len(array) > 64 and array.null_count == 0 and pc.all(pc.equal(array, array[0])).as_py():
        return np.full(
            len(array), _strings(array[:1])[0], np.uint64
        )  # a constant column, such as commit times or partition values
    if not (pat.is_large_binary(array.type)):
        if pat.is_fixed_size_binary(array.type) or pat.is_string_view(array.type):
            array = array.cast(pa.binary() if pat.is_fixed_size_binary(array.type) else pa.string())
        array = array.cast(pa.large_binary())
    offsets = np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, array.offset * 8)
    data = array.buffers()[2]
    padded = np.zeros(int(offsets[-1] - offsets[0]) + 8, np.uint8)
    if padded.size > 8:
        padded[:-8] = np.frombuffer(data, np.uint8, padded.size - 8, int(offsets[0]))
    # The window has an eight-byte word at each byte: selecting the words of a string needs no loop and no alignment.
    window = np.ndarray((padded.size - 7,), np.dtype("<u8"), padded, strides=(1,))
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    counts = (lengths + 7) // 8
    ends = np.zeros(len(array) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    position = np.arange(ends[-1]) - np.repeat(ends[:-1], counts)
    words = window[np.repeat(starts, counts) + position * 8]
    words &= _LOW_BYTES[np.minimum(np.repeat(lengths, counts) - position * 8, 8)]
    words += (position.view(np.uint64) + np.uint64(1)) * _POSITION
    return _mix(_range_sums(_mix(words), ends) + lengths.view(np.uint64) * _LENGTH + _POSITION)


def _lists(array: pa.Array, name: str) -> Words:
    """Hash lists by element and position; maps by entry without position, since their order carries no meaning."""
    array = without_view(array)
    kind = array.type
    if pat.is_fixed_size_list(kind):
        offsets: Signed = (np.arange(len(array) + 1) + array.offset) * kind.list_size
    else:
        width = "<i8" if pat.is_large_list(kind) else "<i4"
        itemsize = np.dtype(width).itemsize
        raw = np.frombuffer(array.buffers()[1], width, len(array) + 1, array.offset * itemsize)
        offsets = raw.astype(np.int64)
    low, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    offsets = offsets - low
    lengths = np.diff(offsets)
    if pat.is_map(kind):
        keys = _hash(array.keys.slice(low, count), f"{name}.key")
        items = _hash(array.items.slice(low, count), f"{name}.value")
        elements = _mix(keys + _mix(items + _VALUE))
    else:
        position = np.arange(count) - np.repeat(offsets[:-1], lengths)
        elements = _mix(
            _hash(array.values.slice(low, count), f"{name}.element") + (position + 1).view(np.uint64) * _POSITION
        )
    return _mix(_range_sums(elements, offsets) + lengths.view(np.uint64) * _LENGTH + _VALUE)


def _range_sums(values: Words, offsets: Signed) -> Words:
    """Return the sums modulo 2^64 of the values between each offset and the next."""
    running = np.zeros(values.size + 1, np.uint64)
    np.cumsum(values, out=running[1:])
    return running[offsets[1:]] - running[offsets[:-1]]
