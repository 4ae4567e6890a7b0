# SPDX-License-Identifier: Apache-2.0
"""The rewrite of one group: the rows of its inputs, distributed over its outputs batch by batch.

The rows keep their order, or are sorted. Rows that the task omits are left out as soon as they are read, after they
have got the columns that the task adds.
"""

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import pyarrow as pa
from pyarrow import fs as pafs

from executors.engines.inputs import (
    CommonLayout,
    ParquetInput,
    UnsupportedInput,
    adapt_inputs,
    common_layout,
    unify_schemas,
)
from executors.engines.int96 import verify_int96
from executors.engines.layout.ordering import LINEAR
from executors.engines.layout.sorting import sort_column_names, sorted_rows
from executors.engines.outputs import ParquetOutput, ParquetWriteSettings, without_unused_values
from executors.engines.row_columns import add_row_columns, with_row_columns, without_row_columns
from lake.engines import EngineOutput, FileAddition, RewriteTask
from lake.errors import Conflict, LakefoldError, Rejected, Transient, first_line
from lake.plan import RewriteOptions, SkippedGroup
from lake.storage.filesystems import filesystem_of

_BATCH_BYTES = 8 << 20
_BATCH_ROWS = 1 << 16
#: number of row groups of a file, which readers can read in parallel; fewer if the row groups would be small
_ROW_GROUPS = 10
_ROW_GROUP_BYTES = 8 << 20


def rewrite_task(task: RewriteTask, options: RewriteOptions, check: Callable[[], None]) -> list[EngineOutput]:
    """Write the outputs of a group, each to a path of this attempt's own if the file system can rename.

    The format's additions, if there are any, choose the paths instead. ``check`` is called between batches and may
    raise to end the work. Raises Conflict with the skipped group if an input can't be read, Transient if storage fails,
    Rejected if a value can't be written.
    """
    with skipping_changed(task):
        found = []
        for path in task.inputs:
            with reading_input(task, path):
                found.append(ParquetInput.read(path))
        with reading_input(task, task.inputs[0]):
            inputs = adapt_inputs(found, task.additions)
            unified = unify_schemas(without_row_columns(inputs, task.row_columns), task.file_schema)
            shape = common_layout(unified, reads_dictionaries=not options.sort_columns)
        most_rows = row_group_rows(inputs, len(task.outputs))
        names = sort_column_names(shape, options.sort_columns)
        shape = with_row_columns(shape, task.row_columns)
        writing = write_settings(shape, options, names, most_rows)
        if task.omissions is not None:
            require_filterable(shape.schema)
    remaining = _read_remaining(task, inputs)
    rows = [remaining[one.path].true_count if one.path in remaining else one.metadata.num_rows for one in inputs]
    read = partial(_batches, task, shape, check, remaining)
    if names:
        with sorted_rows(read, inputs, sum(rows), names, task, options, check) as (counts, batches):
            return _write_outputs(task, writing, counts, batches, most_rows)
    sizes = [
        one.size if one.path not in remaining else one.size * left // max(1, one.metadata.num_rows)
        for one, left in zip(inputs, rows, strict=True)
    ]
    counts = rows_per_output(list(zip(rows, sizes, strict=True)), len(task.outputs))
    return _write_outputs(task, writing, counts, read(inputs), most_rows)


def require_filterable(schema: pa.Schema) -> None:
    """Raise UnsupportedInput if pyarrow can't leave out rows of a column."""
    for column in schema:
        try:
            pa.array([], column.type).filter(pa.array([], pa.bool_()))
        except pa.ArrowException as error:
            raise UnsupportedInput(
                f"pyarrow can't leave out rows with column {column.name}: {first_line(error)}"
            ) from error


def _read_remaining(task: RewriteTask, inputs: Sequence[ParquetInput]) -> Mapping[str, pa.BooleanArray]:
    """Return which rows of each input remain; inputs all of whose rows remain may be missing."""
    if task.omissions is None:
        return {}
    try:
        found = task.omissions.read_remaining({one.path: one.metadata.num_rows for one in inputs})
    except Conflict as error:
        left_out = SkippedGroup(group=task.group, reason=str(error.args[0]))
        raise Conflict(left_out.reason, (left_out,)) from error
    for one in inputs:
        if one.path in found and len(found[one.path]) != one.metadata.num_rows:
            raise Rejected(
                f"{one.path} has {one.metadata.num_rows} rows, and the format names {len(found[one.path])} of them"
            )
    return found


def _write_outputs(
    task: RewriteTask,
    writing: ParquetWriteSettings,
    counts: Sequence[int],
    batches: Iterator[pa.RecordBatch],
    most_rows: int,
) -> list[EngineOutput]:
    source = _RowReader(batches)
    return [
        _write(task, path, writing, source.take(count), most_rows)
        for path, count in zip(task.outputs, counts, strict=True)
        if count or (task.additions is None and task.omissions is None)
    ]


