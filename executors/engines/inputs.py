# SPDX-License-Identifier: Apache-2.0
"""The Parquet files of one group as they are before a row is read: their footers, and what speaks against pyarrow.

Files are concatenated, not converted. So all inputs have one Parquet schema and say the same of themselves, and pyarrow
writes each of their columns as it reads it.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from executors.engines.footer import MAGIC, RawParquetFooter
from lake.storage.filesystems import filesystem_of

#: that of Spark does not change what values mean within the ranges of ``_eras``; all other metadata has to be equal
_SPARK = b"org.apache.spark.version"
#: a string that is no reference to a dictionary takes four bytes and itself
_MAX_BYTES_PER_REFERENCE = 2
#: of so many values on average a writer has seen whether a dictionary is worth it
_MIN_VALUES_FOR_DICTIONARY = 10_000


class UnsupportedInput(Exception):
    """Why pyarrow can't rewrite a group, in words that follow those of the engine's name."""


class NotParquet(UnsupportedInput):
    """A file is of another kind."""


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
        """The file at ``path``. Raises OSError or ``pa.ArrowException`` where it can't be read, Unfit."""
        filesystem, place = filesystem_of(path)
        with filesystem.open_input_file(place) as file:
            size = file.size()
            tail = file.read_at(min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
            if tail[-4:] == b"PARE":
                raise UnsupportedInput(f"{path} is encrypted")
            if tail[-4:] != MAGIC and file.read_at(min(size, 3), 0) in (b"ORC", b"Obj", b"SEQ"):
                raise NotParquet(f"{path} is no Parquet file")
            length = int.from_bytes(tail[-8:-4], "little") + len(MAGIC) + 4
            if _TAIL_BYTES < length <= size and tail[-4:] == MAGIC:
                tail = file.read_at(length, size - length)
        # A beginning is all that pyarrow misses; of what is no Parquet file it says so.
        metadata = pq.read_metadata(pa.BufferReader(MAGIC + tail))
        return cls(path, filesystem, place, size, tail[-length : -len(MAGIC) - 4], metadata)

    def open(self, int96_unit: str, dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
        """The file, to read rows from, columns of ``dictionaries`` as such. The caller closes it."""
        handle = self.filesystem.open_input_file(self.filesystem_path)
        if self.size <= _READ_WHOLE_BYTES:
            with handle:
                handle = pa.BufferReader(handle.read_buffer())
        return pq.ParquetFile(
            handle,
            metadata=self.metadata,
            coerce_int96_timestamp_unit=int96_unit,
            page_checksum_verification=True,
            read_dictionary=list(dictionaries),
            arrow_extensions_enabled=False,
            pre_buffer=False,
            # else a row group is in memory as a whole, however large
            buffer_size=_BUFFER_BYTES if self.size > _LARGE_BYTES else 0,
        )


#: as much as holds most footers
_TAIL_BYTES = 64 << 10
#: up to which size one request is cheaper than one a column
_READ_WHOLE_BYTES = 8 << 20
#: from which size on columns are read a buffer at a time
_LARGE_BYTES, _BUFFER_BYTES = 128 << 20, 4 << 20


@dataclass(frozen=True, slots=True)
class ColumnEncoding:
    """What the files of a group have together in one leaf column."""

    codec: str
    has_bloom_filter: bool
    #: whether its chunks are dictionaries with few values, and references to these
    has_dictionaries: bool
    #: whether no chunk has a dictionary, of however many values: one is tried in vain, for a tenth of the time
    is_plain: bool


@dataclass(frozen=True, slots=True)
class CommonLayout:
    """What the outputs of a group are to have of its inputs."""

    footer: RawParquetFooter
    schema: pa.Schema
    #: columns that are read as dictionaries, which saves most of the time that strings take
    dictionary_columns: Sequence[str]
    columns: Sequence[ColumnEncoding]
    has_page_index: bool
    #: whose timestamps are INT96, and who wrote them says how to read these
    has_int96: bool
    #: what these are read in: Spark's have no nanoseconds, and years that nanoseconds do not reach
    int96_unit: str
    int96_columns: Sequence[str]
    #: as pyarrow shows them: what an input must still be when it is read
    parquet_schema: pq.ParquetSchema = field(repr=False)


def common_layout(inputs: Sequence[ParquetInput]) -> CommonLayout:
    """What ``inputs`` have in common. Raises Unfit, and ``pa.ArrowInvalid`` for a footer without sense."""
    first = inputs[0]
    schema = first.metadata.schema
    has_int96 = any(schema.column(index).physical_type == "INT96" for index in range(len(schema)))
    meaning = _interpretation(first.metadata, has_int96)
    for other in inputs[1:]:
        if not other.metadata.schema.equals(schema):
            raise UnsupportedInput(f"{other.path} has another schema than {first.path}")
        if (differing := _first_difference(meaning, _interpretation(other.metadata, has_int96))) is not None:
            raise UnsupportedInput(
                f"{other.path} and {first.path} differ in {differing}, which can say how values are to be read"
            )
    try:
        footer = RawParquetFooter(first.footer)
    except ValueError as error:
        raise pa.ArrowInvalid(f"{first.path}: {error}") from error
    if footer.is_encrypted:
        raise UnsupportedInput(f"{first.path} has encrypted columns")
    unit = "ns" if has_foreign_int96(first.metadata) else "us"
    columns, has_page_index = _column_encodings(inputs)
    dictionaries = _dictionary_columns(footer, columns, _arrow_schema(first.metadata, unit, ()))
    return CommonLayout(
        footer=footer,
        schema=_arrow_schema(first.metadata, unit, dictionaries),
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
        parquet_schema=schema,
    )


def has_foreign_int96(metadata: pq.FileMetaData) -> bool:
    """Whether a file has INT96 timestamps of another writer than Spark, whose own have no nanoseconds."""
    schema = metadata.schema
    by_spark = _SPARK in (metadata.metadata or {})
    return not by_spark and any(schema.column(index).physical_type == "INT96" for index in range(len(schema)))


def read_footers(paths: Sequence[str]) -> list[ParquetInput]:
    """Those of ``paths`` that can be read, in their order. Raises Unfit."""

    def read(path: str) -> ParquetInput | None:
        try:
            return ParquetInput.read(path)
        except (OSError, pa.ArrowException):
            return None

    with ThreadPoolExecutor(min(8, 2 * (os.cpu_count() or 1)), "footers") as pool:
        return [one for one in pool.map(read, paths) if one is not None]


def _arrow_schema(metadata: pq.FileMetaData, int96_unit: str, dictionaries: Sequence[str]) -> pa.Schema:
    """What batches of such a file have as their schema."""
    sink = pa.BufferOutputStream()
    metadata.write_metadata_file(sink)
    file = pq.ParquetFile(
        pa.BufferReader(sink.getvalue()),
        coerce_int96_timestamp_unit=int96_unit,
        read_dictionary=list(dictionaries),
        arrow_extensions_enabled=False,
    )
    return file.schema_arrow.remove_metadata()


def _dictionary_columns(footer: RawParquetFooter, columns: Sequence[ColumnEncoding], schema: pa.Schema) -> list[str]:
    """The top-level columns of strings and bytes that have dictionaries in all files."""
    few = {path[0].decode() for path, column in zip(footer.leaf_paths, columns, strict=True) if column.has_dictionaries}
    return [column.name for column in schema if column.name in few and column.type in (pa.string(), pa.binary())]


def _column_encodings(inputs: Iterable[ParquetInput]) -> tuple[list[ColumnEncoding], bool]:
    """The codec of most of a column's bytes, whether any chunk has a filter and all have dictionaries.

    And whether any chunk has a page index.
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
                # pyarrow writes no filter for booleans, which would tell two values apart.
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


def _interpretation(metadata: pq.FileMetaData, has_int96: bool) -> dict[bytes, bytes]:
    """What a file says of itself, where the version of Spark counts by what it says of values only.

    Hive and Impala shift INT96 timestamps by their time zone, or don't, by who wrote the file.
    """
    found: dict[bytes, bytes] = dict(metadata.metadata or {})
    if has_int96:
        found[b"created_by"] = (metadata.created_by or "").partition(" ")[0].encode()
    if _SPARK in found:
        found[_SPARK] = _calendar_era(found[_SPARK])
    return found


def _calendar_era(version: bytes) -> bytes:
    """Which releases of Spark read the dates and timestamps of ``version`` alike, unless other metadata says more."""
    match = re.match(rb"(\d+)\.(\d+)", version)
    number = (int(match[1]), int(match[2])) if match else (0, 0)
    return b"before 3.0" if number < (3, 0) else b"before 3.1" if number < (3, 1) else b"since 3.1"


def _first_difference(one: dict[bytes, bytes], other: dict[bytes, bytes]) -> str | None:
    """The first key whose value differs, in words."""
    names = sorted(one.keys() | other.keys())
    return next(
        (f"metadata {name.decode(errors='replace')}" for name in names if one.get(name) != other.get(name)), None
    )
