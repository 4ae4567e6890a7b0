# SPDX-License-Identifier: Apache-2.0
"""Sorts the rows of a group of any size in bounded memory, through files on local disk.

The sort columns are read first, to take a sample of the rows. If the rows are already in order, they are only copied.
Otherwise each row is written to a bucket by its place among the rows of the sample. Then each bucket is sorted in
memory or, if it is too large, again through buckets. For a curve, the rows are sorted by their position on the curve,
which is computed from ranks in the sample. If the group has no more rows than a sample, the ranks are exact.
"""

import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from executors.engines.inputs import CommonLayout, ParquetInput, UnsupportedInput
from executors.engines.layout.keys import Indices, KeyPlaces, is_sortable, is_sorted, sort_indices
from executors.engines.layout.ordering import LINEAR, CellCounts, RankCurve, equal_shares
from executors.engines.temporary_directory import directory_setting, temporary_directory
from lake.engines import RewriteTask
from lake.errors import Transient, first_line
from lake.plan import RewriteOptions
from lake.units import format_bytes

Read = Callable[[Sequence[ParquetInput], Sequence[str] | None], Iterator[pa.RecordBatch]]
"""Yields the rows of inputs in their order, with the columns of these names or with all."""

_SAMPLE_ROWS = 1 << 16
_SAMPLE_BYTES = 16 << 20
_BUCKET_BYTES = 48 << 20
_MAX_HELD_BYTES = 64 << 20
"""Maximum size of rows that are sorted at once. Buckets are planned to be smaller, but a sample is not exact."""
_BYTES_A_KEY = 16
"""The memory that sorting takes for each row and sort column, besides the row itself, in bytes."""
_MIN_BUCKETS, _MAX_BUCKETS = 4, 256
"""Minimum and maximum number of buckets: with fewer a sort might not end, and more would open too many files."""
_BATCH_ROWS = 1 << 16
_BATCH_BYTES = 16 << 20
_POSITION = "__lakefold_position"
_SEED = 25


def sort_column_names(shape: CommonLayout, wanted: Sequence[str]) -> list[str]:
    """Return the names of the sort columns as the files have them; a catalog has names in lower case.

    Raises UnsupportedInput if there is no such column, if several columns match, if its values have no order, or if
    pyarrow can't reorder the rows.
    """
    found = []
    schema = shape.schema
    for name in wanted:
        matches = [column for column in schema if column.name == name] or [
            column for column in schema if column.name.lower() == name.lower()
        ]
        if len(matches) != 1:
            raise UnsupportedInput(f"{len(matches)} columns are called {name}, which is in sort_columns")
        kind = matches[0].type
        if not is_sortable(kind):
            raise UnsupportedInput(f"column {name} has type {kind}, which has no order; remove it from sort_columns")
        found.append(matches[0].name)
    for column in schema if found else ():
        try:
            pa.array([], column.type).take(pa.array([], pa.int64()))
        except pa.ArrowNotImplementedError as error:
            raise UnsupportedInput(f"pyarrow can't sort rows with column {column.name}: {first_line(error)}") from error
    return found


