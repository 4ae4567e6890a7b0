# SPDX-License-Identifier: Apache-2.0
"""Row groups of Parquet files copied as bytes, one file after the other, under one new footer.

Column chunks and Bloom filters are copied as they are. If the table's format replaces a column, its chunks come from a
temporary file. Page indexes follow the last row group of the output, since readers expect them next to the footer. All
absolute positions in the footer and in the offset indexes are shifted. Row groups get new ordinals. Statistics, sorting
columns and field ids stay. Key-value metadata and the sizes of row groups stay too, unless the table's format adds to
the file.
"""

import re
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter

import pyarrow as pa
from pyarrow import fs as pafs

from executors.datafiles.thrift import (
    STRUCT,
    decode_integer,
    encode_integer,
    encode_list_head,
    find_values,
    list_head_at,
    replace_parts,
    replace_values,
)
from executors.engines.footer import MAGIC, RawParquetFooter
from executors.engines.group_rewrite import attempt_path, reading_input, skipping_changed
from executors.engines.inputs import UnsupportedInput, map_files
from executors.engines.stitch.compatibility import verify_compatible
from executors.engines.stitch.copying import RangeReader, RangeWriter
from executors.engines.stitch.pages import verify_pages
from executors.engines.stitch.raw_file import (
    ColumnChunk,
    RawParquetFile,
    RowGroup,
    bloom_filter_size,
    header_span,
)
from lake.engines import EngineOutput, FileAddition, RewriteTask
from lake.plan import RewriteOptions
from lake.storage.filesystems import filesystem_of
from lake.units import format_bytes

# The heads of two fields of FileMetaData: the number of rows, and the row groups. In Thrift, the head of a field has
# the difference between its number and the number of the previous field.
_ROWS_HEAD, _ROW_GROUPS_HEAD = b"\x16", b"\x19"
# The head of a field of RowGroup, with the full number of the field; and the end of a struct.
_ORDINAL_HEAD, _END = b"\x04\x0e", b"\x00"
_OFFSET_INDEX = {1: {1: "page"}}
# The head of an offset index's list of pages, and one of the pages: position, size, number of the first row.
_PAGES_HEAD, _PAGE_HEAD, _INTEGER = b"\x19", b"\x16", rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_PAGE = re.compile(rb"\x16(" + _INTEGER + rb")(\x15" + _INTEGER + rb"\x16" + _INTEGER + rb"\x00)", re.DOTALL)
#: values of a column chunk that are positions in the file; some writers record 0 for a part that does not exist
_POSITIONS = frozenset({"data_page", "dictionary_page", "bloom_filter"})
#: positions that readers ignore; the bytes there may not be copied
_UNUSED_POSITIONS = frozenset({"index_page", "file_offset"})
#: an ordinal has 16 bits; only encryption uses it
_MAX_ORDINAL = 0x7FFF
#: up to this many unused bytes between page indexes are read to save a further read
_INDEX_GAP_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class SourceGroup:
    """A row group of a file."""

    file: RawParquetFile
    group: RowGroup


def source_groups(files: Sequence[RawParquetFile]) -> list[SourceGroup]:
    """Return the row groups of all files, in their order."""
    return [SourceGroup(file, group) for file in files for group in file.row_groups]


