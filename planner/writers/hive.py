# SPDX-License-Identifier: Apache-2.0
"""The model of Spark's writes to a Hive table: a file per task and partition, and the auto-merge of a patched Spark.

The rules and their sources are in docs/planning.md#sparks-writes-to-hive.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
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
    check_file_count,
    rows_per_task,
)
from planner.writers.settings import require_positive


class SparkHiveWriter:
    """The files of a Hive table that Spark writes. Implements ``planner.writers.model.WriterModel``.

    Only files of the write itself are merged, never existing files of the partition. lakefold's own writer of Hive
    tables is ``lake.formats.hive.writer.HiveWriter``.
    """

    def __init__(
        self, settings: Mapping[str, Any], files: Sequence[SimulatedFile] = (), *, merge_enabled: bool
    ) -> None:
        require_positive(settings, "spark.sql.shuffle.partitions", "dfs.blocksize")
        self._tasks: int = settings["spark.sql.shuffle.partitions"]
        self._max_rows: int = settings["spark.sql.files.maxRecordsPerFile"]
        self._min_files: int = settings["spark.hive.automerge.least.filenum"]
        self._shuffles: bool = settings["spark.hive.automerge.shuffle.enabled"]
        percent: float = settings["spark.hive.automerge.block.percent"]
        self.target_bytes = self.small_file_limit_bytes = int(percent * settings["dfs.blocksize"])
        if not self.target_bytes:
            raise SimulationError(
                f"spark.hive.automerge.block.percent is {percent:g} but must leave a file of some bytes"
            )
        self._merges = merge_enabled
        self._table = SimulatedTable(files)

    @property
    def files(self) -> list[SimulatedFile]:
        return self._table.all_files()

    @property
    def row_bytes_estimate(self) -> None:
        return None

    def write(self, batch: WriteBatch) -> Iterator[FileChange]:
        for write in batch.writes:
            if write.operation not in (Operation.INSERT, Operation.OVERWRITE):
                raise SimulationError(f"{write.operation} is not possible on a Hive table; use insert or overwrite")
            if write.operation is Operation.OVERWRITE:
                for file in self._table.files_in(write.partition):
                    self._table.remove(file)
                    yield FileChange(action=FileAction.REMOVED, file=file)
            yield from self._write_files(write, batch.tasks or self._tasks)

    def _write_files(self, write: Write, tasks: int) -> Iterator[FileChange]:
        made = [part for rows in rows_per_task(write.rows, tasks) for part in self._split_by_max_rows(rows)]
        count = self._merged_file_count(len(made), write.bytes)
        runs = (
            repartitioned_runs(made, count)
            if count and self._shuffles
            else coalesced_runs(made, count)
            if count
            else None
        )
        done = 0
        for rows in made if runs is None else [sum(run) for run in runs]:
            file = self._table.add(write.partition, rows, write.bytes_of_rows(done, done + rows))
            done += rows
            written = file.bytes if runs is None else 2 * file.bytes  # once by the tasks, once by the merge
            of_files = 0 if runs is None else len(made)
            action = FileAction.CREATED if runs is None else FileAction.MERGED
            yield FileChange(action=action, file=file, added_rows=rows, written_bytes=written, merged_files=of_files)

    def _split_by_max_rows(self, rows: int) -> Iterator[int]:
        most = self._max_rows or rows
        check_file_count(rows // most)
        while rows > 0:
            yield min(rows, most)
            rows -= most

    def _merged_file_count(self, files: int, size: int) -> int:
        """Return how many files the merge makes of the files of one partition; 0 if it does not merge them."""
        if not self._merges or files < self._min_files:
            return 0
        count = max(1, math.ceil(size / self.target_bytes))
        return count if count < files else 0


def coalesced_runs(files: Sequence[int], count: int) -> list[Sequence[int]]:
    """Return runs of neighbours, as ``coalesce`` builds them without a shuffle."""
    return [files[index * len(files) // count : (index + 1) * len(files) // count] for index in range(count)]


def repartitioned_runs(files: Sequence[int], count: int) -> list[Sequence[int]]:
    """Return evenly distributed rows, as ``repartition`` does."""
    return [[rows] for rows in rows_per_task(sum(files), count)]
