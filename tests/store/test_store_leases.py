# SPDX-License-Identifier: Apache-2.0
"""How long a holder keeps a plan, a partition and a role: by the database's clock, while it renews them."""

from dataclasses import replace
from datetime import timedelta

import pytest
import time_machine
from store_plans import TRIPS, add, backoff_passes, claimed, commit_of, figures_of, lease_runs_out, now_ms, sql

from lake.plan import LockOwner, LockOwnerKind, PlanState, RewriteProgress, StagedWork
from service.control.store import PartitionsLocked, Store
from service.control.store.views import ProcessFacts

pytestmark = pytest.mark.paired("database_url")


def test_leases_compare_with_the_databases_clock_and_never_the_hosts(store: Store, database_url: str) -> None:
    plan = add(store, "dt=1")
    claimed(store)
    with time_machine.travel(timedelta(days=400), tick=True):
        assert store.take_over_expired("executor-2") is None, "the host's clock ran away, the lease did not"
    with time_machine.travel(timedelta(days=-400), tick=True):
        lease_runs_out(database_url, plan.plan_id)
        assert store.take_over_expired("executor-2") is not None, "the host's clock is behind, the lease ran out"


def test_no_lease_role_or_lock_lasts_longer_after_the_databases_clock_was_set_back(
    store: Store, database_url: str
) -> None:
    late, partition = "28800000", ["dt=2"]
    add(store, "dt=1")
    claimed(store)
    waiting = add(store, "dt=3")
    sweep = LockOwner(kind=LockOwnerKind.SWEEP, name="sweep of one that was killed")
    assert store.lock_partitions(TRIPS, partition, sweep)
    assert store.acquire_leader("scan", "one that was killed", timedelta(seconds=20))
    dead = ProcessFacts(name="one that was killed", role="all", host="h", version="1", slots=1)
    store.register_process(dead, timedelta(seconds=20))
    for table, columns in {
        "plan": ("lease_until_ms", "heartbeat_at_ms", "not_before_ms", "created_at_ms"),
        "leader": ("expires_at_ms",),
        "process": ("seen_at_ms", "expires_at_ms"),
        "live_partition": ("expires_at_ms",),
    }.items():
        sql(database_url, f"UPDATE {table} SET {', '.join(f'{one} = {one} + {late}' for one in columns)}")
    store.register_process(replace(dead, name="its successor"), timedelta(seconds=20))

    def lasts(column: str, table: str, where: str = "1 = 1") -> float:
        [(until,)] = sql(database_url, f"SELECT {column} FROM {table} WHERE {where} AND {column} IS NOT NULL")
        return (until - now_ms(database_url)) / 1000

    assert 50 < lasts("lease_until_ms", "plan", "state = 'inflight'") <= 60
    assert lasts("not_before_ms", "plan", f"id = '{waiting.plan_id}'") <= 0
    sql(database_url, "UPDATE plan SET not_before_ms = not_before_ms + 5000 WHERE state = 'requested'")
    store.register_process(replace(dead, name="its successor"), timedelta(seconds=20))
    assert lasts("not_before_ms", "plan", f"id = '{waiting.plan_id}'") > 0, "a wait is corrected once"
    assert 20 < lasts("expires_at_ms", "leader") <= 30
    assert 10 < lasts("expires_at_ms", "process", "name = 'one that was killed'") <= 20
    assert 110 < lasts("expires_at_ms", "live_partition") <= 600
    assert not store.lock_partitions(TRIPS, partition, LockOwner(kind=LockOwnerKind.SWEEP, name="another"))
    assert store.renew_partitions(TRIPS, partition, sweep), "an owner that lives has its lock"


def test_the_first_heartbeat_after_the_clock_was_set_back_shortens_the_lease(store: Store, database_url: str) -> None:
    add(store, "dt=1")
    claim = claimed(store)
    store.heartbeat(claim, at_least=timedelta(minutes=10))
    sql(
        database_url,
        "UPDATE plan SET lease_until_ms = lease_until_ms + 28800000, heartbeat_at_ms = heartbeat_at_ms + 28800000",
    )
    store.heartbeat(claim)
    [(until,)] = sql(database_url, "SELECT lease_until_ms FROM plan")
    assert 590 < (until - now_ms(database_url)) / 1000 <= 600


def test_a_role_that_another_process_holds_for_longer_is_not_shortened(store: Store, database_url: str) -> None:
    facts = ProcessFacts(name="patient", role="all", host="h", version="1", slots=1)
    store.register_process(facts, timedelta(minutes=5))
    assert store.acquire_leader("scan", "patient", timedelta(minutes=5))
    store.register_process(replace(facts, name="hasty"), timedelta(seconds=20))
    [(until,)] = sql(database_url, "SELECT expires_at_ms FROM leader")
    assert (until - now_ms(database_url)) / 1000 > 290


