# SPDX-License-Identifier: Apache-2.0
"""Row groups of Parquet files copied as bytes, one file after the other, under one new footer.

Column chunks and Bloom filters are copied as they are. Page indexes follow behind the last row group of the output, as
readers expect them next to the footer. The footer and the offset indexes contain absolute positions, and each of these
is shifted. Nothing else changes: statistics, sorting columns, field ids, key-value metadata.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyarrow import fs as pafs

from executors.engines.concat import attempt_path, reading_input, skipping_changed
from executors.engines.footer import MAGIC
from executors.engines.inputs import UnsupportedInput
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
from executors.engines.thrift import STRUCT, encode_integer, encode_list_head, find_values, replace_values
from lake.engines import EngineOutput, RewriteTask
from lake.plan import RewriteOptions
from lake.storage.filesystems import filesystem_of
from lake.units import format_bytes

# The heads of two fields of FileMetaData, the number of rows and the row groups. A head has the distance from the
# number of the previous field.
_ROWS_HEAD, _ROW_GROUPS_HEAD = b"\x16", b"\x19"
_OFFSET_INDEX = {1: {1: "page"}}
#: values of a column chunk that are positions in the file; some writers record 0 for a part that does not exist
_POSITIONS = frozenset({"data_page", "dictionary_page", "bloom_filter"})
#: positions that readers ignore; the bytes there may not be copied
_UNUSED_POSITIONS = frozenset({"index_page", "file_offset"})
#: reads of footers at the same time: most of the time they wait for the storage
_FOOTERS_AT_ONCE = 8
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
    # The smallest maximum may need fewer outputs than planned; a further cut enlarges none.
    while len(ends) < outputs:
        ends = _cut_once_more(ends)
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


def _cut_once_more(ends: Sequence[int]) -> list[int]:
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


def read_inputs(task: RewriteTask) -> list[RawParquetFile]:
    """Return the inputs of a group, in their order.

    Raises Conflict with the skipped group if an input can't be read, and UnsupportedInput.
    """

    def read(path: str) -> RawParquetFile:
        with reading_input(task, path):
            return RawParquetFile.read(path)

    with ThreadPoolExecutor(_FOOTERS_AT_ONCE, "footers") as pool:
        return list(pool.map(read, task.inputs))


def write_output(
    task: RewriteTask, first: RawParquetFile, part: Sequence[SourceGroup], path: str, check: Callable[[], None]
) -> EngineOutput:
    """Write row groups to one output, under the footer of ``first``. Raises the errors of ``stitch_task``."""
    if not isinstance(filesystem_of(path)[0], pafs.S3FileSystem):
        path = attempt_path(path)  # see executors.engines.concat
    filesystem, fs_path = filesystem_of(path)
    with RangeWriter(filesystem, fs_path, check) as sink:
        copied: list[_CopiedGroup] = []
        for file, groups in _by_file(part):
            with reading_input(task, file.path), RangeReader(file.filesystem, file.filesystem_path) as source:
                copied += _copy(file, groups, source, sink)
        for one in copied:
            one.write_column_indexes(sink)
        for one in copied:
            one.write_offset_indexes(sink)
        rows = sum(one.rows for one in copied)
        footer = b"".join(
            chain(
                (first.head, _ROWS_HEAD, encode_integer(rows)),
                (_ROW_GROUPS_HEAD, encode_list_head(STRUCT, len(copied))),
                (one.footer_entry(number) for number, one in enumerate(copied)),
                (first.rest,),
            )
        )
        sink.append(footer + len(footer).to_bytes(4, "little") + MAGIC)
    return EngineOutput(group=task.group, path=path, bytes=sink.position, rows=rows)


def _by_file(part: Sequence[SourceGroup]) -> Iterator[tuple[RawParquetFile, list[RowGroup]]]:
    """Yield the inputs of an output, each with its row groups in this output."""
    groups: list[RowGroup] = []
    for index, one in enumerate(part):
        groups.append(one.group)
        if index + 1 == len(part) or part[index + 1].file is not one.file:
            yield one.file, groups
            groups = []


class _Shifts:
    """The distances by which byte ranges of an input are shifted in the output."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._spans: list[tuple[int, int]] = []

    def add(self, start: int, end: int, position: int) -> None:
        """Record that the bytes from ``start`` to ``end`` are at ``position``; called in the order of ``start``."""
        self._starts.append(start)
        self._spans.append((end, position - start))

    def shifted(self, position: int) -> int | None:
        """Return the position in the output. None if the byte is not copied."""
        index = bisect_right(self._starts, position) - 1
        if index < 0 or position >= self._spans[index][0]:
            return None
        return position + self._spans[index][1]


