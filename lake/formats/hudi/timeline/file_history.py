# SPDX-License-Identifier: Apache-2.0
"""The content of a table by its commits: the latest slice of every file group, with names, sizes and rows.

Commits of the active timeline are cached one by one: while the cache has room, each is read once. Archived commits
never change: only their sum is cached, and newly archived commits are added to it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lake.formats.hudi.files.cache import WeightedCache
from lake.formats.hudi.files.names import FileGroupId, log_sort_key, parse_file_name, relative_path
from lake.formats.hudi.timeline.timeline import COMMIT_ACTIONS, Instant, Timeline, write_stats

#: capacity of each cache in files, over all tables: some 100 MB; a larger value is cached too, but alone
_MAX_CACHED_FILES = 300_000


class CommittedFile(NamedTuple):
    """A file that a commit wrote, as the commit records it; ``bytes`` is None if the size is not recorded.

    ``since`` decides which base file a log belongs to, see ``FileHistory``; it is '' for base files.
    """

    group_id: FileGroupId
    name: str
    instant: str
    is_log: bool
    bytes: int | None
    rows: int
    since: str = ""

    @property
    def path(self) -> str:
        """Path of the file relative to the table."""
        return relative_path(self.group_id[0], self.name)


class CommitChanges(NamedTuple):
    """The changes of one completed commit: files written, file groups replaced.

    ``written_files`` is None if the commit does not record its files.
    """

    written_files: tuple[CommittedFile, ...] | None
    replaced_groups: tuple[FileGroupId, ...]


def read_commit_changes(metadata: Mapping[str, Any] | None) -> CommitChanges:
    """Extract the files written and the file groups replaced from a commit's metadata."""
    if metadata is None:
        return CommitChanges(None, ())
    wrote = []
    for _, stat in write_stats(metadata):
        file = parse_file_name(stat.get("path") or "")
        if file is not None:
            size = (stat.get("fileSizeInBytes") or 0) + ((stat.get("logOffset") or 0) if file.is_log else 0)
            if file.is_log and not size:
                continue  # nothing was appended, and the file does not exist
            rows = stat.get("numWrites") or 0
            wrote.append(CommittedFile(file.group_id, file.name, file.instant, file.is_log, size or None, rows))
    replaced = (metadata.get("partitionToReplaceFileIds") or {}).items()
    return CommitChanges(tuple(wrote), tuple((partition, file_id) for partition, ids in replaced for file_id in ids))


class ExpectedSlice(NamedTuple):
    """The latest slice of a file group according to the commits; ``logs`` by name, oldest first."""

    base: CommittedFile | None
    logs: Mapping[str, CommittedFile]

    @property
    def files(self) -> Iterator[CommittedFile]:
        """All files of the slice."""
        if self.base is not None:
            yield self.base
        yield from self.logs.values()


@dataclass(slots=True)
class FileHistory:
    """The sum of completed commits. Commits may be added in any order.

    A log of layout 2 belongs to the base file whose instant was the newest when the log's commit completed. A log of
    layout 1 names the instant of its base file, or of a compaction that was pending when the log was written
    (``has_logs_named_by_base``). ``archived`` is the sum of the archived commits, which complements this sum.
    """

    has_logs_named_by_base: bool
    archived: "FileHistory | None" = None
    commit_times: set[str] = field(default_factory=set)
    #: times of commits that do not record their files
    commits_without_files: set[str] = field(default_factory=set)
    _bases: dict[FileGroupId, CommittedFile] = field(default_factory=dict)
    _logs: dict[FileGroupId, dict[str, CommittedFile]] = field(default_factory=dict)
    _replaced: set[FileGroupId] = field(default_factory=set)

    def add_commit(self, time: str, completed_at: str, record: CommitChanges) -> None:
        """Apply one completed commit."""
        self.commit_times.add(time)
        if record.written_files is None:
            self.commits_without_files.add(time)
            return
        for wrote in record.written_files:
            if not wrote.is_log:
                newest = self._bases.get(wrote.group_id)
                if newest is None or newest.instant <= wrote.instant:
                    self._bases[wrote.group_id] = wrote
                continue
            logs = self._logs.setdefault(wrote.group_id, {})
            before = logs.get(wrote.name)
            if before is None or (before.bytes or 0) < (wrote.bytes or 0):  # logs of layout 1 may be appended to
                since = wrote.instant if self.has_logs_named_by_base else completed_at
                logs[wrote.name] = wrote._replace(since=since)
        self._replaced.update(record.replaced_groups)

    def copy(self) -> "FileHistory":
        """Return a copy, to which commits can be added while other threads read the original."""
        return FileHistory(
            has_logs_named_by_base=self.has_logs_named_by_base,
            archived=self.archived,
            commit_times=set(self.commit_times),
            commits_without_files=set(self.commits_without_files),
            _bases=dict(self._bases),
            _logs={group: dict(logs) for group, logs in self._logs.items()},
            _replaced=set(self._replaced),
        )

    def drop_replaced(self) -> None:
        """Drop files that no later commit can make live again: files of replaced groups and logs of earlier slices."""
        for group in self._replaced:
            self._bases.pop(group, None)
            self._logs.pop(group, None)
        self._logs = {
            group: dict(logs) for group in self._logs if (logs := self._live_logs(group, self._latest_base(group)))
        }

    @property
    def file_count(self) -> int:
        """The size in memory: the number of files and replaced groups."""
        return len(self._bases) + sum(map(len, self._logs.values())) + len(self._replaced)

    @property
    def oldest_commit_time(self) -> str:
        """Time of the oldest known commit; files of older commits can't be checked."""
        return min((*self.commit_times, *(self.archived.commit_times if self.archived else ())), default="")

    def has_commit(self, time: str) -> bool:
        """True if a commit of that time was added."""
        return time in self.commit_times or (self.archived is not None and time in self.archived.commit_times)

    def is_commit_without_files(self, time: str) -> bool:
        """True if the added commit of that time does not record its files."""
        return time in self.commits_without_files or (
            self.archived is not None and time in self.archived.commits_without_files
        )

    def is_replaced(self, group: FileGroupId) -> bool:
        """True if a commit replaced the file group."""
        return group in self._replaced or (self.archived is not None and self.archived.is_replaced(group))

    def live_groups(self) -> Iterator[FileGroupId]:
        """Yield every file group of the table once."""
        seen = set()
        for history in (self, self.archived):
            if history is not None:
                for group in (*history._bases, *history._logs):
                    if group not in seen and not self.is_replaced(group):
                        seen.add(group)
                        yield group

    def expected_slice(self, group: FileGroupId) -> ExpectedSlice | None:
        """Return the latest slice of a file group; None if no commit wrote the group or a commit replaced it."""
        if self.is_replaced(group):
            return None
        base = self._latest_base(group)
        logs = self._live_logs(group, base)
        return ExpectedSlice(base, logs) if base is not None or logs else None

    def _latest_base(self, group: FileGroupId) -> CommittedFile | None:
        base = self._bases.get(group)
        older = self.archived._bases.get(group) if self.archived is not None else None
        if base is None or (older is not None and older.instant > base.instant):
            return older
        return base

    def _live_logs(self, group: FileGroupId, base: CommittedFile | None) -> Mapping[str, CommittedFile]:
        logs: Mapping[str, CommittedFile] = self._logs.get(group) or {}
        if self.archived is not None and group in self.archived._logs:
            logs = {**self.archived._logs[group], **logs}
        if not logs:
            return logs
        since = base.instant if base is not None else ""
        live = [
            n for n, log in logs.items() if (log.since >= since if self.has_logs_named_by_base else log.since > since)
        ]
        return {name: logs[name] for name in sorted(live, key=log_sort_key)}


