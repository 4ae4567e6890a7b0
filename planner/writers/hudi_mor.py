# SPDX-License-Identifier: Apache-2.0
"""Hudi's merge-on-read files: updates go into logs, which compaction merges (``SparkUpsertDeltaCommitPartitioner``)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.writers.hudi import CopyOnWrite
from planner.writers.model import Action, Batch, Change, SimulationError, Write, WrittenFile, check_count
from planner.writers.settings import above_zero

#: indexes that find rows in logs, so that inserts may go there; those with buckets assign rows in a way of their own
_FINDS_IN_LOGS = frozenset({"hbase", "inmemory"})
_BUCKETS = frozenset({"bucket"})
_RATIO = "hoodie.logfile.to.parquet.compression.ratio"
_LEAST_RATIO = 0.001


class MergeOnRead(CopyOnWrite):
    """The slices of a merge-on-read table. Implements ``planner.writers.model.Writer``."""

    def __init__(self, settings: Mapping[str, Any], files: Sequence[WrittenFile] = ()) -> None:
        super().__init__(settings, files)
        above_zero(
            settings,
            "hoodie.logfile.max.size",
            "hoodie.logfile.data.block.max.size",
            "hoodie.compact.inline.max.delta.commits",
        )
        if not _LEAST_RATIO <= settings[_RATIO] <= 1 / _LEAST_RATIO:
            bounds = f"from {_LEAST_RATIO:g} to {1 / _LEAST_RATIO:g}"
            raise SimulationError(f"{_RATIO} is {settings[_RATIO]:g} but must be {bounds}; set {_RATIO}")
        if settings["hoodie.index.type"] in _BUCKETS:
            raise SimulationError("hoodie.index.type is bucket, whose files are as many as buckets whatever is written")
        self._inserts_into_logs = settings["hoodie.index.type"] in _FINDS_IN_LOGS
        self._candidates: int = settings["hoodie.merge.small.file.group.candidates.limit"]
        block: int = settings["hoodie.logfile.data.block.max.size"]
        #: whole blocks, as many as take a log file past its maximum
        self._log_file_bytes = (settings["hoodie.logfile.max.size"] // block + 1) * block
        self._ratio: float = settings[_RATIO]
        self._compacts: bool = settings["hoodie.compact.inline"]
        self._delta_commits_to_compact: int = settings["hoodie.compact.inline.max.delta.commits"]
        self._delta_commits = 0

    def write(self, batch: Batch) -> Iterator[Change]:
        yield from super().write(batch)
        self._delta_commits += 1
        if self._compacts and self._delta_commits >= self._delta_commits_to_compact:
            yield from self.compact()

    def compact(self) -> Iterator[Change]:
        """Merge all logs into new base files; nothing where there are none."""
        changes = []
        for file in self._table.all():
            if file.logs:
                made = replace(
                    file,
                    rows=file.rows + file.waiting_rows,
                    bytes=file.bytes + file.waiting_bytes,
                    logs=(),
                    waiting_rows=0,
                    waiting_bytes=0,
                )
                self._table.put(made)
                changes.append(Change(action=Action.COMPACTED, file=made, written_bytes=made.bytes))
        if changes:
            self._delta_commits = 0
            self._row_size.committed(sum(change.file.bytes for change in changes), sum(c.file.rows for c in changes))
        yield from changes

    def _small(self, partition: str) -> list[WrittenFile]:
        files = self._table.of(partition)
        if self._inserts_into_logs:
            return [file for file in files if self._size_to_fill(file) < self.target_bytes]
        small = [file for file in files if not file.logs and file.bytes < self.small_file_limit_bytes]
        return sorted(small, key=lambda file: file.bytes)[: self._candidates]

    def _size_to_fill(self, file: WrittenFile) -> int:
        return file.bytes + int(file.log_bytes * self._ratio)

    def _changed(
        self, file: WrittenFile, rows: int, size: int, updated_bytes: int | None, *, takes: bool
    ) -> Change | None:
        if self._inserts_into_logs:
            log_bytes = (updated_bytes or 0) + int(size / self._ratio)
            return self._logged(file, log_bytes, rows, size) if log_bytes else None
        if takes:  # a base file that takes inserts is written anew, and the updates of its rows with it
            return super()._changed(file, rows, size, updated_bytes, takes=takes)
        return self._logged(file, updated_bytes, 0, 0) if updated_bytes else None

    def _new(self, write: Write, files: Sequence[int]) -> Iterator[Change]:
        if not self._inserts_into_logs:
            yield from super()._new(write, files)
            return
        done = write.rows - sum(files)
        for rows in files:
            size = write.part(done, done + rows)
            done += rows
            yield self._logged(self._table.add(write.partition, 0, 0), int(size / self._ratio), rows, size)

    def _logged(self, file: WrittenFile, size: int, new_rows: int, new_bytes: int) -> Change:
        """Log files beside ``file``; every commit begins new ones."""
        made = replace(
            file,
            logs=(*file.logs, *self._log_files(size)),
            waiting_rows=file.waiting_rows + new_rows,
            waiting_bytes=file.waiting_bytes + new_bytes,
        )
        self._table.put(made)
        return Change(action=Action.LOGGED, file=made, added_rows=new_rows, written_bytes=size)

    def _log_files(self, size: int) -> list[int]:
        """The log files that so many bytes make: all but the last one are full."""
        full, rest = divmod(size, self._log_file_bytes)
        check_count(full)
        return [self._log_file_bytes] * full + ([rest] if rest else [])
