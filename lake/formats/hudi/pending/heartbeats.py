# SPDX-License-Identifier: Apache-2.0
"""The heartbeats of writers: one file per write, which the writer's JVM renews.

A heartbeat begins before its write is on the timeline.

Only writers under optimistic concurrency keep heartbeats. Interval and tolerance are read from the table's write
options, which must equal the writers' own settings.

The storage's clock sets the times of these files, and they are compared with this process's clock. So the allowed
difference of clocks (``max_skew_milliseconds``) is added to a heartbeat's timeout; the preconditions of a change refuse
a clock that differs by more.
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
    """Return how long a heartbeat may go unrenewed before its writer counts as dead, by Hudi's own rule."""
    interval = timedelta(milliseconds=float(write_options.get(_INTERVAL, _INTERVAL_DEFAULT)))
    return interval * int(write_options.get(_MISSES, _MISSES_DEFAULT))


def last_heartbeat(storage: TableStorage, instant: str) -> datetime | None:
    """Return when the heartbeat of the write ``instant`` was last renewed; None if there is no heartbeat."""
    info = storage.info(f"{HEARTBEAT_DIRECTORY}/{instant}")
    return info.mtime if info.type == pafs.FileType.File else None


def has_live_heartbeat(table: TableRef, storage: TableStorage, instant: str) -> bool:
    """True if the heartbeat of ``instant``, a write or a rollback, exists and is not expired."""
    last = last_heartbeat(storage, instant)
    return last is not None and not _is_timed_out(table, last)


def is_heartbeat_expired(table: TableRef, storage: TableStorage, instant: str) -> bool:
    """True if the writer of ``instant`` is dead: its heartbeat is expired or missing.

    False for every instant of a table without optimistic concurrency, whose writers keep no heartbeats.
    """
    if table.concurrency is not Concurrency.OCC:
        return False
    last = last_heartbeat(storage, instant)
    return last is None or _is_timed_out(table, last)


def is_failed_delete_partition(table: TableRef, timeline: Timeline, instant: Instant) -> bool:
    """True if ``instant`` is a delete_partition that is still requested after the heartbeat timeout, so it has failed.

    Its heartbeat may still be alive.

    Hudi's delete_partition first checks for pending clusterings and compactions. If it finds one, it fails and leaves
    its request, and the JVM renews the heartbeat until the JVM ends. Otherwise it lists file groups and becomes
    inflight within the heartbeat timeout. A slower delete_partition fails by itself on instants that became pending or
    were committed after its check.
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
    """True if a pending write blocks no plan, because its writer is dead or the write has failed.

    If writers are preferred in conflicts, Hudi's own check at a plan's commit counts every write with a live heartbeat.
    Then only writes of dead writers are abandoned.
    """
    if not instant.pending or instant.kind not in COMMIT_ACTIONS:
        return False
    if is_heartbeat_expired(table, storage, instant.time):
        return True
    return not is_writer_preferred(table) and is_failed_delete_partition(table, timeline, instant)
