# SPDX-License-Identifier: Apache-2.0
"""Deletes superseded files by Iceberg's own expiry, which removes the files that no remaining snapshot lists.

If another commit is faster, Iceberg's own ``commit()`` of an expiry (``RemoveSnapshots``, as of 1.11.0) loads the
metadata again and still removes all snapshots that it chose before, also if a new branch or a changed setting keeps
them now. So Iceberg chooses the snapshots, lakefold checks them and replaces exactly the metadata that both have read.
If another commit was faster, lakefold repeats all three steps.

The expiry is committed before files are deleted. If the process dies in between, no later expiry deletes them, so
lakefold deletes such files itself.
"""

import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

from lake.errors import Conflict, Transient
from lake.formats.iceberg.catalog import rest
from lake.formats.iceberg.catalog.settings import CatalogKind, read_settings
from lake.formats.iceberg.catalog.tables import LoadedTable
from lake.formats.iceberg.jvm.errors import is_commit_refused, translated_errors
from lake.formats.iceberg.jvm.java_table import JavaTable
from lake.formats.iceberg.read.deletion_blockers import GC_ENABLED, disabled_gc
from lake.formats.iceberg.read.live_files import (
    MAIN,
    all_file_locations,
    ancestors,
    entries_of,
    manifests_of,
    snapshot_of,
)
from lake.model import TableRef
from lake.plan import SupersededVersion
from lake.ports import DeletionResult
from lake.storage.locations import canonical_location, resolve_path

log = logging.getLogger(__name__)

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
    return int(min(max(commits), now_ms - _max_age(table)[1], now_ms - _milliseconds(retention)))


def _milliseconds(span: timedelta) -> int:
    return round(span.total_seconds() * 1000)


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
    kept = {ref.snapshot_id for ref in refs.values()} | _of_other_branches(table, by_id)
    history = list(ancestors(by_id, snapshot_of(table)))
    found = [
        one for one in history[_min_kept(table)[1] :] if one.timestamp_ms < limit_ms and one.snapshot_id not in kept
    ]
    return int(found[-1].snapshot_id) if found else None


