# SPDX-License-Identifier: Apache-2.0
"""The script of one run, drawn from its seed: the setup, and a list of items that can be removed one by one.

An item is an action of a person or program at a time (``Act``), a fault at the n-th call of a port (``Fault``), or a
fault of a process at a time, at any point of its work (``Stroke``). Nothing else goes wrong. So the few items without
which a run does not fail explain the failure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from lake.errors import CommitUnknown, Conflict, Integrity, Rejected, Transient
from lake.model import Concurrency, OnConflict

#: the end of actions and faults; afterwards all processes recover
HORIZON = 150.0
WRITERS = ("writer-1", "writer-2")
PARTITIONS = ("a", "b", "c")
#: as often as each shape is drawn
SHAPES_DRAWN = ("timeline", "timeline", "locations", "versions")


@dataclass(frozen=True, slots=True)
class Act:
    """``who`` does ``what`` at ``at``; ``number`` decides the details."""

    at: float
    who: str
    what: str
    table: str
    number: int

    def __str__(self) -> str:
        return f"at {self.at:.1f} s {self.who}: {self.what} ({self.table}, {self.number})"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault ``when`` (before or after) the ``nth`` call of ``site``. ``seconds`` is the length of a suspension."""

    site: str
    nth: int
    when: str
    what: str
    seconds: float = 0.0
    outcome: type[Exception] | None = None

    def __str__(self) -> str:
        what = f"{self.what} for {self.seconds:.0f} s" if self.what in ("sleep", "no answer") else self.what
        what += f" with {self.outcome.__name__}" if self.outcome else ""
        return f"{what} {self.when} call {self.nth} of {self.site!r}"


@dataclass(frozen=True, slots=True)
class Stroke:
    """A fault of the process ``who`` at ``at``: a crash, or a suspension of ``seconds``."""

    at: float
    who: str
    what: str
    seconds: float

    def __str__(self) -> str:
        what = f"sleep for {self.seconds:.0f} s" if self.what == "sleep" else self.what
        return f"at {self.at:.1f} s {self.who}: {what}"


Item = Act | Fault | Stroke


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSetup:
    """The initial state of a table."""

    name: str
    shape: str
    merge_on_read: bool
    indexed: bool
    on_conflict: OnConflict
    concurrency: Concurrency
    #: lakefold also runs the table's own cleaner
    services: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The part of a script that stays the same while a run is shrunk."""

    tables: tuple[TableSetup, ...]
    retention: float
    skews: tuple[float, ...]
    second_lakefold: bool
    real_planner: bool
    max_attempts: int
    max_inflight_per_table: int
    #: the maximum number of partitions of a plan
    partitions_per_plan: int
    clean_commits: int
    keep_commits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The repeatable description of one run."""

    seed: int
    setup: Setup
    items: tuple[Item, ...]


class Bug(Exception):
    """An unexpected error from inside an adapter."""


