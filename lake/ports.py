# SPDX-License-Identifier: Apache-2.0
"""The protocols of a table format. They are independent of any single format.

``TableFormat`` observes a table without a JVM, ``TableWriter`` changes it; optional protocols are in
``lake.capabilities``. Implementations raise only the outcomes of ``lake.errors``.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, Self

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
"""Returns the process's one Spark session and starts it at the first call."""

FormatLoader = Callable[[str], "TableFormat"]
"""Returns the adapter of the table format of this name. Raises Rejected if there is no such format."""

ProgressCallback = Callable[[RewriteProgress], None]
"""Called from time to time during a rewrite; must not raise. The last call has the CPU time of all its tasks."""

StagingJournal = Callable[[StagedWork], None]
"""Records the work that an attempt is about to stage. Raises if the record is uncertain or not permitted."""


class Capability(StrEnum):
    """The optional abilities of a table format. Callers check for an ability before they use it.

    A table of a format without the capability is served nevertheless. A plan kind, strategy, service or command that
    needs the capability is refused for this table, with the missing capability as the reason. ``description`` is its
    effect, in words for users. A capability with methods follows from the writer's protocol for it
    (``lake.capabilities.WRITER_PROTOCOLS``); a format states only the others.
    """

    description: str

    def __new__(cls, value: str, description: str) -> Self:
        member = str.__new__(cls, value)
        member._value_, member.description = value, description
        return member

    COMPACTION = (
        "compaction",
        "updates and deletes that are stored beside the data files are merged into new data files",
    )
    ADOPTION = "adoption", "rewrites that writers schedule are executed (`adopt_pending`)"
    TABLE_SERVICES = "table_services", "the table's own services are run (`table_services`)"
    ROLL_BACK = "roll_back", "uncommitted work of a dead process is rolled back (`lakefold tables rollback`)"
    SAVEPOINTS = "savepoints", "versions that the owner saves are never deleted"
    MERGED_READS = "merged_reads", "the verification compares rows as a reader of the table merges them"
    REPAIR = "repair", "replaced files that are read again are found and removed (`lakefold tables repair`)"
    ORPHAN_REMOVAL = (
        "orphan_removal",
        "files that no version of the table lists are found and removed (`lakefold tables remove-orphans`)",
    )
    OWN_EXPIRY = (
        "own_expiry",
        "the table's own expiry deletes replaced files, together with the versions that list them",
    )
    TABLE_LOCK = "table_lock", "a lock of the table excludes concurrent changes"
    OPTIMISTIC_COMMITS = (
        "optimistic_commits",
        "a commit gives way if another commit was faster: `concurrency` need not be set",
    )
    NATIVE_GROUPS = "native_groups", "files are grouped as the format's own service groups them (`strategy`)"
    SORTING = "sorting", "a rewrite sorts rows (`sort_columns`, `layout`)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequirements:
    """Requirements on the Spark session for tables of one format: packages by their Maven names, Spark settings."""

    packages: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPlan:
    """A plan that is published on its table and not yet executed.

    ``instant`` is the token of the staged work; of a table with a timeline it is the pending instant. ``live_groups``
    are the indices into ``plan.groups`` that are still live and unchanged; ``skipped`` are the others with their
    reasons; ``notes`` are choices worth showing to a person, such as the engine. ``preconditions`` are the format's
    own: the observed state of the table, such as its schema, which the commit compares once more. No other code reads
    them. ``volatile_columns`` are the top-level columns of data files that the rewrite may change, such as the name of
    a row's file; the verification ignores them.
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
    """The result of ``verify``. Empty tuples mean that the table is as its last commits state.

    ``missing`` are live files that are not in storage; ``wrong_size`` are live files whose size differs from the
    commit's. ``resurrected`` are superseded files that are live again; ``unowned`` are data files in storage that
    belong to no slice, pending plan or superseded version. Paths are those of ``lake.storage.locations.resolve_path``.
    ``rows`` is None unless requested. ``contradictions`` are filled only then: commits that were not built on the
    newest files before them, or whose number of rows does not agree with these files, each in a sentence.
    ``rows_expected`` is also None if only the files contain the numbers of rows.
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
    """The result of the deletion of superseded versions.

    ``retained`` has, by index, each version that stays and that lakefold may no longer delete, with the reason: another
    file is at the path, or the table's own expiry has yet to delete it (``Capability.OWN_EXPIRY``). All other versions
    are gone. ``bytes_freed`` counts the requested versions that were deleted, not other files that an expiry deleted.
    """

    bytes_freed: int = 0
    retained: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))