def expire(
    ref: TableRef,
    settings: Mapping[str, str],
    load: Callable[[], LoadedTable],
    open_table: Callable[[], JavaTable],
    versions: Sequence[SupersededVersion],
    retention: timedelta,
    now_ms: int,
) -> DeletionResult:
    """Expire the states before the commits that superseded ``versions``, and no later ones.

    ``settings`` are Spark's. ``now_ms`` is the present time in ms since 1970, by a clock that is not ahead of the
    storage's. Also deletes files that an earlier expiry left, see ``unlisted_versions``. Raises Transient, also if
    other commits change the table all the time. Raises Conflict if commits may replace each other, or if the retention
    keeps a state that a rollback has restored.
    """
    paths = [resolve_path(ref.location, version.path) for version in versions]
    sizes = [os.path.getsize(path) if os.path.exists(path) else None for path in paths]
    for _ in range(_TRIES):
        outcome = _expire_once(settings, load, open_table, versions, retention, now_ms)
        if outcome is not None:
            break
    else:
        raise Transient(f"{ref.name}: expiring snapshots waits: the table changed {_TRIES} times meanwhile")
    left = {index for index, path in enumerate(paths) if os.path.exists(path)}
    candidates = {index: versions[index] for index in left if sizes[index] == versions[index].bytes}
    for index in unlisted_versions(load(), candidates) if candidates and not outcome.keeps_unlisted else ():
        with suppress(FileNotFoundError):
            os.remove(paths[index])
        left.discard(index)
    return DeletionResult(
        bytes_freed=sum(size for index, size in enumerate(sizes) if size is not None and index not in left),
        retained=dict.fromkeys(sorted(left), outcome.kept_by),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """The reason why files may remain. With ``keeps_unlisted``, files that no snapshot lists remain, too."""

    kept_by: str
    keeps_unlisted: bool = False


def _expire_once(
    settings: Mapping[str, str],
    load: Callable[[], LoadedTable],
    open_table: Callable[[], JavaTable],
    versions: Sequence[SupersededVersion],
    retention: timedelta,
    now_ms: int,
) -> _Outcome | None:
    """Expire snapshots, and return the outcome. Returns None if the table changed meanwhile.

    The limits come from the metadata that the expiry replaces, so they follow settings that the owner has just changed.
    """
    table = load()
    limit, kept_by = expiry_limit_ms(table, versions, retention, now_ms), _kept_by(table)
    oldest = None if limit is None else oldest_expiring_snapshot(table, limit)
    if limit is None or oldest is None:
        return _left(kept_by)
    if table.unsafe_reason is not None:
        raise Conflict(f"{table.ref.name}: {table.unsafe_reason}")
    java_table = open_table()
    base = java_table.operations.current()
    if canonical_location(str(base.metadataFileLocation())) != canonical_location(table.metadata_location):
        return None
    with translated_errors(table.ref.name, "selecting snapshots to expire"):
        expiry = _new_expiry(java_table, base, limit, oldest)
        expiring = {int(one.snapshotId()): int(one.timestampMillis()) for one in expiry.update.apply()}
    # A branch's own maximum age takes precedence over `expireOlderThan`, even if it is shorter.
    if too_young := sorted(one for one, at in expiring.items() if at >= limit):
        return _left(
            f"a branch has its own max-snapshot-age-ms, which would also expire snapshot {too_young[0]}, "
            "earlier than the retention or the table allow"
        )
    if promised := sorted(expiring.keys() & _kept_for_others(table, now_ms)):
        return _left(
            f"{_max_age(table)[0]} is shorter than {_MAX_AGE}, which keeps snapshot {promised[0]} because not only "
            f"{MAIN} has it"
        )
    if (still := _newest_within(table, expiring, now_ms - _milliseconds(retention))) is not None:
        raise Conflict(
            f"{table.ref.name}: {MAIN} was set back to snapshot {still}, and a later commit replaced this state less "
            "than the retention ago"
        )
    with translated_errors(table.ref.name, "expiring snapshots"):
        expiry.update.cleanExpiredFiles(False).commit()  # to the transaction only
    before = _replace_metadata(settings, table, java_table, base, expiry.transaction.currentMetadata(), expiring)
    if before is None:
        return None
    if canonical_location(before) != canonical_location(table.metadata_location):
        reason = (
            "no file was deleted: the REST catalog made another commit right before it expired snapshots; if that "
            f"commit added a branch or tag, the last metadata with it is {before or 'unknown'}"
        )
        log.warning("table %s: %s", table.ref.name, reason)
        return _Outcome(kept_by=reason, keeps_unlisted=True)
    _delete_files(java_table, load(), base, limit, oldest, expiring)
    return _left(kept_by)


def _newest_within(table: LoadedTable, expiring: Collection[int], earliest_ms: int) -> int | None:
    """Return one of the snapshots ``expiring`` that was the newest one of ``main`` after ``earliest_ms``, else None.

    A rollback makes a snapshot the newest one that may be older than every limit.
    """
    log = table.metadata.snapshot_log
    left = ((one.snapshot_id, later.timestamp_ms) for one, later in pairwise(log))
    return next((int(one) for one, until in left if one in expiring and until > earliest_ms), None)


def _left(kept_by: str) -> _Outcome:
    return _Outcome(kept_by=f"left to the table's own expiry ({kept_by})")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expiry:
    """Iceberg's update of an expiry, in a transaction that only lakefold commits."""

    transaction: Any
    update: Any


def _new_expiry(java_table: JavaTable, base: Any, limit_ms: int, oldest: int) -> _Expiry:
    """Return Iceberg's expiry of the snapshots before ``limit_ms`` that the metadata ``base`` does not keep.

    ``oldest`` is one of them. The update never loads other metadata.
    """
    iceberg, table = java_table.iceberg, java_table.table
    operations = iceberg.StaticTableOperations(base, table.io(), table.locationProvider())
    transaction = iceberg.BaseTable(operations, table.name()).newTransaction()
    # By a time limit alone, Iceberg deletes replaced files only once the snapshot that replaced them expires
    # too. If the call also names a snapshot, Iceberg deletes all files that no remaining snapshot lists.
    update = transaction.expireSnapshots().expireOlderThan(limit_ms).expireSnapshotId(oldest)
    return _Expiry(transaction=transaction, update=update)


def _replace_metadata(
    settings: Mapping[str, str],
    table: LoadedTable,
    java_table: JavaTable,
    base: Any,
    changed: Any,
    expiring: Iterable[int],
) -> str | None:
    """Replace the metadata ``base``, which ``table`` has, by ``changed``, which lacks the snapshots ``expiring``.

    Returns None if the catalog refuses. Otherwise returns the metadata file that was replaced. Only in a REST catalog
    it may be another one, or '' if the server does not tell.
    """
    assert table.ref.catalog is not None
    opened = read_settings(settings, table.ref.catalog.name)
    with translated_errors(table.ref.name, "expiring snapshots"):
        if opened.kind is CatalogKind.REST:
            changes = [str(java_table.iceberg.MetadataUpdateParser.toJson(one)) for one in changed.changes()]
            return rest.replace_metadata(opened, table.ref.catalog.table, table.metadata, changes)
        try:
            java_table.operations.commit(base, changed)
        except Exception as error:
            if not is_commit_refused(error):
                raise
            # A catalog also reports a refusal if it repeated a commit that took effect.
            latest = java_table.operations.refresh()
            if any(latest.snapshot(one) is not None for one in expiring):
                return None
    return table.metadata_location


def _delete_files(
    java_table: JavaTable, latest: LoadedTable, base: Any, limit_ms: int, oldest: int, expired: Collection[int]
) -> None:
    """Delete the files that only ``expired`` snapshots of ``base`` list. ``latest`` is the table after the expiry."""
    with translated_errors(java_table.name, "deleting files of expired snapshots"):
        # Iceberg reads the manifests of all snapshots for this: too long to do it before the commit.
        again = _new_expiry(java_table, base, limit_ms, oldest)
        if {int(one.snapshotId()) for one in again.update.apply()} != set(expired):
            return  # the age of a branch or tag has just passed; these files become orphan files
        names, collect = java_table.new_collector()
        again.update.cleanExpiredFiles(True).deleteWith(collect).commit()  # to the transaction only
        unlisted = java_table.texts(names)
        known = {int(one.snapshotId()) for one in base.snapshots()}
        if newer := [one for one in latest.metadata.snapshots if one.snapshot_id not in known]:
            listed = {canonical_location(one) for one in _locations(latest, newer)}
            unlisted = [one for one in unlisted if canonical_location(one) not in listed]
        java_table.delete_files(unlisted)


def _locations(table: LoadedTable, snapshots: Iterable[Any]) -> Iterator[str]:
    """Yield the names of all files that ``snapshots`` list, and of their manifests and manifest lists."""
    for snapshot in snapshots:
        yield snapshot.manifest_list
        for manifest in manifests_of(table, snapshot):
            yield manifest.manifest_path
            yield from (entry.data_file.file_path for entry in entries_of(table, manifest))


def _kept_for_others(table: LoadedTable, now_ms: int) -> set[int]:
    """Return the snapshots, except those of ``main`` alone, that the table's own maximum age keeps.

    ``expireOlderThan`` also applies to them, but the maximum age of ``main`` does not. They are snapshots of other
    branches, which ``main`` may have as well, and staged snapshots that a writer has not published yet
    (``write.wap.enabled``).
    """
    by_id = {one.snapshot_id: one for one in table.metadata.snapshots}
    of_main = {one.snapshot_id for one in ancestors(by_id, snapshot_of(table))}
    of_main -= _of_other_branches(table, by_id)
    earliest = now_ms - _table_max_age(table)
    return {key for key, one in by_id.items() if key not in of_main and one.timestamp_ms >= earliest}


def _of_other_branches(table: LoadedTable, by_id: Mapping[int, Any]) -> set[int]:
    """Return the snapshots of all branches but ``main``, as far as the table still has them."""
    heads = [
        ref.snapshot_id
        for name, ref in table.metadata.refs.items()
        if name != MAIN and ref.snapshot_ref_type == "branch"
    ]
    return {one.snapshot_id for head in heads for one in ancestors(by_id, by_id.get(head))}


def _kept_by(table: LoadedTable) -> str:
    if (value := disabled_gc(table)) is not None:
        return f"{GC_ENABLED} = {value}"
    settings = (_max_age(table), _min_kept(table))
    return ", ".join([*(f"{name} = {value}" for name, value in settings), "branches and tags"])
