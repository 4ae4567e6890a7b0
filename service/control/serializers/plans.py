# SPDX-License-Identifier: Apache-2.0
"""The documents of plans: in a listing, in full, while one is followed, and what cancel and retry have done."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from service.control.serializers.cost import plan_cost

if TYPE_CHECKING:
    from lake.plan import PlanState, ProposalDecision
    from service.control.store import PlanEvent, PlanView

#: states a plan does not leave
TERMINAL_STATES = ("completed", "failed", "cancelled")


#: what of a plan is told while it is followed to its end
PROGRESS_FIELDS = (
    "plan_id",
    "table",
    "state",
    "step",
    "attempts",
    "progress_bytes_done",
    "progress_bytes_total",
    "files_before",
    "files_after",
    "bytes_before",
    "bytes_after",
    "instant",
    "not_before",
    "error",
    "cancel_reason",
    "waits_for_approval",
)


def plan_summary(plan: "PlanView") -> dict[str, Any]:
    """A plan in a listing."""
    return {
        "plan_id": plan.plan_id,
        "table": plan.table,
        "format": plan.format,
        "kind": plan.kind,
        "state": plan.state,
        "step": plan.step,
        "groups": plan.group_count,
        "partitions": plan.partition_count,
        "input_files": plan.input_files,
        "input_bytes": plan.input_bytes,
        "output_files": plan.output_files,
        "files_before": plan.files_before,
        "bytes_before": plan.bytes_before,
        "files_after": plan.files_after,
        "bytes_after": plan.bytes_after,
        "progress_bytes_done": plan.progress_bytes_done,
        "progress_bytes_total": plan.progress_bytes_total,
        "attempts": plan.attempts,
        "epoch": plan.epoch,
        "executor": plan.executor,
        "created_at": plan.created_at,
        "claimed_at": plan.claimed_at,
        "finalized_at": plan.finalized_at,
        "instant": plan.instant,
        "error": plan.error,
        "error_class": plan.error_class,
        "cancel_reason": plan.cancel_reason,
        "request_id": plan.request_id,
        "actor": plan.actor,
        "adopted": plan.adopted,
        "waits_for_approval": plan.waits_for_approval,
        "proposed_at": plan.proposed_at,
        "decision": plan.decision,
        "decided_by": plan.decided_by,
        "decided_at": plan.decided_at,
    }


def plan_details(
    plan: "PlanView", events: "Sequence[PlanEvent]", no_executor: str | None, held_reason: str | None
) -> dict[str, Any]:
    """Everything about a plan; ``nobody`` says why nobody would take it up, None where somebody would.

    ``held`` says what it waits for besides an executor.
    """
    return plan_summary(plan) | {
        "location": plan.location,
        "snapshot_instant": plan.snapshot_instant,
        "instants": plan.instants,
        "options": plan.options,
        "estimate": plan.estimate,
        "milliseconds": plan.milliseconds,
        "lease_until": plan.lease_until,
        "heartbeat_at": plan.heartbeat_at,
        "not_before": plan.not_before,
        "how_it_ended": end_reason(plan),
        "worth": plan_cost(plan),
        "held": held_reason,
        **progress_rate(plan, no_executor),
        "waits_since_nobody_runs_plans": _no_executor_for(plan, no_executor),
        "spark_ui": plan.spark_ui,
        "cancel_requested_by": plan.cancel_requested_by,
        "partition_names": plan.partitions,
        "figures": _figure_documents(plan),
        "group_list": plan.groups,
        "events": events,
    }


def _no_executor_for(plan: "PlanView", no_executor: str | None) -> str | None:
    """Why a plan that may run does not."""
    return no_executor if plan.state == "requested" and not plan.waits_for_approval else None


def _figure_documents(plan: "PlanView") -> list[dict[str, Any]]:
    from lake.plan import partition_milliseconds

    spent = partition_milliseconds(plan.figures, plan.milliseconds)
    return [asdict(entry) | {"milliseconds": took} for entry, took in zip(plan.figures, spent, strict=True)]


def end_reason(plan: "PlanView") -> str | None:
    """Why a plan failed or was cancelled, and what that means; None where it was not.

    What writers do to plans is routine, and reads so: the plan is cancelled, the table stays as they left it.
    """
    if plan.state == "cancelled" and plan.cancel_requested_by is None:
        cause = (plan.error or "no reason was kept").rstrip(".")
        return f"{cause}. Nothing was lost; the next scan plans again what is still worth it."
    if plan.state == "cancelled":
        return f"{plan.cancel_reason} (by {plan.cancel_requested_by})"
    return plan.error if plan.state == "failed" else None


def progress_rate(plan: "PlanView", no_executor: str | None) -> dict[str, Any]:
    """How fast a running plan rewrites and how long that takes yet, as of its last heartbeat; None where unknown.

    Where ``nobody`` says why no executor could be at it, both are unknown. What is left is the rewriting: proof and
    commit come after it.
    """
    from lake.plan import PlanState, Step

    done, total = plan.progress_bytes_done, plan.progress_bytes_total
    speed = None
    running = plan.state is PlanState.INFLIGHT and no_executor is None
    if running and plan.claimed_at and plan.heartbeat_at and 0 < done <= total:
        # Both times are the database's, and so is the moment at which so much was done.
        # One that failed since some groups could not be read is done again, and has its time there as well.
        over = plan.step in (Step.REWRITE, Step.VERIFY, Step.COMMIT, Step.RECORD)
        ended = plan.milliseconds.get(Step.REWRITE) if over else None
        since = (plan.heartbeat_at - plan.claimed_at).total_seconds() - sum(plan.milliseconds.values()) / 1000
        seconds = since if ended is None else ended / 1000
        speed = done / seconds if seconds > 0 else None
    return {"bytes_per_second": speed, "seconds_left": (total - done) / speed if speed else None}


def plan_progress(plan: "PlanView") -> dict[str, Any]:
    """A plan while it is followed to its end."""
    return {name: getattr(plan, name) for name in PROGRESS_FIELDS}


def plan_cancelled(plan_id: str, state: "PlanState") -> dict[str, Any]:
    """What a cancel has done; ``cancel_requested`` says that the executor was asked to stop before the commit."""
    return {"plan_id": plan_id, "state": state, "cancel_requested": state.value != "cancelled"}


def plan_decided(plan_id: str, decision: "ProposalDecision") -> dict[str, Any]:
    """What an approval or a no has done."""
    return {"plan_id": plan_id, "state": "requested" if decision == "approved" else "cancelled", "decision": decision}


def plan_retried(plan_id: str) -> dict[str, Any]:
    """What a retry has done."""
    return {"plan_id": plan_id, "state": "requested"}
