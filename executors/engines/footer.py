# SPDX-License-Identifier: Apache-2.0
"""The footer of a Parquet file as its format defines it, below the level that pyarrow shows.

pyarrow writes the pages. Parts of its footer are then replaced by parts of the inputs' footers: the exact schema (names
of lists and maps, field ids, annotations that Arrow does not know), key-value metadata, and ``created_by`` if readers
use it.
"""

import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from executors.datafiles.thrift import BINARY, I32, I64, LIST, STRUCT, Struct, decode, encode, find_field
from executors.engines.special_floats import SpecialFloats

MAGIC = b"PAR1"
LENGTH_BYTES = 8
"""The footer's length and the magic bytes at the end of a file."""

# Fields of FileMetaData, RowGroup, ColumnChunk, ColumnMetaData and SchemaElement.
_VERSION, _SCHEMA, _ROWS_OF_FILE, _ROW_GROUPS, _KEY_VALUES, _CREATED_BY, _ENCRYPTION = 1, 2, 3, 4, 5, 6, 8
_COLUMN_ORDERS = 7
_COLUMNS, _ROWS, _SORTING_COLUMNS = 1, 3, 4
_COLUMN_META = 3
_ENCODINGS, _PATH, _CODEC = 2, 3, 4
_STATISTICS, _ENCODING_STATISTICS, _BLOOM_FILTER, _SIZE_STATISTICS = 12, 13, (14, 15), 16
_COLUMN_INDEX = (6, 7)
#: max and min in the old and the current fields, and whether the current bounds are exact
_BOUND_FIELDS = (1, 2, 5, 6, 7, 8)
_TYPE, _REPETITION, _NAME, _CHILDREN, _FIELD_ID = 1, 3, 4, 5, 9
_REQUIRED, _OPTIONAL = 0, 1
_INT32, _INT64 = 1, 2
_CONVERTED_TYPE, _SCALE_AND_PRECISION, _LOGICAL_TYPE = 6, (7, 8), 10
#: among the converted types, and among the logical ones
_DECIMAL = 5
#: the order of a column's values is that of its type
_ORDER_OF_TYPE: Struct = {1: (STRUCT, {})}
_KEY, _VALUE = 1, 2

_PLAIN, _LZ4_OF_HADOOP = 0, 5


