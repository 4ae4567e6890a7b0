# SPDX-License-Identifier: Apache-2.0
"""Floating-point chunks with NaN or zeros: readers and Parquet's format disagree about their order.

pyarrow leaves NaN out of the smallest and the largest value of a chunk, as the format requires. Spark orders NaN above
every number and skips chunks by these bounds, so ``d > 100`` would miss NaN. 0.0 and -0.0 are equal to every reader,
but a dictionary and a Bloom filter distinguish them. parquet-java skips a chunk that lacks the zero that a query
searches for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from executors.nested_types import leaf_arrays, leaf_types


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
        #: the columns with floating-point leaves: their numbers, and the numbers of their first leaves
        self._columns: list[tuple[int, int]] = []
        start = 0
        for index, kind in enumerate(schema.types):
            leaves = list(leaf_types(kind))
            if any(map(pat.is_floating, leaves)):
                self._columns.append((index, start))
            start += len(leaves)
        #: for each write its first row in the file, the row after its last one, and its columns with NaN or zeros
        self._written: list[tuple[int, int, SpecialFloats]] = []
        self._rows = 0

    def add(self, rows: pa.Table) -> None:
        """Inspect the rows that are written next."""
        odd = SpecialFloats()
        for index, start in self._columns:
            for chunk in rows.column(index).chunks:
                for leaf, values in enumerate(leaf_arrays(chunk), start):
                    if pat.is_floating(values.type):
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
