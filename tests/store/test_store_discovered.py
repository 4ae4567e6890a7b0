# SPDX-License-Identifier: Apache-2.0
"""Commits of live plans that a table shows under another name than that of their plans."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection
from store_plans import TRIPS, add, claimed, commit_of, figures_of, lease_runs_out, make_plan, sql
from toys.bench import Background
from waiting import wait_for

from lake.errors import LeaseLost
from lake.model import TableRef
from lake.plan import (
    UNDONE,
    Commit,
    LocatedFile,
    PartitionFigures,
    Plan,
    PlanState,
    ProposalDecision,
    Relocation,
    StagedWork,
)
from lake.relocation.model import DiscoveryResult, FoundRelocations
from service.control.config.notify import EVENTS
from service.control.store import Store, StoreSettings
from service.control.store.claims import Claims
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


def found(store: Store, *commits: Commit, table: TableRef = RENAMED) -> DiscoveryResult:
    """What is recorded when the sweep of the table, by its new name, finds these commits."""
    return store.add_discovered_relocations(table, [FoundRelocations(commit=one) for one in commits], figures)


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


def test_the_executor_of_a_plan_with_a_discovered_commit_loses_its_lease(store: Store, database_url: str) -> None:
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


def test_the_commit_of_an_inflight_plan_is_left_to_the_plan_while_its_table_has_its_name(
    store: Store, database_url: str
) -> None:
    plan = add(store, "dt=1")
    claim, commit = claimed(store), moved(plan, epoch=1)
    left = DiscoveryResult(left_to_plans=("v1",))
    assert found(store, commit, table=TRIPS) == left
    lease_runs_out(database_url, plan.plan_id)
    assert found(store, commit, table=TRIPS) == left
    assert (store.plan(plan.plan_id).state, store.awaiting_deletion(TRIPS)) == (PlanState.INFLIGHT, [])
    store.cancel(claim, "too late", actor="ada")
    assert found(store, commit, table=TRIPS) == DiscoveryResult()


@pytest.mark.parametrize("claims", [0, 1])
def test_a_requested_plan_is_completed_when_its_commit_is_found(store: Store, database_url: str, claims: int) -> None:
    """It may not be claimed for days, as in a paused table. A restored database does not know of the attempt."""
    plan = add(store, "dt=1")
    if claims:
        claim = claimed(store)
        store.record_staged(claim, StagedWork(token="v1"))
        store.requeue(claim, "no answer")
    store.pause(TRIPS.name, "ada")
    commit = moved(plan, epoch=1)
    assert found(store, commit, table=TRIPS) == DiscoveryResult(commits=1)
    view = store.plan(plan.plan_id)
    assert (view.state, view.instant, view.figures) == (PlanState.COMPLETED, "v1", tuple(figures_of(plan)))
    assert [due.version.path for due in store.awaiting_deletion(TRIPS)] == ["dt=1/0.parquet", "dt=1/1.parquet"]
    (record,) = store.relocated_partitions(TRIPS)
    assert (record.latest.token, store.locked_partitions(TRIPS.name)) == ("v1", {})
    assert (store.table_state(TRIPS.name).halted, store.orphaned_stagings(TRIPS)) == (False, [])
    assert found(store, commit, table=TRIPS) == DiscoveryResult()
    store.resume(TRIPS.name, "ada")
    sql(database_url, "UPDATE plan SET not_before_ms = 0")
    assert store.claim("executor-2") is None


def test_an_attempt_after_the_next_one_of_a_requested_plan_halts_its_table(store: Store) -> None:
    plan = add(store, "dt=1")
    assert found(store, moved(plan, epoch=2), table=TRIPS) == DiscoveryResult(commits=1)
    assert store.plan(plan.plan_id).state is PlanState.COMPLETED
    assert "attempt 2 committed v1" in (store.table_state(TRIPS.name).halted_reason or "")


@pytest.mark.parametrize("table", [TRIPS, RENAMED], ids=["same name", "renamed"])
@pytest.mark.parametrize("how", ["declined", "cancelled", "out of date"])
def test_a_proposal_that_ended_in_a_restored_database_is_completed_when_its_commit_is_found(
    store: Store, how: str, table: TableRef
) -> None:
    """It was approved after the backup, and had run. Its commit was passed over at every search."""
    plan = make_plan("dt=1")
    store.add_plan(plan, request_id=None, actor="scheduler", estimate={}, queued=QueueEntry(needs_approval=True))
    if how == "declined":
        store.decline(plan.plan_id, "ada")
    elif how == "cancelled":
        store.request_cancel(plan.plan_id, "ada")
    else:
        store.withdraw_proposals({plan.plan_id: "its files changed"}, actor="scheduler")
    other = add(store, "dt=1", table=TRIPS)
    commit = moved(plan, epoch=1)
    assert found(store, commit, table=table) == DiscoveryResult(commits=1)
    view = store.plan(plan.plan_id)
    assert (view.state, view.table, view.instant) == (PlanState.COMPLETED, table.name, "v1")
    assert (view.decision, view.decided_by) == (ProposalDecision.APPROVED, "sweep")
    assert len(store.awaiting_deletion(table)) == 2
    (record,) = store.relocated_partitions(table)
    assert record.latest.token == "v1"
    assert store.locked_partitions(TRIPS.name) == {"dt=1": other.plan_id}
    assert "attempt 1 committed v1, above the newest attempt of this database (0)" in (
        store.table_state(table.name).halted_reason or ""
    )
    store.resume(table.name, "ada")
    assert found(store, commit, table=table) == DiscoveryResult()
    assert not store.table_state(table.name).halted


@pytest.mark.parametrize("known", [True, False], ids=["staging recorded", "staging not recorded"])
def test_a_second_commit_of_a_completed_plan_is_recorded_if_the_database_has_no_staging_of_it(
    store: Store, database_url: str, known: bool
) -> None:
    """Else ``applied_commits`` finds it, which also sees whether a program undid it."""
    plan = add(store, "dt=1")
    store.record_staged(claimed(store), StagedWork(token="v1"))
    sql(database_url, "UPDATE plan SET lease_until_ms = NULL, state = 'requested', not_before_ms = 0")
    claim = claimed(store, "executor-2")
    if known:
        store.record_staged(claim, StagedWork(token="v2"))
    store.complete(claim, moved(plan, epoch=1), figures_of(plan), {})
    later = moved(plan, epoch=2, token="v2")
    assert found(store, later, table=TRIPS) == DiscoveryResult(commits=int(not known))
    (record,) = store.relocated_partitions(TRIPS)
    assert record.latest.token == ("v1" if known else "v2")
    assert not store.table_state(TRIPS.name).halted
    found(store, moved(plan, epoch=3, token="v3"), table=TRIPS)
    assert "attempt 3 committed v3, above" in (store.table_state(TRIPS.name).halted_reason or "")
    assert store.plan(plan.plan_id).instant == "v1"


def test_a_claim_and_a_search_that_finds_the_commit_of_its_plan_never_deadlock(
    store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL ended one of the two after a second: each had locked a row that the other one needed."""
    before, waiting = add(store, "dt=1"), add(store, "dt=2", table=RENAMED)
    store.halt_partition(TRIPS, "dt=9", "its halt is copied to the new name")
    sql(database_url, "UPDATE plan SET not_before_ms = not_before_ms + 3600000 WHERE id = :id", id=before.plan_id)
    real, searches = Claims._next_startable, list[Background]()

    def search() -> DiscoveryResult:
        return found(store, moved(waiting, epoch=1, token="v2"), moved(before, epoch=1))

    def next_startable(self: Claims, connection: Connection, plan_id: str | None = None) -> Any:
        if plan_id is not None:  # the claim has locked the row of the table
            searches.append(Background(search))
            wait_for(lambda: is_waiting(database_url), "the search waits for the claim")
        return real(self, connection, plan_id)

    monkeypatch.setattr(Claims, "_next_startable", next_startable)
    claim = store.claim("executor-1")
    (only,) = searches
    assert only.join() == DiscoveryResult(commits=1, left_to_plans=("v2",))
    assert claim is not None
    assert (claim.plan.plan_id, store.plan(before.plan_id).state) == (waiting.plan_id, PlanState.COMPLETED)


