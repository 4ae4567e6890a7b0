# SPDX-License-Identifier: Apache-2.0
"""Optional capabilities of table formats: protocols beside those of ``lake.ports``, and functions that use them.

For a format without the protocol each function returns an empty result or raises Rejected.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Literal, Protocol, runtime_checkable

import pyarrow as pa

from lake.actions import ActionPage
from lake.errors import Rejected
from lake.history import CancellationCheck, TableHistory, no_check
from lake.model import SearchFailure, Snapshot, TableRef
from lake.plan import ClusteringGroup, PlanKind, StagedWork, SupersededVersion
from lake.ports import Capability, PreparedPlan, TableFormat, TableWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAction:
    """An action on a table's own timeline that was begun or only scheduled, and has not completed.

    ``action`` is the format's word for it. ``is_begun``: a process has begun to execute it. ``last_activity`` is the
    time of the newest trace of its owner; ``is_alive``: that trace is recent enough that the action must not be
    touched. ``plan_id`` is the lakefold plan that the action carries, None for an action of another program. A
    scheduled rewrite has a ``kind``, ``groups`` and the requested ``sort_columns``; ``refusal`` is the reason why
    lakefold can't execute it. ``must_execute``: writers have built on this plan of lakefold, so it can't be withdrawn
    and has to be executed. ``has_live_owner``: the lakefold process that executes the action may be alive; None if
    the table's traces don't show whether they are of this process. ``is_rolled_back``: a process may be rolling the
    action back now.
    """

    instant: str
    action: str
    is_begun: bool
    since: datetime
    last_activity: datetime
    is_alive: bool
    plan_id: str | None = None
    kind: PlanKind | None = None
    groups: tuple[ClusteringGroup, ...] = ()
    sort_columns: tuple[str, ...] = ()
    refusal: str | None = None
    must_execute: bool = False
    has_live_owner: bool | None = None
    is_rolled_back: bool = False

    @property
    def is_abandoned(self) -> bool:
        """True if another program began the action and shows no recent activity."""
        return self.is_begun and not self.is_alive and self.plan_id is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resurrected:
    """A file group that readers see although the completed commit ``instant`` removed it from the table.

    ``files`` are all its files in storage: paths (``lake.storage.locations.resolve_path``) with sizes in bytes. Readers
    see its ``rows`` twice; None if the rows were not counted. ``refusal`` is the reason why the group can't be removed
    now.
    """

    partition: str
    file_id: str
    instant: str
    files: Mapping[str, int]
    rows: int | None = None
    refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelyWriter:
    """A tool that has left traces at a table. Most such tools write the table, some only read it.

    The traces may be old, or left by a single use.

    ``evidence`` lists the traces, each as a phrase. ``consequence`` describes in sentences the effect of relocations on
    a tool that does not read a partition's location from the catalog at each step; None if the tool does read it.
    ``remedy`` says in a sentence how to avoid this effect, '' if there is no consequence.
    """

    tool: str
    evidence: tuple[str, ...]
    consequence: str | None = None
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitCallback:
    """The HTTP request by which writers of a format report a commit: its header and the fields of its JSON body.

    ``key_header`` is the header with the key, ``default_key`` the key of a writer without a configured one. The body
    has the instant, the table's location, and a list of written files, each with its partition.
    """

    key_header: str
    default_key: str
    instant_field: str
    location_field: str
    files_field: str
    partition_field: str


@runtime_checkable
class ReportsCommits(Protocol):
    """The part of a ``TableFormat`` whose writers can report their commits over HTTP (``/v1/events/FORMAT``)."""

    commit_callback: CommitCallback


@runtime_checkable
class RunsTableServices(Protocol):
    """The part of a ``TableWriter`` whose tables have services of their own (``Capability.TABLE_SERVICES``)."""

    def maintain(self, wanted: Collection[str], retained: Sequence[SupersededVersion]) -> Sequence[str]:
        """Run those of the format's ``services`` that are ``wanted``. Returns a text for each of their actions.

        ``retained`` are this table's superseded versions; no service deletes them. Savepoints are respected.
        """


@runtime_checkable
class RollsBack(Protocol):
    """The part of a ``TableWriter`` that rolls back uncommitted work of other processes (``Capability.ROLL_BACK``)."""

    def roll_back(self, instant: str) -> str:
        """Roll back the uncommitted work that another process began as ``instant``. Returns a text with the result.

        The instant of a lakefold plan is withdrawn even if another database has the plan: the caller must check its own
        database first. Raises Conflict if the instant is completed or its owner is alive, Rejected if the instant can't
        be rolled back.
        """


@runtime_checkable
class AbortsAdopted(Protocol):
    """The part of a ``TableWriter`` that executes rewrites scheduled by other processes (``Capability.ADOPTION``)."""

    def abort_adopted(self, instant: str, plan_id: str, *, epoch: int | None = None) -> bool:
        """Roll back the begun execution of an adopted plan and remove its files. True if an execution was begun.

        The instant stays scheduled, since it belongs to the process that scheduled it. ``epoch`` is the caller's.
        Idempotent. Never touches a completed instant, nor the work of a later attempt under the same instant.
        """


@runtime_checkable
class ReadsMerged(Protocol):
    """The part of a ``TableWriter`` whose data files do not always have the rows that a reader of the table sees.

    This is the case if slices may have logs, or if the table's columns may have changed since a file was written.
    """

    def read_inputs(self, prepared: PreparedPlan, partition: str, *, evolved: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the live groups' slices in ``partition`` as a reader sees them, base and logs merged.

        The columns are those of the data files, meta columns included. With ``evolved`` they are the table's current
        columns with current names and types; in newer columns, older rows have the value that readers see. Called after
        ``rewrite`` and before ``commit``.
        """


