# SPDX-License-Identifier: Apache-2.0
"""A table in memory, whatever its shape: its files, what readers see of them, and what its writers' commits add up to.

How a commit is made, and what is live after it, is the shape's own (``simulation.shapes``).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from lake.model import Concurrency, TableRef
from lake.plan import SupersededVersion
from simulation.clock import Process, Scheduler
from simulation.script import TableSetup

Rows = Mapping[int, int | None]
"""Key → value; None in a log deletes the key."""

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


@dataclass(slots=True, eq=False)
class File:
    """A base or log file; ``bytes`` is what is on disk, ``written`` what its writer's commit says.

    ``instant`` names what wrote it: an instant of a timeline, the token of what was staged, or a writer's commit.
    """

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


@dataclass(slots=True, eq=False, kw_only=True)
class Attempt:
    """Something that was begun on a table under a name of its own: an instant of a timeline, or a token."""

    time: str
    owner: Process | None
    completed: bool = False
    plan_id: str | None = None
    epoch: int = 0


@dataclass(slots=True, eq=False)
class Table:
    """One table. ``ledger`` is what its writers' completed commits add up to."""

    #: as ``TableSetup.shape`` and ``TableRef.format`` name it
    shape: ClassVar[str]

    setup: TableSetup
    scheduler: Scheduler
    changed: Callable[["Table"], None]
    concurrency: Concurrency = field(init=False)
    files: dict[str, File] = field(default_factory=dict)
    ledger: dict[int, int] = field(default_factory=dict)
    ledger_sum: int = 0
    #: groups with a lost or cut file, since when
    damaged: dict[str, float] = field(default_factory=dict)
    #: and the keys of the rows that went with it
    unreadable: dict[str, tuple[int, ...]] = field(default_factory=dict)
    #: savepoint → the paths it keeps
    saved: dict[str, frozenset[str]] = field(default_factory=dict)
    #: counts what a scan could see change
    version: int = 0
    _live: dict[str, Slice] | None = None
    _paths: set[str] | None = None
    _sums: dict[tuple[str, tuple[str, ...]], int] = field(default_factory=dict)
    _bare: dict[str, Slice] = field(default_factory=dict)
    _ref: TableRef | None = None
    #: partitions whose readers see, for a while and by a writer's doing, other rows than the ledger has
    owed: dict[str, float] = field(default_factory=dict)
    #: what it was called at first, by which the model knows it
    first_name: str = field(init=False)

    def __post_init__(self) -> None:
        self.concurrency, self.first_name = self.setup.concurrency, self.setup.name

    def end_sharing(self) -> None:
        """Other tables are dropped that read files of this one."""

    def of_other_tables(self) -> Collection[str]:
        """The files that other tables read."""
        return ()

    @property
    def name(self) -> str:
        """What it is registered as, today."""
        return self.setup.name

    @property
    def ref(self) -> TableRef:
        """The table as it is registered today."""
        if self._ref is None or self._ref.concurrency is not self.concurrency:
            self._ref = TableRef(
                name=self.name,
                format=self.shape,
                location=f"/{self.name}",
                concurrency=self.concurrency,
                on_conflict=self.setup.on_conflict,
            )
        return self._ref

    # What readers see.

    def live(self) -> dict[str, Slice]:
        """Group → its latest slice."""
        if self._live is None:
            self._live = self.view()
        return self._live

    def view(self) -> dict[str, Slice]:
        """What ``live`` remembers until something changes."""
        raise NotImplementedError

    def live_paths(self) -> set[str]:
        """The paths of every live slice."""
        if self._paths is None:
            self._paths = {path for piece in self.live().values() for path in (piece.base.path, *piece.names[1])}
        return self._paths

    def alone(self, base: File) -> Slice:
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
        self._live = self._paths = None
        self.version += 1
        self.changed(self)

    def put(self, file: File) -> File:
        """Add a file that nothing makes the table's yet."""
        self.files[file.path] = file
        return file

    def remove(self, path: str) -> int:
        """Delete a file; its size, 0 where it is gone already."""
        file = self.files.pop(path, None)
        return file.bytes if file is not None else 0

    def cut(self, file: File) -> None:
        """Take the end off a file."""
        file.bytes -= 1
        file.rows = dict(list(file.rows.items())[:-1])
        self._sums.clear()

    # What is asked of it.

    def holds_damage(self, group: str) -> bool:
        """Whether the slice of ``group`` is not what the commits say, by names and sizes."""
        raise NotImplementedError

    def saved_paths(self) -> set[str]:
        """What savepoints keep."""
        return {path for paths in self.saved.values() for path in paths}

    def pending(self) -> Collection[Attempt]:
        """What was begun and did not complete, oldest first, as far as the table knows."""
        return ()

    def forget(self, plan_ids: Collection[str]) -> None:
        """Their database was set back and knows no more of these plans."""

    def files_of_nobody(self) -> list[File]:
        """What was written for a plan and belongs to no commit, nor to anything that is known to be under way."""
        raise NotImplementedError

    def left_behind(self) -> list[File]:
        """Files that nobody would ever find."""
        return self.files_of_nobody()

    def is_undone(self, version: SupersededVersion) -> bool:
        """Whether what replaced a file was taken back, so that the file is the table's again."""
        raise NotImplementedError

    def is_live_again(self, path: str) -> bool:
        """Whether a restore made a superseded file live."""
        return path in self.live_paths()
