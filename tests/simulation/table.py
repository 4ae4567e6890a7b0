# SPDX-License-Identifier: Apache-2.0
"""A table in memory of any shape: its files, the rows that readers see, and the sum of its writers' commits.

The shape determines how a commit is made and which files are live after it (``simulation.shapes``).
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
    """Return a number for a row; the sum of such numbers identifies a multiset of rows."""
    mixed = (key * 0x9E3779B97F4A7C15 ^ value * 0xC2B2AE3D27D4EB4F) & _MASK
    return (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 & _MASK


def sum_of(rows: Rows) -> int:
    """Return the sum of all rows."""
    total = 0
    for key, value in rows.items():
        if value is not None:  # ``row_sum`` spelled out: this is where most of its calls would come from
            mixed = (key * 0x9E3779B97F4A7C15 ^ value * 0xC2B2AE3D27D4EB4F) & _MASK
            total += (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 & _MASK
    return total


@dataclass(slots=True, eq=False)
class File:
    """A base or log file; ``bytes`` is its size on disk, ``written`` the size in its writer's commit.

    ``instant`` identifies the attempt that wrote it: an instant, the token of staged work, or a writer's commit.
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
    """The files that a reader merges: a base file and the logs after it. ``names`` are their paths."""

    __slots__ = ("base", "logs", "names")

    def __init__(self, base: File, logs: tuple[File, ...]) -> None:
        self.base, self.logs = base, logs
        self.names = base.path, tuple([log.path for log in logs])

    def rows(self) -> dict[int, int]:
        """Return the rows of base file and logs, merged."""
        merged = dict(self.base.rows)
        for log in self.logs:
            merged.update(log.rows)
        return {key: value for key, value in merged.items() if value is not None}


@dataclass(slots=True, eq=False, kw_only=True)
class Attempt:
    """A begun action on a table: an instant of a timeline, or a token."""

    time: str
    owner: Process | None
    completed: bool = False
    plan_id: str | None = None
    epoch: int = 0


@dataclass(slots=True, eq=False)
class Table:
    """One table. ``ledger`` has the rows after all completed commits of its writers."""

    #: as ``TableSetup.shape`` and ``TableRef.format`` name it
    shape: ClassVar[str]

    setup: TableSetup
    scheduler: Scheduler
    changed: Callable[["Table"], None]
    concurrency: Concurrency = field(init=False)
    files: dict[str, File] = field(default_factory=dict)
    ledger: dict[int, int] = field(default_factory=dict)
    ledger_sum: int = 0
    #: groups with a lost or cut file, each with the time of the damage
    damaged: dict[str, float] = field(default_factory=dict)
    #: the keys of the rows that were lost with it
    unreadable: dict[str, tuple[int, ...]] = field(default_factory=dict)
    #: savepoint → the paths it keeps
    saved: dict[str, frozenset[str]] = field(default_factory=dict)
    #: counts the changes that a scan could see
    version: int = 0
    _live: dict[str, Slice] | None = None
    _paths: set[str] | None = None
    _sums: dict[tuple[str, tuple[str, ...]], int] = field(default_factory=dict)
    _bare: dict[str, Slice] = field(default_factory=dict)
    _ref: TableRef | None = None
    #: partitions whose visible rows temporarily differ from the ledger because of a writer
    owed: dict[str, float] = field(default_factory=dict)
    #: its first name, by which the model identifies it
    first_name: str = field(init=False)

    def __post_init__(self) -> None:
        self.concurrency, self.first_name = self.setup.concurrency, self.setup.name

    def end_sharing(self) -> None:
        """Drop the other tables that read files of this table."""

    def of_other_tables(self) -> Collection[str]:
        """Return the files that other tables read."""
        return ()

    @property
    def name(self) -> str:
        """The table's present name."""
        return self.setup.name

    @property
    def ref(self) -> TableRef:
        """The table's present reference."""
        if self._ref is None or self._ref.concurrency is not self.concurrency:
            self._ref = TableRef(
                name=self.name,
                format=self.shape,
                location=f"/{self.name}",
                concurrency=self.concurrency,
                on_conflict=self.setup.on_conflict,
            )
        return self._ref

    # Reading.

    def live(self) -> dict[str, Slice]:
        """Group → its latest slice."""
        if self._live is None:
            self._live = self.view()
        return self._live

    def view(self) -> dict[str, Slice]:
        """The cached result of ``live``."""
        raise NotImplementedError

    def live_paths(self) -> set[str]:
        """The paths of every live slice."""
        if self._paths is None:
            self._paths = {path for piece in self.live().values() for path in (piece.base.path, *piece.names[1])}
        return self._paths

    def alone(self, base: File) -> Slice:
        """Return a slice without logs; the same object each time."""
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
        """Return the rows of ``visible_sum`` by key; a doubled key has several values."""
        found: dict[int, list[int]] = {}
        for piece in (piece for group, piece in self.live().items() if group not in self.damaged):
            for key, value in piece.rows().items():
                found.setdefault(key, []).append(value)
        return found

    def book(self, key: int, value: int | None) -> None:
        """Record the new value of a row in the ledger; None if the commit deletes the row."""
        old = self.ledger.pop(key, None)
        if old is not None:
            self.ledger_sum -= row_sum(key, old)
        if value is not None:
            self.ledger[key] = value
            self.ledger_sum += row_sum(key, value)

    # Changes.

    def touch(self) -> None:
        """Note that the visible rows may have changed."""
        self._live = self._paths = None
        self.version += 1
        self.changed(self)

    def put(self, file: File) -> File:
        """Add a file that is not yet part of the table."""
        self.files[file.path] = file
        return file

    def remove(self, path: str) -> int:
        """Delete a file. Returns its size, 0 if it does not exist."""
        file = self.files.pop(path, None)
        return file.bytes if file is not None else 0

    def cut(self, file: File) -> None:
        """Truncate a file."""
        file.bytes -= 1
        file.rows = dict(list(file.rows.items())[:-1])
        self._sums.clear()

    # Queries.

    def holds_damage(self, group: str) -> bool:
        """Return True if the slice of ``group`` differs from the commits in names or sizes."""
        raise NotImplementedError

    def saved_paths(self) -> set[str]:
        """Return the paths that savepoints keep."""
        return {path for paths in self.saved.values() for path in paths}

    def pending(self) -> Collection[Attempt]:
        """Return the begun actions without a completion that the table records, oldest first."""
        return ()

    def forget(self, plan_ids: Collection[str]) -> None:
        """Note that the database was restored to a state without these plans."""

    def files_of_nobody(self) -> list[File]:
        """Return the files written for a plan that belong neither to a commit nor to known pending work."""
        raise NotImplementedError

    def left_behind(self) -> list[File]:
        """Return the files that no process would ever find."""
        return self.files_of_nobody()

    def is_undone(self, version: SupersededVersion) -> bool:
        """Return True if the commit that replaced a file was undone, so that the file is live again."""
        raise NotImplementedError

    def is_live_again(self, path: str) -> bool:
        """Return True if a restore made a superseded file live."""
        return path in self.live_paths()
