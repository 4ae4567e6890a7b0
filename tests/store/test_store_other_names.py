# SPDX-License-Identifier: Apache-2.0
"""One table under two names: what is locked under one name is locked under the other."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import update
from store_plans import add, claimed, commit_of, figures_of, make_plan, sql
from test_store_discovered import figures, found, moved
from test_store_races import at_once

from lake.model import CatalogRef, TableRef
from lake.plan import LockOwner, LockOwnerKind, PlanState
from lake.relocation.model import DiscoveryResult
from service.control.store import PartitionsLocked, Store
from service.control.store.database import db_now
from service.control.store.models import LivePartitionRow
from service.control.store.partition_locks import renew_locks

pytestmark = pytest.mark.paired("database_url")

OLD = TableRef(
    name="sales.orders",
    format="hive",
    location="/lake/orders",
    catalog=CatalogRef(kind="metastore", name="thrift://meta:9083", table="sales.orders"),
    identity="1700000000 /lake/orders",
)
NEW = replace(OLD, name="lake.sales.orders")
SWEEP = LockOwner(kind=LockOwnerKind.SWEEP, name="host/1")
OTHER_SWEEP = LockOwner(kind=LockOwnerKind.SWEEP, name="host/2")
CLEANER = LockOwner(kind=LockOwnerKind.CLEANER, name="host/3")
NOT_THE_SAME = {
    "created again": replace(NEW, identity="1700000009 /lake/orders"),
    "renamed by its owner": replace(NEW, catalog=replace(OLD.catalog, table="sales.archived")),
    "another format": replace(NEW, format="iceberg"),
    "found by its path": replace(NEW, catalog=None),
}


@pytest.fixture
def stores(database_url: str) -> Iterator[list[Store]]:
    made = [Store(database_url) for _ in range(4)]
    yield made
    for store in made:
        store.close()


def register(store: Store, *tables: TableRef) -> None:
    for table in tables:
        store.register_table(table, "compact")


def test_a_partition_with_a_live_plan_is_not_planned_under_another_name(store: Store) -> None:
    register(store, OLD, NEW)
    plan = add(store, "dt=1", table=OLD)
    with pytest.raises(PartitionsLocked) as refused:
        add(store, "dt=1", table=NEW)
    assert refused.value.locking_plans == {"dt=1": plan.plan_id}
    claim = claimed(store)
    with pytest.raises(PartitionsLocked):
        add(store, "dt=1", table=NEW)
    store.complete(claim, commit_of(plan), figures_of(plan), {})
    add(store, "dt=1", table=NEW)


@pytest.mark.parametrize("alongside", [False, True])
@pytest.mark.parametrize("owner", [SWEEP, CLEANER])
def test_neither_sweep_nor_cleaner_locks_a_planned_partition_under_another_name(
    store: Store, owner: LockOwner, alongside: bool
) -> None:
    register(store, OLD, NEW)
    add(store, "dt=1", table=OLD)
    assert store.lock_partitions(NEW, ["dt=1", "dt=2"], owner, alongside_plans=alongside) == {"dt=2"}


def test_a_partition_that_a_sweep_has_locked_is_free_under_another_name_once_the_lock_has_ended(
    store: Store, database_url: str
) -> None:
    register(store, OLD, NEW)
    assert store.lock_partitions(OLD, ["dt=1"], SWEEP) == {"dt=1"}
    assert store.lock_partitions(NEW, ["dt=1"], OTHER_SWEEP) == set()
    with pytest.raises(PartitionsLocked) as refused:
        add(store, "dt=1", table=NEW)
    assert refused.value.lock_owners == {"dt=1": str(SWEEP)}
    sql(database_url, "UPDATE live_partition SET expires_at_ms = 1")
    assert store.lock_partitions(NEW, ["dt=1"], OTHER_SWEEP) == {"dt=1"}
    assert store.renew_partitions(OLD, ["dt=1"], SWEEP) == set()


def test_a_failed_plan_is_not_retried_while_its_partition_is_planned_under_another_name(store: Store) -> None:
    register(store, OLD, NEW)
    plan = add(store, "dt=1", table=OLD)
    store.fail(claimed(store), "Rejected: no")
    add(store, "dt=1", table=NEW)
    with pytest.raises(PartitionsLocked):
        store.retry(plan.plan_id, "ada")
    assert store.plan(plan.plan_id).state is PlanState.FAILED


@pytest.mark.parametrize("why", list(NOT_THE_SAME))
def test_another_table_is_not_held_up(store: Store, why: str) -> None:
    other = NOT_THE_SAME[why]
    register(store, OLD, other)
    add(store, "dt=1", table=OLD)
    assert store.other_name_in_use(other) is None
    assert store.lock_partitions(other, ["dt=1"], SWEEP) == {"dt=1"}
    store.release_partitions(SWEEP)
    add(store, "dt=1", table=other)


def test_a_new_name_that_was_not_scanned_yet_is_known_by_its_location(store: Store) -> None:
    unscanned = replace(NEW, identity=None)
    register(store, OLD, unscanned)
    plan = add(store, "dt=1", table=OLD)
    in_use = store.other_name_in_use(unscanned)
    assert in_use is not None
    assert (in_use.name, in_use.partition, in_use.plan_id) == (OLD.name, "dt=1", plan.plan_id)
    assert store.lock_partitions(unscanned, ["dt=1"], SWEEP) == set()
    assert store.other_name_in_use(replace(unscanned, location="/lake/elsewhere")) is None


def test_the_registered_identity_counts_for_a_table_without_one(store: Store) -> None:
    created_again = NOT_THE_SAME["created again"]
    register(store, OLD, created_again)
    add(store, "dt=1", table=OLD)
    assert store.other_name_in_use(replace(created_again, identity=None)) is None


def test_the_name_in_use_is_free_once_its_plan_has_ended(store: Store) -> None:
    register(store, OLD, NEW)
    plan = add(store, "dt=1", table=OLD)
    in_use = store.other_name_in_use(NEW)
    assert in_use is not None
    assert in_use.owner == f"plan {plan.plan_id}"
    assert store.other_name_in_use(OLD) is None
    claimed(store)
    store.request_cancel(plan.plan_id, "ada")
    assert store.other_name_in_use(NEW) is not None, "its executor has not ended yet"


def test_of_plans_and_locks_under_both_names_at_once_one_gets_the_partition(stores: list[Store]) -> None:
    register(stores[0], OLD, NEW)

    def plan(store: Store, table: TableRef, partition: str) -> bool:
        try:
            store.add_plan(make_plan(partition, table=table), request_id=None, actor="test", estimate={})
        except PartitionsLocked:
            return False
        return True

    def lock(store: Store, table: TableRef, owner: LockOwner, partition: str) -> bool:
        return bool(store.lock_partitions(table, [partition], owner))

    for number in range(15):
        name = f"dt={number}"
        calls = [
            partial(plan, stores[0], OLD, name),
            partial(plan, stores[1], NEW, name),
            partial(lock, stores[2], OLD, SWEEP, name),
            partial(lock, stores[3], NEW, OTHER_SWEEP, name),
        ]
        assert sum(at_once(calls)) == 1, name


@pytest.mark.crossed(2)
def test_a_lock_that_is_renewed_in_its_last_moment_is_in_force_under_the_other_name(
    stores: list[Store], database_url: str
) -> None:
    """The renewal was not committed yet, so the other name's process saw an expired lock: both had the partition."""
    first, second = stores[:2]
    register(first, OLD, NEW)
    first.lock_partitions(OLD, ["dt=1"], SWEEP)
    with first._database.write() as connection:
        last_moment = update(LivePartitionRow).values(expires_at_ms=db_now() + 300)
        connection.execute(last_moment)
    with ThreadPoolExecutor(1) as pool:
        with first._database.write() as connection:
            assert renew_locks(connection, OLD.name, ["dt=1"], SWEEP) == {"dt=1"}
            time.sleep(0.5)
            locked = pool.submit(second.lock_partitions, NEW, ["dt=1"], OTHER_SWEEP)
            time.sleep(0.5)
        assert locked.result() == set()
    assert first.renew_partitions(OLD, ["dt=1"], SWEEP) == {"dt=1"}


