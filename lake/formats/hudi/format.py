# SPDX-License-Identifier: Apache-2.0
"""The reading half of the Hudi adapter: every operation that does not change tables."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from pyarrow import fs as pafs

from lake.actions import ActionPage
from lake.capabilities import CommitCallback, PendingAction, Resurrected, capabilities_of
from lake.engines import RewriteEngine
from lake.errors import Rejected, Transient
from lake.formats.hudi.audit.damage import first_damage_of_each_group, observe_table
from lake.formats.hudi.audit.resurrected import find_resurrected
from lake.formats.hudi.audit.verify import verify_table
from lake.formats.hudi.files.storage import PROPERTIES, TableStorage, read_table_properties
from lake.formats.hudi.pending.actions import list_pending_actions
from lake.formats.hudi.pending.heartbeats import is_abandoned_write
from lake.formats.hudi.pending.late_files import find_instants_with_late_files
from lake.formats.hudi.pending.request_copies import find_lost_requests
from lake.formats.hudi.pending.rollbacks import find_orphaned_rollbacks_of_lakefold
from lake.formats.hudi.plans.clean_bounds import find_passed_replacements
from lake.formats.hudi.plans.cleaning import find_abandoned_cleans
from lake.formats.hudi.read.actions import list_actions
from lake.formats.hudi.read.commits import (
    find_commit,
    find_overlaps,
    find_recent_commits,
    pending_plan_ids,
)
from lake.formats.hudi.read.deletion_blockers import find_deletion_blockers, find_obsolete_deletions
from lake.formats.hudi.read.describe import describe_table
from lake.formats.hudi.read.flink_state import find_flink_index
from lake.formats.hudi.read.history import read_history
from lake.formats.hudi.read.refusals import check_table
from lake.formats.hudi.read.slices import count_delta_commits, find_busy_groups, is_merge_on_read, slices_table
from lake.formats.hudi.read.undone_commits import refuse_lost_commit
from lake.formats.hudi.session import SESSION
from lake.formats.hudi.timeline.timeline import Timeline
from lake.formats.hudi.writer import HudiWriter
from lake.history import CancellationCheck, TableHistory, no_check
from lake.model import SearchFailure, Snapshot, TableRef
from lake.plan import Commit, SupersededVersion
from lake.ports import Capability, SparkProvider, TableVerification, TableWriter
from lake.storage.locations import canonical_location

log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

#: fsck's directory at the root of ext file systems, readable only by root
_LOST_FILES = "lost+found"

SEARCH_DEPTH = 4
"""How many directory levels below a location are searched for tables."""


class HudiFormat:
    """Apache Hudi tables of version 6, 8 and 9 on local file systems, HDFS and S3.

    Implements ``lake.ports.TableFormat`` and, of ``lake.capabilities``, ``HasTimeline``, ``FindsResurrected``,
    ``FindsStragglers``, ``KeepsHistory``, ``ListsActions`` and ``ReportsCommits``.
    """

    name = "hudi"
    # SAVEPOINTS: lakefold's cleans name each file. TABLE_LOCK: only a lock separates writers.
    capabilities = capabilities_of(
        HudiWriter,
        Capability.COMPACTION,
        Capability.SAVEPOINTS,
        Capability.TABLE_LOCK,
        Capability.NATIVE_GROUPS,
        Capability.SORTING,
    )
    services = ("clean", "archive", "rollback")
    session_requirements = SESSION
    #: ``hoodie.write.commit.callback.*``; older versions of Hudi list no files
    commit_callback = CommitCallback(
        key_header="HUDI-CALLBACK-KEY",
        default_key="hudi_write_commit_http_callback",
        instant_field="commitTime",
        location_field="basePath",
        files_field="hoodieWriteStat",
        partition_field="partitionPath",
    )

    def discover(self, location: str) -> Iterator[TableRef | SearchFailure]:
        """See ``TableFormat``. Searches ``SEARCH_DEPTH`` directory levels, never inside a table.

        Yields a ``SearchFailure`` for each directory that can't be read or has lost its ``hoodie.properties``.
        """
        top = TableStorage(location)
        if top.info("").type != pafs.FileType.Directory:
            raise Rejected(f"{location}: no such directory; give a Hudi table or a directory that holds some")
        location = location.rstrip("/") if location.startswith("file:") else canonical_location(location)
        seen = [_discover_at(location)]
        everything = [found for found, _ in seen]
        for _ in range(SEARCH_DEPTH):
            seen = top.map_parallel(_discover_below, [child for _, children in seen for child in children])
            everything += [found for found, _ in seen]
        yield from sorted((found for found in everything if found is not None), key=lambda found: found.location)

    def check(self, table: TableRef) -> None:
        """See ``TableFormat``."""
        _retry_once(table, lambda: check_table(table))

    def snapshot(self, table: TableRef, partitions: Collection[str] | None = None) -> Snapshot:
        """See ``TableFormat``."""
        return _retry_once(table, lambda: _snapshot(table, partitions))

    def find_commit(self, table: TableRef, plan_id: str) -> Commit | None:
        """See ``TableFormat``."""

        def read_commit() -> Commit | None:
            storage = TableStorage(table.location)
            timeline = Timeline(storage)
            found = find_commit(storage, timeline, plan_id)
            if found is not None:
                refuse_lost_commit(table.name, storage, timeline, found)
            return found

        return _retry_once(table, read_commit)

    def recent_commits(self, table: TableRef, plan_ids: Collection[str]) -> Mapping[str, Commit]:
        """See ``TableFormat``."""

        def read_commits() -> Mapping[str, Commit]:
            storage = TableStorage(table.location)
            timeline = Timeline(storage)
            found = find_recent_commits(storage, timeline, plan_ids)
            for commit in found.values():
                refuse_lost_commit(table.name, storage, timeline, commit)
            return found

        return _retry_once(table, read_commits)

    def pending_instants(self, table: TableRef) -> Mapping[str, str]:
        """See ``HasTimeline``."""
        return _retry_once(table, lambda: pending_plan_ids(Timeline(TableStorage(table.location))))

    def pending_actions(self, table: TableRef) -> Sequence[PendingAction]:
        """See ``HasTimeline``."""

        def read_actions() -> Sequence[PendingAction]:
            storage = TableStorage(table.location)
            return list_pending_actions(table, storage, Timeline(storage))

        return _retry_once(table, read_actions)

    def deletion_blockers(
        self, table: TableRef, versions: Sequence[SupersededVersion], retention: timedelta = timedelta()
    ) -> Mapping[str, str | None]:
        """See ``TableFormat``."""

        def find_blockers() -> Mapping[str, str | None]:
            storage = TableStorage(table.location)
            return find_deletion_blockers(
                storage, Timeline(storage), versions, table.write_options, retention=retention
            )

        return _retry_once(table, find_blockers)

    def obsolete_deletions(self, table: TableRef, versions: Sequence[SupersededVersion]) -> Mapping[int, str]:
        """See ``TableFormat``."""

        def find_obsolete() -> Mapping[int, str]:
            storage = TableStorage(table.location)
            return find_obsolete_deletions(storage, Timeline(storage), versions)

        return _retry_once(table, find_obsolete)

    def verify(self, table: TableRef, superseded: Sequence[SupersededVersion], *, rows: bool) -> TableVerification:
        """See ``TableFormat``. With ``rows``, raises Rejected if hudi-rs can't read or merge a slice."""
        return _retry_once(table, lambda: verify_table(TableStorage(table.location), superseded, rows=rows))

    def find_resurrected(self, table: TableRef) -> Sequence[Resurrected]:
        """See ``FindsResurrected``."""

        def read_resurrected() -> Sequence[Resurrected]:
            storage = TableStorage(table.location)
            return find_resurrected(storage, Timeline(storage))

        return _retry_once(table, read_resurrected)

    def instants_with_stragglers(self, table: TableRef) -> Collection[str]:
        """See ``FindsStragglers``."""

        def read_late_files() -> Collection[str]:
            storage = TableStorage(table.location)
            timeline = Timeline(storage)
            found = {rollback.target for rollback in find_orphaned_rollbacks_of_lakefold(storage, timeline)}
            found |= {instant.time for instant in find_lost_requests(storage, timeline)}
            found |= {instant.time for instant in find_passed_replacements(table, storage, timeline)}
            found |= set(find_abandoned_cleans(table, storage, timeline))
            return sorted(found.union(find_instants_with_late_files(table, storage, timeline)))

        return _retry_once(table, read_late_files)

    def history(
        self,
        table: TableRef,
        since: datetime,
        until: datetime,
        superseded: Sequence[SupersededVersion],
        check: CancellationCheck = no_check,
    ) -> TableHistory:
        """See ``KeepsHistory``."""

        def read_commits() -> TableHistory:
            storage = TableStorage(table.location)
            return read_history(Timeline(storage), since, until, check)

        return _retry_once(table, read_commits)

    def actions(
        self,
        table: TableRef,
        superseded: Sequence[SupersededVersion],
        *,
        limit: int,
        max_files: int,
        before: str | None = None,
    ) -> ActionPage:
        """See ``ListsActions``."""

        def read_actions() -> ActionPage:
            timeline = Timeline(TableStorage(table.location))
            return list_actions(timeline, limit=limit, max_files=max_files, before=before)

        return _retry_once(table, read_actions)

    def describe(self, table: TableRef) -> Mapping[str, str]:
        """See ``TableFormat``."""
        return _retry_once(table, lambda: describe_table(table))

    def writer(self, table: TableRef, spark: SparkProvider, engines: Sequence[RewriteEngine] = ()) -> TableWriter:
        """See ``TableFormat``. Hudi's own client commits, so that indexes and the metadata table stay Hudi's."""
        return HudiWriter(table, spark, engines)


