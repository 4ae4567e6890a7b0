# SPDX-License-Identifier: Apache-2.0
"""New Parquet files with the layout of the files that they replace: the writer's settings, row groups, footer."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat
from pyarrow import fs as pafs

from executors.engines.dictionaries import leaves_without_dictionary
from executors.engines.footer import FooterReplacingStream
from executors.engines.inputs import CommonLayout, UnsupportedInput
from executors.engines.special_floats import SpecialFloatTracker
from executors.nested_types import leaf_arrays, replace_leaf_types
from lake.engines import FileAddition
from lake.errors import first_line
from lake.storage.local import sync_path

#: a row group is written once this many bytes of decoded values are in memory
ROW_GROUP_BYTES = 96 << 20
_FALSE_POSITIVES = 0.01
#: the compression levels of parquet-java, which wrote most inputs; for gzip, pyarrow's default level takes three times
#: as long for the same size
_LEVELS = {"GZIP": 6, "ZSTD": 3}


class ParquetWriteSettings:
    """The writer's settings for files of one layout. ``sorted_by`` are the columns by which their rows are sorted.

    Raises UnsupportedInput if pyarrow would store a column differently.
    """

    def __init__(
        self, shape: CommonLayout, compression: str | None, row_group_rows: int, sorted_by: Sequence[str] = ()
    ) -> None:
        self.layout, self._sorted_by = shape, sorted_by
        if compression is None and shape.footer.has_lz4_of_hadoop:
            raise UnsupportedInput("columns are compressed as Hadoop's LZ4, which it does not write; set compression")
        for as_integer in (True, False):
            try:
                self.schema = _stored(shape)
                self._options = self._settings(compression, row_group_rows, as_integer)
                difference = _storage_difference(shape.parquet_schema, self._empty_file_metadata().schema)
            except (pa.ArrowException, OSError) as error:
                raise UnsupportedInput(f"pyarrow does not write such columns: {first_line(error)}") from error
            if difference is None:
                return
        raise UnsupportedInput(difference or "")

    def _settings(self, compression: str | None, row_group_rows: int, as_integer: bool) -> dict[str, Any]:
        self._options = {"store_decimal_as_integer": as_integer}
        written = self._empty_file_metadata().schema
        paths = [written.column(index).path for index in range(len(written))]
        if len(paths) != len(self.layout.columns):
            raise UnsupportedInput("pyarrow reads other columns than the files have")
        codecs = {
            path: _codec(compression or column.codec) for path, column in zip(paths, self.layout.columns, strict=True)
        }
        filters = {
            path: {"ndv": max(1, row_group_rows), "fpp": _FALSE_POSITIVES}
            for path, column in zip(paths, self.layout.columns, strict=True)
            if column.has_bloom_filter
        }
        #: by number and path the columns that may turn out to be smaller without a dictionary
        self._questionable = {
            leaf: path
            for leaf, (path, column) in enumerate(zip(paths, self.layout.columns, strict=True))
            if not column.is_plain and not column.has_dictionaries
        }
        return {
            "compression": codecs,
            "compression_level": {path: _LEVELS[codec] for path, codec in codecs.items() if codec in _LEVELS} or None,
            "use_dictionary": [
                path for path, column in zip(paths, self.layout.columns, strict=True) if not column.is_plain
            ],
            "bloom_filter_options": filters or None,
            "store_decimal_as_integer": as_integer,
            "sorting_columns": [pq.SortingColumn(leaf, nulls_first=True) for leaf in self._sorting_leaves()] or None,
            "write_page_index": self.layout.has_page_index,
            "write_page_checksum": True,
        }

    def _sorting_leaves(self) -> list[int]:
        """Return the indexes of the sorting columns among the leaf columns.

        In pyarrow's paths the name ``a.b`` of a column equals the path of a field ``b`` in a column ``a``.
        """
        leaf_paths = self.layout.footer.leaf_paths
        return [leaf_paths.index([name.encode()]) for name in self._sorted_by]

    def _empty_file_metadata(self) -> pq.FileMetaData:
        """Return the metadata of a file without rows."""
        sink = pa.BufferOutputStream()
        with self.open_writer(sink):
            pass
        return pq.read_metadata(pa.BufferReader(sink.getvalue()))

    def without_useless_dictionaries(self, rows: pa.Table) -> "ParquetWriteSettings":
        """Return the settings for a file that begins with ``rows``: without dictionaries that would make it larger."""
        codecs = self._options["compression"]
        compressed = {leaf: codecs[path] != "NONE" for leaf, path in self._questionable.items()}
        plain = {self._questionable[leaf] for leaf in leaves_without_dictionary(rows, compressed)}
        found = copy(self)
        kept = [path for path in self._options["use_dictionary"] if path not in plain]
        found._options = self._options | {"use_dictionary": kept}
        return found

    def open_writer(self, sink: Any, columns: Sequence[str] | None = None) -> pq.ParquetWriter:
        """Open a writer to ``sink``. The file that it writes is not final: its footer is pyarrow's.

        It has all columns, or the top-level ``columns`` only, which are not nested.
        """
        schema, options = self.schema, self._options
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
            options = {name: _of_columns(value, columns) for name, value in options.items()}
        return pq.ParquetWriter(
            sink,
            schema,
            store_schema=False,
            use_deprecated_int96_timestamps=self.layout.has_int96,
            **options,
        )


#: from this size on, returning the memory of a row group to the system takes a small part of the time
_LARGE_BYTES = 32 << 20


class ParquetOutput:
    """A file that is being written, within a ``with`` block. If the block fails the file is removed.

    ``addition`` is the addition of the table's format to the file.
    """

    def __init__(
        self,
        settings: ParquetWriteSettings,
        filesystem: pafs.FileSystem,
        path: str,
        row_group_rows: int,
        addition: FileAddition | None = None,
    ) -> None:
        self._settings, self._filesystem, self._path = settings, filesystem, path
        self._row_group_rows, self._addition = row_group_rows, addition
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        self._special_floats = SpecialFloatTracker(settings.schema)
        #: opened with the first row group, whose rows determine its settings
        self._writer: pq.ParquetWriter | None = None
        self.rows = self.bytes = 0

    def __enter__(self) -> "ParquetOutput":
        self._sink = self._filesystem.open_output_stream(self._path, compression=None)
        self._tail = FooterReplacingStream(self._sink)
        return self

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows. A row group is written once there are enough rows."""
        if self._addition is not None:
            batch = self._addition.add(batch)
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        self.rows += batch.num_rows
        if self._pending_rows >= self._row_group_rows or self._pending_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._pending_rows:
            return
        rows, is_large = stored_rows(self._pending, self._settings.schema), self._pending_bytes >= _LARGE_BYTES
        self._pending.clear()
        self._pending_rows = self._pending_bytes = 0
        _verify_categories(rows, self._settings.layout.max_categories)
        self._special_floats.add(rows)
        if self._writer is None:
            self._writer = self._settings.without_useless_dictionaries(rows).open_writer(self._tail)
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        if is_large:
            del rows
            # The allocator keeps freed memory in fragments that the next row group does not fit into.
            pa.default_memory_pool().release_unused()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._abort()
            return
        try:
            self._flush()
            writer = self._writer or self._settings.open_writer(self._tail)
            self._tail.buffer_rest()
            writer.close()
            shape = self._settings.layout
            self.bytes = self._tail.write_with_footer(
                shape.footer,
                with_author=shape.has_int96,
                special_floats=self._special_floats.of_row_groups,
                entries=None if self._addition is None else self._addition.footer_entries(),
            )
            self._sink.close()
            if isinstance(self._filesystem, pafs.LocalFileSystem):
                # The inputs may be deleted soon; then this file is the only copy of the rows.
                sync_path(self._path)
        except BaseException:
            self._abort()
            raise

    def _abort(self) -> None:
        with suppress(Exception):
            if self._writer is not None:
                self._writer.close()
        with suppress(Exception):
            self._sink.close()
        with suppress(OSError):
            self._filesystem.delete_file(self._path)


