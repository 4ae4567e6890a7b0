# SPDX-License-Identifier: Apache-2.0
"""A Parquet file whose row groups can be copied: the bytes of its footer, and the positions of its row groups.

The footer is not decoded, since that would take longer than copying a file of 1 MB. It is only searched for positions
and sizes. All other bytes stay as they are, including those of unknown fields.

Sources: https://github.com/apache/parquet-format, parquet.thrift (numbers of fields), PageIndex.md, BloomFilter.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyarrow import fs as pafs

from executors.datafiles.thrift import FoundValue, Part, find_values
from executors.engines.footer import MAGIC
from executors.engines.inputs import UnsupportedInput, read_raw_footer

_COLUMN_META_DATA = {
    4: "codec",
    5: "values",
    6: "uncompressed_size",
    7: "compressed_size",
    9: "data_page",
    10: "index_page",
    11: "dictionary_page",
    14: "bloom_filter",
    15: "bloom_filter_size",
}
_COLUMN_CHUNK = {
    1: Part("file_path"),
    2: "file_offset",
    3: _COLUMN_META_DATA,
    4: "offset_index",
    5: "offset_index_size",
    6: "column_index",
    7: "column_index_size",
    8: Part("encryption"),
}
_ROW_GROUP = {
    1: _COLUMN_CHUNK,
    2: "uncompressed_size",
    3: "rows",
    5: "row_group_offset",
    6: "compressed_size",
    7: "ordinal",
}
_FILE_META_DATA = {2: Part("schema"), 3: "rows", 4: _ROW_GROUP, 8: Part("encryption")}
_BLOOM_FILTER_HEADER = {1: "size"}
UNKNOWN_SIZE = -1
#: the header of a Bloom filter has four small fields
_BLOOM_FILTER_HEADER_BYTES = 64


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """One column of a row group: its bytes in the footer, the values found there, and the position of its bytes."""

    footer_start: int
    footer_end: int
    found: Sequence[FoundValue] = field(repr=False)
    start: int
    end: int
    codec: int
    values: int
    uncompressed_size: int
    #: position and size of the Bloom filter and of each page index; the size is 0 if the part does not exist, and
    #: ``UNKNOWN_SIZE`` if the footer lacks the size of a Bloom filter
    bloom_filter: tuple[int, int]
    column_index: tuple[int, int]
    offset_index: tuple[int, int]


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group: its bytes in the footer, and its column chunks. ``found`` are values outside of these chunks.

    ``number`` is its position among all row groups of the file, including those without rows. ``bytes`` is the size of
    its column chunks and Bloom filters. ``offset_indexes`` has True if a chunk has an offset index, and False if a
    chunk has none.
    """

    number: int
    footer_start: int
    footer_end: int
    rows: int
    found: Sequence[FoundValue] = field(repr=False)
    chunks: Sequence[ColumnChunk] = field(repr=False)
    bytes: int
    offset_indexes: frozenset[bool]


@dataclass(frozen=True, slots=True)
class RawParquetFile:
    """A Parquet file, and the positions of its parts. ``row_groups`` have at least one row each.

    ``head`` are the bytes of the footer before the number of rows: version and schema. ``rest`` are the bytes after the
    row groups: metadata, writer, and for each column the order of its minima and maxima (``column_orders``).
    """

    path: str
    filesystem: pafs.FileSystem
    filesystem_path: str
    size: int
    footer: bytes = field(repr=False)
    head: bytes = field(repr=False)
    rest: bytes = field(repr=False)
    row_groups: Sequence[RowGroup] = field(repr=False)

    @classmethod
    def read(cls, path: str) -> "RawParquetFile":
        """Read the footer of the file at ``path``.

        Raises OSError or ``pa.ArrowException`` if the file can't be read. Raises UnsupportedInput if it is encrypted,
        is not a Parquet file, or has column chunks in other files.
        """
        return cls._of_footer(path, *read_raw_footer(path))

    @classmethod
    def _of_footer(
        cls, path: str, filesystem: pafs.FileSystem, fs_path: str, size: int, footer: bytes
    ) -> "RawParquetFile":
        try:
            found, end = find_values(footer, 0, _FILE_META_DATA)
        except ValueError as error:
            raise pa.ArrowInvalid(f"{path}: the footer can't be read: {error}") from error
        names = [value[0] if isinstance(value, tuple) else "row_groups" for value in found]
        if names[-1:] == ["encryption"]:
            raise UnsupportedInput(f"{path} has encrypted columns")
        if names != ["schema", "rows", "row_groups"] or end != len(footer):
            raise pa.ArrowInvalid(f"{path}: the footer lacks a required field, or its fields are not in order")
        (_, _, schema_end, _), (_, _, rows_end, rows), listed = found
        groups = [_row_group(path, number, *span) for number, span in enumerate(listed)]
        _verify_positions(path, groups, size - len(footer) - 8)
        if sum(group.rows for group in groups) != rows:
            raise pa.ArrowInvalid(f"{path}: the rows of its row groups do not add up to the {rows} rows of the file")
        behind = listed[-1][2] if listed else rows_end + len(_NO_ROW_GROUPS)
        return cls(
            path=path,
            filesystem=filesystem,
            filesystem_path=fs_path,
            size=size,
            footer=footer,
            head=footer[:schema_end],
            rest=footer[behind:],
            row_groups=[group for group in groups if group.rows],
        )

    def without_positions(self) -> "RawParquetFile":
        """Return the file without the column chunks of its row groups, which take most of the memory.

        Its rows can be read. Its row groups can't be copied.
        """
        groups = [replace(group, found=(), chunks=()) for group in self.row_groups]
        return replace(self, row_groups=groups)

    def with_positions(self) -> "RawParquetFile":
        """Return the file with the column chunks that ``without_positions`` left out."""
        found = self._of_footer(self.path, self.filesystem, self.filesystem_path, self.size, self.footer)
        return replace(self, row_groups=found.row_groups)

    @property
    def bare_footer(self) -> bytes:
        """The footer without row groups: schema and metadata."""
        return self.head + _NO_ROWS + _NO_ROW_GROUPS + self.rest

    def with_bare_footer(self, footer: bytes) -> "RawParquetFile":
        """Return the file as if its footer had the schema and the metadata of ``footer``, which has no row groups."""
        (_, _, schema_end, _), (_, _, rows_end, _), _ = find_values(footer, 0, _FILE_META_DATA)[0]
        return replace(self, head=footer[:schema_end], rest=footer[rows_end + len(_NO_ROW_GROUPS) :])


