# SPDX-License-Identifier: Apache-2.0
"""The leaf columns of rows that were read, under the names that the leaf columns of a Parquet file have."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from executors.nested_types import map_entries, part_arrays, parts, storage


def leaf_columns(path: str, array: pa.Array, parent_nulls: int = 0) -> Iterator[tuple[str, pa.Array, int]]:
    """Yield the leaf columns of ``array``: the name that Parquet gives to each, its values, and its parent nulls.

    ``parent_nulls`` counts the nulls of a leaf that stand for a null or empty list above it.
    """
    values = storage(array)
    found = parts(values.type)
    if not found:
        yield path, values, parent_nulls
        return
    if not pa.types.is_struct(values.type):
        parent_nulls += _empty_list_count(values)
    for (end, _), part in zip(found, part_arrays(values), strict=True):
        yield from leaf_columns(path + end, part, parent_nulls)


def _empty_list_count(array: pa.Array) -> int:
    """Return how many lists or maps of ``array`` are null or empty."""
    lists = map_entries(array) if pa.types.is_map(array.type) else array
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    return int(pc.sum(pc.equal(lengths, 0), min_count=0).as_py())
