# SPDX-License-Identifier: Apache-2.0
"""What only some formats can be asked for: the protocols that they add to those of ``lake.ports``, and the asking.

Of a format that can't the answer is none, or a refusal.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

import pyarrow as pa

from lake.errors import Rejected
from lake.history import CancellationCheck, TableHistory, no_check
from lake.model import SearchFailure, Snapshot, TableRef
from lake.plan import ClusteringGroup, Commit, LocatedFile, PlanKind, Relocation, StagedWork, SupersededVersion
from lake.ports import Capability, PreparedPlan, TableFormat
from lake.relocation.model import FoundRelocations, PartitionState, RelocatedPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAction:
    """Something on a table's own timeline that was begun or only scheduled, and did not complete.

    ``action`` is the format's word for it. ``begun`` tells a plan somebody executes from one that only waits.
    ``last_sign`` is the newest trace of whoever works on it, ``alive`` whether that is recent enough to leave it
    alone. ``plan_id`` is the plan of lakefold's that it carries, None for somebody else's. A scheduled rewrite has
    its ``kind``, ``groups`` and the ``sort_columns`` it asks for; ``refusal`` says why lakefold could not execute it.
    ``stays`` says that a plan of lakefold's can't be withdrawn, since writers built on it: it has to be executed.
    ``attended`` says whether a process of lakefold's that works on it has signed and may live, None where a table does
    not tell that from other traces.
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

    @property
    def is_abandoned(self) -> bool:
        """Begun by somebody else who gives no sign of life any more."""
        return self.is_begun and not self.is_alive and self.plan_id is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resurrected:
    """A file group that readers see although a completed commit, ``instant``, took it out of the table.

    ``files`` are all that is in storage of it, paths (``lake.storage.locations.resolve_path``) with their bytes. ``rows`` are read
    twice, None where nobody has counted them. ``refusal`` says why the group can't be taken out again now.
    """

    partition: str
    file_id: str
    instant: str
    files: Mapping[str, int]
    rows: int | None = None
    refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelyWriter:
    """A tool that likely writes or reads a table, by what it left there. It may have done so long ago, or only once.

    ``evidence`` says in a phrase each what was seen. ``consequence`` says in sentences what becomes of its work where
    it does not ask the catalog for the place of a partition at each step. It is None of a tool that does. ``remedy``
    says in a sentence what to do about that, '' where there is no consequence.
    """

    tool: str
    evidence: tuple[str, ...]
    consequence: str | None = None
    remedy: str = ""


@runtime_checkable
class RunsTableServices(Protocol):
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
class AbortsAdopted(Protocol):
    """What a ``TableWriter`` adds where it executes what another process scheduled (``Capability.ADOPTION``)."""

    def abort_adopted(self, instant: str, plan_id: str, *, epoch: int | None = None) -> bool:
        """Take back what was begun of an adopted plan and remove its files; whether something was begun.

        The instant stays scheduled: it belongs to whoever scheduled it. ``epoch`` is the caller's. Idempotent; never
        touches a completed instant, nor the work of another attempt that has begun since under the same instant.
        """


@runtime_checkable
class ReadsMerged(Protocol):
    """What a ``TableWriter`` adds when its data files do not always tell the rows that a reader of the table sees.

    That is so where slices may hold logs, or where the table's columns may have changed since a file was written.
    """

    def read_inputs(self, prepared: PreparedPlan, partition: str, *, evolved: bool = False) -> Iterator[pa.RecordBatch]:
        """The rows of the live groups' slices in ``partition`` as a reader sees them, base and logs merged.

        The columns are those of the data files, meta columns included; with ``evolved`` those that the table has now,
        under their names and types of today, with what older rows have in a column that is newer. Called after
        ``rewrite``, before ``commit``.
        """


@runtime_checkable
class Fenced(Protocol):
    """What a ``TableWriter`` adds when it asks once more, under the table's lock, whether it may still go on.

    ``fence`` is called right before the plan is made known to the table, right before its commit, and right before
    superseded files are deleted; without a lock once more where that takes minutes. It raises where that may not
    happen any more: another executor has taken the plan over, an operator cancelled it, or another cleaner was there.
    """

    fence: Callable[[], None]


@runtime_checkable
class UsesRetention(Protocol):
    """What a ``TableWriter`` adds whose deletions depend on the retention.

    ``retention`` is the one now in force. Where the table itself tells what rewrites of lakefold replaced, and when,
    deletions and the table's own services keep what a rewrite of any lakefold replaced within it, whether the caller's
    database knows that rewrite or not. Where it does not, a look at who else reads the files may be older the longer
    they have been replaced.
    """

    retention: timedelta


