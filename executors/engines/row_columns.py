# SPDX-License-Identifier: Apache-2.0
"""The columns that a table's format adds to each row of new files: see ``lake.engines.RowColumn``.

Some inputs of a group may store such columns and others not. So the inputs are compared without these columns, and new
files have them behind all others.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from executors.datafiles.thrift import encode_integer
from executors.engines.footer import RawParquetFooter
from executors.engines.inputs import ColumnEncoding, CommonLayout, ParquetInput, UnsupportedInput, schema_of_footer
from lake.engines import RowColumn

_FIELD_ID = b"PARQUET:field_id"
#: Arrow's own schema names the columns of an input, so it is wrong for the new files
_ARROW_SCHEMA = "ARROW:schema"
_DEFAULT_CODEC = "SNAPPY"


def without_row_columns(inputs: Sequence[ParquetInput], columns: Sequence[RowColumn]) -> Sequence[ParquetInput]:
    """Return ``inputs`` as if they did not store ``columns``. Rows can't be read from the result.

    Raises UnsupportedInput if an input stores one of them under another name or as another type, or if it has another
    column of that name. Raises ``pa.ArrowInvalid`` for a broken footer.
    """
    if not columns:
        return inputs
    found = []
    names_and_ids = [column.name.encode() for column in columns]
    names_and_ids += [encode_integer(column.field_id) for column in columns]
    for one in inputs:
        # Decoding takes a millisecond, and most inputs have neither such a column nor Arrow's own schema.
        if not any(text in one.footer for text in (*names_and_ids, _ARROW_SCHEMA.encode())):
            found.append(one)
            continue
        try:
            footer = RawParquetFooter(one.footer)
        except ValueError as error:
            raise pa.ArrowInvalid(f"{one.path}: {error}") from error
        leaves = _stored_leaves(one, footer, columns)
        if leaves or _ARROW_SCHEMA in footer.entries:
            raw = footer.without_leaves(leaves).without_entry(_ARROW_SCHEMA)
            one = one.with_footer(raw)
        found.append(one)
    return found


def _stored_leaves(one: ParquetInput, footer: RawParquetFooter, columns: Sequence[RowColumn]) -> set[int]:
    """Return the numbers of the leaf columns that store ``columns``."""
    by_id = {column.field_id: column for column in columns}
    by_name = {column.name: column for column in columns}
    leaves = set()
    for name, field_id, leaf in footer.top_level_columns:
        wanted = by_name.get(name) if field_id is None else by_id.get(field_id, by_name.get(name))
        if wanted is None:
            continue
        if (name, field_id) != (wanted.name, wanted.field_id):
            raise UnsupportedInput(
                f"{one.path} has a column {name} with field id {field_id}, and the table's format adds the column "
                f"{wanted.name} with field id {wanted.field_id}"
            )
        if leaf is None or not _is_integer(one.metadata.schema.column(leaf)):
            raise UnsupportedInput(f"{one.path} stores the column {name} as another type than 64-bit integers")
        leaves.add(leaf)
    return leaves


def _is_integer(column: Any) -> bool:
    logical = column.logical_type
    is_plain = logical.type == "NONE" or (logical.type == "INT" and '"isSigned":true' in logical.to_json())
    return bool(column.physical_type == "INT64" and is_plain and not column.max_repetition_level)


def with_row_columns(shape: CommonLayout, columns: Sequence[RowColumn]) -> CommonLayout:
    """Return the layout of files that have ``columns`` behind those of ``shape``."""
    if not columns:
        return shape
    footer = shape.footer.with_integers({column.name: column.field_id for column in columns})
    codecs = Counter(encoding.codec for encoding in shape.columns)
    codec = codecs.most_common(1)[0][0] if codecs else _DEFAULT_CODEC
    schema, encodings = shape.schema, list(shape.columns)
    for column in columns:
        ids = {_FIELD_ID: str(column.field_id).encode()}
        schema = schema.append(pa.field(column.name, pa.int64(), metadata=ids))
        # A dictionary is of no use if all values differ.
        encodings.append(ColumnEncoding(codec, False, False, column.adds_position))
    return replace(
        shape, footer=footer, schema=schema, columns=encodings, parquet_schema=schema_of_footer(footer.encode_schema())
    )


def add_row_columns(
    batches: Iterable[pa.RecordBatch],
    columns: Sequence[RowColumn],
    one: ParquetInput,
    numbers: Sequence[int],
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    """Yield ``batches`` with the columns of ``schema``, the last of which are ``columns``.

    The batches are all rows of the row groups ``numbers`` of an input, in their order; none has rows of two row groups.
    """
    counts = [one.metadata.row_group(number).num_rows for number in range(one.metadata.num_row_groups)]
    starts = list(itertools.accumulate(counts, initial=0))
    groups = ((starts[number], counts[number]) for number in numbers if counts[number])
    added = {column.name for column in columns}
    position = left = 0
    for batch in batches:
        if not left:
            position, left = next(groups)
        arrays = [array for name, array in zip(batch.schema.names, batch.columns, strict=True) if name not in added]
        arrays += [_values(batch, column, column.first_values[one.path], position) for column in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        position, left = position + batch.num_rows, left - batch.num_rows


def _values(batch: pa.RecordBatch, column: RowColumn, first: int, position: int) -> pa.Array:
    """Return the values of ``column`` for a batch whose first row has this ``position``."""
    stored = batch.column(column.name) if column.name in batch.schema.names else None
    if stored is not None and not stored.null_count:
        return stored
    start, step = (first + position, 1) if column.adds_position else (first, 0)
    missing = pa.array(start + step * np.arange(batch.num_rows, dtype=np.int64))
    return missing if stored is None else pc.coalesce(stored, missing)
