# SPDX-License-Identifier: Apache-2.0
"""Several of everything at once: executors, planners, rescuers, would-be leaders, on SQLite and PostgreSQL."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from databases import store_at
from store_plans import TRIPS, add, claimed, commit_of, figures_of, lease_runs_out, make_plan

from lake.plan import Claim, Plan, PlanState
from service.control.store import DatabaseUnreachable, PartitionsLocked, Store
from service.control.store import database as engine_module


@pytest.fixture
def stores(database_url: str) -> Iterator[list[Store]]:
    """Four stores on one database, as four processes have."""
    made = [Store(database_url) for _ in range(4)]
    yield made
    for store in made:
        store.close()


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of ``calls``, begun together, each in a thread of its own; what one raised is raised here."""
    barrier = threading.Barrier(len(calls))
    results: list[Any] = [None] * len(calls)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        barrier.wait()
        try:
            results[number] = calls[number]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def test_one_of_concurrent_executors_claims_the_plan(stores: list[Store]) -> None:
    for round_ in range(10):
        plan = add(stores[0], f"dt={round_}")
        claims = at_once([partial(store.claim, f"executor-{n}") for n, store in enumerate(stores)])
        (winner,) = [claim for claim in claims if claim is not None]
        assert (winner.plan, winner.epoch, winner.attempt) == (plan, 1, 1)
        stores[0].complete(winner, commit_of(plan), figures_of(plan), {})


def test_executors_at_once_never_exceed_the_inflight_limit_of_a_table(stores: list[Store]) -> None:
    for number in range(8):
        add(stores[0], f"dt={number}")
    claims = at_once([partial(store.claim, "e") for store in stores])
    assert len([claim for claim in claims if claim is not None]) == 1
    assert len(stores[0].plans(state=PlanState.INFLIGHT)) == 1


def test_one_of_concurrent_rescuers_takes_the_plan_over(stores: list[Store], database_url: str) -> None:
    plan = add(stores[0], "dt=1")
    claimed(stores[0])
    for epoch in range(2, 8):
        lease_runs_out(database_url, plan.plan_id)
        claims = at_once([partial(store.take_over_expired, f"rescuer-{n}") for n, store in enumerate(stores)])
        assert [claim.epoch for claim in claims if claim is not None] == [epoch]


def test_a_partition_belongs_to_one_live_plan_even_if_two_are_inserted_at_once(stores: list[Store]) -> None:
    def store_plan(store: Store, plan: Plan) -> object:
        try:
            store.add_plan(plan, request_id=None, actor="scheduler", estimate={})
        except PartitionsLocked as error:
            return error.locking_plans
        return "stored"

    for round_ in range(10):
        plans = [make_plan(f"a={round_}", f"b={round_}"), make_plan(f"b={round_}", f"a={round_}", f"c={round_}")]
        outcomes = at_once([partial(store_plan, store, plan) for store, plan in zip(stores, plans, strict=False)])
        winner = outcomes.index("stored")
        holder = plans[winner].plan_id
        assert outcomes[1 - winner] == {f"a={round_}": holder, f"b={round_}": holder}
        assert stores[0].plan_state(plans[1 - winner].plan_id) is None, "the loser leaves nothing behind"


def test_a_cancel_and_a_claim_at_once_end_in_one_of_two_ways(stores: list[Store]) -> None:
    for round_ in range(10):
        plan = add(stores[0], f"dt={round_}")
        claim, state = at_once(
            [partial(stores[0].claim, "e"), partial(stores[1].request_cancel, plan.plan_id, "ada", "no")]
        )
        if claim is None:
            assert state is PlanState.CANCELLED
            assert stores[0].plan_state(plan.plan_id) is PlanState.CANCELLED
        else:
            assert state is PlanState.INFLIGHT
            assert stores[0].heartbeat(claim) is True
            stores[0].cancel(claim, "no", actor="ada")
        assert stores[0].locked_partitions(TRIPS.name) == {}


def test_a_completion_and_a_take_over_at_once_leave_one_owner(stores: list[Store], database_url: str) -> None:
    for round_ in range(10):
        plan = add(stores[0], f"dt={round_}")
        claim = claimed(stores[0])
        lease_runs_out(database_url, plan.plan_id)

        def complete(claim: Claim = claim, plan: Plan = plan) -> str:
            try:
                stores[0].complete(claim, commit_of(plan), figures_of(plan), {})
            except Exception as error:
                return type(error).__name__
            return "completed"

        outcome, taken = at_once([complete, partial(stores[1].take_over_expired, "rescuer")])
        if taken is None:
            assert outcome == "completed"
        else:
            assert outcome == "LeaseLost"
            stores[1].complete(taken, commit_of(plan), figures_of(plan), {})
        assert stores[0].plan_state(plan.plan_id) is PlanState.COMPLETED
    assert len(stores[0].awaiting_deletion(TRIPS)) == 20


@pytest.mark.slow
def test_one_store_serves_many_threads(stores: list[Store]) -> None:
    store = stores[0]

    def work(number: int) -> None:
        for round_ in range(5):
            add(store, f"dt={round_}", table=replace(TRIPS, name=f"t{number}"))
            store.figures()
            claim = store.claim(f"executor-{number}")
            if claim is not None:
                store.heartbeat(claim)
                store.complete(claim, commit_of(claim.plan), figures_of(claim.plan), {})

    at_once([partial(work, number) for number in range(8)])
    while (claim := store.claim("last")) is not None:
        store.complete(claim, commit_of(claim.plan), figures_of(claim.plan), {})
    assert store.figures().count(PlanState.COMPLETED) == 40


def test_concurrent_requests_with_one_key_are_one_request(stores: list[Store]) -> None:
    ids = at_once([partial(store.add_request, "t", idempotency_key="k", actor="ada") for store in stores])
    assert len(set(ids)) == 1
    assert len(stores[0].open_requests()) == 1


def test_one_of_many_concurrent_processes_gets_a_role(stores: list[Store]) -> None:
    minute = timedelta(minutes=1)
    for round_ in range(10):
        won = at_once([partial(s.acquire_leader, f"r{round_}", f"h{n}", minute) for n, s in enumerate(stores)])
        assert sorted(won) == [False, False, False, True]


def test_a_thread_that_waits_too_long_for_another_threads_write_reports_a_locked_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_at(tmp_path)
    monkeypatch.setattr(engine_module, "LOCK_WAIT_SECONDS", 0.1)
    with store._database.write(), pytest.raises(DatabaseUnreachable, match=r"database is locked; .* database\.url"):
        at_once([lambda: store.acquire_leader("scan", "a", timedelta(minutes=1))])
    assert store.acquire_leader("scan", "b", timedelta(minutes=1))
    store.close()