class RawParquetFooter:
    """The decoded footer of a file, whose contents can be merged into another footer."""

    def __init__(self, raw: bytes) -> None:
        self._fields = decode(raw)
        if _SCHEMA not in self._fields:
            raise ValueError("a footer without a schema")

    @property
    def is_encrypted(self) -> bool:
        """True if columns are encrypted although the footer is not."""
        return _ENCRYPTION in self._fields

    @property
    def has_lz4_of_hadoop(self) -> bool:
        """True if a column is compressed as LZ4 in Hadoop's frames, which pyarrow reads but does not write."""
        chunks = (chunk for group in self._fields[_ROW_GROUPS][1][1] for chunk in group[_COLUMNS][1][1])
        return any(chunk[_COLUMN_META][1][_CODEC][1] == _LZ4_OF_HADOOP for chunk in chunks)

    @property
    def leaf_paths(self) -> list[list[bytes]]:
        """The path of each leaf column, in the order of the columns."""
        elements = iter(self._fields[_SCHEMA][1][1])

        def below(path: list[bytes], count: int) -> Iterator[list[bytes]]:
            for _ in range(count):
                element = next(elements)
                here = [*path, element[_NAME][1]]
                if children := _children(element):
                    yield from below(here, children)
                else:
                    yield here

        return list(below([], _children(next(elements))))

    @property
    def entries(self) -> dict[str, str]:
        """The key-value metadata."""
        return {
            one[_KEY][1].decode(errors="replace"): one[_VALUE][1].decode(errors="replace")
            for one in self._key_values
            if _VALUE in one
        }

    @property
    def optional_ids(self) -> frozenset[int]:
        """The field ids of the columns, at any level, that may be null."""
        return frozenset(
            element[_FIELD_ID][1]
            for element in self._fields[_SCHEMA][1][1]
            if _FIELD_ID in element and element.get(_REPETITION, (0, None))[1] == _OPTIONAL
        )

    def with_optional(self, ids: Collection[int]) -> "RawParquetFooter":
        """Return the footer in which the columns with these field ids are optional if they were required.

        Returns this footer if there are no such columns. A changed footer describes other pages than those of its file.
        """
        required = [
            number
            for number, one in enumerate(self._fields[_SCHEMA][1][1])
            if _FIELD_ID in one and one[_FIELD_ID][1] in ids and one[_REPETITION][1] == _REQUIRED
        ]
        if not required:
            return self
        changed = RawParquetFooter(encode(self._fields))
        for number in required:
            changed._fields[_SCHEMA][1][1][number][_REPETITION] = (I32, _OPTIONAL)
        for group in changed._fields[_ROW_GROUPS][1][1]:
            for chunk in group[_COLUMNS][1][1]:
                # They count the levels of nesting, and an optional column adds a level; pyarrow aborts if they don't
                # fit.
                _drop(chunk[_COLUMN_META][1], (_SIZE_STATISTICS,))
        return changed

    @property
    def top_level_columns(self) -> list[tuple[str, int | None, int | None]]:
        """Name, field id and leaf number of each top-level column; None for no field id, and for a nested column."""
        elements = iter(self._fields[_SCHEMA][1][1][1:])
        found, leaf = [], 0
        for element in elements:
            is_leaf = not _children(element)
            field_id = element[_FIELD_ID][1] if _FIELD_ID in element else None
            found.append((element[_NAME][1].decode(errors="replace"), field_id, leaf if is_leaf else None))
            left, leaf = _children(element), leaf + is_leaf
            while left:
                below = next(elements)
                left, leaf = left - 1 + _children(below), leaf + (not _children(below))
        return found

    def without_leaves(self, leaves: Collection[int]) -> "RawParquetFooter":
        """Return the footer without the top-level columns that are the leaf columns with these numbers."""
        changed = RawParquetFooter(encode(self._fields))
        fields = changed._fields
        kind, elements = fields[_SCHEMA][1]
        positions = [position for position, one in enumerate(elements) if position and not _children(one)]
        removed = {positions[leaf] for leaf in leaves}
        elements[0][_CHILDREN] = (I32, elements[0][_CHILDREN][1] - len(removed))
        fields[_SCHEMA] = (LIST, (kind, [one for position, one in enumerate(elements) if position not in removed]))
        for group in fields[_ROW_GROUPS][1][1]:
            _remove(group, _COLUMNS, leaves)
            _drop(group, (_SORTING_COLUMNS,))  # they name columns by their numbers
        if _COLUMN_ORDERS in fields:
            _remove(fields, _COLUMN_ORDERS, leaves)
        return changed

    def with_integers(self, columns: Mapping[str, int]) -> "RawParquetFooter":
        """Return the footer with further optional columns of 64-bit integers, by name with their field ids.

        The row groups stay as they are, so the result describes the columns of other files than this one.
        """
        changed = RawParquetFooter(encode(self._fields))
        fields = changed._fields
        kind, (root, *elements) = fields[_SCHEMA][1]
        for name, field_id in columns.items():
            column = {_TYPE: (I32, _INT64), _REPETITION: (I32, _OPTIONAL), _NAME: (BINARY, name.encode())}
            elements.append(column | {_FIELD_ID: (I32, field_id)})
        root = root | {_CHILDREN: (I32, _children(root) + len(columns))}
        fields[_SCHEMA] = (LIST, (kind, [root, *elements]))
        if _COLUMN_ORDERS in fields:
            kind, orders = fields[_COLUMN_ORDERS][1]
            fields[_COLUMN_ORDERS] = (LIST, (kind, [*orders, *[_ORDER_OF_TYPE for _ in columns]]))
        return changed

    def encode(self) -> bytes:
        """Return the bytes of the footer."""
        return encode(self._fields)

    def encode_schema(self) -> bytes:
        """Return the bytes of the footer of a file with these columns and without rows."""
        kind, _ = self._fields[_ROW_GROUPS][1]
        return encode(self._fields | {_ROW_GROUPS: (LIST, (kind, [])), _ROWS_OF_FILE: (I64, 0)})

    def adapted(self, *, root_name: str, removed_keys: Collection[str], entries: Mapping[str, str]) -> bytes:
        """Return the footer with another name of the schema's root and other key-value metadata.

        ``removed_keys`` are left out; ``entries`` are added unless the footer has their keys.
        """
        fields = dict(self._fields)
        kind, (root, *columns) = fields[_SCHEMA][1]
        fields[_SCHEMA] = (LIST, (kind, [root | {_NAME: (BINARY, root_name.encode())}, *columns]))
        kept = [one for one in self._key_values if one[_KEY][1].decode(errors="replace") not in removed_keys]
        known = {one[_KEY][1] for one in kept}
        kept += _key_values({key: value for key, value in entries.items() if key.encode() not in known})
        fields[_KEY_VALUES] = (LIST, (STRUCT, kept))
        return encode(fields)

    def without_entry(self, key: str) -> bytes:
        """Return the footer without the key-value metadata ``key``."""
        kept = [one for one in self._key_values if one[_KEY][1] != key.encode()]
        return encode(self._fields | {_KEY_VALUES: (LIST, (STRUCT, kept))})

    def with_entries(self, entries: Mapping[str, str]) -> bytes:
        """Return the footer with further key-value metadata."""
        return encode(self._fields | {_KEY_VALUES: (LIST, (STRUCT, [*self._key_values, *_key_values(entries)]))})

    @property
    def _key_values(self) -> list[Struct]:
        return list(self._fields[_KEY_VALUES][1][1]) if _KEY_VALUES in self._fields else []

    def without_dictionary_claims(self, columns: Collection[str]) -> bytes:
        """Return the footer without the statement that all values of ``columns`` are in a dictionary.

        ``columns`` are paths in lower case. No reader then skips their chunks by a dictionary: parquet-java uses the
        statistics of encodings. Without them it uses the list of encodings, in which PLAIN stands for pages without a
        dictionary.
        """
        for group in self._fields[_ROW_GROUPS][1][1]:
            for path, chunk in zip(self.leaf_paths, group[_COLUMNS][1][1], strict=True):
                if b".".join(path).decode().lower() in columns:
                    meta: Struct = chunk[_COLUMN_META][1]
                    kind, encodings = meta[_ENCODINGS][1]
                    meta[_ENCODINGS] = (LIST, (kind, sorted({*encodings, _PLAIN})))
                    _drop(meta, (_ENCODING_STATISTICS,))
        return encode(self._fields)

    def merge_into(
        self,
        written: bytes,
        *,
        with_author: bool,
        special_floats: Callable[[Sequence[int]], Sequence[SpecialFloats]] | None = None,
        entries: Mapping[str, str] | None = None,
    ) -> bytes:
        """Return ``written``, a footer for pages of the same columns, with this footer's schema and metadata.

        ``with_author`` also takes over ``created_by``. ``special_floats`` maps the row counts of the row groups to each
        row group's columns with NaN or zeros. Some readers would skip such a row group wrongly, so the bounds and
        filters that they use are left out. ``entries`` are further key-value metadata.
        """
        fields = decode(written)
        for number in (_VERSION, _SCHEMA, _KEY_VALUES, *((_CREATED_BY,) if with_author else ())):
            fields.pop(number, None)
            if number in self._fields:
                fields[number] = self._fields[number]
        if entries:
            fields[_KEY_VALUES] = (LIST, (STRUCT, [*self._key_values, *_key_values(entries)]))
        leaves = self.leaf_paths
        groups = fields[_ROW_GROUPS][1][1]
        odds = (
            special_floats([group[_ROWS][1] for group in groups]) if special_floats else [SpecialFloats()] * len(groups)
        )
        for group, values in zip(groups, odds, strict=True):
            for leaf, (path, chunk) in enumerate(zip(leaves, group[_COLUMNS][1][1], strict=True)):
                meta: Struct = chunk[_COLUMN_META][1]
                meta[_PATH] = (LIST, (BINARY, path))
                if leaf in values.nan_columns:
                    _drop(meta[_STATISTICS][1] if _STATISTICS in meta else {}, _BOUND_FIELDS)
                    _drop(chunk, _COLUMN_INDEX)
                if leaf in values.zero_columns:
                    # Without these statistics a reader can't infer that each page refers to the dictionary.
                    _drop(meta, (_ENCODING_STATISTICS,))
                if leaf in values.nan_columns | values.zero_columns:
                    _drop(meta, _BLOOM_FILTER)
        return encode(fields)


