# SPDX-License-Identifier: Apache-2.0
"""Which columns of a new file are smaller without a dictionary, estimated from the rows of its first row group.

The inputs do not tell: a column can have few values in each small file, and more in a row group than a dictionary can
have. pyarrow then builds a dictionary, stores it, and goes on without one. This takes longer than the rest of writing
the column.
"""

from collections.abc import Mapping
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


def leaves_without_dictionary(rows: pa.Table, is_compressed: Mapping[int, bool]) -> set[int]:
    """Return the leaf columns that are smaller without a dictionary, among those in ``is_compressed``.

    ``is_compressed`` has the leaf columns in question by their numbers.
    """
    found, first = set[int](), 0
    for column in rows.columns:
        behind = first + sum(1 for _ in leaf_types(column.type))
        if not is_compressed.keys().isdisjoint(range(first, behind)):
            for leaf, values in enumerate(leaf_arrays(_sample(column)), first):
                if leaf in is_compressed and _is_smaller_plain(values.drop_null(), is_compressed[leaf]):
                    found.add(leaf)
        first = behind
    return found


def _sample(column: pa.ChunkedArray) -> pa.Array:
    """Return all numbers of a column, or the first values of another column."""
    if not pat.is_primitive(column.type):
        column = column.slice(0, max(1, _SAMPLE_BYTES * len(column) // max(1, column.nbytes)))
    return column.combine_chunks()


def _is_smaller_plain(values: pa.Array, is_compressed: bool) -> bool:
    """Estimate whether values without nulls are smaller without a dictionary. Returns False for unusual types."""
    kind, count = values.type, len(values)
    if not count:
        return False
    if pat.is_primitive(kind) and not pat.is_boolean(kind):
        numbers = _bits(values)
        hashes = numbers.astype(np.uint64) * _HASH_FACTOR
        share, distinct = 1 << _HASH_BITS, pc.unique(pa.array(numbers[hashes >> np.uint64(64 - _HASH_BITS) == 0]))
        first = pa.array(numbers[: _SAMPLE_BYTES // numbers.itemsize])
    elif pat.is_string(kind) or pat.is_binary(kind) or pat.is_fixed_size_binary(kind):
        share, distinct, first = 1, pc.unique(values), values
    else:
        return False
    references = len(distinct) * share
    if references * _OCCURRENCES <= count:
        return False
    if distinct.nbytes * share > _DICTIONARY_BYTES:
        return True
    plain_bytes = _stored_bytes(first, is_compressed) * count // len(first)
    dictionary_bytes = _stored_bytes(distinct, is_compressed) * share
    return plain_bytes <= dictionary_bytes + count * (references - 1).bit_length() // 8


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
