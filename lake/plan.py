# SPDX-License-Identifier: Apache-2.0
"""A plan, its groups, and the one table of state transitions that code, database and docs agree on."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType

from lake.model import FileSlice, TableRef


class PlanState(StrEnum):
    """Where a plan is in its life."""

    REQUESTED = "requested"  #: stored by the scheduler; nobody owns it
    INFLIGHT = "inflight"  #: claimed by one executor under one epoch and a lease
    COMPLETED = "completed"  #: the table's commit names it
    FAILED = "failed"  #: given up; ``plans retry`` requests it again
    CANCELLED = "cancelled"  #: a conflict or an operator ended it; the next scan plans again


TRANSITIONS: Mapping[PlanState, frozenset[PlanState]] = MappingProxyType(
    {
        PlanState.REQUESTED: frozenset({PlanState.INFLIGHT, PlanState.CANCELLED}),
        PlanState.INFLIGHT: frozenset(
            {PlanState.COMPLETED, PlanState.FAILED, PlanState.CANCELLED, PlanState.REQUESTED}
        ),
        # Completed from an end only where the table turns out to hold the plan's commit.
        PlanState.FAILED: frozenset({PlanState.REQUESTED, PlanState.COMPLETED}),
        PlanState.CANCELLED: frozenset({PlanState.COMPLETED}),
        PlanState.COMPLETED: frozenset(),
    }
)
LIVE_STATES = frozenset({PlanState.REQUESTED, PlanState.INFLIGHT})

AUTO = "auto"
"""The engine of a plan for which the executor chooses, for each group."""

STAGED_WATCH_PERIOD = timedelta(days=7)
"""How long what an attempt may have left is looked for: whoever slept for longer is not waited for."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LockOwnerKind(StrEnum):
    """Who besides a live plan may hold partitions for a while."""

    CLEANER = "cleaner"  #: deletes superseded files there
    SWEEP = "sweep"  #: puts right what ended plans, or writers that spanned a commit, left there


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOwner:
    """One round of the cleaner or the sweep, with a name that no other round has."""

    kind: LockOwnerKind
    name: str

    def __str__(self) -> str:
        return f"the {self.kind} ({self.name})"


class PlanKind(StrEnum):
    """What the rewrite is for."""

    CLUSTERING = "clustering"
    COMPACTION = "compaction"


class ProposalDecision(StrEnum):
    """What somebody said to a proposal."""

    APPROVED = "approved"  #: it may run
    DECLINED = "declined"  #: it never does, and is not proposed again as it was


class Step(StrEnum):
    """The numbered steps of one plan's run, in order; each is also a failpoint."""

    FIND_COMMIT = "ask"  #: 1 did this plan already commit?
    START = "start"  #: 2 what the table is changed with is there: Spark, started where it is not running
    PREPARE = "prepare"  #: 3 inputs still live and unchanged? make the plan known to the table
    REWRITE = "rewrite"  #: 4 write the new files, invisible to readers
    VERIFY = "receipt"  #: 5 prove that out equals in
    COMMIT = "commit"  #: 6 check again, make the new files the table
    RECORD = "record"  #: 7 one database transaction: completed, figures, superseded versions


