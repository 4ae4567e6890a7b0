# SPDX-License-Identifier: Apache-2.0
"""The columns of a table's slices in ranges of whole partitions, so that planning needs little memory at a time.

Planning a partition needs only the partition's slices. A listing has them anywhere in the table, and reading them from
columns that do not fit into the processor's cache takes most of the time of planning. Therefore the slices are put into
the order of ranges once, and each range is then planned by itself. Its arrays fit into the cache, and their memory does
not grow with the table.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
#: the number of slices of a range, unless one partition has more
SLICES_PER_RANGE = 1 << 17
_SLICES_PER_BLOCK = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceColumns:
    """Some slices. ``rows`` are their rows in the snapshot; the other columns are those of ``Candidates``."""

    rows: Ints
    grouping_key: npt.NDArray[np.int32]
    bytes: Ints
    log_bytes: Ints
    modified_us: Ints

    def take(self, positions: Ints) -> "SliceColumns":
        """Return the slices at ``positions``, in their order."""
        return SliceColumns(**{column.name: getattr(self, column.name).take(positions) for column in fields(self)})

    def cut(self, first: int, last: int) -> "SliceColumns":
        """Return the slices from ``first`` to before ``last``, without a copy."""
        return SliceColumns(**{column.name: getattr(self, column.name)[first:last] for column in fields(self)})


def partition_ranges(
    partition: npt.NDArray[np.int32], columns: SliceColumns, size: int | None = None
) -> Iterator[SliceColumns]:
    """Yield ranges of whole partitions of about ``size`` slices, in the order of partitions.

    ``columns`` are all slices of a table, and ``partition`` is the number of each slice's partition. The slices of a
    range keep their order. A partition is never divided, so a range can be larger than ``size``, which is
    ``SLICES_PER_RANGE`` if it is None. A table without slices is one empty range.
    """
    size = SLICES_PER_RANGE if size is None else size
    if len(partition) <= size:
        yield columns
        return
    counts = np.bincount(partition)
    range_of_partition = np.maximum(np.cumsum(counts) - 1, 0) // size
    # numpy sorts numbers of 8 or 16 bits digit by digit, in linear time
    number = range_of_partition.astype(np.min_scalar_type(int(range_of_partition[-1])))[partition]
    counts_by_range = np.bincount(range_of_partition, weights=counts).astype(np.int64)
    end = np.cumsum(counts_by_range)
    begin = end - counts_by_range
    ordered = columns if (number[1:] >= number[:-1]).all() else _ordered(columns, number, begin)
    for first, last in zip(begin.tolist(), end.tolist(), strict=True):
        if first < last:
            yield ordered.cut(first, last)


def _ordered(columns: SliceColumns, number: npt.NDArray[np.unsignedinteger], begin: Ints) -> SliceColumns:
    """Return the slices sorted by their ranges, ``number``; ``begin`` is the position of each range's first slice.

    The slices are sorted block by block. The sorted slices of a block are contiguous in each range, so no step reads or
    writes at random positions outside the cache.
    """
    names = [column.name for column in fields(columns)]
    ordered = {name: np.empty_like(getattr(columns, name)) for name in names}
    next_position = begin.copy()
    for start in range(0, len(number), _SLICES_PER_BLOCK):
        block = slice(start, start + _SLICES_PER_BLOCK)
        order = np.argsort(number[block], kind="stable")
        counts = np.bincount(number[block], minlength=len(begin))
        pieces = [
            (slice(to, to + count), slice(end - count, end))
            for to, count, end in zip(next_position.tolist(), counts.tolist(), np.cumsum(counts).tolist(), strict=True)
            if count
        ]
        for name in names:
            values = getattr(columns, name)[block].take(order)
            for target, source in pieces:
                ordered[name][target] = values[source]
        next_position += counts
    return SliceColumns(**ordered)
