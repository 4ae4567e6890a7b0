# SPDX-License-Identifier: Apache-2.0
"""Detects columns of Parquet files that Spark can't read, or would write as another type.

The engine ``spark`` does not rewrite a group with such a file.
"""

import json
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from executors.engines.footer import RawParquetFooter
from executors.engines.inputs import ParquetInput, has_foreign_int96

#: the codecs that Spark both reads and writes without further libraries, by pyarrow's names: it calls ``LZ4_RAW`` LZ4
_CODECS = frozenset({"UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD", "LZ4"})
#: the encodings that Spark's vectorized reader lacks
_UNREAD_ENCODINGS = frozenset({"BYTE_STREAM_SPLIT"})
#: decimals of at most this many digits are integers for Spark, which can't read them from byte arrays of any length
_MAX_DIGITS_OF_INTEGERS = 18


def find_unsupported_column(file: ParquetInput) -> str | None:
    """Return a phrase about the first column of a file that Spark can't read or would write otherwise, or None.

    Raises ``pa.ArrowInvalid`` for a broken footer.
    """
    if has_foreign_int96(file.metadata):
        return f"{file.path} has INT96 timestamps of another writer; they may have nanoseconds, which Spark would drop"
    if _has_encrypted_columns(file):
        return f"{file.path} has encrypted columns"
    schema = file.metadata.schema
    columns = [schema.column(index) for index in range(len(schema))]
    for column in columns:
        if (why := _unsupported_type(column)) is not None:
            return f"{file.path}: column {column.path} is a {why}"
    if len(units := {unit for column in columns if (unit := instant_unit(column)) is not None}) > 1:
        return f"{file.path} has timestamps as {' and '.join(sorted(units))}, and Spark writes all in one way"
    return next((f"{file.path}: column {why}" for why in _unsupported_chunks(file.metadata)), None)


def _has_encrypted_columns(file: ParquetInput) -> bool:
    try:
        return RawParquetFooter(file.footer).is_encrypted
    except ValueError as error:
        raise pa.ArrowInvalid(f"{file.path}: {error}") from error


def instant_unit(column: pq.ColumnSchema) -> str | None:
    """Return how a column stores instants, as a value of ``spark.sql.parquet.outputTimestampType``, or None."""
    if column.physical_type == "INT96":
        return "INT96"
    if column.logical_type.type != "TIMESTAMP":
        return None
    described = json.loads(column.logical_type.to_json())
    if not described["isAdjustedToUTC"]:
        return None
    return "TIMESTAMP_MILLIS" if described["timeUnit"] == "milliseconds" else "TIMESTAMP_MICROS"


def _unsupported_type(column: pq.ColumnSchema) -> str | None:
    kind, as_json = column.logical_type.type, column.logical_type.to_json()
    unsigned = kind == "INT" and '"isSigned":false' in as_json
    if kind in ("TIME", "FLOAT16") or unsigned or '"timeUnit":"nanoseconds"' in as_json:
        return f"{column.logical_type}, which Spark does not read as this type"
    if kind == "ENUM":
        return f"{column.logical_type}, which Spark would write as a string"
    if kind == "TIMESTAMP" and instant_unit(column) is None and '"timeUnit":"milliseconds"' in as_json:
        return f"{column.logical_type}, which Spark would write in microseconds"
    if kind == "DECIMAL" and column.physical_type == "BYTE_ARRAY" and column.precision <= _MAX_DIGITS_OF_INTEGERS:
        return f"{column.logical_type} in bytes of any length, which Spark's vectorized reader does not read"
    return None


def _unsupported_chunks(metadata: pq.FileMetaData) -> Iterator[str]:
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for index in range(group.num_columns):
            chunk = group.column(index)
            if chunk.compression not in _CODECS:
                name = "the LZ4 of Hadoop" if chunk.compression == "UNKNOWN" else chunk.compression.lower()
                lacking = "which Spark does not support without further libraries"
                yield f"{chunk.path_in_schema} is compressed as {name}, {lacking}"
            if encodings := _UNREAD_ENCODINGS.intersection(chunk.encodings):
                yield f"{chunk.path_in_schema} is encoded as {min(encodings)}, which Spark's vectorized reader lacks"