@runtime_checkable
class ChecksInputs(Protocol):
    """A ``ReadsMerged`` whose ``read_inputs`` reads the table as it is at the verification, not at the rewrite."""

    def check_inputs(self, prepared: PreparedPlan) -> None:
        """Raise Conflict or Transient if a change of the table since the rewrite of ``prepared`` excludes its commit.

        Called after the verification has found a difference: the change may be the reason.
        """


@runtime_checkable
class ReadsInOrder(Protocol):
    """A ``ReadsMerged`` whose ``read_inputs`` is cheap and yields rows in the order in which engines write them.

    This is the order of the live groups, of their slices, and of the rows in a file. The outputs of a ``Rewrite`` are
    in this order too. The verification then compares the rows one by one, and needs their hashes only after a rewrite
    that has changed their order, such as a sort.
    """

    reads_in_order: Literal[True]


@runtime_checkable
class Fenced(Protocol):
    """The part of a ``TableWriter`` that checks once more, under the table's lock, whether its work may continue.

    ``fence`` is called right before the plan is published on the table, right before its commit, and right before
    superseded files are deleted; without a lock it is called once more if that step takes minutes. ``fence`` raises if
    another executor has taken the plan over, an operator has cancelled it, or another process has deleted some of the
    files.
    """

    fence: Callable[[], None]


@runtime_checkable
class UsesRetention(Protocol):
    """The part of a ``TableWriter`` whose deletions depend on the retention.

    ``retention`` is the retention now in force. Some tables record which files lakefold's rewrites replaced, and when.
    Then deletions and the table's own services retain all files that a rewrite replaced within the retention. This
    covers rewrites of any lakefold installation, also if the caller's database does not have them. On a table without
    such records, a deletion checks by a list of other tables' directories whether other tables read the files. The list
    may be at most half as old as the retention is long, and never older than a fixed maximum.
    """

    retention: timedelta


@runtime_checkable
class UsesDatabaseClock(Protocol):
    """The part of a ``TableWriter`` that deletes without a lock: the database's clock measures the age of its checks.

    A machine, with all its clocks, may be paused for hours between two deletions. ``clock`` returns seconds.
    """

    clock: Callable[[], float]


@runtime_checkable
class RepairsResurrected(Protocol):
    """The part of a ``TableWriter`` whose replaced file groups can become live again."""

    def remove_resurrected(self) -> Sequence[Resurrected]:
        """Delete every resurrected file group without a refusal, through the format. Returns the deleted groups."""


@runtime_checkable
class FindsResurrected(Protocol):
    """The part of a ``TableFormat`` whose replaced file groups can become live again."""

    def find_resurrected(self, table: TableRef) -> Sequence[Resurrected]:
        """Return the file groups that readers see although a completed commit removed them."""


