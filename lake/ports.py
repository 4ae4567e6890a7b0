# SPDX-License-Identifier: Apache-2.0
"""The protocols between rooms. None of them knows a table format by name.

``TableFormat`` observes a table without a JVM; ``TableWriter`` changes it; ``PlanStore`` is the part of the
database that executors use. Implementations raise only the outcomes of ``lake.errors``.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pyarrow as pa

from lake.engines import Engine
from lake.model import Snapshot, TableRef
from lake.plan import (
    Claim,
    ClusteringGroup,
    Commit,
    Keeper,
    LeftOut,
    OutputFile,
    PartitionFigures,
    Plan,
    PlanKind,
    PlanState,
    Progress,
    Staged,
    Step,
    SupersededVersion,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SparkProvider = Callable[[], "SparkSession"]
"""Gives the process's one Spark session, starting it at the first call."""

Report = Callable[[Progress], None]
"""Called from time to time during a rewrite; must not raise."""

Journal = Callable[[Staged], None]
"""Writes to the database what an attempt is about to stage; raises where that is not certain, or may not happen."""


class Capability(StrEnum):
    """What a table format can do beyond observing, rewriting and deleting; whoever needs it asks for it first.

    A table of a format without it is served all the same. What asks for it, a plan's kind, a strategy, a service or a
    command, is refused for that table with this reason.
    """

    COMPACTION = "compaction"  #: slices may have deltas, and a plan of that kind folds them into base files
    ADOPTION = "adoption"  #: rewrites that another process scheduled on the table can be executed as a plan
    TABLE_SERVICES = "table_services"  #: clean, archival and rollback of the table itself can be run for it
    ROLL_BACK = "roll_back"  #: what another process began on the table and left can be taken back
    SAVEPOINTS = "savepoints"  #: owners can keep versions of the table, which nothing deletes
    MERGED_READS = "merged_reads"  #: rows are told by merging a slice's files, not by the data files alone
    REPAIR = "repair"  #: replaced files can become live again, and are then found and taken out
    TABLE_LOCK = "table_lock"  #: a lock of the table keeps apart whoever changes it, lakefold's own processes included
    NATIVE_GROUPS = "native_groups"  #: a strategy named after the format groups slices as the format's own service does
    SORTING = "sorting"  #: a rewrite can order the rows by columns, in the layouts of the policy


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionNeeds:
    """What a Spark session must have for tables of one format: packages as Maven names them, and Spark's settings."""

    packages: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A plan made known to its table, not yet executed.

    ``instant`` is the token of what is staged, of a table with a timeline the pending instant; ``groups`` the indices
    into ``plan.groups`` that are still live and unchanged; ``left_out`` the others with their reasons; ``notes`` are
    choices worth showing to a person, such as the engine. ``evidence`` is the format's own: what it saw of the table
    and compares once more at the commit, such as its schema; nobody else looks into it.
    """

    plan: Plan
    epoch: int
    instant: str
    groups: tuple[int, ...]
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()
    evidence: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """New files, written and invisible to readers."""

    prepared: Prepared
    outputs: tuple[OutputFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What ``verify`` found. Empty tuples mean the table is as its last commits say.

    ``missing`` live files that are not in storage, ``wrong_size`` those whose size differs from the commit's,
    ``resurrected`` superseded files that are live again, ``unowned`` data files in storage that belong to no
    slice, pending plan or superseded version. Paths are relative to the table. ``rows`` is None unless asked for, and
    so are ``contradictions``: commits whose rows do not follow from the commits before them, each in a sentence.
    """

    files: int
    bytes: int
    missing: tuple[str, ...] = ()
    wrong_size: tuple[str, ...] = ()
    resurrected: tuple[str, ...] = ()
    unowned: tuple[str, ...] = ()
    rows: int | None = None
    rows_expected: int | None = None
    contradictions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """Something on a table's own timeline that was begun or only scheduled, and did not complete.

    ``action`` is the format's word for it. ``begun`` tells a plan somebody executes from one that only waits.
    ``last_sign`` is the newest trace of whoever works on it, ``alive`` whether that is recent enough to leave it
    alone. ``plan_id`` is the plan of lakefold's that it carries, None for somebody else's. A scheduled rewrite has
    its ``kind``, ``groups`` and the ``sort_columns`` it asks for; ``refusal`` says why lakefold could not execute it.
    ``stays`` says that a plan of lakefold's can't be withdrawn, since writers built on it: it has to be executed.
    """

    instant: str
    action: str
    begun: bool
    since: datetime
    last_sign: datetime
    alive: bool
    plan_id: str | None = None
    kind: PlanKind | None = None
    groups: tuple[ClusteringGroup, ...] = ()
    sort_columns: tuple[str, ...] = ()
    refusal: str | None = None
    stays: bool = False

    @property
    def dead(self) -> bool:
        """Begun by somebody else who gives no sign of life any more."""
        return self.begun and not self.alive and self.plan_id is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resurrected:
    """A file group that readers see although a completed commit, ``instant``, took it out of the table.

    ``files`` are all that is in storage of it, paths relative to the table with their bytes. ``rows`` are read twice,
    None where nobody has counted them. ``refusal`` says why the group can't be taken out again now.
    """

    partition: str
    file_id: str
    instant: str
    files: Mapping[str, int]
    rows: int | None = None
    refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """What became of superseded versions that were to be deleted.

    ``left`` are those, by index, that stayed and are not lakefold's to delete any more, each with the reason: another
    file is at the path by now, or the format deletes by its own retention only. All others are gone.
    """

    bytes_freed: int = 0
    left: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))


