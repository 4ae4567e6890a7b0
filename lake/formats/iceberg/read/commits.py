# SPDX-License-Identifier: Apache-2.0
"""lakefold's commits and withdrawals on a table: snapshots whose summaries name a plan, or withdrawn tokens."""

import os
from collections.abc import Collection, Mapping
from typing import Any

from lake.formats.iceberg.catalog.tables import LoadedTable
from lake.formats.iceberg.read.live_files import all_file_locations, entries_of, manifests_of
from lake.formats.iceberg.read.partitions import PartitionNamer
from lake.plan import Commit, OutputFile, StagedWork, SupersededVersion
from lake.storage.locations import canonical_location, resolve_path

PLAN, EPOCH, TOKEN = "lakefold.plan-id", "lakefold.epoch", "lakefold.token"
WITHDRAWN = "lakefold.withdrawn"
"""The summary key of a withdrawal, a snapshot that changes no file. Its value lists the tokens that it withdraws."""

SERVICE = "lakefold.service"
"""The summary key of a snapshot that a table service made."""


def summary_of(snapshot: Any) -> Mapping[str, str]:
    """Return the properties of a snapshot's summary, without its operation."""
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def find_commits(table: LoadedTable, plan_ids: Collection[str]) -> dict[str, Commit]:
    """Return the commits of ``plan_ids`` whose snapshots the table still has, including commits that were rolled back.

    Commits of expired snapshots are missing.
    """
    return {
        named: _read_commit(table, snapshot)
        for snapshot in table.metadata.snapshots
        if (named := summary_of(snapshot).get(PLAN, "")) in plan_ids
    }


def _read_commit(table: LoadedTable, snapshot: Any) -> Commit:
    from pyiceberg.manifest import ManifestContent, ManifestEntryStatus

    namer, instant = PartitionNamer(table), str(snapshot.snapshot_id)
    outputs, superseded = [], []
    for manifest in manifests_of(table, snapshot):
        # A snapshot's additions and removals are in the manifests that it wrote itself.
        if manifest.added_snapshot_id != snapshot.snapshot_id or manifest.content != ManifestContent.DATA:
            continue
        for entry in entries_of(table, manifest, deleted=True):
            if entry.snapshot_id != snapshot.snapshot_id:
                continue
            file = entry.data_file
            partition, path = namer.describe(file).name, canonical_location(file.file_path)
            size = file.file_size_in_bytes
            if entry.status == ManifestEntryStatus.ADDED:
                outputs.append(OutputFile(partition=partition, path=path, bytes=size, rows=file.record_count))
            elif entry.status == ManifestEntryStatus.DELETED:
                superseded.append(SupersededVersion(partition=partition, path=path, bytes=size, instant=instant))
    summary = summary_of(snapshot)
    return Commit(
        plan_id=summary[PLAN],
        epoch=int(summary[EPOCH]),
        instant=instant,
        outputs=tuple(outputs),
        superseded=tuple(superseded),
    )


def remaining_staged(table: LoadedTable, staged: Collection[StagedWork]) -> list[str]:
    """Return the tokens of work with files in storage that the table has never committed.

    A token is left out if a snapshot names it or lists one of its files. Each path of a token is a file, or a directory
    that only this token uses.
    """
    paths = {one.token: [resolve_path(table.ref.location, path) for path in one.paths] for one in staged}
    stored = {token: every for token, every in paths.items() if any(map(_has_file, every))}
    for snapshot in table.metadata.snapshots:
        stored.pop(summary_of(snapshot).get(TOKEN, ""), None)
    if not stored:
        return []
    # The table may have forgotten the commit and kept its files.
    owners = {path: token for token, every in stored.items() for path in every}
    for location in all_file_locations(table):
        path = canonical_location(location)
        # A staging directory is at some level above the file.
        while path and stored:
            if path in owners:
                stored.pop(owners[path], None)
            path = path.rpartition("/")[0]
    return list(stored)


def _has_file(path: str) -> bool:
    """Return True if there is a file at ``path``, or below it a file that is not hidden, such as a checksum."""
    if not os.path.isdir(path):
        return os.path.exists(path)
    return any(not name.startswith(".") for _, _, names in os.walk(path) for name in names)
