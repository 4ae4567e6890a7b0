# SPDX-License-Identifier: Apache-2.0
"""The Parquet files of one group before a row is read: their footers, and the reasons why pyarrow can't rewrite them.

Files are concatenated, not converted. All inputs must therefore have one Parquet schema and equal metadata, and pyarrow
must write each column exactly as it reads it. If a format allows it, a column may be required in one input and optional
in another.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from executors.datafiles.parquet_integrity import verify_footer
from executors.engines.footer import MAGIC, RawParquetFooter, with_stored_decimals
from executors.nested_types import leaf_types
from lake.engines import FileAdditions, FileSchema
from lake.storage.filesystems import filesystem_of
from lake.storage.locations import is_local

_ARROW_SCHEMA = "ARROW:schema"
#: Spark's version does not change the meaning of values within an era (``_calendar_era``); other metadata must be equal
_SPARK = b"org.apache.spark.version"
#: maximum size of a value as a reference to a dictionary, in bytes; a plain string takes four bytes and its content
_MAX_BYTES_PER_REFERENCE = 2
#: average number of values per chunk from which the writer's choice for or against a dictionary is reliable
_MIN_VALUES_FOR_DICTIONARY = 10_000


class UnsupportedInput(Exception):
    """The reason why pyarrow can't rewrite a group, in words that follow the engine's name."""


class NotParquet(UnsupportedInput):
    """A file of the group is not a Parquet file."""


@dataclass(frozen=True, slots=True)
class ParquetInput:
    """A Parquet file with its footer, raw and as pyarrow shows it."""

    path: str
    filesystem: pafs.FileSystem
    filesystem_path: str
    size: int
    footer: bytes = field(repr=False)
    metadata: pq.FileMetaData = field(repr=False)

    @classmethod
    def read(cls, path: str) -> "ParquetInput":
        """Read the footer of the file at ``path``.

        Raises OSError or ``pa.ArrowException`` if the file can't be read, UnsupportedInput if it is encrypted or is not
        a Parquet file.
        """
        return cls.of_footer(path, *read_raw_footer(path))

    @classmethod
    def of_footer(
        cls, path: str, filesystem: pafs.FileSystem, fs_path: str, size: int, footer: bytes
    ) -> "ParquetInput":
        """Return the file at ``path`` with its ``footer``. Raises ``pa.ArrowException`` for a broken footer."""
        verify_footer(footer, path)
        metadata = _parse_footer(footer)
        rows = sum(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
        if rows != metadata.num_rows:
            # Readers read all row groups, whatever the footer states for the file.
            raise pa.ArrowInvalid(f"{path}: its row groups have {rows} rows, the file states {metadata.num_rows}")
        return cls(path, filesystem, fs_path, size, footer, metadata)

    def with_footer(self, footer: bytes) -> "ParquetInput":
        """Return the file as if it had another footer for the same pages."""
        return replace(self, footer=footer, metadata=_parse_footer(footer))

    def open(self, int96_unit: str, dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
        """Open the file to read rows, the columns of ``dictionaries`` as dictionaries. The caller closes it.

        The columns have the types that Parquet's schema gives them, see ``_stored_columns``. Raises
        ``pa.ArrowInvalid`` for a broken footer.
        """
        handle = self.filesystem.open_input_file(self.filesystem_path)
        if self.size <= _READ_WHOLE_BYTES:
            with handle:
                handle = pa.BufferReader(handle.read_buffer())
        return pq.ParquetFile(
            handle,
            metadata=self._stored_columns(),
            coerce_int96_timestamp_unit=int96_unit,
            page_checksum_verification=True,
            read_dictionary=list(dictionaries),
            arrow_extensions_enabled=False,
            pre_buffer=False,
            # without a buffer a whole row group is in memory, however large
            buffer_size=_BUFFER_BYTES if self.size > _LARGE_BYTES else 0,
        )

    def _stored_columns(self) -> pq.FileMetaData:
        """Return the metadata without Arrow's own schema and without decimals, see ``with_stored_decimals``.

        Arrow's schema names types that Parquet stores like others: kinds of lists, views, large strings, dictionaries,
        extension types. Arrow can't cast, sort or write some of these, and casts some to wrong values. New files keep
        the schema and the decimals.
        """
        try:
            footer = with_stored_decimals(self.footer)
            if _ARROW_SCHEMA.encode() in (self.metadata.metadata or {}):
                footer = _without_arrow_schema(footer)
        except ValueError as error:
            raise pa.ArrowInvalid(f"{self.path}: {error}") from error
        return self.metadata if footer is self.footer else _parse_footer(footer)

    def arrow_schema(self, int96_unit: str, dictionaries: Sequence[str]) -> pa.Schema:
        """Return the schema of the batches that are read if the file is opened with these arguments."""
        sink = pa.BufferOutputStream()
        self._stored_columns().write_metadata_file(sink)
        file = pq.ParquetFile(
            pa.BufferReader(sink.getvalue()),
            coerce_int96_timestamp_unit=int96_unit,
            read_dictionary=list(dictionaries),
            arrow_extensions_enabled=False,
        )
        return file.schema_arrow.remove_metadata()


def _without_arrow_schema(footer: bytes) -> bytes:
    """Return the footer of a file without Arrow's own schema. Raises ValueError for a broken footer."""
    # Another key does as well, and takes a hundredth of the time.
    key = b"\x18\x0c" + _ARROW_SCHEMA.encode()  # as Thrift writes the first field, of this length
    renamed = footer.replace(key, key.lower())
    if footer.count(key) == 1 and _ARROW_SCHEMA.encode() not in (_parse_footer(renamed).metadata or {}):
        return renamed
    return RawParquetFooter(footer).without_entry(_ARROW_SCHEMA)


