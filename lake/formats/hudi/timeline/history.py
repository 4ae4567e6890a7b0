# SPDX-License-Identifier: Apache-2.0
"""What the commits say that a table consists of: the latest slice of every file group, with names, sizes and rows.

The active timeline is read at each look, but no commit twice: what a completed file says is kept for as long as there
is room. Archived commits do not change any more, so that only their sum is kept, to which later ones are added.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from lake.formats.hudi.files.names import Group, data_file, join, log_order
from lake.formats.hudi.timeline.timeline import COMMIT_ACTIONS, Instant, Timeline, write_stats

#: files of which commits are kept in memory, of all tables together: some 100 MB, or one table that has more
_MOST_FILES_KEPT = 300_000
_Value = TypeVar("_Value")


class Wrote(NamedTuple):
    """A file that a commit wrote, as the commit says: ``bytes`` null where it does not know the size.

    ``since`` is what tells which base file a log belongs to, see ``History``; of a base file it is its instant.
    """

    group: Group
    name: str
    instant: str
    is_log: bool
    bytes: int | None
    rows: int
    since: str = ""

    @property
    def path(self) -> str:
        """The file's path relative to the table."""
        return join(self.group[0], self.name)


class Record(NamedTuple):
    """What one completed commit changed: files written, file groups taken out; null where it does not say."""

    wrote: tuple[Wrote, ...] | None
    replaced: tuple[Group, ...]


def record_of(metadata: Mapping[str, Any] | None) -> Record:
    """The part of a commit's metadata that says what the table consists of."""
    if metadata is None:
        return Record(None, ())
    wrote = []
    for _, stat in write_stats(metadata):
        file = data_file(stat.get("path") or "")
        if file is not None:
            size = (stat.get("fileSizeInBytes") or 0) + ((stat.get("logOffset") or 0) if file.is_log else 0)
            if file.is_log and not size:
                continue  # nothing was appended after all, and there is no such file
            rows = stat.get("numWrites") or 0
            wrote.append(Wrote(file.group, file.name, file.instant, file.is_log, size or None, rows))
    replaced = (metadata.get("partitionToReplaceFileIds") or {}).items()
    return Record(tuple(wrote), tuple((partition, file_id) for partition, ids in replaced for file_id in ids))


class Expected(NamedTuple):
    """The latest slice of a file group by the commits; ``logs`` by name, oldest first."""

    base: Wrote | None
    logs: Mapping[str, Wrote]

    @property
    def files(self) -> Iterator[Wrote]:
        """All files of the slice."""
        if self.base is not None:
            yield self.base
        yield from self.logs.values()


@dataclass(slots=True)
class History:
    """The sum of completed commits, in whatever order they are added.

    A log of layout 2 belongs to the base file whose instant was the newest when the log's commit completed. One of
    layout 1 names the instant of its base file, or of a compaction that was pending when it was written. ``older`` are
    commits that were added up before, such as the archived ones.
    """

    logs_name_base: bool
    older: "History | None" = None
    times: set[str] = field(default_factory=set)
    #: times of commits that are known but say nothing of their files
    silent: set[str] = field(default_factory=set)
    _bases: dict[Group, Wrote] = field(default_factory=dict)
    _logs: dict[Group, dict[str, Wrote]] = field(default_factory=dict)
    _replaced: set[Group] = field(default_factory=set)

    def add(self, time: str, completed_at: str, record: Record) -> None:
        """Apply one completed commit."""
        self.times.add(time)
        if record.wrote is None:
            self.silent.add(time)
            return
        for wrote in record.wrote:
            if not wrote.is_log:
                newest = self._bases.get(wrote.group)
                if newest is None or newest.instant <= wrote.instant:
                    self._bases[wrote.group] = wrote
                continue
            logs = self._logs.setdefault(wrote.group, {})
            before = logs.get(wrote.name)
            if before is None or (before.bytes or 0) < (wrote.bytes or 0):  # one of layout 1 may be appended to
                since = wrote.instant if self.logs_name_base else completed_at
                logs[wrote.name] = wrote._replace(since=since)
        self._replaced.update(record.replaced)

    def copy(self) -> "History":
        """The same sum, to which more can be added while others read this one."""
        return History(
            logs_name_base=self.logs_name_base,
            older=self.older,
            times=set(self.times),
            silent=set(self.silent),
            _bases=dict(self._bases),
            _logs={group: dict(logs) for group, logs in self._logs.items()},
            _replaced=set(self._replaced),
        )

    def forget(self) -> None:
        """Drop what no later commit can make live again: files of replaced groups, logs of earlier slices."""
        for group in self._replaced:
            self._bases.pop(group, None)
            self._logs.pop(group, None)
        self._logs = {group: dict(logs) for group in self._logs if (logs := self._logs_of(group, self._base(group)))}

    @property
    def files(self) -> int:
        """How many files this sum holds, replaced groups counted too: what it costs in memory."""
        return len(self._bases) + sum(map(len, self._logs.values())) + len(self._replaced)

    @property
    def oldest(self) -> str:
        """Time of the oldest commit known; what is older can't be judged."""
        return min((*self.times, *(self.older.times if self.older else ())), default="")

    def knows(self, time: str) -> bool:
        """Whether a commit of that time was added."""
        return time in self.times or (self.older is not None and time in self.older.times)

    def is_silent(self, time: str) -> bool:
        """Whether a commit of that time was added that does not say which files it wrote."""
        return time in self.silent or (self.older is not None and time in self.older.silent)

    def is_replaced(self, group: Group) -> bool:
        """Whether a commit took the file group out of the table."""
        return group in self._replaced or (self.older is not None and self.older.is_replaced(group))

    def groups(self) -> Iterator[Group]:
        """Every file group that is in the table, each once."""
        seen = set()
        for history in (self, self.older):
            if history is not None:
                for group in (*history._bases, *history._logs):
                    if group not in seen and not self.is_replaced(group):
                        seen.add(group)
                        yield group

    def expected(self, group: Group) -> Expected | None:
        """The latest slice of a file group; None where no commit wrote it, or one took it out."""
        if self.is_replaced(group):
            return None
        base = self._base(group)
        logs = self._logs_of(group, base)
        return Expected(base, logs) if base is not None or logs else None

    def _base(self, group: Group) -> Wrote | None:
        base = self._bases.get(group)
        older = self.older._bases.get(group) if self.older is not None else None
        if base is None or (older is not None and older.instant > base.instant):
            return older
        return base

    def _logs_of(self, group: Group, base: Wrote | None) -> Mapping[str, Wrote]:
        logs: Mapping[str, Wrote] = self._logs.get(group) or {}
        if self.older is not None and group in self.older._logs:
            logs = {**self.older._logs[group], **logs}
        if not logs:
            return logs
        since = base.instant if base is not None else ""
        live = [n for n, log in logs.items() if (log.since >= since if self.logs_name_base else log.since > since)]
        return {name: logs[name] for name in sorted(live, key=log_order)}