@runtime_checkable
class UsesDatabaseClock(Protocol):
    """What a ``TableWriter`` adds when it deletes without a lock: how long ago it looked goes by the database's clock.

    A machine may be paused between two files, for hours and with all its clocks. ``clock`` tells seconds.
    """

    clock: Callable[[], float]


@runtime_checkable
class RepairsResurrected(Protocol):
    """What a ``TableWriter`` adds where replaced file groups can become live again."""

    def remove_resurrected(self) -> Sequence[Resurrected]:
        """Delete every resurrected file group that has no refusal, through the format; those that went."""


@runtime_checkable
class FindsResurrected(Protocol):
    """What a ``TableFormat`` adds where replaced file groups can become live again."""

    def find_resurrected(self, table: TableRef) -> Sequence[Resurrected]:
        """File groups that readers see although a completed commit took them out."""


@runtime_checkable
class HasTimeline(Protocol):
    """What a ``TableFormat`` adds whose tables tell what was begun on them and has not ended.

    It finds there what is staged, and what other processes scheduled (``Capability.ADOPTION``). Ask for it through
    ``lake.capabilities``.
    """

    def pending_instants(self, table: TableRef) -> Mapping[str, str]:
        """Pending instants on the table's timeline that name a plan of lakefold's, each with that plan's id."""

    def pending_actions(self, table: TableRef) -> Sequence[PendingAction]:
        """Everything pending on the table's timeline, oldest first, whoever began or scheduled it."""


@runtime_checkable
class UsesSparkSettings(Protocol):
    """What a ``TableFormat`` adds that can't open its tables without being told how, as behind a catalog's server."""

    def configure(self, settings: Mapping[str, str]) -> None:
        """Keep ``settings``, Spark's by their full names (``spark.sql.catalog.NAME.uri``), in place of earlier ones.

        Called before the format is first asked for anything, and whenever another configuration comes into force, from
        any thread. Reaches nobody and raises nothing: what is wrong with them ``check`` says. Some may be secrets.
        """


@runtime_checkable
class ListedInMetastore(Protocol):
    """What a ``TableFormat`` adds whose tables a Hive metastore lists; ``TableRef.catalog`` then says which one.

    ``is_metastore_only``: no directory says that it is such a table, and ``discover`` finds none.
    """

    is_metastore_only: bool

    def discover_in_metastore(
        self, uri: str, database_pattern: str, table_pattern: str
    ) -> Iterator[TableRef | SearchFailure]:
        """The tables of the format in the metastore at ``uri``, called ``database.table``.

        ``databases`` and ``tables`` are shell patterns of their names. A database whose tables can't be listed is
        yielded as ``SearchFailure``. Raises Transient where the metastore can't be reached.
        """


@runtime_checkable
class CatalogOnly(Protocol):
    """What a ``TableFormat`` adds whose commits only those see who ask a catalog where a table's files are.

    Its tables are planned where a rule says ``access = "catalog"``. ``catalog_only_reason`` says in a sentence why that has
    to be said. How writers keep out of each other's way need not be: they share no lock.
    """

    catalog_only_reason: str


@runtime_checkable
class DetectsWriters(Protocol):
    """What a ``TableFormat`` adds whose tables show which tools wrote them."""

    def likely_writers(self, snapshot: Snapshot) -> Sequence[LikelyWriter]:
        """The tools that likely write or read the table, those with a consequence first; none where nothing is seen.

        Looks at a bounded number of files, whatever the table's size. A file that can't be read is no evidence. Raises
        as ``TableFormat.snapshot`` does.
        """


@runtime_checkable
class HasIdentity(Protocol):
    """What a ``TableFormat`` adds whose tables carry what tells them from others of their name and place.

    Then a table that is dropped and made anew is noticed: no plan for the old one is run on it, and nothing is deleted
    in it that was superseded in the old one. ``TableRef.identity`` says which one is meant, and the writer compares it
    as well, with whatever makes its commit or deletion atomic; it raises Conflict where it is another one.
    """

    def identity(self, table: TableRef) -> str:
        """What the table that is there now carries (a UUID, when it was made, ...). Raises as ``check`` does."""


