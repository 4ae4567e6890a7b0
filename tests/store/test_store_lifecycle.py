# SPDX-License-Identifier: Apache-2.0
"""A plan's life in the database, on SQLite and PostgreSQL."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text
from store_plans import (
    MIB,
    TRIPS,
    add,
    backoff_passes,
    claimed,
    commit_of,
    figures_of,
    lease_runs_out,
    make_plan,
    sql,
)

from lake.errors import LeaseLost
from lake.model import TableRef
from lake.plan import Claim, PlanState, RewriteProgress, SkippedGroup, StagedWork, Step
from service.control.store import AmbiguousId, NotFound, PartitionsLocked, Store, StoreSettings, WrongState
from service.control.store.plan_creation import QueueEntry

pytestmark = pytest.mark.paired("database_url")
OTHER = TableRef(name="demo.other", format="hudi", location="/lake/other")


def stale_writes(store: Store, claim: Claim) -> dict[str, object]:
    """Every write of an executor, as calls."""
    return {
        "heartbeat": lambda: store.heartbeat(claim, RewriteProgress(bytes_done=1, bytes_total=2)),
        "step": lambda: store.record_step(claim, Step.REWRITE, milliseconds=5),
        "stage": lambda: store.record_staged(claim, StagedWork(token="x")),
        "note": lambda: store.add_note(claim, "late"),
        "leave_out": lambda: store.record_skipped_groups(
            claim, [SkippedGroup(group=0, reason="gone", quarantine=("p",))]
        ),
        "complete": lambda: store.complete(claim, commit_of(claim.plan, "late"), figures_of(claim.plan), {}),
        "requeue": lambda: store.requeue(claim, "late"),
        "fail": lambda: store.fail(claim, "late", halt=True),
        "cancel": lambda: store.cancel(claim, "late", actor="late"),
    }


def everything(url: str) -> list[object]:
    """All rows that an executor's write could touch."""
    tables = ("plan", "plan_group", "plan_event", "live_partition", "superseded_version", "table_state")
    return [sorted(map(repr, sql(url, f"SELECT * FROM {table}"))) for table in tables]


def test_a_claim_gives_back_the_plan_exactly_as_it_was_stored(store: Store) -> None:
    plan = add(store, "dt=1", "dt=2", "")
    claim = claimed(store)
    assert claim.plan == plan
    assert (claim.epoch, claim.attempt, claim.executor, claim.staged) == (1, 1, "executor-1", ())
    assert store.plan_state(plan.plan_id) is PlanState.INFLIGHT
    assert store.claim("executor-2") is None


def test_the_oldest_due_plan_is_claimed_first_and_each_table_has_its_limit(database_url: str) -> None:
    store = Store(database_url, StoreSettings(max_inflight_per_table=2))
    first, second, third = add(store, "dt=1"), add(store, "dt=2"), add(store, "dt=3")
    other = add(store, "dt=1", table=OTHER)
    order = [claimed(store).plan.plan_id for _ in range(3)]
    assert order == [first.plan_id, second.plan_id, other.plan_id]
    assert store.claim("e") is None
    assert store.plan_state(third.plan_id) is PlanState.REQUESTED
    store.close()


def test_a_head_start_outranks_age_and_is_kept_by_a_retry(store: Store) -> None:
    plans = {hours: make_plan("dt=1", table=replace(TRIPS, name=f"demo.{hours}")) for hours in (-5, 0, 30, 3)}
    for hours, plan in plans.items():
        store.add_plan(
            plan, request_id=None, actor="test", estimate={}, queued=QueueEntry(priority_offset=timedelta(hours=hours))
        )
        store.register_table(plan.table, "compact")
    claims = [claimed(store) for _ in plans]
    assert [claim.plan.plan_id for claim in claims] == [plans[hours].plan_id for hours in (30, 3, 0, -5)]
    for hours in (-5, 30):
        store.fail(next(claim for claim in claims if claim.plan == plans[hours]), "no")
        store.retry(plans[hours].plan_id, "ada")
    assert [claimed(store).plan.plan_id for _ in range(2)] == [plans[30].plan_id, plans[-5].plan_id]


