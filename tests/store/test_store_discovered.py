# SPDX-License-Identifier: Apache-2.0
"""Commits of live plans that a table shows under another name than that of their plans."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from store_plans import TRIPS, add, claimed, commit_of, figures_of, lease_runs_out, make_plan, sql

from lake.errors import LeaseLost
from lake.plan import Commit, LocatedFile, PartitionFigures, Plan, PlanState, ProposalDecision, Relocation, StagedWork
from lake.relocation.model import DiscoveryResult, FoundRelocations
from service.control.config.notify import EVENTS
from service.control.store import Store, StoreSettings
from service.control.store.plan_creation import QueueEntry

pytestmark = pytest.mark.paired("database_url")

RENAMED = replace(TRIPS, name="demo.rides", location="/lake/rides", identity="made again at 9")
NEW = LocatedFile(path="v1/dt=1/new.parquet", bytes=9, modified_ms=9_000)


def moved(plan: Plan, *, epoch: int | None, token: str = "v1") -> Commit:
    """The commit of a plan of one partition, as the documents of its table have it."""
    (partition,) = plan.partitions
    move = Relocation(
        partition=partition,
        token=token,
        previous_location=partition,
        location=f"{token}/{partition}",
        files=(NEW,),
        partition_created_at=7,
    )
    return replace(commit_of(plan, token), relocations=(move,), epoch=epoch)


def figures(plan: Plan, commit: Commit) -> list[PartitionFigures]:
    return figures_of(plan)


def found(store: Store, *commits: Commit) -> DiscoveryResult:
    """What is recorded when the sweep of the table by its new name finds these commits."""
    return store.add_discovered_relocations(RENAMED, [FoundRelocations(commit=one) for one in commits], figures)


def history(store: Store, plan: Plan) -> Sequence[tuple[Any, ...]]:
    events = store.plan_events(plan.plan_id)
    return [(event.from_state, event.to_state, event.epoch, event.actor) for event in events]


def test_the_plan_of_a_silent_executor_is_completed_under_the_new_name_of_its_table(
    store: Store, database_url: str
) -> None:
    plan = add(store, "dt=1")
    claim = claimed(store)
    store.record_staged(claim, StagedWork(token="v1", paths=("v1",)))
    lease_runs_out(database_url, plan.plan_id)
    commit = moved(plan, epoch=1)
    assert found(store, commit) == DiscoveryResult(commits=1)
    view = store.plan(plan.plan_id)
    assert (view.state, view.table, view.instant) == (PlanState.COMPLETED, RENAMED.name, "v1")
    assert (view.figures, view.files_before, view.files_after) == (tuple(figures_of(plan)), 2, 1)
    assert history(store, plan)[-1] == (PlanState.INFLIGHT, PlanState.COMPLETED, 1, "sweep")
    assert (store.locked_partitions(TRIPS.name), store.locked_partitions(RENAMED.name)) == ({}, {})
    assert (store.orphaned_stagings(TRIPS), store.orphaned_stagings(RENAMED)) == ([], [])
    assert store.awaiting_deletion(TRIPS) == []
    assert [due.version.path for due in store.awaiting_deletion(RENAMED)] == ["dt=1/0.parquet", "dt=1/1.parquet"]
    (record,) = store.relocated_partitions(RENAMED)
    assert (record.latest.token, record.table_identity) == ("v1", RENAMED.identity)
    (entry,) = store.audit_entries(table=RENAMED.name)
    assert (entry.actor, entry.action) == ("sweep", "moves found")
    assert "1 commits that were recorded under the name demo.trips" in entry.detail
    assert found(store, commit) == DiscoveryResult()
    assert (store.table_state(RENAMED.name).halted, store.take_over_expired("executor-2")) == (False, None)


def test_the_executor_of_such_a_plan_finds_out_that_it_lost_it(store: Store, database_url: str) -> None:
    """Also if it was only slow: its claim would else seem to have made the record."""
    plan = add(store, "dt=1")
    claim = claimed(store)
    lease_runs_out(database_url, plan.plan_id)
    commit = moved(plan, epoch=1)
    found(store, commit)
    before = sql(database_url, "SELECT * FROM plan"), sql(database_url, "SELECT * FROM superseded_version")
    for write in (
        lambda: store.complete(claim, commit, figures_of(plan), {}),
        lambda: store.heartbeat(claim),
        lambda: store.requeue(claim, "no answer"),
        lambda: store.cancel(claim, "too late", actor="ada"),
        lambda: store.record_staged(claim, StagedWork(token="v2")),
    ):
        with pytest.raises(LeaseLost):
            write()
    after = sql(database_url, "SELECT * FROM plan"), sql(database_url, "SELECT * FROM superseded_version")
    assert after == before


def test_the_plan_of_an_executor_that_renews_its_lease_is_left_to_it(store: Store) -> None:
    plan = add(store, "dt=1")
    claim, commit = claimed(store), moved(plan, epoch=1)
    assert found(store, commit) == DiscoveryResult(left_to_executors=("v1",))
    assert (store.plan(plan.plan_id).state, store.awaiting_deletion(RENAMED)) == (PlanState.INFLIGHT, [])
    store.complete(claim, commit, figures_of(plan), {})
    assert found(store, commit) == DiscoveryResult(commits=1)
    assert (store.plan(plan.plan_id).table, len(store.awaiting_deletion(RENAMED))) == (RENAMED.name, 2)


def test_the_commit_of_a_live_plan_is_left_to_the_plan_while_its_table_has_its_name(store: Store) -> None:
    plan = add(store, "dt=1")
    claim, commit = claimed(store), moved(plan, epoch=1)
    documents = [FoundRelocations(commit=commit)]
    left = DiscoveryResult(left_to_plans=("v1",))
    assert store.add_discovered_relocations(TRIPS, documents, figures) == left
    store.requeue(claim, "no answer")
    assert store.add_discovered_relocations(TRIPS, documents, figures) == left
    assert (store.plan(plan.plan_id).state, store.awaiting_deletion(TRIPS)) == (PlanState.REQUESTED, [])
    store.request_cancel(plan.plan_id, "ada")
    assert store.add_discovered_relocations(TRIPS, documents, figures) == DiscoveryResult()


def test_a_process_that_took_the_plan_over_and_wrote_no_file_can_t_commit_and_is_not_waited_for(
    store: Store, database_url: str
) -> None:
    plan = add(store, "dt=1")
    store.record_staged(claimed(store), StagedWork(token="v1"))
    lease_runs_out(database_url, plan.plan_id)
    claim = store.take_over_expired("executor-2")
    assert claim is not None
    assert found(store, moved(plan, epoch=1)) == DiscoveryResult(commits=1)
    assert history(store, plan)[-1] == (PlanState.INFLIGHT, PlanState.COMPLETED, 2, "sweep")
    for write in (
        lambda: store.complete(claim, moved(plan, epoch=1), figures_of(plan), {}),
        lambda: store.record_staged(claim, StagedWork(token="v2")),
    ):
        with pytest.raises(LeaseLost):
            write()


def test_a_later_attempt_may_still_commit_in_its_grace_and_is_waited_for(store: Store, database_url: str) -> None:
    plan = add(store, "dt=1")
    store.record_staged(claimed(store), StagedWork(token="v1"))
    sql(database_url, "UPDATE plan SET lease_until_ms = NULL, state = 'requested', not_before_ms = 0")
    claim = claimed(store, "executor-2")
    store.record_staged(claim, StagedWork(token="v2"))
    sql(database_url, "UPDATE plan SET lease_until_ms = lease_until_ms - 60001, grace_ms = 120000")
    commit = moved(plan, epoch=1)
    assert found(store, commit) == DiscoveryResult(left_to_executors=("v1",))
    sql(database_url, "UPDATE plan SET grace_ms = 0")
    assert found(store, commit) == DiscoveryResult(commits=1)
    assert [one.staged.token for one in store.orphaned_stagings(RENAMED)] == ["v2"]
    with pytest.raises(LeaseLost):
        store.heartbeat(claim)


def test_a_plan_that_waits_for_its_next_attempt_is_completed_without_it(store: Store) -> None:
    plan = add(store, "dt=1")
    store.requeue(claimed(store), "no answer")
    assert found(store, moved(plan, epoch=1)) == DiscoveryResult(commits=1)
    assert store.plan(plan.plan_id).state is PlanState.COMPLETED
    assert history(store, plan)[-2:] == [
        (PlanState.REQUESTED, PlanState.CANCELLED, 1, "sweep"),
        (PlanState.CANCELLED, PlanState.COMPLETED, 1, "sweep"),
    ]
    assert (store.locked_partitions(TRIPS.name), store.table_state(RENAMED.name).halted) == ({}, False)


def test_a_proposal_of_a_restored_database_whose_commit_is_found_was_approved(store: Store) -> None:
    plan = make_plan("dt=1")
    store.add_plan(plan, request_id=None, actor="scheduler", estimate={}, queued=QueueEntry(needs_approval=True))
    assert found(store, moved(plan, epoch=1)) == DiscoveryResult(commits=1)
    view = store.plan(plan.plan_id)
    assert (view.state, view.decision) == (PlanState.COMPLETED, ProposalDecision.APPROVED)
    assert "attempt 1 committed v1, above the newest attempt of this database (0)" in (
        store.table_state(RENAMED.name).halted_reason or ""
    )


@pytest.mark.parametrize("ended", [True, False], ids=["ended before", "live"])
def test_it_is_told_like_a_commit_that_is_found_after_its_plan_has_ended(database_url: str, ended: bool) -> None:
    store = Store(database_url, StoreSettings(notify_events=frozenset(EVENTS)))
    plan = add(store, "dt=1")
    claim = claimed(store)
    if ended:
        store.cancel(claim, "its table is gone", actor="ada")
        assert store.complete_unrecorded(moved(plan, epoch=1), figures_of)
    else:
        lease_runs_out(database_url, plan.plan_id)
        found(store, moved(plan, epoch=1))
    message = store.notifications()[0]
    reason = "the table holds its commit v1: state corrected"
    assert (message.event, message.body["plan"], message.body["reason"]) == ("plan.completed", plan.plan_id, reason)
    assert message.body["table"] == (TRIPS if ended else RENAMED).name
    assert message.body["figures"] == {
        "input_files": 2,
        "input_bytes": plan.bytes,
        "attempts": 1,
        "files_before": 2,
        "bytes_before": plan.bytes,
        "files_after": 1,
        "bytes_after": plan.bytes,
    }
    last = store.plan_events(plan.plan_id)[-1]
    assert (last.to_state, last.actor, last.reason) == (PlanState.COMPLETED, "sweep", reason)
    store.close()