MIN_ORPHAN_AGE = timedelta(days=1)
"""The shortest permitted ``OrphanSearch.older_than``: no version lists the files of a write that has not committed yet.

It is also the limit of Iceberg's procedure ``remove_orphan_files``.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanFile:
    """A file below a table's location that no version of the table lists. ``path`` is absolute."""

    path: str
    bytes: int
    modified_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanSearch:
    """The limits of a search for orphan files.

    ``older_than`` is the minimum time since a file's last modification, by the storage's clock. ``tracked`` returns the
    paths (``lake.storage.locations.resolve_path``) that the database has: staged work, of which a path may be a
    directory, and superseded versions. The search calls it before it reads the table, since the database clears staged
    work after its commit. ``other_tables`` are all other tables that the caller knows.
    """

    older_than: timedelta
    tracked: Callable[[], Collection[str]]
    other_tables: Collection[TableRef] = ()


@runtime_checkable
class FindsOrphans(Protocol):
    """The part of a ``TableFormat`` that finds the files that no version of a table lists."""

    def find_orphans(self, table: TableRef, search: OrphanSearch) -> Sequence[OrphanFile]:
        """Return the orphan files below the table's location, by path.

        Raises Rejected if ``older_than`` is shorter than ``MIN_ORPHAN_AGE``, if the table's settings forbid the
        deletion of files, or if files of another table may be below the location. Raises as ``snapshot`` does.
        """


@runtime_checkable
class RemovesOrphans(Protocol):
    """The part of a ``TableWriter`` that deletes the files that no version of the table lists."""

    def remove_orphans(self, found: Collection[OrphanFile], search: OrphanSearch) -> Sequence[OrphanFile]:
        """Delete those of the ``found`` files that a new search finds again, unchanged. Returns the deleted ones.

        Raises as ``find_orphans`` does.
        """


@runtime_checkable
class HasTimeline(Protocol):
    """The part of a ``TableFormat`` whose tables record the actions that were begun on them and have not ended.

    The format finds staged work there, and rewrites that other processes scheduled (``Capability.ADOPTION``). Callers
    use it through the functions of ``lake.capabilities``.
    """

    def pending_instants(self, table: TableRef) -> Mapping[str, str]:
        """Return the pending instants on the table's timeline that name a lakefold plan, each with the plan's id."""

    def pending_actions(self, table: TableRef) -> Sequence[PendingAction]:
        """Return all pending actions of any process on the table's timeline, oldest first."""


@runtime_checkable
class UsesSparkSettings(Protocol):
    """The part of a ``TableFormat`` that needs Spark settings to open its tables, such as a catalog server's."""

    def configure(self, settings: Mapping[str, str]) -> None:
        """Store Spark's ``settings`` by their full names (``spark.sql.catalog.NAME.uri``); they replace earlier ones.

        Called before any other call to the format, and at each change of the configuration, from any thread. Connects
        to no server and raises nothing: ``check`` reports faults in the settings. Some settings may be secrets.
        """


@runtime_checkable
class ListedInMetastore(Protocol):
    """The part of a ``TableFormat`` whose tables a Hive metastore lists; ``TableRef.catalog`` names the metastore.

    ``is_metastore_only``: a directory alone does not show that it is a table of this format, and ``discover`` finds no
    tables.
    """

    is_metastore_only: bool

    def discover_in_metastore(
        self, uri: str, database_pattern: str, table_pattern: str
    ) -> Iterator[TableRef | SearchFailure]:
        """Yield the tables of the format in the metastore at ``uri``, named ``database.table``.

        ``database_pattern`` and ``table_pattern`` are shell patterns of names. A database whose tables can't be listed
        is yielded as ``SearchFailure``. Raises Transient if the metastore can't be reached.
        """