def test_paused_and_halted_tables_and_a_paused_service_are_not_claimed(store: Store) -> None:
    plan = add(store, "dt=1")
    store.pause(TRIPS.name, "ada")
    assert store.claim("e") is None
    store.resume(TRIPS.name, "ada")
    store.pause(None, "ada")
    assert store.service_pause()
    assert store.claim("e") is None
    store.resume(None, "ada")
    assert not store.service_pause()
    claim = claimed(store)
    store.fail(claim, "rows differ: 10 in, 9 out", halt=True)
    later = add(store, "dt=1")
    assert store.claim("e") is None
    state = store.table_state(TRIPS.name)
    assert state.halted
    assert state.halted_reason == f"plan {plan.plan_id}: rows differ: 10 in, 9 out"
    store.resume(None, "ada")
    assert store.claim("e") is None, "resuming the service does not un-halt a table"
    store.resume(TRIPS.name, "ada")
    assert claimed(store).plan.plan_id == later.plan_id


def test_a_stale_epoch_touches_no_row(store: Store, database_url: str) -> None:
    add(store, "dt=1")
    stale = claimed(store)
    lease_runs_out(database_url, stale.plan.plan_id)
    fresh = store.take_over_expired("executor-2")
    assert fresh is not None
    assert (fresh.epoch, fresh.attempt) == (2, 1)
    before = everything(database_url)
    for name, write in stale_writes(store, stale).items():
        with pytest.raises(LeaseLost):
            write()  # type: ignore[operator]
        assert everything(database_url) == before, name
    assert store.heartbeat(fresh) is False


def test_an_executor_with_the_right_epoch_but_another_name_touches_no_row(store: Store, database_url: str) -> None:
    add(store, "dt=1")
    claim = replace(claimed(store), executor="impostor")
    before = everything(database_url)
    for write in stale_writes(store, claim).values():
        with pytest.raises(LeaseLost):
            write()  # type: ignore[operator]
    assert everything(database_url) == before


@pytest.mark.parametrize(("epoch", "halts"), [(None, False), (1, False), (2, False), (3, True)])
def test_a_commit_of_an_attempt_that_the_database_has_no_memory_of_is_recorded_and_halts_its_table(
    store: Store, database_url: str, epoch: int | None, halts: bool
) -> None:
    plan = add(store, "dt=1")
    lease_runs_out(database_url, claimed(store).plan.plan_id)
    claim = store.take_over_expired("executor-2")
    assert claim is not None
    store.complete(claim, replace(commit_of(plan, "7"), epoch=epoch), figures_of(plan), {})
    assert (store.plan(plan.plan_id).state, len(store.awaiting_deletion(TRIPS))) == (PlanState.COMPLETED, 2)
    reason = (
        f"plan {plan.plan_id}: attempt 3 committed 7, above the newest attempt of this database (2): the database was "
        "restored from an earlier state, or another lakefold runs on a copy; find that lakefold and stop it, then "
        "lakefold resume demo.trips"
    )
    assert store.table_state(TRIPS.name).halted_reason == (reason if halts else None)


@pytest.mark.parametrize(("epoch", "halts"), [(None, False), (1, False), (2, True)])
def test_so_does_one_that_is_found_after_its_plan_has_ended(store: Store, epoch: int | None, halts: bool) -> None:
    plan = add(store, "dt=1")
    store.fail(claimed(store), "no space left")
    assert store.complete_unrecorded(replace(commit_of(plan), epoch=epoch), figures_of)
    assert store.plan(plan.plan_id).state is PlanState.COMPLETED
    assert store.table_state(TRIPS.name).halted is halts


