# SPDX-License-Identifier: Apache-2.0
"""Which columns of a new file are smaller without a dictionary, estimated from the rows of its first row group.

The inputs do not tell: a column can have few values in each small file, and more in a row group than a dictionary can
have. pyarrow then builds a dictionary, stores it, and goes on without one. This takes longer than the rest of writing
the column.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from executors.nested_types import leaf_arrays, leaf_types

#: pyarrow writes no larger dictionary
_DICTIONARY_BYTES = 1 << 20
#: a value that occurs this often on average is smaller as a reference, and runs of references take next to nothing
_OCCURRENCES = 8
#: numbers with one of eight hashes stand for all of them, wherever they occur
_HASH_BITS = 3
_HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)
#: the first values, of this size, stand for all where order matters, and for strings and nested values
_SAMPLE_BYTES = 1 << 20
#: numbers that are hashed at a time: hashes take 8 bytes each, and a row group may have tens of millions
_NUMBERS_AT_ONCE = 1 << 20


def leaves_without_dictionary(rows: pa.Table, is_compressed: Mapping[int, bool]) -> set[int]:
    """Return the leaf columns that are smaller without a dictionary, among those in ``is_compressed``.

    ``is_compressed`` has the leaf columns in question by their numbers.
    """
    found, first = set[int](), 0
    for column in rows.columns:
        kinds = list(leaf_types(column.type))
        behind = first + len(kinds)
        if not is_compressed.keys().isdisjoint(range(first, behind)):
            for leaf, (kind, parts) in enumerate(zip(kinds, _leaves(column), strict=True), first):
                if leaf in is_compressed and _is_smaller_plain(kind, parts, is_compressed[leaf]):
                    found.add(leaf)
        first = behind
    return found


def _leaves(column: pa.ChunkedArray) -> Iterator[Iterable[pa.Array]]:
    """Yield the values of each leaf of a column in parts: all numbers, or the first values of another column."""
    if pat.is_primitive(column.type):
        starts = range(0, len(column), _NUMBERS_AT_ONCE)
        yield (column.slice(start, _NUMBERS_AT_ONCE).combine_chunks() for start in starts)
        return
    sample = column.slice(0, max(1, _SAMPLE_BYTES * len(column) // max(1, column.nbytes)))
    for values in leaf_arrays(sample.combine_chunks()):
        yield [values]


def _is_smaller_plain(kind: pa.DataType, parts: Iterable[pa.Array], is_compressed: bool) -> bool:
    """Estimate whether values are smaller without a dictionary; nulls don't count. Returns False for unusual types."""
    if pat.is_primitive(kind) and not pat.is_boolean(kind):
        share = 1 << _HASH_BITS
        count, distinct, first = _count_distinct(parts)
    elif pat.is_string(kind) or pat.is_binary(kind) or pat.is_fixed_size_binary(kind):
        first = pa.concat_arrays([part.drop_null() for part in parts])
        share, count, distinct = 1, len(first), pc.unique(first)
    else:
        return False
    if not count:
        return False
    references = len(distinct) * share
    if references * _OCCURRENCES <= count:
        return False
    if distinct.nbytes * share > _DICTIONARY_BYTES:
        return True
    plain_bytes = _stored_bytes(first, is_compressed) * count // len(first)
    dictionary_bytes = _stored_bytes(distinct, is_compressed) * share
    return plain_bytes <= dictionary_bytes + count * (references - 1).bit_length() // 8


def _count_distinct(parts: Iterable[pa.Array]) -> tuple[int, pa.Array, pa.Array]:
    """Return how many numbers there are, the distinct ones with one of the hashes, and the first numbers."""
    count, found, first = 0, [pa.array([])], pa.array([])
    for part in parts:
        numbers = _bits(part.drop_null())
        if not len(numbers):
            continue
        if not count:
            first = pa.array(numbers[: _SAMPLE_BYTES // numbers.itemsize])
            found.clear()
        count += len(numbers)
        hashes = numbers.astype(np.uint64) * _HASH_FACTOR
        found.append(pc.unique(pa.array(numbers[hashes >> np.uint64(64 - _HASH_BITS) == 0])))
    return count, pc.unique(pa.concat_arrays(found)), first


def _bits(numbers: pa.Array) -> npt.NDArray[Any]:
    """Return numbers, dates or times as unsigned integers with the same bits."""
    kind = np.dtype(f"u{numbers.type.bit_width // 8}")
    return np.frombuffer(numbers.buffers()[1], kind, len(numbers), numbers.offset * kind.itemsize)


def _stored_bytes(values: pa.Array, is_compressed: bool) -> int:
    """Return about how many bytes values take in a file; other codecs save about as much as Snappy."""
    _, *others, content = values.buffers()
    if others:
        ends = np.frombuffer(others[0], np.int32)[values.offset :][: len(values) + 1]
        start, behind, lengths = int(ends[0]), int(ends[-1]), len(values)
    else:
        width = values.type.bit_width // 8
        start, behind, lengths = values.offset * width, (values.offset + len(values)) * width, 0
    content = content.slice(start, behind - start)
    return lengths + (len(pa.compress(content, "snappy")) if is_compressed else content.size)
