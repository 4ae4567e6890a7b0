# SPDX-License-Identifier: Apache-2.0
"""Adopted plans on a test format: all attempts use one instant, which lakefold never withdraws."""

from collections.abc import Callable

import pytest
from toys.bench import QUICK, Bench, raising
from toys.cases import no_spark
from toys.timeline import ToyFormat, ToyWriter

from executors.context import RunContext
from executors.outcome import RunResult
from executors.sweep import sweep_table
from executors.take_over import take_over_one
from lake.errors import Conflict, LeaseLost, Rejected, TableRefused, Transient
from lake.model import TableRef
from lake.plan import Plan
from lake.ports import PreparedPlan
from service.control.store.views import ErrorClass


def test_an_adopted_plan_is_executed_on_its_own_instant(bench: Bench):
    before, plan = bench.rows(), bench.adopt("7")
    outcome = bench.run()
    assert outcome.result is RunResult.COMPLETED
    view = bench.store.plan(plan.plan_id)
    assert (view.adopted, view.instant, view.state.value) == ("7", "7", "completed")
    assert (bench.rows(), bench.commits(plan), bench.scheduled()) == (before, 1, {})


@pytest.mark.parametrize("where", ["rewrite", "rewritten", "commit"])
@pytest.mark.parametrize("error", [Transient("a node went away"), Conflict("a writer was faster"), Rejected("no")])
def test_each_end_of_an_attempt_leaves_the_instant_scheduled_and_no_file(bench: Bench, where: str, error: Exception):
    plan = bench.adopt("7")
    bench.format.hooks[where] = raising(error)
    assert bench.run().result is not RunResult.COMPLETED
    assert (bench.scheduled(), bench.unowned(), bench.commits(plan)) == ({"7": False}, (), 0)


def test_an_adopted_plan_of_a_table_that_is_refused_meanwhile_is_cancelled_and_not_for_a_writer(bench: Bench):
    plan = bench.adopt("7")
    bench.format.hooks["rewritten"] = raising(TableRefused("an index is being built"))
    assert bench.run().result is RunResult.CANCELLED
    assert bench.store.plan(plan.plan_id).error_class is ErrorClass.REJECTED, "so a scan adopts the instant again"
    assert (bench.scheduled(), bench.commits(plan)) == ({"7": False}, 0)


def test_a_table_that_is_refused_at_the_claim_of_a_plan_only_cancels_the_plan(bench: Bench):
    """The files of a failed plan, and its instant, would be left alone even if the table is accepted again."""
    plan = bench.adopt("7")
    bench.format.hooks["check"] = raising(Rejected("hoodie.metadata.enable = true, but there is no metadata table"))
    assert bench.run().result is RunResult.CANCELLED
    assert bench.store.plan(plan.plan_id).error_class is ErrorClass.REJECTED
    assert (bench.scheduled(), bench.commits(plan)) == ({"7": False}, 0)


def test_another_attempt_uses_the_same_instant(bench: Bench):
    plan = bench.adopt("7")
    bench.format.hooks["rewritten"] = raising(Transient("a node went away"))
    assert bench.run().result is RunResult.REQUEUED
    bench.format.hooks.clear()
    assert bench.run().result is RunResult.COMPLETED
    assert (bench.store.plan(plan.plan_id).instant, bench.commits(plan)) == ("7", 1)


def test_a_group_that_can_not_be_read_ends_the_whole_adopted_plan(bench: Bench):
    plan = bench.adopt("7")
    broken = plan.groups[0].slices[0].path
    assert broken is not None
    (bench.home / "lake" / "toy" / broken).write_bytes(b"PAR1 not a file")
    assert bench.run().result is RunResult.CANCELLED
    assert (bench.scheduled(), bench.commits(plan)) == ({"7": False}, 0)
    assert broken in bench.store.table_state("toy").quarantined


def test_an_instant_that_another_process_ended_cancels_the_plan(bench: Bench):
    plan = bench.adopt("7")
    (bench.home / "lake" / "toy" / "pending" / "7.json").unlink()
    assert bench.run().result is RunResult.CANCELLED
    assert "no longer pending" in (bench.store.plan(plan.plan_id).error or "")


