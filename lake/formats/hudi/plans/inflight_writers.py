# SPDX-License-Identifier: Apache-2.0
"""The live writers that may be about to commit to the partitions of a plan."""

from collections.abc import Callable, Collection

from lake.errors import Transient
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.pending.heartbeats import is_abandoned_write
from lake.formats.hudi.plans.preconditions import PUBLISHING, unchanged_timeline_check
from lake.formats.hudi.timeline.timeline import Timeline, write_stats

#: actions of writers; other checks compare the file groups of pending table services with those of a plan
_INGEST_ACTIONS = frozenset({"commit", "deltacommit", "replacecommit"})


class WriterBegan(Transient):
    """A ``writer`` began during a publication, before anything was published."""

    def __init__(self, table: str, writer: str) -> None:
        super().__init__(f"{table}: a writer ({writer}) began while {PUBLISHING}; nothing was published")
        self.writer = writer


def find_inflight_writer(client: HudiClient, timeline: Timeline, partitions: Collection[str]) -> str | None:
    """Return the live writer that may be about to commit to one of ``partitions``; None if there is none."""
    for instant in timeline.pending:
        if instant.kind not in _INGEST_ACTIONS:
            continue
        if instant.kind == "replacecommit" and (timeline.plan(instant) or {}).get("clusteringPlan"):
            continue
        if is_abandoned_write(client.table, client.storage, timeline, instant):
            continue
        try:
            workload = timeline.inflight_metadata(instant)
        except FileNotFoundError:  # the instant ended after the listing; the caller checks again
            return f"{instant.kind} {instant.time}, which has just ended"
        if workload and str(workload.get("operationType") or "").upper() == "BULK_INSERT":
            continue  # such a write only adds file groups
        touched = {partition for partition, _ in write_stats(workload)}
        if touched and not touched & set(partitions):
            continue
        where = f"partition {sorted(touched & set(partitions))[0]!r}" if touched else "partitions it does not name yet"
        return f"{instant.kind} {instant.time} on {where}"
    return None


def publication_check(
    client: HudiClient, expected: Timeline, partitions: Collection[str]
) -> Callable[[Timeline], None]:
    """Return the check of a publication for ``check_preconditions``, against the timeline ``expected``.

    The check raises Transient if the timeline has changed (``unchanged_timeline_check``), and WriterBegan if a writer
    has begun since: up to table version 6 a writer that has not seen a compaction names its logs after the compacted
    base file.
    """
    check_unchanged = unchanged_timeline_check(client, expected, PUBLISHING)

    def check(timeline: Timeline) -> None:
        check_unchanged(timeline)
        busy = find_inflight_writer(client, timeline, partitions)
        if busy is not None:
            raise WriterBegan(client.table.name, busy)

    return check
