# SPDX-License-Identifier: Apache-2.0
"""The facts about a table that people see: type, last commit, writers, pending actions, locks."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyarrow import fs as pafs

from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.lock_settings.lock_journal import LockJournal
from lake.formats.hudi.lock_settings.providers import possible_lock_file
from lake.formats.hudi.pending.actions import list_pending_actions
from lake.formats.hudi.pending.heartbeats import HEARTBEAT_DIRECTORY
from lake.formats.hudi.read.slices import is_merge_on_read
from lake.formats.hudi.timeline.archive import ArchiveUnreadable
from lake.formats.hudi.timeline.timeline import PLAN_KEY, PLANNED_KINDS, Timeline, extra_metadata, instant_datetime
from lake.model import TableRef
from lake.units import format_rough_duration


def describe_table(table: TableRef) -> dict[str, str]:
    """Return the facts about a table by label."""
    storage = TableStorage(table.location)
    timeline = Timeline(storage)
    properties = timeline.properties
    kind = properties.get("hoodie.table.type", "COPY_ON_WRITE").lower().replace("_", "-")
    indexes = [name for name in properties.get("hoodie.table.metadata.partitions", "").split(",") if name]
    return {
        "type": kind,
        "version": f"{properties.get('hoodie.table.version', 'unset')} (timeline layout "
        f"{properties.get('hoodie.timeline.layout.version', 'unset')}, times in {timeline.timezone})",
        "partitioned by": properties.get("hoodie.table.partition.fields") or "nothing",
        "record key": properties.get("hoodie.table.recordkey.fields") or "generated",
        "last commit": _last_commit(timeline),
        "writers": describe_writers(table, storage, timeline),
        "services": _commits_since_services(timeline),
        "timeline": _timeline_counts(timeline),
        "pending": "; ".join(_describe_pending(table, storage, timeline)) or "nothing",
        "savepoints": _savepoints(timeline),
        "metadata table": ", ".join(sorted(indexes)) or "none",
        "locks": "; ".join(_describe_lock_files(table, storage)) or "none",
    }


def _last_commit(timeline: Timeline) -> str:
    if not timeline.commits:
        return "none"
    last = timeline.commits[-1]
    record = timeline.metadata(last) or {}
    plan_id = extra_metadata(record).get(PLAN_KEY) or extra_metadata(timeline.plan(last)).get(PLAN_KEY)
    by = f"plan {plan_id} of lakefold" if plan_id else "another process"
    operation = str(record.get("operationType") or last.kind).lower()
    when = instant_datetime(last.completed_at or last.time, timeline.timezone)
    return f"{operation} {last.time}, {_ago(when)}, by {by}"


def _commits_since_services(timeline: Timeline) -> str:
    """Return, for each service, the number of writers' commits since it last ran."""
    writes = [i.completed_at or i.time for i in timeline.commits if i.kind not in PLANNED_KINDS]
    words, never = [], []
    for service in ("compaction", "clustering", "clean") if is_merge_on_read(timeline) else ("clustering", "clean"):
        last = max((i.completed_at or i.time for i in timeline.completed if i.kind == service), default=None)
        if last is None:
            never.append(service)
        else:
            count = sum(1 for at in writes if at > last)
            words.append(f"{count} commit{'s' if count != 1 else ''} since the last {service}")
    if never:
        words.append(f"no {' or '.join(never)} on the active timeline")
    return ", ".join(words)


def _timeline_counts(timeline: Timeline) -> str:
    counted = Counter(instant.kind for instant in timeline.completed)
    words = [f"{count} {kind}{'s' if count != 1 else ''}" for kind, count in sorted(counted.items())]
    empty = [f"{timeline.directory}/{i.completed_file}" for i in timeline.commits if timeline.is_empty(i)]
    try:
        times = [instant.time for instant in timeline.archived(plans=False, metadata=False)]
        archived = f"{len(times)} archived" + (f" ({min(times)} to {max(times)})" if times else "")
    except ArchiveUnreadable as error:
        archived = f"number of archived instants unknown: {error}"
    unknown = f"; empty, so the files they wrote are unknown: {', '.join(empty)}" if empty else ""
    return f"{', '.join(words) or 'nothing'} completed, {len(timeline.pending)} pending, {archived}{unknown}"


