# SPDX-License-Identifier: Apache-2.0
"""Which pending writes of others hold plans up: those whose writers live, by their heartbeats.

A write whose writer is dead stays on the timeline until another writer rolls it back, which may be never. It can't
commit any more: Hudi's client asks for its heartbeat before that. So it holds neither planning nor publication up, and
lakefold does not roll it back either, unless it is told to.
"""

from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.locks.on_conflict import is_writer_preferred
from lake.formats.hudi.pending.heartbeats import is_failed_delete_partition, is_heartbeat_expired
from lake.formats.hudi.timeline.timeline import COMMIT_ACTIONS, Instant, Timeline
from lake.model import TableRef


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