@runtime_checkable
class FindsStaged(Protocol):
    """What a ``TableFormat`` adds whose tables don't tell what is staged: then only the database does.

    Whoever takes a plan over asks for what earlier attempts left, and withdraws it before the plan is let go. The sweep
    asks for what ended attempts left, and goes on asking for a while: an executor that slept, or a task on another
    host, may write after its attempt was withdrawn.
    """

    def remaining_staged(self, table: TableRef, staged: Collection[StagedWork]) -> Collection[str]:
        """The tokens of ``staged`` of which something is in storage that no commit made the table's. Cheap.

        A table may have forgotten the commit that did. So a token is not left where one of its files is live, or kept
        by the table for readers of an older state, whatever the log still tells. Raises as ``snapshot`` does.
        """


@runtime_checkable
class RemovesStragglers(Protocol):
    """What a ``TableWriter`` adds when files can be written for a plan after its withdrawal or commit."""

    def remove_straggler_files(self, instants: Collection[str]) -> Sequence[str]:
        """Delete what was written under ``instants`` when these were over already; the paths of what went."""


@runtime_checkable
class FindsStragglers(Protocol):
    """What a ``TableFormat`` adds when files can be written for a plan after its withdrawal or commit.

    An executor that slept, a process that outlived its parent or a task on another host does so, and need not be there
    any more to delete them.
    """

    def instants_with_stragglers(self, table: TableRef) -> Collection[str]:
        """Instants of lakefold's, whichever database knows their plans, that are over and have files of no commit.

        Cheap, since it is asked at every sweep: looks at one instant grow rarer, and end.
        """


@runtime_checkable
class KeepsHistory(Protocol):
    """What a ``TableFormat`` adds whose tables still tell what was done to them, commit by commit."""

    def history(
        self,
        table: TableRef,
        since: datetime,
        until: datetime,
        superseded: Sequence[SupersededVersion],
        check: CancellationCheck = no_check,
    ) -> TableHistory:
        """The files at ``since`` and the commits from then until ``until``, as far as the table tells.

        ``superseded`` are the table's superseded versions. Raises as ``snapshot`` does, and what ``check`` raises.
        """


@runtime_checkable
class RelocatesPartitions(Protocol):
    """What a ``TableFormat`` adds whose commits move partitions (``Commit.relocations``).

    A writer that began before a move ends where the partition was. So former places are looked at for as long as they
    are there, and what is found there is dealt with as ``lake.relocation.decide.decide`` says.
    """

    def inspect_locations(
        self, table: TableRef, relocated: Sequence[RelocatedPartition]
    ) -> Mapping[str, PartitionState]:
        """Where these partitions are now, by name, and what is in each of their ``places``.

        Of files that are not recorded it tells whether they are still being written.
        """

    def applied_commits(self, table: TableRef, staged: Collection[StagedWork]) -> Sequence[Commit]:
        """The commits of those of ``staged`` that were made, as far as anybody can tell.

        A partition names them, or writers have written where only such a commit sends them, and somebody has undone it.
        """


class ChangeDetector(Protocol):
    """What one process remembers of a table between looks at it."""

    def find_changed_partitions(self) -> frozenset[str]:
        """The partitions that changed since the last look, in the catalog or in a directory; more than these at times.

        The first looks only remember. Where tables are large a look reads a part, and the next one goes on. Raises as
        ``TableFormat.snapshot`` does.
        """

    def find_changed_locations(self, locations: Collection[str]) -> frozenset[str]:
        """Those of ``places`` that changed since the last such look, or were in none; more than these at times.

        It costs what listing the directories above them does. Where these are large a look reads a part, and the next
        one goes on. Raises Transient.
        """

    @property
    def recreated_locations(self) -> Mapping[str, Collection[str]]:
        """By partition, places that writers have made again, with files, after all that lakefold had there was gone."""


@runtime_checkable
class PrunesRelocations(Protocol):
    """What a ``TableFormat`` adds whose tables tell of moves themselves until they are told to forget them."""

    def missing_locations(self, table: TableRef, locations: Collection[str]) -> Collection[str]:
        """Those of ``places`` that are not there any more, nor what lakefold had put beside them.

        Where a writer makes one again, ``ChangeDetector.recreated_locations`` tells of it. None are gone of a table whose storage is not
        there. Raises Transient.
        """

    def prune_relocations(self, table: TableRef, tokens: Collection[str]) -> Collection[str]:
        """Have the table tell of these moves no more; those of which it does not tell afterwards.

        A move is kept that a partition names as its last, or whose place, or the one that it left, may be there.
        Idempotent. Raises as ``TableFormat.snapshot`` does.
        """


@runtime_checkable
class DetectsChanges(Protocol):
    """What a ``TableFormat`` adds where it tells that a partition changed for less than it takes to look at it."""

    def change_detector(self, table: TableRef) -> ChangeDetector:
        """What remembers nothing yet."""


