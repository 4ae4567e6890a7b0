# SPDX-License-Identifier: Apache-2.0
"""The adapter of Iceberg tables: everything that reads tables."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType

from lake.capabilities import OrphanFile, OrphanSearch, capabilities_of
from lake.engines import RewriteEngine
from lake.formats.iceberg.catalog.hadoop import find_table_directory
from lake.formats.iceberg.catalog.settings import is_iceberg_catalog
from lake.formats.iceberg.catalog.tables import (
    LoadedTable,
    find_tables,
    load_table,
    other_locations,
    other_table_reason,
    table_identity,
)
from lake.formats.iceberg.jvm.manifest_rewrite import MANIFESTS
from lake.formats.iceberg.read import audit, commits, deletion_blockers, orphans, refusals
from lake.formats.iceberg.read.slices import read_snapshot
from lake.formats.iceberg.session import requirements
from lake.formats.iceberg.writer import IcebergWriter
from lake.model import SearchFailure, Snapshot, TableRef
from lake.plan import Commit, StagedWork, SupersededVersion
from lake.ports import Capability, SparkProvider, TableVerification, TableWriter


class IcebergFormat:
    """Tables of Iceberg catalogs, of format versions 1, 2 and 3.

    Implements ``lake.ports.TableFormat`` and, of ``lake.capabilities``, ``UsesSparkSettings``, ``ListedInCatalog``,
    ``FindsStaged``, ``HasIdentity`` and ``FindsOrphans``.
    """

    name = "iceberg"
    capabilities = capabilities_of(
        IcebergWriter,
        Capability.COMPACTION,
        Capability.OPTIMISTIC_COMMITS,
        Capability.OWN_EXPIRY,
        Capability.SORTING,
    )
    services = (MANIFESTS,)

    def __init__(self) -> None:
        self.configure({})

    def configure(self, settings: Mapping[str, str]) -> None:
        """See ``UsesSparkSettings``."""
        self._settings: Mapping[str, str] = MappingProxyType(dict(settings))
        self.session_requirements = requirements(self._settings)

    def discover(self, location: str) -> Iterator[TableRef | SearchFailure]:
        """See ``TableFormat``. Yields nothing: commits need the table's catalog, and a directory does not name it."""
        return iter(())

    def lists_catalog(self, catalog: str) -> bool:
        """See ``ListedInCatalog``."""
        return is_iceberg_catalog(self._settings, catalog)

    def discover_in_catalog(
        self, catalog: str, database_pattern: str, table_pattern: str
    ) -> Iterator[TableRef | SearchFailure]:
        """See ``ListedInCatalog``."""
        return find_tables(self._settings, catalog, database_pattern, table_pattern)

    def find_unlisted(self, location: str) -> str | None:
        """See ``ListedInCatalog``."""
        return find_table_directory(location)

    def check(self, table: TableRef) -> None:
        """See ``TableFormat``."""
        refusals.check_table(self._load(table))

    def identity(self, table: TableRef) -> str:
        """See ``HasIdentity``."""
        return table_identity(self._load(table))

    def snapshot(self, table: TableRef, partitions: Collection[str] | None = None) -> Snapshot:
        """See ``TableFormat``."""
        loaded = self._load(table)
        refusals.check_table(loaded)
        return read_snapshot(loaded, partitions)

    def find_commit(self, table: TableRef, plan_id: str) -> Commit | None:
        """See ``TableFormat``."""
        return self.recent_commits(table, [plan_id]).get(plan_id)

    def recent_commits(self, table: TableRef, plan_ids: Collection[str]) -> Mapping[str, Commit]:
        """See ``TableFormat``."""
        return commits.find_commits(self._load(table), plan_ids)

    def remaining_staged(self, table: TableRef, staged: Collection[StagedWork]) -> Collection[str]:
        """See ``FindsStaged``."""
        loaded = self._load(table)
        if other_table_reason(table, table_identity(loaded)) is not None:
            return []
        return commits.remaining_staged(loaded, staged)

    def deletion_blockers(
        self, table: TableRef, versions: Sequence[SupersededVersion], retention: timedelta = timedelta()
    ) -> Mapping[str, str | None]:
        """See ``TableFormat``."""
        return deletion_blockers.deletion_blockers(self._load(table), versions)

    def obsolete_deletions(self, table: TableRef, versions: Sequence[SupersededVersion]) -> Mapping[int, str]:
        """See ``TableFormat``."""
        return deletion_blockers.obsolete_deletions(self._load(table), versions)

    def verify(self, table: TableRef, superseded: Sequence[SupersededVersion], *, rows: bool) -> TableVerification:
        """See ``TableFormat``."""
        return audit.verify(self._load(table), superseded, rows=rows)

    def find_orphans(self, table: TableRef, search: OrphanSearch) -> Sequence[OrphanFile]:
        """See ``FindsOrphans``."""
        return orphans.find_orphans(lambda: self._load(table), lambda: other_locations(self._settings, table), search)

    def describe(self, table: TableRef) -> Mapping[str, str]:
        """See ``TableFormat``."""
        return audit.describe(self._load(table))

    def writer(self, table: TableRef, spark: SparkProvider, engines: Sequence[RewriteEngine] = ()) -> TableWriter:
        """See ``TableFormat``."""
        return IcebergWriter(table, lambda: self._settings, spark, engines)

    def _load(self, table: TableRef) -> LoadedTable:
        return load_table(self._settings, table)


FORMAT = IcebergFormat()