def test_the_store_returns_the_time_at_which_the_next_plan_is_due(store: Store, database_url: str) -> None:
    def due_at(column: str) -> bool:
        """Whether the next plan is due at the highest of ``column``, whatever time passes between two statements."""
        ((moment,),) = sql(database_url, f"SELECT max({column}) FROM plan")
        before = now_ms(database_url)
        due = store.time_until_due()
        assert due
        return before <= moment - round(due / timedelta(milliseconds=1)) <= now_ms(database_url)

    assert store.time_until_due() is None
    plan = add(store, "dt=1")
    assert store.time_until_due() == timedelta()
    store.pause(None, "ada")
    assert store.time_until_due() is None
    store.resume(None, "ada")
    claim = claimed(store)
    add(store, "dt=2")
    [claimed_for] = sql(database_url, "SELECT lease_until_ms - heartbeat_at_ms FROM plan WHERE state = 'inflight'")
    assert round(claimed_for[0] / 1000) == 60
    assert due_at("lease_until_ms"), "the table is at its limit until the lease runs out"
    lease_runs_out(database_url, plan.plan_id)
    assert store.time_until_due() == timedelta()
    store.heartbeat(claim)
    store.pause(TRIPS.name, "ada")
    assert store.time_until_due() is None
    store.resume(TRIPS.name, "ada")
    store.requeue(claim, "later")
    assert store.time_until_due() == timedelta(), "the other plan of the table is free to go"
    store.complete(claim := claimed(store), commit_of(claim.plan), figures_of(claim.plan), {})
    assert due_at("not_before_ms"), "the backoff of the first"
    backoff_passes(database_url)
    assert store.time_until_due() == timedelta()
    store.complete(claim := claimed(store), commit_of(claim.plan), figures_of(claim.plan), {})
    assert store.time_until_due() is None


def test_a_heartbeat_keeps_the_lease_and_stores_the_progress(store: Store, database_url: str) -> None:
    plan = add(store, "dt=1")
    claim = claimed(store)
    lease_runs_out(database_url, plan.plan_id)
    assert store.heartbeat(claim, RewriteProgress(bytes_done=5, bytes_total=10, rows_done=3)) is False
    assert store.take_over_expired("executor-2") is None
    view = store.plan(plan.plan_id)
    assert (view.progress_bytes_done, view.progress_bytes_total, view.progress_rows_done) == (5, 10, 3)


def test_the_spark_ui_of_the_attempt_is_known_while_it_runs(store: Store) -> None:
    plan = add(store, "dt=1")
    claim = claimed(store)
    assert store.plan(plan.plan_id).spark_ui is None
    store.heartbeat(claim, RewriteProgress(bytes_done=0, bytes_total=10, spark_ui="http://driver:4040"))
    assert store.plan(plan.plan_id).spark_ui == "http://driver:4040"
    store.requeue(claim, "the disk is full")
    assert store.plan(plan.plan_id).spark_ui is None


def test_a_take_over_keeps_the_plan_inflight_with_its_instants_and_a_new_epoch(store: Store, database_url: str) -> None:
    plan = add(store, "dt=1")
    first = claimed(store)
    assert store.take_over_expired("executor-2") is None, "only after the lease ran out"
    store.record_staged(first, StagedWork(token="i1", paths=("dt=1/_i1/",)))
    lease_runs_out(database_url, plan.plan_id)
    second = store.take_over_expired("executor-2")
    assert second is not None
    assert (second.plan, second.epoch, second.executor) == (plan, 2, "executor-2")
    assert second.staged == (StagedWork(token="i1", paths=("dt=1/_i1/",)),)
    assert store.plan_state(plan.plan_id) is PlanState.INFLIGHT
    assert store.locked_partitions(TRIPS.name) == {"dt=1": plan.plan_id}
    assert store.take_over_expired("executor-3") is None
    store.record_staged(second, StagedWork(token="i2"))
    store.complete(second, commit_of(plan, "i2"), figures_of(plan), {})
    assert store.plan(plan.plan_id).instants == ("i1", "i2")
    assert [(e.from_state, e.to_state, e.epoch, e.actor) for e in store.plan_events(plan.plan_id)] == [
        (None, PlanState.REQUESTED, 0, "scheduler"),
        (PlanState.REQUESTED, PlanState.INFLIGHT, 1, "executor-1"),
        (PlanState.INFLIGHT, PlanState.INFLIGHT, 2, "executor-2"),
        (PlanState.INFLIGHT, PlanState.COMPLETED, 2, "executor-2"),
    ]