def _describe_pending(table: TableRef, storage: TableStorage, timeline: Timeline) -> Iterator[str]:
    for entry in list_pending_actions(table, storage, timeline):
        what = f"{entry.action} {entry.instant}"
        if entry.plan_id is not None:
            state = "begun" if entry.is_begun else "requested"
            sign = f", last active {_ago(entry.last_activity)}"
            yield f"{what} {state} {_ago(entry.since)} (plan {entry.plan_id} of lakefold{sign})"
        elif not entry.is_begun:
            refusal = f"; lakefold can't execute it: {entry.refusal}" if entry.refusal else ""
            yield f"{what} scheduled {_ago(entry.since)} by another process, not begun{refusal}"
        elif entry.is_alive:
            yield f"{what} begun {_ago(entry.since)} by another process, alive {_ago(entry.last_activity)}"
        else:
            yield (
                f"{what} begun {_ago(entry.since)} by another process, which seems dead: its last activity was "
                f"{_ago(entry.last_activity)} (roll it back: lakefold tables rollback {table.name} {entry.instant})"
            )


def _savepoints(timeline: Timeline) -> str:
    kept = timeline.savepoints()
    return ", ".join(f"{time} keeps {len(paths)} files" for time, paths in sorted(kept.items())) or "none"


def _ago(then: datetime) -> str:
    return f"{format_rough_duration(datetime.now(UTC) - then)} ago"


def _describe_lock_files(table: TableRef, storage: TableStorage) -> Iterator[str]:
    """Yield the table's lock files. A lock file that outlives its writer blocks all writers until it is removed."""
    path = possible_lock_file(table)
    if path is not None and Path(path).exists():
        yield LockJournal(storage.base, path).describe_lock()
    for info in storage.children(".hoodie/.locks"):
        if info.type == pafs.FileType.File and not info.base_name.endswith(".crc") and not _is_released(storage, info):
            yield f"{info.path}, {_age(info)} old: held by a writer, or left by a dead writer (then remove it)"


def _is_released(storage: TableStorage, info: pafs.FileInfo) -> bool:
    """True if a storage-based lock is free: Hudi keeps its file and marks it as expired."""
    if not info.path.endswith(".json"):
        return False
    try:
        return bool(json.loads(storage.read(storage.to_relative(info.path))).get("expired"))
    except (ValueError, AttributeError, FileNotFoundError):
        return False


def _age(info: pafs.FileInfo) -> str:
    return format_rough_duration(datetime.now(UTC) - info.mtime)


_DAY = timedelta(days=1)
_STORAGE_LOCK = ".hoodie/.locks/table_lock.json"


def describe_writers(table: TableRef, storage: TableStorage, timeline: Timeline) -> str:
    """Describe how often the table is written, whether its writers keep heartbeats, and their locks in the table."""
    seen = [
        _describe_write_frequency(timeline),
        *_describe_heartbeats(storage),
        *_describe_writer_locks(table, storage),
    ]
    return "; ".join(seen)


def _describe_write_frequency(timeline: Timeline) -> str:
    written = [
        instant_datetime(commit.completed_at or commit.time, timeline.timezone)
        for commit in timeline.commits
        if commit.kind not in PLANNED_KINDS
    ]
    if not written:
        return "no write on the active timeline"
    now = datetime.now(UTC)
    last = format_rough_duration(now - max(written))
    today = sum(now - at < _DAY for at in written)
    return f"last write {last} ago" + (f", {today} in the last day" if today else "")


def _describe_heartbeats(storage: TableStorage) -> Iterator[str]:
    """Describe whether writers keep heartbeats: Hudi's client does if failed writes are cleaned lazily."""
    if storage.info(HEARTBEAT_DIRECTORY).type == pafs.FileType.Directory:
        yield "heartbeats, which writers under optimistic concurrency keep"
    elif storage.has_directories:  # without directories, an empty directory can't be seen
        yield "no heartbeats, which writers under optimistic concurrency keep"


def _describe_writer_locks(table: TableRef, storage: TableStorage) -> Iterator[str]:
    found = []
    path = possible_lock_file(table)
    if path is not None and Path(path).exists():
        found.append("FileSystemBasedLockProvider")
    if storage.is_file(_STORAGE_LOCK):
        found.append("StorageBasedLockProvider")
    yield (
        f"the lock of a {' and a '.join(found)}" if found else "no lock file in the table; external locks can't be seen"
    )
