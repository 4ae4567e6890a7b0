# SPDX-License-Identifier: Apache-2.0
"""The documents of plans: in a listing, in full, in progress, and the results of cancel, retry and decisions."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from service.control.serializers.cost import plan_cost
from service.former_names import both_names
from service.text import plural

if TYPE_CHECKING:
    from lake.plan import PlanState, ProposalDecision
    from service.control.store import PlanEvent, PlanView, RetryingPlan

#: states that a plan does not leave, except by a retry
TERMINAL_STATES = ("completed", "failed", "cancelled")


#: the fields of a plan that are shown while it is followed to its end
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
    """Return a plan for a listing."""
    fields = {
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
        "adopted_instant": plan.adopted,
        "waits_for_approval": plan.waits_for_approval,
        "proposed_at": plan.proposed_at,
        "decision": plan.decision,
        "decided_by": plan.decided_by,
        "decided_at": plan.decided_at,
    }
    return both_names("plan", fields)


def plan_details(
    plan: "PlanView", events: "Sequence[PlanEvent]", no_executor: str | None, held_reason: str | None
) -> dict[str, Any]:
    """Return everything about a plan.

    ``no_executor`` is the reason why no executor would claim the plan, None if one would. ``held_reason`` is the reason
    for which the plan waits, other than for a free executor.
    """
    fields = plan_summary(plan) | {
        "location": plan.location,
        "snapshot_instant": plan.snapshot_instant,
        "instants": plan.instants,
        "options": both_names("plan.options", plan.options),
        "estimate": plan.estimate,
        "milliseconds": plan.milliseconds,
        "other_milliseconds": plan.other_milliseconds,
        "took_milliseconds": plan.took_milliseconds,
        "lease_until": plan.lease_until,
        "heartbeat_at": plan.heartbeat_at,
        "not_before": plan.not_before,
        "end_reason": end_reason(plan),
        "cost_benefit": plan_cost(plan),
        "wait_reason": held_reason,
        **progress_rate(plan, no_executor),
        "no_executor_reason": _no_executor_for(plan, no_executor),
        "spark_ui": plan.spark_ui,
        "cancel_requested_by": plan.cancel_requested_by,
        "partition_names": plan.partitions,
        "figures": _figure_documents(plan),
        "group_details": plan.groups,
        "events": events,
    }
    return both_names("plan", fields)


def _no_executor_for(plan: "PlanView", no_executor: str | None) -> str | None:
    """Return why a plan that may run does not run."""
    return no_executor if plan.state == "requested" and not plan.waits_for_approval else None


def _figure_documents(plan: "PlanView") -> list[dict[str, Any]]:
    from lake.plan import partition_milliseconds

    spent = partition_milliseconds(plan.figures, plan.took_milliseconds or 0)
    return [asdict(entry) | {"milliseconds": took} for entry, took in zip(plan.figures, spent, strict=True)]


def end_reason(plan: "PlanView") -> str | None:
    """Return why a plan failed or was cancelled, and the consequence; None for any other plan.

    A plan that a writer invalidates is cancelled; the text states that this is routine.
    """
    if plan.state == "cancelled" and plan.cancel_requested_by is None:
        cause = (plan.error or "no reason was kept").rstrip(".")
        return f"{cause}. Nothing was lost; the next scan plans the worthwhile files again."
    if plan.state == "cancelled":
        return f"{plan.cancel_reason} (by {plan.cancel_requested_by})"
    return plan.error if plan.state == "failed" else None


def progress_rate(plan: "PlanView", no_executor: str | None) -> dict[str, Any]:
    """Return the speed of a running plan and the time its rewrite still takes, at its last heartbeat; None if unknown.

    Both are unknown if no executor can be running the plan; ``no_executor`` is then the reason. Verification and commit
    follow after the rewrite.
    """
    from lake.plan import PlanState, Step

    done, total = plan.progress_bytes_done, plan.progress_bytes_total
    speed = None
    running = plan.state is PlanState.INFLIGHT and no_executor is None
    if running and plan.claimed_at and plan.heartbeat_at and 0 < done <= total:
        # All of these times are by the database's clock. A rewrite that failed because groups were unreadable is
        # repeated; its time is in the milliseconds too.
        is_past_rewrite = plan.step in (Step.REWRITE, Step.VERIFY, Step.COMMIT, Step.RECORD)
        ended = plan.milliseconds.get(Step.REWRITE) if is_past_rewrite else None
        since = (plan.heartbeat_at - plan.claimed_at).total_seconds() - sum(plan.milliseconds.values()) / 1000
        seconds = since if ended is None else ended / 1000
        speed = done / seconds if seconds > 0 else None
    return {"bytes_per_second": speed, "seconds_left": (total - done) / speed if speed else None}


def plan_progress(plan: "PlanView") -> dict[str, Any]:
    """Return a plan while it is followed to its end."""
    return {name: getattr(plan, name) for name in PROGRESS_FIELDS}


def describe_retries(plans: "Sequence[RetryingPlan]", now: datetime) -> str | None:
    """Return the first of ``plans`` as ``attempt 3 of 5: no space left on device; retry in 4 min``; None if empty."""
    from lake.units import format_duration

    if not plans:
        return None
    first, more = plans[0], len(plans) - 1
    next_attempt = "its next attempt runs"
    if first.next_attempt_at is not None:
        wait = int((first.next_attempt_at - now).total_seconds())
        next_attempt = f"retry in {format_duration(wait)}" if wait > 0 else "due now"
    others = f"; and {plural(more, 'more plan')}" if more else ""
    attempt = f"attempt {first.attempt} of {first.max_attempts}: " if first.attempt else ""
    return f"{attempt}{first.error}; {next_attempt}{others}"


def plan_cancelled(plan_id: str, state: "PlanState") -> dict[str, Any]:
    """Return the result of a cancel; ``cancel_requested`` is True if the executor is to stop before the commit."""
    return {"plan_id": plan_id, "state": state, "cancel_requested": state.value != "cancelled"}


def plan_decided(plan_id: str, decision: "ProposalDecision") -> dict[str, Any]:
    """Return the result of an approval or a decline."""
    return {"plan_id": plan_id, "state": "requested" if decision == "approved" else "cancelled", "decision": decision}


def plan_retried(plan_id: str) -> dict[str, Any]:
    """Return the result of a retry."""
    return {"plan_id": plan_id, "state": "requested"}
