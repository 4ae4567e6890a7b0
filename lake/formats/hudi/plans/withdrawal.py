# SPDX-License-Identifier: Apache-2.0
"""Withdraws the uncommitted work of a lakefold plan, so that no instant and no data file of the plan remains."""

from collections.abc import Collection

from lake.errors import Transient
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.names import MARKER_DIRECTORY
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.jvm.errors import translated_errors
from lake.formats.hudi.pending.actions import is_executed_by_writer
from lake.formats.hudi.pending.attempt_files import RunningAttempt, delete_ended_attempts, list_attempts
from lake.formats.hudi.pending.late_files import (
    is_unrecorded_commit,
    list_files_of_instant,
    list_late_files,
    read_instant_record,
    record_commit,
    record_pending,
    record_withdrawal,
    without_files_of_others,
)
from lake.formats.hudi.pending.request_copies import copy_request
from lake.formats.hudi.pending.rollback_guard import has_markers, write_rollback_guard
from lake.formats.hudi.plans import compaction
from lake.formats.hudi.plans.preconditions import check_preconditions, unchanged_instant_check
from lake.formats.hudi.plans.requests import delete_request, write_back_lost_requests
from lake.formats.hudi.plans.rollback import finish_orphaned_rollbacks, refuse_inflight_other, roll_back_beside_commit
from lake.formats.hudi.timeline.timeline import (
    COMMIT_ACTIONS,
    PLAN_KEY,
    Instant,
    InstantState,
    Timeline,
    extra_metadata,
    planned_slices,
)

_WITHDRAWING = "withdrawing a plan"
_DELETING_LATE_FILES = "deleting late writes"


def _pending_instants_of(timeline: Timeline, plan_id: str) -> list[tuple[Instant, frozenset[str]]]:
    """Return the pending clusterings and compactions with ``plan_id``, and the partitions they write to."""
    return [
        (instant, frozenset(entry.partition for entry in planned_slices(plan)))
        for instant, plan in timeline.pending_plans()
        if extra_metadata(plan).get(PLAN_KEY) == plan_id
    ]


def withdraw_plan(
    client: HudiClient,
    plan_id: str,
    instants: Collection[str] | None,
    own_attempt: RunningAttempt | None = None,
    epoch: int | None = None,
) -> int:
    """Withdraw the pending instants of ``plan_id`` that ``instants`` names (None: all). Returns their number.

    An instant stays if it is completed, has another plan's id, is the work of another attempt
    (``is_work_of_other_attempt``), or was begun by a writer. Compactions that need no rollback and stay requested are
    not counted. Late files of instants that are no longer pending are deleted. Idempotent.
    """
    withdrawn = 0
    with translated_errors(client.table, _WITHDRAWING), client.locked(_WITHDRAWING):
        timeline = client.read_timeline()
        for instant, partitions in _pending_instants_of(timeline, plan_id):
            if instants is not None and instant.time not in instants:
                continue
            if is_work_of_other_attempt(
                client.storage, instant.time, plan_id, own_attempt, epoch
            ) or client.is_taken_over(instant.time):
                continue
            if is_executed_by_writer(client.table, client.storage, timeline, instant):
                continue
            # Under the lock a resumed process can't commit between the check of the timeline and the rollback.
            check_preconditions(
                client, _WITHDRAWING, is_withdrawal=True, check=unchanged_instant_check(client, instant, _WITHDRAWING)
            )
            withdrawn += withdraw_instant(client, instant, partitions)
            delete_ended_attempts(client.storage, instant.time)
        for time in {*(instants or ()), *([] if own_attempt is None else [own_attempt.attempt.instant])}:
            _remove_late_files_of(client, timeline, time)
    return withdrawn


def withdraw_instant(client: HudiClient, instant: Instant, partitions: Collection[str]) -> bool:
    """Withdraw a pending clustering or compaction and delete its files; call it under the lock, after its checks.

    Returns True if it was rolled back or removed from the timeline. Files in other directories than ``partitions`` are
    not looked for, except by Hudi's rollback.
    """
    if instant.state is InstantState.INFLIGHT:
        refuse_inflight_other(client, instant, _WITHDRAWING)
    record_pending(client.storage, instant.time)
    copy_request(client.storage, client.read_timeline(), instant)
    if instant.kind == "compaction":
        withdrawn = compaction.withdraw_compaction(client, instant, partitions)
    else:
        withdrawn = _withdraw_clustering(client, instant, partitions)
    _remove_remaining_files(client, instant, partitions)
    # Hudi's rollback of a begun rewrite deletes the request without a check of the inflight file.
    write_back_lost_requests(client)
    is_removed = client.read_timeline().find(instant.time, action=instant.action) is None
    record_withdrawal(client.storage, instant.time, removed=is_removed)
    return withdrawn


