# SPDX-License-Identifier: Apache-2.0
"""Cancel, retry, approve and decline of many plans at once: the plans that match a filter, newest first."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from lake.plan import PlanState
from service import problems
from service.control.store.errors import NotFound, PartitionsLocked, WrongState
from service.former_names import both_names
from service.problems import ProblemError
from service.text import to_jsonable

if TYPE_CHECKING:
    from service.control.store import BulkAction, PlanFilter, PlanView, Store

BulkActionName = Literal["cancel", "retry", "approve", "decline"]
#: maximum number of plans of one call; the answer has the cursor of the next call
MAX_PLANS = 1000
#: the states of a plan in which each action is allowed
ALLOWED_STATES: Mapping[BulkActionName, tuple[PlanState, ...]] = {
    "cancel": (PlanState.REQUESTED, PlanState.INFLIGHT),
    "retry": (PlanState.FAILED,),
    "approve": (PlanState.REQUESTED,),
    "decline": (PlanState.REQUESTED,),
}
#: the actions that decide on proposals; they match no other plans
APPROVAL_ACTIONS: tuple[BulkActionName, ...] = ("approve", "decline")
_RULES = {
    "cancel": "only requested and inflight plans can be cancelled",
    "retry": "only failed plans can be retried",
    "approve": "only plans that wait for approval can be approved",
    "decline": "only plans that wait for approval can be declined",
}


def preview_bulk_action(
    store: "Store", action: BulkActionName, plan_filter: "PlanFilter", after: str | None = None
) -> dict[str, Any]:
    """Return the document of the effect that ``run_bulk_action`` would have. Raises ProblemError.

    The document's ``until`` is never later than now by the database's clock, which sets the creation time of plans.
    With this ``until`` the same filter matches no plan that is created after the preview.
    """
    now = store.database_time()
    until = min(plan_filter.get("until") or now, now)
    found = _matching_plans(store, action, {**plan_filter, "until": until}, after)
    plans = found[:MAX_PLANS]
    document = {
        "action": action,
        "dry_run": True,
        "action_id": None,
        "plans": [_plan_line(plan) for plan in plans],
        "skipped": [],
        "until": until.isoformat(),
        "next": plans[-1].plan_id if len(found) > MAX_PLANS else None,
    }
    return both_names("bulk action", document)


def run_bulk_action(
    store: "Store",
    action: BulkActionName,
    plan_filter: "PlanFilter",
    *,
    actor: str,
    reason: str,
    idempotency_key: str | None = None,
    after: str | None = None,
) -> dict[str, Any]:
    """Apply the action to at most ``MAX_PLANS`` plans behind ``after``, once for each ``idempotency_key`` of an actor.

    If a process died in the middle, a call with the same key applies the action to the remaining plans and answers for
    all of them. A plan that does not allow the action, such as one whose partitions are held by another plan, is in
    ``skipped`` with the reason. Raises ProblemError, IdempotencyMismatch.
    """
    meant = preview_bulk_action(store, action, plan_filter, after)
    begun = store.begin_bulk_action(
        action,
        to_jsonable({**plan_filter, "after": after}),
        [plan["plan_id"] for plan in meant["plans"]],
        actor=actor,
        reason=reason,
        idempotency_key=idempotency_key,
    )
    if begun.answer is None:
        following = _next_cursor(store, action, plan_filter, begun.plan_ids)
        begun = store.finish_bulk_action(begun.action_id, actor, _apply_to_plans(store, begun, following))
    assert begun.answer is not None
    return both_names("bulk action", begun.answer)


def _apply_to_plans(store: "Store", bulk_action: "BulkAction", next_cursor: str | None) -> dict[str, Any]:
    do: dict[str, Callable[[str, str, str], object]] = {
        "cancel": store.request_cancel,
        "retry": store.retry,
        "approve": store.approve,
        "decline": store.decline,
    }
    known, before = store.plans_by_id(bulk_action.plan_ids), store.plans_already_changed(bulk_action)
    reasons: dict[str, str] = {}
    for plan_id in bulk_action.plan_ids:
        try:
            if plan_id not in before:
                do[bulk_action.action](plan_id, bulk_action.actor, bulk_action.reason)
        except (NotFound, PartitionsLocked, WrongState) as error:
            reasons[plan_id] = str(error)
    if reasons:  # a concurrent call with the same key may have been first
        meanwhile = store.plans_already_changed(bulk_action)
        reasons = {plan_id: reason for plan_id, reason in reasons.items() if plan_id not in meanwhile}
    lines = {
        plan_id: _plan_line(known[plan_id]) if plan_id in known else {"plan_id": plan_id, "table": None}
        for plan_id in bulk_action.plan_ids
    }
    document = {
        "action": bulk_action.action,
        "dry_run": False,
        "action_id": bulk_action.action_id,
        "plans": [lines[plan_id] for plan_id in bulk_action.plan_ids if plan_id not in reasons],
        "skipped": [lines[plan_id] | {"reason": reason} for plan_id, reason in reasons.items()],
        "next": next_cursor,
    }
    return both_names("bulk action", document)


def _next_cursor(
    store: "Store", action: BulkActionName, plan_filter: "PlanFilter", plan_ids: Sequence[str]
) -> str | None:
    """Return the cursor of the next call; None if no further plan matches.

    Plans that were changed already do not match again.
    """
    more = len(plan_ids) >= MAX_PLANS and _matching_plans(store, action, plan_filter, plan_ids[-1])
    return plan_ids[-1] if more else None


def _matching_plans(
    store: "Store", action: BulkActionName, plan_filter: "PlanFilter", after: str | None
) -> "list[PlanView]":
    if not any(value is not None for key, value in plan_filter.items() if key != "until"):
        what = "table, name, state, proposed, error or since"
        raise ProblemError(problems.USAGE, f"{action} needs a filter of plans: give at least one of {what}")
    if action in APPROVAL_ACTIONS:
        if plan_filter.get("proposed") is False:
            raise ProblemError(problems.USAGE, _RULES[action])
        plan_filter = {**plan_filter, "proposed": True}
    state, possible = plan_filter.get("state"), ALLOWED_STATES[action]
    if state is not None and state not in possible:
        raise ProblemError(problems.USAGE, f"state {state.value}: {_RULES[action]}")
    states = (state,) if state is not None else possible
    found: list[PlanView] = []
    for wanted in states:
        which: PlanFilter = {**plan_filter, "state": wanted}
        found += store.plans(**which, limit=MAX_PLANS + 1, after=after)
    return sorted(found, key=lambda plan: plan.plan_id, reverse=True)[: MAX_PLANS + 1]


def _plan_line(plan: "PlanView") -> dict[str, Any]:
    return {
        "plan_id": plan.plan_id,
        "table": plan.table,
        "input_files": plan.input_files,
        "input_bytes": plan.input_bytes,
        "output_files": plan.output_files,
    }