_changes_cache: WeightedCache[CommitChanges] = WeightedCache(_MAX_CACHED_FILES)
_archived_cache: WeightedCache[tuple[Any, FileHistory]] = WeightedCache(_MAX_CACHED_FILES)


def active_history(timeline: Timeline) -> FileHistory:
    """Return the sum of the active timeline's completed commits. Raises Transient if one of them can't be read."""
    history = FileHistory(has_logs_named_by_base=timeline.layout == 1)
    for instant, record in zip(
        timeline.commits, timeline.storage.map_parallel(_cached_reader(timeline), timeline.commits), strict=True
    ):
        history.add_commit(instant.time, instant.completed_at or instant.time, record)
    return history


def read_commits_after(timeline: Timeline, time: str) -> Iterator[tuple[Instant, CommitChanges]]:
    """Yield the completed commits of the active timeline that were requested after ``time``, with their changes."""
    read = _cached_reader(timeline)
    for commit in timeline.commits:
        if commit.time > time:
            yield commit, read(commit)


def _cached_reader(timeline: Timeline) -> Callable[[Instant], CommitChanges]:
    def read(instant: Instant) -> CommitChanges:
        key = timeline.storage.location, timeline.fingerprint(instant)
        record = _changes_cache.get(key)
        if record is None:
            record = read_commit_changes(timeline.commit_metadata(instant))
            _changes_cache.put(key, record, 1 + len(record.written_files or ()) + len(record.replaced_groups))
        return record

    return read


def add_archived(timeline: Timeline, active: FileHistory) -> FileHistory:
    """Set ``active.archived`` to the sum of the archived commits and return ``active``."""
    key, stamp = timeline.storage.location, timeline.archive_fingerprint()
    kept = _archived_cache.get(key)
    if kept is None or kept[0] != stamp:
        kept = stamp, _read_archived_history(timeline, kept[1] if kept is not None else None)
        _archived_cache.put(key, kept, 1 + kept[1].file_count)
    active.archived = kept[1]
    return active


def _read_archived_history(timeline: Timeline, previous: FileHistory | None) -> FileHistory:
    """Return the sum of all archived commits. Only commits missing from ``previous`` are read: archives span years."""
    times = None
    if previous is not None:
        now = {entry.time for entry in timeline.archived(COMMIT_ACTIONS, plans=False, metadata=False)}
        # Archived commits stay archived. If some are missing, another table is at this location now.
        if previous.commit_times <= now:
            times = now - previous.commit_times
    older = (
        FileHistory(has_logs_named_by_base=timeline.layout == 1)
        if previous is None or times is None
        else previous.copy()
    )
    if times is None or times:
        for entry in timeline.archived(COMMIT_ACTIONS, plans=False, times=times):
            older.add_commit(entry.time, entry.completed_at, read_commit_changes(entry.metadata))
    older.drop_replaced()
    return older
