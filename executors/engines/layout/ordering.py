# SPDX-License-Identifier: Apache-2.0
"""The order of rows by several columns, from their ranks: the scale and the distribution of a column do not matter.

A row's coordinate in a column is the share of the rows with a smaller value, and half of those with an equal one. So
each column takes part in a curve to the same degree. Nulls are smaller than all values, and NaN is greater than any
number, as in Spark. Rows with equal values keep their order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from executors.engines.layout.curves import Coordinates, coordinate_bits, hilbert, z_order

Positions = npt.NDArray[np.int64]

_TOLERANCE = 0.2
"""The share by which a file may be smaller or larger than an equal share of the rest.

Measured with 131,072 points in 64 and 256 files: without it a file covers up to twice the range of an aligned one.
"""
LINEAR, CURVES = "linear", {"zorder": z_order, "hilbert": hilbert}


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


@dataclass(frozen=True, slots=True)
class RowOrder:
    """A new order of rows: the position of each row, and the number of rows of each file."""

    positions: Positions
    rows_per_file: Sequence[int]


def order_rows(columns: Sequence[pa.ChunkedArray], layout: str, files: int, max_rows: int) -> RowOrder:
    """Return the order of rows by ``columns``, in so many files of about equal size.

    ``layout`` is ``linear``, ``zorder`` or ``hilbert``. Along a curve a file ends where the curve enters a large cell,
    at up to a fifth more or fewer rows than an equal share, and with at most ``max_rows``. Otherwise it would reach
    into two cells, and cover twice the range of a column's values. ``max_rows`` is at least an equal share.
    """
    ranks = [_ranks(column) for column in columns]
    count = len(ranks[0])
    if layout == LINEAR or len(ranks) == 1:
        # The last key is the most significant one. lexsort is stable.
        order = np.lexsort(ranks[::-1])
        ends = [count * number // files for number in range(1, files)]
    else:
        bits = coordinate_bits(len(ranks))
        places = CURVES[layout]([_scaled(rank, bits) for rank in ranks], bits)
        order = np.argsort(places, kind="stable")
        ends = _ends_at_cells(places[order], files, max_rows)
    positions = np.empty(count, dtype=np.int64)
    positions[order] = np.arange(count, dtype=np.int64)
    return RowOrder(positions, [end - start for start, end in pairwise([0, *ends, count])])


def _ends_at_cells(places: Coordinates, files: int, max_rows: int) -> list[int]:
    """Return where each file but the last one ends: near an equal share of the rest, where ``places`` change most.

    ``places`` are sorted positions on a curve.
    """
    ends: list[int] = []
    start, count = 0, len(places)
    # What earlier files have left must not end up in the last one.
    max_rows = min(max_rows, round(count / files * (1 + 2 * _TOLERANCE)))
    for left in range(files, 1, -1):
        share = (count - start) / left
        end = start + round(share)
        first = max(start + round(share * (1 - _TOLERANCE)), count - (left - 1) * max_rows, 1)
        last = min(start + round(share * (1 + _TOLERANCE)), start + max_rows, count - 1)
        if first < last:
            sizes = _highest_bit(places[first : last + 1] ^ places[first - 1 : last])
            # Of the largest cells that begin there, the one next to the equal share.
            largest = np.flatnonzero(sizes == sizes.max()) + first
            end = int(largest[np.argmin(np.abs(largest - end))])
        ends.append(end)
        start = end
    return ends


def _highest_bit(values: Coordinates) -> npt.NDArray[np.int64]:
    """Return the number of the highest bit that is set, from 1; 0 without one."""
    upper, lower = values >> np.uint64(32), values & np.uint64(0xFFFFFFFF)
    exponents = [np.frexp(half.astype(np.float64))[1].astype(np.int64) for half in (upper, lower)]
    return np.where(upper > 0, exponents[0] + 32, exponents[1])


def _ranks(column: pa.ChunkedArray) -> Positions:
    """Return for each row the number of rows with a smaller value, and half of those with an equal value."""
    values = column.combine_chunks()
    if isinstance(values, pa.ChunkedArray):  # no chunk at all
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], column.type)
    if pat.is_float16(values.type):
        values = values.cast(pa.float32())
    if pat.is_floating(values.type):
        # Both zeros are one value.
        values = pc.add(values, pa.scalar(0.0, values.type))
    ranks = pc.rank(values, sort_keys=[("", "ascending", "at_start")], tiebreaker="min").to_numpy()
    found: Positions = ranks.astype(np.int64) - 1
    if pat.is_floating(values.type):
        # Arrow places NaN beside the nulls.
        is_nan = pc.is_nan(values).fill_null(False).to_numpy(zero_copy_only=False)
        count = int(is_nan.sum())
        if count:
            nulls = values.null_count
            found[~is_nan & (found >= nulls)] -= count
            found[is_nan] = len(found) - count
    # Without the half, a frequent value would be at the edge of its cell, and files would reach over the edge.
    found += (np.bincount(found)[found] - 1) // 2 if len(found) else 0
    return found


def _scaled(ranks: Positions, bits: int) -> npt.NDArray[np.uint64]:
    """Return the ranks as coordinates of ``bits`` bits."""
    share = ranks.astype(np.float64) / max(1, len(ranks))
    return (share * float(1 << bits)).astype(np.uint64)
