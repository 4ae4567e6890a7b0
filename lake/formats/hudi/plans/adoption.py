# SPDX-License-Identifier: Apache-2.0
"""Executes a plan that another process scheduled, on that process's own instant.

Hudi lets any process execute a pending clustering, and a process that begins it rolls back the work of the previous
process. All attempts share one instant. So unlike for lakefold's own plans, the instant does not distinguish two
attempts:

- An attempt begins in ``begin_adopted``, under the table's lock, and only if the instant is merely requested. The work
  of an earlier attempt is rolled back first, also under the lock, and its data files are deleted.
- A commit checks under the lock that every file it is about to commit still exists. An executor that was stopped
  (SIGSTOP, a paused machine) while its successor rolled back its work therefore can't commit after it resumes: its
  files no longer exist. It also can't renew its lease.
- One case remains: an executor stopped in the middle of its job writes for a moment after it resumes, until its
  heartbeat reports that the plan is lost. A file begun in that moment would carry the instant of its successor's
  commit. The database therefore reassigns such a plan only if its executor is known to have ended, or has been silent
  for half an hour (``service.control.store.leases.ADOPTED_GRACE``).

The request itself is never changed: it belongs to the process that wrote it.
"""

from collections.abc import Callable
from typing import Any

from lake.errors import Conflict, EarlierAttemptPending, Transient
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.jvm.errors import translated_errors
from lake.formats.hudi.pending.actions import is_executed_by_writer, is_writer_alive, plan_kind
from lake.formats.hudi.pending.attempt_files import RunningAttempt, delete_ended_attempts, refuse_live_attempts
from lake.formats.hudi.pending.late_files import (
    list_files_of_instant,
    record_instant,
    record_withdrawal,
    without_files_of_others,
)
from lake.formats.hudi.plans.compaction import check_compaction_inputs
from lake.formats.hudi.plans.input_checks import (
    input_paths,
    read_live_slices,
    record_log_sizes,
    refuse_changed_logs,
    stale_reason,
)
from lake.formats.hudi.plans.preconditions import OwnInstant, check_preconditions, unchanged_instant_check
from lake.formats.hudi.plans.rollback import roll_back_rewrite
from lake.formats.hudi.plans.schema_changes import refuse_stale_schema
from lake.formats.hudi.plans.withdrawal import is_work_of_other_attempt
from lake.formats.hudi.timeline.timeline import Instant, InstantState, planned_slices
from lake.plan import Plan, PlanKind
from lake.ports import PreparedPlan

#: the timeline action of a rewrite's commit
ACTION_OF_KIND = {PlanKind.CLUSTERING: "replacecommit", PlanKind.COMPACTION: "commit"}

_BEGINNING = "beginning a plan of another process"
_ABORTING = "aborting an adopted plan"


def begin_adopted(client: HudiClient, plan: Plan, epoch: int, fence: Callable[[], None]) -> tuple[PreparedPlan, Any]:
    """Begin an adopted plan, which is executed unchanged.

    Returns the prepared plan and Hudi's write of the plan, a job that has not run yet. Raises Conflict if the instant
    is no longer pending, names other files than when it was adopted, or is stale: Hudi would lose the rows written
    since. Raises EarlierAttemptPending while another process executes it, and Transient once that process is silent.
    """
    assert plan.adopted_instant is not None
    client.bundle.require_foreign_plans(client.table.name, "executing a plan of another process")
    with client.locked(_BEGINNING):
        refuse_live_attempts(client.storage, plan.table.name, plan.adopted_instant)
        check_preconditions(
            client,
            _BEGINNING,
            own=OwnInstant(
                time=plan.adopted_instant, is_pending=True, inputs=input_paths(plan, range(len(plan.groups)))
            ),
            check=lambda _: _check_requested(client, plan),
            fence=fence,
        )
        timeline = client.read_timeline()
        record_log_sizes(client, timeline, plan, requested=plan.adopted_instant)
        record_instant(client.storage, timeline, plan.adopted_instant, plan.partitions)
        java = client.begin_rewrite(plan.kind, plan.adopted_instant)
    groups = tuple(range(len(plan.groups)))
    return PreparedPlan(plan=plan, epoch=epoch, instant=plan.adopted_instant, live_groups=groups), java


def _check_requested(client: HudiClient, plan: Plan) -> None:
    """Raise Transient if another process began the adopted plan, or the columns changed; Conflict if it is stale."""
    instant = _find_pending_instant(client, plan)
    if instant.state is not InstantState.REQUESTED:
        is_alive = is_writer_alive(plan.table, client.storage, client.read_timeline(), instant)
        raise (EarlierAttemptPending if is_alive else Transient)(
            f"{plan.table.name}: another process has begun {plan.kind} {plan.adopted_instant}; if that process is "
            f"dead: lakefold tables rollback {plan.table.name} {plan.adopted_instant}"
        )
    _check_inputs(client, plan)
    refuse_stale_schema(client, client.read_schema())