class TableWriter(AbstractContextManager["TableWriter"], Protocol):
    """Changes one table through its own format's commit protocol. Used by one thread from open to close."""

    #: The longest time from the last look at whose plan it is until nothing of a commit can land any more, timeouts
    #: of a catalog included. Zero where a lock of the table keeps everybody else away until the commit has ended.
    commit_takes: timedelta
    #: Set by whoever runs a plan. ``prepare`` calls it, once for whatever it stages and before the first file of that
    #: exists: so everything that an attempt may have left is known, whenever it died.
    journal: Journal

    def prepare(self, plan: Plan, epoch: int) -> Prepared:
        """Check every slice against the table and make the plan known to it (step 2).

        An adopted plan is known already: nothing is published, and it is taken whole or not at all.
        Waits a while for writers that are inflight on the partitions. Raises Conflict when they leave no gap or no
        group is left, Transient when the table's lock is taken, Rejected when the table can't be served.
        """

    def rewrite(self, prepared: Prepared, report: Report) -> Rewrite:
        """Write the new files, invisible to readers (step 3). Raises Transient, Rejected or Conflict.

        A Conflict with ``LeftOut`` groups in its ``args[1]`` names inputs that can't be read.
        """

    def commit(self, rewrite: Rewrite) -> Commit:
        """Check the inputs again and make the new files the table, plan id and epoch inside (step 5).

        Raises Conflict when a writer was faster, CommitUnknown when nobody can tell.
        """

    def discard(
        self,
        plan_id: str,
        instants: Collection[str] | None,
        *,
        staged: Collection[Staged] = (),
        adopted: str | None = None,
        epoch: int | None = None,
    ) -> int:
        """Withdraw what ``instants`` of this plan left uncommitted; the number of instants for which that did anything.

        ``staged`` is what the database knows of them: a format without a timeline withdraws these, and nothing else.

        ``adopted`` is the instant of an adopted plan. What was begun of it is taken back and its files are removed,
        but the instant stays scheduled: it belongs to whoever scheduled it.

        ``None`` means every pending instant of the table that names ``plan_id``, recorded or not: what a take-over
        needs, because a killed executor may have published an instant that it could not record any more. ``epoch`` is
        the caller's: what an executor that took the plan over since is working on stays. Of an instant that is gone
        already the files are removed that this writer's own job wrote after that.
        Idempotent; never touches a completed instant, nor the work of another attempt that has begun since, where
        attempts share an instant.
        """

    def delete(self, versions: Sequence[SupersededVersion]) -> Deletion:
        """Delete superseded files through the format, in the order given; what became of them.

        Files already gone count as deleted; one that ``SupersededVersion.differs``, asked right before its deletion,
        stays. Raises Conflict where a version is live, pending or kept by a savepoint, before anything of its commit
        is deleted.
        """

    def cancel(self) -> None:
        """Stop a running ``rewrite`` of this writer from another thread."""