def test_completing_records_figures_and_superseded_versions_and_frees_the_partitions(store: Store) -> None:
    plan = add(store, "dt=1", "dt=2")
    claim = claimed(store)
    store.record_staged(claim, StagedWork(token="i1"))
    store.record_step(claim, Step.PREPARE, milliseconds=7)
    store.record_step(claim, Step.REWRITE, milliseconds=30)
    assert store.locked_partitions(TRIPS.name) == {"dt=1": plan.plan_id, "dt=2": plan.plan_id}
    commit = commit_of(plan, "i1")
    store.complete(claim, commit, figures_of(plan), {"commit": 11})
    view = store.plan(plan.plan_id)
    assert (view.state, view.instant, view.instants) == (PlanState.COMPLETED, "i1", ("i1",))
    assert view.milliseconds == {"prepare": 7, "rewrite": 30, "commit": 11}
    assert view.figures == tuple(figures_of(plan))
    assert (view.files_before, view.files_after, view.bytes_before) == (4, 2, 32 * MIB)
    assert view.lease_until is None
    assert view.finalized_at is not None
    assert store.locked_partitions(TRIPS.name) == {}
    assert [due.version for due in store.awaiting_deletion(TRIPS)] == list(commit.superseded)


def test_completing_twice_with_the_same_commit_changes_nothing(store: Store, database_url: str) -> None:
    plan = add(store, "dt=1")
    claim = claimed(store)
    store.complete(claim, commit_of(plan), figures_of(plan), {"commit": 1})
    before = everything(database_url)
    store.complete(claim, commit_of(plan), figures_of(plan), {"commit": 2})
    assert everything(database_url) == before
    with pytest.raises(LeaseLost):
        store.complete(claim, commit_of(plan, "another"), figures_of(plan), {})
    assert everything(database_url) == before


def test_completing_is_all_or_nothing(store: Store, database_url: str) -> None:
    plan = add(store, "dt=1")
    claim = claimed(store)
    before = everything(database_url)
    commit = commit_of(plan)
    doubled = replace(commit, superseded=(*commit.superseded, commit.superseded[0]))
    with pytest.raises(Exception, match="refused a write"):
        store.complete(claim, doubled, figures_of(plan), {})
    assert everything(database_url) == before
    store.complete(claim, commit, figures_of(plan), {})


def test_the_same_partition_of_two_tables_can_be_planned(store: Store) -> None:
    add(store, "dt=1")
    add(store, "dt=1", table=OTHER)
    with pytest.raises(PartitionsLocked, match="dt=1 by plan"):
        add(store, "dt=0", "dt=1")
    assert list(store.locked_partitions(TRIPS.name)) == ["dt=1"]


def test_a_requeued_plan_waits_twice_as_long_each_time_and_fails_in_the_end(database_url: str) -> None:
    store = Store(
        database_url,
        StoreSettings(max_attempts=4, backoff=timedelta(seconds=30), backoff_max=timedelta(seconds=100)),
    )
    plan = add(store, "dt=1")
    waits = []
    for attempt in (1, 2, 3):
        claim = claimed(store)
        assert claim.attempt == attempt
        assert store.requeue(claim, "disk full") is True
        assert store.claim("e") is None, "not before its backoff has passed"
        since = "(SELECT max(at_ms) FROM plan_event)"
        (row,) = sql(database_url, f"SELECT not_before_ms - {since} AS wait FROM plan")
        waits.append(round(row.wait / 1000))
        assert store.locked_partitions(TRIPS.name) == {"dt=1": plan.plan_id}
        backoff_passes(database_url)
    assert waits == [30, 60, 100]
    assert store.requeue(claimed(store), "disk full") is False
    view = store.plan(plan.plan_id)
    assert (view.state, view.error, view.attempts) == (PlanState.FAILED, "disk full", 4)
    assert store.locked_partitions(TRIPS.name) == {}
    store.close()


def test_cancelling_a_requested_plan_frees_its_partitions_at_once(store: Store) -> None:
    plan = add(store, "dt=1")
    assert store.request_cancel(plan.plan_id[:30], "ada", "not today") is PlanState.CANCELLED
    assert store.locked_partitions(TRIPS.name) == {}
    assert store.claim("e") is None
    assert store.plan_events(plan.plan_id)[-1].reason == "not today"
    with pytest.raises(WrongState, match="is cancelled; only requested and inflight plans can be cancelled"):
        store.request_cancel(plan.plan_id, "ada")


