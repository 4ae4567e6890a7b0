# SPDX-License-Identifier: Apache-2.0
"""Parquet: facts from the footer alone, which costs a fraction of a millisecond a file.

Inexact are statistics missing in one row group, bytes that may have been cut short, NaN among the bounds, INT96.
"""

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from executors.datafiles.facts import Facts, FieldIds, Leaf, LeafType

#: Writers may cut the bounds of long strings (to 64 bytes and the like); shorter ones are taken as they are.
EXACT_BYTES = 31
_BATCH_BYTES = 16 << 20
_BATCH_ROWS = 1 << 17

#: how pyarrow shows a column's field id; and that of ORC files, which Iceberg's writers give to them as an attribute
_FIELD_IDS = (b"PARQUET:field_id", b"iceberg.id")

_TIME_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


@dataclass(frozen=True, slots=True)
class ParquetFooter:
    """What is kept of a file when it is closed again."""

    metadata: pq.FileMetaData

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return int(self.metadata.num_rows)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the file, as Arrow sees them."""
        return self.metadata.schema.to_arrow_schema()

    @staticmethod
    def together(footers: "Sequence[ParquetFooter]", ignore: Collection[str]) -> Facts:
        """See ``Footer``."""
        return facts((footer.metadata for footer in footers), ignore)


class ParquetFile:
    """An open Parquet file; see ``DataFile``."""

    def __init__(self, handle: pa.NativeFile) -> None:
        self._file = pq.ParquetFile(handle, coerce_int96_timestamp_unit="us")

    def footer(self, ignore: Collection[str], check: Callable[[], None]) -> ParquetFooter:
        """See ``DataFile``. Reads nothing: the footer is known once a file is open."""
        return ParquetFooter(self._file.metadata)

    def batches(self, ignore: Collection[str]) -> Iterator[pa.RecordBatch]:
        """See ``DataFile``."""
        columns = [name for name in self._file.schema_arrow.names if name not in ignore]
        # Dots mean nesting to `columns`; a name that has one is read with everything else.
        wanted = None if any("." in name for name in columns) else columns
        for group in range(self._file.num_row_groups):
            shape = self._file.metadata.row_group(group)
            rows = max(1024, min(_BATCH_ROWS, _BATCH_BYTES * shape.num_rows // max(1, shape.total_byte_size)))
            yield from self._file.iter_batches(rows, row_groups=[group], columns=wanted, use_threads=False)

    def close(self) -> None:
        """See ``DataFile``."""
        self._file.close(force=True)


def facts(metadata: Iterable[pq.FileMetaData], ignore: Collection[str] = ()) -> Facts:
    """The facts of some footers without the top-level columns in ``ignore``."""
    total = Facts()
    schema: pq.ParquetSchema | None = None
    columns: list[tuple[int, str, FieldIds, LeafType, bool]] = []
    for footer in metadata:
        if schema is None or not schema.equals(footer.schema):
            schema = footer.schema
            columns = _columns(footer, ignore)
        one = Facts(rows=footer.num_rows)
        groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
        for index, path, ids, kind, repeated in columns:
            leaf = Leaf(frozenset((kind,)), repeated, rows=footer.num_rows, ids=ids)
            for group in groups:
                if group.num_rows:
                    _count(leaf, kind, group.column(index))
            one.leaves[path] = leaf
        total.merge(one)
    return total


def columns_of(schema: pa.Schema, ignore: Collection[str] = ()) -> Facts:
    """What the footer of a file with these columns and no rows says."""
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    return facts([pq.read_metadata(pa.BufferReader(sink.getvalue()))], ignore)


def _count(leaf: Leaf, kind: LeafType, chunk: pq.ColumnChunkMetaData) -> None:
    statistics = chunk.statistics
    if statistics is None or not statistics.has_null_count:
        leaf.nulls, leaf.bounded = None, False
        return
    nulls = statistics.null_count
    if leaf.nulls is not None:
        leaf.nulls += nulls
    if not leaf.bounded or nulls == chunk.num_values:
        return
    if not statistics.has_min_max:
        leaf.bounded = False
        return
    low, high = _bound(kind, statistics.min_raw), _bound(kind, statistics.max_raw)
    if low is None or high is None:
        leaf.bounded = False
        return
    leaf.low = low if leaf.low is None or low < leaf.low else leaf.low
    leaf.high = high if leaf.high is None or high > leaf.high else leaf.high


def _bound(kind: LeafType, raw: Any) -> Any:
    """A bound as a number or bytes that compares in the type's own order; None where it can't be trusted."""
    if kind.family in ("int", "date", "time", "timestamp"):
        return raw if isinstance(raw, int) else None
    if kind.family in ("string", "binary"):
        return raw if len(raw) <= EXACT_BYTES else None
    if kind.family == "decimal":
        return int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
    if kind.family == "float":
        return raw if isinstance(raw, float) and not math.isnan(raw) else None
    if kind.family == "unsigned":
        return raw & ((1 << int(kind.detail[0])) - 1)
    return raw if kind.family == "boolean" else None


def field_id(column: pa.Field) -> int | None:
    """The id that a file gives to a column, or to a part of one; None where it gives it none."""
    told = column.metadata or {}
    return next((int(told[key]) for key in _FIELD_IDS if key in told), None)


def _columns(footer: pq.FileMetaData, ignore: Collection[str]) -> list[tuple[int, str, FieldIds, LeafType, bool]]:
    schema = footer.schema
    columns = [schema.column(index) for index in range(footer.num_columns)]
    paths = _paths(schema.to_arrow_schema())
    if len(paths) != len(columns):  # a type that Arrow sees in another shape; its own path is as good a name
        paths = [(column.path.split(".", 1)[0], column.path, ()) for column in columns]
    return [
        (index, path, ids, _leaf_type(column), column.max_repetition_level > 0)
        for index, ((top, path, ids), column) in enumerate(zip(paths, columns, strict=True))
        if top not in ignore
    ]


def _paths(schema: pa.Schema) -> list[tuple[str, str, FieldIds]]:
    """Top-level name, path and field ids of the leaves in file order; all ways to spell a list or a map agree."""
    found: list[tuple[str, str, FieldIds]] = []

    def walk(top: str, path: str, above: FieldIds, column: pa.Field) -> None:
        kind, ids = column.type, (*above, frozenset((field_id(column),)))
        if isinstance(kind, pa.ExtensionType):
            kind = kind.storage_type
        if pa.types.is_struct(kind):
            for child in kind:
                walk(top, f"{path}.{child.name}", ids, child)
        elif pa.types.is_map(kind):
            walk(top, f"{path}[key]", ids, kind.key_field)
            walk(top, f"{path}[value]", ids, kind.item_field)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            walk(top, f"{path}[]", ids, kind.value_field)
        else:
            found.append((top, path, ids))

    for column in schema:
        walk(column.name, column.name, (), column)
    return found


def _leaf_type(column: pq.ColumnSchema) -> LeafType:
    """The meaning of a column: its annotation, or what its physical type means without one."""
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
    if physical == "INT96":  # Spark's old way to write an instant; its statistics are never exact
        return LeafType("timestamp", ("us", "utc"))
    return {
        "BOOLEAN": LeafType("boolean"),
        "INT32": LeafType("int", (32,)),
        "INT64": LeafType("int", (64,)),
        "FLOAT": LeafType("float", (32,)),
        "DOUBLE": LeafType("float", (64,)),
        "BYTE_ARRAY": LeafType("binary"),
    }.get(physical, LeafType("fixed", (column.length or 0,)))