@runtime_checkable
class RecordsRelocations(Protocol):
    """What a ``TableFormat`` adds whose tables tell of all moves themselves, whatever a database remembers.

    A table may be called something else by now, or the database may have been lost, or be another lakefold's.
    """

    def find_relocations(self, table: TableRef, known: Collection[str]) -> Sequence[FoundRelocations]:
        """The moves that were made in this very table and whose tokens are not among ``known``, oldest first.

        Of a table that was dropped and made again under the name, or at the place, of this one there are none. Raises
        as ``snapshot`` does.
        """


@runtime_checkable
class CopiesLateFiles(Protocol):
    """What a ``TableWriter`` adds whose commits move partitions.

    It calls ``fence`` right before each change: somebody else may hold the partition by then.
    """

    def target_path(self, source: LocatedFile, location: str, nonce: str) -> str:
        """Where ``source`` is copied to in ``place`` by the round of this ``nonce``: no other file is, by any round.

        Nor is this one by another round, which may have been stopped and go on when the copy is read by everybody.
        """

    def copy_hidden(self, pairs: Sequence[tuple[LocatedFile, str]]) -> Collection[LocatedFile]:
        """Copy each file, whole, to where nobody reads it yet; those gone, or changed."""

    def publish_copies(self, pairs: Sequence[tuple[LocatedFile, str]]) -> None:
        """Give copies the names of their targets. Raises Conflict where one is gone."""

    def replace_copy(self, source: LocatedFile, copy_path: str, previous: LocatedFile) -> LocatedFile:
        """Have ``source`` be read at ``copy`` in place of ``old``, whose copy is there; what is there then. Idempotent.

        A reader sees all of one or of the other. Raises Conflict where something else is at either path.
        """

    def remove_copies(self, targets: Collection[str], published: Collection[str]) -> None:
        """Remove copies of files that readers are not to see there, ``shown`` or without a name yet. Idempotent.

        None gets its name afterwards. Raises Conflict where one that is not among ``shown`` has it already.
        """

    def archive_files(self, files: Sequence[LocatedFile]) -> Mapping[LocatedFile, str]:
        """Move files to where no reader looks; each of those that are there now, with its path. Idempotent.

        What has the name of one but is another file stays, or is back at once.
        """

    def update_catalog(
        self,
        latest: Relocation,
        relocation: Relocation | None = None,
        *,
        reverted_to: tuple[str, str | None] | None = None,
    ) -> None:
        """Have the catalog count the files where ``last`` has moved a partition; with ``move`` move it on first.

        One call. Raises Conflict where the partition is not as ``last`` left it, CommitUnknown where nobody can tell.
        ``before`` are place and token that the catalog has instead, where somebody has written them back.
        """


def pending_instants(format_: TableFormat, table: TableRef) -> Mapping[str, str]:
    """``HasTimeline.pending_instants``; of a table without a timeline nothing is known to be pending."""
    return format_.pending_instants(table) if isinstance(format_, HasTimeline) else {}


def pending_actions(format_: TableFormat, table: TableRef) -> Sequence[PendingAction]:
    """``HasTimeline.pending_actions``; of a table without a timeline nothing is known to be unfinished."""
    return format_.pending_actions(table) if isinstance(format_, HasTimeline) else ()


def likely_writers(format_: TableFormat, snapshot: Snapshot) -> Sequence[LikelyWriter]:
    """``DetectsWriters.likely_writers``; of a format whose tables don't tell there are none."""
    return format_.likely_writers(snapshot) if isinstance(format_, DetectsWriters) else ()


def with_identity(format_: TableFormat, table: TableRef) -> TableRef:
    """``table`` with the identity of what is there now; of a format whose tables carry none it stays as it is."""
    return replace(table, identity=format_.identity(table)) if isinstance(format_, HasIdentity) else table


RECREATED = " was made anew"
"""What ``made_anew`` says of a table, after its name."""


def recreated_reason(found: TableRef, identity: str | None) -> str | None:
    """Why ``found`` is not the table that had ``identity``; None where nothing says so."""
    if None in (found.identity, identity) or found.identity == identity:
        return None
    return f"{found.name}{RECREATED}: it is table {found.identity} now, not {identity} any more"


def require_capability(format_: TableFormat, table: TableRef, capability: Capability) -> None:
    """Raise Rejected where tables of this format can't be asked for ``capability``."""
    if capability not in format_.capabilities:
        what = capability.value.replace("_", " ")
        raise Rejected(f"{table.name}: {format_.name} tables have no {what}, lakefold can't do that here")
