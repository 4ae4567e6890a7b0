# SPDX-License-Identifier: Apache-2.0
"""Statistics of Parquet files: from the footer, in a fraction of a millisecond a file; for INT96 from the values.

A statistic is inexact if a row group lacks it. Bounds of strings and bytes that may have been cut, bounds with NaN, and
bounds of INT96 are inexact as well.
"""

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from executors.datafiles.leaf_columns import leaf_columns
from executors.datafiles.statistics import MASK, FieldIds, FileStatistics, LeafStatistics, LeafType
from executors.nested_types import parts
from executors.rowhash import sum_of_hashes

#: Writers may cut the bounds of long strings, to 64 bytes for example; bounds of at most this length count as exact.
MAX_EXACT_BOUND_BYTES = 31
_BATCH_BYTES = 16 << 20
_BATCH_ROWS = 1 << 17

#: pyarrow's key of a column's field id, and the attribute in which Iceberg's writers store it in ORC files
_FIELD_IDS = (b"PARQUET:field_id", b"iceberg.id")

_TIME_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


@dataclass(frozen=True, slots=True)
class ParquetFooter:
    """The part of a file that is kept after it is closed."""

    metadata: pq.FileMetaData
    #: sums of the hashes of values, by leaf column, for the columns of which the footer has no bounds
    hash_sums: Mapping[str, int]

    @property
    def rows(self) -> int:
        """The number of rows in the file."""
        return int(self.metadata.num_rows)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the file, as Arrow shows them."""
        return self.metadata.schema.to_arrow_schema()

    @staticmethod
    def combine(footers: "Sequence[ParquetFooter]", ignore: Collection[str]) -> FileStatistics:
        """See ``FileFooter``."""
        return footer_statistics(
            (footer.metadata for footer in footers), ignore, (footer.hash_sums for footer in footers)
        )


class ParquetFile:
    """An open Parquet file; see ``OpenDataFile``."""

    def __init__(self, handle: pa.NativeFile) -> None:
        self._file = pq.ParquetFile(handle, coerce_int96_timestamp_unit="us")

    def read_footer(self, ignore: Collection[str], check: Callable[[], None]) -> ParquetFooter:
        """See ``OpenDataFile``. Reads only the values of INT96 timestamps, for which a footer has no bounds."""
        return ParquetFooter(self._file.metadata, self._int96_hash_sums(ignore, check))

    def _int96_hash_sums(self, ignore: Collection[str], check: Callable[[], None]) -> Mapping[str, int]:
        schema = self._file.metadata.schema
        stored = [schema.column(index) for index in range(len(schema))]
        leaves = [
            (path, column.path)
            for (top, path, _), column in zip(_leaf_names(schema), stored, strict=True)
            if column.physical_type == "INT96" and top not in ignore
        ]
        if not leaves:
            return {}
        found = dict.fromkeys((path for path, _ in leaves), 0)
        # `columns` takes dots for nesting; if a name contains a dot, all columns are read.
        wanted = None if any("." in name for name in self._file.schema_arrow.names) else [path for _, path in leaves]
        for batch in self._batches(wanted):
            check()
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                for path, values, _ in leaf_columns(name, column):
                    if path in found:
                        found[path] = (found[path] + sum_of_hashes(values, path)) & MASK
        return found

    def read_batches(self, ignore: Collection[str]) -> Iterator[pa.RecordBatch]:
        """See ``OpenDataFile``."""
        columns = [name for name in self._file.schema_arrow.names if name not in ignore]
        # `columns` takes dots for nesting; if a name contains a dot, all columns are read.
        yield from self._batches(None if any("." in name for name in columns) else columns)

    def _batches(self, wanted: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        for group in range(self._file.num_row_groups):
            shape = self._file.metadata.row_group(group)
            rows = max(1024, min(_BATCH_ROWS, _BATCH_BYTES * shape.num_rows // max(1, shape.total_byte_size)))
            yield from self._file.iter_batches(rows, row_groups=[group], columns=wanted, use_threads=False)

    def close(self) -> None:
        """See ``OpenDataFile``."""
        self._file.close(force=True)


def footer_statistics(
    metadata: Iterable[pq.FileMetaData],
    ignore: Collection[str] = (),
    values: Iterable[Mapping[str, int]] = repeat({}),
) -> FileStatistics:
    """Return the statistics of some footers, without the top-level columns in ``ignore``.

    ``values`` has for each footer the sums of hashes by leaf column.
    """
    total = FileStatistics()
    schema: pq.ParquetSchema | None = None
    columns: list[tuple[int, str, FieldIds, LeafType, bool]] = []
    for footer, read in zip(metadata, values, strict=False):
        if schema is None or not schema.equals(footer.schema):
            schema = footer.schema
            columns = _columns(footer, ignore)
        one = FileStatistics(rows=footer.num_rows)
        groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
        for index, path, ids, kind, repeated in columns:
            leaf = LeafStatistics(
                frozenset((kind,)), repeated, rows=footer.num_rows, field_ids=ids, hash_sum=read.get(path)
            )
            for group in groups:
                if group.num_rows:
                    _add_chunk(leaf, kind, group.column(index))
            one.leaves[path] = leaf
        total.merge(one)
    return total


def schema_statistics(schema: pa.Schema, ignore: Collection[str] = ()) -> FileStatistics:
    """Return the statistics of a file with these columns and no rows."""
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    return footer_statistics([pq.read_metadata(pa.BufferReader(sink.getvalue()))], ignore)


def _add_chunk(leaf: LeafStatistics, kind: LeafType, chunk: pq.ColumnChunkMetaData) -> None:
    statistics = chunk.statistics
    if statistics is None or not statistics.has_null_count:
        leaf.null_count, leaf.has_exact_bounds = None, False
        return
    nulls = statistics.null_count
    if leaf.null_count is not None:
        leaf.null_count += nulls
    if not leaf.has_exact_bounds or nulls == chunk.num_values:
        return
    if not statistics.has_min_max:
        leaf.has_exact_bounds = False
        return
    low, high = _bound(kind, statistics.min_raw), _bound(kind, statistics.max_raw)
    if low is None or high is None:
        leaf.has_exact_bounds = False
        return
    leaf.minimum = low if leaf.minimum is None or low < leaf.minimum else leaf.minimum
    leaf.maximum = high if leaf.maximum is None or high > leaf.maximum else leaf.maximum


def _bound(kind: LeafType, raw: Any) -> Any:
    """Return a bound as a number or bytes that compares in the type's own order. None if it can't be trusted."""
    if kind.family in ("int", "date", "time", "timestamp"):
        return raw if isinstance(raw, int) else None
    if kind.family in ("string", "binary"):
        return raw if len(raw) <= MAX_EXACT_BOUND_BYTES else None
    if kind.family == "decimal":
        return int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
    if kind.family == "float":
        return raw if isinstance(raw, float) and not math.isnan(raw) else None
    if kind.family == "unsigned":
        return raw & ((1 << int(kind.detail[0])) - 1)
    return raw if kind.family == "boolean" else None


def field_id(column: pa.Field) -> int | None:
    """Return the field id of a column, or of a part of a column, in its file. None if it has no id."""
    metadata = column.metadata or {}
    return next((int(metadata[key]) for key in _FIELD_IDS if key in metadata), None)


def _columns(footer: pq.FileMetaData, ignore: Collection[str]) -> list[tuple[int, str, FieldIds, LeafType, bool]]:
    schema = footer.schema
    columns = [schema.column(index) for index in range(footer.num_columns)]
    return [
        (index, path, ids, _leaf_type(column), column.max_repetition_level > 0)
        for index, ((top, path, ids), column) in enumerate(zip(_leaf_names(schema), columns, strict=True))
        if top not in ignore
    ]


def _leaf_names(schema: pq.ParquetSchema) -> list[tuple[str, str, FieldIds]]:
    """Return top-level name, path and field ids of each leaf column, in file order."""
    paths = _leaf_paths(schema.to_arrow_schema())
    if len(paths) == len(schema):
        return paths
    # Arrow shows some types with another number of leaves, so Parquet's own paths are used.
    columns = [schema.column(index) for index in range(len(schema))]
    return [(column.path.split(".", 1)[0], column.path, ()) for column in columns]


def _leaf_paths(schema: pa.Schema) -> list[tuple[str, str, FieldIds]]:
    """Return top-level name, path and field ids of each leaf, in file order; list and map spellings do not matter."""
    found: list[tuple[str, str, FieldIds]] = []

    def walk(top: str, path: str, above: FieldIds, column: pa.Field) -> None:
        ids = (*above, frozenset((field_id(column),)))
        below = parts(column.type)
        for end, part in below:
            walk(top, path + end, ids, part)
        if not below:
            found.append((top, path, ids))

    for column in schema:
        walk(column.name, column.name, (), column)
    return found


def _leaf_type(column: pq.ColumnSchema) -> LeafType:
    """Return the meaning of a column: its annotation, or the meaning of its physical type without one."""
    logical = column.logical_type.type
    if logical in ("STRING", "ENUM"):
        return LeafType("string")
    if logical == "DECIMAL":
        return LeafType("decimal", (column.precision, column.scale))
    if logical == "DATE":
        return LeafType("date")
    if logical in ("INT", "TIME", "TIMESTAMP"):
        described = json.loads(column.logical_type.to_json())
        if logical == "INT":
            return LeafType("int" if described["isSigned"] else "unsigned", (described["bitWidth"],))
        utc = "utc" if described["isAdjustedToUTC"] else "local"
        return LeafType(logical.lower(), (_TIME_UNITS[described["timeUnit"]], utc))
    if logical != "NONE":
        return LeafType(logical.lower())
    physical = column.physical_type
    if physical == "INT96":  # Spark's old format of an instant; its statistics are never exact
        return LeafType("timestamp", ("us", "utc"))
    return {
        "BOOLEAN": LeafType("boolean"),
        "INT32": LeafType("int", (32,)),
        "INT64": LeafType("int", (64,)),
        "FLOAT": LeafType("float", (32,)),
        "DOUBLE": LeafType("float", (64,)),
        "BYTE_ARRAY": LeafType("binary"),
    }.get(physical, LeafType("fixed", (column.length or 0,)))