def stored_rows(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Return the rows of a row group with the types of ``schema``.

    A column chunk has one dictionary. If the column has nulls, the dictionary has only values of the rows.
    """
    rows = pa.Table.from_batches(batches)
    if not rows.schema.equals(schema):
        # A cast makes a dictionary for each chunk.
        rows = rows.combine_chunks().cast(schema)
    if any(map(pat.is_dictionary, rows.schema.types)):
        rows = rows.unify_dictionaries()
        for index, column in enumerate(rows.columns):
            # pyarrow counts a null among the used values, so that its bounds may be those of unused values.
            if pat.is_dictionary(column.type) and column.null_count:
                compact = pa.chunked_array(_without_unused(column.chunks), column.type)
                rows = rows.set_column(index, rows.schema.field(index), compact)
    return rows


def without_unused_values(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return ``batch`` with dictionaries that have only values of its rows.

    pyarrow writes whole dictionaries, so values of deleted rows would stay in new files.
    """
    for index, column in enumerate(batch.columns):
        if pat.is_dictionary(column.type):
            (compact,) = _without_unused([column])
            if compact is not column:
                batch = batch.set_column(index, batch.schema.field(index).with_type(compact.type), compact)
    return batch


def _without_unused(chunks: Sequence[pa.DictionaryArray]) -> Sequence[pa.DictionaryArray]:
    """Return ``chunks``, which share a dictionary, with a dictionary that has only their values."""
    kind, values = chunks[0].type, chunks[0].dictionary
    used = pc.unique(pa.chunked_array([chunk.indices for chunk in chunks]).drop_null())
    if len(used) == len(values):
        return chunks
    return [
        pa.DictionaryArray.from_arrays(
            pc.index_in(chunk.indices, used).cast(kind.index_type), values.take(used), ordered=kind.ordered
        )
        for chunk in chunks
    ]


def _verify_categories(rows: pa.Table, limits: Mapping[int, int]) -> None:
    """Raise ``pa.ArrowInvalid`` if a leaf column has more values than ``limits``, see ``CommonLayout``."""
    number = 0
    for name, column in zip(rows.column_names, rows.columns, strict=True) if limits else ():
        leaves = [[*leaf_arrays(chunk)] for chunk in column.chunks]
        for chunks in zip(*leaves, strict=True):
            if number in limits:
                values = pa.chunked_array(chunks)
                if pat.is_dictionary(values.type):
                    count = len(chunks[0].dictionary)  # all chunks have the same one
                else:
                    count = pc.count_distinct(values).as_py()
                if count > limits[number]:
                    raise pa.ArrowInvalid(
                        f"column {name} has {count} values in a row group, and its Arrow type has at most "
                        f"{limits[number]}"
                    )
            number += 1


def _of_columns(option: Any, columns: Sequence[str]) -> Any:
    """Return a writer's option. If it is a mapping or a list of columns, return only its entries for ``columns``."""
    if isinstance(option, dict):
        return {name: value for name, value in option.items() if name in columns} or None
    return [name for name in option if name in columns] if isinstance(option, list) else option


def _codec(name: str) -> str:
    return "NONE" if name.upper() == "UNCOMPRESSED" else name.upper()


def _stored(shape: CommonLayout) -> pa.Schema:
    """Return the columns as pyarrow must write them.

    pyarrow writes all timestamps as INT96 or none. If some are INT96, the others are written as their integer values.
    """
    if not shape.has_int96:
        return shape.schema
    leaves = map(shape.parquet_schema.column, range(len(shape.parquet_schema)))

    def stored_type(kind: pa.DataType) -> pa.DataType:
        leaf = next(leaves)
        return pa.int64() if pat.is_timestamp(kind) and leaf.physical_type == "INT64" else kind

    return replace_leaf_types(shape.schema, stored_type)


def _storage_difference(wanted: pq.ParquetSchema, written: pq.ParquetSchema) -> str | None:
    """Return a phrase about the first column that pyarrow would store differently. Returns None if none differs."""
    if len(wanted) != len(written):
        return f"pyarrow would write {len(written)} columns instead of {len(wanted)}"
    for index in range(len(wanted)):
        before, after = wanted.column(index), written.column(index)
        for what, old, new in zip(("stored as", "nested as"), _storage_of(before), _storage_of(after), strict=True):
            if old != new:
                return f"column {before.path} is {what} {old}, which pyarrow would make {new}"
    return None


def _storage_of(column: Any) -> Sequence[str]:
    """Return how the values of a column are stored and ordered, and their levels of nesting."""
    length = f"({column.length})" if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else ""
    levels = f"levels {column.max_repetition_level} and {column.max_definition_level}"
    return f"{column.physical_type}{length}, {_sort_order(column)}", levels


def _sort_order(column: Any) -> str:
    """Return how values compare; the smallest and the largest value of a chunk depend on it."""
    logical = column.logical_type.type
    if logical == "INT":
        return "signed" if '"isSigned":true' in column.logical_type.to_json() else "unsigned"
    if logical in ("DECIMAL", "DATE", "TIME", "TIMESTAMP"):
        return "signed"
    if logical in ("NONE", "STRING", "ENUM", "JSON", "BSON", "UUID"):
        return "unsigned" if column.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY") else "signed"
    return str(logical).lower()