def check_adopted_inputs(client: HudiClient, prepared: PreparedPlan) -> None:
    """Raise Conflict if the adopted instant is no longer executed here or an input changed; under the lock."""
    plan = prepared.plan
    if _find_pending_instant(client, plan).state is not InstantState.INFLIGHT:
        raise Conflict(f"{plan.table.name}: another process rolled back the files of {plan.adopted_instant}")
    _check_inputs(client, plan)
    refuse_changed_logs(client, client.read_timeline(), plan, prepared.live_groups)


def _find_pending_instant(client: HudiClient, plan: Plan) -> Instant:
    """Return the instant of an adopted plan. Raises Conflict if it ended or names other files than the plan."""
    timeline = client.read_timeline()
    instant = timeline.find(plan.adopted_instant or "", action=ACTION_OF_KIND[plan.kind])
    if instant is None or not instant.pending:
        raise Conflict(
            f"{plan.table.name}: {plan.kind} {plan.adopted_instant} was executed or withdrawn by another process"
        )
    named = {(s.partition, s.file_id, s.base, frozenset(s.logs)) for s in planned_slices(timeline.plan(instant) or {})}
    adopted = {
        (s.partition, s.file_id, s.path and s.path.rsplit("/", 1)[-1], frozenset(s.log_files))
        for group in plan.groups
        for s in group.slices
    }
    if named != adopted:
        raise Conflict(
            f"{plan.table.name}: {plan.kind} {plan.adopted_instant} names other files than when it was adopted"
        )
    return instant


def _check_inputs(client: HudiClient, plan: Plan) -> None:
    if plan.kind is PlanKind.COMPACTION:  # logs that writers append meanwhile belong to the next slice
        check_compaction_inputs(
            client, client.read_timeline(), plan, range(len(plan.groups)), plan.adopted_instant or ""
        )
        return
    live = read_live_slices(client, [slice_ for group in plan.groups for slice_ in group.slices])
    for group in plan.groups:
        for slice_ in group.slices:
            reason = stale_reason(slice_, live)
            if reason:
                stale = f"{plan.kind} {plan.adopted_instant} of another process is stale and is left to that process"
                raise Conflict(f"{plan.table.name}: {stale}: {reason}")


def abort_adopted(
    client: HudiClient,
    time: str,
    plan_id: str | None = None,
    own_attempt: RunningAttempt | None = None,
    epoch: int | None = None,
) -> int:
    """Roll back the begun work of the pending rewrite ``time``, which stays requested. Returns 1 if work had begun.

    The data files of the work are deleted. Idempotent. A completed or missing instant is left alone, and so is the work
    of a live writer. With ``plan_id``, the plan that adopted the rewrite, the work of other plans and attempts is left
    alone as well (``is_work_of_other_attempt``).
    """
    client.bundle.require_foreign_plans(client.table.name, "aborting a plan of another process")
    with translated_errors(client.table, _ABORTING), client.locked(_ABORTING):
        timeline = client.read_timeline()
        for instant, plan in timeline.pending_plans():
            kind = plan_kind(instant, plan)
            if instant.time != time or kind is None:
                continue
            if plan_id is not None and is_work_of_other_attempt(client.storage, time, plan_id, own_attempt, epoch):
                return 0
            begun = instant.state is InstantState.INFLIGHT
            if client.is_taken_over(time) or is_executed_by_writer(client.table, client.storage, timeline, instant):
                return 0
            check_preconditions(
                client, _ABORTING, is_withdrawal=True, check=unchanged_instant_check(client, instant, _ABORTING)
            )
            partitions = {entry.partition for entry in planned_slices(plan)}
            if begun:
                roll_back_rewrite(client, instant, kind, partitions)
            # The files are listed before the state is read, so they include no file of a writer that begins the instant
            # now.
            files = list_files_of_instant(client.storage, time, partitions)
            now = client.read_timeline()
            after = now.find(time, action=ACTION_OF_KIND[kind])
            if after is not None and after.state is InstantState.REQUESTED:
                for path in without_files_of_others(now, time, ACTION_OF_KIND[kind], files):
                    client.remove_file(path)
            record_withdrawal(client.storage, time, removed=False)
            delete_ended_attempts(client.storage, time)
            return int(begun)
    return 0