@runtime_checkable
class ListedInCatalog(Protocol):
    """The part of a ``TableFormat`` whose tables a catalog of the format lists without a Spark session.

    The catalog is one of the settings that ``UsesSparkSettings`` receives; ``TableRef.catalog`` names it.
    """

    def lists_catalog(self, catalog: str) -> bool:
        """Return True if the settings define ``catalog`` as a catalog of this format."""

    def discover_in_catalog(
        self, catalog: str, database_pattern: str, table_pattern: str
    ) -> Iterator[TableRef | SearchFailure]:
        """Yield the tables of the format in ``catalog``, named ``database.table``; a nested database has dots.

        ``database_pattern`` and ``table_pattern`` are shell patterns of names. A table that can't be read is yielded as
        ``SearchFailure``. Raises Rejected if a setting is missing or wrong, Transient if the catalog can't be reached.
        """

    def find_unlisted(self, location: str) -> str | None:
        """Return one table of the format at or below the local directory ``location``; None if there is none.

        The table can't be served without its catalog. The result only serves to tell this to the user.
        """


@runtime_checkable
class CatalogOnly(Protocol):
    """The part of a ``TableFormat`` whose commits are seen only by programs that read file locations from a catalog.

    Its tables are planned only if a rule sets ``access = "catalog"``. ``catalog_only_reason`` says in a sentence why
    the rule has to set it. The rule need not set ``concurrency``: writers of such tables share no lock.
    """

    catalog_only_reason: str


@runtime_checkable
class DetectsWriters(Protocol):
    """The part of a ``TableFormat`` whose tables show which tools wrote them."""

    def likely_writers(self, snapshot: Snapshot) -> Sequence[LikelyWriter]:
        """Return the tools that likely write or read the table, tools with a ``consequence`` first.

        Reads a bounded number of files, whatever the table's size. A file that can't be read is ignored. Raises
        as ``TableFormat.snapshot`` does.
        """


@runtime_checkable
class HasIdentity(Protocol):
    """The part of a ``TableFormat`` whose tables carry an identity, unique among tables of one name and location.

    Then lakefold notices that a table was dropped and recreated. It runs no plan of the old table on the new one, and
    deletes no files that were superseded in the old one. ``TableRef.identity`` is the expected identity. The writer
    compares it as well, right before its commit or deletion or in the same atomic step, and raises Conflict if it
    differs.
    """

    def identity(self, table: TableRef) -> str:
        """Return the identity of the present table (a UUID, its creation time, …). Raises as ``check`` does."""


@runtime_checkable
class FindsStaged(Protocol):
    """The part of a ``TableFormat`` whose tables don't record staged work: only the database does.

    A takeover finds the uncommitted work of earlier attempts here, and withdraws it before the plan is released. The
    sweep looks for uncommitted work of ended attempts, and repeats this for a while: an executor that was suspended, or
    a task on another host, may write after its attempt was withdrawn.
    """

    def remaining_staged(self, table: TableRef, staged: Collection[StagedWork]) -> Collection[str]:
        """Return the tokens of ``staged`` whose files are in storage and belong to no commit. Cheap.

        A table may no longer record a commit. So a token is not returned if one of its files is live, or if the table
        retains one for readers of an older state, whatever the table's log records. Raises as ``snapshot`` does.
        """


@runtime_checkable
class RemovesStragglers(Protocol):
    """The part of a ``TableWriter`` whose plans may get files after their withdrawal or commit."""

    def remove_straggler_files(self, instants: Collection[str]) -> Sequence[str]:
        """Delete files that were written under ``instants`` after these had ended. Returns the deleted paths.

        If a writer has taken an instant over, the files from before the takeover are deleted. Also repairs the states
        that ``FindsStragglers`` finds: withdrawals whose process died, plans that a writer began meanwhile, and commits
        that another process may drop from the table's log too early.
        """


@runtime_checkable
class FindsStragglers(Protocol):
    """The part of a ``TableFormat`` whose plans may get files after their withdrawal or commit.

    A suspended executor, a process that outlived its parent or a task on another host may write such files, and may
    have ended before it can delete them.
    """

    def instants_with_stragglers(self, table: TableRef) -> Collection[str]:
        """Return the ended instants of lakefold plans, in any database, that have files of no commit.

        Also returns four other kinds of instants:

        - instants whose withdrawal was interrupted after it had removed them from the table's timeline;
        - instants that a writer has taken over, if they have files from before;
        - instants that a writer began while their plan was being removed;
        - commits whose superseded files another process counts as deleted.

        Every sweep calls this, so it must be cheap: each ended instant is checked at growing intervals, then no longer.
        """


