# SPDX-License-Identifier: Apache-2.0
"""Plans that wait for approval: no executor gets them before it, and after a no never."""

import json
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError
from store_plans import TRIPS, add, claimed, commit_of, figures_of, make_plan, sql

from lake.plan import Plan, PlanState, ProposalDecision
from service.control.store import NotFound, PartitionsLocked, Store, StoreSettings, WrongState
from service.control.store.plan_creation import QueueEntry

pytestmark = pytest.mark.paired("database_url")

TOLD = StoreSettings(notify_events=frozenset({"plan.proposed", "plan.cancelled"}))


def propose(store: Store, *partitions: str, settings: str = "s", replaces: dict[str, str] | None = None) -> Plan:
    """Store a plan that waits for approval."""
    plan = make_plan(*partitions)
    store.add_plan(
        plan,
        request_id=None,
        actor="scheduler",
        estimate={},
        settings_digest=settings,
        queued=QueueEntry(needs_approval=True),
        replaced_proposals=replaces,
    )
    return plan


def test_a_proposal_is_claimed_once_it_is_approved_and_not_before(store: Store):
    plan = propose(store)
    assert (store.claim("e"), store.time_until_due()) == (None, None)
    assert store.plan(plan.plan_id).waits_for_approval
    store.approve(plan.plan_id[-12:], "ada", "after hours")
    seen = store.plan(plan.plan_id)
    assert (seen.waits_for_approval, seen.decision, seen.decided_by) == (False, ProposalDecision.APPROVED, "ada")
    assert seen.proposed_at is not None
    assert seen.decided_at is not None
    assert claimed(store).plan == plan
    assert [event.reason for event in store.plan_events(plan.plan_id)] == [
        "planned; waits for approval",
        "approved: after hours",
        "claimed",
    ]
    (entry,) = store.audit_entries(action="plan approved")
    assert (entry.actor, entry.table, entry.subject, entry.detail) == ("ada", TRIPS.name, plan.plan_id, "after hours")


def test_an_approved_plan_needs_no_second_yes_after_a_failure(store: Store):
    plan = propose(store)
    store.approve(plan.plan_id, "ada")
    store.fail(claimed(store), "rejected")
    store.retry(plan.plan_id, "bob")
    store.complete(claimed(store), commit_of(plan), figures_of(plan), {})
    assert store.plan_state(plan.plan_id) is PlanState.COMPLETED


def test_a_declined_proposal_ends_and_is_remembered_with_its_files(store: Store):
    plan = propose(store, "dt=1", "dt=2")
    store.decline(plan.plan_id, "ada", "month end")
    seen = store.plan(plan.plan_id)
    assert (seen.state, seen.decision, seen.decided_by) == (PlanState.CANCELLED, ProposalDecision.DECLINED, "ada")
    assert store.locked_partitions(TRIPS.name) == {}
    (declined,) = store.declined_plans(TRIPS.name, "s")
    assert declined.slices == tuple(item for group in plan.groups for item in group.slices)
    assert declined.text.startswith(f"declined: month end (by ada, plan {plan.plan_id})")
    assert store.declined_plans(TRIPS.name, "other settings") == []
    assert [entry.action for entry in store.audit_entries()] == ["plan declined"]


def test_a_decision_is_made_once(store: Store):
    approved, declined, plain = propose(store, "dt=1"), propose(store, "dt=2"), add(store, "dt=3")
    store.approve(approved.plan_id, "ada")
    store.decline(declined.plan_id, "ada")
    for again in (store.approve, store.decline):
        with pytest.raises(WrongState, match="was already approved by ada; it is requested"):
            again(approved.plan_id, "bob")
        with pytest.raises(WrongState, match="was already declined by ada; it is cancelled"):
            again(declined.plan_id, "bob")
        with pytest.raises(WrongState, match="is requested and does not wait for approval"):
            again(plain.plan_id, "bob")
        with pytest.raises(NotFound):
            again("ffffffff", "bob")


def test_a_cancelled_proposal_records_no_decision(store: Store):
    plan = propose(store)
    store.request_cancel(plan.plan_id, "ada")
    assert store.plan(plan.plan_id).decision is None
    assert store.declined_plans(TRIPS.name, "s") == []
    with pytest.raises(WrongState, match="is cancelled and does not wait for approval"):
        store.approve(plan.plan_id, "bob")