class TableWriter(AbstractContextManager["TableWriter"], Protocol):
    """Changes one table through its own format's commit protocol. Used by one thread from open to close."""

    #: A commit may still be applied until this time after the last check of the plan's ownership; the timeouts of a
    #: catalog are included. Zero if a lock of the table excludes all other changes until the commit has ended.
    max_commit_duration: timedelta
    #: The caller that runs a plan sets this function. ``prepare`` calls it once, for all files that it stages, before
    #: the first of them exists. So all uncommitted work of an attempt is recorded, whenever the attempt dies.
    journal: StagingJournal

    def start(self) -> None:
        """Start the services that change the table, such as a Spark session, if they are not running (step 2)."""

    def prepare(self, plan: Plan, epoch: int) -> PreparedPlan:
        """Check every slice against the table and publish the plan on the table (step 3).

        This step determines the files that ``rewrite`` may write, and records them with ``journal``.
        An adopted plan is on the table already: nothing is published, and it is executed whole or not at all.
        Waits a while for writers that are inflight on the partitions. Raises Conflict if these writers leave no gap or
        no group is left, Transient if the table's lock is taken, Rejected if the table can't be used.
        """

    def rewrite(self, prepared: PreparedPlan, report: ProgressCallback) -> Rewrite:
        """Write the new files, invisible to readers (step 4). Raises Transient, Rejected or Conflict.

        Each file gets the path that ``prepare`` determined. The format's own writer can't be used if it chooses file
        names itself, in directories that other writers use: lakefold's files would be indistinguishable from theirs. A
        Conflict with ``SkippedGroup`` groups in its ``args[1]`` names inputs that can't be read.
        """

    def commit(self, rewrite: Rewrite) -> Commit:
        """Check the inputs again and publish the new files, with plan id and epoch in the commit (step 6).

        Raises Conflict if a writer was faster or the attempt was withdrawn, or if the table no longer records enough of
        its changes since ``prepare`` to exclude this. Raises Transient if another try may succeed, for example if a
        lock is taken; Rejected if the table can no longer be served. Each of these errors means that nothing was
        committed; the caller still checks the table once more. Integrity means that the commit can't be trusted: if the
        table has the commit, it is recorded and the table is halted. Errors of ``fence`` pass through. CommitUnknown,
        like any error outside ``lake.errors``, means that the result is unknown, and nothing is deleted until the table
        has been checked. A call whose answer was lost is never Transient.
        """

    def withdraw(
        self,
        plan_id: str,
        instants: Collection[str] | None,
        *,
        staged: Collection[StagedWork] = (),
        epoch: int | None = None,
    ) -> int:
        """Withdraw the uncommitted work of ``instants`` of this plan. Returns the number of instants that had work.

        ``staged`` is the database's record of the work: a format without a timeline withdraws only recorded work.

        ``instants=None`` means every pending instant of the table that names ``plan_id``, recorded or not. A take-over
        needs this, because a killed executor may have published an instant without recording it. ``epoch`` is the
        caller's: the work of an executor that has taken the plan over since is not touched. If an instant is gone
        already, the files that this writer's own job wrote later are removed.
        Idempotent. Never touches a completed instant, nor any file that readers see, even if the table no longer
        records which commit published it. Raises if work may remain; the caller then tries again later.
        """

    def delete(self, versions: Sequence[SupersededVersion]) -> DeletionResult:
        """Delete superseded files through the format, in the order given. Returns the result.

        Missing files count as deleted. Right before its deletion, each file is checked; a file with a
        ``SupersededVersion.difference`` stays. With ``Capability.OWN_EXPIRY``, the method calls the table's expiry for
        the states older than the commits that superseded the files, and for no later state. If the table retains an
        older state, its own expiry deletes the files of that state later. Raises Conflict if a version is live, pending
        or kept by a savepoint, before any file that its commit superseded is deleted. After another error, the next
        call deletes the remaining files.
        """

    def cancel(self) -> None:
        """Stop a running ``rewrite`` of this writer from another thread."""


