# SPDX-License-Identifier: Apache-2.0
"""Plans, their groups, and the one table of state transitions that code, database and docs share."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import accumulate, pairwise
from types import MappingProxyType

from lake.model import FileSlice, TableRef


class PlanState(StrEnum):
    """The state of a plan."""

    REQUESTED = "requested"  #: stored by the scheduler; no executor owns it
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
        # A failed or cancelled plan becomes completed only if the table turns out to hold its commit.
        PlanState.FAILED: frozenset({PlanState.REQUESTED, PlanState.COMPLETED}),
        PlanState.CANCELLED: frozenset({PlanState.COMPLETED}),
        PlanState.COMPLETED: frozenset(),
    }
)
LIVE_STATES = frozenset({PlanState.REQUESTED, PlanState.INFLIGHT})

AUTO = "auto"
"""The engine setting with which the executor chooses an engine for each group."""

STAGED_WATCH_PERIOD = timedelta(days=7)
"""How long the uncommitted work of an attempt is watched for; an executor suspended for longer is not considered."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LockOwnerKind(StrEnum):
    """The kinds of owners of partition locks besides live plans."""

    CLEANER = "cleaner"  #: deletes superseded files there
    SWEEP = "sweep"  #: handles files of ended plans, and files of writers that worked during a commit


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOwner:
    """One round of the cleaner or the sweep, with a unique name."""

    kind: LockOwnerKind
    name: str

    def __str__(self) -> str:
        return f"the {self.kind} ({self.name})"


class PlanKind(StrEnum):
    """The purpose of a rewrite."""

    CLUSTERING = "clustering"
    COMPACTION = "compaction"


class ProposalDecision(StrEnum):
    """A person's decision on a proposal."""

    APPROVED = "approved"  #: it may run
    DECLINED = "declined"  #: it never runs, and is not proposed again with the same inputs


class Step(StrEnum):
    """The numbered steps of one plan's run, in order; each is also a failpoint."""

    FIND_COMMIT = "find_commit"  #: 1 did this plan already commit?
    START = "start"  #: 2 start the services that change the table, such as Spark, if it is not running
    PREPARE = "prepare"  #: 3 are the inputs still live and unchanged? publish the plan on the table
    REWRITE = "rewrite"  #: 4 write the new files, invisible to readers
    VERIFY = "verify"  #: 5 verify that the output equals the input
    COMMIT = "commit"  #: 6 check again, make the new files visible
    RECORD = "record"  #: 7 one database transaction: completed, figures, superseded versions


class VerificationLevel(StrEnum):
    """The extent of the verification before a commit."""

    FOOTER = "footer"  #: rows, and per leaf column null count, min and max: from Parquet's footers or ORC's values
    HASH = "hash"  #: the same, and an order-free hash of every value


