# SPDX-License-Identifier: Apache-2.0
"""Deletes superseded files by Iceberg's own expiry, which removes the files that no remaining snapshot lists.

Iceberg commits an expiry before it deletes files. If the process dies in between, no later expiry deletes them, so
lakefold deletes such files itself.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from lake.errors import Transient
from lake.formats.iceberg.catalog.tables import LoadedTable
from lake.formats.iceberg.jvm.errors import translated_errors
from lake.formats.iceberg.jvm.java_table import JavaTable
from lake.formats.iceberg.read.deletion_blockers import GC_ENABLED, disabled_gc
from lake.formats.iceberg.read.live_files import MAIN, all_file_locations, snapshot_of
from lake.model import TableRef
from lake.plan import SupersededVersion
from lake.ports import DeletionResult
from lake.storage.locations import canonical_location, resolve_path

_MAX_AGE, _MAX_AGE_DEFAULT_MS = "history.expire.max-snapshot-age-ms", 5 * 24 * 3600 * 1000
_MIN_KEPT = "history.expire.min-snapshots-to-keep"
_TRIES = 5


def expiry_limit_ms(
    table: LoadedTable, versions: Sequence[SupersededVersion], retention: timedelta, now_ms: int
) -> int | None:
    """Return the time, in ms since 1970, before which snapshots may expire so that ``versions`` are deleted.

    This is the time of the newest commit that superseded one of them. The time is earlier if the ``retention`` or the
    maximum age of ``main``'s snapshots requires an earlier one; ``now_ms`` is the present time. Returns None if no
    snapshot may expire. Iceberg's expiry itself honours branches, tags and ``history.expire.min-snapshots-to-keep``.
    """
    if disabled_gc(table) is not None:
        return None
    superseding = {version.instant for version in versions}
    commits = [one.timestamp_ms for one in table.metadata.snapshots if str(one.snapshot_id) in superseding]
    if not commits:
        return None  # the states before the superseding commits have expired already
    return int(min(max(commits), now_ms - _max_age(table)[1], now_ms - round(retention.total_seconds() * 1000)))


def _max_age(table: LoadedTable) -> tuple[str, int]:
    """Return the setting that limits the age of ``main``'s snapshots, and its value in ms."""
    main = table.metadata.refs.get(MAIN)
    if main is not None and main.max_snapshot_age_ms is not None:
        return f"max-snapshot-age-ms of {MAIN}", int(main.max_snapshot_age_ms)
    return _MAX_AGE, _table_max_age(table)


def _table_max_age(table: LoadedTable) -> int:
    return table.whole_number(_MAX_AGE, _MAX_AGE_DEFAULT_MS)


def _min_kept(table: LoadedTable) -> tuple[str, int]:
    """Return the setting with the minimum number of snapshots that ``main`` keeps, and its value."""
    main = table.metadata.refs.get(MAIN)
    if main is not None and main.min_snapshots_to_keep is not None:
        return f"min-snapshots-to-keep of {MAIN}", int(main.min_snapshots_to_keep)
    return _MIN_KEPT, table.whole_number(_MIN_KEPT, 1)


def oldest_expiring_snapshot(table: LoadedTable, limit_ms: int) -> int | None:
    """Return the oldest snapshot of ``main`` that expires with a limit of ``limit_ms``; None if there is none.

    Three kinds of snapshots do not expire: snapshots that a branch or tag names, ancestors of other branches, and the
    newest ``history.expire.min-snapshots-to-keep`` snapshots of ``main``.
    """
    refs, by_id = table.metadata.refs, {one.snapshot_id: one for one in table.metadata.snapshots}
    kept = {ref.snapshot_id for ref in refs.values()}
    for name, ref in refs.items():
        if name != MAIN and ref.snapshot_ref_type == "branch":
            kept.update(one.snapshot_id for one in _ancestors(by_id, ref.snapshot_id))
    newest = snapshot_of(table)
    history = [] if newest is None else list(_ancestors(by_id, newest.snapshot_id))
    found = [
        one for one in history[_min_kept(table)[1] :] if one.timestamp_ms < limit_ms and one.snapshot_id not in kept
    ]
    return int(found[-1].snapshot_id) if found else None


def _ancestors(by_id: Mapping[int, Any], snapshot_id: int | None) -> Iterator[Any]:
    """Yield a snapshot and its ancestors, newest first, as far as the table still has them."""
    while snapshot_id is not None and (snapshot := by_id.get(snapshot_id)) is not None:
        yield snapshot
        snapshot_id = snapshot.parent_snapshot_id


def expire(
    ref: TableRef,
    load: Callable[[], LoadedTable],
    open_table: Callable[[], JavaTable],
    versions: Sequence[SupersededVersion],
    retention: timedelta,
    now_ms: int,
) -> DeletionResult:
    """Expire the states before the commits that superseded ``versions``, and no later ones.

    ``now_ms`` is the present time in ms since 1970, by a clock that is not ahead of the storage's. Raises Transient,
    also if other commits change the table all the time. Also deletes files that an earlier expiry left, see
    ``unlisted_versions``.
    """
    paths = [resolve_path(ref.location, version.path) for version in versions]
    sizes = [os.path.getsize(path) if os.path.exists(path) else None for path in paths]
    for _ in range(_TRIES):
        kept_by = _expire_once(load, open_table, versions, retention, now_ms)
        if kept_by is not None:
            break
    else:
        raise Transient(f"{ref.name}: expiring snapshots waits: the table changed {_TRIES} times meanwhile")
    left = {index for index, path in enumerate(paths) if os.path.exists(path)}
    candidates = {index: versions[index] for index in left if sizes[index] == versions[index].bytes}
    for index in unlisted_versions(load(), candidates) if candidates else ():
        with suppress(FileNotFoundError):
            os.remove(paths[index])
        left.discard(index)
    return DeletionResult(
        bytes_freed=sum(size for index, size in enumerate(sizes) if size is not None and index not in left),
        retained=dict.fromkeys(sorted(left), f"left to the table's own expiry ({kept_by})"),
    )