@contextmanager
def sorted_rows(
    read: Read,
    inputs: Sequence[ParquetInput],
    count: int,
    names: Sequence[str],
    task: RewriteTask,
    options: RewriteOptions,
    check: Callable[[], None],
) -> Iterator[tuple[Sequence[int], Iterator[pa.RecordBatch]]]:
    """Yield the number of rows of each output of ``task``, and all rows of ``inputs`` in the order of ``options``.

    ``count`` is the number of rows that ``read`` yields for all ``inputs``. ``names`` are the sort columns. The rows
    can be read within the ``with`` block. ``check`` is called between batches and may raise to end the work. Raises
    Transient if the local disk can't be written.
    """
    files = len(task.outputs)
    sample, order = KeySample(count), InputOrder()
    is_linear = options.layout == LINEAR or len(names) == 1

    for number, one in enumerate(inputs):
        for batch in read([one], names):
            sample.add(batch)
            if is_linear:
                order.add(number, batch)
    with temporary_directory("lakefold-sort-") as folder:
        if not count:
            yield [0] * files, iter(())
        elif is_linear:
            in_order = order.inputs()
            if in_order is not None:
                rows = read([inputs[number] for number in in_order], None)
            else:
                rows = _ExternalSort(folder, names, check).sort(read(inputs, None), count, sample.columns)
            yield equal_shares(count, files), rows
        else:
            curve = RankCurve(sample.columns(), options.layout)
            positions = curve.positions(sample.columns())
            cells = CellCounts(positions)
            placed = _with_positions(read(inputs, None), names, curve, cells)
            # All rows are counted before the first one is returned, since the end of a file depends on all rows.
            rows = _ExternalSort(folder, [_POSITION], check).sort(placed, count, lambda: [pa.array(positions)])
            most_rows = count * options.target_file_max_bytes // max(1, task.bytes)
            yield cells.rows_per_file(files, max(-(-count // files), most_rows)), map(_without_last_column, rows)


def _with_positions(
    batches: Iterator[pa.RecordBatch], names: Sequence[str], curve: RankCurve, cells: CellCounts
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        positions = curve.positions([batch.column(name) for name in names])
        cells.add(positions)
        schema = batch.schema.append(pa.field(_POSITION, pa.uint64()))
        yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(positions)], schema=schema)


def _without_last_column(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(range(batch.num_columns - 1))


class KeySample:
    """A uniform sample of ``rows`` rows, of bounded size. Equal rows give an equal sample, so a retry is repeatable."""

    def __init__(self, rows: int) -> None:
        wanted = np.random.default_rng(_SEED).choice(rows, min(rows, _SAMPLE_ROWS), replace=False, shuffle=False)
        self._wanted: Indices = np.sort(wanted.astype(np.int64))
        self._parts: list[pa.RecordBatch] = []
        self._rows_seen = self._bytes = 0

    def add(self, keys: pa.RecordBatch) -> None:
        """Add the next rows, of which the sample keeps some."""
        start, end = np.searchsorted(self._wanted, [self._rows_seen, self._rows_seen + keys.num_rows])
        if start < end:
            self._parts.append(keys.take(pa.array(self._wanted[start:end] - self._rows_seen)))
            self._bytes += self._parts[-1].nbytes
        self._rows_seen += keys.num_rows
        while self._bytes > _SAMPLE_BYTES and (rows := pa.Table.from_batches(self._parts)).num_rows > 1:
            # Every second row of a sample is a sample too. From now on, half as many of the next rows are taken.
            self._wanted = self._wanted[::2]
            self._parts = rows.take(pa.array(np.arange(0, rows.num_rows, 2))).combine_chunks().to_batches()
            self._bytes = sum(part.nbytes for part in self._parts)

    def columns(self) -> list[pa.Array]:
        """Return the columns of the sample, which has at least one row."""
        return [_one_array(column) for column in pa.Table.from_batches(self._parts).columns]


class InputOrder:
    """Finds an order of the inputs in which all their rows are sorted, if there is one."""

    def __init__(self) -> None:
        self._is_possible = True
        self._bounds: dict[int, tuple[pa.RecordBatch, pa.RecordBatch]] = {}

    def add(self, number: int, keys: pa.RecordBatch) -> None:
        """Inspect the next rows of the input with this number."""
        if not self._is_possible or not keys.num_rows:
            return
        first, last = keys.take(pa.array([0])), keys.take(pa.array([keys.num_rows - 1]))
        if number in self._bounds:
            first, before = self._bounds[number]
            keys = pa.concat_batches([before, keys])
        self._bounds[number] = first, last
        self._is_possible = is_sorted(keys.columns)

    def inputs(self) -> list[int] | None:
        """Return an order of the inputs in which all rows are sorted, or None. Equal rows keep the inputs' order.

        Inputs without rows are left out.
        """
        if not self._is_possible or not self._bounds:
            return None
        numbers = np.array(list(self._bounds))
        rows = pa.Table.from_batches([row for bounds in self._bounds.values() for row in bounds])
        columns = [_one_array(column) for column in rows.columns]
        firsts, lasts = np.arange(0, 2 * len(numbers), 2), np.arange(1, 2 * len(numbers), 2)
        order = sort_indices([column.take(pa.array(side)) for side in (firsts, lasts) for column in columns])
        both = pa.array(np.stack([firsts[order], lasts[order]], axis=1).ravel())
        in_order = is_sorted([*(column.take(both) for column in columns), pa.array(np.repeat(numbers[order], 2))])
        return [int(number) for number in numbers[order]] if in_order else None


class _ExternalSort:
    """Sorts rows by the columns ``names``, through buckets in ``folder`` if they are too many; the order is stable."""

    def __init__(self, folder: Path, names: Sequence[str], check: Callable[[], None]) -> None:
        self._folder, self._names, self._check = folder, names, check

    def sort(
        self, batches: Iterator[pa.RecordBatch], count: int, sample: Callable[[], Sequence[pa.Array]]
    ) -> Iterator[pa.RecordBatch]:
        """Return the ``count`` rows of ``batches`` in order. All rows are read before this returns.

        ``sample`` is called only if the rows need buckets; it returns the sort columns of a sample of the rows.
        """
        held: deque[pa.RecordBatch] = deque()
        size = 0
        for batch in batches:
            held.append(batch)
            size += batch.nbytes + batch.num_rows * _BYTES_A_KEY * len(self._names)
            if size > _MAX_HELD_BYTES:
                break
        else:
            return self._sorted_in_memory(held)
        total = size * count // sum(batch.num_rows for batch in held)
        buckets = _Buckets(self._folder, self._names, sample(), -(-total // _BUCKET_BYTES))
        with buckets.open_files(held[0].schema):
            for rows in _larger(_drained(held, batches)):
                buckets.add(rows)
        return self._sorted_buckets(buckets)

    def _sorted_in_memory(self, held: deque[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if not held:
            return
        rows = pa.Table.from_batches(held).combine_chunks()
        held.clear()
        order = sort_indices([_one_array(rows[name]) for name in self._names])
        for start in range(0, len(order), _BATCH_ROWS):
            self._check()
            yield from rows.take(pa.array(order[start : start + _BATCH_ROWS])).combine_chunks().to_batches()

    def _sorted_buckets(self, buckets: "_Buckets") -> Iterator[pa.RecordBatch]:
        for number, path in enumerate(buckets.paths):
            rows = int(buckets.rows[number])
            if buckets.is_ordered[number]:
                yield from self._read(path)
            elif rows:
                yield from self.sort(self._read(path), rows, partial(self._sample, path, rows))
            path.unlink(missing_ok=True)

    def _sample(self, path: Path, rows: int) -> Sequence[pa.Array]:
        sample = KeySample(rows)
        for batch in self._read(path):
            sample.add(batch.select(self._names))
        return sample.columns()

    def _read(self, path: Path) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_stream(path) as reader:
            for batch in reader:
                self._check()
                yield batch


class _Buckets:
    """Files in ``folder``, each with the rows of a range. ``sample`` are the sort columns of a sample of all rows.

    Rows that equal a frequent row of the sample have a separate bucket, which needs no sorting, whatever its size.
    """

    def __init__(self, folder: Path, names: Sequence[str], sample: Sequence[pa.Array], count: int) -> None:
        self._folder, self._names = folder, names
        count = max(_MIN_BUCKETS, min(_MAX_BUCKETS, count))
        order = sort_indices(sample)
        edges = pa.array(np.unique(np.arange(1, count) * len(order) // count))
        edges = pa.array(order).take(edges)
        self._places = KeyPlaces([column.take(edges) for column in sample])
        found = np.bincount(self._places.of(sample), minlength=2 * self._places.count + 1)
        self.is_ordered = [False]
        self._bucket_of = np.zeros(len(found), dtype=np.int64)
        for place in range(1, len(found), 2):
            # Each edge ends a bucket, so a bucket that is sorted again is divided further until it is small.
            is_frequent = found[place] * 2 * count >= len(order)
            self.is_ordered += [True, False] if is_frequent else [False]
            self._bucket_of[place : place + 2] = len(self.is_ordered) - 1
            if is_frequent:
                self._bucket_of[place] -= 1
        self.rows = np.zeros(len(self.is_ordered), dtype=np.int64)
        unique = tempfile.mkdtemp(dir=folder)
        self.paths = [Path(unique, f"{number}.arrow") for number in range(len(self.rows))]

    @contextmanager
    def open_files(self, schema: pa.Schema) -> Iterator[None]:
        """Open the files for rows of this schema. Raises Transient if they can't be written."""
        self._writers: list[pa.ipc.RecordBatchStreamWriter] = []
        try:
            try:
                for path in self.paths:
                    self._writers.append(pa.ipc.new_stream(path, schema, options=_WRITE_OPTIONS))
                yield
            finally:
                for writer in self._writers:
                    writer.close()
        except OSError as error:
            free = format_bytes(shutil.disk_usage(self._folder).free)
            raise Transient(
                f"a sort through {self._folder.parent} failed, where {free} are free: {first_line(error)}; free "
                f"space there or set {directory_setting()}"
            ) from error

    def add(self, rows: pa.RecordBatch) -> None:
        """Write rows to their buckets."""
        numbers = self._bucket_of[self._places.of([rows.column(name) for name in self._names])]
        self.rows += np.bincount(numbers, minlength=len(self.rows))
        order = np.argsort(numbers, kind="stable")
        rows, numbers = rows.take(pa.array(order)), numbers[order]
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
            self._writers[numbers[start]].write_batch(rows.slice(start, end - start))


_WRITE_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


def _drained(held: deque[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    while held:
        yield held.popleft()
    yield from rest


def _larger(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in larger batches, so that the parts that go to each bucket are not tiny."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        pending.append(batch)
        size += batch.nbytes
        if size >= _BATCH_BYTES:
            yield pa.concat_batches(pending)
            pending.clear()
            size = 0
    if pending:
        yield pa.concat_batches(pending)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks else pa.array([], column.type)
