# SPDX-License-Identifier: Apache-2.0
"""Plans whose executors stopped renewing their leases, and the work that these executors left in tables."""

from pathlib import Path
from typing import Any

import pytest
from toys.bench import Bench, raising
from toys.cases import no_spark

from executors.context import RunContext
from executors.outcome import RunResult
from executors.sweep import sweep_table
from lake.errors import CommitUnknown, Transient
from lake.plan import Claim, Plan


def abandon(bench: Bench, *, commit: bool = False) -> tuple[Plan, Claim]:
    """A plan whose executor wrote, perhaps committed, and then died."""
    plan, claim = bench.request(), bench.claim("dead")
    with bench.format.writer(bench.table, no_spark) as writer:
        rewrite = writer.rewrite(writer.prepare(plan, claim.epoch), lambda _: None)
        if commit:
            writer.commit(rewrite)
    return plan, claim


def test_without_an_expired_lease_there_is_no_plan_to_take_over(bench: Bench):
    bench.request()
    bench.claim("alive")
    assert bench.rescue() is None


def test_a_committed_plan_is_recorded_without_opening_the_table_for_writing(bench: Bench):
    plan, _ = abandon(bench, commit=True)
    bench.expire()
    bench.format.hooks["open"] = raising(AssertionError("no session is needed to ask"))
    outcome = bench.rescue()
    assert outcome is not None
    assert outcome.result is RunResult.COMPLETED
    assert bench.state(plan) == "completed"
    assert (bench.recorder.expired, bench.recorder.finished) == (1, [("completed", "")])


def test_an_uncommitted_plan_is_withdrawn_and_requeued(bench: Bench):
    plan, _ = abandon(bench)
    bench.expire()
    outcome = bench.rescue()
    assert outcome is not None
    assert (outcome.result, outcome.error) == (RunResult.REQUEUED, "its executor stopped renewing its lease")
    assert (bench.state(plan), bench.pending(), bench.unowned()) == ("requested", {}, ())


def test_a_plan_shows_the_first_error_of_its_attempt_whichever_process_ends_it(bench: Bench):
    plan = bench.request()
    bench.format.hooks["commit"] = raising(CommitUnknown("the column could not be read"))
    assert bench.run().result is RunResult.INFLIGHT
    bench.format.hooks.clear()
    bench.expire()
    bench.format.hooks["discard"] = raising(Transient("somebody holds the lock"))
    assert bench.rescue() is not None
    bench.expire()
    bench.format.hooks.clear()
    outcome = bench.rescue()
    assert outcome is not None
    assert outcome.result is RunResult.REQUEUED
    assert outcome.error.endswith(": the column could not be read")
    again = bench.claim("next")
    assert (again.plan.plan_id, again.previous_error) == (plan.plan_id, None)


def test_a_plan_that_published_nothing_is_requeued_without_opening_the_table(bench: Bench):
    plan = bench.request()
    bench.claim("dead")
    bench.expire()
    bench.format.hooks["open"] = raising(AssertionError("nothing to withdraw"))
    outcome = bench.rescue()
    assert outcome is not None
    assert (outcome.result, bench.state(plan)) == (RunResult.REQUEUED, "requested")


def test_a_cancellation_that_its_executor_did_not_see_before_it_died_is_honoured(bench: Bench):
    plan, _ = abandon(bench)
    bench.store.request_cancel(plan.plan_id, "operator", "not today")
    bench.expire()
    outcome = bench.rescue()
    assert outcome is not None
    assert (outcome.result, bench.state(plan), bench.pending()) == (RunResult.CANCELLED, "cancelled", {})


def test_a_committed_plan_is_completed_even_if_its_cancellation_was_requested(bench: Bench):
    plan, _ = abandon(bench, commit=True)
    bench.store.request_cancel(plan.plan_id, "operator", "too late")
    bench.expire()
    outcome = bench.rescue()
    assert outcome is not None
    assert (outcome.result, bench.state(plan)) == (RunResult.COMPLETED, "completed")


@pytest.mark.parametrize("where", ["committed", "discard", "open", "pending"])
def test_an_unreadable_table_leaves_the_plan_inflight_until_it_can_be_read(bench: Bench, where: str):
    plan, _ = abandon(bench)
    bench.expire()
    bench.format.hooks[where] = raising(Transient("somebody holds the lock"))
    for _ in range(4):  # more often than a plan has attempts
        outcome = bench.rescue()
        assert outcome is not None
        assert outcome.result is RunResult.INFLIGHT
        assert bench.state(plan) == "inflight"
        bench.expire()
    bench.format.hooks.clear()
    outcome = bench.rescue()
    assert outcome is not None
    assert outcome.result is RunResult.REQUEUED
    assert (bench.pending(), bench.unowned()) == ({}, ())


def test_the_sweep_withdraws_instants_of_ended_plans_only(bench: Bench):
    live = bench.request(partitions=["dt=0"])
    bench.claim()
    ended = bench.request(partitions=["dt=1"])
    bench.store.request_cancel(ended.plan_id, "operator", "")
    instants: dict[str, Any] = {}
    for owner in (live, ended):
        with bench.format.writer(bench.table, no_spark) as writer:
            prepared = writer.prepare(owner, 1)
            writer.rewrite(prepared, lambda _: None)
            instants[owner.plan_id] = prepared.instant
    stranger = Path(bench.table.location) / "pending" / "9.json"
    stranger.write_text('{"plan_id": "of another database"}')
    assert sweep_table(bench.table, RunContext(store=bench.store, spark=no_spark), format=bench.format) == 1
    assert bench.pending() == {instants[live.plan_id]: live.plan_id, "9": "of another database"}
    bench.format.hooks["open"] = raising(AssertionError("nothing to withdraw"))
    assert sweep_table(bench.table, RunContext(store=bench.store, spark=no_spark), format=bench.format) == 0


def test_the_sweep_withdraws_work_that_a_suspended_executor_published_for_a_requeued_plan(bench: Bench):
    plan, claim = bench.request(), bench.claim("asleep")
    bench.expire()
    assert bench.rescue() is not None
    assert bench.state(plan) == "requested"
    with bench.format.writer(bench.table, no_spark) as sleeper:
        sleeper.prepare(plan, claim.epoch)
    assert sweep_table(bench.table, RunContext(store=bench.store, spark=no_spark), format=bench.format) == 1
    assert (bench.pending(), bench.state(plan)) == ({}, "requested")
