# SPDX-License-Identifier: Apache-2.0
"""The actions of a table, page by page, from the active and the archived timeline. Needs no JVM."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any

from lake.actions import ActionFile, ActionPage, ActionState, FileChanges, TableAction
from lake.errors import Rejected, Transient
from lake.formats.hudi.files.names import parse_file_name, relative_path
from lake.formats.hudi.read.history import REWRITE_KINDS, REWRITE_OPERATIONS, application_of
from lake.formats.hudi.timeline.archive import COMPLETES_AS, ArchivedInstant
from lake.formats.hudi.timeline.timeline import (
    CLEAN_KEY,
    EPOCH_KEY,
    PLAN_KEY,
    Instant,
    Timeline,
    extra_metadata,
    instant_datetime,
    planned_slices,
    write_stats,
)
from lake.units import format_bytes

#: sorts after every instant
_NEWEST = ("~", "")
_KEY = re.compile(r"(\d{14,17})\.([a-z]+)")
#: maximum size of an archive of layout 1 that is read: it has no index, so that each page reads all of it
_MAX_UNINDEXED_BYTES = 64 << 20
_NO_COMMIT = "null"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """An instant with its records; ``kind`` is the action under which it was requested."""

    time: str
    kind: str
    action: str
    state: ActionState
    completed_at: str | None
    plan: Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None
    is_empty: bool = False


def list_actions(timeline: Timeline, *, limit: int, max_files: int, before: str | None = None) -> ActionPage:
    """Return a page of actions, as ``ListsActions.actions`` does.

    Reads the records of the page's instants, and the times of archived instants until the page is full.
    """
    end = _parse_key(before)
    active = {(i.time, i.action): i for i in timeline.instants if (i.time, i.action) < end}
    chosen: Sequence[tuple[tuple[str, str], Instant | ArchivedInstant]]
    chosen = sorted(active.items(), key=itemgetter(0), reverse=True)[: limit + 1]
    notes: tuple[str, ...] = ()
    if len(chosen) <= limit:
        # Archived instants may be younger than active ones: a pending instant keeps its place until it completes.
        older, notes = _archived(timeline, end, limit + 1)
        both = {(found.time, found.action): found for found in older} | active
        chosen = sorted(both.items(), key=itemgetter(0), reverse=True)[: limit + 1]
    shown = [found for _, found in chosen[:limit]]
    actions = tuple(_to_action(entry, timeline, max_files) for entry in _read_entries(timeline, shown))
    return ActionPage(actions=actions, next_key=actions[-1].key if len(chosen) > limit else None, notes=notes)


def _parse_key(key: str | None) -> tuple[str, str]:
    if key is None:
        return _NEWEST
    match = _KEY.fullmatch(key)
    if match is None:
        raise Rejected(
            f"{key!r} is not an action of a Hudi table; use the key of an action, such as 20260131120000000.commit"
        )
    return match[1], match[2]


def _archived(timeline: Timeline, end: tuple[str, str], limit: int) -> tuple[list[ArchivedInstant], tuple[str, ...]]:
    if timeline.layout == 1 and (size := timeline.archive_bytes) > _MAX_UNINDEXED_BYTES:
        note = f"older actions are in an archive of {format_bytes(size)} without an index, which is not read"
        return [], (note,)
    return timeline.newest_archived(end, limit), ()


def _read_entries(timeline: Timeline, shown: Sequence[Instant | ArchivedInstant]) -> Iterator[_Entry]:
    active = [found for found in shown if isinstance(found, Instant)]
    entries = {
        (entry.time, entry.action): entry
        for entry in timeline.storage.map_parallel(lambda instant: _read_active(timeline, instant), active)
    }
    times = {found.time for found in shown if isinstance(found, ArchivedInstant)}
    for found in timeline.archived(times=times) if times else ():
        kind = next((k for k in COMPLETES_AS if COMPLETES_AS[k] == found.action and _is_plan_of(k, found.plan)), None)
        entry = _Entry(
            time=found.time,
            kind=kind or found.action,
            action=found.action,
            state=ActionState.COMPLETED,
            completed_at=found.completed_at,
            plan=found.plan,
            metadata=found.metadata,
            is_empty=found.metadata is None,
        )
        entries.setdefault((found.time, found.action), entry)
    for one in shown:
        if (one.time, one.action) not in entries:
            raise Transient(f"instant {one.time} was archived while it was read")
        yield entries[one.time, one.action]


def _is_plan_of(kind: str, plan: Mapping[str, Any] | None) -> bool:
    return bool((plan or {}).get("clusteringPlan" if kind == "clustering" else "operations"))


def _read_active(timeline: Timeline, instant: Instant) -> _Entry:
    return _Entry(
        time=instant.time,
        kind=instant.kind,
        action=instant.action,
        state=ActionState(instant.state.value),
        completed_at=instant.completed_at,
        # A writer's request has no plan. The request of a clean or a rollback lists files that the completion repeats.
        plan=timeline.plan(instant) if instant.kind in REWRITE_KINDS or instant.action == "replacecommit" else None,
        metadata=timeline.metadata(instant),
        is_empty=timeline.is_empty(instant),
    )


def _to_action(entry: _Entry, timeline: Timeline, max_files: int) -> TableAction:
    metadata = entry.metadata or {}
    operation = metadata.get("operationType") or ""
    operation = "" if operation == "UNKNOWN" else operation
    is_rewrite = operation in REWRITE_OPERATIONS if operation else entry.kind in REWRITE_KINDS
    extra = extra_metadata(metadata)
    requested = extra_metadata(entry.plan)
    added, removed = tuple(_added(entry)), tuple(_removed(entry))
    plan_id = (extra.get(PLAN_KEY) or requested.get(PLAN_KEY)) if is_rewrite else None
    epoch = extra.get(EPOCH_KEY)
    return TableAction(
        key=f"{entry.time}.{entry.action}",
        instant=entry.time,
        action=entry.kind,
        state=entry.state,
        began_at=instant_datetime(entry.time, timeline.timezone),
        completed_at=_time(entry.completed_at, timeline.timezone),
        operation=operation.lower() or None,
        is_rewrite=is_rewrite,
        plan_id=plan_id,
        epoch=int(epoch) if plan_id and epoch is not None and epoch.isdecimal() else None,
        by="lakefold" if plan_id or CLEAN_KEY in extra else metadata.get("savepointedBy") or application_of(extra),
        partitions=len({file.partition for file in (*added, *removed)}),
        added=FileChanges.of(added, max_files),
        removed=FileChanges.of(removed, max_files),
        notes=tuple(_notes(entry)),
    )


def _time(instant: str | None, timezone: str) -> datetime | None:
    return None if instant is None else instant_datetime(instant, timezone)


def _added(entry: _Entry) -> Iterator[ActionFile]:
    """Yield the files that the action wrote. Logs that were only appended to are included, with the appended bytes."""
    for partition, stat in write_stats(entry.metadata):
        if path := stat.get("path"):
            file = parse_file_name(path)
            file_id = file.file_id if file else stat.get("fileId") or ""
            yield ActionFile(partition=partition, file_id=file_id, path=path, bytes=stat.get("fileSizeInBytes"))


def _removed(entry: _Entry) -> Iterator[ActionFile]:
    """Yield the files that the action deleted, or that readers no longer see since then.

    Some commits do not name these files, but only their file groups.
    """
    named = list(_planned(entry.plan))
    yield from named
    groups = {(file.partition, file.file_id) for file in named}
    metadata = entry.metadata or {}
    for partition, file_ids in (metadata.get("partitionToReplaceFileIds") or {}).items():
        for file_id in file_ids:
            if (partition, file_id) not in groups:
                yield ActionFile(partition=partition, file_id=file_id)
    if entry.kind not in REWRITE_KINDS:
        yield from _previous_versions(metadata)
    for partition, changes in _partition_metadata(metadata):
        for name in changes.get("successDeleteFiles") or ():
            path = relative_path(partition, name.rpartition("/")[2])
            file = parse_file_name(path)
            yield ActionFile(partition=partition, file_id=file.file_id if file else "", path=path)


def _planned(plan: Mapping[str, Any] | None) -> Iterator[ActionFile]:
    for planned in planned_slices(plan or {}):
        for path in planned.paths:
            yield ActionFile(partition=planned.partition, file_id=planned.file_id, path=path)


def _previous_versions(metadata: Mapping[str, Any]) -> Iterator[ActionFile]:
    """Yield the base files that new versions of their file groups replaced."""
    for partition, stat in write_stats(metadata):
        file, previous = parse_file_name(stat.get("path") or ""), stat.get("prevCommit")
        if file is None or file.is_log or previous in (None, "", _NO_COMMIT, file.instant):
            continue
        name = (stat.get("prevBaseFile") or "").rpartition("/")[2]
        path = relative_path(partition, name) if name else None
        yield ActionFile(partition=partition, file_id=file.file_id, path=path)


def _partition_metadata(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the partitions of a clean or of a rollback, and those of all rollbacks of a restore."""
    restored: Iterable[Any] = (metadata.get("hoodieRestoreMetadata") or {}).values()
    for record in (metadata, *(one for rolled_back in restored for one in rolled_back)):
        for partition, changes in (record.get("partitionMetadata") or {}).items():
            yield changes.get("partitionPath") or partition, changes


def _notes(entry: _Entry) -> Iterator[str]:
    metadata = entry.metadata or {}
    if entry.is_empty and entry.state is ActionState.COMPLETED:
        yield "the timeline does not record its files"
    for instant in metadata.get("commitsRollback") or ():
        yield f"rolled back {instant}"
    for instant in metadata.get("instantsToRollback") or ():
        yield f"undid {instant}"
    if comments := metadata.get("comments"):
        yield f"comment: {comments}"
    if entry.action == "savepoint":
        kept = sum(len(part.get("savepointDataFile") or ()) for _, part in _partition_metadata(metadata))
        yield f"retains {kept} files"
