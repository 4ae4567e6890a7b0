# SPDX-License-Identifier: Apache-2.0
"""The events of a history's writers, for replay on files in another layout.

lakefold's rewrites are left out, since another policy would have made other rewrites. All events refer to *origins*: an
origin is a file group as a writer first created it. A commit that changes a rewritten file changes all origins that
went into this file.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from lake.history import ChangeKind, FileGroupKey, FileWritten, HistoricalCommit, TableHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCreated:
    """A file group as a writer first created it; ``origin`` is its number among all origins of the history."""

    origin: int
    partition: int
    bytes: int
    rows: int
    log_files: int
    log_bytes: int
    at_us: int
    oldest_log_us: int | None = None


@dataclass(frozen=True, slots=True)
class FilesGrown:
    """A program rewrote the base files that hold ``origins``, which grew by ``bytes`` and ``rows`` (or shrank)."""

    origins: tuple[int, ...]
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class LogsAppended:
    """A writer added logs to the files that hold ``origins``."""

    origins: tuple[int, ...]
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class FilesRemoved:
    """A writer removed the files that hold ``origins`` from the table."""

    origins: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FilesMerged:
    """A program other than lakefold rewrote the files that hold ``origins`` into ``files`` files."""

    origins: tuple[int, ...]
    files: int


WriterEvent = FileCreated | FilesGrown | LogsAppended | FilesRemoved | FilesMerged


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterCommit:
    """One commit of a writer; ``is_log_only`` is True if it wrote logs and no base file."""

    at_us: int
    events: tuple[WriterEvent, ...]
    is_log_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterHistory:
    """The events of writers, by origins; ``partitions`` are the sorted names of all partitions that ever had a file."""

    since_us: int
    until_us: int
    partitions: tuple[str, ...]
    initial_files: tuple[FileCreated, ...]
    commits: tuple[WriterCommit, ...]
    origin_count: int


@dataclass(slots=True)
class _FileGroupState:
    """A file group of the history at some moment, and the origins in it."""

    origins: tuple[int, ...]
    bytes: int
    rows: int


@dataclass(slots=True)
class _HistoryReader:
    """The state of the history up to some moment."""

    partitions: Mapping[str, int]
    files: dict[FileGroupKey, _FileGroupState] = field(default_factory=dict)
    #: the number of file groups that hold each origin
    group_counts: dict[int, int] = field(default_factory=dict)
    origin_count: int = 0

    def create_file(self, wrote: FileWritten) -> FileCreated:
        created = FileCreated(
            origin=self.origin_count,
            partition=self.partitions[wrote.partition],
            bytes=wrote.bytes,
            rows=wrote.rows,
            log_files=wrote.log_files,
            log_bytes=wrote.log_bytes,
            at_us=to_microseconds(wrote.at),
            oldest_log_us=_oldest_log_us(wrote),
        )
        self.origin_count += 1
        self._add_group(wrote.group, _FileGroupState((created.origin,), wrote.bytes, wrote.rows))
        return created

    def events_of_write(self, commit: HistoricalCommit) -> Iterator[WriterEvent]:
        """Yield the events of a writer's commit."""
        gone = [origin for group in commit.removed_groups for origin in self._remove_group(group)]
        if gone:
            yield FilesRemoved(tuple(gone))
        for wrote in commit.written:
            there = self.files.get(wrote.group)
            if there is None:
                yield self.create_file(wrote)
                continue
            if wrote.bytes:
                yield FilesGrown(there.origins, wrote.bytes - there.bytes, wrote.rows - there.rows)
                there.bytes, there.rows = wrote.bytes, wrote.rows
            if wrote.log_files:
                yield LogsAppended(there.origins, wrote.log_files, wrote.log_bytes)

    def events_of_rewrite(self, commit: HistoricalCommit) -> Iterator[WriterEvent]:
        """Yield the events of a commit that only rewrote rows."""
        outputs: dict[str, list[FileWritten]] = {}
        for wrote in commit.written:
            there = self.files.get(wrote.group)
            if there is None:
                outputs.setdefault(wrote.partition, []).append(wrote)
                continue
            yield FilesGrown(there.origins, wrote.bytes - there.bytes, wrote.rows - there.rows)
            there.bytes, there.rows = wrote.bytes, wrote.rows
        taken: dict[str, list[int]] = {}
        for group in commit.removed_groups:
            there = self.files.get(group)
            if there is not None:
                taken.setdefault(group[0], []).extend(there.origins)
        for partition, made in outputs.items():
            origins = tuple(dict.fromkeys(taken.get(partition, ())))
            if not origins:  # the inputs are unknown
                yield from map(self.create_file, made)
                continue
            yield FilesMerged(origins, len(made))
            for wrote in made:
                self._add_group(wrote.group, _FileGroupState(origins, wrote.bytes, wrote.rows))
        for group in commit.removed_groups:
            self._remove_group(group)

    def _add_group(self, group: FileGroupKey, file: _FileGroupState) -> None:
        self.files[group] = file
        for origin in file.origins:
            self.group_counts[origin] = self.group_counts.get(origin, 0) + 1

    def _remove_group(self, group: FileGroupKey) -> Iterator[int]:
        """Remove a file group and return the origins that no other group holds."""
        file = self.files.pop(group, None)
        free = []
        for origin in file.origins if file is not None else ():
            self.group_counts[origin] -= 1
            if not self.group_counts[origin]:
                free.append(origin)
        return iter(free)


def writer_history(history: TableHistory) -> WriterHistory:
    """Return the events of the writers in ``history``."""
    names = sorted(_partitions(history))
    writer = _HistoryReader({name: index for index, name in enumerate(names)})
    there = tuple(map(writer.create_file, history.files))
    acts = []
    for commit in history.commits:
        if commit.change is ChangeKind.REWRITE:
            steps = tuple(writer.events_of_rewrite(commit))
            if commit.plan_id is not None:
                steps = tuple(step for step in steps if isinstance(step, FileCreated))
        else:
            steps = tuple(writer.events_of_write(commit))
        if steps:
            only_logs = bool(commit.written) and not any(wrote.bytes for wrote in commit.written)
            acts.append(WriterCommit(at_us=to_microseconds(commit.at), events=steps, is_log_only=only_logs))
    return WriterHistory(
        since_us=to_microseconds(history.since),
        until_us=to_microseconds(history.until),
        partitions=tuple(names),
        initial_files=there,
        commits=tuple(acts),
        origin_count=writer.origin_count,
    )


def _partitions(history: TableHistory) -> Iterable[str]:
    found = {file.partition for file in history.files}
    return found.union(wrote.partition for commit in history.commits for wrote in commit.written)


def _oldest_log_us(wrote: FileWritten) -> int | None:
    if not wrote.log_files:
        return None
    return to_microseconds(wrote.oldest_log_at or wrote.at)


def to_microseconds(at: datetime) -> int:
    """Return ``at`` as microseconds since 1970."""
    return round(at.timestamp() * 1_000_000)


def from_microseconds(us: int) -> datetime:
    """Return microseconds since 1970 as a time in UTC."""
    return datetime.fromtimestamp(us / 1_000_000, UTC)
