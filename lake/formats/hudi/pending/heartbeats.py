# SPDX-License-Identifier: Apache-2.0
"""Heartbeats of writers: one file for each write, renewed by the writer's JVM from before it is on the timeline.

Only writers under optimistic concurrency keep them. The settings of a writer's heartbeats are taken from the table's
write options, which are to be the same as the writers' own.

The clock of the storage writes the times of these files, and lakefold's own clock is compared with them. A heartbeat
counts as expired only where it is also older by as much as clocks may differ (``max_skew_milliseconds``); the last look
before a change refuses a clock that differs by more.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from pyarrow import fs as pafs

from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.lock_settings.on_conflict import is_writer_preferred
from lake.formats.hudi.timeline.clocks import max_skew_milliseconds
from lake.formats.hudi.timeline.timeline import COMMIT_ACTIONS, Instant, InstantState, Timeline
from lake.model import Concurrency, TableRef

HEARTBEAT_DIRECTORY = ".hoodie/.heartbeat"
_INTERVAL, _INTERVAL_DEFAULT = "hoodie.client.heartbeat.interval_in_ms", 60_000
_MISSES, _MISSES_DEFAULT = "hoodie.client.heartbeat.tolerable.misses", 2


def heartbeat_timeout(write_options: Mapping[str, str]) -> timedelta:
    """How long a heartbeat may be silent before its writer counts as dead, by Hudi's own rule."""
    interval = timedelta(milliseconds=float(write_options.get(_INTERVAL, _INTERVAL_DEFAULT)))
    return interval * int(write_options.get(_MISSES, _MISSES_DEFAULT))


def last_heartbeat(storage: TableStorage, instant: str) -> datetime | None:
    """When the heartbeat of the write ``instant`` was renewed last; None where there is none."""
    info = storage.info(f"{HEARTBEAT_DIRECTORY}/{instant}")
    return info.mtime if info.type == pafs.FileType.File else None


def is_heartbeat_expired(table: TableRef, storage: TableStorage, instant: str) -> bool:
    """Whether the writer of ``instant`` is dead: its heartbeat is expired or missing.

    False for every instant of a table without optimistic concurrency, whose writers keep no heartbeats.
    """
    if table.concurrency is not Concurrency.OCC:
        return False
    last = last_heartbeat(storage, instant)
    return last is None or _is_timed_out(table, last)


def is_failed_delete_partition(table: TableRef, timeline: Timeline, instant: Instant) -> bool:
    """Whether ``instant`` is a delete_partition that has ended without telling, though its JVM renews the heartbeat.

    Hudi's delete_partition looks for pending clusterings and compactions first. Where it finds one it fails, and leaves
    its request and a heartbeat that is renewed for as long as the JVM lives. One that goes on lists file groups and is
    inflight then, which takes less time than a heartbeat may be silent for. One that is slower and goes on later fails
    by itself on what is pending or was committed since.
    """
    if (
        table.concurrency is not Concurrency.OCC
        or instant.kind != "replacecommit"
        or instant.state is not InstantState.REQUESTED
    ):
        return False
    requested_at = timeline.modified_at(instant.requested_file)
    if requested_at is None or not _is_timed_out(table, requested_at):
        return False
    return str((timeline.plan(instant) or {}).get("operationType") or "").upper() == "DELETE_PARTITION"


def _is_timed_out(table: TableRef, since: datetime) -> bool:
    skew = timedelta(milliseconds=max_skew_milliseconds(table))
    return datetime.now(UTC) - since > heartbeat_timeout(table.write_options) + skew


def is_abandoned_write(table: TableRef, storage: TableStorage, timeline: Timeline, instant: Instant) -> bool:
    """Whether a pending write holds no plan up, since its writer is dead or has ended without telling.

    Where writers win Hudi's own check at a plan's commit counts every write with a living heartbeat, so that only
    dead writers are passed over there.
    """
    if not instant.pending or instant.kind not in COMMIT_ACTIONS:
        return False
    if is_heartbeat_expired(table, storage, instant.time):
        return True
    return not is_writer_preferred(table) and is_failed_delete_partition(table, timeline, instant)