@runtime_checkable
class RunsServices(Protocol):
    """What a ``TableWriter`` adds whose tables have services of their own (``Capability.TABLE_SERVICES``)."""

    def maintain(self, wanted: Collection[str], retained: Sequence[SupersededVersion]) -> Sequence[str]:
        """Run the table's own services ``wanted`` (clean, archive, rollback); what each did, in words.

        ``retained`` are this table's superseded versions, which no service deletes. Savepoints are respected.
        """


@runtime_checkable
class RollsBack(Protocol):
    """What a ``TableWriter`` adds where work of others can be taken back (``Capability.ROLL_BACK``)."""

    def roll_back(self, instant: str) -> str:
        """Take back what another process began as ``instant`` and left; what was done, in words.

        Of a plan of lakefold's the instant is withdrawn, whatever database knows the plan: ask yours first. Raises
        Conflict where the instant is completed or its owner is alive, Rejected for what can't be taken back.
        """


@runtime_checkable
class MergedReads(Protocol):
    """What a ``TableWriter`` adds when its data files do not always tell the rows that a reader of the table sees.

    That is so where slices may hold logs, or where the table's columns may have changed since a file was written.
    """

    def read_inputs(self, prepared: Prepared, partition: str, *, evolved: bool = False) -> Iterator[pa.RecordBatch]:
        """The rows of the live groups' slices in ``partition`` as a reader sees them, base and logs merged.

        The columns are those of the data files, meta columns included; with ``evolved`` those that the table has now,
        under their names and types of today. Called after ``rewrite``, before ``commit``.
        """


@runtime_checkable
class Fenced(Protocol):
    """What a ``TableWriter`` adds when it asks once more, under the table's lock, whether it may still go on.

    ``fence`` is called right before the plan is made known to the table, right before its commit, and right before
    superseded files are deleted. It raises where that may not happen any more: another executor has taken the plan
    over, an operator cancelled it, or another cleaner was there meanwhile.
    """

    fence: Callable[[], None]


@runtime_checkable
class TakesOut(Protocol):
    """What a ``TableWriter`` adds where replaced file groups can become live again."""

    def take_out(self) -> Sequence[Resurrected]:
        """Delete every resurrected file group that has no refusal, through the format; those that went."""


@runtime_checkable
class FindsResurrected(Protocol):
    """What a ``TableFormat`` adds where replaced file groups can become live again."""

    def resurrected(self, table: TableRef) -> Sequence[Resurrected]:
        """File groups that readers see although a completed commit took them out."""


@runtime_checkable
class HasTimeline(Protocol):
    """What a ``TableFormat`` adds whose tables tell what was begun on them and has not ended.

    It finds there what is staged, and what other processes scheduled (``Capability.ADOPTION``). Ask for it through
    ``lake.optional``.
    """

    def pending(self, table: TableRef) -> Mapping[str, str]:
        """Pending instants on the table's timeline that name a plan of lakefold's, each with that plan's id."""

    def unfinished(self, table: TableRef) -> Sequence[Unfinished]:
        """Everything pending on the table's timeline, oldest first, whoever began or scheduled it."""


@runtime_checkable
class FindsStaged(Protocol):
    """What a ``TableFormat`` adds whose tables don't tell what is staged: then only the database does.

    The sweep asks for what ended attempts left, and goes on asking for a while: an executor that slept, or a task on
    another host, may write after its attempt was withdrawn.
    """

    def left_of(self, table: TableRef, staged: Collection[Staged]) -> Collection[str]:
        """The tokens of ``staged`` of which something is in storage that no commit made the table's. Cheap."""


@runtime_checkable
class RemovesLateFiles(Protocol):
    """What a ``TableWriter`` adds when files can be written for a plan after its withdrawal or commit."""

    def remove_late_files(self, instants: Collection[str]) -> Sequence[str]:
        """Delete what was written under ``instants`` when these were over already; the paths of what went."""