def test_a_rescuer_withdraws_begun_work_and_requests_the_plan_again(bench: Bench):
    plan, claim = bench.adopt("7"), bench.claim("dead")
    with bench.format.writer(bench.table, no_spark) as writer:
        writer.rewrite(writer.prepare(plan, claim.epoch), lambda _: None)
    assert bench.scheduled() == {"7": True}
    bench.expire()
    outcome = take_over_one(
        "rescuer", RunContext(formats=lambda _: bench.format, store=bench.store, spark=no_spark, retry_delays=QUICK)
    )
    assert outcome is not None
    assert (outcome.result, bench.scheduled(), bench.unowned()) == (RunResult.REQUEUED, {"7": False}, ())
    assert sweep_table(bench.table, RunContext(store=bench.store, spark=no_spark), format=bench.format) == 0
    assert bench.run().result is RunResult.COMPLETED


def test_a_suspended_executor_can_not_commit_work_that_its_successor_withdrew(bench: Bench):
    plan, claim = bench.adopt("7"), bench.claim("asleep")
    with bench.format.writer(bench.table, no_spark) as sleeper, bench.format.writer(bench.table, no_spark) as successor:
        written = sleeper.rewrite(sleeper.prepare(plan, claim.epoch), lambda _: None)
        assert successor.abort_adopted("7", plan.plan_id)
        again = successor.rewrite(successor.prepare(plan, claim.epoch + 1), lambda _: None)
        for output in written.outputs:  # both attempts name their files by the one instant
            (bench.home / "lake" / "toy" / output.path).unlink()
        with pytest.raises(Conflict, match="was taken back"):
            sleeper.commit(written)
        assert again.prepared.instant == "7"
    assert bench.commits(plan) == 0


def test_an_executor_that_lost_an_adopted_plan_leaves_its_instant_to_the_successor(bench: Bench):
    bench.adopt("7")
    bench.format.hooks["rewritten"] = raising(LeaseLost("somebody else owns it"))
    assert bench.run().result is RunResult.LEASE_LOST
    assert bench.scheduled() == {"7": True}


def test_work_that_another_process_has_begun_is_not_rolled_back(bench: Bench):
    plan = bench.adopt("7")
    pending = bench.home / "lake" / "toy" / "pending" / "7.json"
    pending.write_text(pending.read_text().replace('"epoch": 0', '"epoch": 1'))
    bench.format.hooks["prepare"] = raising(Transient("somebody else has begun it"))
    assert [bench.run().result for _ in range(3)] == [RunResult.REQUEUED, RunResult.REQUEUED, RunResult.FAILED]
    assert (bench.scheduled(), bench.commits(plan)) == ({"7": True}, 0)


class HalfWay(ToyWriter):
    """Begins a plan under the table's lock, as a fenced writer does, and fails before it can say so."""

    def __init__(self, format_: ToyFormat, table: TableRef) -> None:
        super().__init__(format_, table)
        self.fence: Callable[[], None] = lambda: None

    def prepare(self, plan: Plan, epoch: int) -> PreparedPlan:
        self.fence()
        super().prepare(plan, epoch)
        raise Transient("its JVM died")


def test_plus_work_of_an_attempt_that_failed_halfway_is_rolled_back(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    plan = bench.adopt("7")
    monkeypatch.setattr(bench.format, "writer", lambda table, *_: HalfWay(bench.format, table))
    assert bench.run().result is RunResult.REQUEUED
    assert bench.scheduled() == {"7": False}
    bench.format.hooks["discard"] = raising(Transient("its JVM died"))
    assert bench.run().result is RunResult.INFLIGHT
    assert (bench.state(plan), bench.scheduled()) == ("inflight", {"7": True})


def test_a_plan_whose_work_can_not_be_withdrawn_stays_inflight_until_it_can(bench: Bench):
    plan = bench.adopt("7")
    bench.format.hooks |= {"rewritten": raising(Transient("a node went away")), "discard": raising(Transient("locked"))}
    assert bench.run().result is RunResult.INFLIGHT
    assert (bench.state(plan), bench.scheduled()) == ("inflight", {"7": True})
    bench.format.hooks.clear()
    bench.expire()
    outcome = take_over_one(
        "first", RunContext(formats=lambda _: bench.format, store=bench.store, spark=no_spark, retry_delays=QUICK)
    )
    assert outcome is not None
    assert (outcome.result, bench.scheduled()) == (RunResult.REQUEUED, {"7": False})
