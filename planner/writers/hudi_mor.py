# SPDX-License-Identifier: Apache-2.0
"""The model of Hudi's merge-on-read files: updates become logs, which compaction merges.

The rules are those of Hudi's ``SparkUpsertDeltaCommitPartitioner``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.writers.hudi import CopyOnWrite
from planner.writers.model import (
    FileAction,
    FileChange,
    SimulatedFile,
    SimulationError,
    Write,
    WriteBatch,
    check_file_count,
)
from planner.writers.settings import require_positive

#: indexes that find rows in logs, so inserts may be logged; bucket indexes assign rows differently and are refused
_INDEXES_OF_LOGS = frozenset({"hbase", "inmemory"})
_BUCKET_INDEXES = frozenset({"bucket"})
_LOG_RATIO_KEY = "hoodie.logfile.to.parquet.compression.ratio"
_MIN_LOG_RATIO = 0.001


class MergeOnRead(CopyOnWrite):
    """The slices of a merge-on-read table. Implements ``planner.writers.model.WriterModel``."""

    def __init__(self, settings: Mapping[str, Any], files: Sequence[SimulatedFile] = ()) -> None:
        super().__init__(settings, files)
        require_positive(
            settings,
            "hoodie.logfile.max.size",
            "hoodie.logfile.data.block.max.size",
            "hoodie.compact.inline.max.delta.commits",
        )
        if not _MIN_LOG_RATIO <= settings[_LOG_RATIO_KEY] <= 1 / _MIN_LOG_RATIO:
            bounds = f"from {_MIN_LOG_RATIO:g} to {1 / _MIN_LOG_RATIO:g}"
            raise SimulationError(
                f"{_LOG_RATIO_KEY} is {settings[_LOG_RATIO_KEY]:g} but must be {bounds}; set {_LOG_RATIO_KEY}"
            )
        if settings["hoodie.index.type"] in _BUCKET_INDEXES:
            raise SimulationError(
                "hoodie.index.type is bucket: such a table always has as many files as buckets, so there is nothing to "
                "simulate"
            )
        self._inserts_into_logs = settings["hoodie.index.type"] in _INDEXES_OF_LOGS
        self._candidates: int = settings["hoodie.merge.small.file.group.candidates.limit"]
        block: int = settings["hoodie.logfile.data.block.max.size"]
        #: the size of a full log file: a log file grows by whole blocks until it exceeds its maximum size
        self._log_file_bytes = (settings["hoodie.logfile.max.size"] // block + 1) * block
        self._ratio: float = settings[_LOG_RATIO_KEY]
        self._compacts: bool = settings["hoodie.compact.inline"]
        self._delta_commits_to_compact: int = settings["hoodie.compact.inline.max.delta.commits"]
        self._delta_commits = 0

    def write(self, batch: WriteBatch) -> Iterator[FileChange]:
        yield from super().write(batch)
        self._delta_commits += 1
        if self._compacts and self._delta_commits >= self._delta_commits_to_compact:
            yield from self.compact()

    def compact(self) -> Iterator[FileChange]:
        """Merge all logs into new base files."""
        changes = []
        for file in self._table.all_files():
            if file.log_sizes:
                made = replace(
                    file,
                    rows=file.rows + file.uncompacted_rows,
                    bytes=file.bytes + file.uncompacted_bytes,
                    log_sizes=(),
                    uncompacted_rows=0,
                    uncompacted_bytes=0,
                )
                self._table.put(made)
                changes.append(FileChange(action=FileAction.COMPACTED, file=made, written_bytes=made.bytes))
        if changes:
            self._delta_commits = 0
            self._row_size.record_commit(
                sum(change.file.bytes for change in changes), sum(c.file.rows for c in changes)
            )
        yield from changes

    def _files_for_inserts(self, partition: str) -> list[SimulatedFile]:
        files = self._table.files_in(partition)
        if self._inserts_into_logs:
            return [file for file in files if self._size_for_inserts(file) < self.target_bytes]
        small = [file for file in files if not file.log_sizes and file.bytes < self.small_file_limit_bytes]
        return sorted(small, key=lambda file: file.bytes)[: self._candidates]

    def _size_for_inserts(self, file: SimulatedFile) -> int:
        return file.bytes + int(file.log_bytes * self._ratio)

    def _change_file(
        self, file: SimulatedFile, rows: int, size: int, updated_bytes: int | None, *, takes_inserts: bool
    ) -> FileChange | None:
        if self._inserts_into_logs:
            log_bytes = (updated_bytes or 0) + int(size / self._ratio)
            return self._append_logs(file, log_bytes, rows, size) if log_bytes else None
        if takes_inserts:  # a base file that takes inserts is rewritten, together with the updates of its rows
            return super()._change_file(file, rows, size, updated_bytes, takes_inserts=takes_inserts)
        return self._append_logs(file, updated_bytes, 0, 0) if updated_bytes else None

    def _write_new_files(self, write: Write, files: Sequence[int]) -> Iterator[FileChange]:
        if not self._inserts_into_logs:
            yield from super()._write_new_files(write, files)
            return
        done = write.rows - sum(files)
        for rows in files:
            size = write.bytes_of_rows(done, done + rows)
            done += rows
            yield self._append_logs(self._table.add(write.partition, 0, 0), int(size / self._ratio), rows, size)

    def _append_logs(self, file: SimulatedFile, size: int, new_rows: int, new_bytes: int) -> FileChange:
        """Add log files to ``file``; every commit begins new log files."""
        made = replace(
            file,
            log_sizes=(*file.log_sizes, *self._log_file_sizes(size)),
            uncompacted_rows=file.uncompacted_rows + new_rows,
            uncompacted_bytes=file.uncompacted_bytes + new_bytes,
        )
        self._table.put(made)
        return FileChange(action=FileAction.LOGGED, file=made, added_rows=new_rows, written_bytes=size)

    def _log_file_sizes(self, size: int) -> list[int]:
        """Return the sizes of the log files for ``size`` bytes: all but the last one are full."""
        full, rest = divmod(size, self._log_file_bytes)
        check_file_count(full)
        return [self._log_file_bytes] * full + ([rest] if rest else [])