CLEANER = LockOwner(kind=LockOwnerKind.CLEANER, name="one round")


def test_a_keeper_and_a_plan_exclude_each_other_and_an_end_of_either_frees_the_partition(store: Store) -> None:
    plan = add(store, "dt=1")
    assert store.lock_partitions(TRIPS, ["dt=1", "dt=2", "dt=3"], CLEANER) == {"dt=2", "dt=3"}
    assert store.lock_partitions(TRIPS, ["dt=2"], LockOwner(kind=LockOwnerKind.SWEEP, name="a sweep")) == frozenset()
    assert store.renew_partitions(TRIPS, ["dt=1", "dt=2"], CLEANER) == {"dt=2"}, "it goes on"
    with pytest.raises(PartitionsLocked, match=r"dt=2 by the cleaner \(one round\)") as refused:
        add(store, "dt=1", "dt=2")
    assert (refused.value.locking_plans, list(refused.value.lock_owners)) == ({"dt=1": plan.plan_id}, ["dt=2"])
    assert store.locked_partitions(TRIPS.name) == {"dt=1": plan.plan_id}
    store.cancel(claimed(store), "no need", actor="ada")
    assert store.lock_partitions(TRIPS, ["dt=1"], CLEANER) == {"dt=1"}
    store.release_partitions(CLEANER)
    add(store, "dt=1", "dt=2", "dt=3")
    assert store.lock_partitions(TRIPS, ["dt=1"], CLEANER) == frozenset()


def test_locks_of_a_process_that_died_are_free_after_some_minutes(store: Store, database_url: str) -> None:
    assert store.lock_partitions(TRIPS, ["dt=1", "dt=2"], CLEANER) == {"dt=1", "dt=2"}
    sql(database_url, "UPDATE live_partition SET expires_at_ms = expires_at_ms - 600000")
    other = LockOwner(kind=LockOwnerKind.CLEANER, name="the next round")
    assert store.lock_partitions(TRIPS, ["dt=2"], other) == {"dt=2"}
    add(store, "dt=1")
    assert store.renew_partitions(TRIPS, ["dt=1", "dt=2"], CLEANER) == frozenset(), (
        "a sleeper learns that it holds nothing"
    )


def test_a_lease_lasts_as_long_as_a_commit_may_take_and_no_heartbeat_shortens_it(
    store: Store, database_url: str
) -> None:
    plan = add(store, "dt=1")
    claim = claimed(store)
    store.heartbeat(claim, at_least=timedelta(minutes=20))
    store.heartbeat(claim)
    left = "SELECT lease_until_ms - heartbeat_at_ms AS lease, grace_ms FROM plan"
    (found,) = sql(database_url, left)
    assert (found.lease > 19 * 60_000, found.grace_ms) == (True, 20 * 60_000)
    sql(database_url, "UPDATE plan SET lease_until_ms = lease_until_ms - 21 * 60000")
    assert store.take_over_expired("rescuer") is None, "its commit may be on its way to a catalog"
    sql(database_url, "UPDATE plan SET lease_until_ms = lease_until_ms - 20 * 60000")
    taken = store.take_over_expired("rescuer")
    assert taken is not None
    assert (taken.plan.plan_id, sql(database_url, "SELECT grace_ms FROM plan")) == (plan.plan_id, [(0,)])


def test_a_role_has_one_holder_until_it_expires_or_is_given_up(store: Store, database_url: str) -> None:
    minute = timedelta(minutes=1)
    assert store.acquire_leader("scan", "a", minute)
    assert store.acquire_leader("scan", "a", minute), "renewed"
    assert not store.acquire_leader("scan", "b", minute)
    assert store.acquire_leader("clean", "b", minute)
    with time_machine.travel(timedelta(days=1), tick=True):
        assert not store.acquire_leader("scan", "b", minute), "the host's clock elects no leader"
    assert [(leader.role, leader.holder, leader.live) for leader in store.leaders()] == [
        ("clean", "b", True),
        ("scan", "a", True),
    ]
    sql(database_url, "UPDATE leader SET expires_at_ms = expires_at_ms - 3600000 WHERE role = 'scan'")
    assert [leader.live for leader in store.leaders()] == [True, False]
    assert store.acquire_leader("scan", "b", minute)
    assert not store.acquire_leader("scan", "a", minute)
    store.release_leader("scan", "a")
    assert not store.acquire_leader("scan", "a", minute), "only the holder gives a role up"
    store.release_leader("scan", "b")
    assert store.acquire_leader("scan", "a", minute)