#: the sites of faults (how often a run reaches each, and the errors that its call may raise)
_ANY: tuple[type[Exception], ...] = (Transient, Conflict, Rejected, Integrity, CommitUnknown, Bug)
_ASKED: tuple[type[Exception], ...] = (Transient, Rejected, Bug)
#: the call by which the table's client commits; if its answer is lost, the call continues for a while
UNANSWERED = "client's commit"
SITES: dict[str, tuple[int, tuple[type[Exception], ...]]] = {
    "committed": (8, _ASKED),
    "landed": (2, _ASKED),
    "check": (5, _ASKED),
    "pending": (12, _ASKED),
    "unfinished": (1, _ASKED),
    "open": (5, _ASKED),
    "close": (5, (Transient, Bug)),
    "prepare": (4, (Transient, Conflict, Rejected, Bug)),
    "rewrite": (4, (Transient, Conflict, Rejected, Integrity, Bug)),
    "rewrite group": (6, (Transient, Conflict, Bug)),
    "prove": (4, (Transient, Conflict, Integrity)),
    "commit": (4, _ANY),
    "discard": (4, (Transient, Conflict, Bug)),
    "withdraw": (3, (Transient,)),
    "left of": (4, _ASKED),
    "carry": (4, (Transient, Conflict)),
    "swap": (3, _ANY),
    "create version": (4, _ANY),
    "deletion_blockers": (4, _ASKED),
    "obsolete_deletions": (6, _ASKED),
    "late files": (6, _ASKED),
    "maintain": (5, (Transient, Conflict, Bug)),
    "put back": (6, _ASKED),
    "last call": (10, (Transient, Conflict, Bug)),
    "remove late files": (1, (Transient, Conflict, Bug)),
    "delete": (3, (Transient, Conflict, Bug)),
    "delete file": (6, (Transient,)),
    "snapshot": (6, _ASKED),
    **{
        name: (often, ())
        for name, often in {
            "claim": 8,
            "take_over_expired": 9,
            "heartbeat": 12,
            "record_step": 16,
            "record_staged": 4,
            "complete": 4,
            "requeue": 3,
            "fail": 1,
            "cancel": 2,
            "record_inflight_error": 1,
            "add_note": 1,
            "record_skipped_groups": 2,
            "plan_state": 6,
            "due_for_deletion": 6,
            "ended_without_commit": 8,
            "complete_unrecorded": 1,
            "awaiting_deletion": 8,
            "close_superseded": 1,
            "begin_deletion": 3,
            "mark_deleted": 3,
            "add_plan": 4,
            "locked_partitions": 12,
            "orphaned_stagings": 3,
            "clear_stagings": 2,
            "lock_partitions": 3,
            "renew_partitions": 3,
            "release_partitions": 2,
        }.items()
    },
}
#: sites of writers, where only crashes and suspensions occur
WRITER_SITES = {"write": 10, "write commit": 8, "write clean": 3}
#: sites that only some shapes have
_ONLY = {
    **dict.fromkeys(
        ("pending", "unfinished", "late files", "remove late files", "maintain", "last call"), ("timeline",)
    ),
    **dict.fromkeys(
        ("left of", "orphaned_stagings", "clear_stagings", "lock_partitions", "renew_partitions", "release_partitions"),
        ("locations", "versions"),
    ),
    **dict.fromkeys(("carry", "swap", "put back"), ("locations",)),
    "create version": ("versions",),
}
_WEIGHTS = {
    "swap": 4,
    "create version": 4,
    "commit": 6,
    "last call": 4,
    "complete": 4,
    "discard": 3,
    "committed": 3,
    "prepare": 2,
    "heartbeat": 2,
    "delete file": 2,
}
_CHOICES = [site for site in SITES for _ in range(_WEIGHTS.get(site, 1))]
#: faults close to each other find more defects: each run prefers the sites of one of these sections
_NEAR = (
    ("prepare", "rewrite", "rewrite group", "prove", "record_step", "heartbeat", "claim"),
    (
        "commit",
        "last call",
        "swap",
        "create version",
        "committed",
        "heartbeat",
        "complete",
        "record_inflight_error",
        "close",
    ),
    (
        "discard",
        "withdraw",
        "pending",
        "left of",
        "orphaned_stagings",
        "heartbeat",
        "requeue",
        "take_over_expired",
        "committed",
    ),
    (
        "delete",
        "last call",
        "delete file",
        "mark_deleted",
        "due_for_deletion",
        "deletion_blockers",
        "awaiting_deletion",
        "lock_partitions",
        "renew_partitions",
    ),
    tuple(_CHOICES),
)
PROCESSES = ("daemon-1", "daemon-2", "executor-3")


def draw(seed: int) -> Script:
    """Return the script of a seed."""
    random = Random(seed)
    setup = _setup(random)
    items: list[Item] = []
    for table in setup.tables:
        items += _writes(random, table)
    near, everywhere = (_there(setup, sites) for sites in (random.choice(_NEAR), _CHOICES))
    items += [_fault(random, near, everywhere) for _ in range(random.randrange(7))]
    items += _people(random, setup)
    if any(table.shape == "timeline" for table in setup.tables) and random.random() < 0.15:
        nth = 1 + int(random.random() * 4)
        items.append(Fault(UNANSWERED, nth, "before", "no answer", 1 + random.random() * 20))
    return Script(seed=seed, setup=setup, items=tuple(items))


def _setup(random: Random) -> Setup:
    tables = tuple(
        TableSetup(
            name=f"table-{number}",
            shape=(shape := random.choice(SHAPES_DRAWN)),
            merge_on_read=random.random() < 0.4,
            indexed=random.random() < 0.6,
            on_conflict=random.choice((OnConflict.PLAN_WINS, OnConflict.WRITER_WINS)),
            # Only tables with a lock exclude processes by it.
            concurrency=Concurrency.SINGLE_WRITER
            if shape == "timeline" and random.random() < 0.25
            else Concurrency.OCC,
            services=shape == "timeline" and random.random() < 0.3,
        )
        for number in range(1, 2 if random.random() < 0.75 else 3)
    )
    # Without compare-and-set, nothing excludes two installations of lakefold from each other.
    alone = any(table.shape == "locations" for table in tables)
    return Setup(
        tables=tables,
        retention=random.choice((5.0, 20.0, 45.0)),
        skews=_skews(random),
        second_lakefold=not alone and random.random() < 0.08,
        real_planner=random.random() < 0.03,
        max_attempts=random.choice((2, 5)),
        max_inflight_per_table=random.choice((1, 1, 2, 3)),
        partitions_per_plan=random.randrange(1, 4),
        clean_commits=random.randrange(1, 4),
        keep_commits=random.randrange(2, 5),
    )