FORMAT = HudiFormat()


def _discover_below(location: str) -> tuple[TableRef | SearchFailure | None, list[str]]:
    """Call ``_discover_at``; returns its error as a ``SearchFailure``."""
    try:
        return _discover_at(location)
    except (Rejected, Transient) as error:
        return SearchFailure(location=location, reason=str(error)), []
    except FileNotFoundError:  # removed meanwhile
        return None, []


def _discover_at(location: str) -> tuple[TableRef | SearchFailure | None, list[str]]:
    """Return the table at ``location``, or if there is none, its subdirectories that may contain tables."""
    storage = TableStorage(location)
    if storage.is_file(PROPERTIES):
        return _table_ref_at(storage, location), []
    names = sorted(info.base_name for info in storage.children("") if info.type == pafs.FileType.Directory)
    if ".hoodie" in names and storage.is_file(PROPERTIES + ".backup"):
        return _table_ref_at(storage, location), []
    if ".hoodie" in names:
        raise Rejected(
            f"{location} has a directory .hoodie and no {PROPERTIES}, so it can't be read as a Hudi table; restore "
            "that file from a backup, or remove the rest of the table"
        )
    return None, [f"{location}/{name}" for name in names if not name.startswith((".", "_")) and name != _LOST_FILES]


def _table_ref_at(storage: TableStorage, location: str) -> TableRef:
    properties = read_table_properties(storage)
    name = properties.get("hoodie.table.name") or location.rpartition("/")[2]
    database = properties.get("hoodie.database.name")
    return TableRef(name=f"{database}.{name}" if database else name, format="hudi", location=location)