class FormatFeatures(Protocol):
    """The abilities of a table format."""

    name: str
    #: what its tables support beyond the common operations (``lake.capabilities.capabilities_of``)
    capabilities: frozenset[Capability]
    #: its own services that ``maintain`` can run, by their names in ``table_services``; empty without the capability
    services: tuple[str, ...]


class TableFormat(FormatFeatures, Protocol):
    """Observes tables of one format; needs no JVM."""

    #: requirements on the Spark session of a process that changes such tables
    session_requirements: SessionRequirements

    def discover(self, location: str) -> Iterator[TableRef | SearchFailure]:
        """Yield the tables at ``location`` (a table, or a directory searched for tables), with their own names.

        A part that can't be searched is yielded as ``SearchFailure`` and hides no table elsewhere. Yields nothing if
        only a catalog lists tables of the format. Raises Rejected if there is no such directory, Rejected or Transient
        if ``location`` itself can't be read.
        """

    def check(self, table: TableRef) -> None:
        """Raise Rejected with rule, value and remedy if this table can't be used; Transient if it can't be reached.

        Raises TableGone if the table no longer exists although the storage, and the catalog, answer.
        """

    def snapshot(self, table: TableRef, partitions: Collection[str] | None = None) -> Snapshot:
        """Return the latest file slices of all or of the named partitions; those of pending plans carry a busy reason.

        Partitions that the table does not have are left out. Raises TableGone, Rejected if the table can't be read,
        Transient if it can't be reached, or if files keep vanishing while it is read.
        """

    def find_commit(self, table: TableRef, plan_id: str) -> Commit | None:
        """Return the completed commit that names ``plan_id``, however old; None if the table has no such commit.

        Callers conclude from None that the plan did not commit. So an implementation that can't check must raise
        Transient or Rejected (TableGone is one) instead. If a table no longer records its older commits, the result for
        them may be None (``lake.capabilities.FindsStaged``). Raises CommitLost if a commit names the plan and its
        result is gone.
        """

    def recent_commits(self, table: TableRef, plan_ids: Collection[str]) -> Mapping[str, Commit]:
        """Return the ``plan_ids`` that recent commits name, each with its commit; old commits may be missed.

        Every sweep calls it, so it is cheap. Raises as ``find_commit`` does.
        """

    def deletion_blockers(
        self, table: TableRef, versions: Sequence[SupersededVersion], retention: timedelta = timedelta()
    ) -> Mapping[str, str | None]:
        """Return for each version's path None if the file may be deleted now, else the reason against it.

        Each of ``versions`` has a path of its own. ``retention`` is the retention now in force, after which the files
        of later plans can be deleted too. Raises as ``snapshot`` does.
        """

    def obsolete_deletions(self, table: TableRef, versions: Sequence[SupersededVersion]) -> Mapping[int, str]:
        """Return the indexes of the ``versions`` that lakefold may no longer delete, each with the reason.

        Their replacement was undone, or they are gone already. Versions that can be deleted later are left out. Raises
        as ``snapshot`` does.
        """

    def verify(self, table: TableRef, superseded: Sequence[SupersededVersion], *, rows: bool) -> TableVerification:
        """Compare storage with the table's last commits; ``superseded`` are its versions that await their deletion.

        Raises as ``snapshot`` does, and Rejected if ``rows`` can't be counted.
        """

    def describe(self, table: TableRef) -> Mapping[str, str]:
        """Return facts about the table worth showing to a person (type, version, timeline, indexes, locks).

        The fact ``writers`` is the table's evidence of its other writers and of their locks. Raises as ``snapshot``
        does.
        """

    def writer(self, table: TableRef, spark: SparkProvider, engines: Sequence[RewriteEngine] = ()) -> TableWriter:
        """Return the table's writer, usable once entered. ``engines`` rewrite files, unless the format has its own.

        Does not read the table and does not call ``spark``.
        """