def test_cancelling_an_inflight_plan_is_a_request_that_its_executor_honours(store: Store) -> None:
    plan = add(store, "dt=1")
    claim = claimed(store)
    assert store.heartbeat(claim) is False
    assert store.request_cancel(plan.plan_id, "ada", "not today") is PlanState.INFLIGHT
    assert store.request_cancel(plan.plan_id, "bob", "me too") is PlanState.INFLIGHT
    assert store.heartbeat(claim) is True
    assert store.locked_partitions(TRIPS.name) == {"dt=1": plan.plan_id}
    store.cancel(claim, "not today", actor="ada")
    assert store.plan_state(plan.plan_id) is PlanState.CANCELLED
    assert store.locked_partitions(TRIPS.name) == {}
    assert [e.actor for e in store.plan_events(plan.plan_id)] == ["scheduler", "executor-1", "ada", "ada"]


def test_a_plan_with_a_requested_cancellation_is_not_requeued(store: Store) -> None:
    plan = add(store, "dt=1")
    claim = claimed(store)
    store.request_cancel(plan.plan_id, "ada", "not today")
    assert store.requeue(claim, "lock taken") is False
    assert store.plan_state(plan.plan_id) is PlanState.CANCELLED


def test_a_failed_plan_is_requested_again_with_all_its_attempts(store: Store) -> None:
    plan = add(store, "dt=1", "dt=2")
    store.fail(claimed(store), "bad options")
    assert store.locked_partitions(TRIPS.name) == {}
    store.retry(plan.plan_id, "ada")
    assert store.locked_partitions(TRIPS.name) == {"dt=1": plan.plan_id, "dt=2": plan.plan_id}
    claim = claimed(store)
    assert (claim.plan, claim.attempt, claim.epoch) == (plan, 1, 2)
    taken_over = r"If its executor executor-1 has died, another executor takes the plan over when the lease"
    with pytest.raises(WrongState, match=f"is inflight; only failed plans can be retried. {taken_over} expires"):
        store.retry(plan.plan_id, "ada")
    store.requeue(claim, "no space left")
    with pytest.raises(WrongState, match=r"It runs by itself after ..:..:.. UTC; last error: no space left$"):
        store.retry(plan.plan_id, "ada")
    store.request_cancel(plan.plan_id, "ada")
    with pytest.raises(WrongState, match=r"To plan its files again: lakefold plans request demo\.trips$"):
        store.retry(plan.plan_id, "ada")


def test_retrying_is_refused_while_another_plan_has_a_partition(store: Store) -> None:
    failed = add(store, "dt=1", "dt=2")
    store.fail(claimed(store), "bad options")
    holder = add(store, "dt=2")
    with pytest.raises(PartitionsLocked) as refused:
        store.retry(failed.plan_id, "ada")
    assert refused.value.locking_plans == {"dt=2": holder.plan_id}
    assert store.plan_state(failed.plan_id) is PlanState.FAILED
    assert store.locked_partitions(TRIPS.name) == {"dt=2": holder.plan_id}


def test_left_out_groups_and_quarantined_paths_are_kept_with_their_reasons(store: Store) -> None:
    plan = add(store, "dt=1", "dt=2")
    claim = claimed(store)
    store.record_skipped_groups(
        claim, [SkippedGroup(group=1, reason="footer is truncated", quarantine=("dt=2/0.parquet",))]
    )
    view = store.plan(plan.plan_id)
    assert [(g.number, g.partition, g.left_out) for g in view.left_out] == [(1, "dt=2", "footer is truncated")]
    assert store.table_state(TRIPS.name).quarantined == {"dt=2/0.parquet": "footer is truncated"}
    store.requeue(claim, "later")
    store.resume(TRIPS.name, "ada")
    assert store.table_state(TRIPS.name).quarantined == {}