def _snapshot(table: TableRef, partitions: Collection[str] | None) -> Snapshot:
    storage = TableStorage(table.location)
    found = observe_table(storage, partitions)
    timeline = found.timeline
    busy = find_busy_groups(timeline, lambda instant: is_abandoned_write(table, storage, timeline, instant))
    return Snapshot(
        table=table,
        instant=timeline.newest_commit_time,
        taken_at=found.taken_at,
        slices=slices_table([*found.slices, *found.unlisted], timeline, busy),
        uncompacted_commits=count_delta_commits(timeline),
        damaged=first_damage_of_each_group(found.damage),
        overlaps=find_overlaps(timeline),
        foreign_files=found.listing.foreign_files,
        # ``check`` refuses the copy-on-write tables of this kind.
        clustering_refusal=find_flink_index(timeline, table.write_options) if is_merge_on_read(timeline) else None,
    )


def _retry_once(table: TableRef, read: Callable[[], _Result]) -> _Result:
    """Call ``read``, and once more after a Transient error or if a file vanished.

    Writers, cleaners and archivers run concurrently. A file that vanishes again is Transient.
    """
    try:
        return read()
    except (FileNotFoundError, Transient) as error:
        log.debug("%s: checking again after %s", table.name, error)
    try:
        return read()
    except FileNotFoundError as error:
        raise Transient(f"{table.name}: a file vanished twice while the table was read ({error.filename})") from error
