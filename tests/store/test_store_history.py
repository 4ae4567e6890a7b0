# SPDX-License-Identifier: Apache-2.0
"""The past of plans: attempts by executor, and what completed plans cost and save."""

from datetime import timedelta

from store_plans import TRIPS, add, claimed, commit_of, figures_of, sql

from lake.plan import Step
from service.control.store import Store

DAY, DAY_MS = timedelta(days=1), 86_400_000


def test_an_attempt_lasts_from_its_claim_to_its_end_and_each_epoch_is_one(store: Store, database_url: str) -> None:

    plan = add(store, "dt=1")
    store.requeue(claimed(store, "host-1"), "no space left on device")
    sql(database_url, "UPDATE plan SET not_before_ms = 0")
    claim = claimed(store, "host-2")
    store.complete(claim, commit_of(plan), figures_of(plan), {})
    other = add(store, "dt=2")
    claimed(store, "host-1")
    history = store.attempts(DAY)
    found = [(one.plan_id, one.executor, one.epoch, one.outcome, one.ended_at is None) for one in history.attempts]
    assert sorted(found[:2]) == sorted(
        [(plan.plan_id, "host-1", 1, "requested", False), (plan.plan_id, "host-2", 2, "completed", False)]
    )
    assert found[2:] == [(other.plan_id, "host-1", 1, "inflight", True)]
    events = store.plan_events(plan.plan_id)
    first = next(one for one in history.attempts if one.epoch == 1 and one.plan_id == plan.plan_id)
    assert (first.began_at, first.ended_at) == (events[1].at, events[2].at)
    assert history.until - history.since == DAY


def test_attempts_of_another_day_are_left_out_unless_they_still_run(store: Store, database_url: str) -> None:

    plan = add(store, "dt=1")
    store.complete(claimed(store, "host-1"), commit_of(plan), figures_of(plan), {})
    running = add(store, "dt=2")
    claimed(store, "host-1")
    sql(database_url, f"UPDATE plan_event SET at_ms = at_ms - {2 * DAY_MS}")
    assert [one.plan_id for one in store.attempts(DAY).attempts] == [running.plan_id]
    assert len(store.attempts(3 * DAY).attempts) == 2


def test_an_attempt_that_is_taken_over_ends_when_the_next_one_begins(store: Store, database_url: str) -> None:

    add(store, "dt=1")
    claimed(store, "host-1")
    sql(database_url, "UPDATE plan SET lease_until_ms = 1, grace_ms = 0")
    assert store.take_over_expired("host-2") is not None
    one, two = store.attempts(DAY).attempts
    assert (one.executor, one.outcome, two.executor, two.ended_at) == ("host-1", "inflight", "host-2", None)
    assert one.ended_at == two.began_at


def test_savings_are_the_figures_of_completed_plans_of_one_table(store: Store, database_url: str) -> None:

    plan = add(store, "dt=1")
    claim = claimed(store, "host-1")
    store.record_step(claim, Step.REWRITE, milliseconds=2000, cpu_milliseconds=1500)
    store.complete(claim, commit_of(plan), figures_of(plan), {"rewrite": 2000})
    add(store, "dt=2")
    (saving,) = store.plan_savings(TRIPS.name, DAY)
    view = store.plan(plan.plan_id)
    assert (saving.plan_id, saving.at, saving.cpu_seconds) == (plan.plan_id, view.finalized_at, view.used_cpu_seconds)
    assert saving.files_removed == view.files_before - view.files_after
    assert store.plan_savings("other", DAY) == []
    sql(database_url, f"UPDATE plan SET finalized_at_ms = finalized_at_ms - {2 * DAY_MS} WHERE state = 'completed'")
    assert store.plan_savings(TRIPS.name, DAY) == []
