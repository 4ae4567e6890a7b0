# SPDX-License-Identifier: Apache-2.0
"""Floating-point chunks with NaN or zeros: readers disagree with Parquet's format about the order of these values.

pyarrow leaves NaN out of the smallest and the largest value of a chunk, as the format requires. Spark orders NaN above
every number and skips chunks by these bounds, so ``d > 100`` would miss NaN. 0.0 and -0.0 are equal to every reader,
but a dictionary and a Bloom filter distinguish them. parquet-java skips a chunk that lacks the zero that a query
searches for.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.types as pat


@dataclass(slots=True)
class SpecialFloats:
    """The indexes of the leaf columns with a NaN in some row, and of those with a zero."""

    nan_columns: set[int] = field(default_factory=set)
    zero_columns: set[int] = field(default_factory=set)

    def merge(self, other: "SpecialFloats") -> None:
        """Add the columns of ``other``."""
        self.nan_columns |= other.nan_columns
        self.zero_columns |= other.zero_columns


class SpecialFloatTracker:
    """Tracks which leaf columns of a file that is being written have NaN or a zero, for each row group."""

    def __init__(self, schema: pa.Schema) -> None:
        counts = [_leaf_count(kind) for kind in schema.types]
        starts = [sum(counts[:index]) for index in range(len(counts))]
        self._columns = [
            (index, start)
            for index, (kind, start) in enumerate(zip(schema.types, starts, strict=True))
            if _has_floats(kind)
        ]
        #: for each write its first row in the file, the row after its last one, and its columns with NaN or zeros
        self._written: list[tuple[int, int, SpecialFloats]] = []
        self._rows = 0

    def add(self, rows: pa.Table) -> None:
        """Inspect the rows that are written next."""
        odd = SpecialFloats()
        for index, start in self._columns:
            for chunk in rows.column(index).chunks:
                for leaf, values in enumerate(_leaves(chunk), start):
                    if values is not None:
                        _find_special_floats(values, leaf, odd)
        self._written.append((self._rows, self._rows + rows.num_rows, odd))
        self._rows += rows.num_rows

    def of_row_groups(self, counts: Sequence[int]) -> list[SpecialFloats]:
        """Return the columns with NaN or zeros for each row group; ``counts`` are the row groups' numbers of rows.

        Writes and row groups may have different boundaries: a write that overlaps two row groups counts for both.
        """
        found, begin = [], 0
        for count in counts:
            group = SpecialFloats()
            for first, last, odd in self._written:
                if first < begin + count and last > begin:
                    group.merge(odd)
            found.append(group)
            begin += count
        return found


def _find_special_floats(array: pa.Array, leaf: int, odd: SpecialFloats) -> None:
    values = np.asarray(array.drop_null())
    if leaf not in odd.nan_columns and np.isnan(values).any():
        odd.nan_columns.add(leaf)
    if leaf not in odd.zero_columns and (values == 0).any():
        odd.zero_columns.add(leaf)


def _has_floats(kind: pa.DataType) -> bool:
    return pat.is_floating(kind) or any(_has_floats(child.type) for child in _children(kind))


def _leaf_count(kind: pa.DataType) -> int:
    children = _children(kind)
    return sum(_leaf_count(child.type) for child in children) if children else 1


def _children(kind: pa.DataType) -> Sequence[pa.Field]:
    if pat.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pat.is_struct(kind):
        return list(kind)
    if _is_list(kind):
        return [kind.value_field]
    return []


def _is_list(kind: pa.DataType) -> bool:
    kinds: Sequence[Callable[[pa.DataType], bool]] = (pat.is_list, pat.is_large_list, pat.is_fixed_size_list)
    return any(check(kind) for check in kinds)


def _leaves(array: pa.Array) -> Iterator[pa.Array | None]:
    """Yield each leaf column at any depth in file order: its values, or None if not floating-point."""
    kind = array.type
    if pat.is_struct(kind):
        for child in array.flatten():
            yield from _leaves(child)
    elif pat.is_map(kind):
        entries = array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
        yield from _leaves(entries.flatten())
    elif _is_list(kind):
        yield from _leaves(array.flatten())
    else:
        yield array if pat.is_floating(kind) else None
