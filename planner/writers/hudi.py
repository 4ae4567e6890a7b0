# SPDX-License-Identifier: Apache-2.0
"""The model of Hudi's copy-on-write files: inserts fill small files first, then new files (``UpsertPartitioner``)."""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from planner.writers.model import (
    FileAction,
    FileChange,
    Operation,
    SimulatedFile,
    SimulatedTable,
    SimulationError,
    Write,
    WriteBatch,
    check_batch,
    check_file_count,
    distribute,
    rows_per_task,
)
from planner.writers.settings import require_positive


class CopyOnWrite:
    """The files of a copy-on-write table. Implements ``planner.writers.model.WriterModel``."""

    def __init__(self, settings: Mapping[str, Any], files: Sequence[SimulatedFile] = ()) -> None:
        require_positive(
            settings,
            "hoodie.parquet.max.file.size",
            "hoodie.copyonwrite.record.size.estimate",
            "hoodie.copyonwrite.insert.split.size",
            "hoodie.bulkinsert.shuffle.parallelism",
        )
        self.small_file_limit_bytes: int = settings["hoodie.parquet.small.file.limit"]
        self.target_bytes: int = settings["hoodie.parquet.max.file.size"]
        self._max_file_bytes = self.target_bytes + round(
            self.target_bytes * settings["hoodie.parquet.compression.ratio"]
        )
        self._split_rows: int | None = (
            None
            if settings["hoodie.copyonwrite.insert.auto.split"]
            else settings["hoodie.copyonwrite.insert.split.size"]
        )
        self._tasks: int = settings["hoodie.bulkinsert.shuffle.parallelism"]
        self._table = SimulatedTable(files)
        self._row_size = RowSizeEstimator(
            default_bytes=settings["hoodie.copyonwrite.record.size.estimate"],
            threshold_bytes=settings["hoodie.record.size.estimation.threshold"] * self.small_file_limit_bytes,
        )

    @property
    def files(self) -> list[SimulatedFile]:
        return self._table.all_files()

    @property
    def row_bytes_estimate(self) -> int:
        return self._row_size.estimated_bytes

    def write(self, batch: WriteBatch) -> Iterator[FileChange]:
        check_batch(batch)
        estimate = self._row_size.estimated_bytes
        changes: list[FileChange] = []
        by_partition: dict[str, list[Write]] = {}
        for write in batch.writes:
            by_partition.setdefault(write.partition, []).append(write)
        for writes in by_partition.values():
            changes += self._write_partition(writes, estimate, batch.tasks)
        self._update_row_size(changes)
        yield from changes

    def _update_row_size(self, changes: Sequence[FileChange]) -> None:
        """Update the estimate of a row's bytes from a commit's base files."""
        based = [change.file for change in changes if change.action in (FileAction.CREATED, FileAction.REWRITTEN)]
        self._row_size.record_commit(sum(file.bytes for file in based), sum(file.rows for file in based))

    def _write_partition(self, writes: Sequence[Write], estimate: int, tasks: int | None) -> Iterator[FileChange]:
        """Write a batch to one partition; inserts are assigned by the files' state before the batch."""
        first = writes[0]
        if first.operation is Operation.OVERWRITE:
            for file in self._table.files_in(first.partition):
                self._table.remove(file)
                yield FileChange(action=FileAction.REMOVED, file=file)
        if first.operation is Operation.BULK_INSERT:
            yield from self._create_files(first, rows_per_task(first.rows, tasks or self._tasks))
            return
        updated: dict[int, int] = {}
        filled: dict[int, tuple[int, int]] = {}
        takers: set[int] = set()
        new: list[tuple[Write, list[int]]] = []
        for write in writes:
            if write.operation is Operation.UPDATE:
                updated = dict(self._bytes_of_updates(write))
            else:
                small = self._files_for_inserts(write.partition)
                takers = {file.number for file in small}
                filled, rest = self._assign_inserts(write, small, estimate)
                new.append((write, self._rows_of_new_files(rest, estimate)))
        for file in self._table.files_in(first.partition):
            rows, size = filled.get(file.number, (0, 0))
            change = self._change_file(file, rows, size, updated.get(file.number), takes_inserts=file.number in takers)
            if change is not None:
                yield change
        for write, files in new:
            yield from self._write_new_files(write, files)

    def _bytes_of_updates(self, write: Write) -> Iterator[tuple[int, int]]:
        """Yield the numbers of the files that ``write`` updates, and the bytes for each. Raises SimulationError."""
        files = self._table.files_in(write.partition)
        weights = [file.rows + file.uncompacted_rows for file in files]
        if not sum(weights):
            where = f"partition {write.partition!r}" if write.partition else "the table"
            raise SimulationError(f"update of {write.rows} rows, but {where} has none; insert some first")
        done = 0
        for file, rows in zip(files, distribute(write.rows, weights), strict=True):
            if rows:
                yield file.number, write.bytes_of_rows(done, done + rows)
            done += rows

    def _files_for_inserts(self, partition: str) -> list[SimulatedFile]:
        """Return the files that take inserts, in the order in which they are filled."""
        return [file for file in self._table.files_in(partition) if file.bytes < self.small_file_limit_bytes]

    def _size_for_inserts(self, file: SimulatedFile) -> int:
        """Return the size by which the free space of a small file is computed."""
        return file.bytes

    def _assign_inserts(
        self, write: Write, files: Sequence[SimulatedFile], estimate: int
    ) -> tuple[dict[int, tuple[int, int]], int]:
        """Return rows and bytes for each small file, and the number of rows that remain."""
        taken: dict[int, tuple[int, int]] = {}
        done = 0
        for file in files:
            rows = min((self.target_bytes - self._size_for_inserts(file)) // estimate, write.rows - done)
            if rows > 0:
                taken[file.number] = (rows, write.bytes_of_rows(done, done + rows))
                done += rows
        return taken, write.rows - done

    def _rows_of_new_files(self, rows: int, estimate: int) -> list[int]:
        """Return the rows of each new file: as many as fit; the last file has the rest."""
        if not rows:
            return []
        each = self._split_rows or math.ceil(self.target_bytes / estimate)
        count = -(-rows // each)
        check_file_count(count)
        return [each] * (count - 1) + [rows - (count - 1) * each]

    def _change_file(
        self, file: SimulatedFile, rows: int, size: int, updated_bytes: int | None, *, takes_inserts: bool
    ) -> FileChange | None:
        """Change a file that gets new rows or updates. ``takes_inserts`` is True for a file that takes inserts."""
        return self._rewrite_file(file, rows, size) if rows or updated_bytes is not None else None

    def _write_new_files(self, write: Write, files: Sequence[int]) -> Iterator[FileChange]:
        """Write the last rows of ``write`` into new files."""
        return self._create_files(write, files)

    def _rewrite_file(self, file: SimulatedFile, rows: int, size: int) -> FileChange:
        made = replace(file, rows=file.rows + rows, bytes=file.bytes + size)
        self._table.put(made)
        return FileChange(action=FileAction.REWRITTEN, file=made, added_rows=rows, written_bytes=made.bytes)

    def _create_files(self, write: Write, files: Sequence[int]) -> Iterator[FileChange]:
        """Create files for the last rows of ``write``; files above the maximum size are split."""
        done = write.rows - sum(files)
        for rows in files:
            for part in self._split_at_max_size(rows, write.bytes / write.rows):
                made = self._table.add(write.partition, part, write.bytes_of_rows(done, done + part))
                yield FileChange(action=FileAction.CREATED, file=made, added_rows=part, written_bytes=made.bytes)
                done += part

    def _split_at_max_size(self, rows: int, row_bytes: float) -> Iterator[int]:
        """Yield the rows of each file into which the writer splits ``rows`` planned for one file.

        From ``HoodieBaseParquetWriter.canWrite`` (Hudi 1.x): after *n* rows of *r* bytes each, the next row is written
        to another file if ``n × r > most − 2 × r``, where *most* is the maximum size plus a share
        (``hoodie.parquet.compression.ratio``). The least such *n* is ``floor(most ÷ r − 2) + 1``. Hudi does not check
        after each row. It checks first after 100 rows, and then after half of the rows that it still expects to fit, at
        least 100 and at most 10,000. So a file of few large rows may get up to 100 rows more than in this model.
        """
        most = rows
        if row_bytes:
            most = max(math.floor(self._max_file_bytes / row_bytes) - 1, 1)
        while rows > 0:
            yield min(rows, most)
            rows -= most


#: the commits that Hudi considers, ``hoodie.record.size.estimation.max.commits``
_RECENT_COMMITS = 5


@dataclass(slots=True, kw_only=True)
class RowSizeEstimator:
    """The estimate of a row's bytes after each commit."""

    default_bytes: int
    #: commits that wrote no more base file bytes than this are ignored
    threshold_bytes: float
    _commits: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_RECENT_COMMITS))

    def record_commit(self, written_bytes: int, rows: int) -> None:
        """Record a commit: base file bytes and the rows in these files, rewritten old rows included."""
        self._commits.appendleft((written_bytes, rows))

    @property
    def estimated_bytes(self) -> int:
        """The estimate by the newest large enough commit; the default if there is none."""
        for written, rows in self._commits:
            if rows and written > self.threshold_bytes:
                return math.ceil(written / rows)
        return self.default_bytes
