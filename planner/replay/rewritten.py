# SPDX-License-Identifier: Apache-2.0
"""A history told anew: the same rows by the same commits, in the files that the writer would make with another setting.

What a commit brought to a partition is known as bytes and rows of new files and of what files grew by; which files
these are is left to the model of the writer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from lake.history import Change, FileWritten, Group, History, PastCommit
from planner.writers.model import Action, Batch, Operation, Write, WrittenFile
from planner.writers.model import Change as FileChange
from planner.writers.remedies import Remedy
from planner.writers.simulation import WriterKind, make_writer

#: bytes of a row where the history does not know any
_ROW_BYTES = 1024


@dataclass(slots=True)
class Brought:
    """What one commit brought to one partition; ``files`` are new ones, ``touched`` those that it wrote anew."""

    bytes: int = 0
    rows: int = 0
    files: int = 0
    touched: int = 0
    log_bytes: int = 0


@dataclass(slots=True)
class Ledger:
    """The file groups of a history so far, to tell new ones from those that grew."""

    sizes: dict[Group, tuple[int, int]] = field(default_factory=dict)

    def read(self, commit: PastCommit) -> dict[str, Brought]:
        """What ``commit`` brought, by partition."""
        found: dict[str, Brought] = {}
        for group in commit.took_out:
            self.sizes.pop(group, None)
        for wrote in commit.wrote:
            brought = found.setdefault(wrote.partition, Brought())
            brought.log_bytes += wrote.log_bytes
            if not wrote.bytes:
                self.sizes.setdefault(wrote.group, (0, 0))
                continue
            before = self.sizes.get(wrote.group)
            size, rows = before or (0, 0)
            brought.bytes += max(0, wrote.bytes - size)
            brought.rows += max(0, wrote.rows - rows)
            brought.files += before is None
            brought.touched += before is not None
            self.sizes[wrote.group] = wrote.bytes, wrote.rows
        return found

    def is_empty(self, partition: str) -> bool:
        """Whether nothing is left of a partition."""
        return not any(group[0] == partition for group in self.sizes)


def told_anew(history: History, kind: WriterKind, remedy: Remedy) -> History:
    """``history`` as it would have been with ``remedy``. Raises SimulationError."""
    return replace(history, commits=tuple(_Anew(history, kind, remedy).commits()))


class _Anew:
    def __init__(self, history: History, kind: WriterKind, remedy: Remedy) -> None:
        self._history, self._remedy = history, remedy
        there = [
            WrittenFile(
                name=number, partition=file.partition, bytes=file.bytes, rows=file.rows or file.bytes // _ROW_BYTES + 1
            )
            for number, file in enumerate(history.files, 1)
        ]
        self._names: dict[int, Group] = {made.name: file.group for made, file in zip(there, history.files, strict=True)}
        self._writer, _ = make_writer(kind, remedy.settings, there)
        self._known = Ledger({file.group: (file.bytes, file.rows) for file in history.files})
        self._there: dict[str, set[Group]] = {}
        for file in history.files:
            self._there.setdefault(file.partition, set()).add(file.group)
        #: how often all of a partition was taken out: the model begins anew with it
        self._lives: dict[str, int] = {}

    def commits(self) -> Iterator[PastCommit]:
        for commit in self._history.commits:
            if commit.change is not Change.WRITE:
                self._known.read(commit)
                continue
            brought = self._known.read(commit)
            gone = tuple(self._gone(commit, brought))
            wrote = tuple(
                self._file(change, commit)
                for partition, what in brought.items()
                for batch in self._batches(commit, partition, what)
                for change in self._writer.write(batch)
            )
            yield replace(commit, wrote=wrote, took_out=gone)

    def _gone(self, commit: PastCommit, brought: dict[str, Brought]) -> Iterator[Group]:
        """The files of partitions of which ``commit`` left nothing that was there before."""
        for partition in {partition for partition, _ in commit.took_out}:
            new = partition in brought and brought[partition].files
            if self._known.is_empty(partition) or (new and commit.operation.startswith("insert_overwrite")):
                yield from sorted(self._there.pop(partition, set()))
                self._lives[partition] = self._lives.get(partition, 0) + 1

    def _batches(self, commit: PastCommit, partition: str, what: Brought) -> Iterator[Batch]:
        place = f"{partition}#{self._lives[partition]}" if partition in self._lives else partition
        was = Operation.BULK_INSERT if commit.operation == Operation.BULK_INSERT else Operation.INSERT
        rows = what.rows or what.bytes // _ROW_BYTES + 1
        if what.bytes:
            operation = self._remedy.operation(was)
            tasks = None if operation is Operation.INSERT and was is not operation else self._tasks(what)
            yield Batch(writes=(Write(operation=operation, partition=place, rows=rows, bytes=what.bytes),), tasks=tasks)
        if (what.log_bytes or what.touched) and self._there.get(partition):
            write = Write(operation=Operation.UPDATE, partition=place, rows=max(1, what.touched), bytes=what.log_bytes)
            yield Batch(writes=(write,))

    def _tasks(self, what: Brought) -> int:
        return self._remedy.tasks or max(1, what.files)

    def _file(self, change: FileChange, commit: PastCommit) -> FileWritten:
        made = change.file
        partition = made.partition.partition("#")[0]
        group = self._names.setdefault(made.name, (partition, f"anew-{made.name}"))
        self._there.setdefault(partition, set()).add(group)
        written = FileWritten(partition=partition, file_id=group[1], at=commit.at)
        if change.action is Action.LOGGED:
            return replace(written, log_files=1, log_bytes=change.written_bytes)
        return replace(written, bytes=max(1, made.bytes), rows=made.rows)