class Kept(Generic[_Value]):
    """Values with their weight, the latest used as long as all of them are light enough, one at least. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most, self._weight = most, 0
        self._values: OrderedDict[Any, tuple[_Value, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any) -> _Value | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: Any, value: _Value, weight: int) -> None:
        with self._lock:
            self._weight += weight - self._values.pop(key, (value, 0))[1]
            self._values[key] = value, weight
            while self._weight > self._most and len(self._values) > 1:
                self._weight -= self._values.popitem(last=False)[1][1]


_records: Kept[Record] = Kept(_MOST_FILES_KEPT)
_archives: Kept[tuple[Any, History]] = Kept(_MOST_FILES_KEPT)


def active_history(timeline: Timeline) -> History:
    """The completed commits of the active timeline. Transient where one of them can't be read."""
    history = History(logs_name_base=timeline.layout == 1)
    for instant, record in zip(
        timeline.commits, timeline.storage.each(_reader(timeline), timeline.commits), strict=True
    ):
        history.add(instant.time, instant.completed_at or instant.time, record)
    return history


def _reader(timeline: Timeline) -> Callable[[Instant], Record]:
    def read(instant: Instant) -> Record:
        key = timeline.storage.location, timeline.stamp(instant)
        record = _records.get(key)
        if record is None:
            record = record_of(timeline.written(instant))
            _records.put(key, record, 1 + len(record.wrote or ()) + len(record.replaced))
        return record

    return read


def with_archived(timeline: Timeline, active: History) -> History:
    """``active`` on top of the commits that left the active timeline."""
    key, stamp = timeline.storage.location, timeline.archive_stamp()
    kept = _archives.get(key)
    if kept is None or kept[0] != stamp:
        kept = stamp, _sum_of_archived(timeline, kept[1] if kept is not None else None)
        _archives.put(key, kept, 1 + kept[1].files)
    active.older = kept[1]
    return active


def _sum_of_archived(timeline: Timeline, before: History | None) -> History:
    """The sum of all archived commits. Only what came since ``before`` is read: years of them may be archived."""
    times = None
    if before is not None:
        now = {entry.time for entry in timeline.archived(COMMIT_ACTIONS, plans=False, metadata=False)}
        # What was archived stays so; where it does not, another table is in this place.
        if before.times <= now:
            times = now - before.times
    older = History(logs_name_base=timeline.layout == 1) if before is None or times is None else before.copy()
    if times is None or times:
        for entry in timeline.archived(COMMIT_ACTIONS, plans=False, times=times):
            older.add(entry.time, entry.completed_at, record_of(entry.metadata))
    older.forget()
    return older
