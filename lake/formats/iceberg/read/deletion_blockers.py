# SPDX-License-Identifier: Apache-2.0
"""The files that a table's branches and tags keep, and the superseded files that may not be deleted for this reason."""

from collections.abc import Collection, Mapping, Sequence

from lake.formats.iceberg.catalog.tables import LoadedTable
from lake.formats.iceberg.read.live_files import MAIN, read_live_files, snapshot_of
from lake.plan import SupersededVersion
from lake.storage.locations import resolve_path

GC_ENABLED = "gc.enabled"


def disabled_gc(table: LoadedTable) -> str | None:
    """Return the value of the table's ``gc.enabled`` if it forbids the deletion of files; None if it does not.

    Iceberg allows the deletion with no other value than true.
    """
    value = str(table.metadata.properties.get(GC_ENABLED, "true"))
    return None if value.lower() == "true" else value


def files_of_refs(table: LoadedTable) -> Mapping[str, Collection[str]]:
    """Return for each branch and tag the data files of its snapshot."""
    names = {MAIN, *table.metadata.refs}
    by_snapshot: dict[int, set[str]] = {}
    found: dict[str, Collection[str]] = {}
    for name in sorted(names):
        snapshot = snapshot_of(table, name)
        if snapshot is None:
            continue
        if snapshot.snapshot_id not in by_snapshot:
            by_snapshot[snapshot.snapshot_id] = {file.path for file in read_live_files(table, snapshot)}
        found[name] = by_snapshot[snapshot.snapshot_id]
    return found


def deletion_blockers(table: LoadedTable, versions: Sequence[SupersededVersion]) -> dict[str, str | None]:
    """Return for each version's path the branch or tag that keeps the file, in a sentence; None if there is none."""
    refs = files_of_refs(table)

    def blocker(path: str) -> str | None:
        resolved = resolve_path(table.ref.location, path)
        for name in sorted(refs, key=lambda one: one != MAIN):
            if resolved in refs[name]:
                return f"{path}: it is live again" if name == MAIN else f"{path}: the table's ref {name!r} keeps it"
        return None

    return {version.path: blocker(version.path) for version in versions}


def obsolete_deletions(table: LoadedTable, versions: Sequence[SupersededVersion]) -> dict[int, str]:
    """Return the versions, by index, that are part of the table again, each with the reason.

    Files that an expiry has deleted already are left to ``delete``, which counts them as deleted.
    """
    live = {file.path for file in read_live_files(table, snapshot_of(table))}
    return {
        index: "it is part of the table again: its replacement was rolled back"
        for index, version in enumerate(versions)
        if resolve_path(table.ref.location, version.path) in live
    }
