# SPDX-License-Identifier: Apache-2.0
"""The adapter of Hive tables: everything that reads tables."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, partial

from lake.actions import ActionPage
from lake.capabilities import LikelyWriter, capabilities_of
from lake.engines import RewriteEngine
from lake.errors import Rejected, TableRefused
from lake.formats.hive.catalog import refusals
from lake.formats.hive.catalog.refusals import FileFormat
from lake.formats.hive.catalog.tables import (
    CatalogPartition,
    find_tables,
    list_partitions,
    load_table,
    open_metastore,
    table_identity,
)
from lake.formats.hive.commit import commit_lookup
from lake.formats.hive.commit.version_names import relocation_token
from lake.formats.hive.deletion import readable_directories
from lake.formats.hive.directories import shared_directories
from lake.formats.hive.directories.deletion_blockers import (
    files_in_use,
    find_restored,
    partitions_with_other_readers,
)
from lake.formats.hive.directories.shared_directories import (
    foreign_readers,
    shared_partitions,
    table_root_conflict,
    unreadable_reason,
)
from lake.formats.hive.files.listing import ListedFile, list_partition_files, slices_table
from lake.formats.hive.files.row_counts import count_rows
from lake.formats.hive.inspection import likely_writers as likely
from lake.formats.hive.inspection.actions import list_actions
from lake.formats.hive.inspection.history import reconstruct_history
from lake.formats.hive.relocation import record_pruning
from lake.formats.hive.relocation.change_detection import HiveChangeDetector
from lake.formats.hive.relocation.location_listing import list_locations
from lake.formats.hive.relocation.unrecorded_relocations import find_unrecorded_relocations
from lake.formats.hive.writer import HiveWriter
from lake.history import CancellationCheck, TableHistory, no_check
from lake.metastore import MetastoreTable
from lake.model import SearchFailure, Snapshot, TableRef
from lake.plan import Commit, StagedWork, SupersededVersion
from lake.ports import Capability, SessionRequirements, SparkProvider, TableVerification, TableWriter
from lake.relocation.model import FoundRelocations, NamedRelocation, PartitionState, RelocatedPartition
from lake.storage.locations import relative_path, resolve_path


class HiveFormat:
    """Tables of a Hive metastore with Parquet or ORC files, partitioned or not.

    Implements ``lake.ports.TableFormat``; of ``lake.capabilities``, ``ListedInMetastore``, ``FindsStaged``,
    ``HasIdentity``, ``CatalogOnly``, ``DetectsWriters``, ``KeepsHistory`` and ``ListsActions``; and the protocols of a
    format in ``lake.relocation.capabilities``.
    """

    name = "hive"
    # SORTING: the engine ``arrow`` sorts Parquet files; no engine sorts ORC.
    capabilities = capabilities_of(HiveWriter, Capability.SORTING)
    services: tuple[str, ...] = ()
    session_requirements = SessionRequirements()
    is_metastore_only = True
    catalog_only_reason = (
        "a rewrite relocates partitions in the metastore. A program that uses a partition's path, or a table of "
        "another metastore in the same directory, reads the old files until they are deleted, and its writes there "
        "are not in the table. An INSERT OVERWRITE … SELECT from the same partition also loses rows that a job "
        "appended seconds before, if the job began before a rewrite"
    )

    def discover(self, location: str) -> Iterator[TableRef | SearchFailure]:
        """See ``TableFormat``. Yields nothing: a directory does not show whether it belongs to a table."""
        return iter(())

    def discover_in_metastore(
        self, uri: str, database_pattern: str, table_pattern: str
    ) -> Iterator[TableRef | SearchFailure]:
        """See ``ListedInMetastore``."""
        return find_tables(uri, database_pattern, table_pattern)

    def check(self, table: TableRef) -> None:
        """See ``TableFormat``."""
        with open_metastore(table) as metastore:
            found = load_table(metastore, table)
            refusals.check_table(table.name, found)
            if (why := table_root_conflict(metastore, found)) is not None:
                raise TableRefused(f"{table.name}: {why}")

    def identity(self, table: TableRef) -> str:
        """See ``HasIdentity``."""
        with open_metastore(table) as metastore:
            return table_identity(load_table(metastore, table))

    def snapshot(self, table: TableRef, partitions: Collection[str] | None = None) -> Snapshot:
        """See ``TableFormat``."""
        with open_metastore(table) as metastore:
            found = load_table(metastore, table)
            catalog_partitions = list(list_partitions(metastore, found, partitions))
            excluded = dict(shared_partitions(metastore, found, catalog_partitions))
        taken_at = datetime.now(UTC)
        listings = list_partition_files(table.name, catalog_partitions)
        if not table.sessions_refresh:
            excluded |= refusals.excluded_as_cached(found)
        slices = slices_table(
            table.location, listings, {**excluded, **refusals.excluded_partitions(found, catalog_partitions)}
        )
        return Snapshot(table=table, instant="", taken_at=taken_at, slices=slices)

    def find_commit(self, table: TableRef, plan_id: str) -> Commit | None:
        """See ``TableFormat``."""
        return self.recent_commits(table, [plan_id]).get(plan_id)

    def recent_commits(self, table: TableRef, plan_ids: Collection[str]) -> Mapping[str, Commit]:
        """See ``TableFormat``."""
        with open_metastore(table) as metastore:
            found = load_table(metastore, table)
            every = cache(lambda: tuple(list_partitions(metastore, found)))
            made = {plan_id: commit_lookup.find_commit(metastore, found, table, plan_id, every) for plan_id in plan_ids}
        return {plan_id: commit for plan_id, commit in made.items() if commit is not None}

    def remaining_staged(self, table: TableRef, staged: Collection[StagedWork]) -> Collection[str]:
        """See ``FindsStaged``."""
        with open_metastore(table) as metastore:
            return commit_lookup.withdrawable_versions(metastore, table, [one.token for one in staged], time.time())

    def inspect_locations(
        self, table: TableRef, relocated: Sequence[RelocatedPartition]
    ) -> Mapping[str, PartitionState]:
        """See ``RelocatesPartitions``."""
        _, partitions = _load_partitions(table, [one.partition for one in relocated])
        readers = partial(self.other_readers, table)
        return list_locations(
            table, relocated, partitions, readers, time.time(), lambda names: _load_partitions(table, names)[1]
        )

    def other_readers(
        self, table: TableRef, locations: Mapping[str, str], *, max_age: timedelta | None = None
    ) -> Mapping[str, str]:
        """See ``RelocatesPartitions``."""
        directories = {one: resolve_path(table.location, location) for one, location in locations.items()}
        with open_metastore(table) as metastore:
            found = load_table(metastore, table)
            own = partitions_with_other_readers(table, directories, list(list_partitions(metastore, found)))
            unread = {at for one, at in directories.items() if one not in own}
            foreign = shared_directories.present_readers(
                metastore, found, unread, max_age=shared_directories.DELETION_MAX_AGE, strict_age=max_age
            )
        return {**{one: foreign[at] for one, at in directories.items() if at in foreign}, **own}

    def named_relocations(self, table: TableRef, partitions: Collection[str]) -> Mapping[str, NamedRelocation]:
        """See ``RelocatesPartitions``."""
        return {
            one.name: NamedRelocation(
                token=token,
                location=relative_path(table.location, one.location),
                partition_created_at=one.created_at,
            )
            for one in _load_partitions(table, partitions)[1]
            if (token := relocation_token(one.parameters)) is not None
        }

    def change_detector(self, table: TableRef) -> HiveChangeDetector:
        """See ``DetectsChanges``."""
        return HiveChangeDetector(table)

    def applied_commits(self, table: TableRef, staged: Collection[StagedWork]) -> Sequence[Commit]:
        """See ``RelocatesPartitions``."""
        with open_metastore(table) as metastore:
            return commit_lookup.applied_commits(
                metastore, load_table(metastore, table), table, [one.token for one in staged]
            )

    def find_relocations(self, table: TableRef, known: Collection[str]) -> Sequence[FoundRelocations]:
        """See ``RecordsRelocations``."""
        with open_metastore(table) as metastore:
            return find_unrecorded_relocations(metastore, load_table(metastore, table), table, known)

    def missing_locations(self, table: TableRef, locations: Collection[str]) -> Collection[str]:
        """See ``PrunesRelocations``."""
        return record_pruning.missing_locations(table, locations)

    def prune_relocations(self, table: TableRef, tokens: Collection[str]) -> Collection[str]:
        """See ``PrunesRelocations``."""
        with open_metastore(table) as metastore:
            return record_pruning.prune_records(metastore, load_table(metastore, table), table, tokens)

    def deletion_blockers(
        self, table: TableRef, versions: Sequence[SupersededVersion], retention: timedelta = timedelta()
    ) -> Mapping[str, str | None]:
        """See ``TableFormat``."""
        with open_metastore(table) as metastore:
            found = load_table(metastore, table)
            why = table_root_conflict(metastore, found) or unreadable_reason(metastore)
            others = foreign_readers(metastore, found, readable_directories(table, versions))
            partitions = list(list_partitions(metastore, found))
        used = files_in_use(table, versions, partitions)
        for version in versions:
            reader = next((others[at] for at in readable_directories(table, [version]) if at in others), None)
            if reader is not None:
                used.setdefault(version.path, f"{version.path}: {reader}")
        return {version.path: used.get(version.path, why) for version in versions}

    def obsolete_deletions(self, table: TableRef, versions: Sequence[SupersededVersion]) -> Mapping[int, str]:
        """See ``TableFormat``."""
        _, partitions = _load_partitions(table)
        return find_restored(table, versions, partitions)

    def verify(self, table: TableRef, superseded: Sequence[SupersededVersion], *, rows: bool) -> TableVerification:
        """See ``TableFormat``. A metastore records no files: a partition holds the files in its directory."""
        found, partitions = _load_partitions(table)
        files = [file for listing in list_partition_files(table.name, partitions) for file in listing.files]
        paths = {file.path for file in files}
        replaced = {version.path for version in superseded if resolve_path(table.location, version.path) in paths}
        return TableVerification(
            files=len(files),
            bytes=sum(file.bytes for file in files),
            resurrected=tuple(sorted(replaced)),
            rows=_count_rows(found, files) if rows else None,
        )

    def history(
        self,
        table: TableRef,
        since: datetime,
        until: datetime,
        superseded: Sequence[SupersededVersion],
        check: CancellationCheck = no_check,
    ) -> TableHistory:
        """See ``KeepsHistory``."""
        _, partitions = _load_partitions(table)
        return reconstruct_history(
            table.location, list_partition_files(table.name, partitions), superseded, since, until, check
        )

    def actions(
        self,
        table: TableRef,
        superseded: Sequence[SupersededVersion],
        *,
        limit: int,
        max_files: int,
        before: str | None = None,
    ) -> ActionPage:
        """See ``ListsActions``. Lists the table's files once, as a scan does."""
        _, partitions = _load_partitions(table)
        listings = list_partition_files(table.name, partitions)
        return list_actions(table.location, listings, superseded, limit=limit, max_files=max_files, before=before)

    def describe(self, table: TableRef) -> Mapping[str, str]:
        """See ``TableFormat``."""
        with open_metastore(table) as metastore:
            found = load_table(metastore, table)
            partitions = len(metastore.partition_names(found.database, found.name)) if found.partition_columns else 0
        columns = ", ".join(f"{name} {kind}" for name, kind in found.partition_columns)
        return {
            "type": found.table_type.removesuffix("_TABLE").lower(),
            "made by": "Spark (USING)" if "spark.sql.sources.provider" in found.parameters else "Hive (STORED AS)",
            "files": str(refusals.file_format_of(found) or found.storage.serde),
            "partitioned by": columns or "nothing",
            "partitions": str(partitions),
            "made at": datetime.fromtimestamp(found.created_at, UTC).isoformat(),
            "metastore": table.catalog.name if table.catalog else "",
            "writers": likely.describe_writers(likely.writers_of_table(found)),
        }

    def likely_writers(self, snapshot: Snapshot) -> Sequence[LikelyWriter]:
        """See ``DetectsWriters``."""
        return likely.writers_of_snapshot(snapshot)

    def writer(self, table: TableRef, spark: SparkProvider, engines: Sequence[RewriteEngine] = ()) -> TableWriter:
        """See ``TableFormat``."""
        return HiveWriter(table, engines)


def _load_partitions(
    ref: TableRef, partitions: Collection[str] | None = None
) -> tuple[MetastoreTable, Sequence[CatalogPartition]]:
    """Return the table and its partitions, all or the named ones, as the metastore has them now."""
    with open_metastore(ref) as metastore:
        found = load_table(metastore, ref)
        return found, list(list_partitions(metastore, found, partitions))


def _count_rows(table: MetastoreTable, files: Sequence[ListedFile]) -> int:
    kind = refusals.file_format_of(table)
    if kind is None:
        raise Rejected(f"{table.name}: rows can be counted in {' and '.join(FileFormat)} files only")
    return count_rows([file.path for file in files if file.bytes], kind)
