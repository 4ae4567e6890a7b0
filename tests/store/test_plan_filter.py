# SPDX-License-Identifier: Apache-2.0
"""Filters of the plan list, and the class of each plan's error."""

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from store_plans import TRIPS, add, claimed, commit_of, figures_of, sql
from test_store_upgrade import to

from lake.plan import PlanState
from service.control.store import ErrorClass, IdempotencyMismatch, NotFound, Store, StoreSettings

pytestmark = pytest.mark.paired("database_url")


def error_of(store: Store, plan_id: str) -> str | None:
    return store.plan(plan_id).error_class


def test_each_outcome_is_an_error_of_its_kind_for_as_long_as_the_error_is_there(database_url: str) -> None:
    store = Store(database_url, StoreSettings(max_attempts=2, backoff=timedelta(), max_inflight_per_table=9))
    plan = add(store, "dt=1").plan_id
    assert store.requeue(claimed(store), "the lock was not free")
    assert error_of(store, plan) == "transient"
    claim = claimed(store)
    assert error_of(store, plan) is None, "the next attempt has met none yet"
    store.record_inflight_error(claim, "no answer to the commit")
    assert error_of(store, plan) == "commit_unknown"
    assert not store.requeue(claim, "the lock was not free")
    assert error_of(store, plan) == "transient"
    store.retry(plan, "ada", "the lock is free now")
    assert [event.reason for event in store.plan_events(plan)][-1] == "retried: the lock is free now"
    claim = claimed(store)
    store.complete(claim, commit_of(claim.plan), figures_of(claim.plan), {})
    assert error_of(store, plan) is None
    for partition, end, kind in (
        ("dt=2", lambda claim: store.fail(claim, "no such codec"), "rejected"),
        ("dt=3", lambda claim: store.fail(claim, "3 rows fewer", halt=True), "integrity"),
        ("dt=4", lambda claim: store.cancel(claim, "a writer was faster", actor="e"), "conflict"),
    ):
        store.resume(TRIPS.name, "ada")
        plan = add(store, partition).plan_id
        end(claimed(store))
        assert error_of(store, plan) == kind
    store.resume(TRIPS.name, "ada")
    asked, waiting = add(store, "dt=5").plan_id, add(store, "dt=6").plan_id
    claim = claimed(store)
    for plan in (asked, waiting):
        store.request_cancel(plan, "ada")
    store.cancel(claim, "cancelled before its commit", actor="e")
    assert (error_of(store, asked), error_of(store, waiting)) == (None, None), "what a person did is no error"
    store.close()


def test_an_upgrade_derives_the_kind_of_error_of_earlier_plans(database_url: str) -> None:
    settings = StoreSettings(max_attempts=1, backoff=timedelta(), max_inflight_per_table=9)
    store, want = Store(database_url, settings), {}
    for number, (end, kind) in enumerate(
        (
            (lambda claim: store.fail(claim, "3 rows fewer", halt=True), "integrity"),
            (lambda claim: store.fail(claim, "no such codec"), "rejected"),
            (lambda claim: store.requeue(claim, "the lock was not free"), "transient"),
            (lambda claim: store.cancel(claim, "a writer was faster", actor="e"), "conflict"),
        )
    ):
        sql(database_url, "UPDATE table_state SET halted_at_ms = NULL, halted_reason = NULL WHERE :n < 3", n=number)
        plan = add(store, f"dt={number}", table=replace(TRIPS, name=f"t{number}", location=f"/lake/{number}"))
        end(claimed(store))
        want[plan.plan_id] = kind
    forgotten = add(store, "dt=9", table=replace(TRIPS, name="t9"))
    store.requeue(claimed(store), "no space left")
    store.resume("t9", "ada")
    cancelled = add(store, "dt=10").plan_id
    store.request_cancel(cancelled, "ada")
    want |= {forgotten.plan_id: "transient", cancelled: None}
    halted = sql(database_url, "SELECT id FROM plan WHERE table_name = 't0'")[0].id
    sql(
        database_url,
        "UPDATE table_state SET halted_at_ms = 1, halted_reason = :r WHERE name = 't0'",
        r=f"plan {halted}: 3 rows fewer",
    )
    to(database_url, "0011")
    to(database_url, "head")
    assert {plan.plan_id: plan.error_class for plan in store.plans()} == want
    store.close()