@runtime_checkable
class KeepsHistory(Protocol):
    """The part of a ``TableFormat`` whose tables record their past commits."""

    def history(
        self,
        table: TableRef,
        since: datetime,
        until: datetime,
        superseded: Sequence[SupersededVersion],
        check: CancellationCheck = no_check,
    ) -> TableHistory:
        """Return the files at ``since`` and the commits from ``since`` to ``until``, as far as the table records them.

        ``superseded`` are the table's superseded versions. Raises as ``snapshot`` does; errors of ``check`` pass.
        """


@runtime_checkable
class ListsActions(Protocol):
    """The part of a ``TableFormat`` whose tables show the actions on them: when, by whom, and on which files."""

    def actions(
        self,
        table: TableRef,
        superseded: Sequence[SupersededVersion],
        *,
        limit: int,
        max_files: int,
        before: str | None = None,
    ) -> ActionPage:
        """Return at most ``limit`` actions, newest first; with ``before``, the key of an action, only older ones.

        Each action lists at most ``max_files`` added and as many removed files. ``superseded`` are the table's
        superseded versions. A page reads no details of actions of other pages. Raises as ``snapshot`` does, and
        Rejected if ``before`` is not a key.
        """


WRITER_PROTOCOLS: Mapping[Capability, type] = MappingProxyType(
    {
        Capability.ADOPTION: AbortsAdopted,
        Capability.TABLE_SERVICES: RunsTableServices,
        Capability.ROLL_BACK: RollsBack,
        Capability.MERGED_READS: ReadsMerged,
        Capability.REPAIR: RepairsResurrected,
        Capability.ORPHAN_REMOVAL: RemovesOrphans,
    }
)
"""The capabilities with methods, each with the protocol of ``TableWriter`` that has them."""


def capabilities_of(writer: type[TableWriter], *others: Capability) -> frozenset[Capability]:
    """Return the capabilities of a format: those of its writer's protocols, and ``others``, which have no methods.

    Raises ValueError if one of ``others`` follows from a protocol.
    """
    if stated := WRITER_PROTOCOLS.keys() & others:
        raise ValueError(f"{', '.join(sorted(stated))}: the writer's protocol says so; don't state it")
    return frozenset(others).union(one for one, protocol in WRITER_PROTOCOLS.items() if issubclass(writer, protocol))


def pending_instants(format_: TableFormat, table: TableRef) -> Mapping[str, str]:
    """Return ``HasTimeline.pending_instants``, or nothing for a table without a timeline."""
    return format_.pending_instants(table) if isinstance(format_, HasTimeline) else {}


def pending_actions(format_: TableFormat, table: TableRef) -> Sequence[PendingAction]:
    """Return ``HasTimeline.pending_actions``, or nothing for a table without a timeline."""
    return format_.pending_actions(table) if isinstance(format_, HasTimeline) else ()


def likely_writers(format_: TableFormat, snapshot: Snapshot) -> Sequence[LikelyWriter]:
    """Return ``DetectsWriters.likely_writers``, or nothing if the format's tables don't show their writers."""
    return format_.likely_writers(snapshot) if isinstance(format_, DetectsWriters) else ()


def with_identity(format_: TableFormat, table: TableRef) -> TableRef:
    """Return ``table`` with the identity of the present table; unchanged for a format without identities."""
    return replace(table, identity=format_.identity(table)) if isinstance(format_, HasIdentity) else table


RECREATED = " was made anew"
"""The words of ``recreated_reason`` after the table's name; databases have them in the reasons of closed versions."""


def recreated_reason(found: TableRef, identity: str | None) -> str | None:
    """Return why ``found`` is not the table that had ``identity``; None if no difference is known."""
    if None in (found.identity, identity) or found.identity == identity:
        return None
    return f"{found.name}{RECREATED}: its identity is {found.identity} now, and was {identity}"


def require_capability(format_: TableFormat, table: TableRef, capability: Capability) -> None:
    """Raise Rejected if tables of this format lack ``capability``."""
    if capability not in format_.capabilities:
        what = capability.value.replace("_", " ")
        raise Rejected(f"{table.name}: {format_.name} tables have no {what}, lakefold can't do that here")
