# SPDX-License-Identifier: Apache-2.0
"""Makes a plan known to its table, in a gap between the commits of writers: under the lock, as one pending instant."""

import time
from collections.abc import Callable, Collection
from datetime import timedelta

from lake.errors import Conflict, Rejected, Transient
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.storage import current_user
from lake.formats.hudi.pending.heartbeats import is_abandoned_write
from lake.formats.hudi.plans.preconditions import PUBLISHING, check_preconditions
from lake.formats.hudi.timeline.timeline import Timeline, write_stats
from lake.plan import Plan
from lake.ports import PreparedPlan
from lake.units import format_duration

#: pending actions of a writer; planned table services are looked at by their file groups
_INGEST_ACTIONS = frozenset({"commit", "deltacommit", "replacecommit"})
#: how long a plan waits for a gap between a writer's commits
WRITER_GAP_TIMEOUT = timedelta(seconds=60)
_WRITER_POLL_SECONDS = 0.2
PlanPublisher = Callable[[HudiClient, Timeline, Plan, int], PreparedPlan]
"""Writes a plan under an epoch to the timeline, in the lock section that looked at it."""


def find_inflight_writer(client: HudiClient, timeline: Timeline, partitions: Collection[str]) -> str | None:
    """The live writer that may be about to commit to one of ``partitions``; None when there is none."""
    for instant in timeline.pending:
        if instant.kind not in _INGEST_ACTIONS:
            continue
        if instant.kind == "replacecommit" and (timeline.plan(instant) or {}).get("clusteringPlan"):
            continue
        if is_abandoned_write(client.table, client.storage, timeline, instant):
            continue
        try:
            workload = timeline.inflight_metadata(instant)
        except FileNotFoundError:  # since the timeline was listed: whoever asks looks again
            return f"{instant.kind} {instant.time}, which has just ended"
        if workload and str(workload.get("operationType") or "").upper() == "BULK_INSERT":
            continue  # it only adds file groups
        touched = {partition for partition, _ in write_stats(workload)}
        if touched and not touched & set(partitions):
            continue
        where = f"partition {sorted(touched & set(partitions))[0]!r}" if touched else "partitions it does not name yet"
        return f"{instant.kind} {instant.time} on {where}"
    return None


def refuse_read_only(client: HudiClient) -> None:
    """Raise Rejected where lakefold may not write to the table; Java would say that a file does not exist."""
    for directory in ("", client.read_timeline().directory):
        if not client.storage.is_writable(directory):
            raise Rejected(
                f"{client.table.name}: {client.storage.display_path(directory)} is read-only for {current_user()}; give lakefold "
                'write access to the whole table, or set mode = "observe" for it'
            )


def publish_plan(
    client: HudiClient, plan: Plan, epoch: int, publisher: PlanPublisher, fence: Callable[[], None] = lambda: None
) -> PreparedPlan:
    """Revalidate ``plan`` and write it to the timeline as one requested instant, all under the table's lock.

    ``fence`` is asked under the lock whether the plan is still this executor's, see ``lake.capabilities.Fenced``.
    Waits for a moment in which no writer is inflight on the plan's partitions: whichever of the two commits first,
    the other one loses its work. Raises Conflict when there is none for ``WRITER_GAP_TIMEOUT`` or no group is left,
    Transient when the lock is taken or a writer has just begun, Rejected where the table can't be written to.
    """
    refuse_read_only(client)
    deadline = time.monotonic() + WRITER_GAP_TIMEOUT.total_seconds()
    while True:
        # The look without the lock is what waiting costs; the one that counts is under it.
        busy = find_inflight_writer(client, client.read_timeline(), plan.partitions)
        if busy is None:
            with client.locked(PUBLISHING, writes_metadata_table=False):
                busy = find_inflight_writer(client, client.read_timeline(), plan.partitions)
                if busy is None:
                    timeline = check_preconditions(client, PUBLISHING, fence=fence)
                    prepared = publisher(client, timeline, plan, epoch)
                    _refuse_new_writer(client, prepared)
                    return prepared
        if time.monotonic() >= deadline:
            raise Conflict(
                f"{plan.table.name}: a writer is inflight ({busy}) and left no gap in {format_duration(WRITER_GAP_TIMEOUT)}; "
                "the next scan plans again. If that writer is dead, the table's next write rolls it back"
            )
        time.sleep(_WRITER_POLL_SECONDS)


def _refuse_new_writer(client: HudiClient, prepared: PreparedPlan) -> None:
    """Raise Transient where a writer began between the look at the timeline and the publication.

    Such a writer has not seen the instant, as one that begins from now on does, and writers begin without any lock.
    """
    busy = find_inflight_writer(client, client.read_timeline(), prepared.plan.partitions)
    if busy is not None:
        raise Transient(
            f"{prepared.plan.table.name}: a writer ({busy}) began while {prepared.instant} was being published and may "
            "not have seen it"
        )