def with_stored_decimals(footer: bytes) -> bytes:
    """Return a footer for the same pages in which decimals that are stored as integers are these integers.

    pyarrow reads and writes integers as they are, and makes decimals of 16 bytes from decimals. Returns ``footer``
    itself if it has no such decimals. Raises ValueError for no footer.
    """
    start, end = find_field(footer, _SCHEMA)
    schema = footer[start:end]
    stored = _with_stored_decimals(schema)
    return footer if stored == schema else footer[:start] + stored + footer[end:]


@lru_cache(maxsize=16)
def _with_stored_decimals(schema: bytes) -> bytes:
    head, stop = bytes([_SCHEMA << 4 | LIST]), b"\0"
    fields = decode(head + schema + stop)
    decimals = [one for one in fields[_SCHEMA][1][1] if _is_stored_decimal(one)]
    for one in decimals:
        _drop(one, (_CONVERTED_TYPE, *_SCALE_AND_PRECISION, _LOGICAL_TYPE))
    return encode(fields)[len(head) : -len(stop)] if decimals else schema


def _is_stored_decimal(element: Struct) -> bool:
    is_decimal = element.get(_CONVERTED_TYPE, (I32, None))[1] == _DECIMAL or (
        _LOGICAL_TYPE in element and _DECIMAL in element[_LOGICAL_TYPE][1]
    )
    return is_decimal and _TYPE in element and element[_TYPE][1] in (_INT32, _INT64)