def retract_publication(client: HudiClient, time: str, partitions: Collection[str]) -> None:
    """Remove the request ``time``, which this process has just published, at once, unless it must stay.

    Call it in the lock section of the publication. The writers' lock may be lost, and a removal under that lock would
    have to wait until its present holder has ended. The writers' lock isn't needed: writers begin a pending plan
    without it, and lakefold's own lock, which is verified, excludes every other lakefold.

    Up to table version 6 a compaction stays while a deltacommit is pending, also one that was requested before the
    compaction: a writer lists the pending compactions after it has requested its commit, so it may have seen this one
    and may name its logs after it.
    """
    client.assert_lakefold_lock_held(_WITHDRAWING)
    instant = client.read_timeline().find_rewrite(time)
    if instant is None or instant.state is not InstantState.REQUESTED:
        return
    if instant.kind == "compaction":
        is_removed = compaction.delete_unneeded_request(client, instant, partitions)
    else:
        is_removed = delete_request(client, instant, client.bundle.requested_clustering(client.meta, time))
    record_withdrawal(client.storage, time, removed=is_removed)


def remove_late_files(client: HudiClient, instants: Collection[str]) -> list[str]:
    """Delete the late files of ``instants``, written after their end, and their markers. Returns the deleted files.

    No rollback covers these files; see ``pending.late_files``. The markers of an instant that a writer executes stay,
    and so does the rollback guard of a completed instant (``pending.rollback_guard``). A withdrawal that a dead process
    left unfinished, or during which a writer began the plan, is finished or undone.
    """
    write_back_lost_requests(client)
    with (
        translated_errors(client.table, _DELETING_LATE_FILES),
        client.locked(_DELETING_LATE_FILES, writes_metadata_table=False),
    ):
        timeline = client.read_timeline()
        removed = [path for time in sorted(instants) for path in _remove_late_files_of(client, timeline, time)]
    finish_orphaned_rollbacks(client)
    return removed


def is_work_of_other_attempt(
    storage: TableStorage, instant: str, plan_id: str, own_attempt: RunningAttempt | None, epoch: int | None = None
) -> bool:
    """True if the caller must not withdraw the work under ``instant``; call it under the lock.

    With ``own_attempt``, the caller's attempt: true if another attempt began later. Without it: true if another plan
    adopted the instant, or if a live attempt with a later epoch than ``epoch`` took the plan over from the caller.
    """
    if own_attempt is not None and own_attempt.attempt.instant == instant:
        return own_attempt.is_superseded()
    attempts = list_attempts(storage).get(instant)
    if attempts is None:
        return False
    last = attempts[-1]
    return last.attempt.plan_id != plan_id or (epoch is not None and last.attempt.epoch > epoch and last.is_alive)


def _withdraw_clustering(client: HudiClient, instant: Instant, partitions: Collection[str]) -> bool:
    """Roll back a pending clustering and remove it from the timeline. Returns True if it was rolled back or removed."""
    begun = instant.state is InstantState.INFLIGHT
    if begun and client.read_timeline().find_other_commits(instant.time, instant.action):
        roll_back_beside_commit(client, instant, partitions)
    elif begun and not client.write_client.purgePendingClustering(instant.time):
        raise Transient(f"{client.table.name}: Hudi did not withdraw the inflight clustering {instant.time}")
    client.meta.reloadActiveTimeline()
    after = client.read_timeline().find(instant.time, action="replacecommit")
    if after is not None and after.state is InstantState.REQUESTED:
        return delete_request(client, after, client.bundle.requested_clustering(client.meta, instant.time)) or begun
    return True


def _remove_remaining_files(client: HudiClient, instant: Instant, partitions: Collection[str]) -> None:
    """Delete data files of a withdrawn instant that its rollback missed (a task that continued to write)."""
    # The files are listed before the state is read, so they include no file of a writer that begins the instant now.
    files = list_files_of_instant(client.storage, instant.time, partitions)
    now = client.read_timeline()
    after = now.find(instant.time, action=instant.action)
    if after is None or after.state is InstantState.REQUESTED:
        for path in without_files_of_others(now, instant.time, instant.action, files):
            client.remove_file(path)


def _remove_late_files_of(client: HudiClient, timeline: Timeline, time: str) -> list[str]:
    known = read_instant_record(client.storage, time)
    instant = timeline.find(time)
    if known is None:
        return []
    paths = list_late_files(client.table, client.storage, timeline, known)
    if paths:

        def check(now: Timeline) -> None:
            if now.find(time) != instant:
                raise Transient(f"{client.table.name}: instant {time} changed while {_DELETING_LATE_FILES}")

        check_preconditions(client, _DELETING_LATE_FILES, is_withdrawal=True, check=check)
    client.assert_lock_held(_DELETING_LATE_FILES)
    for path in paths:
        client.remove_file(path)
    if is_unrecorded_commit(timeline, known):
        record_commit(client.storage, time)
    is_pending = any(one.time == time and one.action in COMMIT_ACTIONS for one in timeline.pending)
    if not is_pending and has_markers(client.storage, time):
        client.remove_directory(f"{MARKER_DIRECTORY}/{time}")
        if instant is not None and client.optimistic and client.has_metadata_table:
            write_rollback_guard(client.storage, time)
    return paths


def remove_data_files(
    client: HudiClient, time: str, partitions: Collection[str], excluded: Collection[str] = ()
) -> None:
    """Delete the base files, except ``excluded``, that the begun clustering ``time`` wrote in ``partitions``."""
    files = list_files_of_instant(client.storage, time, partitions)
    for path in without_files_of_others(client.read_timeline(), time, "replacecommit", files):
        if path not in excluded:
            client.remove_file(path)