@runtime_checkable
class FindsLateFiles(Protocol):
    """What a ``TableFormat`` adds when files can be written for a plan after its withdrawal or commit.

    An executor that slept, a process that outlived its parent or a task on another host does so, and need not be there
    any more to delete them.
    """

    def late_files(self, table: TableRef) -> Collection[str]:
        """Instants of lakefold's, whichever database knows their plans, that are over and have files of no commit.

        Cheap, since it is asked at every sweep: looks at one instant grow rarer, and end.
        """


class TableFormat(Protocol):
    """Observes tables of one format; needs no JVM."""

    name: str
    #: top-level columns of data files that a rewrite may change, such as the name of the file a row is in
    volatile_columns: frozenset[str]
    #: what its tables can be asked for beyond this protocol's own
    capabilities: frozenset[Capability]
    #: services of its own that ``maintain`` can be asked for, by their names in ``table_services``
    services: tuple[str, ...]
    #: what the Spark session of a process that changes such tables is started with
    session: SessionNeeds

    def discover(self, location: str) -> Iterator[TableRef]:
        """Tables at ``location`` (a table, or a directory searched for tables), names from the table itself."""

    def check(self, table: TableRef) -> None:
        """Raise Rejected with rule, value and remedy when this table can't be served; Transient when unreachable."""

    def snapshot(self, table: TableRef, partitions: Collection[str] | None = None) -> Snapshot:
        """Latest file slices of all or of the named partitions; those of pending plans carry a busy reason."""

    def committed(self, table: TableRef, plan_id: str) -> Commit | None:
        """The completed commit that names ``plan_id``, looked up in the active then the archived timeline."""

    def landed(self, table: TableRef, plan_ids: Collection[str]) -> Mapping[str, Commit]:
        """Those of ``plan_ids`` that completed commits of the active timeline name, each with its commit."""

    def superseded_deletable(self, table: TableRef, versions: Sequence[SupersededVersion]) -> Mapping[str, str | None]:
        """For each version's path: None when it may be deleted now, else the reason why not."""

    def superseded_closed(self, table: TableRef, versions: Sequence[SupersededVersion]) -> Mapping[int, str]:
        """Those of ``versions``, by index, that are nobody's to delete any more, each with the reason.

        What replaced them was undone, or they are gone already. Says nothing of what only time would tell.
        """

    def verify(self, table: TableRef, superseded: Sequence[SupersededVersion], *, rows: bool) -> Verification:
        """Compare storage with the table's last commits."""

    def describe(self, table: TableRef) -> Mapping[str, str]:
        """Facts about the table worth showing to a person (type, version, timeline, indexes, locks)."""

    def writer(self, table: TableRef, spark: SparkProvider, engines: Sequence[Engine] = ()) -> TableWriter:
        """Open the table for changing it. ``engines`` are there to rewrite files, unless the format brings its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A superseded version the cleaner may look at, with its row id in the store."""

    row_id: int
    plan_id: str
    version: SupersededVersion
    superseded_at: datetime
    #: when a deletion of the file was begun; whether that came to pass is not known
    deleting_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """What an attempt staged on which no executor works any more. ``is_old``: nobody is to write to it by now."""

    plan_id: str
    staged: Staged
    is_old: bool