def _key_values(entries: Mapping[str, str]) -> list[Struct]:
    return [{_KEY: (BINARY, key.encode()), _VALUE: (BINARY, value.encode())} for key, value in entries.items()]


def _children(element: Struct) -> int:
    """Return the number of columns directly below an element of the schema."""
    return int(element[_CHILDREN][1]) if _CHILDREN in element else 0


def _remove(fields: Struct, number: int, positions: Collection[int]) -> None:
    """Remove the elements at ``positions`` from a list."""
    kind, values = fields[number][1]
    fields[number] = (LIST, (kind, [one for position, one in enumerate(values) if position not in positions]))


def _drop(fields: Struct, numbers: Sequence[int]) -> None:
    for number in numbers:
        fields.pop(number, None)


class FooterReplacingStream(io.RawIOBase):
    """A stream for a Parquet file whose end is held back once ``buffer_rest`` is called.

    The footer can then be replaced, also in a store that accepts each byte only once.
    """

    def __init__(self, sink: Any) -> None:
        super().__init__()
        self._sink, self._buffered, self._written = sink, None, 0

    _buffered: bytearray | None

    def writable(self) -> bool:
        """See ``io.RawIOBase``."""
        return True

    def tell(self) -> int:
        """See ``io.RawIOBase``."""
        return self._written

    def write(self, data: Any) -> int:
        """See ``io.RawIOBase``."""
        if self._buffered is None:
            self._sink.write(data)
        else:
            self._buffered += data
        self._written += len(data)
        return len(data)

    def buffer_rest(self) -> None:
        """Hold back everything that is written from now on."""
        self._buffered = bytearray()

    def write_with_footer(
        self,
        footer: RawParquetFooter,
        *,
        with_author: bool,
        special_floats: Callable[[Sequence[int]], Sequence[SpecialFloats]] | None = None,
        entries: Mapping[str, str] | None = None,
    ) -> int:
        """Write the bytes held back, with their footer merged by ``footer.merge_into``. Returns the file's size."""
        held = self._buffered or bytearray()
        length = int.from_bytes(held[-LENGTH_BYTES:-4], "little")
        if held[-4:] != MAGIC or length + LENGTH_BYTES > len(held):
            raise ValueError("the bytes held back do not end with a footer")
        start = len(held) - LENGTH_BYTES - length
        new = footer.merge_into(
            bytes(held[start:-LENGTH_BYTES]), with_author=with_author, special_floats=special_floats, entries=entries
        )
        self._sink.write(bytes(held[:start]) + new + len(new).to_bytes(4, "little") + MAGIC)
        return self._written - length + len(new)