def test_a_proposal_keeps_its_partitions_from_other_plans_until_its_successor(store: Store):
    old = propose(store, "dt=1", "dt=2")
    with pytest.raises(PartitionsLocked):
        propose(store, "dt=2")
    new = propose(store, "dt=2", replaces={old.plan_id: "a file changed"})
    assert store.locked_partitions(TRIPS.name) == {"dt=2": new.plan_id}
    assert store.locked_partitions(TRIPS.name, include_proposals=False) == {}
    seen = store.plan(old.plan_id)
    assert (seen.state, seen.cancel_reason) == (PlanState.CANCELLED, f"replaced by plan {new.plan_id}: a file changed")
    assert [found.plan_id for found in store.proposals(TRIPS.name)] == [new.plan_id]


def test_a_proposal_that_was_approved_meanwhile_is_not_replaced(store: Store):
    old = propose(store, "dt=1")
    store.approve(old.plan_id, "ada")
    with pytest.raises(PartitionsLocked):
        propose(store, "dt=1", replaces={old.plan_id: "a file changed"})
    store.withdraw_proposals({old.plan_id: "late"}, actor="scheduler")
    assert claimed(store).plan == old


def test_the_proposal_stays_if_its_successor_is_not_stored(store: Store):
    old, other = propose(store, "dt=1"), add(store, "dt=2")
    with pytest.raises(PartitionsLocked) as taken:
        propose(store, "dt=1", "dt=2", replaces={old.plan_id: "a file changed"})
    assert taken.value.locking_plans == {"dt=2": other.plan_id}
    assert store.plan(old.plan_id).waits_for_approval


def test_the_database_itself_runs_no_plan_without_approval(database_url: str):
    store = Store(database_url)
    waiting, declined = propose(store, "dt=1"), propose(store, "dt=2")
    store.decline(declined.plan_id, "ada")
    inflight = "state = 'inflight', lease_until_ms = 1, executor = 'e', epoch = epoch + 1, finalized_at_ms = NULL"
    completed = "state = 'completed', instant = 'i', finalized_at_ms = 1"
    for change, plan in (
        (inflight, waiting),
        (inflight, declined),
        (completed, declined),
        ("decision = 'declined', decided_by = 'x', decided_at_ms = 1", waiting),
        ("decision = 'approved'", waiting),
        ("decision = 'perhaps', decided_by = 'x', decided_at_ms = 1", waiting),
    ):
        with pytest.raises(IntegrityError):
            sql(database_url, f"UPDATE plan SET {change} WHERE id = :id", id=plan.plan_id)
    store.close()


def test_a_proposal_and_its_end_are_notified(database_url: str):
    store = Store(database_url, TOLD)
    plan = propose(store, "dt=1")
    store.decline(plan.plan_id, "ada", "not now")
    ended, proposed = (message.body for message in store.notifications())
    assert (proposed["event"], proposed["plan"], proposed["table"]) == ("plan.proposed", plan.plan_id, TRIPS.name)
    assert proposed["figures"] == {"input_files": 2, "input_bytes": plan.bytes, "output_files": 1, "partitions": 1}
    assert (ended["event"], ended["reason"]) == ("plan.cancelled", "declined: not now")
    assert json.dumps(proposed)
    store.close()


ACTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "propose",
                "plan",
                "approve",
                "decline",
                "cancel",
                "replace",
                "claim",
                "fail",
                "complete",
                "requeue",
                "retry",
                "take back",
                "sweep",
            ]
        ),
        st.integers(0, 5),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=ACTS)
