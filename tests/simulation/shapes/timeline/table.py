# SPDX-License-Identifier: Apache-2.0
"""A table in memory with the hazards of a Hudi table: files, a timeline, an index of files, an archive.

The live files are those that a reader of Hudi sees: the newest base file of each group that a completed instant wrote,
with the logs after it, without the groups that a completed replacement of the *active* timeline replaced. So if a
replacement is archived while its inputs are on disk, their rows come back, and if a base file is lost, an older one
comes back. If the table is ``indexed``, readers list the files by the index, otherwise by the disk. Each section that
completes an instant reads the index and writes it back.

The times of instants are by the clock of the process, and determine their order: a log that is older than its base file
has no effect, and the index ignores instants that complete before its own last compaction.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType

from lake.errors import Transient
from lake.plan import SupersededVersion
from simulation.clock import Process, Task
from simulation.table import Attempt, File, Rows, Slice, Table

_LOCK_SECONDS = 12.0
_LOOK_AGAIN_SECONDS = 0.5
#: a holder without a renewal for this long has lost the lock
_LOCK_EXPIRES_SECONDS = 10.0
#: the allowed difference of two clocks: the next time is taken this much later
SKEW_SECONDS = 1.0
#: times are in hundredths of a second; the offset keeps them positive for a host that is ten hours behind
FIRST_TIME = 5_000_000
_NOTHING: Mapping[int, int | None] = MappingProxyType({})
_instant_of = attrgetter("instant")


@dataclass(slots=True, eq=False, kw_only=True)
class Instant(Attempt):
    """One entry of the timeline. ``replaces`` are the groups of a replacement, ``earliest`` is a clean's record for the
    archiver: replaced files may exist from there on ('' says that none do). ``retained_from`` is its word for readers:
    from there on every state of the table can be read. ``before`` is the time that a restore goes back to."""

    action: str
    replaces: tuple[tuple[str, str], ...] = ()
    inputs: tuple[tuple[str, tuple[str, ...]], ...] = ()
    outputs: tuple[File, ...] = ()
    victims: tuple[str, ...] = ()
    earliest: str = ""
    retained_from: str = ""
    before: str = ""
    undoes: tuple[str, ...] = ()
    completed_at: float = 0.0
    is_lakefolds: bool = False


@dataclass(slots=True)
class TableLock:
    """A lock that excludes threads of any process, is freed when its holder dies, and expires while it is stopped."""

    holder: Process | None = None
    #: the thread of that process which took it
    taken_by: Task | None = None

    def is_free(self, now: float) -> bool:
        """Return True if another process can get the lock."""
        holder = self.holder
        if holder is None or holder.dead:
            return True
        return holder.asleep_until > now >= holder.asleep_since + _LOCK_EXPIRES_SECONDS

    def release(self, task: Task | None) -> None:
        """Give the lock back if ``task`` still has it."""
        if self.taken_by is task:
            self.holder = self.taken_by = None


@dataclass(slots=True, eq=False)
class TimelineTable(Table):
    """One such table."""

    shape = "timeline"

    timeline: dict[str, Instant] = field(default_factory=dict)
    #: the pending instants, and the completed ones, archived or not
    begun: dict[str, Instant] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    archived: dict[str, Instant] = field(default_factory=dict)
    indexed: bool = field(init=False)
    index: frozenset[str] = frozenset()
    #: the time of the index's last compaction
    compacted_at: int = 0
    #: the time since which every state can be read, by the cleans
    retained_from: str = ""
    #: the slice of each group by the commits; None once it was replaced
    said: dict[str, tuple[str, tuple[str, ...]] | None] = field(default_factory=dict)
    ours: TableLock = field(default_factory=TableLock)
    writers: TableLock = field(default_factory=TableLock)
    #: the completed instants in order, with the ledger's rows after each
    history: list[tuple[Instant, Mapping[int, int | None]]] = field(default_factory=list)
    last_time: int = FIRST_TIME
    #: the lakefold process that has made its last check and changes the table now
    changing: Process | None = None
    #: instants that lakefold published: a record of each stays in the table
    noted: set[str] = field(default_factory=set)
    #: instants that restores undid
    undone: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        self.indexed = self.setup.indexed

    # Reading.

    def view(self) -> dict[str, Slice]:
        """See ``Table``."""
        return self._view(self.done, self.timeline.values())

    def view_at(self, time: str) -> dict[str, Slice]:
        """Return the rows that readers see as of the instant ``time``."""
        done = {one for one in self.done if one <= time}
        return self._view(done, [instant for instant in self.timeline.values() if instant.time <= time])

    def ledger_at(self, time: str) -> dict[int, int]:
        """Return the ledger's rows after the writers' commits up to the instant ``time``."""
        rows: dict[int, int] = {}
        for instant, changed in self.history:
            for key, value in changed.items() if instant.time <= time else ():
                rows.pop(key, None)
                if value is not None:
                    rows[key] = value
        return rows

    def _view(self, done: Collection[str], timeline: Iterable[Instant]) -> dict[str, Slice]:
        replaced = {
            group for instant in timeline if instant.replaces and instant.completed for _, group in instant.replaces
        }
        files = self.files
        listed = [files[path] for path in self.index if path in files] if self.indexed else files.values()
        bases: dict[str, File] = {}
        logs: list[File] = []
        for file in listed:
            group = file.group
            if file.instant in done and group not in replaced:
                if file.log:
                    logs.append(file)
                elif group not in bases or bases[group].instant < file.instant:
                    bases[group] = file
        live = {group: self.alone(base) for group, base in bases.items()}
        after: dict[str, list[File]] = {}
        for log in sorted(logs, key=_instant_of) if logs else ():
            if log.group in bases and log.instant > bases[log.group].instant:
                after.setdefault(log.group, []).append(log)
        for group, theirs in after.items():
            live[group] = Slice(bases[group], tuple(theirs))
        return live

    # Changes.

    def clock(self) -> int:
        """Return the time by the clock of the current process's host; outside of processes, by the storage's clock."""
        current = self.scheduler.current
        return self.clock_of_storage(current.process.skew if current is not None else 0.0)

    def clock_of_storage(self, skew: float = 0.0) -> int:
        """Return the time of a file that is written now, or the time of a host that is ``skew`` seconds ahead."""
        return FIRST_TIME + int((self.scheduler.now + skew) * 100)

    def newest_time(self) -> int:
        """Return the latest time of an instant, or of the index."""
        return max(self.last_time, self.compacted_at)

    def new_time(self) -> str:
        """Return the time of a new instant; call it under a lock. Other processes get later times if clocks agree."""
        number = self.clock()
        if self.scheduler.current is not None:
            self.scheduler.sleep(SKEW_SECONDS)
        return self.free_time(number)

    def free_time(self, number: int) -> str:
        """Return the first unused time from ``number`` on."""
        while self.find(self.time_of(number)) is not None:
            number += 1
        self.last_time = max(self.last_time, number)
        return self.time_of(number)

    def timeline_now(self) -> object:
        """Return a value that identifies the present state of timeline and properties."""
        return self.indexed, tuple((i.time, i.action, i.completed) for i in self.timeline.values())

    def new_instant(self, action: str, owner: Process | None, time: str = "", **known: object) -> Instant:
        """Publish an instant, with the next time unless one is given; call it under a lock."""
        time = time or self.new_time()
        instant = Instant(time=time, action=action, owner=owner, **known)  # type: ignore[arg-type]
        self.timeline[time] = self.begun[time] = instant
        self.version += 1
        return instant

    def time_of(self, number: int) -> str:
        """The time of an instant: text sorts as numbers do."""
        return f"{number:08d}"

    def write(self, partition: str, group: str, instant: str, rows: Rows, *, log: bool = False) -> File:
        """Write a new file, which is invisible until its instant completes."""
        path = f"{partition}/{group}_{instant}{'.log' if log else ''}"
        size = len(rows)
        file = File(path, partition, group, instant, dict(rows), log, self.scheduler.now, size, size)
        return self.put(file)

    def read_index(self) -> frozenset[str]:
        """Return the index from which a section begins that will write it back; other sections continue meanwhile."""
        found = self.index
        if self.indexed:
            self.scheduler.sleep(0.7)
        return found

    def complete(
        self, instant: Instant, index: frozenset[str] | None, changed: Mapping[int, int | None] = _NOTHING
    ) -> None:
        """Make ``instant`` part of the table.

        ``index`` is the result of ``read_index`` in the same section; None for a process that knows of no index.
        """
        instant.completed, instant.completed_at = True, self.scheduler.now
        self.begun.pop(instant.time, None)
        self.done.add(instant.time)
        self.history.append((instant, changed))
        self._count(instant, changed)
        if instant.action == "clean":
            self.retained_from = max(self.retained_from, instant.retained_from)
        if index is not None and self.clock() >= self.compacted_at and self.indexed:
            self.index = (index | {file.path for file in instant.outputs}) - set(instant.victims)
        self.touch()

    def book_what_is_whole_again(self, instant: Instant) -> None:
        """Record in the ledger that ``instant`` wrote the rows that were read before their file was damaged."""
        lost = {key for _, group in instant.replaces for key in self.unreadable.get(group, ()) if group in self.damaged}
        for file in instant.outputs if lost else ():
            for key, value in file.rows.items():
                if key in lost:
                    self.book(key, value)

    def switch_index(self) -> None:
        """Delete the index, or build it from storage; call it under a lock."""
        self.indexed = not self.indexed
        self.index = frozenset(f.path for f in self.files.values() if f.instant in self.done and self.indexed)
        self.compacted_at = self.clock()
        self.touch()

    def _count(self, instant: Instant, changed: Mapping[int, int | None]) -> None:
        for _, group in instant.replaces:
            self.said[group] = None
        for file in instant.outputs:
            base, logs = self.said.get(file.group) or ("", ())
            self.said[file.group] = (base, (*logs, file.path)) if file.log else (file.path, ())
        for key, value in changed.items():
            self.book(key, value)

    def undo(self, times: Collection[str]) -> list[Instant]:
        """Undo these instants, none of which may be a completed clean. Returns those that existed."""
        undone = [instant for instant in self.timeline.values() if instant.time in times]
        self.undone |= {instant.time for instant in undone}
        for instant in undone:
            self.drop_instant(instant.time)
            self.saved.pop(instant.time, None)
        self.history = [(instant, changed) for instant, changed in self.history if instant.time not in times]
        self.index &= self.files.keys()
        self.ledger, self.ledger_sum, self.said = {}, 0, {}
        for instant, changed in self.history:
            self._count(instant, changed)
        return undone

    def drop_instant(self, time: str) -> None:
        """Remove a pending instant, its files first."""
        for path in [file.path for file in self.files.values() if file.instant == time]:
            self.remove(path)
        self.timeline.pop(time, None)
        self.begun.pop(time, None)
        self.done.discard(time)
        self.version += 1

    def files_of_nobody(self) -> list[File]:
        """Return the files written under a lakefold instant after its withdrawal, or for no commit."""
        found = []
        for file in self.files.values():
            if file.instant in self.noted:
                instant = self.find(file.instant)
                if instant is None or (instant.completed and file not in instant.outputs):
                    found.append(file)
        return found

    def pending(self) -> list[Instant]:
        """Return the begun instants without a completion, oldest first."""
        return list(self.begun.values())

    def pending_groups(self, without: str = "") -> dict[str, Instant]:
        """Return group → the pending rewrite that names it."""
        return {
            group: instant
            for instant in self.begun.values()
            if instant.time != without
            for _, group in instant.replaces
        }

    def replaced_and_saved(self) -> list[str]:
        """Return replacements that must not be archived, since a savepoint keeps the replaced files."""
        groups = {self.files[path].group for path in self.saved_paths() if path in self.files}
        return [i.time for i in self.timeline.values() if any(group in groups for _, group in i.replaces)]

    def find(self, time: str) -> Instant | None:
        """Return an instant, archived or not."""
        return self.timeline.get(time) or self.archived.get(time)

    @contextmanager
    def locked(self, *locks: TableLock) -> Iterator[None]:
        """Hold ``locks`` inside the block. Raises Transient if another process has one of them for long."""
        assert self.scheduler.current is not None
        process, until = self.scheduler.current.process, self.scheduler.now + _LOCK_SECONDS
        taken: list[TableLock] = []
        try:
            for lock in locks:
                while not lock.is_free(self.scheduler.now):
                    if self.scheduler.now >= until:
                        assert lock.holder is not None
                        raise Transient(f"the lock of {self.name} is held by {lock.holder.name}")
                    self.scheduler.sleep(_LOOK_AGAIN_SECONDS)
                lock.holder, lock.taken_by = process, self.scheduler.current
                taken.append(lock)
            yield
        finally:
            for lock in taken:
                lock.release(self.scheduler.current)

    @contextmanager
    def about_to_change(self) -> Iterator[None]:
        """Prevent announcements by the owner inside the block: owners take no lock."""
        assert self.scheduler.current is not None
        self.changing = self.scheduler.current.process
        try:
            yield
        finally:
            self.changing = None

    @property
    def is_changing(self) -> bool:
        """Return True if lakefold has made its last check and is about to change the table."""
        return self.changing is not None and not self.changing.dead

    def confirm(self, *locks: TableLock) -> None:
        """Raise Transient if this thread has lost one of ``locks``, for example after a long suspension."""
        if any(lock.taken_by is not self.scheduler.current for lock in locks):
            raise Transient(f"the lock of {self.name} expired")

    def announced(self, *actions: str) -> list[Instant]:
        """Return the owner's pending ones among these actions."""
        return [instant for instant in self.begun.values() if instant.action in actions]

    # Queries.

    def holds_damage(self, group: str) -> bool:
        """See ``Table``."""
        piece = self.live().get(group)
        if piece is None or piece.names != self.said.get(group) or piece.base.bytes != piece.base.written:
            return True
        return any(log.bytes != log.written for log in piece.logs)

    def left_behind(self) -> list[File]:
        """See ``Table``. The restore deletes the files of instants that it undid."""
        return [
            file
            for file in self.files.values()
            if self.find(file.instant) is None and (file.instant in self.noted or file.instant not in self.undone)
        ]

    def is_undone(self, version: SupersededVersion) -> bool:
        """See ``Table``."""
        return self.find(version.instant) is None

    def is_live_again(self, path: str) -> bool:
        """See ``Table``, by group."""
        file = self.files.get(path)
        return file is not None and file.group in self.live()