def _parse_footer(footer: bytes) -> pq.FileMetaData:
    # pyarrow needs only the footer and its length, in a file of its own.
    return pq.read_metadata(pa.BufferReader(MAGIC + footer + len(footer).to_bytes(4, "little") + MAGIC))


def schema_of_footer(footer: bytes) -> pq.ParquetSchema:
    """Return the columns of a footer as pyarrow shows them."""
    return _parse_footer(footer).schema


T = TypeVar("T")

_FOOTERS_AT_ONCE = 8
#: the length of the footer and the magic bytes, which end a file
_END_BYTES = 8
#: large enough for most footers
_TAIL_BYTES = 64 << 10
#: up to this size one request is cheaper than one for each column
_READ_WHOLE_BYTES = 8 << 20
#: above this size columns are read one buffer at a time
_LARGE_BYTES, _BUFFER_BYTES = 128 << 20, 4 << 20


def read_raw_footer(path: str) -> tuple[pafs.FileSystem, str, int, bytes]:
    """Return the file system of the file at ``path``, its path there, its size, and the bytes of its footer.

    Raises OSError or ``pa.ArrowException`` if the file can't be read, UnsupportedInput if it is encrypted or is not a
    Parquet file.
    """
    filesystem, fs_path = filesystem_of(path)
    with filesystem.open_input_file(fs_path) as file:
        size = file.size()
        tail = file.read_at(min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
        if tail[-4:] == b"PARE":
            raise UnsupportedInput(f"{path} is encrypted")
        if tail[-4:] != MAGIC and file.read_at(min(size, 3), 0) in (b"ORC", b"Obj", b"SEQ"):
            raise NotParquet(f"{path} is no Parquet file")
        length = int.from_bytes(tail[-_END_BYTES:-4], "little")
        if tail[-4:] != MAGIC or not 0 < length <= size - _END_BYTES - len(MAGIC):
            raise pa.ArrowInvalid(f"{path} does not end with the footer of a Parquet file")
        if length + _END_BYTES > len(tail):
            tail = file.read_at(length + _END_BYTES, size - length - _END_BYTES)
    return filesystem, fs_path, size, tail[-length - _END_BYTES : -_END_BYTES]


@dataclass(frozen=True, slots=True)
class ColumnEncoding:
    """The encoding that the files of a group have in common in one leaf column."""

    codec: str
    has_bloom_filter: bool
    #: whether its chunks consist of a dictionary with few values and references to it
    has_dictionaries: bool
    #: True if no chunk has a dictionary although there are many values: then trying one would waste a tenth of the time
    is_plain: bool


@dataclass(frozen=True, slots=True)
class CommonLayout:
    """The layout of a group's inputs that its outputs must have."""

    footer: RawParquetFooter
    schema: pa.Schema
    #: columns that are read as dictionaries, which saves most of the time for strings
    dictionary_columns: Sequence[str]
    columns: Sequence[ColumnEncoding]
    has_page_index: bool
    #: whether timestamps are INT96, whose interpretation depends on the writer
    has_int96: bool
    #: the unit in which INT96 is read: microseconds for Spark's, whose years exceed the range of nanoseconds
    int96_unit: str
    int96_columns: Sequence[str]
    #: by leaf column the most values that a row group can have: Arrow's own schema makes the column a dictionary, and
    #: pyarrow can't read a row group with more values than the type of the references has
    max_categories: Mapping[int, int]
    #: the columns as pyarrow shows them; an input must still have them when it is read
    parquet_schema: pq.ParquetSchema = field(repr=False)


def common_layout(inputs: Sequence[ParquetInput], *, reads_dictionaries: bool = True) -> CommonLayout:
    """Return the common layout of ``inputs``. Without ``reads_dictionaries`` all columns are read as plain values.

    Raises UnsupportedInput, and ``pa.ArrowInvalid`` for a broken footer.
    """
    first = inputs[0]
    schema = first.metadata.schema
    has_int96 = any(schema.column(index).physical_type == "INT96" for index in range(len(schema)))
    meaning = _interpretation_of(first, has_int96)
    for other in inputs[1:]:
        if not other.metadata.schema.equals(schema):
            raise UnsupportedInput(f"{other.path} has another schema than {first.path}")
        if (differing := _first_difference(meaning, _interpretation_of(other, has_int96))) is not None:
            raise UnsupportedInput(
                f"{other.path} and {first.path} differ in {differing}, which can change how values are read"
            )
    try:
        footer = RawParquetFooter(first.footer)
    except ValueError as error:
        raise pa.ArrowInvalid(f"{first.path}: {error}") from error
    if footer.is_encrypted:
        raise UnsupportedInput(f"{first.path} has encrypted columns")
    unit = "ns" if has_foreign_int96(first.metadata) else "us"
    columns, has_page_index = _column_encodings(inputs)
    schema_of_values = first.arrow_schema(unit, ())
    dictionaries = _dictionary_columns(footer, columns, schema_of_values) if reads_dictionaries else []
    return CommonLayout(
        footer=footer,
        schema=first.arrow_schema(unit, dictionaries),
        dictionary_columns=dictionaries,
        columns=columns,
        has_page_index=has_page_index,
        has_int96=has_int96,
        int96_unit=unit,
        int96_columns=[
            path[0].decode()
            for path, column in zip(footer.leaf_paths, map(schema.column, range(len(schema))), strict=True)
            if column.physical_type == "INT96"
        ],
        max_categories=_max_categories(schema.to_arrow_schema()),
        parquet_schema=schema,
    )


def adapt_inputs(inputs: Sequence[ParquetInput], additions: FileAdditions | None) -> Sequence[ParquetInput]:
    """Return ``inputs`` with footers that can be compared and kept: see ``FileAdditions``.

    Raises ``pa.ArrowInvalid`` for a broken footer.
    """
    if additions is None:
        return inputs
    footers = adapt_footers([(one.path, one.footer) for one in inputs], additions)
    return [one.with_footer(footer) for one, footer in zip(inputs, footers, strict=True)]


def adapt_footers(files: Sequence[tuple[str, bytes]], additions: FileAdditions) -> list[bytes]:
    """Return the footers of ``files``, paths and footers, as ``adapt_inputs`` does. Raises its errors."""
    footers, shared = [], dict(additions.shared_entries)
    for path, raw in files:
        try:
            footers.append(RawParquetFooter(raw))
        except ValueError as error:
            raise pa.ArrowInvalid(f"{path}: {error}") from error
    for footer in reversed(footers):
        shared |= {key: value for key, value in footer.entries.items() if key in shared}
    return [
        footer.adapted(root_name=additions.root_name, removed_keys=additions.removed_keys, entries=shared)
        for footer in footers
    ]


def unify_schemas(inputs: Sequence[ParquetInput], wanted: FileSchema | None) -> Sequence[ParquetInput]:
    """Return ``inputs`` as if they were files with the schema ``wanted``. Rows can't be read from the result.

    Raises ``pa.ArrowInvalid`` for a broken footer.
    """
    if wanted is None:
        return inputs
    footers = []
    for one in inputs:
        try:
            footers.append(RawParquetFooter(one.footer))
        except ValueError as error:
            raise pa.ArrowInvalid(f"{one.path}: {error}") from error
    optional = wanted.optional_ids.union(*(footer.optional_ids for footer in footers))
    removed = wanted.removed_keys | wanted.entries.keys()
    return [
        one.with_footer(
            footer.with_optional(optional).adapted(
                root_name=wanted.root_name, removed_keys=removed, entries=wanted.entries
            )
        )
        for one, footer in zip(inputs, footers, strict=True)
    ]


def has_foreign_int96(metadata: pq.FileMetaData) -> bool:
    """True if a file has INT96 timestamps of a writer other than Spark: only these may have nanoseconds."""
    schema = metadata.schema
    by_spark = _SPARK in (metadata.metadata or {})
    return not by_spark and any(schema.column(index).physical_type == "INT96" for index in range(len(schema)))


def read_footers(paths: Sequence[str]) -> list[ParquetInput]:
    """Return the inputs among ``paths`` that can be read, in their order. Raises UnsupportedInput."""

    def read(path: str) -> ParquetInput | None:
        try:
            return ParquetInput.read(path)
        except (OSError, pa.ArrowException):
            return None

    return [one for one in map_files(read, paths) if one is not None]


def map_files(read: Callable[[str], T], paths: Sequence[str]) -> list[T]:
    """Return the result of ``read`` for each of ``paths``, in their order. Raises its first error.

    Remote files are read several at a time. Local files are not: starting a thread takes longer than reading a footer.
    """
    if all(map(is_local, paths)):
        return [read(path) for path in paths]
    with ThreadPoolExecutor(_FOOTERS_AT_ONCE, "footers") as pool:
        return list(pool.map(read, paths))


def _max_categories(schema: pa.Schema) -> dict[int, int]:
    leaves = [kind for column in schema.types for kind in leaf_types(column)]
    return {
        number: 1 << (kind.index_type.bit_width - pa.types.is_signed_integer(kind.index_type))
        for number, kind in enumerate(leaves)
        if pa.types.is_dictionary(kind)
    }


def _dictionary_columns(footer: RawParquetFooter, columns: Sequence[ColumnEncoding], schema: pa.Schema) -> list[str]:
    """Return the top-level columns of strings and bytes that have dictionaries in all files."""
    few = {path[0].decode() for path, column in zip(footer.leaf_paths, columns, strict=True) if column.has_dictionaries}
    return [column.name for column in schema if column.name in few and column.type in (pa.string(), pa.binary())]


def _column_encodings(inputs: Iterable[ParquetInput]) -> tuple[list[ColumnEncoding], bool]:
    """Return the encoding of each column, and whether any chunk has a page index.

    A column's codec is the codec of most of its bytes.
    """
    codecs: list[Counter[str]] = []
    filters: list[bool] = []
    dictionaries: list[bool] = []
    tried: list[bool] = []
    chunks = values = 0
    has_page_index = False
    for one in inputs:
        metadata = one.metadata
        if not codecs:
            codecs = [Counter() for _ in range(metadata.num_columns)]
            filters = [False] * metadata.num_columns
            dictionaries = [True] * metadata.num_columns
            tried = [False] * metadata.num_columns
        chunks, values = chunks + metadata.num_row_groups, values + metadata.num_rows
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            for index in range(metadata.num_columns):
                chunk = group.column(index)
                codecs[index][chunk.compression] += chunk.total_compressed_size
                # pyarrow writes no filter for booleans; it would distinguish only two values.
                is_filtered = chunk.bloom_filter_offset is not None and chunk.physical_type != "BOOLEAN"
                filters[index] = filters[index] or is_filtered
                has_page_index = has_page_index or chunk.has_offset_index
                few = chunk.total_uncompressed_size < _MAX_BYTES_PER_REFERENCE * chunk.num_values
                dictionaries[index] = dictionaries[index] and chunk.has_dictionary_page and few
                tried[index] = tried[index] or any("DICTIONARY" in name for name in chunk.encodings)
    columns = [
        ColumnEncoding(
            counted.most_common(1)[0][0] if counted else "SNAPPY",
            has_filter,
            has_dictionaries,
            not has_dictionary and values >= chunks * _MIN_VALUES_FOR_DICTIONARY,
        )
        for counted, has_filter, has_dictionaries, has_dictionary in zip(
            codecs, filters, dictionaries, tried, strict=True
        )
    ]
    return columns, has_page_index


def _interpretation_of(file: ParquetInput, has_int96: bool) -> dict[bytes, bytes]:
    return interpretation(file.metadata.metadata or {}, file.metadata.created_by, has_int96)


def interpretation(
    metadata: Mapping[bytes, bytes], created_by: bytes | str | None, has_int96: bool
) -> dict[bytes, bytes]:
    """Return the metadata by which readers interpret a file's values; Spark's version is reduced to its era.

    Hive and Impala shift INT96 timestamps by their time zone or not, depending on the writer.
    """
    found = dict(metadata)
    if has_int96:
        writer = created_by.encode() if isinstance(created_by, str) else created_by or b""
        found[b"created_by"] = writer.partition(b" ")[0]
    if _SPARK in found:
        found[_SPARK] = _calendar_era(found[_SPARK])
    return found


def _calendar_era(version: bytes) -> bytes:
    """Return the era of a Spark ``version``: within an era Spark reads dates and timestamps alike.

    This holds unless other metadata changes it.
    """
    match = re.match(rb"(\d+)\.(\d+)", version)
    number = (int(match[1]), int(match[2])) if match else (0, 0)
    return b"before 3.0" if number < (3, 0) else b"before 3.1" if number < (3, 1) else b"since 3.1"


def _first_difference(one: dict[bytes, bytes], other: dict[bytes, bytes]) -> str | None:
    """Return a phrase that names the first key whose value differs. Returns None if all are equal."""
    names = sorted(one.keys() | other.keys())
    return next(
        (f"metadata {name.decode(errors='replace')}" for name in names if one.get(name) != other.get(name)), None
    )
