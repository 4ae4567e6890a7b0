# SPDX-License-Identifier: Apache-2.0
"""Floating-point columns of Parquet files that Spark must not write with a dictionary.

0.0 and -0.0 are equal to every reader. But Spark skips a chunk if all of its values are in a dictionary that contains
only one of the zeros, and the query searches for the other zero. If Spark can't skip a group's files in this way, it
must not be able to skip the new file.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow.parquet as pq


def zero_columns_without_dictionary(metadata: pq.FileMetaData) -> Iterator[str]:
    """Yield the paths, in lower case, of floating-point columns outside of lists that may hold a zero in some chunk.

    Only chunks whose values are not all in a dictionary count.
    """
    for number in range(metadata.num_columns):
        column = metadata.schema.column(number)
        if column.physical_type in ("FLOAT", "DOUBLE") and not column.max_repetition_level:
            chunks = (metadata.row_group(group).column(number) for group in range(metadata.num_row_groups))
            if any(_may_hold_zero(chunk) and not _is_all_in_dictionary(chunk) for chunk in chunks):
                yield str(column.path).lower()


def _may_hold_zero(chunk: pq.ColumnChunkMetaData) -> bool:
    statistics = chunk.statistics
    return statistics is None or not statistics.has_min_max or bool(statistics.min <= 0 <= statistics.max)


def _is_all_in_dictionary(chunk: pq.ColumnChunkMetaData) -> bool:
    """True if all values are in a dictionary, as Spark writes such a chunk. False for a chunk of another writer."""
    return "PLAIN_DICTIONARY" in chunk.encodings and "PLAIN" not in chunk.encodings


def float_column_paths(schema: str) -> Iterator[str]:
    """Yield the paths of floating-point columns and fields of structs, at any depth, in ``schema``, Spark's JSON."""

    def below(fields: list[Mapping[str, Any]], start: str) -> Iterator[str]:
        for field in fields:
            kind, path = field["type"], start + field["name"]
            if kind in ("float", "double"):
                yield path
            elif isinstance(kind, dict) and kind["type"] == "struct":
                yield from below(kind["fields"], path + ".")

    return below(json.loads(schema)["fields"], "")