def write_settings(
    shape: CommonLayout, options: RewriteOptions, names: Sequence[str], most_rows: int
) -> ParquetWriteSettings:
    """Return the settings for files of this layout, sorted by the columns ``names``. Raises UnsupportedInput."""
    return ParquetWriteSettings(shape, options.compression, most_rows, names if options.layout == LINEAR else ())


def _write(
    task: RewriteTask, path: str, writing: ParquetWriteSettings, batches: Iterator[pa.RecordBatch], most_rows: int
) -> EngineOutput:
    addition = None
    if task.additions is not None:
        addition = task.additions.create_file(path)
        path = addition.path
    elif not isinstance(filesystem_of(path)[0], pafs.S3FileSystem):
        # An abandoned task may still be writing, so each task writes to its own path; the process that collects the
        # results renames only the files of tasks whose results it uses.
        path = attempt_path(path)
    if task.omissions is not None:
        batches = map(without_unused_values, batches)
    output = write_rows(path, writing, batches, most_rows, addition)
    return EngineOutput(group=task.group, path=path, bytes=output.bytes, rows=output.rows)


def attempt_path(path: str) -> str:
    """Return a new hidden path beside ``path``."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.{uuid.uuid4().hex}"


def write_rows(
    path: str,
    writing: ParquetWriteSettings,
    batches: Iterator[pa.RecordBatch],
    most_rows: int,
    addition: FileAddition | None = None,
) -> ParquetOutput:
    """Write a file with at most ``most_rows`` rows per row group. Raises the errors of ``writing_output``."""
    filesystem, fs_path = filesystem_of(path)
    with writing_output(path), ParquetOutput(writing, filesystem, fs_path, most_rows, addition) as output:
        for batch in batches:
            output.write(batch)
    return output


@contextmanager
def writing_output(path: str) -> Iterator[None]:
    """Turn write errors in the block into Transient if storage fails, into Rejected if a value can't be written."""
    try:
        yield
    except LakefoldError:
        raise
    except OSError as error:
        raise Transient(f"{path} can't be written: {first_line(error)}") from error
    except pa.ArrowException as error:
        raise Rejected(f"{path} can't be written: {first_line(error)}; set engine = spark") from error


