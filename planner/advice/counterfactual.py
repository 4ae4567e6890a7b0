# SPDX-License-Identifier: Apache-2.0
"""The counterfactual history: the same rows by the same commits, in the files that another writer setting would create.

The history gives the bytes and rows that each commit added to a partition, in new files and by growth of files. The
model of the writer distributes them over files.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from lake.history import ChangeKind, FileGroupKey, FileWritten, HistoricalCommit, TableHistory
from planner.advice.remedies import Remedy
from planner.writers.model import FileAction, Operation, SimulatedFile, Write, WriteBatch
from planner.writers.model import FileChange as FileChange
from planner.writers.simulation import WriterKind, make_writer

#: bytes of a row if the history records no rows
_ROW_BYTES = 1024


@dataclass(slots=True)
class PartitionWrite:
    """The data that one commit added to one partition; ``new_files`` and ``rewritten_files`` are counts."""

    bytes: int = 0
    rows: int = 0
    new_files: int = 0
    rewritten_files: int = 0
    log_bytes: int = 0


@dataclass(slots=True)
class FileGroupSizes:
    """The file groups of a history so far, with bytes and rows, to distinguish new groups from grown ones."""

    sizes: dict[FileGroupKey, tuple[int, int]] = field(default_factory=dict)

    def apply_commit(self, commit: HistoricalCommit) -> dict[str, PartitionWrite]:
        """Apply ``commit`` and return the data that it added, by partition."""
        writes: dict[str, PartitionWrite] = {}
        for group in commit.removed_groups:
            self.sizes.pop(group, None)
        for file in commit.written:
            partition_write = writes.setdefault(file.partition, PartitionWrite())
            partition_write.log_bytes += file.log_bytes
            if not file.bytes:
                self.sizes.setdefault(file.group, (0, 0))
                continue
            before = self.sizes.get(file.group)
            size, rows = before or (0, 0)
            partition_write.bytes += max(0, file.bytes - size)
            partition_write.rows += max(0, file.rows - rows)
            partition_write.new_files += before is None
            partition_write.rewritten_files += before is not None
            self.sizes[file.group] = file.bytes, file.rows
        return writes

    def is_empty(self, partition: str) -> bool:
        """True if the partition has no file group."""
        return not any(group[0] == partition for group in self.sizes)


def counterfactual_history(history: TableHistory, kind: WriterKind, remedy: Remedy) -> TableHistory:
    """Return ``history`` as it would have been with ``remedy``. Raises SimulationError."""
    return replace(history, commits=tuple(_CounterfactualHistory(history, kind, remedy).commits()))


class _CounterfactualHistory:
    def __init__(self, history: TableHistory, kind: WriterKind, remedy: Remedy) -> None:
        self._history, self._remedy = history, remedy
        initial_files = [
            SimulatedFile(
                number=number,
                partition=file.partition,
                bytes=file.bytes,
                rows=file.rows or file.bytes // _ROW_BYTES + 1,
            )
            for number, file in enumerate(history.files, 1)
        ]
        self._names: dict[int, FileGroupKey] = {
            made.number: file.group for made, file in zip(initial_files, history.files, strict=True)
        }
        self._writer, _ = make_writer(kind, remedy.settings, initial_files)
        self._sizes = FileGroupSizes({file.group: (file.bytes, file.rows) for file in history.files})
        self._groups_by_partition: dict[str, set[FileGroupKey]] = {}
        for file in history.files:
            self._groups_by_partition.setdefault(file.partition, set()).add(file.group)
        #: how often a whole partition was replaced: each time the model starts with an empty partition
        self._generations: dict[str, int] = {}

    def commits(self) -> Iterator[HistoricalCommit]:
        for commit in self._history.commits:
            if commit.change is not ChangeKind.WRITE:
                self._sizes.apply_commit(commit)
                continue
            partition_writes = self._sizes.apply_commit(commit)
            removed_groups = tuple(self._replaced_groups(commit, partition_writes))
            written = tuple(
                self._file_written(change, commit)
                for partition, partition_write in partition_writes.items()
                for batch in self._batches(commit, partition, partition_write)
                for change in self._writer.write(batch)
            )
            yield replace(commit, written=written, removed_groups=removed_groups)

    def _replaced_groups(
        self, commit: HistoricalCommit, partition_writes: dict[str, PartitionWrite]
    ) -> Iterator[FileGroupKey]:
        """Yield the file groups of partitions that ``commit`` replaced as a whole."""
        for partition in {partition for partition, _ in commit.removed_groups}:
            new = partition in partition_writes and partition_writes[partition].new_files
            if self._sizes.is_empty(partition) or (new and commit.operation.startswith("insert_overwrite")):
                yield from sorted(self._groups_by_partition.pop(partition, set()))
                self._generations[partition] = self._generations.get(partition, 0) + 1

    def _batches(
        self, commit: HistoricalCommit, partition: str, partition_write: PartitionWrite
    ) -> Iterator[WriteBatch]:
        generation_name = f"{partition}#{self._generations[partition]}" if partition in self._generations else partition
        recorded_operation = Operation.BULK_INSERT if commit.operation == Operation.BULK_INSERT else Operation.INSERT
        rows = partition_write.rows or partition_write.bytes // _ROW_BYTES + 1
        if partition_write.bytes:
            operation = self._remedy.effective_operation(recorded_operation)
            tasks = (
                None
                if operation is Operation.INSERT and recorded_operation is not operation
                else self._task_count(partition_write)
            )
            yield WriteBatch(
                writes=(Write(operation=operation, partition=generation_name, rows=rows, bytes=partition_write.bytes),),
                tasks=tasks,
            )
        if (partition_write.log_bytes or partition_write.rewritten_files) and self._groups_by_partition.get(partition):
            write = Write(
                operation=Operation.UPDATE,
                partition=generation_name,
                rows=max(1, partition_write.rewritten_files),
                bytes=partition_write.log_bytes,
            )
            yield WriteBatch(writes=(write,))

    def _task_count(self, partition_write: PartitionWrite) -> int:
        return self._remedy.tasks or max(1, partition_write.new_files)

    def _file_written(self, change: FileChange, commit: HistoricalCommit) -> FileWritten:
        made = change.file
        partition = made.partition.partition("#")[0]
        group = self._names.setdefault(made.number, (partition, f"anew-{made.number}"))
        self._groups_by_partition.setdefault(partition, set()).add(group)
        written = FileWritten(partition=partition, file_id=group[1], at=commit.at)
        if change.action is FileAction.LOGGED:
            return replace(written, log_files=1, log_bytes=change.written_bytes)
        return replace(written, bytes=max(1, made.bytes), rows=made.rows)