MIN_ROW_GROUP_BYTES = 8 << 20
"""Row groups of at least this size are copied and not merged, unless a rule sets another size.

Measured with 2,000 files of 1 MB that become larger files: with row groups of 10 MB, Spark and DuckDB gain the most
reading time. With copies of the files' own row groups, Spark gains most of it and DuckDB a part of it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteOptions:
    """The policy's settings that the executor of a plan needs."""

    target_file_max_bytes: int
    engine: str = AUTO
    compression: str | None = None
    sort_columns: tuple[str, ...] = ()
    layout: str = "linear"
    verification: VerificationLevel = VerificationLevel.FOOTER
    min_row_group_bytes: int = MIN_ROW_GROUP_BYTES


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

    @property
    def is_split(self) -> bool:
        """True if the group divides a large file into smaller ones."""
        return self.output_files > len(self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Groups of one table that are committed at once."""

    plan_id: str
    table: TableRef
    kind: PlanKind
    groups: tuple[ClusteringGroup, ...]
    options: RewriteOptions
    snapshot_instant: str
    #: the pending instant of another process that this plan executes; None for a plan of lakefold's own
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
    """A plan that failed and would fail again: its ``slices`` are not planned while they are unchanged."""

    plan_id: str
    attempts: int
    error: str
    slices: tuple[FileSlice, ...]

    @property
    def text(self) -> str:
        """The failure, and the remedy."""
        times = f"{self.attempts} times" if self.attempts > 1 else "once"
        return f"failed {times} in plan {self.plan_id}: {self.error}; to try again: lakefold plans retry {self.plan_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclinedPlan:
    """A proposal that a person declined: its ``slices`` are not proposed again while they are unchanged."""

    plan_id: str
    declined_by: str
    #: the text of the decision: that the plan was declined, and why
    explanation: str
    slices: tuple[FileSlice, ...]

    @property
    def text(self) -> str:
        """The person who declined it, and how to run it nevertheless."""
        return (
            f"{self.explanation} (by {self.declined_by}, plan {self.plan_id}); "
            "to rewrite it nevertheless: lakefold plans request"
        )


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

    ``payload`` is the format's own, such as column metrics for its commit. No other code reads it, and comparisons of
    files ignore it.
    """

    partition: str
    path: str
    bytes: int
    rows: int
    payload: object = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupersededVersion:
    """A file that a committed plan replaced; deleted once the retention in force has passed.

    ``path`` is relative to the table's location, or absolute outside it. If names are used again, the path alone does
    not identify the file: path, size and modification time do.

    A relative path follows the table to its present location, for example after its directory was renamed. A format
    whose tables leave their files behind when their location changes uses absolute paths for all files.
    """

    partition: str
    path: str
    #: 0 if the file was gone before its size was read
    bytes: int
    #: the instant whose commit replaced the file
    instant: str
    #: when the file was written; None if the format never uses a name twice, or if the time was not recorded
    modified_at: datetime | None = None

    def difference(self, found_bytes: int, found_modified_at: datetime | None = None) -> str | None:
        """Return why the file at the path now differs from the replaced one; None if no difference is known."""
        if self.bytes and found_bytes != self.bytes:
            return f"another file is at its path: it has {found_bytes} bytes, the replaced file had {self.bytes}"
        if self.modified_at is None or found_modified_at is None:
            return None
        # To the millisecond, which is the database's resolution.
        if abs(found_modified_at - self.modified_at) < timedelta(milliseconds=1):
            return None
        return (
            f"another file is at its path: written {found_modified_at}, the replaced file was written "
            f"{self.modified_at}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedFile:
    """One data file, identified by path, bytes, and the time when it was written in milliseconds.

    ``path`` is relative to the table's location, or absolute outside it.
    """

    path: str
    bytes: int
    modified_ms: int

    @property
    def name(self) -> str:
        """The file name."""
        return self.path.rpartition("/")[2]

    @property
    def directory(self) -> str:
        """The file's directory; '' for the table's own directory."""
        return self.path.rpartition("/")[0]

    @property
    def modified_at(self) -> datetime:
        """When it was written."""
        return _EPOCH + timedelta(milliseconds=self.modified_ms)


def milliseconds_of(moment: datetime) -> int:
    """Return a moment in the form of ``LocatedFile`` and the database."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


RELOCATED_BACK = "back-"
"""The beginning of the token of a relocation that the sweep makes, not a plan."""

UNDONE = "undone-"
"""The beginning of the token that records that a writer undid a relocation, whose token follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocation:
    """A partition's relocation from ``previous_location`` to ``location``, both directories, with its ``files`` there.

    ``token`` is the relocation's name in the catalog; no other relocation of the partition has it.
    """

    partition: str
    token: str
    previous_location: str
    location: str
    files: tuple[LocatedFile, ...]
    #: when the catalog's partition was created, in seconds; it differs once the partition is dropped and added again
    partition_created_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A commit on a table that holds the result of a plan.

    ``instant`` names the commit on the table's own timeline; ``outputs`` and ``superseded`` are the files that it added
    and replaced, as the table itself records them. ``epoch`` is the epoch of the attempt that made the commit; None if
    the table does not record the epoch, for example if another process executed the plan. ``relocations`` are filled by
    formats that relocate partitions. ``skipped`` are groups that were rewritten and had to be left out at the last
    moment, by their index in the plan that was prepared.
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
    """The base files of a completed plan in one partition, before and after the plan."""

    partition: str
    files_before: int
    bytes_before: int
    files_after: int
    bytes_after: int


def partition_milliseconds(figures: Sequence[PartitionFigures], spent: int) -> Sequence[int]:
    """Return each partition's part of the ``spent`` milliseconds, in proportion to the bytes that were read.

    The parts add up to ``spent``, unless no byte was read.
    """
    read = sum(item.bytes_before for item in figures)
    upto = [round(spent * done / read) if read else 0 for done in accumulate(item.bytes_before for item in figures)]
    return [after - before for before, after in pairwise([0, *upto])]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteProgress:
    """The progress of a rewrite, and the address of the Spark UI with its jobs, if there is one.

    ``cpu_seconds`` is the CPU time of its tasks so far; None if it is not counted.
    """

    bytes_done: int
    bytes_total: int
    rows_done: int = 0
    spark_ui: str | None = None
    cpu_seconds: float | None = None


def sum_if_known(parts: Collection[float | None]) -> float | None:
    """Return the sum of ``parts``, such as the CPU seconds of several rewrites; None if one of them is not known."""
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedWork:
    """The uncommitted files that an attempt is about to write to its table, in terms of its format.

    ``token`` is a name such as an instant or a version's directory. No other attempt has it, unless attempts share an
    adopted instant. ``paths`` are the prefixes of the paths of all its files: names of files, directories, or any other
    prefix that is the attempt's alone, since its withdrawal removes every file with the prefix. They are relative or
    absolute like the paths of ``SupersededVersion``. A format that finds the files on the table's own timeline leaves
    ``paths`` empty.
    """

    token: str
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One executor's claim on one plan. Every later write to the store carries ``epoch`` and fails if it is stale."""

    plan: Plan
    epoch: int
    attempt: int
    executor: str
    lease_until: datetime
    #: the work that earlier epochs of this plan staged, newest last
    staged: tuple[StagedWork, ...] = ()
    milliseconds: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    #: why an earlier executor of this attempt left the plan inflight
    previous_error: str | None = None
    #: W3C trace context of the planning, if tracing is on
    traceparent: str | None = None
    #: why the plan must not run under its table's present registration; None if it may run
    obsolete_reason: str | None = None