def plan_outputs(groups: Sequence[SourceGroup], outputs: int, target_bytes: int) -> list[list[SourceGroup]]:
    """Return the row groups of each output, in their order; the largest output is as small as possible.

    Raises UnsupportedInput if there are fewer row groups than outputs, or if an output of several row groups would be
    larger than ``target_bytes``.
    """
    ends = divide_sizes([one.group.bytes for one in groups], outputs, target_bytes)
    return [list(groups[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def divide_sizes(sizes: Sequence[int], outputs: int, target_bytes: int) -> list[int]:
    """Return where each output ends in ``sizes``, the bytes of row groups. Raises the error of ``plan_outputs``."""
    if outputs > max(1, len(sizes)):
        raise UnsupportedInput(f"its {len(sizes)} row groups can't be divided into {outputs} files")
    low, high = max([1, *sizes, -(-sum(sizes) // outputs)]), max(1, sum(sizes))
    while low < high:
        middle = (low + high) // 2
        if len(_ends(sizes, middle)) <= outputs:
            high = middle
        else:
            low = middle + 1
    ends = _ends(sizes, high)
    # The smallest maximum size may give fewer outputs than planned; further cuts make no output larger.
    while len(ends) < outputs:
        ends = _halve_longest_part(ends)
    for start, end in zip([0, *ends], ends, strict=False):
        size = sum(sizes[start:end])
        if size > target_bytes and end - start > 1:
            raise UnsupportedInput(
                f"its row groups can't be divided into {outputs} files of at most {format_bytes(target_bytes)} "
                f"(target_file_max); the largest one would have {format_bytes(size)}"
            )
    return ends


def _ends(sizes: Sequence[int], most: int) -> list[int]:
    """Return where to cut ``sizes`` so that each part has at most ``most`` bytes, or a single row group."""
    ends, size = list[int](), 0
    for index, one in enumerate(sizes):
        if index and size + one > most:
            ends.append(index)
            size = 0
        size += one
    return [*ends, len(sizes)]


def _halve_longest_part(ends: Sequence[int]) -> list[int]:
    starts = [0, *ends[:-1]]
    longest = max(range(len(ends)), key=lambda part: ends[part] - starts[part])
    middle = (starts[longest] + ends[longest]) // 2
    return sorted([*ends, middle])


def stitch_task(task: RewriteTask, options: RewriteOptions, check: Callable[[], None]) -> list[EngineOutput]:
    """Write the outputs of a group, each to a path of this attempt's own if the file system can rename.

    ``check`` is called between parts and may raise to end the work. Raises Conflict with the skipped group if an input
    can't be read, Transient if storage fails.
    """
    with skipping_changed(task):
        files = read_inputs(task)
        with reading_input(task, task.inputs[0]):
            verify_compatible(files)
        parts = plan_outputs(source_groups(files), len(task.outputs), options.target_file_max_bytes)
    return [write_output(task, files[0], part, path, check) for part, path in zip(parts, task.outputs, strict=True)]


def read_inputs(task: RewriteTask, min_bytes: int = 0) -> list[RawParquetFile]:
    """Return the inputs of a group, in their order.

    If every row group of a file is smaller than ``min_bytes``, the file is returned without the positions of its column
    chunks. For thousands of files, the positions would take more memory than a row group. Raises Conflict with the
    skipped group if an input can't be read, and UnsupportedInput.
    """

    def read(path: str) -> RawParquetFile:
        with reading_input(task, path):
            file = RawParquetFile.read(path)
        is_small = min_bytes and all(group.bytes < min_bytes for group in file.row_groups)
        return file.without_positions() if is_small else file

    return map_files(read, task.inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedFile:
    """The columns and footer entries that a table's format adds to an output. See ``lake.engines.FileAdditions``."""

    addition: FileAddition
    #: the indexes of the replaced columns among the leaf columns
    leaves: Sequence[int]
    #: for each row group of the output its replaced columns, which are a row group of a temporary file
    columns: Sequence[SourceGroup]


def write_output(
    task: RewriteTask,
    first: RawParquetFile,
    part: Sequence[SourceGroup],
    path: str,
    check: Callable[[], None],
    added: AddedFile | None = None,
) -> EngineOutput:
    """Write row groups to one output, under the footer of ``first``.

    Raises the errors of ``stitch_task``, and Transient if the table's format no longer wants the file.
    """
    if added is not None:
        added.addition.verify_wanted()
        path = added.addition.path
    elif not isinstance(filesystem_of(path)[0], pafs.S3FileSystem):
        path = attempt_path(path)  # see executors.engines.group_rewrite
    filesystem, fs_path = filesystem_of(path)
    with RangeWriter(filesystem, fs_path, check) as sink:
        copied = _copy_all(task, part, sink, added)
        for one in copied:
            one.write_column_indexes(sink)
        for one in copied:
            one.write_offset_indexes(sink)
        if added is not None:
            entries = added.addition.footer_entries()
            first = first.with_bare_footer(RawParquetFooter(first.bare_footer).with_entries(entries))
        rows, with_ordinals = sum(one.rows for one in copied), any(one.has_ordinal for one in copied)
        footer = b"".join(
            chain(
                (first.head, _ROWS_HEAD, encode_integer(rows)),
                (_ROW_GROUPS_HEAD, encode_list_head(STRUCT, len(copied))),
                (one.footer_entry(number, with_ordinal=with_ordinals) for number, one in enumerate(copied)),
                (first.rest,),
            )
        )
        sink.append(footer + len(footer).to_bytes(4, "little") + MAGIC)
    return EngineOutput(group=task.group, path=path, bytes=sink.position, rows=rows)


def _copy_all(
    task: RewriteTask, part: Sequence[SourceGroup], sink: RangeWriter, added: AddedFile | None
) -> "list[_CopiedGroup]":
    """Append the column chunks and Bloom filters of an output."""
    copied: list[_CopiedGroup] = []
    with ExitStack() as opened:
        columns = None
        if added is not None and added.columns:
            file = added.columns[0].file
            reader = opened.enter_context(RangeReader(file.filesystem, file.filesystem_path))
            columns = _Source(file, reader, [chunk for one in added.columns for chunk in one.group.chunks])
        for file, groups in _by_file(part):
            replaced: list[_Replaced] = [{}] * len(groups)
            if added is not None and columns is not None:
                of_groups = added.columns[len(copied) : len(copied) + len(groups)]
                replaced = [
                    {leaf: (columns, chunk) for leaf, chunk in zip(added.leaves, one.group.chunks, strict=True)}
                    for one in of_groups
                ]
            with reading_input(task, file.path), RangeReader(file.filesystem, file.filesystem_path) as reader:
                copied += _copy(file, groups, replaced, reader, sink)
    return copied


def _by_file(part: Sequence[SourceGroup]) -> Iterator[tuple[RawParquetFile, list[RowGroup]]]:
    """Yield the inputs of an output, each with its row groups in this output."""
    groups: list[RowGroup] = []
    for index, one in enumerate(part):
        groups.append(one.group)
        if index + 1 == len(part) or part[index + 1].file is not one.file:
            yield one.file, groups
            groups = []


class _ByteShifts:
    """The distances by which byte ranges of an input are shifted in the output."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int, int]] = []

    def add(self, start: int, end: int, position: int) -> None:
        """Record that the bytes from ``start`` to ``end`` are at ``position``."""
        insort(self._spans, (start, end, position - start))

    def shifted(self, position: int) -> int | None:
        """Return the position in the output. None if the byte is not copied."""
        index = bisect_right(self._spans, position, key=itemgetter(0)) - 1
        if index < 0 or position >= self._spans[index][1]:
            return None
        return position + self._spans[index][2]


class _Source:
    """A file from which the output gets column ``chunks``."""

    def __init__(self, file: RawParquetFile, reader: RangeReader, chunks: Sequence[ColumnChunk]) -> None:
        self.file, self._reader = file, reader
        self.indexes = _Indexes(reader, [span for chunk in chunks for span in (chunk.column_index, chunk.offset_index)])
        self._shifts = _ByteShifts()

    def spans(self, chunk: ColumnChunk) -> list[tuple[int, int]]:
        """Return the bytes of a chunk and of its Bloom filter. Raises ``pa.ArrowInvalid`` for a broken filter."""
        filters = [_bloom_filter_span(self.file, chunk, self._reader)] if chunk.bloom_filter[1] else []
        return [(chunk.start, chunk.end), *filters]

    def copy(self, start: int, end: int, sink: RangeWriter) -> None:
        """Append the bytes from ``start`` to ``end`` to the output."""
        self._shifts.add(start, end, sink.position)
        sink.copy(self._reader, start, end)

    def shifted(self, position: int) -> int | None:
        """Return the position in the output. None if the byte is not copied."""
        return self._shifts.shifted(position)

    def require_shifted(self, name: str, position: int) -> int:
        """Return the position in the output. Raises ``pa.ArrowInvalid`` if the byte is not copied."""
        found = self._shifts.shifted(position)
        if found is None:
            raise pa.ArrowInvalid(f"{self.file.path}: a {name} at {position} is outside its column chunk")
        return found


_Replaced = Mapping[int, tuple[_Source, ColumnChunk]]
"""The chunks that a row group gets instead of its own, by the number of the leaf column."""


def _page_locations(content: bytes) -> Sequence[re.Match[bytes]] | None:
    """Return the pages of an offset index that has nothing else, as matches of ``_PAGE``; None for any other index.

    Almost all offset indexes are like this. Tables of tiny files have one for each few values.
    """
    if content[:1] != _PAGES_HEAD:
        return None
    try:
        size, element, at = list_head_at(content, 1)
    except (IndexError, ValueError):
        return None
    found = []
    for _ in range(size if element == STRUCT else 0):
        page = _PAGE.match(content, at)
        if page is None:
            return None
        found.append(page)
        at = page.end()
    return found if content[at:] == _END else None


class _CopiedChunk:
    """A column chunk that is in the output, and its page indexes, which are still to be written there."""

    def __init__(self, source: _Source, chunk: ColumnChunk) -> None:
        """Raises ``pa.ArrowInvalid`` if a position in the footer or in an offset index is not in a column chunk."""
        self.chunk, self._source = chunk, source
        #: where the chunk begins in the output
        self.position = source.shifted(chunk.start) or 0
        self._column_index = source.indexes.content(*chunk.column_index)
        self._offset_index = self._shift_pages(source.indexes.content(*chunk.offset_index))
        self._values = list(self._shift_positions())

    def _shift_positions(self) -> Iterator[tuple[int, int, int]]:
        """Yield start and end of each position in the footer entry, and the position's value in the output."""
        for name, start, end, value in self.chunk.found:
            if name in _UNUSED_POSITIONS:
                yield start, end, self._source.shifted(value) or 0
            elif name in _POSITIONS and value > 0:
                yield start, end, self._source.require_shifted(name, value)

    def _shift_pages(self, content: bytes) -> bytes:
        """Return an offset index with the positions of the pages in the output."""
        if not content:
            return content
        path = self._source.file.path
        shift = self._source.require_shifted
        if (pages := _page_locations(content)) is not None:
            start = pages[0].start() if pages else len(content) - len(_END)
            shifted = (_PAGE_HEAD + encode_integer(shift("page", decode_integer(page[1]))) + page[2] for page in pages)
            return b"".join((content[:start], *shifted, _END))
        try:
            found, end = find_values(content, 0, _OFFSET_INDEX)
        except ValueError as error:
            raise pa.ArrowInvalid(f"{path}: an offset index can't be read: {error}") from error
        if end != len(content) or len(found) != 1:
            raise pa.ArrowInvalid(f"{path}: there are further bytes after an offset index")
        positions = [value for values, _, _ in found[0] for value in values]
        return replace_values(
            content, 0, end, ((start, behind, shift(name, value)) for name, start, behind, value in positions)
        )

    def write_column_index(self, sink: RangeWriter) -> None:
        """Append the column index to the output."""
        if self._column_index:
            self._record({"column_index": sink.append(self._column_index)})

    def write_offset_index(self, sink: RangeWriter) -> None:
        """Append the offset index to the output."""
        if self._offset_index:
            position = sink.append(self._offset_index)
            self._record({"offset_index": position, "offset_index_size": len(self._offset_index)})

    def _record(self, written: Mapping[str, int]) -> None:
        self._values += [(start, end, written[name]) for name, start, end, _ in self.chunk.found if name in written]

    def footer_entry(self) -> bytes:
        """Return the bytes of the chunk in the output's footer, once its indexes are written."""
        chunk = self.chunk
        return replace_values(self._source.file.footer, chunk.footer_start, chunk.footer_end, sorted(self._values))


class _CopiedGroup:
    """A row group whose column chunks are in the output."""

    def __init__(self, file: RawParquetFile, group: RowGroup, chunks: Sequence[_CopiedChunk]) -> None:
        self.rows = group.rows
        self._file, self._group, self._chunks = file, group, chunks

    def write_column_indexes(self, sink: RangeWriter) -> None:
        """Append the column indexes to the output."""
        for chunk in self._chunks:
            chunk.write_column_index(sink)

    def write_offset_indexes(self, sink: RangeWriter) -> None:
        """Append the offset indexes to the output."""
        for chunk in self._chunks:
            chunk.write_offset_index(sink)

    @property
    def has_ordinal(self) -> bool:
        """True if its writer recorded its number among the row groups of the file."""
        return any(name == "ordinal" for name, _, _, _ in self._group.found)

    def footer_entry(self, number: int, *, with_ordinal: bool) -> bytes:
        """Return the bytes of the ``number``-th row group of the output's footer, once its indexes are written.

        ``with_ordinal`` adds the number if it is missing: parquet-rs refuses a file of which some row groups have one.
        """
        group = self._group
        parts = [(start, end, encode_integer(value)) for start, end, value in self._values(number)]
        parts += [
            (before.footer_start, before.footer_end, chunk.footer_entry())
            for before, chunk in zip(group.chunks, self._chunks, strict=True)
        ]
        if with_ordinal and not self.has_ordinal:
            end = group.footer_end - len(_END)
            parts.append((end, end, _ORDINAL_HEAD + encode_integer(min(number, _MAX_ORDINAL))))
        return replace_parts(self._file.footer, group.footer_start, group.footer_end, sorted(parts))

    def _values(self, number: int) -> Iterator[tuple[int, int, int]]:
        """Yield start and end of each changed value of the footer entry outside of its chunks, and the new value."""
        pairs = [(before, one.chunk) for before, one in zip(self._group.chunks, self._chunks, strict=True)]
        growth = {
            "compressed_size": sum(now.end - now.start - (before.end - before.start) for before, now in pairs),
            "uncompressed_size": sum(now.uncompressed_size - before.uncompressed_size for before, now in pairs),
        }
        for name, start, end, value in self._group.found:
            if name == "ordinal":
                yield start, end, min(number, _MAX_ORDINAL)
            elif name == "row_group_offset" and value > 0:
                yield start, end, min((one.position for one in self._chunks if one.position), default=0)
            elif growth.get(name):
                yield start, end, value + growth[name]


def _copy(
    file: RawParquetFile,
    groups: Sequence[RowGroup],
    replaced: Sequence[_Replaced],
    reader: RangeReader,
    sink: RangeWriter,
) -> list[_CopiedGroup]:
    """Append the column chunks and Bloom filters of some row groups of one input to the output.

    Other chunks take the place of the ``replaced`` chunks of each row group.
    """
    kept = [
        chunk
        for group, other in zip(groups, replaced, strict=True)
        for leaf, chunk in enumerate(group.chunks)
        if leaf not in other
    ]
    for chunk in kept:
        verify_pages(file.path, chunk, reader)
    own = _Source(file, reader, kept)
    moves = [(start, own, start, end) for start, end in _joined([span for chunk in kept for span in own.spans(chunk)])]
    for group, other in zip(groups, replaced, strict=True):
        for leaf, (source, chunk) in other.items():
            (start, end), *filters = source.spans(chunk)
            moves.append((group.chunks[leaf].start, source, start, end))
            # They follow all row groups, so that the chunks of these stay next to each other.
            moves += [(file.size, source, *span) for span in filters]
    for _, source, start, end in sorted(moves, key=itemgetter(0)):
        source.copy(start, end, sink)
    return [
        _CopiedGroup(
            file, group, [_CopiedChunk(*other.get(leaf, (own, chunk))) for leaf, chunk in enumerate(group.chunks)]
        )
        for group, other in zip(groups, replaced, strict=True)
    ]


def _bloom_filter_span(file: RawParquetFile, chunk: ColumnChunk, source: RangeReader) -> tuple[int, int]:
    start, size = chunk.bloom_filter
    if size < 0:
        try:
            size = bloom_filter_size(source.read(*header_span(start, file.size)))
        except ValueError as error:
            raise pa.ArrowInvalid(f"{file.path}: the header of a Bloom filter can't be read: {error}") from error
    if start + size > file.size - len(file.footer):
        raise pa.ArrowInvalid(f"{file.path}: a Bloom filter at {start} is longer than the file")
    return start, start + size


def _joined(spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield ``spans`` in the order of the bytes. Spans without a gap between them are joined."""
    before: tuple[int, int] | None = None
    for start, end in sorted(spans):
        if before is not None and start <= before[1]:
            before = before[0], max(before[1], end)
            continue
        if before is not None:
            yield before
        before = start, end
    if before is not None:
        yield before


class _Indexes:
    """The page indexes of an input. If they are next to each other, as almost always, one read gets all of them."""

    def __init__(self, source: RangeReader, spans: Sequence[tuple[int, int]]) -> None:
        self._source, self._start, self._content = source, 0, b""
        used = [(start, start + size) for start, size in spans if size]
        if used:
            start, end = min(span[0] for span in used), max(span[1] for span in used)
            if end - start <= 2 * sum(span[1] - span[0] for span in used) + _INDEX_GAP_BYTES:
                self._start, self._content = start, source.read(start, end - start)

    def content(self, start: int, size: int) -> bytes:
        """Return an index; b"" if its ``size`` is 0."""
        if not size:
            return b""
        at = start - self._start
        if self._content and at >= 0 and at + size <= len(self._content):
            return self._content[at : at + size]
        return self._source.read(start, size)
