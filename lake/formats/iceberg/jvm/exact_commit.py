# SPDX-License-Identifier: Apache-2.0
"""Commits a snapshot on exactly the metadata that lakefold has checked.

If another commit was faster, Iceberg's own ``commit()`` loads the metadata again and repeats only Iceberg's
validation. It would not notice a withdrawal of the attempt. So lakefold lets Iceberg create the snapshot (``apply()``,
with all validation), checks the metadata on which the snapshot is based, and replaces exactly this metadata. If another
commit was faster, lakefold repeats all three steps.
"""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lake.errors import Transient
from lake.failpoints import failpoint
from lake.formats.iceberg.jvm.errors import is_commit_refused, translated, translated_errors
from lake.formats.iceberg.jvm.java_table import JavaTable
from lake.formats.iceberg.read.live_files import MAIN

_TRIES = 30
_FIRST_WAIT_SECONDS, _MAX_WAIT_SECONDS = 0.05, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseMetadata:
    """The metadata on which a commit is made, as Iceberg's JSON."""

    document: Mapping[str, Any]

    @property
    def identity(self) -> str:
        """The table's UUID."""
        return str(self.document["table-uuid"])

    @property
    def format_version(self) -> int:
        """The version of the table's format."""
        return int(self.document["format-version"])

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        found: Mapping[str, str] = self.document.get("properties", {})
        return found

    @property
    def last_sequence_number(self) -> int:
        """The sequence number of the newest snapshot; 0 in format version 1."""
        return int(self.document.get("last-sequence-number", 0))

    @property
    def snapshots(self) -> Mapping[int, Mapping[str, Any]]:
        """The snapshots that the table still has, by id."""
        return {int(one["snapshot-id"]): one for one in self.document.get("snapshots", ())}

    @property
    def current_snapshot_id(self) -> int | None:
        """The newest snapshot of the branch ``main``; None if there is none."""
        found = self.document.get("current-snapshot-id")
        return None if found in (None, -1) else int(found)

    def descends_from(self, snapshot_id: int | None) -> bool:
        """Return True if the newest snapshot of ``main`` is ``snapshot_id`` or was made on top of it."""
        current = self.current_snapshot_id
        while current is not None and current != snapshot_id:
            one = self.snapshots.get(current)
            current = None if one is None else one.get("parent-snapshot-id")
        return current == snapshot_id

    @property
    def manifest_list(self) -> str | None:
        """The manifest list of the newest snapshot; None if there is none."""
        found = self.snapshots.get(self.current_snapshot_id or 0, {}).get("manifest-list")
        return None if found is None else str(found)

    @property
    def parents(self) -> list[int | None]:
        """The parents of all snapshots that the table still has."""
        return [one.get("parent-snapshot-id") for one in self.snapshots.values()]

    @property
    def branches(self) -> list[tuple[str, int]]:
        """The branches with their newest snapshots."""
        refs = self.document.get("refs", {})
        return [(name, int(one["snapshot-id"])) for name, one in refs.items() if one["type"] == "branch"]

    def summaries(self, key: str) -> list[str]:
        """Return the value of ``key`` in the summary of each snapshot that has it."""
        return [one["summary"][key] for one in self.snapshots.values() if key in one.get("summary", {})]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSnapshot:
    """A snapshot that Iceberg has made and the table does not have yet: its parent, summary and manifest list.

    If its parent is no longer the newest snapshot, it is not committed, whatever the check says.
    """

    parent_id: int | None
    summary: Mapping[str, str]
    manifest_list: str


Check = Callable[[BaseMetadata, NewSnapshot], None]
"""Gets the metadata on which a snapshot would be committed, and the snapshot; raises if it must not be committed."""


def commit_snapshot(table: JavaTable, update: Any, check: Check, fence: Callable[[], None]) -> tuple[int, BaseMetadata]:
    """Commit Iceberg's ``update`` to the branch ``main``. Returns the new snapshot and the metadata before it.

    Raises Conflict if Iceberg's validation fails, Transient if other commits were faster too often, CommitUnknown if
    the catalog's answer does not show the result. Errors of ``check`` and ``fence`` pass through.
    """
    written: list[Any] = []
    wait, may_be_committed = _FIRST_WAIT_SECONDS, False
    try:
        for _ in range(_TRIES):
            with translated_errors(table.name, "validating the commit"):
                snapshot = update.apply()
                written.append(snapshot)
                base = table.operations.current()
                seen = _read(table, base)
                summary = {str(key): str(value) for key, value in snapshot.summary().items()}
                parent = snapshot.parentId() or None
                new = NewSnapshot(parent_id=parent, summary=summary, manifest_list=str(snapshot.manifestListLocation()))
            check(seen, new)
            # Another thread of this JVM may share the table's operations and have loaded newer metadata in between.
            if parent == seen.current_snapshot_id:
                with translated_errors(table.name, "preparing the commit"):
                    changed = table.iceberg.TableMetadata.buildFrom(base).setBranchSnapshot(snapshot, MAIN).build()
                fence()
                failpoint("in_commit")
                # From here on the table may have the snapshot, even if the call raises an error.
                written.remove(snapshot)
                may_be_committed = True
                if _replace_metadata(table, base, changed, snapshot):
                    return int(snapshot.snapshotId()), seen
                may_be_committed = False
                written.append(snapshot)
            time.sleep(wait)
            wait = min(2 * wait, _MAX_WAIT_SECONDS)
        raise Transient(f"{table.name}: other commits were faster {_TRIES} times")
    finally:
        _remove_written(table, written, with_manifests=not may_be_committed)


def _replace_metadata(table: JavaTable, base: Any, changed: Any, snapshot: Any) -> bool:
    """Replace the metadata ``base`` by ``changed``, which has ``snapshot``. Returns False if the catalog refuses.

    Raises CommitUnknown for any other error.
    """
    try:
        table.operations.commit(base, changed)
    except Exception as error:
        if not is_commit_refused(error):
            raise translated(error, table.name, "committing", committing=True) from error
        # A Hadoop catalog also reports a refusal if a rename took effect and then failed.
        return _is_committed(table, snapshot)
    return True


def _is_committed(table: JavaTable, snapshot: Any) -> bool:
    """Return True if the table has the snapshot now. Raises CommitUnknown if the table can't be read."""
    try:
        return table.operations.refresh().snapshot(snapshot.snapshotId()) is not None
    except Exception as error:
        raise translated(error, table.name, "committing", committing=True) from error


def _read(table: JavaTable, metadata: Any) -> BaseMetadata:
    return BaseMetadata(document=json.loads(table.iceberg.TableMetadataParser.toJson(metadata)))


def _remove_written(table: JavaTable, snapshots: list[Any], *, with_manifests: bool) -> None:
    """Delete the manifest lists of snapshots that were not committed, and with ``with_manifests`` their new manifests.

    The snapshots of one update share manifests, so these stay if one of the snapshots may be committed.
    """
    with suppress(Exception):  # orphans of some kilobytes or megabytes, and no reason to fail a plan
        io = table.table.io()
        for manifest in snapshots[-1].allManifests(io) if snapshots and with_manifests else ():
            if manifest.snapshotId() == snapshots[-1].snapshotId():
                io.deleteFile(manifest.path())
    for snapshot in snapshots:
        with suppress(Exception):
            table.table.io().deleteFile(snapshot.manifestListLocation())
