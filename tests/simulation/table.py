# SPDX-License-Identifier: Apache-2.0
"""A table in memory that goes wrong in the ways a Hudi table does: files, a timeline, an index of files, an archive.

What is live follows from three things only, as for a reader of Hudi: the newest base file of each group that a
completed instant wrote, with the logs after it; less the groups that a completed replacement of the *active* timeline
replaced. So a replacement that is archived while its inputs are on disk brings their rows back, and a base file that
is lost brings an older one back. With ``indexed`` readers list by the index, which each section that completes
something reads and writes back, and otherwise by the disk.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType

from lake.errors import Transient
from lake.model import Concurrency, OnConflict, TableRef
from simulation.clock import Process, Scheduler

Rows = Mapping[int, int | None]
"""Key → value; None in a log deletes the key."""

_LOCK_SECONDS = 12.0
_LOOK_AGAIN_SECONDS = 0.5
_NOTHING: Mapping[int, int | None] = MappingProxyType({})
_MASK = (1 << 64) - 1


def row_sum(key: int, value: int) -> int:
    """A number for a row; sums of them tell multisets of rows apart."""
    mixed = (key * 0x9E3779B97F4A7C15 ^ value * 0xC2B2AE3D27D4EB4F) & _MASK
    return (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 & _MASK


def sum_of(rows: Rows) -> int:
    """The sum of all rows."""
    total = 0
    for key, value in rows.items():
        if value is not None:  # ``row_sum`` spelled out: this is where most of its calls would come from
            mixed = (key * 0x9E3779B97F4A7C15 ^ value * 0xC2B2AE3D27D4EB4F) & _MASK
            total += (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 & _MASK
    return total


_instant_of = attrgetter("instant")


@dataclass(slots=True, eq=False)
class File:
    """A base or log file; ``bytes`` is what is on disk, ``written`` what its writer's commit says."""

    path: str
    partition: str
    group: str
    instant: str
    rows: Rows
    log: bool
    at: float
    bytes: int
    written: int


class Slice:
    """What a reader merges: a base file and the logs after it. ``names`` are their paths."""

    __slots__ = ("base", "logs", "names")

    def __init__(self, base: File, logs: tuple[File, ...]) -> None:
        self.base, self.logs = base, logs
        self.names = base.path, tuple([log.path for log in logs])

    def rows(self) -> dict[int, int]:
        """Base and logs merged."""
        merged = dict(self.base.rows)
        for log in self.logs:
            merged.update(log.rows)
        return {key: value for key, value in merged.items() if value is not None}


@dataclass(slots=True, eq=False)
class Instant:
    """One entry of the timeline. ``replaces`` are the groups of a replacement, ``earliest`` is a clean's word for the
    archiver: replaced files may exist from there on ('' says that none do)."""

    time: str
    action: str
    owner: Process | None
    completed: bool = False
    plan_id: str | None = None
    epoch: int = 0
    replaces: tuple[tuple[str, str], ...] = ()
    inputs: tuple[tuple[str, tuple[str, ...]], ...] = ()
    outputs: tuple[File, ...] = ()
    victims: tuple[str, ...] = ()
    earliest: str = ""


@dataclass(slots=True)
class TableLock:
    """A lock that excludes threads of any process and is freed when its holder dies."""

    holder: Process | None = None


