# SPDX-License-Identifier: Apache-2.0
"""The leaf columns of rows that were read, under the names that the leaf columns of a Parquet file have."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc


def leaves_of(path: str, array: pa.Array, without: int = 0) -> Iterator[tuple[str, pa.Array, int]]:
    """The leaf columns of ``array`` under the names that Parquet's have, each with its values.

    ``without`` are the nulls that a leaf has because a list above it is null or empty.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        for field, child in zip(kind, array.flatten(), strict=True):
            yield from leaves_of(f"{path}.{field.name}", child, without)
    elif pa.types.is_map(kind):
        entries = array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
        keys, values = entries.flatten().flatten()
        yield from leaves_of(f"{path}[key]", keys, without + _without_elements(entries))
        yield from leaves_of(f"{path}[value]", values, without + _without_elements(entries))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from leaves_of(f"{path}[]", array.flatten(), without + _without_elements(array))
    else:
        yield path, array, without


def _without_elements(lists: pa.Array) -> int:
    """How many of ``lists`` are null or empty."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    return int(pc.sum(pc.equal(lengths, 0), min_count=0).as_py())
