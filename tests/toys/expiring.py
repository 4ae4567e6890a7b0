# SPDX-License-Identifier: Apache-2.0
"""Numbered versions whose files only the table's own expiry deletes, as Iceberg's ``expireSnapshots`` does.

An expiry removes old versions and the files that only these listed, so no process deletes single files. A table keeps
its newest versions even if they should expire.
"""

from collections.abc import Collection, Sequence

from lake.capabilities import capabilities_of
from lake.engines import RewriteEngine
from lake.model import TableRef
from lake.plan import SupersededVersion
from lake.ports import Capability, DeletionResult, SparkProvider
from toys.files import stored
from toys.versions import VersionsFormat, VersionsWriter, expire, newest

KEPT = 2
"""The minimum number of versions that a table keeps."""


class ExpiringWriter(VersionsWriter):
    """Changes one such table."""

    def delete(self, versions: Sequence[SupersededVersion]) -> DeletionResult:
        """Expire the versions before the commits that replaced these files. Files in a remaining version stay."""
        self.look_before_deletion(versions)
        before = stored(self._table)
        kept_from = newest(self._table)["version"] - KEPT + 1
        expire(self._table, min(kept_from, max(int(version.instant) for version in versions)))
        there = stored(self._table)
        reason = f"left to the table's own expiry, which keeps {KEPT} versions"
        return DeletionResult(
            bytes_freed=sum(before.get(version.path, 0) for version in versions if version.path not in there),
            retained={index: reason for index, version in enumerate(versions) if version.path in there},
        )


class ExpiringFormat(VersionsFormat):
    """Observes such tables."""

    name = "expiring"
    capabilities = capabilities_of(ExpiringWriter, Capability.OWN_EXPIRY)

    def known_files(self, table: TableRef) -> Collection[str]:
        return self.needed(table)

    def writer(self, table: TableRef, spark: SparkProvider, engines: Sequence[RewriteEngine] = ()) -> "ExpiringWriter":
        self.hook("open")
        return ExpiringWriter(self, table, engines)
