# SPDX-License-Identifier: Apache-2.0
"""The terms of a simulated writer: its batches, its files, and the changes of the files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

#: the limit for files of a simulated table; a scenario with more files is considered a mistake
MAX_FILES = 200_000


class SimulationError(ValueError):
    """A scenario can't be simulated; the message is one line with the value, the rule and the remedy."""


def check_file_count(files: int, limit: int = MAX_FILES) -> None:
    """Raise SimulationError for more files than ``limit``."""
    if files > limit:
        raise SimulationError(f"more than {limit:,} files; simulate fewer rows, partitions, batches or tasks")


class Operation(StrEnum):
    """The operation of a writer on the rows of a batch."""

    INSERT = "insert"  #: new keys, written into small files first if the writer fills small files
    UPDATE = "update"  #: existing keys, evenly spread over the rows of their partition
    BULK_INSERT = "bulk_insert"  #: new keys, a file per task, regardless of existing files
    OVERWRITE = "overwrite"  #: the partition is replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """The rows that one batch writes to one partition. ``bytes`` is the size of the written files, not of the input.

    Updates of a merge-on-read table become logs, so ``bytes`` of an update are bytes of logs.
    """

    operation: Operation
    partition: str = ""
    rows: int
    bytes: int

    def bytes_of_rows(self, first: int, last: int) -> int:
        """Return the bytes of the rows from ``first`` to before ``last``; consecutive parts add up to ``bytes``."""
        return self.bytes * last // self.rows - self.bytes * first // self.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteBatch:
    """Writes of one commit; ``tasks`` is the number of tasks, None for the number in the settings."""

    writes: tuple[Write, ...]
    tasks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFile:
    """A file that readers see: for Hudi the latest slice of a file group, otherwise a data file.

    ``number`` counts files in the order in which they first appeared. ``log_sizes`` are the bytes of each log file.
    ``uncompacted_rows`` and ``uncompacted_bytes`` are new rows in logs only, and their bytes after compaction.
    """

    number: int
    partition: str
    bytes: int
    rows: int
    log_sizes: tuple[int, ...] = ()
    uncompacted_rows: int = 0
    uncompacted_bytes: int = 0

    @property
    def log_bytes(self) -> int:
        """Bytes of all log files."""
        return sum(self.log_sizes)


class FileAction(StrEnum):
    """The action of a batch on a file."""

    CREATED = "created"
    REWRITTEN = "rewritten"  #: rewritten with rows added, changed or both
    LOGGED = "logged"  #: rows were written into log files beside it
    COMPACTED = "compacted"  #: logs were merged into a new base file
    MERGED = "merged"  #: the writer's own merge built it from several files of the same write
    REMOVED = "removed"  #: an overwrite replaced it


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """The change of one file by a batch. ``merged_files`` is the number of files merged into it, 0 without a merge."""

    action: FileAction
    file: SimulatedFile
    added_rows: int = 0
    written_bytes: int = 0
    merged_files: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationStep:
    """One batch with its changes and the files after it."""

    number: int
    batch: WriteBatch
    changes: tuple[FileChange, ...]
    files: tuple[SimulatedFile, ...]
    #: the writer's estimate of a row's bytes when it assigned inserts; None if the writer needs none
    row_bytes_estimate: int | None

    @property
    def incoming_bytes(self) -> int:
        """The bytes of the batch's rows."""
        return sum(write.bytes for write in self.batch.writes)

    @property
    def written_bytes(self) -> int:
        """The bytes that the commit wrote; divided by ``incoming_bytes`` this is the write amplification."""
        return sum(change.written_bytes for change in self.changes)


class WriterModel(Protocol):
    """A writer and the files of its table; ``write`` changes the files batch by batch."""

    #: files below this size are small
    small_file_limit_bytes: int
    #: the size that the writer aims at
    target_bytes: int

    @property
    def files(self) -> Sequence[SimulatedFile]:
        """The files that readers see, sorted by partition."""

    @property
    def row_bytes_estimate(self) -> int | None:
        """The current estimate of a row's bytes; None if the writer needs none."""

    def write(self, batch: WriteBatch) -> Iterator[FileChange]:
        """Write one batch and yield the changes. Raises SimulationError."""


class SimulatedTable:
    """The files of a simulated table by their numbers."""

    def __init__(self, files: Sequence[SimulatedFile] = ()) -> None:
        self._by_partition: dict[str, dict[int, SimulatedFile]] = {}
        self._last = 0
        for file in files:
            self.put(file)

    def put(self, file: SimulatedFile) -> None:
        """Add a file, or replace the file with its number."""
        self._by_partition.setdefault(file.partition, {})[file.number] = file
        self._last = max(self._last, file.number)

    def add(self, partition: str, rows: int, size: int) -> SimulatedFile:
        """Add a new file and return it."""
        check_file_count(self._last + 1)
        made = SimulatedFile(number=self._last + 1, partition=partition, rows=rows, bytes=size)
        self.put(made)
        return made

    def remove(self, file: SimulatedFile) -> None:
        """Remove a file."""
        del self._by_partition[file.partition][file.number]

    def files_in(self, partition: str) -> list[SimulatedFile]:
        """Return the files of a partition in the order in which they first appeared."""
        return list(self._by_partition.get(partition, {}).values())

    def all_files(self) -> list[SimulatedFile]:
        """Return all files, sorted by partition."""
        return [file for partition in sorted(self._by_partition) for file in self.files_in(partition)]


def check_batch(batch: WriteBatch) -> None:
    """Raise SimulationError for writes that can't be in one commit."""
    found = {write.operation for write in batch.writes}
    if len(found) > 1 and found & {Operation.BULK_INSERT, Operation.OVERWRITE}:
        named = ", ".join(sorted(found))
        raise SimulationError(f"one batch has {named}; bulk_insert and overwrite are commits of their own")


def rows_per_task(rows: int, tasks: int) -> list[int]:
    """Return the rows of each task that has rows."""
    check_file_count(min(tasks, rows))
    return [share for share in distribute(rows, [1] * min(tasks, rows)) if share]


def distribute(count: int, weights: Sequence[int]) -> list[int]:
    """Distribute ``count`` into whole shares in proportion to ``weights``; the shares add up to ``count``.

    The running sums are rounded down, so each share differs from its exact value by less than 1. Raises
    ZeroDivisionError if all weights are 0.
    """
    whole = sum(weights)
    shares, before, done = [], 0, 0
    for weight in weights:
        before += weight
        now = count * before // whole
        shares.append(now - done)
        done = now
    return shares
