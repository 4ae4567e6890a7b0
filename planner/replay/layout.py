# SPDX-License-Identifier: Apache-2.0
"""The files of a replayed table as arrays for planning, and the changes that writers and plans make to them."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lake.model import DeltaKind
from planner.candidates import NEVER_US, Candidates, Shares
from planner.reasons import UNDECIDED
from planner.replay.events import FileCreated, FilesGrown, FilesMerged, FilesRemoved, LogsAppended, WriterHistory
from planner.slice_columns import Ints, Mask, SliceColumns
from planner.writers.settings import BASE_BYTES_PER_LOG_BYTE

_COLUMNS = ("bytes", "rows", "log_files", "log_bytes", "modified_us", "oldest_log_us", "partition", "parent")


@dataclass(slots=True)
class LayoutTotals:
    """The totals of a layout at one moment: live files, files below the limit, bytes and rows of base files.

    Logs are not counted; a log-only slice counts as a small file of 0 bytes.
    """

    files: int = 0
    small_files: int = 0
    bytes: int = 0
    rows: int = 0


class ReplayLayout:
    """The files by number: files of writers are below ``history.origin_count``, files of rewrites are not.

    A rewritten file points to its successor (``parent``), so a writer's change of an origin is applied to the file that
    holds its rows now. ``files_to_plan`` has, for each partition, the files that planning has to consider. Columns are
    int64, indexed by file number, with spare capacity. Sizes are bytes, of base files and logs separately; ``rows`` are
    rows of the base file. Moments, also in arguments, are µs since 1970 in UTC; ``oldest_log_us`` is ``NEVER_US``
    without logs. Partitions are positions in ``history.partitions``.
    """

    def __init__(self, history: WriterHistory, small_file_limit_bytes: int) -> None:
        self._limit = small_file_limit_bytes
        self._next = history.origin_count
        self._columns = {name: np.zeros(max(64, 2 * history.origin_count), dtype=np.int64) for name in _COLUMNS}
        self.parent[:] = np.arange(len(self.parent))
        self.live = np.zeros(len(self.parent), dtype=np.bool_)
        self.files_to_plan: list[set[int]] = [set() for _ in history.partitions]
        #: the number of files of each partition, and how often a partition appeared or vanished
        self.files_per_partition = [0] * len(history.partitions)
        self.partition_changes = 0
        self.totals = LayoutTotals()
        self.uncompacted_commits = 0

    @property
    def bytes(self) -> Ints:
        """Bytes of base files."""
        return self._columns["bytes"]

    @property
    def parent(self) -> Ints:
        """The file that now holds each file's rows: the file itself while it is live, -1 if its rows were removed."""
        return self._columns["parent"]

    def partition_of(self, file: int) -> int:
        """Return the partition of a file."""
        return int(self._columns["partition"][file])

    def create_file(self, event: FileCreated) -> int:
        """Add a file that a writer created and return its partition."""
        self._add_file(
            event.origin,
            event.partition,
            size=event.bytes,
            rows=event.rows,
            at_us=event.at_us,
            logs=(event.log_files, event.log_bytes, event.oldest_log_us or NEVER_US),
        )
        return event.partition

    def grow_files(self, event: FilesGrown, at_us: int) -> tuple[list[int], int]:
        """Rewrite files as a writer did. Returns the files and the bytes written."""
        files = self._live_files(event.origins)
        whole = int(sum(self.bytes[file] for file in files))
        written = given = rows_given = before = 0
        for file in files:
            before += int(self.bytes[file]) if whole else 1
            more = event.bytes * before // (whole or len(files)) - given
            more_rows = event.rows * before // (whole or len(files)) - rows_given
            given, rows_given = given + more, rows_given + more_rows
            size = int(self.bytes[file]) + more
            written += self._replace_base_file(file, max(0, size), more_rows, at_us)
        return files, written

    def append_logs(self, event: LogsAppended, at_us: int) -> list[int]:
        """Append logs to files as a writer did. Returns the files."""
        files = self._live_files(event.origins)
        columns = self._columns
        for index, file in enumerate(files):
            columns["log_files"][file] += max(1, event.files // len(files))
            share = event.bytes * (index + 1) // len(files) - event.bytes * index // len(files)
            columns["log_bytes"][file] += share
            columns["modified_us"][file] = at_us
            columns["oldest_log_us"][file] = min(int(columns["oldest_log_us"][file]), at_us)
            self.files_to_plan[self.partition_of(file)].add(file)
        return files

    def remove_files(self, event: FilesRemoved) -> list[int]:
        """Remove files as a writer did. Returns the files."""
        files = self._live_files(event.origins)
        for file in files:
            self._retire_file(file)
            self.parent[file] = -1
        return files

    def merge_files(self, event: FilesMerged, at_us: int) -> list[int]:
        """Merge files as another program did. Returns the new files, or none if this would not reduce the files."""
        files = self._live_files(event.origins)
        return self.rewrite(files, event.files, at_us) if len(files) > event.files else []

    def rewrite(self, files: Sequence[int], outputs: int, at_us: int) -> list[int]:
        """Rewrite ``files`` of one partition into ``outputs`` files of equal size. Returns the new files."""
        partition, count = self.partition_of(files[0]), len(files)
        whole, rows = sum(map(self._compacted_size, files)), sum(int(self._columns["rows"][file]) for file in files)
        made = list(range(self._next, self._next + outputs))
        self._next += outputs
        for file in files:
            self._retire_file(file)
        for index, file in enumerate(made):
            size, part = (amount * (index + 1) // outputs - amount * index // outputs for amount in (whole, rows))
            self._add_file(file, partition, size=size, rows=part, at_us=at_us)
        for index, file in enumerate(files):
            self.parent[file] = made[index * outputs // count]
        return made

    def compact(self, files: Iterable[int], at_us: int) -> None:
        """Merge the logs of ``files`` into new base files."""
        for file in files:
            self._replace_base_file(file, self._compacted_size(file), 0, at_us)
        self.uncompacted_commits = 0

    def mark_stable(self, files: Iterable[int], partition: int) -> None:
        """Exclude ``files`` of ``partition`` from planning until they change."""
        self.files_to_plan[partition].difference_update(files)

    def candidates(self, names: Sequence[str], files: npt.NDArray[np.int64], partition: Ints) -> Candidates:
        """Return ``files`` as undecided candidates; ``partition`` indexes ``names`` for each file."""
        columns = SliceColumns(
            rows=np.arange(len(files), dtype=np.int64),
            grouping_key=partition.astype(np.int32),
            bytes=self._columns["bytes"][files],
            log_bytes=self._columns["log_bytes"][files],
            modified_us=self._columns["modified_us"][files],
        )
        return Candidates(
            partitions=list(names),
            partition_order=np.arange(len(names), dtype=np.int64),
            partition=columns.grouping_key,
            grouping_key=columns.grouping_key,
            bytes=columns.bytes,
            log_files=self._columns["log_files"][files],
            log_bytes=columns.log_bytes,
            rewritable=np.ones(len(files), dtype=np.bool_),
            modified_us=columns.modified_us,
            ranges=[columns],
            reason_codes=np.full(len(files), UNDECIDED, dtype=np.int8),
            reason_numbers=np.zeros(len(files), dtype=np.int64),
            details=_LayoutDetails(self, files),
        )

    def column(self, name: str, files: npt.NDArray[np.int64]) -> Ints:
        """Return one column of ``files``."""
        return self._columns[name][files]

    @property
    def log_files(self) -> Ints:
        """The number of log files of each file."""
        return self._columns["log_files"]

    def _live_files(self, origins: Iterable[int]) -> list[int]:
        """Return the live files that hold the rows of ``origins``, each once."""
        return list(dict.fromkeys(file for origin in origins if (file := self._live_file(origin)) >= 0))

    def _live_file(self, origin: int) -> int:
        parent, path = self.parent, []
        file = origin
        while file >= 0 and parent[file] != file:
            path.append(file)
            file = int(parent[file])
        parent[path] = file
        return file

    def _compacted_size(self, file: int) -> int:
        """Return the size of a file's base file after its logs are merged into it."""
        size = int(self.bytes[file])
        return size or int(BASE_BYTES_PER_LOG_BYTE * int(self._columns["log_bytes"][file]))

    def _add_file(
        self,
        file: int,
        partition: int,
        *,
        size: int,
        rows: int,
        at_us: int,
        logs: tuple[int, int, int] = (0, 0, NEVER_US),
    ) -> None:
        if file >= len(self.live):
            self._extend_columns(file)
        columns = self._columns
        columns["bytes"][file], columns["rows"][file] = size, rows
        columns["modified_us"][file], columns["partition"][file], columns["parent"][file] = at_us, partition, file
        columns["log_files"][file], columns["log_bytes"][file], columns["oldest_log_us"][file] = logs
        self.live[file] = True
        self.files_to_plan[partition].add(file)
        self._count_in_partition(partition, 1)
        self._count_in_totals(size, rows, 1)

    def _replace_base_file(self, file: int, size: int, more_rows: int, at_us: int) -> int:
        """Replace a file's base file, drop its logs, and return the new size."""
        columns = self._columns
        self._count_in_totals(int(columns["bytes"][file]), int(columns["rows"][file]), -1)
        columns["bytes"][file] = size
        columns["rows"][file] += more_rows
        columns["log_files"][file] = columns["log_bytes"][file] = 0
        columns["oldest_log_us"][file] = NEVER_US
        columns["modified_us"][file] = at_us
        self.files_to_plan[self.partition_of(file)].add(file)
        self._count_in_totals(size, int(columns["rows"][file]), 1)
        return size

    def _retire_file(self, file: int) -> None:
        self.live[file] = False
        partition = self.partition_of(file)
        self.files_to_plan[partition].discard(file)
        self._count_in_partition(partition, -1)
        self._count_in_totals(int(self.bytes[file]), int(self._columns["rows"][file]), -1)

    def _count_in_partition(self, partition: int, change: int) -> None:
        before = self.files_per_partition[partition]
        self.files_per_partition[partition] = before + change
        self.partition_changes += not before or not before + change

    def _count_in_totals(self, size: int, rows: int, sign: int) -> None:
        sums = self.totals
        sums.files += sign
        sums.bytes += sign * size
        sums.rows += sign * rows
        if size < self._limit:
            sums.small_files += sign

    def _extend_columns(self, file: int) -> None:
        room = max(2 * len(self.live), file + 1)
        self._columns = {name: np.resize(column, room) for name, column in self._columns.items()}
        self.live = np.concatenate([self.live, np.zeros(room - len(self.live), dtype=np.bool_)])


@dataclass(frozen=True, slots=True)
class _LayoutDetails:
    """The ``planner.candidates.SliceDetails`` of a layout's files; the file number serves as the file id."""

    layout: ReplayLayout
    files: npt.NDArray[np.int64]

    @property
    def uncompacted_commits(self) -> int:
        return self.layout.uncompacted_commits

    def is_log_only(self, rows: Ints) -> Mask | None:
        missing: Mask = self.layout.bytes[self.files[rows]] == 0
        return missing

    def written_order(self, rows: Ints) -> Ints:
        return self.layout.column("modified_us", self.files[rows])

    def oldest_log_us(self, rows: Ints) -> Ints:
        return self.layout.column("oldest_log_us", self.files[rows])

    def has_deltas(self, kinds: Collection[DeltaKind], rows: Ints) -> Mask | None:
        return None  # a history contains log files only

    def deleted_row_share(self, rows: Ints) -> Shares | None:
        return None

    def sort_by_file_id(self, run: Ints, rows: Ints) -> Ints:
        return np.lexsort((self.files[rows], run))