def unlisted_versions(table: LoadedTable, versions: Mapping[int, SupersededVersion]) -> Collection[int]:
    """Return the keys of ``versions`` whose files an expiry that was cut short has left: no snapshot lists them.

    The snapshot that superseded a file must exist, and all others must have been made after it. The first shows that
    ``table`` is the table that had the file, whatever its name is; the second that no snapshot from before is left, so
    that manifests are read only then. Raises as ``read_live_files`` does.
    """
    if disabled_gc(table) is not None:
        return ()
    first = {instant for instant in {one.instant for one in versions.values()} if _descend_from(table, instant)}
    paths = {
        key: resolve_path(table.ref.location, version.path)
        for key, version in versions.items()
        if version.instant in first
    }
    listed = {canonical_location(one) for one in all_file_locations(table)} if paths else frozenset()
    return [key for key, path in paths.items() if path not in listed]


def _descend_from(table: LoadedTable, instant: str) -> bool:
    """Return True if the table has the snapshot ``instant``, and all its other snapshots were made after this one."""
    found = set[int]()
    for one in table.metadata.snapshots:  # parents come before their children
        if str(one.snapshot_id) == instant or one.parent_snapshot_id in found:
            found.add(one.snapshot_id)
    return bool(found) and len(found) == len(table.metadata.snapshots)


def _expire_once(
    load: Callable[[], LoadedTable],
    open_table: Callable[[], JavaTable],
    versions: Sequence[SupersededVersion],
    retention: timedelta,
    now_ms: int,
) -> str | None:
    """Expire snapshots, and return the reason why files may remain. Returns None if the table changed meanwhile.

    The limits come from the metadata to which Iceberg applies them, so they follow settings that the owner has just
    changed.
    """
    table = load()
    limit, kept_by = expiry_limit_ms(table, versions, retention, now_ms), _kept_by(table)
    oldest = None if limit is None else oldest_expiring_snapshot(table, limit)
    if limit is None or oldest is None:
        return kept_by
    java_table = open_table()

    def is_current() -> bool:
        location = str(java_table.operations.current().metadataFileLocation())
        return canonical_location(location) == canonical_location(table.metadata_location)

    def new_update() -> Any:
        update = java_table.table.expireSnapshots().expireOlderThan(limit)
        # By a time limit alone, Iceberg deletes replaced files only once the snapshot that replaced them expires
        # too. If the call also names a snapshot, Iceberg deletes all files that no remaining snapshot lists.
        return update.expireSnapshotId(oldest).cleanExpiredFiles(True)

    with translated_errors(table.ref.name, "expiring snapshots"):
        # Iceberg takes some settings from the metadata that is loaded now, others from what `apply` loads.
        if not is_current():
            return None
        # A branch's own maximum age takes precedence over `expireOlderThan`, even if it is shorter.
        expiring = {int(one.snapshotId()): int(one.timestampMillis()) for one in new_update().apply()}
        if not is_current():
            return None
        if too_young := sorted(one for one, at in expiring.items() if at >= limit):
            return (
                f"a branch has its own max-snapshot-age-ms, which would also expire snapshot {too_young[0]}, "
                "earlier than the retention or the table allow"
            )
        if promised := sorted(expiring.keys() & _kept_outside_main(table, now_ms)):
            return (
                f"{_max_age(table)[0]} is shorter than {_MAX_AGE}, which keeps snapshot {promised[0]} outside of {MAIN}"
            )
        # An update that was applied once would expire the same snapshots, even if the table's settings keep them now.
        new_update().commit()
    return kept_by


def _kept_outside_main(table: LoadedTable, now_ms: int) -> set[int]:
    """Return the snapshots outside of ``main`` that the table's own maximum age keeps.

    ``expireOlderThan`` also applies to them, but the maximum age of ``main`` does not. They are snapshots of other
    branches, and staged snapshots that a writer has not published yet (``write.wap.enabled``).
    """
    by_id, newest = {one.snapshot_id: one for one in table.metadata.snapshots}, snapshot_of(table)
    main = set() if newest is None else {one.snapshot_id for one in _ancestors(by_id, newest.snapshot_id)}
    earliest = now_ms - _table_max_age(table)
    return {key for key, one in by_id.items() if key not in main and one.timestamp_ms >= earliest}


def _kept_by(table: LoadedTable) -> str:
    if (value := disabled_gc(table)) is not None:
        return f"{GC_ENABLED} = {value}"
    settings = (_max_age(table), _min_kept(table))
    return ", ".join([*(f"{name} = {value}" for name, value in settings), "branches and tags"])