@pytest.mark.slow
def test_plans_are_found_by_table_name_state_error_and_time(store: Store, database_url: str) -> None:
    chance, now = random.Random(5), datetime.now(UTC)
    names = ["sales.orders", "sales.Returns", "ops.orders_2", "ops.100%", "ops.unused"]
    for name in names:
        store.register_table(replace(TRIPS, name=name), "compact")
    for number in range(80):
        name, made = chance.choice(names[:4]), now - timedelta(hours=number * 7)
        ms = int(made.timestamp() * 1000)
        digits = f"{ms:012x}7{number:03x}8{number:015x}"
        plan_id = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        add(store, f"dt={number}", table=replace(TRIPS, name=name), plan_id=plan_id)
        # clocks of hosts and of the database may differ by minutes
        skew = chance.randrange(-600_000, 600_000)
        sql(database_url, "UPDATE plan SET created_at_ms = :ms WHERE id = :id", ms=ms + skew, id=plan_id)
    for plan in chance.sample(store.plans(limit=100), 40):
        store.request_cancel(plan.plan_id, "ada")
    for plan in store.plans(state=PlanState.CANCELLED, limit=15):
        sql(database_url, "UPDATE plan SET error_class = 'conflict' WHERE id = :id", id=plan.plan_id)
    everything = store.plans(limit=100)
    assert len(everything) == 80
    for _ in range(60):
        table, name = chance.choice([None, *names]), chance.choice([None, "orders", "RET", "s", "%", "_2", "none"])
        state = chance.choice([None, PlanState.REQUESTED, PlanState.CANCELLED])
        kind = chance.choice([None, None, ErrorClass.CONFLICT])
        since, until = (chance.choice([None, now - timedelta(hours=chance.randrange(600))]) for _ in range(2))
        limit, after = chance.choice([1, 7, 100]), chance.choice([None, chance.choice(everything).plan_id])
        want = [
            plan.plan_id
            for plan in everything
            if (table is None or plan.table == table)
            and (name is None or name.lower() in plan.table.lower())
            and (state is None or plan.state is state)
            and (kind is None or plan.error_class is kind)
            and (since is None or plan.created_at >= since.replace(microsecond=since.microsecond // 1000 * 1000))
            and (until is None or plan.created_at < until.replace(microsecond=until.microsecond // 1000 * 1000))
            and (after is None or plan.plan_id < after)
        ][:limit]
        found = store.plans(
            table=table, name=name, state=state, error_class=kind, since=since, until=until, limit=limit, after=after
        )
        assert [plan.plan_id for plan in found] == want, (table, name, state, kind, since, until, limit, after)


def test_a_bulk_action_is_begun_once_for_each_key_of_an_actor_and_its_first_answer_stays(store: Store) -> None:
    plans = [add(store, f"dt={n}").plan_id for n in range(3)]
    begin = store.begin_bulk_action
    first = begin("cancel", {"state": "requested"}, plans[:2], actor="ada", reason="no", idempotency_key="k")
    again = begin("cancel", {"state": "requested"}, plans, actor="ada", reason="no", idempotency_key="k")
    assert (again.action_id, again.plan_ids, again.answer) == (first.action_id, tuple(plans[:2]), None)
    assert store.finish_bulk_action(first.action_id, "ada", {"n": 1}).answer == {"n": 1}
    assert store.finish_bulk_action(first.action_id, "ada", {"n": 2}).answer == {"n": 1}
    for action, terms in (("retry", {"state": "requested"}), ("cancel", {})):
        with pytest.raises(IdempotencyMismatch, match=first.action_id):
            begin(action, terms, plans, actor="ada", reason="no", idempotency_key="k")
    others = [
        begin("cancel", {}, plans, actor=actor, reason="", idempotency_key=key).action_id
        for actor, key in (("bob", "k"), ("ada", None), ("ada", None))
    ]
    assert len({first.action_id, *others}) == 4
    assert store.bulk_action(first.action_id[-12:], "ada").actor == "ada"
    with pytest.raises(NotFound, match="no action"):
        store.bulk_action(first.action_id, "bob")
    with pytest.raises(NotFound, match="no action"):
        store.bulk_action("eeeeeeee", "ada")
    assert store.prune(timedelta(days=1)) == 0
    assert store.prune(timedelta(seconds=-1)) == 4
    with pytest.raises(NotFound):
        store.bulk_action(first.action_id, "ada")