@dataclass(slots=True, eq=False)
class Table:
    """One table. ``ledger`` is what its writers' completed commits add up to."""

    name: str
    scheduler: Scheduler
    merge_on_read: bool
    indexed: bool
    on_conflict: OnConflict
    concurrency: Concurrency
    changed: Callable[["Table"], None]
    timeline: dict[str, Instant] = field(default_factory=dict)
    #: what of the timeline did not complete, and what completed, be it archived since
    begun: dict[str, Instant] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    archived: dict[str, Instant] = field(default_factory=dict)
    files: dict[str, File] = field(default_factory=dict)
    index: frozenset[str] = frozenset()
    ledger: dict[int, int] = field(default_factory=dict)
    ledger_sum: int = 0
    #: per group what the commits say is its slice; None once it was replaced
    said: dict[str, tuple[str, tuple[str, ...]] | None] = field(default_factory=dict)
    #: groups with a lost or cut file, since when
    damaged: dict[str, float] = field(default_factory=dict)
    #: savepoint → the paths it keeps
    saved: dict[str, frozenset[str]] = field(default_factory=dict)
    ours: TableLock = field(default_factory=TableLock)
    writers: TableLock = field(default_factory=TableLock)
    #: what completed, in that order, and what it made of the ledger
    history: list[tuple[Instant, Mapping[int, int | None]]] = field(default_factory=list)
    instants: int = 0
    #: instants that lakefold published: a note on each stays in the table
    noted: set[str] = field(default_factory=set)
    #: counts what a scan could see change
    version: int = 0
    _live: dict[str, Slice] | None = None
    _sums: dict[tuple[str, tuple[str, ...]], int] = field(default_factory=dict)
    _bare: dict[str, Slice] = field(default_factory=dict)
    _ref: TableRef | None = None

    @property
    def ref(self) -> TableRef:
        """The table as it is registered today."""
        if self._ref is None or self._ref.concurrency is not self.concurrency:
            self._ref = TableRef(
                name=self.name, format="model", location=f"/{self.name}", concurrency=self.concurrency,
                on_conflict=self.on_conflict,
            )  # fmt: skip
        return self._ref

    # What readers see.

    def live(self) -> dict[str, Slice]:
        """Group → its latest slice."""
        if self._live is None:
            self._live = self._view()
        return self._live

    def _view(self) -> dict[str, Slice]:
        replaced = {
            group
            for instant in self.timeline.values()
            if instant.replaces and instant.completed
            for _, group in instant.replaces
        }  # fmt: skip
        files, done = self.files, self.done
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
        live = {group: self._alone(base) for group, base in bases.items()}
        after: dict[str, list[File]] = {}
        for log in sorted(logs, key=_instant_of) if logs else ():
            if log.group in bases and log.instant > bases[log.group].instant:
                after.setdefault(log.group, []).append(log)
        for group, theirs in after.items():
            live[group] = Slice(bases[group], tuple(theirs))
        return live

    def _alone(self, base: File) -> Slice:
        """A slice without logs, the same one each time."""
        found = self._bare.get(base.path)
        if found is None or found.base is not base:
            found = self._bare[base.path] = Slice(base, ())
        return found

    def visible_sum(self) -> int:
        """The sum of all rows that a reader sees, without those of damaged groups."""
        sums, damaged, total = self._sums, self.damaged, 0
        for group, piece in self.live().items():
            if group in damaged:
                continue
            found = sums.get(piece.names)
            if found is None:
                found = sums[piece.names] = sum_of(piece.rows() if piece.logs else piece.base.rows)
            total += found
        return total & _MASK

    def rows(self) -> dict[int, list[int]]:
        """What ``visible_sum`` adds up, by key; more than one value where a key is doubled."""
        found: dict[int, list[int]] = {}
        for piece in (piece for group, piece in self.live().items() if group not in self.damaged):
            for key, value in piece.rows().items():
                found.setdefault(key, []).append(value)
        return found

    def book(self, key: int, value: int | None) -> None:
        """Take down what a writer's commit makes of a row; None where it deletes it."""
        old = self.ledger.pop(key, None)
        if old is not None:
            self.ledger_sum -= row_sum(key, old)
        if value is not None:
            self.ledger[key] = value
            self.ledger_sum += row_sum(key, value)

    # What changes it.

    def touch(self) -> None:
        """Something that readers see may have changed."""
        self._live = None
        self.version += 1
        self.changed(self)

    def new_instant(self, action: str, owner: Process | None, **known: object) -> Instant:
        """Publish an instant with the next time; call it under a lock."""
        self.instants += 1
        time = self.time_of(self.instants)
        instant = Instant(time=time, action=action, owner=owner, **known)  # type: ignore[arg-type]
        self.timeline[time] = self.begun[time] = instant
        self.version += 1
        return instant

    def time_of(self, number: int) -> str:
        """The time of an instant: text sorts as numbers do."""
        return f"{number:04d}"

    def write(self, partition: str, group: str, instant: str, rows: Rows, *, log: bool = False) -> File:
        """A new file, invisible until its instant completes."""
        path = f"{partition}/{group}_{instant}{'.log' if log else ''}"
        size = len(rows)
        file = File(path, partition, group, instant, dict(rows), log, self.scheduler.now, size, size)
        self.files[path] = file
        return file

    def read_index(self) -> frozenset[str]:
        """What a section that will write the index back begins from; others go on meanwhile."""
        found = self.index
        if self.indexed:
            self.scheduler.sleep(0.7)
        return found

    def complete(self, instant: Instant, index: frozenset[str], changed: Mapping[int, int | None] = _NOTHING) -> None:
        """Make ``instant`` part of the table. ``index`` is what ``read_index`` gave in the same section."""
        instant.completed = True
        self.begun.pop(instant.time, None)
        self.done.add(instant.time)
        self.history.append((instant, changed))
        self._count(instant, changed)
        self.index = (index | {file.path for file in instant.outputs}) - set(instant.victims)
        self.touch()

    def _count(self, instant: Instant, changed: Mapping[int, int | None]) -> None:
        for _, group in instant.replaces:
            self.said[group] = None
        for file in instant.outputs:
            base, logs = self.said.get(file.group) or ("", ())
            self.said[file.group] = (base, (*logs, file.path)) if file.log else (file.path, ())
        for key, value in changed.items():
            self.book(key, value)

    def restore(self, time: str) -> list[Instant]:
        """Undo everything after ``time``, which no clean may be part of; the instants that are undone."""
        undone = [instant for instant in self.timeline.values() if instant.time > time]
        for instant in undone:
            self.drop_instant(instant.time)
            self.saved.pop(instant.time, None)
        self.history = [(instant, changed) for instant, changed in self.history if instant.time <= time]
        self.index &= self.files.keys()
        self.ledger, self.ledger_sum, self.said = {}, 0, {}
        for instant, changed in self.history:
            self._count(instant, changed)
        return undone

    def remove(self, path: str) -> int:
        """Delete a file; its size, 0 where it is gone already."""
        file = self.files.pop(path, None)
        return file.bytes if file is not None else 0

    def drop_instant(self, time: str) -> None:
        """Take a pending instant back, its files first."""
        for path in [file.path for file in self.files.values() if file.instant == time]:
            self.remove(path)
        self.timeline.pop(time, None)
        self.begun.pop(time, None)
        self.done.discard(time)
        self.version += 1

    def files_of_nobody(self) -> list[File]:
        """What was written under an instant of lakefold's when it had been withdrawn, or for no commit."""
        found = []
        for file in self.files.values():
            if file.instant in self.noted:
                instant = self.find(file.instant)
                if instant is None or (instant.completed and file not in instant.outputs):
                    found.append(file)
        return found

    def pending(self) -> list[Instant]:
        """What was begun and did not complete, oldest first."""
        return list(self.begun.values())

    def pending_groups(self, without: str = "") -> dict[str, Instant]:
        """Group → the pending rewrite that names it."""
        return {
            group: instant
            for instant in self.begun.values()
            if instant.time != without
            for _, group in instant.replaces
        }  # fmt: skip

    def saved_paths(self) -> set[str]:
        """What savepoints keep."""
        return {path for paths in self.saved.values() for path in paths}

    def replaced_and_saved(self) -> list[str]:
        """Replacements that must not be archived, since a savepoint keeps what they replaced."""
        groups = {self.files[path].group for path in self.saved_paths() if path in self.files}
        return [i.time for i in self.timeline.values() if any(group in groups for _, group in i.replaces)]

    def find(self, time: str) -> Instant | None:
        """An instant, archived or not."""
        return self.timeline.get(time) or self.archived.get(time)

    @contextmanager
    def locked(self, *locks: TableLock) -> Iterator[None]:
        """Hold ``locks`` for this block. Raises Transient where somebody else has one of them for long."""
        assert self.scheduler.current is not None
        process, until = self.scheduler.current.process, self.scheduler.now + _LOCK_SECONDS
        taken: list[TableLock] = []
        try:
            for lock in locks:
                while lock.holder is not None and not lock.holder.dead:
                    if self.scheduler.now >= until:
                        raise Transient(f"the lock of {self.name} is held by {lock.holder.name}")
                    self.scheduler.sleep(_LOOK_AGAIN_SECONDS)
                lock.holder = process
                taken.append(lock)
            yield
        finally:
            for lock in taken:
                if lock.holder is process:
                    lock.holder = None


def holds_damage(table: Table, group: str) -> bool:
    """Whether the slice of ``group`` is not what the commits say, by names and sizes."""
    piece = table.live().get(group)
    if piece is None or piece.names != table.said.get(group) or piece.base.bytes != piece.base.written:
        return True
    return any(log.bytes != log.written for log in piece.logs)


def live_paths(table: Table) -> set[str]:
    """The paths of every live slice."""
    return {path for piece in table.live().values() for path in (piece.base.path, *piece.names[1])}
