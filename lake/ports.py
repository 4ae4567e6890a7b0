# SPDX-License-Identifier: Apache-2.0
"""The protocols of a table format. None of them knows one by name.

``TableFormat`` observes a table without a JVM, ``TableWriter`` changes it; what only some formats add is in
``lake.capabilities``. Implementations raise only the outcomes of ``lake.errors``.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from lake.engines import RewriteEngine
from lake.model import SearchFailure, Snapshot, TableRef
from lake.plan import (
    Commit,
    OutputFile,
    Plan,
    RewriteProgress,
    SkippedGroup,
    StagedWork,
    SupersededVersion,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SparkProvider = Callable[[], "SparkSession"]
"""Gives the process's one Spark session, starting it at the first call."""

ProgressCallback = Callable[[RewriteProgress], None]
"""Called from time to time during a rewrite; must not raise. What its tasks used is what the last call says."""

StagingJournal = Callable[[StagedWork], None]
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
    OWN_EXPIRY = "own_expiry"  #: superseded files are deleted by the table's own expiry, not one by one
    TABLE_LOCK = "table_lock"  #: a lock of the table keeps apart whoever changes it, lakefold's own processes included
    #: a commit of anybody fails, or looks again, where another one was faster: nothing has to be said of writers
    OPTIMISTIC_COMMITS = "optimistic_commits"
    NATIVE_GROUPS = "native_groups"  #: a strategy named after the format groups slices as the format's own service does
    SORTING = "sorting"  #: a rewrite can order the rows by columns, in the layouts of the policy


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequirements:
    """What a Spark session must have for tables of one format: packages as Maven names them, and Spark's settings."""

    packages: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPlan:
    """A plan made known to its table, not yet executed.

    ``instant`` is the token of what is staged, of a table with a timeline the pending instant; ``groups`` the indices
    into ``plan.groups`` that are still live and unchanged; ``left_out`` the others with their reasons; ``notes`` are
    choices worth showing to a person, such as the engine. ``evidence`` is the format's own: what it saw of the table
    and compares once more at the commit, such as its schema; nobody else looks into it. ``volatile`` are the top-level
    columns of data files that the rewrite may change, such as the name of the file a row is in; the receipt passes
    over them.
    """

    plan: Plan
    epoch: int
    instant: str
    live_groups: tuple[int, ...]
    skipped: tuple[SkippedGroup, ...] = ()
    notes: tuple[str, ...] = ()
    preconditions: object = None
    volatile_columns: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """New files, written and invisible to readers."""

    prepared: PreparedPlan
    outputs: tuple[OutputFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVerification:
    """What ``verify`` found. Empty tuples mean the table is as its last commits say.

    ``missing`` live files that are not in storage, ``wrong_size`` those whose size differs from the commit's,
    ``resurrected`` superseded files that are live again, ``unowned`` data files in storage that belong to no
    slice, pending plan or superseded version. Paths are those of ``lake.storage.locations.resolve_path``. ``rows`` is None unless
    asked for, and so are ``contradictions``: commits whose rows do not follow from the commits before them, each in a
    sentence. ``rows_expected`` is None, too, where nothing but the files says how many rows there are.
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
class DeletionResult:
    """What became of superseded versions that were to be deleted.

    ``left`` are those, by index, that stayed and are not lakefold's to delete any more, each with the reason: another
    file is at the path by now, or the table's own expiry has yet to delete it (``Capability.OWN_EXPIRY``). All others
    are gone. ``bytes_freed`` counts those of ``versions`` that went, whatever else an expiry has deleted.
    """

    bytes_freed: int = 0
    retained: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))


class TableWriter(AbstractContextManager["TableWriter"], Protocol):
    """Changes one table through its own format's commit protocol. Used by one thread from open to close."""

    #: The longest time from the last look at whose plan it is until nothing of a commit can land any more, timeouts
    #: of a catalog included. Zero where a lock of the table keeps everybody else away until the commit has ended.
    max_commit_duration: timedelta
    #: Set by whoever runs a plan. ``prepare`` calls it, once for whatever it stages and before the first file of that
    #: exists: so everything that an attempt may have left is known, whenever it died.
    journal: StagingJournal

    def start(self) -> None:
        """Have what the table is changed with, such as a Spark session, started where there is none (step 2)."""

    def prepare(self, plan: Plan, epoch: int) -> PreparedPlan:
        """Check every slice against the table and make the plan known to it (step 3).

        What ``rewrite`` may write, and where, is settled here and told to ``journal``.
        An adopted plan is known already: nothing is published, and it is taken whole or not at all.
        Waits a while for writers that are inflight on the partitions. Raises Conflict when they leave no gap or no
        group is left, Transient when the table's lock is taken, Rejected when the table can't be served.
        """

    def rewrite(self, prepared: PreparedPlan, report: ProgressCallback) -> Rewrite:
        """Write the new files, invisible to readers (step 4). Raises Transient, Rejected or Conflict.

        Each goes to where ``prepare`` said. A writer of the format's own that chooses names itself, under directories
        that others write to as well, can't be had for it: nobody could tell its files from theirs.
        A Conflict with ``SkippedGroup`` groups in its ``args[1]`` names inputs that can't be read.
        """

    def commit(self, rewrite: Rewrite) -> Commit:
        """Check the inputs again and make the new files the table, plan id and epoch inside (step 6).

        Raises Conflict where a writer was faster or the attempt was withdrawn, and where neither can be told any more
        because the table has forgotten what was done to it since ``prepare``; Transient where it may succeed if tried
        again, such as with a lock that is taken; Rejected where the table can't be served any more. All of these say
        that nothing has landed, and the table is asked once more before that is believed. Integrity says that what
        landed can't be trusted: where the table has it, it is recorded and the table halted. What ``fence`` raises goes
        through. CommitUnknown, like any error that is no outcome, says that nobody can tell: a call whose answer was
        lost is never Transient. Then nothing is deleted until the table has been asked.
        """

    def withdraw(
        self,
        plan_id: str,
        instants: Collection[str] | None,
        *,
        staged: Collection[StagedWork] = (),
        epoch: int | None = None,
    ) -> int:
        """Withdraw what ``instants`` of this plan left uncommitted; the number of instants for which that did anything.

        ``staged`` is what the database knows of them: a format without a timeline withdraws these, and nothing else.

        ``None`` means every pending instant of the table that names ``plan_id``, recorded or not: what a take-over
        needs, because a killed executor may have published an instant that it could not record any more. ``epoch`` is
        the caller's: what an executor that took the plan over since is working on stays. Of an instant that is gone
        already the files are removed that this writer's own job wrote after that.
        Idempotent; never touches a completed instant, nor any file that readers see, though the table may have
        forgotten which commit made it so. Raises where something may have stayed; it is asked again then.
        """

    def delete(self, versions: Sequence[SupersededVersion]) -> DeletionResult:
        """Delete superseded files through the format, in the order given; what became of them.

        Files already gone count as deleted; one that ``SupersededVersion.difference``, asked right before its deletion,
        stays. With ``Capability.OWN_EXPIRY`` the table is asked to expire what came before the commits that superseded
        them, no later state; what an older state that it keeps still has is left to it. Raises Conflict where a version
        is live, pending or kept by a savepoint, before anything of its commit is deleted; what another error leaves is
        deleted by the next call.
        """

    def cancel(self) -> None:
        """Stop a running ``rewrite`` of this writer from another thread."""


class FormatFeatures(Protocol):
    """What a table format says that it can do."""

    name: str
    #: what its tables can be asked for beyond what all are
    capabilities: frozenset[Capability]
    #: services of its own that ``maintain`` can be asked for, by their names in ``table_services``
    services: tuple[str, ...]


class TableFormat(FormatFeatures, Protocol):
    """Observes tables of one format; needs no JVM."""

    #: what the Spark session of a process that changes such tables is started with
    session_requirements: SessionRequirements

    def discover(self, location: str) -> Iterator[TableRef | SearchFailure]:
        """Tables at ``location`` (a table, or a directory searched for tables), names from the table itself.

        A part of it that can't be searched is yielded as ``SearchFailure`` and hides no table elsewhere. Yields nothing
        where only a catalog tells of tables. Raises Rejected where there is no such directory, Rejected or Transient
        where ``location`` itself can't be read.
        """

    def check(self, table: TableRef) -> None:
        """Raise Rejected with rule, value and remedy when this table can't be served; Transient when unreachable.

        TableGone where there is none any more, though the storage, and the catalog, answer.
        """

    def snapshot(self, table: TableRef, partitions: Collection[str] | None = None) -> Snapshot:
        """Latest file slices of all or of the named partitions; those of pending plans carry a busy reason.

        Partitions that the table does not have are left out. Raises TableGone, Rejected where the table can't be read,
        Transient where it can't be reached, or where files go on vanishing while it is read.
        """

    def find_commit(self, table: TableRef, plan_id: str) -> Commit | None:
        """The completed commit that names ``plan_id``, however old; None where the table denies that there is one.

        With nothing of the plan left to commit a denial is the last word, so whoever can't ask says so: Transient or
        Rejected, TableGone too, are no denial. A table that has forgotten its older commits may deny them
        (``lake.capabilities.FindsStaged``). Raises CommitLost where a commit names the plan and what it did is gone.
        """

    def recent_commits(self, table: TableRef, plan_ids: Collection[str]) -> Mapping[str, Commit]:
        """Those of ``plan_ids`` that recent commits name, each with its commit; old ones may be missed.

        Asked at every sweep, so it is cheap. Raises as ``committed`` does.
        """

    def deletion_blockers(self, table: TableRef, versions: Sequence[SupersededVersion]) -> Mapping[str, str | None]:
        """For each version's path: None when it may be deleted now, else the reason why not.

        No two of ``versions`` have one path. Raises as ``snapshot`` does.
        """

    def obsolete_deletions(self, table: TableRef, versions: Sequence[SupersededVersion]) -> Mapping[int, str]:
        """Those of ``versions``, by index, that are nobody's to delete any more, each with the reason.

        What replaced them was undone, or they are gone already. Says nothing of what only time would tell. Raises as
        ``snapshot`` does.
        """

    def verify(self, table: TableRef, superseded: Sequence[SupersededVersion], *, rows: bool) -> TableVerification:
        """Compare storage with the table's last commits; ``superseded`` are those of its versions that wait.

        Raises as ``snapshot`` does, and Rejected where ``rows`` can't be counted.
        """

    def describe(self, table: TableRef) -> Mapping[str, str]:
        """Facts about the table worth showing to a person (type, version, timeline, indexes, locks).

        ``writers`` among them is what the table shows of its other writers and of their locks. Raises as ``snapshot``
        does.
        """

    def writer(self, table: TableRef, spark: SparkProvider, engines: Sequence[RewriteEngine] = ()) -> TableWriter:
        """What changes the table, once entered. ``engines`` rewrite files, unless the format brings its own.

        Made without looking at the table or calling ``spark``.
        """
