# SPDX-License-Identifier: Apache-2.0
"""Verification of a commit during which the table's lock may have been lost.

Between the last check and the end of Hudi's call the lock can be lost: if the Java process is stopped for longer than
the timeout of the lock's store, or if another process takes the lock. The lock is therefore verified once more after
the call.

If that fails, the lock is taken again, so that no writer is in the middle of its commit. The timeline then shows
whether the commit removed rows that a writer had committed, or whether one of the two commits is missing in the
metadata table. In both cases lakefold's commit is rolled back and the writer's commit stays. From table version 8 on,
Hudi's rollback puts the plan back on the timeline, and its inputs are no longer current: a writer that executes pending
plans would remove the same rows. So the plan is withdrawn before the lock is released.

If the process dies before this verification, the next process that reads the commit verifies it: see
``read.unsafe_commits.find_lost_writes``.
"""

import logging
from collections.abc import Sequence

from lake.errors import CommitLost, CommitUnknown, Conflict, Transient
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.jvm.errors import translate_error
from lake.formats.hudi.pending.late_files import record_withdrawal
from lake.formats.hudi.plans.inflight_writers import find_inflight_writer
from lake.formats.hudi.plans.input_checks import find_pending_groups
from lake.formats.hudi.plans.preconditions import check_preconditions
from lake.formats.hudi.plans.withdrawal import withdraw_instant
from lake.formats.hudi.read.unsafe_commits import describe_lost_writes, find_lost_writes
from lake.formats.hudi.timeline import metadata_table
from lake.formats.hudi.timeline.file_history import read_commit_changes
from lake.formats.hudi.timeline.timeline import Instant, Timeline
from lake.ports import PreparedPlan

log = logging.getLogger(__name__)
_VERIFYING = "verifying a commit"


def verify_commit(client: HudiClient, prepared: PreparedPlan, action: str) -> None:
    """Verify that the completed commit of ``prepared`` removed no row although the lock may have been lost.

    Raises Conflict if this function rolled the commit back. Raises CommitLost if the commit has to be rolled back and
    can't be, CommitUnknown if another process rolled it back or the lock can't be taken.
    """
    try:
        with client.locked(_VERIFYING):
            timeline = client.read_timeline()
            commit = timeline.find(prepared.instant, action=action)
            if commit is None or commit.pending:
                raise CommitUnknown(f"{client.table.name}: {prepared.instant} was rolled back by another process")
            _verify_or_roll_back(client, timeline, commit, prepared)
    except Transient as error:
        raise CommitUnknown(f"{error}; the commit can't be verified without the lock") from error


def _verify_or_roll_back(client: HudiClient, timeline: Timeline, commit: Instant, prepared: PreparedPlan) -> None:
    lost = find_lost_writes(timeline, commit)
    faults = list(metadata_table.find_faults(client.storage, timeline))
    name, plan_id = client.table.name, prepared.plan.plan_id
    if not lost and not faults:
        log.warning("%s: the lock may have been lost during commit %s, but no writer committed", name, commit.time)
        return
    text = describe_lost_writes(commit.time, lost) if lost else faults[0]
    obstacle = _rollback_obstacle(client, timeline, commit, prepared)
    if obstacle is not None:
        raise CommitLost(f"plan {plan_id} of {name}: {text}; it was not rolled back, since {obstacle}", plan_id)
    check_preconditions(client, _VERIFYING, is_withdrawal=True)
    try:
        client.write_client.rollback(commit.time)
    except Exception as error:
        raise CommitLost(
            f"plan {plan_id} of {name}: {text}; rolling it back failed: "
            f"{translate_error(error, client.table, _VERIFYING)}",
            plan_id,
        ) from error
    _withdraw_rolled_back(client, prepared, text)
    after = client.read_timeline()
    left = list(metadata_table.find_faults(client.storage, after))
    busy = find_inflight_writer(client, after, prepared.plan.partitions)
    if any(instant.time == commit.time for instant in after.completed) or left or busy:
        raise CommitLost(
            f"plan {plan_id} of {name}: {text}; it was rolled back, but {_first_obstacle(left, busy)}", plan_id
        )
    raise Conflict(
        f"{name}: the table's lock was lost during commit {commit.time}, and {_describe_writers(lost)} meanwhile; "
        "the commit was rolled back and the next scan plans again"
    )


def _withdraw_rolled_back(client: HudiClient, prepared: PreparedPlan, text: str) -> None:
    """Withdraw the instant of ``prepared``, whose commit was rolled back, if it is pending again.

    Call it under the lock. The instant of an adopted plan stays: it belongs to the process that requested it. Raises
    CommitLost if the withdrawal fails.
    """
    plan = prepared.plan
    client.meta.reloadActiveTimeline()
    found = [one for one in client.read_timeline().instants if one.time == prepared.instant]
    if not found:
        record_withdrawal(client.storage, prepared.instant, removed=True)
    pending = next((one for one in found if one.pending), None)
    if pending is None or plan.adopted_instant is not None:
        return
    client.assert_lock_held(_VERIFYING)
    try:
        withdraw_instant(client, pending, plan.partitions)
    except Exception as error:
        raise CommitLost(
            f"plan {plan.plan_id} of {plan.table.name}: {text}; it was rolled back, but withdrawing its plan failed: "
            f"{translate_error(error, client.table, _VERIFYING)}",
            plan.plan_id,
        ) from error


def _first_obstacle(faults: Sequence[str], busy: str | None) -> str:
    if faults:
        return faults[0]
    if busy is None:
        return "the commit is still on the timeline"
    return f"a writer ({busy}) began before the rollback and may have read the commit"


def _describe_writers(lost: Sequence[Instant]) -> str:
    if not lost:
        return "the metadata table was written to by another process"
    return f"{', '.join(f'{instant.kind} {instant.time}' for instant in lost)} was committed"


def _rollback_obstacle(client: HudiClient, timeline: Timeline, commit: Instant, prepared: PreparedPlan) -> str | None:
    """Return why ``commit`` can't be rolled back without losing later commits; None if it can."""
    made = {wrote.group_id for wrote in read_commit_changes(timeline.commit_metadata(commit)).written_files or ()}
    for other in timeline.find_other_commits(commit.time, commit.action):
        return f"{other.kind} {other.time} has the same time"
    for instant in timeline.commits:
        if instant.time == commit.time:
            continue
        record = read_commit_changes(timeline.commit_metadata(instant))
        if made & ({wrote.group_id for wrote in record.written_files or ()} | set(record.replaced_groups)):
            return f"{instant.kind} {instant.time} has written to its files"
    if made & find_pending_groups(timeline).keys():
        return "a pending plan names its files"
    busy = find_inflight_writer(client, timeline, prepared.plan.partitions)
    return None if busy is None else f"a writer is inflight ({busy})"
