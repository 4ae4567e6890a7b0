# SPDX-License-Identifier: Apache-2.0
"""Floating-point columns of Parquet files that Spark must not write with a dictionary.

0.0 and -0.0 are equal to every reader. But Spark skips a chunk if all of its values are in a dictionary that contains
only one of the zeros, and the query searches for the other zero. If Spark can't skip a group's files in this way, it
must not be able to skip the new file.

The setting ``parquet.enable.dictionary#column`` alone does not ensure this. Writers of one JVM share the factory of
parquet-java that chooses encodings (``ParquetProperties.DEFAULT_VALUES_WRITER_FACTORY``), and each new writer replaces
the factory's settings. So a file may get the encodings of another file that is written at the same time.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pyarrow.parquet as pq
from pyarrow import fs as pafs

from executors.engines.footer import LENGTH_BYTES, MAGIC, RawParquetFooter

_COPY_BYTES = 8 << 20


def zero_columns_without_dictionary(metadata: pq.FileMetaData) -> Iterator[str]:
    """Yield the paths, in lower case, of floating-point columns that Spark must write without a dictionary.

    Such a column is outside of lists, and has a chunk that may hold a zero and has values outside of a dictionary.
    """
    for path, chunks in _zero_chunks(metadata):
        if not all(map(_is_all_in_dictionary, chunks)):
            yield path


def zero_columns_with_dictionary(metadata: pq.FileMetaData, columns: Collection[str]) -> list[str]:
    """Return the ``columns`` that may hold a zero in a chunk that has a dictionary."""
    return [path for path, chunks in _zero_chunks(metadata) if path in columns and any(map(_has_dictionary, chunks))]


def _zero_chunks(metadata: pq.FileMetaData) -> Iterator[tuple[str, list[pq.ColumnChunkMetaData]]]:
    """Yield the path of each floating-point column outside of lists, with its chunks that may hold a zero."""
    for number in range(metadata.num_columns):
        column = metadata.schema.column(number)
        if column.physical_type in ("FLOAT", "DOUBLE") and not column.max_repetition_level:
            chunks = (metadata.row_group(group).column(number) for group in range(metadata.num_row_groups))
            yield str(column.path).lower(), [chunk for chunk in chunks if _may_hold_zero(chunk)]


def _may_hold_zero(chunk: pq.ColumnChunkMetaData) -> bool:
    statistics = chunk.statistics
    if statistics is None or not statistics.has_min_max:
        return True
    # If there is a NaN, Spark records it as the maximum. Comparisons with NaN are false.
    return not (statistics.min > 0 or statistics.max < 0)


def _is_all_in_dictionary(chunk: pq.ColumnChunkMetaData) -> bool:
    """True if all values are in a dictionary and Spark records the same encodings for such a chunk."""
    return "PLAIN_DICTIONARY" in chunk.encodings and "PLAIN" not in chunk.encodings


def _has_dictionary(chunk: pq.ColumnChunkMetaData) -> bool:
    return any(encoding.endswith("_DICTIONARY") for encoding in chunk.encodings)


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


def copy_without_dictionary_claims(
    filesystem: pafs.FileSystem, source: str, target: str, columns: Collection[str]
) -> int:
    """Copy the Parquet file ``source`` with a footer that hides the dictionaries of ``columns``. Returns the new size.

    The pages stay as they are. See ``RawParquetFooter.without_dictionary_claims``.
    """
    with filesystem.open_input_file(source) as file:
        size = int(file.size())
        length = int.from_bytes(file.read_at(LENGTH_BYTES, size - LENGTH_BYTES)[:4], "little")
        start = size - LENGTH_BYTES - length
        footer = RawParquetFooter(file.read_at(length, start)).without_dictionary_claims(columns)
        with filesystem.open_output_stream(target, compression=None) as sink:
            for offset in range(0, start, _COPY_BYTES):
                sink.write(file.read_at(min(_COPY_BYTES, start - offset), offset))
            sink.write(footer + len(footer).to_bytes(4, "little") + MAGIC)
    return start + len(footer) + LENGTH_BYTES