def test_a_declined_proposal_is_never_executed(store: Store, acts: list[tuple[str, int]]):
    table = f"t{sum(1 for _ in store.table_states())}"  # of its own for each example
    plans, proposals, approved, declined = list[Plan](), set[str](), set[str](), set[str]()
    claims = []

    def new(partition: str, *, proposed: bool = False, replaces: dict[str, str] | None = None) -> None:
        plan = make_plan(partition, table=TRIPS.__class__(name=table, format="hudi", location=f"/lake/{table}"))
        try:
            store.add_plan(
                plan,
                request_id=None,
                actor="s",
                estimate={},
                settings_digest="s",
                queued=QueueEntry(needs_approval=proposed),
                replaced_proposals=replaces,
            )
        except PartitionsLocked:
            return
        plans.append(plan)
        if proposed:
            proposals.add(plan.plan_id)

    for act, number in acts:
        plan = plans[number % len(plans)] if plans else None
        try:
            match act:
                case "propose":
                    new(f"dt={number % 3}", proposed=True)
                case "plan":
                    new(f"dt={number % 3}")
                case "claim":
                    if (claim := store.claim("e")) is not None:
                        claims.append(claim)
                        plan_id = claim.plan.plan_id
                        assert plan_id not in declined
                        assert plan_id not in proposals or plan_id in approved
                case "fail" | "complete" | "requeue" if claims:
                    claim = claims.pop()
                    if act == "complete":
                        store.complete(claim, commit_of(claim.plan), figures_of(claim.plan), {})
                    else:
                        (store.fail if act == "fail" else store.requeue)(claim, "error")
                case _ if plan is None:
                    continue
                case "replace":
                    new(f"dt={number % 3}", proposed=True, replaces={plan.plan_id: "changed"})
                case "approve":
                    store.approve(plan.plan_id, "ada")
                    approved.add(plan.plan_id)
                case "decline":
                    store.decline(plan.plan_id, "ada")
                    declined.add(plan.plan_id)
                case "cancel":
                    store.request_cancel(plan.plan_id, "ada")
                case "retry":
                    store.retry(plan.plan_id, "ada")
                case "take back":
                    store.withdraw_proposals({plan.plan_id: "mode"}, actor="s")
                case "sweep":
                    assert plan.plan_id not in set(store.ended_without_commit(plan.table, claimed=True)) & declined
        except (WrongState, PartitionsLocked):
            continue
    for claim in claims:  # the next example begins with no plan inflight
        store.cancel(claim, "over", actor="s")
    for plan in plans:
        if store.plan_state(plan.plan_id) in (PlanState.REQUESTED,):
            store.request_cancel(plan.plan_id, "s")
    assert not approved & declined
    for plan_id in declined:
        seen = store.plan(plan_id)
        assert (seen.state, seen.epoch, seen.claimed_at) == (PlanState.CANCELLED, 0, None)


def test_proposals_are_counted_apart_from_the_backlog(store: Store):
    asked, runs = propose(store, "dt=1"), add(store, "dt=2")
    figures = store.figures()
    assert (figures.count(PlanState.REQUESTED), figures.proposal_count, figures.backlog_bytes) == (2, 1, runs.bytes)
    assert figures.oldest_proposed_at == store.plan(asked.plan_id).proposed_at
    assert figures.oldest_requested_at == store.plan(runs.plan_id).not_before
    store.request_cancel(runs.plan_id, "ada")
    assert (store.figures().oldest_requested_at, store.figures().backlog_bytes) == (None, 0)
    store.approve(asked.plan_id, "ada")
    figures = store.figures()
    assert (figures.proposal_count, figures.oldest_proposed_at, figures.backlog_bytes) == (0, None, asked.bytes)


def test_a_plan_waits_for_an_executor_from_when_it_may_run_and_not_from_when_it_was_made(
    store: Store, database_url: str
):
    asked = propose(store, "dt=1").plan_id
    sql(database_url, "UPDATE plan SET created_at_ms = created_at_ms - 260000000, not_before_ms = created_at_ms")
    store.approve(asked, "ada")
    assert store.figures().oldest_requested_at == store.plan(asked).not_before
    assert store.plan(asked).not_before > store.plan(asked).created_at + timedelta(days=3)
    store.fail(claimed(store), "no such codec")
    sql(database_url, "UPDATE plan SET decided_at_ms = created_at_ms, not_before_ms = created_at_ms")
    store.retry(asked, "ada")
    assert store.figures().oldest_requested_at == store.plan(asked).not_before
    assert store.requeue(claimed(store), "the lock was not free")
    figures = store.figures()
    assert figures.oldest_requested_at is not None
    assert figures.oldest_requested_at <= figures.taken_at < store.plan(asked).not_before, "it is not due yet"
