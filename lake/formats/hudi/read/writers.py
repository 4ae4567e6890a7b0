# SPDX-License-Identifier: Apache-2.0
"""What a table shows of its other writers. Neither their lock's settings nor their concurrency mode are recorded."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyarrow import fs as pafs

from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.locks.providers import possible_lock_file
from lake.formats.hudi.pending.heartbeats import HEARTBEAT_DIRECTORY
from lake.formats.hudi.timeline.timeline import PLANNED_KINDS, Timeline, instant_datetime
from lake.model import TableRef
from lake.units import format_duration

_DAY = timedelta(days=1)
_STORAGE_LOCK = ".hoodie/.locks/table_lock.json"


def describe_writers(table: TableRef, storage: TableStorage, timeline: Timeline) -> str:
    """How often it is written, whether its writers keep heartbeats, and the locks of theirs that lie in the table."""
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
    last = format_duration(max(now - max(written), timedelta()))
    today = sum(now - at < _DAY for at in written)
    return f"last write {last} ago" + (f", {today} in the last day" if today else "")


def _describe_heartbeats(storage: TableStorage) -> Iterator[str]:
    """Hudi's client keeps heartbeats where failed writes are cleaned lazily, which more than one writer needs."""
    if storage.info(HEARTBEAT_DIRECTORY).type == pafs.FileType.Directory:
        yield "heartbeats, which writers under optimistic concurrency keep"
    elif storage.has_directories:  # elsewhere one goes with its last file
        yield "no heartbeats, which writers under optimistic concurrency keep"


def _describe_writer_locks(table: TableRef, storage: TableStorage) -> Iterator[str]:
    found = []
    path = possible_lock_file(table)
    if path is not None and Path(path).exists():
        found.append("FileSystemBasedLockProvider")
    if storage.is_file(_STORAGE_LOCK):
        found.append("StorageBasedLockProvider")
    yield f"the lock of a {' and a '.join(found)}" if found else "no lock in the table; one elsewhere does not show"
