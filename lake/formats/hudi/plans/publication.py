# SPDX-License-Identifier: Apache-2.0
"""Publishes a plan to its table in a gap between writers' commits: under the lock, as one pending instant."""

import time
from collections.abc import Callable
from datetime import timedelta

from lake.errors import Conflict, Rejected, Transient
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.storage import current_user
from lake.formats.hudi.plans.inflight_writers import WriterBegan, find_inflight_writer
from lake.formats.hudi.plans.preconditions import PUBLISHING, check_preconditions
from lake.formats.hudi.plans.schema_changes import refuse_stale_schema
from lake.formats.hudi.plans.withdrawal import retract_publication
from lake.formats.hudi.timeline.timeline import Timeline
from lake.plan import Plan
from lake.ports import PreparedPlan
from lake.units import format_duration

#: how long a plan waits for a gap between a writer's commits
WRITER_GAP_TIMEOUT = timedelta(seconds=60)
_WRITER_POLL_SECONDS = 0.2
PlanPublisher = Callable[[HudiClient, Timeline, Plan, int], PreparedPlan]
"""Writes a plan with its epoch to the timeline, in the lock section that checked the timeline."""


def refuse_read_only(client: HudiClient) -> None:
    """Raise Rejected if lakefold may not write to the table; Java would report a missing file."""
    for directory in ("", client.read_timeline().directory):
        if not client.storage.is_writable(directory):
            raise Rejected(
                f"{client.table.name}: {client.storage.display_path(directory)} is read-only for {current_user()}; "
                'give lakefold write access to the whole table, or set mode = "observe" for it'
            )


def publish_plan(
    client: HudiClient, plan: Plan, epoch: int, publisher: PlanPublisher, fence: Callable[[], None] = lambda: None
) -> PreparedPlan:
    """Revalidate ``plan`` and write it to the timeline as one requested instant, all under the table's lock.

    ``fence`` checks under the lock that the plan still belongs to this executor; see ``lake.capabilities.Fenced``.
    Waits until no writer is inflight on the plan's partitions: if plan and writer overlap, the one that commits second
    loses its work.

    Raises Conflict if there is no gap for ``WRITER_GAP_TIMEOUT`` or no group can be rewritten. Raises Transient if the
    lock is taken, if the table's columns have changed, or if the lock was lost or a writer began meanwhile. The plan is
    then removed from the timeline at once, unless a writer has begun it or it is a compaction that writers may have
    seen (``must_execute``); the caller has to withdraw it nevertheless. Raises Rejected if the table can't be written
    to.
    """
    refuse_read_only(client)
    deadline = time.monotonic() + WRITER_GAP_TIMEOUT.total_seconds()
    while True:
        # The check without the lock makes waiting cheap; the check under the lock decides.
        busy = find_inflight_writer(client, client.read_timeline(), plan.partitions)
        if busy is None:
            with client.locked(PUBLISHING, writes_metadata_table=False):
                busy = find_inflight_writer(client, client.read_timeline(), plan.partitions)
                if busy is None:
                    try:
                        return _publish_now(client, plan, epoch, publisher, fence)
                    except WriterBegan as began:
                        busy = began.writer
        if time.monotonic() >= deadline:
            raise Conflict(
                f"{plan.table.name}: a writer is inflight ({busy}) and left no gap in "
                f"{format_duration(WRITER_GAP_TIMEOUT)}; the next scan plans again. If that writer is dead, the "
                "table's next write rolls it back"
            )
        time.sleep(_WRITER_POLL_SECONDS)


def _publish_now(
    client: HudiClient, plan: Plan, epoch: int, publisher: PlanPublisher, fence: Callable[[], None]
) -> PreparedPlan:
    """Publish ``plan``, in the lock section in which no inflight writer was found.

    Raises WriterBegan if a writer began since.

    Raises Transient, after ``retract_publication``, if the lock was lost or a writer began during the publication.
    """
    timeline = check_preconditions(
        client, PUBLISHING, check=lambda _: refuse_stale_schema(client, client.read_schema()), fence=fence
    )
    prepared = publisher(client, timeline, plan, epoch)
    # Any writer may execute the plan from now on. If the lock was lost before the plan was written, its inputs may have
    # changed since the check.
    try:
        client.assert_lock_held(PUBLISHING)
        _refuse_new_writer(client, prepared)
    except Transient:
        retract_publication(client, prepared.instant, plan.partitions)
        raise
    return prepared


def _refuse_new_writer(client: HudiClient, prepared: PreparedPlan) -> None:
    """Raise Transient if a writer began between the check of the timeline and the publication.

    Writers begin without any lock. A writer that began in between may not have seen the instant; a writer that begins
    later sees it.
    """
    busy = find_inflight_writer(client, client.read_timeline(), prepared.plan.partitions)
    if busy is not None:
        raise Transient(
            f"{prepared.plan.table.name}: a writer ({busy}) began while {prepared.instant} was being published and may "
            "not have seen it"
        )