#: the field with the number of rows, and the field with an empty list of row groups
_NO_ROWS, _NO_ROW_GROUPS = b"\x16\x00", b"\x19\x0c"


def _row_group(path: str, number: int, found: Sequence[Any], start: int, end: int) -> RowGroup:
    own = [value for value in found if isinstance(value, tuple)]
    listed = next((value for value in found if isinstance(value, list)), [])
    rows = next((value for name, _, _, value in own if name == "rows"), -1)
    if rows < 0:
        raise pa.ArrowInvalid(f"{path}: a row group has no number of rows")
    chunks = [_column_chunk(path, *chunk) for chunk in listed]
    size = sum(chunk.end - chunk.start + max(0, chunk.bloom_filter[1]) for chunk in chunks)
    kinds = frozenset(chunk.offset_index[1] > 0 for chunk in chunks)
    return RowGroup(number, start, end, rows, own, chunks, size, kinds)


def _column_chunk(path: str, found: Sequence[FoundValue], footer_start: int, footer_end: int) -> ColumnChunk:
    values = {name: value for name, _, _, value in found}
    if "file_path" in values:
        raise UnsupportedInput(f"{path} has column chunks in other files")
    if "encryption" in values:
        raise UnsupportedInput(f"{path} has encrypted columns")
    size, start, dictionary, bloom_filter = (
        values.get(name, 0) for name in ("compressed_size", "data_page", "dictionary_page", "bloom_filter")
    )
    # Some writers record position 0 for a part that does not exist.
    start = min(start, dictionary) if dictionary > 0 else start
    return ColumnChunk(
        footer_start=footer_start,
        footer_end=footer_end,
        found=found,
        start=start,
        end=start + size,
        codec=values.get("codec", 0),
        values=values.get("values", 0),
        uncompressed_size=values.get("uncompressed_size", 0),
        bloom_filter=(bloom_filter, values.get("bloom_filter_size") or UNKNOWN_SIZE) if bloom_filter > 0 else (0, 0),
        column_index=(values.get("column_index", 0), values.get("column_index_size", 0)),
        offset_index=(values.get("offset_index", 0), values.get("offset_index_size", 0)),
    )


def _verify_positions(path: str, groups: Sequence[RowGroup], end: int) -> None:
    """Raise ArrowInvalid if a part is outside the file's data, or if two column chunks overlap."""
    spans = sorted((chunk.start, chunk.end) for group in groups for chunk in group.chunks if group.rows)
    before = len(MAGIC)
    for start, behind in spans:
        if not before <= start <= behind <= end:
            raise pa.ArrowInvalid(f"{path}: a column chunk at {start} to {behind} overlaps another one or the footer")
        before = behind
    for group in groups:
        for chunk in group.chunks if group.rows else ():
            for start, size in (chunk.bloom_filter, chunk.column_index, chunk.offset_index):
                if size and not (len(MAGIC) <= start and start + max(size, 1) <= end):
                    raise pa.ArrowInvalid(f"{path}: an index or a Bloom filter at {start} is outside the file")


def bloom_filter_size(header: bytes) -> int:
    """Return the size of a Bloom filter that begins with these bytes, its header included. Raises ValueError.

    Writers of the first version of the format recorded the position only.
    """
    found, behind = find_values(header, 0, _BLOOM_FILTER_HEADER)
    size = next((value for name, _, _, value in found if name == "size"), -1)
    if size < 0:
        raise ValueError("the Bloom filter has no size")
    return behind + int(size)


def header_span(position: int, size: int) -> tuple[int, int]:
    """Return where to read the header of a Bloom filter at ``position`` in a file of ``size`` bytes."""
    return position, min(_BLOOM_FILTER_HEADER_BYTES, size - position)
