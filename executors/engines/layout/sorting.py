# SPDX-License-Identifier: Apache-2.0
"""Sorts the rows of a group in bounded memory: their order is found first, then they go through files on local disk.

Only the sort columns of a group are in memory at once. Each row is then written to the bucket that its new position
falls into, and one bucket after the other is sorted.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from executors.engines.inputs import CommonLayout, ParquetInput, UnsupportedInput
from executors.engines.layout.ordering import RowOrder, is_sortable, order_rows
from lake.engines import RewriteTask
from lake.plan import RewriteOptions
from lake.units import format_bytes

Batches = Callable[[Sequence[str] | None], Iterator[pa.RecordBatch]]
"""Yields the rows of a group in their order, with the columns of these names or with all."""

MAX_ORDER_BYTES = 256 << 20
"""The most memory that the order of a group's rows may take: eight bytes for each rank, curve position and index."""
MAX_KEY_BYTES = 128 << 20
"""The most bytes that the decoded sort columns of a group may have."""
_BUCKET_BYTES = 64 << 20
_BATCH_ROWS = 1 << 16
_POSITION = "__lakefold_position"


def sort_column_names(shape: CommonLayout, wanted: Sequence[str]) -> list[str]:
    """Return the names of the sort columns as the files have them; a catalog has names in lower case.

    Raises UnsupportedInput if there is no such column, if several columns match, or if its values have no order.
    """
    found = []
    for name in wanted:
        matches = [column for column in shape.schema if column.name == name] or [
            column for column in shape.schema if column.name.lower() == name.lower()
        ]
        if len(matches) != 1:
            raise UnsupportedInput(f"{len(matches)} columns are called {name}, which is in sort_columns")
        kind = matches[0].type
        if not is_sortable(kind.value_type if pa.types.is_dictionary(kind) else kind):
            raise UnsupportedInput(f"column {name} has type {kind}, which has no order; remove it from sort_columns")
        found.append(matches[0].name)
    return found


def verify_sortable(inputs: Sequence[ParquetInput], shape: CommonLayout, names: Sequence[str]) -> None:
    """Raise UnsupportedInput if the rows of ``inputs`` can't be sorted by the columns ``names``."""
    rows, most = sum(one.metadata.num_rows for one in inputs), _most_rows(len(names))
    if rows > most:
        raise UnsupportedInput(
            f"it sorts at most {most:,} rows by {len(names)} columns at once, and the group has {rows:,}; lower "
            "max_bytes_per_group"
        )
    size = _key_bytes(inputs, sort_column_names(shape, names))
    if size > MAX_KEY_BYTES:
        raise UnsupportedInput(
            f"it holds at most {format_bytes(MAX_KEY_BYTES)} of sort columns in memory, and the group has "
            f"{format_bytes(size)}; lower max_bytes_per_group"
        )


def _most_rows(columns: int) -> int:
    # Beside the ranks there are the positions on the curve, the sorted order, and its inverse.
    return MAX_ORDER_BYTES // (8 * (columns + 3))


def _key_bytes(inputs: Sequence[ParquetInput], names: Sequence[str]) -> int:
    """Return the bytes of the decoded values of these columns, as far as footers show them."""
    size = 0
    for one in inputs:
        for number in range(one.metadata.num_row_groups):
            group = one.metadata.row_group(number)
            for index in range(group.num_columns):
                chunk = group.column(index)
                if chunk.path_in_schema in names:
                    # A dictionary has a value once; its average size stands for all values.
                    size += max(chunk.total_uncompressed_size, 8 * chunk.num_values)
    return size


def sorted_batches(
    batches: Batches, shape: CommonLayout, task: RewriteTask, options: RewriteOptions, check: Callable[[], None]
) -> tuple[Sequence[int], Iterator[pa.RecordBatch]]:
    """Return the number of rows of each output of ``task``, and all rows in the order of ``options``.

    ``check`` is called between batches and may raise to end the work. Raises UnsupportedInput if the group has too many
    rows.
    """
    names = sort_column_names(shape, options.sort_columns)
    keys = pa.Table.from_batches(list(batches(names)), pa.schema([shape.schema.field(name) for name in names]))
    if keys.num_rows > _most_rows(len(names)) or keys.nbytes > 2 * MAX_KEY_BYTES:
        raise UnsupportedInput(
            f"its sort columns have {keys.num_rows:,} rows and {format_bytes(keys.nbytes)} in memory; lower "
            "max_bytes_per_group"
        )
    files = len(task.outputs)
    share = -(-keys.num_rows // files)
    by_size = keys.num_rows * options.target_file_max_bytes // max(1, task.bytes)
    order = order_rows([keys[name] for name in names], options.layout, files, max(share, by_size))
    del keys
    return order.rows_per_file, _in_order(batches, order, shape, check)


def _in_order(
    batches: Batches, order: RowOrder, shape: CommonLayout, check: Callable[[], None]
) -> Iterator[pa.RecordBatch]:
    count = len(order.positions)
    if not count:
        return
    with TemporaryDirectory(prefix="lakefold-sort-") as folder, ExitStack() as files:
        buckets: _Buckets | None = None
        start = 0
        for batch in batches(None):
            check()
            if buckets is None:
                size = max(1, batch.nbytes * count // max(1, batch.num_rows))
                buckets = files.enter_context(_Buckets(Path(folder), shape.schema, count, -(-size // _BUCKET_BYTES)))
            buckets.add(batch, order.positions[start : start + batch.num_rows])
            start += batch.num_rows
        if buckets is None or start != count:
            raise pa.ArrowInvalid(f"the inputs have {start} rows instead of {count}")
        yield from buckets.sorted(check)


class _Buckets:
    """Files on local disk, each with the rows of a range of new positions, within a ``with`` block."""

    def __init__(self, folder: Path, schema: pa.Schema, rows: int, count: int) -> None:
        self._rows_each = -(-rows // count)
        self._schema = schema.append(pa.field(_POSITION, pa.int64()))
        self._paths = [folder / f"{number}-{uuid.uuid4().hex}.arrow" for number in range(-(-rows // self._rows_each))]
        self._writers = [pa.ipc.new_stream(path, self._schema) for path in self._paths]

    def __enter__(self) -> "_Buckets":
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.close()

    def add(self, batch: pa.RecordBatch, positions: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> None:
        """Write rows with these new positions to their buckets."""
        rows = pa.RecordBatch.from_arrays([*batch.columns, pa.array(positions)], schema=self._schema)
        numbers = positions // self._rows_each
        order = np.argsort(numbers, kind="stable")
        rows, numbers = rows.take(pa.array(order)), numbers[order]
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
            self._writers[numbers[start]].write_batch(rows.slice(start, end - start))

    def sorted(self, check: Callable[[], None]) -> Iterator[pa.RecordBatch]:
        """Yield all rows in the order of their positions; each bucket's file is deleted once it was read."""
        for writer, path in zip(self._writers, self._paths, strict=True):
            writer.close()
            with pa.ipc.open_stream(path) as reader:
                rows = reader.read_all()
            path.unlink()
            order = np.argsort(rows[_POSITION].to_numpy(), kind="stable")
            rows = rows.drop_columns([_POSITION])
            for start in range(0, len(order), _BATCH_ROWS):
                check()
                (batch,) = rows.take(pa.array(order[start : start + _BATCH_ROWS])).combine_chunks().to_batches()
                yield batch