def test_records_stay_under_a_name_with_a_plan_that_waits_to_be_claimed(store: Store) -> None:
    """They were carried over, and then no sweep could process the partition, perhaps for days."""
    register(store, OLD, NEW)
    plan = add(store, "dt=1", table=OLD)
    claim = claimed(store)
    commit = moved(plan, epoch=claim.epoch)
    store.complete(claim, commit, figures(plan, commit), {})
    waiting = add(store, "dt=1", table=OLD)
    assert found(store, commit, table=NEW) == DiscoveryResult(left_to_executors=("v1",))
    assert [one.partition for one in store.relocated_partitions(OLD)] == ["dt=1"]
    assert store.lock_partitions(OLD, ["dt=1"], SWEEP, alongside_plans=True) == {"dt=1"}
    store.release_partitions(SWEEP)
    store.request_cancel(waiting.plan_id, "ada")
    assert found(store, commit, table=NEW) == DiscoveryResult(commits=1)


def test_records_stay_under_a_name_while_a_process_works_on_the_partition(store: Store, database_url: str) -> None:
    register(store, OLD, NEW)
    plan = add(store, "dt=1", table=OLD)
    claim = claimed(store)
    commit = moved(plan, epoch=claim.epoch)
    store.complete(claim, commit, figures(plan, commit), {})
    store.lock_partitions(OLD, ["dt=1"], SWEEP)
    assert found(store, commit, table=NEW) == DiscoveryResult(left_to_executors=("v1",))
    assert store.relocated_partitions(NEW) == []
    store.release_partitions(SWEEP)
    add(store, "dt=1", table=OLD)
    later = claimed(store)
    assert found(store, commit, table=NEW) == DiscoveryResult(left_to_executors=("v1",))
    sql(database_url, "UPDATE plan SET lease_until_ms = 0, grace_ms = 0 WHERE state = 'inflight'")
    assert found(store, commit, table=NEW) == DiscoveryResult(left_to_executors=("v1",)), "its executor may continue"
    store.fail(later, "Rejected: no")
    assert found(store, commit, table=NEW) == DiscoveryResult(commits=1)
    assert [one.partition for one in store.relocated_partitions(NEW)] == ["dt=1"]
    assert store.plan(plan.plan_id).table == NEW.name
    assert store.plan(later.plan.plan_id).table == OLD.name