class PlanStore(Protocol):
    """What executors read and write. Times compare with the database's clock."""

    def claim(self, executor: str) -> Claim | None:
        """Take the oldest due requested plan by compare-and-set; None when there is none.

        Skips paused and halted tables and tables at ``max_inflight_per_table``. Increments epoch and attempt.
        """

    def heartbeat(self, claim: Claim, progress: Progress | None = None, *, at_least: timedelta = timedelta()) -> bool:
        """Extend the lease, ``at_least`` for so long; True when a cancel was requested. Raises LeaseLost.

        A lease never becomes shorter. With ``at_least`` nobody takes the plan over, either, until that time has passed
        once more after its end, unless its executor is known to be gone.
        """

    def stage(self, claim: Claim, staged: Staged) -> None:
        """Record what this attempt is about to stage. Raises LeaseLost."""

    def leftovers(self, table: TableRef) -> Sequence[Leftover]:
        """What attempts at plans of the table staged and neither committed nor is known to have left nothing.

        Without what an executor that holds its plan works on.
        """

    def nothing_left(self, leftovers: Collection[Leftover]) -> None:
        """Record that nothing is left of these, and nothing will come."""

    def step(self, claim: Claim, step: Step, *, milliseconds: int = 0) -> None:
        """Record that ``step`` ended. Raises LeaseLost."""

    def note(self, claim: Claim, text: str) -> None:
        """Add a line to the plan's history. Raises LeaseLost."""

    def stay(self, claim: Claim, error: str) -> None:
        """Record why a plan stays inflight; the first cause of an attempt is kept. Raises LeaseLost."""

    def leave_out(self, claim: Claim, left_out: Sequence[LeftOut]) -> None:
        """Record groups that are not part of the commit, and quarantined paths. Raises LeaseLost."""

    def complete(
        self, claim: Claim, commit: Commit, figures: Sequence[PartitionFigures], milliseconds: Mapping[str, int]
    ) -> None:
        """One transaction: completed, figures, superseded versions, partitions freed. Raises LeaseLost.

        Idempotent: a second call of the same claim with the same commit, as after a lost answer, changes nothing.
        """

    def uncommitted(self, table: TableRef) -> Collection[str]:
        """Plans of the table that somebody claimed once and that ended cancelled or failed."""

    def complete_late(self, commit: Commit, figures: Callable[[Plan], Sequence[PartitionFigures]]) -> bool:
        """Complete a plan that ended cancelled or failed although its table holds ``commit``; False for any other."""

    def requeue(self, claim: Claim, error: str) -> bool:
        """Transient: back to requested with a backoff, or failed after ``max_attempts`` (then False)."""

    def fail(self, claim: Claim, error: str, *, halt: bool = False) -> None:
        """Rejected or Integrity: failed, partitions freed; with ``halt`` the table is halted."""

    def cancel(self, claim: Claim, reason: str, *, actor: str) -> None:
        """Conflict or an operator's wish: cancelled, partitions freed. Raises LeaseLost."""

    def expired(self, executor: str) -> Claim | None:
        """Take over one inflight plan whose lease has run out (epoch + 1, new lease); None when there is none.

        For a while after its end, its grace, a plan is taken over only from an executor that is known to be gone:
        once a commit was to begin, and with an adopted plan for long, since a successor has to use the same instant.
        """

    def due_in(self) -> timedelta | None:
        """How long until a requested plan is due or an inflight lease runs out; zero when that is now.

        None when no plan is live but those of paused and halted tables.
        """

    def plan_state(self, plan_id: str) -> PlanState | None:
        """The state of a plan, None when this database does not know it."""

    def keep(self, table: TableRef, partitions: Collection[str], keeper: Keeper) -> Collection[str]:
        """Hold, or go on holding, ``partitions`` for ``keeper`` for some minutes; those that nobody else holds.

        While a keeper holds a partition no plan is made there, and while a plan lives no keeper holds its partitions.
        """

    def release(self, keeper: Keeper) -> None:
        """Give up all that ``keeper`` holds."""

    def due(self, table: TableRef, retention: timedelta, limit: int = 10_000) -> Sequence[Due]:
        """Superseded versions older than ``retention``, in the order in which they were superseded."""

    def superseded(self, table: TableRef) -> Sequence[Due]:
        """All superseded versions of the table that are not deleted yet, in the order in which they were superseded."""

    def begin_deleting(self, rows: Collection[int]) -> Collection[int]:
        """Mark that these rows' files are about to be deleted; those of them that still wait for it."""

    def mark_deleted(self, rows: Sequence[int]) -> None:
        """Set ``deleted_at`` now for these rows."""

    def close_superseded(self, rows: Mapping[int, str]) -> None:
        """End the wait of these rows, each for its reason: their files are not lakefold's to delete any more."""