def test_an_error_with_a_nul_or_a_lone_surrogate_is_stored(store: Store) -> None:
    plan = add(store, "dt=1")
    store.fail(claimed(store), "bad \x00 byte \udcff in a name" + "x" * 9000)
    error = store.plan(plan.plan_id).error
    assert error is not None
    assert error.startswith("bad  byte ? in a name")
    assert len(error) == 4000


def test_any_part_of_an_id_that_no_other_has_will_do_and_an_ambiguous_one_names_the_candidates(store: Store) -> None:
    one, two = "01990000-1111-7000-8000-0000000000aa", "01990000-2222-7000-8000-0000000000ab"
    for partition, plan_id in (("dt=1", one), ("dt=2", two)):
        add(store, partition, plan_id=plan_id)
    for unknown in ("eeee", "", " ", "%", "_", f"%{two[-8:]}", "dt=1", two[:-1] + "f", two + "0"):
        with pytest.raises(NotFound, match="no plan"):
            store.plan(unknown)
    for part in (two, two[:11], two[-2:], "2222", "2222-7", two[9:].upper(), f" {two[-8:]}\n"):
        assert store.plan(part).plan_id == two, part
    for part in ("0", "01990000", "-7000-8000-0000000000a"):
        with pytest.raises(AmbiguousId) as refused:
            store.plan(part)
        assert str(refused.value) == f"plan {part!r} is ambiguous: {two}, {one}"
        assert refused.value.facts == {"candidates": [two, one]}
    assert [plan.plan_id for plan in store.plans(after="2222")] == [one]
    assert [plan.plan_id for plan in store.plans(after=f"{two[:-1]}f")] == [two, one]
    assert store.request_cancel("1111", actor="ada") is PlanState.CANCELLED
    many = [add(store, f"h={n}").plan_id for n in range(7)]
    with pytest.raises(AmbiguousId, match=f"{many[-1]}.*{many[2]} and more$"):
        store.plan("-")
    request = store.add_request(TRIPS.name, actor="ada")
    assert store.request(request[3:20]).request_id == request
    with pytest.raises(NotFound, match="no request 'eeeeeeee'"):
        store.request("eeeeeeee")


def test_the_state_of_a_plan_that_this_database_does_not_know_is_none(store: Store) -> None:
    assert store.plan_state("ffff") is None


def test_a_note_is_a_line_of_the_plans_history(store: Store) -> None:
    plan = add(store, "dt=1")
    store.add_note(claimed(store), "engine spark: no copy, the table is merge-on-read")
    event = store.plan_events(plan.plan_id)[-1]
    assert (event.from_state, event.to_state, event.epoch, event.actor, event.reason) == (
        PlanState.INFLIGHT,
        PlanState.INFLIGHT,
        1,
        "executor-1",
        "engine spark: no copy, the table is merge-on-read",
    )


def test_a_commit_of_another_epoch_is_in_the_plans_history(store: Store) -> None:
    plan = add(store, "dt=1")
    store.complete(claimed(store), replace(commit_of(plan), epoch=7), figures_of(plan), {})
    assert store.plan_events(plan.plan_id)[-1].reason.endswith(" by epoch 7")


def test_steps_and_options_are_stored_under_the_names_that_an_earlier_release_reads(store: Store) -> None:
    add(store, "dt=1")
    claim = claimed(store)
    store.record_step(claim, Step.FIND_COMMIT, milliseconds=3)
    store.record_step(claim, Step.VERIFY, milliseconds=5)
    store.record_step(claim, Step.VERIFY, milliseconds=2)
    view = store.plan(claim.plan.plan_id)
    assert (view.step, view.milliseconds) == ("verify", {"find_commit": 3, "verify": 7})
    with store._database.read() as connection:
        row = connection.execute(text("SELECT step, milliseconds, options FROM plan")).one()
    assert (row.step, json.loads(row.milliseconds)) == ("receipt", {"ask": 3, "receipt": 7})
    assert json.loads(row.options)["receipt"] == claim.plan.options.verification.value