def is_waiting(url: str) -> bool:
    """Whether a transaction waits for another one's lock; on SQLite all do that wait to begin to write."""
    if url.startswith("sqlite"):
        return True
    (row,) = sql(
        url, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    return bool(row[0])


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
def test_a_discovered_commit_is_notified_alike_before_and_after_its_plan_has_ended(
    database_url: str, ended: bool
) -> None:
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


def test_a_late_copy_that_is_recorded_under_both_names_does_not_hinder_the_transfer_of_records(store: Store) -> None:
    """A round of the sweep that had begun under the former name recorded the copy after the transfer to the new one."""
    plan = add(store, "dt=1")
    store.complete(claimed(store), moved(plan, epoch=1), figures_of(plan), {})
    assert found(store, moved(plan, epoch=1)) == DiscoveryResult(commits=1)
    late, target = LocatedFile(path="dt=1/late.parquet", bytes=1, modified_ms=1_000), "v1/dt=1/carried.parquet"
    store.begin_late_copies(RENAMED, "dt=1", [(late, target)], {late: 1_500})
    (record,) = store.relocated_partitions(RENAMED)
    store.end_late_copies(RENAMED, [(record.late_copies[0], record.previous_locations[0])])
    store.begin_late_copies(TRIPS, "dt=1", [(late, "v1/dt=1/carried-again.parquet")], {late: 1_500})
    assert found(store, moved(plan, epoch=1), table=TRIPS) == DiscoveryResult(commits=1)
    (record,) = store.relocated_partitions(TRIPS)
    assert [(one.source, one.target, one.is_done) for one in record.late_copies] == [(late, target, True)]


@pytest.mark.parametrize("tokens", ["v1 v2 v3", "v1 v3 v2", "v2 v3 v1"])
def test_a_discovered_commit_is_recorded_before_later_ones_that_are_recorded_under_another_name(
    store: Store, database_url: str, tokens: str
) -> None:
    """The last of ``tokens`` belongs to another lakefold, or to a plan that was pruned."""
    *recorded, unknown = tokens.split()
    commits = dict[str, Commit]()
    for token in recorded:
        plan = add(store, "dt=1")
        commits[token] = moved(plan, epoch=1, token=token)
        store.complete(claimed(store), commits[token], figures_of(plan), {})
    store.register_table(RENAMED, "compact")
    commits[unknown] = moved(make_plan("dt=1", table=RENAMED), epoch=1, token=unknown)
    found(store, *(commit for _, commit in sorted(commits.items())))
    rows = sql(database_url, "SELECT token FROM place_move WHERE table_name = 'demo.rides' ORDER BY id")
    assert [row.token for row in rows if not row.token.startswith(UNDONE)] == ["v1", "v2", "v3"]
    (record,) = store.relocated_partitions(RENAMED)
    assert record.latest.token == "v3"


def test_files_that_two_discovered_commits_replaced_wait_for_their_deletion_under_the_last_one(store: Store) -> None:
    store.register_table(RENAMED, "compact")
    plans = [make_plan("dt=1", table=RENAMED), make_plan("dt=2", table=RENAMED)]
    commits = [moved(plan, epoch=1, token=token) for plan, token in zip(plans, ("v1", "v2"), strict=True)]
    first, last = (
        replace(commit, superseded=tuple(replace(one, path=f"dt=1/{number}") for number, one in enumerate(files)))
        for commit in commits
        if (files := commit.superseded)
    )
    found(store, first, last)
    waiting = [(due.plan_id, due.version.path) for due in store.awaiting_deletion(RENAMED)]
    assert waiting == [(last.plan_id, one.path) for one in last.superseded]
    assert len(waiting) == len(first.superseded) > 0
