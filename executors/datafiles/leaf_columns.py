# SPDX-License-Identifier: Apache-2.0
"""The leaf columns of rows that were read, under the names that the leaf columns of a Parquet file have."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc


def leaf_columns(path: str, array: pa.Array, parent_nulls: int = 0) -> Iterator[tuple[str, pa.Array, int]]:
    """Yield the leaf columns of ``array``: the name that Parquet gives to each, its values, and its parent nulls.

    ``parent_nulls`` counts the nulls of a leaf that stand for a null or empty list above it.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        for field, child in zip(kind, array.flatten(), strict=True):
            yield from leaf_columns(f"{path}.{field.name}", child, parent_nulls)
    elif pa.types.is_map(kind):
        entries = array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
        keys, values = entries.flatten().flatten()
        yield from leaf_columns(f"{path}[key]", keys, parent_nulls + _empty_list_count(entries))
        yield from leaf_columns(f"{path}[value]", values, parent_nulls + _empty_list_count(entries))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from leaf_columns(f"{path}[]", array.flatten(), parent_nulls + _empty_list_count(array))
    else:
        yield path, array, parent_nulls


def _empty_list_count(lists: pa.Array) -> int:
    """Return how many of ``lists`` are null or empty."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    return int(pc.sum(pc.equal(lengths, 0), min_count=0).as_py())
