# SPDX-License-Identifier: Apache-2.0
"""A history as what its writers did, so that it can be done again on files that are laid out otherwise.

What lakefold did is left out: under another policy it would have done something else. What follows in the history from
its rewrites is told in terms of the files that writers made: a *strand* is a file group as a writer first made it, and
a commit that changes a rewritten file changes all strands that went into it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from lake.history import ChangeKind, FileGroupKey, FileWritten, HistoricalCommit, TableHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCreated:
    """A file group as a writer first made it; ``number`` is its place among all of the script."""

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
    """Somebody wrote the base files that hold ``strands`` anew, with so many bytes and rows more (or fewer)."""

    origins: tuple[int, ...]
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class LogsAppended:
    """A writer added logs to the files that hold ``strands``."""

    origins: tuple[int, ...]
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class FilesRemoved:
    """A writer took the files that hold ``strands`` out of the table."""

    origins: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FilesMerged:
    """Somebody else than lakefold wrote the files that hold ``strands`` into so many files."""

    origins: tuple[int, ...]
    files: int


WriterEvent = FileCreated | FilesGrown | LogsAppended | FilesRemoved | FilesMerged


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterCommit:
    """One commit of a writer; ``is_log_only`` says that it wrote no base file."""

    at_us: int
    events: tuple[WriterEvent, ...]
    is_log_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterHistory:
    """What writers did, by strands; ``partitions`` are the names of those with a file at any time, sorted."""

    since_us: int
    until_us: int
    partitions: tuple[str, ...]
    initial_files: tuple[FileCreated, ...]
    commits: tuple[WriterCommit, ...]
    origin_count: int


@dataclass(slots=True)
class _FileGroupState:
    """A file group of the history as it is at some moment, and the strands in it."""

    origins: tuple[int, ...]
    bytes: int
    rows: int


@dataclass(slots=True)
class _HistoryReader:
    """The history told up to some moment."""

    partitions: Mapping[str, int]
    files: dict[FileGroupKey, _FileGroupState] = field(default_factory=dict)
    #: file groups of the history that hold a strand
    group_counts: dict[int, int] = field(default_factory=dict)
    origin_count: int = 0

    def create_file(self, wrote: FileWritten) -> FileCreated:
        strand = FileCreated(
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
        self._add_group(wrote.group, _FileGroupState((strand.origin,), wrote.bytes, wrote.rows))
        return strand

    def events_of_write(self, commit: HistoricalCommit) -> Iterator[WriterEvent]:
        """What a commit of a writer did."""
        gone = [strand for group in commit.removed_groups for strand in self._remove_group(group)]
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
        """What a commit that only moved rows did."""
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
            strands = tuple(dict.fromkeys(taken.get(partition, ())))
            if not strands:  # nobody knows what went into them
                yield from map(self.create_file, made)
                continue
            yield FilesMerged(strands, len(made))
            for wrote in made:
                self._add_group(wrote.group, _FileGroupState(strands, wrote.bytes, wrote.rows))
        for group in commit.removed_groups:
            self._remove_group(group)

    def _add_group(self, group: FileGroupKey, file: _FileGroupState) -> None:
        self.files[group] = file
        for strand in file.origins:
            self.group_counts[strand] = self.group_counts.get(strand, 0) + 1

    def _remove_group(self, group: FileGroupKey) -> Iterator[int]:
        """Forget a file group; the strands that no other one holds."""
        file = self.files.pop(group, None)
        free = []
        for strand in file.origins if file is not None else ():
            self.group_counts[strand] -= 1
            if not self.group_counts[strand]:
                free.append(strand)
        return iter(free)


def writer_history(history: TableHistory) -> WriterHistory:
    """What writers did in ``history``."""
    names = sorted(_partitions(history))
    writer = _HistoryReader({name: place for place, name in enumerate(names)})
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
    """``at`` as microseconds since 1970."""
    return round(at.timestamp() * 1_000_000)


def from_microseconds(us: int) -> datetime:
    """Microseconds since 1970 as a time."""
    return datetime.fromtimestamp(us / 1_000_000, UTC)