def rows_per_output(files: Sequence[tuple[int, int]], outputs: int) -> list[int]:
    """Return the number of rows for each of ``outputs``, so that all get about as many bytes.

    ``files`` has rows and bytes of each input, in order.
    """
    rows_total = sum(rows for rows, _ in files)
    bytes_total = sum(size for _, size in files)
    ends: list[int] = []
    rows_before = bytes_before = 0
    for rows, size in files:
        while len(ends) < outputs - 1 and (len(ends) + 1) * bytes_total <= (bytes_before + size) * outputs:
            wanted = (len(ends) + 1) * bytes_total / outputs - bytes_before
            ends.append(rows_before + round(rows * wanted / max(1, size)))
        rows_before, bytes_before = rows_before + rows, bytes_before + size
    ends += [rows_total] * (outputs - len(ends))
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def row_group_rows(inputs: Sequence[ParquetInput], outputs: int) -> int:
    """Return the rows of a row group, so that a file has about ten row groups, or fewer if these would be small."""
    rows: int = sum(one.metadata.num_rows for one in inputs)
    size: int = sum(one.size for one in inputs)
    count = max(1, min(_ROW_GROUPS, size // outputs // _ROW_GROUP_BYTES))
    return max(1, -(-rows // (outputs * count)))


def _batches(
    task: RewriteTask,
    shape: CommonLayout,
    check: Callable[[], None],
    remaining: Mapping[str, pa.BooleanArray],
    inputs: Sequence[ParquetInput],
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``inputs`` for which ``remaining`` is true, with all columns or only ``columns``.

    Row groups without such rows are not decoded.
    """
    for one in inputs:
        remains = remaining.get(one.path)
        numbers, parts = _remaining_groups(one, remains)
        if not numbers:
            continue
        batches = read_row_groups(task, one, shape, numbers, check, columns)
        if columns is None and task.row_columns:
            batches = add_row_columns(batches, task.row_columns, one, numbers, shape.schema)
        yield from batches if remains is None else _remaining_rows(batches, pa.concat_arrays(parts))


def _remaining_groups(one: ParquetInput, remains: pa.BooleanArray | None) -> tuple[list[int], list[pa.BooleanArray]]:
    """Return the row groups of an input with remaining rows, and which rows of each remain."""
    groups = range(one.metadata.num_row_groups)
    if remains is None:
        return list(groups), []
    start, numbers, parts = 0, [], []
    for number in groups:
        part = remains.slice(start, one.metadata.row_group(number).num_rows)
        start += len(part)
        if part.true_count:
            numbers.append(number)
            parts.append(part)
    return numbers, parts


def _remaining_rows(batches: Iterator[pa.RecordBatch], remains: pa.BooleanArray) -> Iterator[pa.RecordBatch]:
    start = 0
    for batch in batches:
        chosen = remains.slice(start, batch.num_rows)
        start += batch.num_rows
        if chosen.true_count == batch.num_rows:
            yield batch
        elif chosen.true_count:
            yield batch.filter(chosen)


def read_row_groups(
    task: RewriteTask,
    one: ParquetInput,
    shape: CommonLayout,
    numbers: Iterable[int],
    check: Callable[[], None],
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some row groups of an input, with all top-level columns or only ``columns``.

    INT96 timestamps are verified if all columns are read. Raises Conflict with the skipped group if the row groups
    can't be read.
    """
    wanted_columns = None if columns is None else _selectable(columns)
    with reading_input(task, one.path), one.open(shape.int96_unit, shape.dictionary_columns) as file:
        for number in numbers:
            group = one.metadata.row_group(number)
            if group.num_rows == 0:
                continue
            rows = _BATCH_BYTES * group.num_rows // max(1, group.total_byte_size)
            wanted = max(1024, min(_BATCH_ROWS, rows))
            left = group.num_rows
            batches = file.iter_batches(wanted, row_groups=[number], columns=wanted_columns, use_threads=False)
            if shape.has_int96 and columns is None:
                batches = _verified_batches(batches, one, number, wanted, shape)
            for batch in batches:
                check()
                left -= batch.num_rows
                chosen = batch if columns is None else batch.select(columns)
                yield chosen if task.file_schema is None else _with_types_of(chosen, shape.schema)
            if left:
                raise pa.ArrowInvalid(f"row group {number} has {group.num_rows - left} of {group.num_rows} rows")


def _with_types_of(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return ``batch`` with the types that its columns have in ``schema``, which may allow more nulls."""
    wanted = pa.schema([schema.field(name) for name in batch.schema.names])
    return batch if batch.schema.equals(wanted) else batch.cast(wanted)


def _verified_batches(
    batches: Iterator[pa.RecordBatch], one: ParquetInput, number: int, wanted: int, shape: CommonLayout
) -> Iterator[pa.RecordBatch]:
    with one.open("ms") as file:
        columns = _selectable(shape.int96_columns)
        coarse = file.iter_batches(wanted, row_groups=[number], columns=columns, use_threads=False)
        yield from verify_int96(batches, coarse, shape.int96_unit)


def _selectable(names: Collection[str]) -> list[str] | None:
    """Return the columns to read, or None for all: pyarrow takes a dot in a name for nesting."""
    return None if any("." in name for name in names) else list(names)


class _RowReader:
    """Splits batches into the requested numbers of rows."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rest: pa.RecordBatch | None = None

    def take(self, count: int) -> Iterator[pa.RecordBatch]:
        """Yield the next ``count`` rows."""
        while count:
            batch = next(self._batches) if self._rest is None else self._rest
            self._rest = batch.slice(count) if batch.num_rows > count else None
            yield batch.slice(0, count)
            count -= min(count, batch.num_rows)


@contextmanager
def skipping_changed(task: RewriteTask) -> Iterator[None]:
    """Turn UnsupportedInput in the block into Conflict: the engine was chosen for other files under these names."""
    try:
        yield
    except UnsupportedInput as error:
        changed = SkippedGroup(group=task.group, reason=f"its files changed since the engine was chosen: {error}")
        raise Conflict(changed.reason, (changed,)) from error


@contextmanager
def reading_input(task: RewriteTask, path: str) -> Iterator[None]:
    """Turn read errors in the block into Conflict, with the input's group skipped, or into Transient."""
    try:
        yield
    except FileNotFoundError as error:
        gone = SkippedGroup(group=task.group, reason=f"{path} is gone from storage")
        raise Conflict(gone.reason, (gone,)) from error
    except (OSError, pa.ArrowException) as error:
        # Arrow reports broken pages as OSError without errno; failures of S3 have no errno either.
        on_s3 = isinstance(filesystem_of(path)[0], pafs.S3FileSystem)
        if isinstance(error, OSError) and (error.errno is not None or on_s3):
            raise Transient(f"{path} can't be read now: {first_line(error)}") from error
        damaged = SkippedGroup(
            group=task.group, reason=f"{path} can't be read: {first_line(error)}", quarantine=(path,)
        )
        raise Conflict(damaged.reason, (damaged,)) from error
