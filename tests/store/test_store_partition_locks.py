# SPDX-License-Identifier: Apache-2.0
"""Locks of the sweep and of the cleaner on partitions, also alongside a plan until its commit."""

import pytest
from relocated import completed
from store_plans import TRIPS, add, claimed, sql

from lake.plan import LockOwner, LockOwnerKind
from service.control.store import PartitionsLocked, Store

pytestmark = pytest.mark.paired("database_url")


SWEEP, NEXT = (LockOwner(kind=LockOwnerKind.SWEEP, name=name) for name in ("a round", "the next round"))


def lock(store: Store, owner: LockOwner = SWEEP) -> bool:
    return bool(store.lock_partitions(TRIPS, ["dt=1"], owner, alongside_plans=True))


def test_a_sweep_may_lock_a_partition_alongside_a_plan_but_not_from_its_commit_on(store: Store) -> None:
    add(store, "dt=1")
    assert not store.lock_partitions(TRIPS, ["dt=1"], SWEEP), "not without asking for that"
    assert [lock(store), lock(store), lock(store, NEXT)] == [True, True, False]
    claim = claimed(store)
    assert store.begin_commit(claim) == {"dt=1"}
    store.release_partitions(SWEEP)
    assert [store.begin_commit(claim), lock(store), store.begin_commit(claim)] == [frozenset(), False, frozenset()]
    store.requeue(claim, "a lost connection")
    assert lock(store)


@pytest.mark.parametrize("beside_a_plan", [True, False])
def test_a_sweep_whose_lock_expired_does_not_continue_although_no_other_owner_had_the_lock(
    store: Store, database_url: str, beside_a_plan: bool
) -> None:
    if beside_a_plan:
        add(store, "dt=1")
    else:
        completed(store)
    assert (lock(store), store.renew_partitions(TRIPS, ["dt=1", "dt=2"], SWEEP)) == (True, {"dt=1"})
    assert store.renew_partitions(TRIPS, ["dt=1"], NEXT) == frozenset()
    ends = "guest_until_ms" if beside_a_plan else "expires_at_ms"
    sql(database_url, f"UPDATE live_partition SET {ends} = {ends} - 120000")
    assert store.renew_partitions(TRIPS, ["dt=1"], SWEEP) == frozenset()
    assert lock(store, NEXT)
    store.release_partitions(NEXT)
    assert store.renew_partitions(TRIPS, ["dt=1"], SWEEP) == frozenset(), (
        "it was free, and another owner has locked it since"
    )


def test_a_plan_commits_if_a_sweep_has_not_renewed_its_lock_for_some_minutes(store: Store, database_url: str) -> None:
    add(store, "dt=1")
    claim = claimed(store)
    assert lock(store)
    sql(database_url, "UPDATE live_partition SET guest_until_ms = guest_until_ms - 120000")
    assert (store.begin_commit(claim), lock(store)) == (frozenset(), False), "and the round learns that it is over"


def test_a_sweep_keeps_its_lock_on_a_partition_when_the_plan_alongside_ends(store: Store) -> None:
    add(store, "dt=1")
    claim = claimed(store)
    assert lock(store)
    store.cancel(claim, "no need", actor="ada")
    with pytest.raises(PartitionsLocked, match=r"dt=1 by the sweep \(a round\)"):
        add(store, "dt=1")
    assert [lock(store, NEXT), lock(store)] == [False, True]
    store.release_partitions(SWEEP)
    add(store, "dt=1")


def test_the_cleaner_may_lock_a_partition_of_a_waiting_plan_and_delays_its_commit(store: Store) -> None:
    cleaner, later = (LockOwner(kind=LockOwnerKind.CLEANER, name=name) for name in ("a cleaner", "a later one"))
    plan = add(store, "dt=1")
    assert [lock(store, cleaner), lock(store)] == [True, False]
    claim = claimed(store)
    assert [lock(store, cleaner), lock(store), store.begin_commit(claim)] == [True, False, {"dt=1"}]
    store.release_partitions(cleaner)
    assert not lock(store, later), "an executor runs it now"
    assert [store.begin_commit(claim), lock(store, cleaner)] == [frozenset(), False]
    store.requeue(claim, "a lost connection")
    assert lock(store, cleaner)
    store.request_cancel(plan.plan_id, "ada")
    assert [lock(store, later), lock(store, cleaner)] == [False, True], "it goes on when the plan beside it ends"
    store.release_partitions(cleaner)
    assert lock(store, later)