class _CopiedGroup:
    """A row group whose column chunks are in the output, and the page indexes that are still to be written there."""

    def __init__(self, file: RawParquetFile, group: RowGroup, shifts: _Shifts, indexes: "_Indexes") -> None:
        """Raises ``pa.ArrowInvalid`` if a position in the footer or in an offset index is not in a column chunk."""
        self.rows = group.rows
        self._file, self._group, self._shifts = file, group, shifts
        self._column_indexes = [indexes.content(*chunk.column_index) for chunk in group.chunks]
        self._offset_indexes = [self._shift_pages(indexes.content(*chunk.offset_index)) for chunk in group.chunks]
        self._column_index_positions: list[int] = []
        self._offset_index_positions: list[int] = []
        self._positions = list(self._shift_positions())

    def _shift_positions(self) -> Iterator[tuple[int, int, int]]:
        """Yield where the row group's footer entry has a position (start and end), and the position in the output."""
        first = min((chunk.start for chunk in self._group.chunks), default=0)
        for name, start, end, value in self._group.found:
            if name == "row_group_offset" and value > 0:
                yield start, end, self._shifts.shifted(first) or 0
        for chunk in self._group.chunks:
            for name, start, end, value in chunk.found:
                if name in _UNUSED_POSITIONS:
                    yield start, end, self._shifts.shifted(value) or 0
                elif name in _POSITIONS and value > 0:
                    yield start, end, self._shifted(name, value)

    def _shift_pages(self, content: bytes) -> bytes:
        """Return an offset index with the positions of the pages in the output."""
        if not content:
            return content
        try:
            found, end = find_values(content, 0, _OFFSET_INDEX)
        except ValueError as error:
            raise pa.ArrowInvalid(f"{self._file.path}: an offset index can't be read: {error}") from error
        if end != len(content) or len(found) != 1:
            raise pa.ArrowInvalid(f"{self._file.path}: an offset index has other bytes behind it")
        pages = [value for values, _, _ in found[0] for value in values]
        return replace_values(
            content, 0, end, ((start, behind, self._shifted(name, value)) for name, start, behind, value in pages)
        )

    def write_column_indexes(self, sink: RangeWriter) -> None:
        """Append the column indexes to the output."""
        self._column_index_positions = [sink.append(content) for content in self._column_indexes]

    def write_offset_indexes(self, sink: RangeWriter) -> None:
        """Append the offset indexes to the output."""
        self._offset_index_positions = [sink.append(content) for content in self._offset_indexes]

    def footer_entry(self, number: int) -> bytes:
        """Return the bytes of the ``number``-th row group of the output's footer, once its indexes are written."""
        group, values = self._group, list(self._positions)
        values += [(start, end, min(number, _MAX_ORDINAL)) for name, start, end, _ in group.found if name == "ordinal"]
        for index, chunk in enumerate(group.chunks):
            written = {}
            if self._column_indexes[index]:
                written["column_index"] = self._column_index_positions[index]
            if self._offset_indexes[index]:
                written["offset_index"] = self._offset_index_positions[index]
                written["offset_index_size"] = len(self._offset_indexes[index])
            values += [(start, end, written[name]) for name, start, end, _ in chunk.found if name in written]
        return replace_values(self._file.footer, group.footer_start, group.footer_end, sorted(values))

    def _shifted(self, name: str, position: int) -> int:
        found = self._shifts.shifted(position)
        if found is None:
            raise pa.ArrowInvalid(f"{self._file.path}: a {name} at {position} is outside its column chunk")
        return found


def _copy(
    file: RawParquetFile, groups: Sequence[RowGroup], source: RangeReader, sink: RangeWriter
) -> list[_CopiedGroup]:
    """Append the column chunks and Bloom filters of some row groups of one input to the output."""
    chunks = [chunk for group in groups for chunk in group.chunks]
    for chunk in chunks:
        verify_pages(file.path, chunk, source)
    spans = [(chunk.start, chunk.end) for chunk in chunks]
    spans += [_bloom_filter_span(file, chunk, source) for chunk in chunks if chunk.bloom_filter[1]]
    shifts = _Shifts()
    for start, end in _joined(spans):
        shifts.add(start, end, sink.position)
        sink.copy(source, start, end)
    indexes = _Indexes(source, [span for chunk in chunks for span in (chunk.column_index, chunk.offset_index)])
    return [_CopiedGroup(file, group, shifts, indexes) for group in groups]


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
