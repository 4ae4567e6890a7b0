# SPDX-License-Identifier: Apache-2.0
"""The order of values and of rows by several columns, for every type that has an order.

Nulls are smaller than all values, NaN is greater than any number, and both zeros are one value, as in Spark.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

Indices = npt.NDArray[np.int64]


def is_sortable(kind: pa.DataType) -> bool:
    """True if values of this type can be ordered."""
    return bool(
        pat.is_boolean(kind)
        or pat.is_integer(kind)
        or pat.is_floating(kind)
        or pat.is_decimal(kind)
        or pat.is_string(kind)
        or pat.is_binary(kind)
        or pat.is_fixed_size_binary(kind)
        or pat.is_date(kind)
        or pat.is_time(kind)
        or pat.is_timestamp(kind)
    )


def sort_indices(columns: Sequence[pa.Array]) -> Indices:
    """Return the rows of ``columns`` in their order, as indices. Rows with equal values keep their order."""
    keys: dict[str, pa.Array] = {}
    for number, column in enumerate(columns):
        values = _comparable(column)
        if pat.is_floating(values.type):
            # Arrow places NaN beside the nulls.
            is_nan = pc.fill_null(pc.is_nan(values), False)
            if pc.any(is_nan).as_py():
                keys[f"{number} nan"] = is_nan
        keys[str(number)] = values
    order = pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending", "at_start") for name in keys])
    found: Indices = order.to_numpy().astype(np.int64)
    return found


def is_sorted(columns: Sequence[pa.Array]) -> bool:
    """True if the rows of ``columns`` are in order."""
    return bool((np.diff(sort_indices(columns)) > 0).all())


class SortedColumn:
    """The values of a column, sorted: a value's rank among them is found by binary search."""

    def __init__(self, column: pa.Array) -> None:
        values = _comparable(column)
        self.count, self._nulls = len(values), values.null_count
        nan = pc.sum(pc.is_nan(values)).as_py() or 0 if pat.is_floating(values.type) else 0
        self._not_nan = self.count - nan
        self._values = values.take(pa.array(sort_indices([column]))).slice(self._nulls, self._not_nan - self._nulls)

    def rank_ranges(self, column: pa.Array) -> tuple[Indices, Indices]:
        """Return for each value of ``column`` how many values here are smaller, and how many are not greater."""
        values = _comparable(column)
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        found = []
        for side, of_null, of_nan in (("left", 0, self._not_nan), ("right", self._nulls, self.count)):
            ranks = pc.fill_null(pc.search_sorted(self._values, values, side=side), 0).to_numpy().astype(np.int64)
            ranks += self._nulls
            ranks[is_null] = of_null
            if pat.is_floating(values.type):
                ranks[pc.fill_null(pc.is_nan(values), False).to_numpy(zero_copy_only=False)] = of_nan
            found.append(ranks)
        return found[0], found[1]


class KeyPlaces:
    """Finds the places of rows among ``count`` distinct rows, by several columns.

    A row that equals the ``i``-th of the distinct rows has the place ``2 * i + 1``. A row between this row and its
    predecessor has the place ``2 * i``.
    """

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        self._columns = [SortedColumn(column) for column in columns]
        self._known: list[Indices] = []
        found = np.zeros(len(columns[0]), dtype=np.int64)
        for column, values in zip(self._columns, columns, strict=True):
            codes = _codes(found, column, values)
            self._known.append(np.unique(codes))
            found = _places(self._known[-1], codes)
        self.count = len(self._known[-1])

    def of(self, columns: Sequence[pa.Array]) -> Indices:
        """Return the place of each row of ``columns``."""
        found = np.zeros(len(columns[0]), dtype=np.int64)
        for column, known, values in zip(self._columns, self._known, columns, strict=True):
            found = _places(known, _codes(found, column, values))
        return found


def _codes(before: Indices, column: SortedColumn, values: pa.Array) -> Indices:
    """Return numbers in the order of the rows by their places ``before`` and then by ``values``.

    The numbers of two rows are equal only if the rows agree in place and value, or if neither value is in ``column``.
    """
    smaller, not_greater = column.rank_ranges(values)
    return before * (2 * column.count + 1) + smaller + not_greater


def _places(known: Indices, codes: Indices) -> Indices:
    return np.searchsorted(known, codes, "left") + np.searchsorted(known, codes, "right")


def _comparable(column: pa.Array) -> pa.Array:
    """Return the values of a column in a type for which Arrow can sort and search, in the same order."""
    kind = column.type
    if pat.is_dictionary(kind):
        return _comparable(column.cast(kind.value_type))
    if pat.is_float16(kind):
        return _comparable(column.cast(pa.float32()))
    if pat.is_floating(kind):
        # Both zeros are one value.
        return pc.add(column, pa.scalar(0.0, kind))
    if pat.is_decimal(kind):
        column = _as_big_endian(column)
    return column.cast(pa.binary()) if pat.is_fixed_size_binary(column.type) else column


def _as_big_endian(column: pa.Array) -> pa.Array:
    """Return decimals as bytes of the same order: the most significant byte first, and negative numbers first."""
    width, start = column.type.byte_width, column.offset
    stored = np.frombuffer(column.buffers()[1] or b"", dtype=np.uint8)
    digits = stored[start * width : (start + len(column)) * width].reshape(-1, width)[:, ::-1].copy()
    digits[:, 0] ^= 0x80
    found = pa.Array.from_buffers(pa.binary(width), len(column), [None, pa.py_buffer(digits)])
    return pc.if_else(column.is_valid(), found, pa.scalar(None, found.type))
