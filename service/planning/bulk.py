# SPDX-License-Identifier: Apache-2.0
"""Cancel, retry, approve and decline of many plans at once: those that somebody's terms mean, newest first."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from lake.plan import PlanState
from service import problems
from service.problems import CommandError
from service.store.errors import NotFound, PartitionsTaken, WrongState
from service.text import plain

if TYPE_CHECKING:
    from service.store import BulkAction, PlanTerms, PlanView, Store

Action = Literal["cancel", "retry", "approve", "decline"]
#: plans of one call; the answer says behind which one the next call goes on
MOST_PLANS = 1000
#: states in which it can be done to a plan
POSSIBLE: Mapping[Action, tuple[PlanState, ...]] = {
    "cancel": (PlanState.REQUESTED, PlanState.INFLIGHT),
    "retry": (PlanState.FAILED,),
    "approve": (PlanState.REQUESTED,),
    "decline": (PlanState.REQUESTED,),
}
#: those that decide on plans which wait for approval, and mean no others
DECISIONS: tuple[Action, ...] = ("approve", "decline")
_WORDS = {
    "cancel": "only requested and inflight plans can be cancelled",
    "retry": "only failed plans can be retried",
    "approve": "only plans that wait for approval can be approved",
    "decline": "only plans that wait for approval can be declined",
}


def would(store: "Store", action: Action, terms: "PlanTerms", after: str | None = None) -> dict[str, Any]:
    """The document of what ``act`` would do. Raises CommandError.

    Its ``until`` is never later than now, by the clock that says when plans were made: with it the same terms mean none
    of the plans that come later, which nobody has seen in this document.
    """
    now = store.now()
    until = min(terms.get("until") or now, now)
    found = _meant(store, action, {**terms, "until": until}, after)
    plans = found[:MOST_PLANS]
    return {
        "action": action,
        "dry_run": True,
        "action_id": None,
        "plans": [_line(plan) for plan in plans],
        "left": [],
        "until": until.isoformat(),
        "next": plans[-1].plan_id if len(found) > MOST_PLANS else None,
    }


def act(
    store: "Store",
    action: Action,
    terms: "PlanTerms",
    *,
    actor: str,
    reason: str,
    key: str | None = None,
    after: str | None = None,
) -> dict[str, Any]:
    """Do it to at most ``MOST_PLANS`` plans behind ``after``, and only once for each idempotency ``key`` of an actor.

    Where a process died at it, the same key does it to the rest of the plans and answers for all of them. A plan to
    which it can't be done, as one whose partitions are held by another, is left with the reason. Raises CommandError,
    IdempotencyMismatch.
    """
    meant = would(store, action, terms, after)
    begun = store.begin_bulk(
        action,
        plain({**terms, "after": after}),
        [plan["plan_id"] for plan in meant["plans"]],
        actor=actor,
        reason=reason,
        idempotency_key=key,
    )
    if begun.answer is None:
        following = _following(store, action, terms, begun.plan_ids)
        begun = store.end_bulk(begun.action_id, actor, _done(store, begun, following))
    assert begun.answer is not None
    return dict(begun.answer)


def _done(store: "Store", begun: "BulkAction", following: str | None) -> dict[str, Any]:
    do: dict[str, Callable[[str, str, str], object]] = {
        "cancel": store.request_cancel,
        "retry": store.retry,
        "approve": store.approve,
        "decline": store.decline,
    }
    known, before = store.plans_by_id(begun.plan_ids), store.acted_on(begun)
    reasons: dict[str, str] = {}
    for plan_id in begun.plan_ids:
        try:
            if plan_id not in before:
                do[begun.action](plan_id, begun.actor, begun.reason)
        except (NotFound, PartitionsTaken, WrongState) as error:
            reasons[plan_id] = str(error)
    if reasons:  # a call with the same key that goes on beside this one may have been first
        meanwhile = store.acted_on(begun)
        reasons = {plan_id: reason for plan_id, reason in reasons.items() if plan_id not in meanwhile}
    about = {
        plan_id: _line(known[plan_id]) if plan_id in known else {"plan_id": plan_id, "table": None}
        for plan_id in begun.plan_ids
    }
    return {
        "action": begun.action,
        "dry_run": False,
        "action_id": begun.action_id,
        "plans": [about[plan_id] for plan_id in begun.plan_ids if plan_id not in reasons],
        "left": [about[plan_id] | {"reason": reason} for plan_id, reason in reasons.items()],
        "next": following,
    }


def _following(store: "Store", action: Action, terms: "PlanTerms", plan_ids: Sequence[str]) -> str | None:
    """Behind which of these plans the next call goes on. Those to which it was done already are not meant any more."""
    more = len(plan_ids) >= MOST_PLANS and _meant(store, action, terms, plan_ids[-1])
    return plan_ids[-1] if more else None


def _meant(store: "Store", action: Action, terms: "PlanTerms", after: str | None) -> "list[PlanView]":
    if not any(value is not None for key, value in terms.items() if key != "until"):
        what = "table, name, state, proposed, error or since"
        raise CommandError(problems.USAGE, f"{action} of which plans? Say at least one of {what}")
    if action in DECISIONS:
        if terms.get("proposed") is False:
            raise CommandError(problems.USAGE, _WORDS[action])
        terms = {**terms, "proposed": True}
    state, possible = terms.get("state"), POSSIBLE[action]
    if state is not None and state not in possible:
        raise CommandError(problems.USAGE, f"state {state.value}: {_WORDS[action]}")
    states = (state,) if state is not None else possible
    found: list[PlanView] = []
    for wanted in states:
        which: PlanTerms = {**terms, "state": wanted}
        found += store.plans(**which, limit=MOST_PLANS + 1, after=after)
    return sorted(found, key=lambda plan: plan.plan_id, reverse=True)[: MOST_PLANS + 1]


def _line(plan: "PlanView") -> dict[str, Any]:
    return {
        "plan_id": plan.plan_id,
        "table": plan.table,
        "input_files": plan.input_files,
        "input_bytes": plan.input_bytes,
        "output_files": plan.output_files,
    }
