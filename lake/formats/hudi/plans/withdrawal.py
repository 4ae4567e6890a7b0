# SPDX-License-Identifier: Apache-2.0
"""Withdraws what a plan of ours left uncommitted on its table, so that no instant and no data file of it stays."""

from collections.abc import Collection

from lake.errors import Transient
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.storage import Storage
from lake.formats.hudi.jvm.outcomes import outcomes
from lake.formats.hudi.pending.attempts import OpenAttempt, attempts, forget_ended
from lake.formats.hudi.pending.completed_guard import MARKERS
from lake.formats.hudi.pending.late_files import late_files, note_withdrawal, read, written_by
from lake.formats.hudi.pending.unfinished import in_other_hands
from lake.formats.hudi.plans import compaction
from lake.formats.hudi.plans.last_look import last_look, still
from lake.formats.hudi.timeline.timeline import (
    PLAN_KEY,
    Instant,
    InstantState,
    Timeline,
    extra_metadata,
    planned_slices,
)

_WITHDRAWING = "withdrawing a plan"
_TOO_LATE = "deleting what was written too late"


def _of_plan(timeline: Timeline, plan_id: str) -> list[tuple[Instant, frozenset[str]]]:
    """Pending clusterings and compactions that carry ``plan_id``, with the partitions they write to."""
    return [
        (instant, frozenset(entry.partition for entry in planned_slices(plan)))
        for instant, plan in timeline.pending_plans()
        if extra_metadata(plan).get(PLAN_KEY) == plan_id
    ]


def discard(
    client: HudiClient,
    plan_id: str,
    instants: Collection[str] | None,
    mine: OpenAttempt | None = None,
    epoch: int | None = None,
) -> int:
    """Withdraw the pending instants of ``plan_id`` that ``instants`` names, all with None; how many needed it.

    An instant that completed or carries another plan's id is left alone, and so is what ``others_work`` says
    and what a writer has begun to execute. Of those that are gone already the files go that were written after that.
    Idempotent.
    """
    withdrawn = 0
    with outcomes(client.table, _WITHDRAWING), client.locked(_WITHDRAWING):
        timeline = client.timeline()
        for instant, partitions in _of_plan(timeline, plan_id):
            if instants is not None and instant.time not in instants:
                continue
            if others_work(client.storage, instant.time, plan_id, mine, epoch) or client.has_lost(instant.time):
                continue
            if in_other_hands(client.table, client.storage, timeline, instant):
                continue
            # Under the lock a process that woke up can't commit between our look at the timeline and the rollback.
            last_look(client, _WITHDRAWING, withdraws=True, check=still(client, instant, _WITHDRAWING))
            if instant.kind == "compaction":
                withdrawn += compaction.withdraw(client, instant, partitions)
            else:
                _withdraw(client, instant)
                withdrawn += 1
            _remove_leftovers(client, instant, partitions)
            note_withdrawal(client.storage, instant.time)
            forget_ended(client.storage, instant.time)
        for time in {*(instants or ()), *([] if mine is None else [mine.attempt.instant])}:
            _remove_late_files(client, timeline, time)
    return withdrawn


def remove_late(client: HudiClient, instants: Collection[str]) -> list[str]:
    """Delete files that were written under ``instants`` when these were over, and their markers; the files that went.

    No rollback knows of such files, see ``pending.late_files``.
    """
    with outcomes(client.table, _TOO_LATE), client.locked(_TOO_LATE, metadata=False):
        timeline = client.timeline()
        return [path for time in sorted(instants) for path in _remove_late_files(client, timeline, time)]


def others_work(
    storage: Storage, instant: str, plan_id: str, mine: OpenAttempt | None, epoch: int | None = None
) -> bool:
    """Whether what is there of ``instant`` is not the caller's to take back; call it under the lock.

    It is another attempt's that has begun after ``mine``, the caller's own; without one, that of another plan, which
    adopted the instant, or a living one of a later ``epoch``, whose executor took the plan over from the caller.
    """
    if mine is not None and mine.attempt.instant == instant:
        return mine.is_superseded()
    signed = attempts(storage).get(instant)
    if signed is None:
        return False
    last = signed[-1]
    return last.attempt.plan_id != plan_id or (epoch is not None and last.attempt.epoch > epoch and last.is_alive)


def _withdraw(client: HudiClient, instant: Instant) -> None:
    if instant.state is InstantState.INFLIGHT and not client.worker.purgePendingClustering(instant.time):
        raise Transient(f"{client.table.name}: Hudi did not withdraw the inflight clustering {instant.time}")
    client.meta.reloadActiveTimeline()
    after = client.timeline().find(instant.time, action="replacecommit")
    if after is not None and after.state is InstantState.REQUESTED:
        requested = client.bundle.requested_clustering(client.meta, instant.time)
        client.meta.getActiveTimeline().deletePending(requested)


def _remove_leftovers(client: HudiClient, instant: Instant, partitions: Collection[str]) -> None:
    """Delete data files of a withdrawn instant that its rollback did not know of (a task that wrote on after it)."""
    after = client.timeline().find(instant.time, action=instant.action)
    if after is None or after.state is InstantState.REQUESTED:
        remove_data_files(client, instant.time, partitions)


def _remove_late_files(client: HudiClient, timeline: Timeline, time: str) -> list[str]:
    known = read(client.storage, time)
    instant = timeline.find(time)
    if known is None or (instant is not None and instant.pending):
        return []
    paths = late_files(client.storage, timeline, known)
    if paths:

        def check(now: Timeline) -> None:
            if now.find(time) != instant:
                raise Transient(f"{client.table.name}: instant {time} changed while {_TOO_LATE}")

        last_look(client, _TOO_LATE, withdraws=True, check=check)
    client.confirm_lock(_TOO_LATE)
    for path in paths:
        client.remove_file(path)
    client.remove_directory(f"{MARKERS}/{time}")
    return paths


def remove_data_files(client: HudiClient, time: str, partitions: Collection[str], keep: Collection[str] = ()) -> None:
    """Delete the base files but ``keep`` that the uncommitted instant ``time`` of ours wrote in ``partitions``."""
    for path in written_by(client.storage, time, partitions):
        if path not in keep:
            client.remove_file(path)
