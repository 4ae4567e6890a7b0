# SPDX-License-Identifier: Apache-2.0
"""Executes a plan that another process scheduled, on that process's own instant.

Hudi lets anybody execute a pending clustering, and whoever begins takes back the work of the one before. All
attempts have one instant, so what keeps two of them apart can't be its name, as it is for plans of ours:

- An attempt begins in ``prepare``, under the table's lock, and only where the instant is merely requested. What an
  earlier attempt began is taken back before, under the lock too, and its data files are deleted.
- A commit asks under the lock whether every file it is about to commit is still there. So an executor that slept
  (SIGSTOP, a paused machine) while its successor took its work back can't commit, whenever it wakes up: its files
  are gone. Nor can it renew its lease.
- What is left is a sleeper in the middle of its job, which writes for a moment after it woke up, until its heartbeat
  tells it that the plan is lost. A file it begins in that moment would carry the instant of its successor's commit.
  That is why the database hands such a plan on only from an executor that is known to be gone, or that has been
  silent for half an hour (``service.store.claims.ADOPTED_SILENCE``).

The request itself is never touched: it belongs to whoever wrote it.
"""

from collections.abc import Callable
from typing import Any

from lake.errors import Conflict, Transient
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.jvm.outcomes import outcomes
from lake.formats.hudi.pending.attempts import OpenAttempt, forget_ended, refuse_living
from lake.formats.hudi.pending.late_files import note, note_begun, written_by
from lake.formats.hudi.pending.unfinished import in_other_hands, plan_kind
from lake.formats.hudi.plans.compaction import check_inputs
from lake.formats.hudi.plans.freshness import inputs_of, live_slices, stale_reason, still_there
from lake.formats.hudi.plans.last_look import last_look, still
from lake.formats.hudi.plans.rollback import roll_back
from lake.formats.hudi.plans.withdrawal import others_work
from lake.formats.hudi.timeline.timeline import Instant, InstantState, planned_slices
from lake.plan import Plan, PlanKind
from lake.ports import Prepared, Rewrite

#: what a rewrite's commit is on the timeline
ACTIONS = {PlanKind.CLUSTERING: "replacecommit", PlanKind.COMPACTION: "commit"}

_BEGINNING = "beginning a plan of another process"
_TAKING_BACK = "taking back a plan"


def begin(client: HudiClient, plan: Plan, epoch: int, fence: Callable[[], None]) -> tuple[Prepared, Any]:
    """Begin an adopted plan that can be executed as it is, and Hudi's write of it as a job that has not run yet.

    Raises Conflict where the instant is not pending any more, names other files than when it was adopted, or is
    stale: Hudi would lose the rows written since. Transient where somebody else has begun to execute it.
    """
    assert plan.adopted is not None
    client.bundle.check_serves_others(client.table.name, "executing a plan of another process")
    with client.locked(_BEGINNING):
        refuse_living(client.storage, plan.table.name, plan.adopted)
        last_look(
            client,
            _BEGINNING,
            completes=plan.adopted,
            reads=inputs_of(plan, range(len(plan.groups))),
            check=lambda _: _check_requested(client, plan),
            fence=fence,
        )
        note(client.storage, client.timeline(), plan.adopted, plan.partitions)
        java = client.begin_rewrite(plan.kind, plan.adopted)
        note_begun(client.storage, client.timeline(), plan.adopted)
    groups = tuple(range(len(plan.groups)))
    return Prepared(plan=plan, epoch=epoch, instant=plan.adopted, groups=groups), java


def _check_requested(client: HudiClient, plan: Plan) -> None:
    """Raise Transient where an adopted plan was begun by another process, Conflict where it can't be executed."""
    if _pending(client, plan).state is not InstantState.REQUESTED:
        raise Transient(
            f"{plan.table.name}: another process has begun {plan.kind} {plan.adopted}; if that process is dead: "
            f"lakefold tables rollback {plan.table.name} {plan.adopted}"
        )
    _check_inputs(client, plan)


def still_ours(client: HudiClient, rewrite: Rewrite) -> None:
    """Raise Conflict unless ``rewrite`` can be committed on its adopted instant; call it under the lock."""
    plan = rewrite.prepared.plan
    if _pending(client, plan).state is not InstantState.INFLIGHT:
        raise Conflict(f"{plan.table.name}: another process took back what was written of {plan.adopted}")
    still_there(client, rewrite)
    _check_inputs(client, plan)


def _pending(client: HudiClient, plan: Plan) -> Instant:
    """The instant of an adopted plan. Raises Conflict where it ended or is not what was adopted."""
    timeline = client.timeline()
    instant = timeline.find(plan.adopted or "", action=ACTIONS[plan.kind])
    if instant is None or not instant.pending:
        raise Conflict(f"{plan.table.name}: {plan.kind} {plan.adopted} was executed or withdrawn by another process")
    named = {(s.partition, s.file_id, s.base, frozenset(s.logs)) for s in planned_slices(timeline.plan(instant) or {})}
    adopted = {
        (s.partition, s.file_id, s.path and s.path.rsplit("/", 1)[-1], frozenset(s.log_files))
        for group in plan.groups
        for s in group.slices
    }
    if named != adopted:
        raise Conflict(f"{plan.table.name}: {plan.kind} {plan.adopted} names other files than when it was adopted")
    return instant


def _check_inputs(client: HudiClient, plan: Plan) -> None:
    if plan.kind is PlanKind.COMPACTION:  # what writers append meanwhile belongs to the slice after it
        check_inputs(client, client.timeline(), plan, range(len(plan.groups)), plan.adopted or "")
        return
    live = live_slices(client, [slice_ for group in plan.groups for slice_ in group.slices])
    for group in plan.groups:
        for slice_ in group.slices:
            reason = stale_reason(slice_, live)
            if reason:
                stale = f"{plan.kind} {plan.adopted} of another process is stale and left to it"
                raise Conflict(f"{plan.table.name}: {stale}: {reason}")


def take_back(
    client: HudiClient,
    time: str,
    plan_id: str | None = None,
    mine: OpenAttempt | None = None,
    epoch: int | None = None,
) -> int:
    """Take back what was begun of the pending rewrite ``time``, which stays requested; 1 where something was begun.

    Data files of it are deleted. Idempotent; an instant that completed or is gone is left alone, and so is what is not
    the work of ``plan_id``, the plan that adopted it (``others_work``). Without a plan whatever is there is taken back.
    """
    client.bundle.check_serves_others(client.table.name, "taking back a plan of another process")
    with outcomes(client.table, _TAKING_BACK), client.locked(_TAKING_BACK):
        timeline = client.timeline()
        for instant, plan in timeline.pending_plans():
            kind = plan_kind(instant, plan)
            if instant.time != time or kind is None:
                continue
            if plan_id is not None and others_work(client.storage, time, plan_id, mine, epoch):
                return 0
            begun = instant.state is InstantState.INFLIGHT
            if client.has_lost(time) or in_other_hands(client.table, client.storage, timeline, instant):
                return 0
            last_look(client, _TAKING_BACK, withdraws=True, check=still(client, instant, _TAKING_BACK))
            partitions = {entry.partition for entry in planned_slices(plan)}
            if begun:
                roll_back(client, time, kind)
            # Before the look at whether it only waits: what a writer that begins it now writes is not among them.
            files = written_by(client.storage, time, partitions)
            after = client.timeline().find(time, action=ACTIONS[kind])
            if after is not None and after.state is InstantState.REQUESTED:
                for path in files:
                    client.remove_file(path)
            forget_ended(client.storage, time)
            return int(begun)
    return 0
