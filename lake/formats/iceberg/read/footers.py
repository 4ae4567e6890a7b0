# SPDX-License-Identifier: Apache-2.0
"""Compares the columns of Parquet files with the table's, by field ids, and names the schema of new files.

A file without field ids, or with other ids, can be committed without an error. Readers then find its columns by
position or not at all, so lakefold neither reads nor writes such files. The comparison ignores whether a column is
required: Iceberg's writers mark a column as required if they know that it contains no null.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lake.engines import FileSchema
from lake.errors import first_line
from lake.formats.iceberg.catalog.tables import LoadedTable
from lake.formats.iceberg.read.lineage import FIELD_IDS, MIN_VERSION, field_ids
from lake.formats.iceberg.read.unreadable import UnusableFile, unreadable_file

Columns = tuple[Any, ...]

_MIN_RESERVED_ID = 2_147_483_447
"""The lowest field id of columns that Iceberg adds to files by itself."""
_THREADS = 16
_MAX_SCHEMAS = 8
"""Maximum number of schemas that are remembered while files are compared."""
_FLOATS = frozenset({"FLOAT", "DOUBLE"})
_MAX_EXACT_BOUND_BYTES = 31
"""Bounds of at most this length count as exact unless the writer says otherwise; the verification assumes the same."""


def table_columns(table: LoadedTable) -> Columns:
    """Return the columns of the table's present schema, in an order and form that can be compared with a file's."""
    return _columns(table.metadata.schema())


def file_schema(table: LoadedTable) -> FileSchema:
    """Return the schema of new files. Columns that are optional in the table are optional in each new file.

    In an old file such a column may be required. Like Iceberg's writer, the description of the schema also names the
    columns with the lineage of rows.
    """
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    schema = table.metadata.schema()
    added = FIELD_IDS if table.metadata.format_version >= MIN_VERSION else {}
    # A table with a column of such a name is not rewritten, and a schema can't have the name twice.
    taken = {one.name for one in schema.fields}
    lineage = [NestedField(added[name], name, LongType(), required=False) for name in added if name not in taken]
    described = Schema(
        *schema.fields, *lineage, schema_id=schema.schema_id, identifier_field_ids=schema.identifier_field_ids
    )
    return FileSchema(
        optional_ids=frozenset(_optional_ids(schema.as_struct())),
        root_name="table",
        # Arrow's own schema states again which columns are required.
        removed_keys=frozenset({"ARROW:schema"}),
        entries={"iceberg.schema": described.model_dump_json()},
    )


def _optional_ids(kind: Any) -> Iterator[int]:
    from pyiceberg.types import ListType, MapType, StructType

    parts: list[Any] = []
    if isinstance(kind, StructType):
        parts = list(kind.fields)
    elif isinstance(kind, ListType):
        parts = [kind.element_field]
    elif isinstance(kind, MapType):
        parts = [kind.key_field, kind.value_field]
    for part in parts:
        if not part.required:
            yield part.field_id
        yield from _optional_ids(part.field_type)


def different_files(columns: Columns, paths: Collection[str]) -> Mapping[str, UnusableFile]:
    """Return the files whose columns are not ``columns``, or whose footer can't be read, each with the reason.

    Raises Transient if storage fails at the moment: the reason would be none of the file.
    """
    same: list[pa.Schema] = []
    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        reasons = pool.map(lambda path: _difference(columns, path, same), paths)
    return {path: reason for path, reason in zip(paths, reasons, strict=True) if reason is not None}


def split_offsets(metadata: pq.FileMetaData) -> list[int]:
    """Return the offsets at which the row groups of a Parquet file start, as Iceberg records them."""
    starts = []
    for index in range(metadata.num_row_groups):
        column = metadata.row_group(index).column(0)
        dictionary = column.dictionary_page_offset
        has_dictionary = dictionary is not None and 0 < dictionary < column.data_page_offset
        starts.append(dictionary if has_dictionary else column.data_page_offset)
    return starts


def ids_without_bounds(metadata: pq.FileMetaData, ids: Sequence[int | None]) -> Collection[int] | None:
    """Return the field ids of columns whose bounds in a Parquet file don't hold for all values; None for all columns.

    ``ids`` are those of ``leaf_ids``.

    These are the floating-point columns, since their bounds ignore NaN and the number of NaN is unknown. Other columns
    are included if a chunk has values but no bounds, as long strings may: Iceberg's ``ParquetUtil`` would take the
    bounds of the other chunks for those of the file. A DELETE that relies on such bounds would remove rows that it
    should keep.
    """
    found = set()
    for position, field_id in enumerate(ids):
        chunks = (metadata.row_group(group).column(position) for group in range(metadata.num_row_groups))
        is_float = metadata.schema.column(position).physical_type in _FLOATS
        if is_float or not all(map(_has_bounds, chunks)):
            if field_id is None:
                return None
            found.add(field_id)
    return found


def leaf_ids(metadata: pq.FileMetaData) -> list[int | None]:
    """Return the field id of each leaf column of a Parquet file; None if it has no id."""
    from pyiceberg.io.pyarrow import parquet_path_to_id_mapping, pyarrow_to_schema

    ids = parquet_path_to_id_mapping(pyarrow_to_schema(metadata.schema.to_arrow_schema()))
    return [ids.get(metadata.schema.column(position).path) for position in range(metadata.num_columns)]


def may_be_cut(chunk: pq.ColumnChunkMetaData) -> bool:
    """Return True if a writer that does not say whether bounds are exact may have cut those of a column chunk."""
    statistics = chunk.statistics
    return statistics.has_min_max and max(len(statistics.min_raw), len(statistics.max_raw)) > _MAX_EXACT_BOUND_BYTES


def _has_bounds(chunk: Any) -> bool:
    """Return True if bounds of a column chunk hold for all its values, or if it has only nulls."""
    statistics = chunk.statistics
    if statistics is None:
        return bool(chunk.num_values == 0)
    return bool(statistics.has_min_max or (statistics.has_null_count and statistics.null_count == chunk.num_values))


def _difference(expected: Columns, path: str, same: list[pa.Schema]) -> UnusableFile | None:
    """Return why the columns of a file are not those ``expected``; None if they are.

    ``same`` are schemas with the expected columns: it takes long to translate one, and most files of a table share one.
    """
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        return unreadable_file(path, error)
    schema = schema.remove_metadata()  # that of the file; the field ids stay
    if any(schema.equals(one, check_metadata=True) for one in same):
        return None
    try:
        found = _columns(pyarrow_to_schema(schema))
    except (ValueError, TypeError) as error:
        return UnusableFile(
            f"{path} has columns without field ids, or of types that Iceberg lacks ({first_line(error)})"
        )
    if found != expected:
        here, there = set(found) ^ set(expected), "the order of its columns"
        different = ", ".join(sorted(f"{one[1]} (id {one[0]})" for one in here)) or there
        return UnusableFile(f"{path} was written with another schema than the table's: {different}")
    if (column := _misnamed_column(schema)) is not None:
        return UnusableFile(
            f"{path} stores {column}, and readers find the lineage of rows by the field ids {dict(FIELD_IDS)}"
        )
    if len(same) < _MAX_SCHEMAS:
        same.append(schema)
    return None


def _misnamed_column(schema: pa.Schema) -> str | None:
    """Return a column that has the name or the field id of a column of the lineage, but not both; None without one."""
    for name, field_id in field_ids(schema).items():
        is_reserved = field_id >= _MIN_RESERVED_ID and (name in FIELD_IDS or field_id in FIELD_IDS.values())
        if is_reserved and FIELD_IDS.get(name) != field_id:
            return f"{name} with field id {field_id}"
    return None


def _columns(schema: Any) -> Columns:
    return tuple(_described(one) for one in schema.fields if one.field_id < _MIN_RESERVED_ID)


def _described(field: Any) -> Columns:
    return field.field_id, field.name, *_type(field.field_type)


def _type(kind: Any) -> Columns:
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(kind, StructType):
        return ("struct", tuple(_described(one) for one in kind.fields))
    if isinstance(kind, ListType):
        return ("list", kind.element_id, _type(kind.element_type))
    if isinstance(kind, MapType):
        return ("map", kind.key_id, _type(kind.key_type), kind.value_id, _type(kind.value_type))
    # Parquet stores a UUID as a fixed 16 bytes, and pyarrow does not always show which of the two a column is.
    return ("fixed[16]" if str(kind) == "uuid" else str(kind),)