def _skews(random: Random) -> tuple[float, ...]:
    """Return by how much the clocks of lakefold's hosts are ahead: mostly 0, sometimes seconds, minutes, or hours."""
    chosen = random.choice(((0.0,), (0.0,), (0.0, 0.6, -0.6), (0.0, 0.0, -90.0, 90.0, -32_400.0, 32_400.0)))
    return tuple(random.choice(chosen) for _ in range(5))


_KINDS = {
    "timeline": ("insert",) * 3 + ("upsert",) * 2 + ("delete", "tidy", "tidy", "cluster", "overwrite"),
    "locations": ("insert",) * 9 + ("upsert", "delete", "cluster", "overwrite", "load", "point back"),
    "versions": ("insert",) * 3 + ("upsert",) * 2 + ("delete", "tidy", "tidy", "cluster", "overwrite"),
}
"""What writers do to tables of each shape; in a partition of ``locations`` little else leaves several files."""


def _writes(random: Random, table: TableSetup) -> list[Item]:
    acts: list[Item] = []
    begin = 0.0
    if table.concurrency is Concurrency.SINGLE_WRITER:
        begin = random.choice((15, 75)) + random.random() * 40
        acts.append(Act(begin, "operator", "allow writers", table.name, 0))
    kinds = list(_KINDS[table.shape])
    if random.random() < 0.3:
        kinds += ["tidy"] * 6  # they clean and archive after every other commit
    for who in WRITERS:
        at = begin + random.random() * 6
        for _ in range(random.randrange(5, 10)):
            what = random.choice(kinds)
            acts.append(Act(at, who, what, table.name, random.randrange(1 << 30)))
            at += random.expovariate(1 / 11)
    if random.random() < 0.2:
        number = random.randrange(1 << 30)
        acts.append(Act(random.random() * HORIZON, WRITERS[0], "savepoint", table.name, number))
    return acts


def _there(setup: Setup, sites: Sequence[str]) -> list[str]:
    """Return those of ``sites`` that a run with these tables can reach."""
    shapes = {table.shape for table in setup.tables}
    return [site for site in sites if site not in _ONLY or not shapes.isdisjoint(_ONLY[site])]


def _fault(random: Random, near: Sequence[str], everywhere: Sequence[str]) -> Item:
    kind = random.random()
    if kind < 0.2:
        at, who = random.random() * HORIZON, random.choice(PROCESSES)
        return Stroke(at, who, random.choice(("crash", "sleep", "sleep")), 3 + random.random() * 60)
    when = random.choice(("before", "after"))
    if kind < 0.3:
        site = random.choice(tuple(WRITER_SITES))
        nth = 1 + int(random.random() * WRITER_SITES[site])
        return Fault(site, nth, when, random.choice(("crash", "sleep")), 3 + random.random() * 60)
    site = random.choice(near if random.random() < 0.6 else everywhere)
    often, outcomes = SITES[site]
    nth = 1 + int(random.random() * often)
    what = random.choice(("crash", "sleep", "fail"))
    if what == "fail":
        outcome = random.choice(outcomes) if outcomes else None
        return Fault(site, nth, when, "fail" if when == "before" else "lose the answer", 0.0, outcome)
    return Fault(site, nth, when, what, 3 + random.random() * 60)


_PEOPLE = {
    "cancel": 4,
    "retry": 2,
    "pause": 1,
    "concurrency": 1,
    "retention": 1,
    "lose a file": 2,
    "cut a file": 1,
    "unmount": 2,
    "release savepoints": 1,
    "restore the database": 1,
    "spoil": 1,
    "restore the table": 2,
    "roll back": 2,
    "switch the index": 2,
    "share": 2,
    "halt": 1,
    "rename": 1,
}
_WHATS = [what for what, weight in _PEOPLE.items() for _ in range(weight)]


def _people(random: Random, setup: Setup) -> list[Item]:
    acts: list[Item] = []
    for _ in range(random.randrange(5)):
        what, table = random.choice(_WHATS), random.choice(setup.tables).name
        acts.append(Act(5 + random.random() * (HORIZON - 10), "operator", what, table, random.randrange(1 << 30)))
    return acts