class VerificationLevel(StrEnum):
    """How much is proved before a commit."""

    FOOTER = "footer"  #: rows, and per leaf column null count and min/max: of Parquet from footers, of ORC from values
    HASH = "hash"  #: the same, and an order-free hash of every value


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteOptions:
    """What an executor needs to know of the policy that made the plan."""

    target_file_max_bytes: int
    engine: str = AUTO
    compression: str | None = None
    sort_columns: tuple[str, ...] = ()
    layout: str = "linear"
    verification: VerificationLevel = VerificationLevel.FOOTER


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringGroup:
    """Slices of one partition rewritten together into ``output_files`` files."""

    partition: str
    slices: tuple[FileSlice, ...]
    output_files: int

    @property
    def bytes(self) -> int:
        """Bytes the rewrite reads."""
        return sum(s.total_bytes for s in self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Groups of one table that are committed at once."""

    plan_id: str
    table: TableRef
    kind: PlanKind
    groups: tuple[ClusteringGroup, ...]
    options: RewriteOptions
    snapshot_instant: str
    #: the pending instant of another process that this plan executes; None for a plan of our own making
    adopted_instant: str | None = None

    @property
    def partitions(self) -> tuple[str, ...]:
        """Distinct partitions, sorted."""
        return tuple(sorted({g.partition for g in self.groups}))

    @property
    def bytes(self) -> int:
        """Bytes the rewrite reads, over all groups."""
        return sum(g.bytes for g in self.groups)

    @property
    def input_files(self) -> int:
        """Base files rewritten, over all groups."""
        return sum(1 for g in self.groups for s in g.slices if s.path is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedPlan:
    """A plan that failed and would fail again: its ``slices`` are left alone for as long as they are what they were."""

    plan_id: str
    attempts: int
    error: str
    slices: tuple[FileSlice, ...]

    @property
    def text(self) -> str:
        """What happened, and what to do about it."""
        times = f"{self.attempts} times" if self.attempts > 1 else "once"
        return f"failed {times} in plan {self.plan_id}: {self.error}; to try again: lakefold plans retry {self.plan_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclinedPlan:
    """A proposal that somebody declined: its ``slices`` are not proposed again while they are what they were."""

    plan_id: str
    declined_by: str
    #: that it was declined, and why
    explanation: str
    slices: tuple[FileSlice, ...]

    @property
    def text(self) -> str:
        """Who said no, and what to do about it."""
        return f"{self.explanation} (by {self.declined_by}, plan {self.plan_id}); to rewrite it all the same: lakefold plans request"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedGroup:
    """A group of a plan that the executor did not rewrite, and why."""

    group: int
    reason: str
    #: paths whose content can't be read; the planner leaves them alone until ``lakefold resume TABLE``
    quarantine: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile:
    """One file written by a plan. ``path`` is relative to the table's location, or absolute outside it.

    ``payload`` is the format's own, such as column metrics for its commit; nobody else looks into it, nor do files
    differ by it.
    """

    partition: str
    path: str
    bytes: int
    rows: int
    payload: object = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupersededVersion:
    """A file that a committed plan replaced; deleted once the retention in force has passed.

    ``path`` is relative to the table's location, or absolute outside it. Which file that is it does not say alone where
    names are used again: it is path, size and modification time.

    A relative path follows the table to whatever location it has by then, as where its directory was renamed. A format
    whose tables leave their files behind when they get another location gives absolute ones, of all files.
    """

    partition: str
    path: str
    #: 0 where the file was gone before anybody could tell
    bytes: int
    #: the instant whose commit replaced the file
    instant: str
    #: when the file was written; None where the format never uses a name twice, or where nobody recorded it
    modified_at: datetime | None = None

    def difference(self, found_bytes: int, found_modified_at: datetime | None = None) -> str | None:
        """Why the file that is at the path now is another one than was replaced; None where nothing says so."""
        if self.bytes and found_bytes != self.bytes:
            return f"another file is at its path: {found_bytes} bytes, the one that was replaced had {self.bytes}"
        if self.modified_at is None or found_modified_at is None:
            return None
        # To the millisecond, which is what the database keeps.
        if abs(found_modified_at - self.modified_at) < timedelta(milliseconds=1):
            return None
        return (
            f"another file is at its path: of {found_modified_at}, the one that was replaced was of {self.modified_at}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedFile:
    """One data file, told from others that had its name: path, bytes, and when it was written in milliseconds.

    ``path`` is relative to the table's location, or absolute outside it.
    """

    path: str
    bytes: int
    modified_ms: int

    @property
    def name(self) -> str:
        """Its name in its directory."""
        return self.path.rpartition("/")[2]

    @property
    def directory(self) -> str:
        """Where it is; '' for a table's own directory."""
        return self.path.rpartition("/")[0]

    @property
    def modified_at(self) -> datetime:
        """When it was written."""
        return _EPOCH + timedelta(milliseconds=self.modified_ms)


def milliseconds_of(moment: datetime) -> int:
    """A moment as ``LocatedFile`` and the database have it."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocation:
    """A partition's move from ``left`` to ``place``, both directories, with the ``files`` that it had there.

    ``token`` is the name under which the catalog knows the move, which no other move of the partition has.
    """

    partition: str
    token: str
    previous_location: str
    location: str
    files: tuple[LocatedFile, ...]
    #: when the partition was made, in seconds, as the catalog says; one that is dropped and added again has another
    partition_created_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Proof that a table holds the result of a plan.

    ``instant`` names the commit on the table's own timeline; ``outputs`` and ``superseded`` are what it
    added and replaced, as the table itself records them. ``epoch`` is that of the attempt that made it, None where the
    table does not say, as where another process executed the plan. ``moves`` are of a format that moves partitions.
    ``left_out`` are groups that were rewritten and had to stay out of it at the last moment, by their index in the plan
    that was prepared.
    """

    plan_id: str
    instant: str
    outputs: tuple[OutputFile, ...]
    superseded: tuple[SupersededVersion, ...]
    epoch: int | None = None
    relocations: tuple[Relocation, ...] = ()
    skipped: tuple[SkippedGroup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFigures:
    """What a completed plan did to one partition (live base files of the plan before and after)."""

    partition: str
    files_before: int
    bytes_before: int
    files_after: int
    bytes_after: int


def partition_milliseconds(figures: Sequence[PartitionFigures], steps: Mapping[str, int]) -> Sequence[int]:
    """What each partition took of the time that a plan's ``steps`` took: its share of the bytes that were read."""
    spent, read = sum(steps.values()), sum(item.bytes_before for item in figures)
    return [round(spent * item.bytes_before / read) if read else 0 for item in figures]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteProgress:
    """How far a rewrite is, and the address of the Spark UI that shows its jobs, where Spark has one.

    ``cpu_seconds`` is what its tasks have used so far; None where nobody counts it.
    """

    bytes_done: int
    bytes_total: int
    rows_done: int = 0
    spark_ui: str | None = None
    cpu_seconds: float | None = None


def sum_if_known(parts: Collection[float | None]) -> float | None:
    """The sum of ``parts``, such as the CPU seconds of several rewrites; None where one of them is not known."""
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedWork:
    """What an attempt at a plan is about to leave on its table, uncommitted, in words that only the format understands.

    ``token`` is a name that no other attempt has, such as an instant or a version's directory, but where attempts
    share an adopted instant. ``paths`` are what the paths of all its files begin with: names of files, directories, or
    any other prefix that is the attempt's alone, since whatever has it is removed at its withdrawal. They are relative
    or absolute as those of ``SupersededVersion``. A format that
    finds it on the table's own timeline names none.
    """

    token: str
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One executor's hold on one plan. Every later write to the store carries ``epoch`` and fails when stale."""

    plan: Plan
    epoch: int
    attempt: int
    executor: str
    lease_until: datetime
    #: what earlier epochs of this plan staged, newest last
    staged: tuple[StagedWork, ...] = ()
    milliseconds: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    #: why an earlier executor of this attempt left the plan inflight
    previous_error: str | None = None
    #: W3C trace context of the planning, where somebody traces
    traceparent: str | None = None
    #: why the plan is not to be run any more as its table is registered today; None where it is
    obsolete_reason: str | None = None
