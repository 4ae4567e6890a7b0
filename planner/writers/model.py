# SPDX-License-Identifier: Apache-2.0
"""The nouns of a simulated writer: what it is given, the files it keeps, and what became of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

#: files that a simulated table may have: what makes more was not meant so
MAX_FILES = 200_000


class SimulationError(ValueError):
    """A scenario can't be simulated; one line with the value, the rule and what to change."""


def check_file_count(files: int, limit: int = MAX_FILES) -> None:
    """Raise SimulationError for more files than anybody means."""
    if files > limit:
        raise SimulationError(f"more than {limit:,} files; simulate fewer rows, partitions, batches or tasks")


class Operation(StrEnum):
    """What a writer does with the rows of a batch."""

    INSERT = "insert"  #: new keys, into small files first where the writer looks for them
    UPDATE = "update"  #: keys that are there, evenly spread over the rows of their partition
    BULK_INSERT = "bulk_insert"  #: new keys, a file per task, whatever lies there already
    OVERWRITE = "overwrite"  #: the partition is replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """What one batch brings to one partition. ``bytes`` are those of the files that the rows make, not of their input.

    Updates of a merge-on-read table become logs, so theirs are bytes of logs.
    """

    operation: Operation
    partition: str = ""
    rows: int
    bytes: int

    def bytes_of_rows(self, first: int, last: int) -> int:
        """Bytes of the rows from ``first`` to before ``last``; parts that follow each other add up to ``bytes``."""
        return self.bytes * last // self.rows - self.bytes * first // self.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteBatch:
    """Writes that are committed at once; ``tasks`` write them, None for as many as the settings say."""

    writes: tuple[Write, ...]
    tasks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFile:
    """A file that readers see: of Hudi the latest slice of a file group, else a data file.

    ``name`` is a number in the order in which files first appeared. ``logs`` are the bytes of each log file;
    ``uncompacted_rows`` and ``uncompacted_bytes`` are of new rows that lie in logs only, as large as compaction makes them.
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
        """Bytes of all its logs."""
        return sum(self.log_sizes)


class FileAction(StrEnum):
    """What a batch did to a file."""

    CREATED = "created"
    REWRITTEN = "rewritten"  #: written anew with rows added, changed or both
    LOGGED = "logged"  #: its rows went into log files beside it
    COMPACTED = "compacted"  #: its logs were merged into a new base file
    MERGED = "merged"  #: the writer's own merge made it of several that it had just written
    REMOVED = "removed"  #: an overwrite replaced it


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """What a batch did to one file. ``written_bytes`` is what it cost; ``merged_files`` went into a merged file."""

    action: FileAction
    file: SimulatedFile
    added_rows: int = 0
    written_bytes: int = 0
    merged_files: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationStep:
    """One batch, what it did, and the files after it."""

    number: int
    batch: WriteBatch
    changes: tuple[FileChange, ...]
    files: tuple[SimulatedFile, ...]
    #: what the writer took a row for when it assigned inserts; None where it does not
    row_bytes_estimate: int | None

    @property
    def incoming_bytes(self) -> int:
        """What the batch brought."""
        return sum(write.bytes for write in self.batch.writes)

    @property
    def written_bytes(self) -> int:
        """What its commit wrote: write amplification is this by ``incoming_bytes``."""
        return sum(change.written_bytes for change in self.changes)


class WriterModel(Protocol):
    """A writer and the files of its table; ``write`` changes them batch by batch."""

    #: its files below this size are small
    small_file_limit_bytes: int
    #: as large as it means to make a file
    target_bytes: int

    @property
    def files(self) -> Sequence[SimulatedFile]:
        """The files that readers see, by partition and name."""

    @property
    def row_bytes_estimate(self) -> int | None:
        """What it takes a row for now; None where it does not need to know."""

    def write(self, batch: WriteBatch) -> Iterator[FileChange]:
        """One batch. Raises SimulationError."""


class SimulatedTable:
    """The files of a simulated table by their names, and the next free one."""

    def __init__(self, files: Sequence[SimulatedFile] = ()) -> None:
        self._by_partition: dict[str, dict[int, SimulatedFile]] = {}
        self._last = 0
        for file in files:
            self.put(file)

    def put(self, file: SimulatedFile) -> None:
        """Store a file, in place of the one with its name."""
        self._by_partition.setdefault(file.partition, {})[file.number] = file
        self._last = max(self._last, file.number)

    def add(self, partition: str, rows: int, size: int) -> SimulatedFile:
        """A new file."""
        check_file_count(self._last + 1)
        made = SimulatedFile(number=self._last + 1, partition=partition, rows=rows, bytes=size)
        self.put(made)
        return made

    def remove(self, file: SimulatedFile) -> None:
        """Forget a file."""
        del self._by_partition[file.partition][file.number]

    def files_in(self, partition: str) -> list[SimulatedFile]:
        """The files of a partition in the order in which they first appeared."""
        return list(self._by_partition.get(partition, {}).values())

    def all_files(self) -> list[SimulatedFile]:
        """All files, by partition."""
        return [file for partition in sorted(self._by_partition) for file in self.files_in(partition)]


def check_batch(batch: WriteBatch) -> None:
    """Raise SimulationError for writes that no single commit makes."""
    found = {write.operation for write in batch.writes}
    if len(found) > 1 and found & {Operation.BULK_INSERT, Operation.OVERWRITE}:
        named = ", ".join(sorted(found))
        raise SimulationError(f"one batch has {named}; bulk_insert and overwrite are commits of their own")


def rows_per_task(rows: int, tasks: int) -> list[int]:
    """The rows of each task that has any."""
    check_file_count(min(tasks, rows))
    return [share for share in distribute(rows, [1] * min(tasks, rows)) if share]


def distribute(count: int, weights: Sequence[int]) -> list[int]:
    """``count`` as whole shares in proportion to ``weights``, a share for each, which add up to ``count``.

    What all shares up to one have together is rounded down, so that each is less than 1 off its exact value. Raises
    ZeroDivisionError where the weights are all 0.
    """
    whole = sum(weights)
    shares, before, done = [], 0, 0
    for weight in weights:
        before += weight
        now = count * before // whole
        shares.append(now - done)
        done = now
    return shares
