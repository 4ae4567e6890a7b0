# SPDX-License-Identifier: Apache-2.0
"""Spark's writes to a Hive table: a file per task and partition, and the auto-merge that a patched Spark adds to them.

The rules, and where each comes from, are in docs/planning.md#sparks-writes-to-hive.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.writers.model import (
    Action,
    Batch,
    Change,
    Operation,
    SimulationError,
    Table,
    Write,
    WrittenFile,
    check_count,
    spread_over_tasks,
)
from planner.writers.settings import above_zero


class SparkHiveWriter:
    """The files of a Hive table that Spark writes. Implements ``planner.writers.model.Writer``.

    Only files of the write itself are merged: those that lie in the partition already are never looked at. What writes
    *for lakefold* to Hive tables is ``lake.formats.hive.writer.HiveWriter``.
    """

    def __init__(self, settings: Mapping[str, Any], files: Sequence[WrittenFile] = (), *, merges: bool) -> None:
        above_zero(settings, "spark.sql.shuffle.partitions", "dfs.blocksize")
        self._tasks: int = settings["spark.sql.shuffle.partitions"]
        self._most_rows: int = settings["spark.sql.files.maxRecordsPerFile"]
        self._least_files: int = settings["spark.hive.automerge.least.filenum"]
        self._shuffles: bool = settings["spark.hive.automerge.shuffle.enabled"]
        percent: float = settings["spark.hive.automerge.block.percent"]
        self.target_bytes = self.small_file_limit_bytes = int(percent * settings["dfs.blocksize"])
        if not self.target_bytes:
            raise SimulationError(
                f"spark.hive.automerge.block.percent is {percent:g} but must leave a file of some bytes"
            )
        self._merges = merges
        self._table = Table(files)

    @property
    def files(self) -> list[WrittenFile]:
        return self._table.all()

    @property
    def row_bytes_estimate(self) -> None:
        return None

    def write(self, batch: Batch) -> Iterator[Change]:
        for write in batch.writes:
            if write.operation not in (Operation.INSERT, Operation.OVERWRITE):
                raise SimulationError(
                    f"{write.operation} is nothing that a Hive table can do; it is insert or overwrite"
                )
            if write.operation is Operation.OVERWRITE:
                for file in self._table.of(write.partition):
                    self._table.remove(file)
                    yield Change(action=Action.REMOVED, file=file)
            yield from self._written(write, batch.tasks or self._tasks)

    def _written(self, write: Write, tasks: int) -> Iterator[Change]:
        made = [part for rows in spread_over_tasks(write.rows, tasks) for part in self._cut(rows)]
        count = self._merged_files(len(made), write.bytes)
        runs = even_runs(made, count) if count and self._shuffles else neighbours(made, count) if count else None
        done = 0
        for rows in made if runs is None else [sum(run) for run in runs]:
            file = self._table.add(write.partition, rows, write.part(done, done + rows))
            done += rows
            written = file.bytes if runs is None else 2 * file.bytes  # once by the tasks, once by the merge
            of_files = 0 if runs is None else len(made)
            action = Action.CREATED if runs is None else Action.MERGED
            yield Change(action=action, file=file, added_rows=rows, written_bytes=written, of_files=of_files)

    def _cut(self, rows: int) -> Iterator[int]:
        most = self._most_rows or rows
        check_count(rows // most)
        while rows > 0:
            yield min(rows, most)
            rows -= most

    def _merged_files(self, files: int, size: int) -> int:
        """How many files the merge makes of those of one partition; 0 where it leaves them alone."""
        if not self._merges or files < self._least_files:
            return 0
        count = max(1, math.ceil(size / self.target_bytes))
        return count if count < files else 0


def neighbours(files: Sequence[int], count: int) -> list[Sequence[int]]:
    """Runs of neighbours, as ``coalesce`` makes them without a shuffle."""
    return [files[index * len(files) // count : (index + 1) * len(files) // count] for index in range(count)]


def even_runs(files: Sequence[int], count: int) -> list[Sequence[int]]:
    """Rows dealt out evenly, as ``repartition`` does."""
    return [[rows] for rows in spread_over_tasks(sum(files), count)]
