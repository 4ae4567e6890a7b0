# SPDX-License-Identifier: Apache-2.0
"""A plan's run that is cancelled, aborted, or taken over while it slept."""

import threading
from datetime import timedelta
from pathlib import Path

import pytest
from toys import timeline
from toys.bench import Background, Bench, bench_at
from toys.cases import LocationsCase, no_spark
from waiting import wait_for

from executors.context import RunContext
from executors.outcome import RunResult
from executors.run import run_plan
from lake.errors import Transient


def test_an_operators_cancel_stops_the_rewrite_and_discards_it(bench: Bench):
    before, plan = bench.rows(), bench.request()
    bench.format.hooks["rewrite"] = lambda: bench.format.cancelled.wait(10) and None
    run = Background(bench.run)
    wait_for(lambda: bench.store.plan(plan.plan_id).step == "prepare", "the rewrite begun")
    bench.store.request_cancel(plan.plan_id, "operator", "too big today")
    outcome = run.join()
    assert (outcome.result, outcome.reason) == (RunResult.CANCELLED, "CancelRequested")
    assert (bench.state(plan), bench.pending(), bench.unowned(), bench.rows()) == ("cancelled", {}, (), before)


def test_a_cancel_that_arrives_just_before_the_commit_is_honoured(bench: Bench):
    plan = bench.request()
    bench.format.hooks["rewritten"] = lambda: bench.store.request_cancel(plan.plan_id, "operator", "") and None
    assert bench.run(heartbeat=timedelta(hours=1)).result is RunResult.CANCELLED
    assert (bench.commits(plan), bench.unowned()) == (0, ())


def test_a_cancel_that_arrives_during_the_commit_is_too_late(bench: Bench):
    plan = bench.request()
    bench.format.hooks["commit"] = lambda: bench.store.request_cancel(plan.plan_id, "operator", "") and None
    assert bench.run().result is RunResult.COMPLETED
    assert (bench.state(plan), bench.commits(plan)) == ("completed", 1)


def test_an_abort_stops_the_rewrite_and_requeues_the_plan(bench: Bench):
    plan, abort = bench.request(), threading.Event()
    bench.format.hooks["rewrite"] = lambda: bench.format.cancelled.wait(10) and None
    run = Background(lambda: bench.run(abort=abort))
    wait_for(lambda: bench.store.plan(plan.plan_id).step == "prepare", "the rewrite begun")
    abort.set()
    outcome = run.join()
    assert (outcome.result, outcome.reason) == (RunResult.REQUEUED, "Aborted")
    assert (bench.state(plan), bench.pending(), bench.unowned()) == ("requested", {}, ())


def sleep_and_lose(bench: Bench) -> None:
    """Sleep until the lease has run out and a second executor has completed the plan."""
    bench.format.hooks.clear()
    bench.expire()
    taken = bench.store.take_over_expired("second")
    assert taken is not None
    other = timeline.ToyFormat()
    done = run_plan(
        taken, RunContext(store=bench.store, spark=no_spark, heartbeat=timedelta(seconds=0.05)), format=other
    )
    assert done.result is RunResult.COMPLETED


def test_an_executor_that_lost_its_lease_while_rewriting_stops_silently(bench: Bench):
    before, plan = bench.rows(), bench.request()
    claim = bench.claim()
    bench.format.hooks["rewritten"] = lambda: sleep_and_lose(bench)
    outcome = bench.run(claim, heartbeat=timedelta(hours=1))
    assert outcome.result is RunResult.LEASE_LOST
    assert (bench.state(plan), bench.commits(plan), bench.pending(), bench.unowned()) == ("completed", 1, {}, ())
    assert bench.rows() == before
    assert bench.recorder.finished == []
    assert bench.store.plan(plan.plan_id).executor == "second"


def test_an_executor_suspended_between_its_claim_and_its_run_publishes_nothing(bench: Bench):
    plan, claim = bench.request(), bench.claim()
    published: list[dict[str, str]] = []
    bench.format.hooks["rewrite"] = lambda: published.append(bench.pending())
    bench.expire()
    assert bench.store.take_over_expired("second") is not None
    assert bench.run(claim, heartbeat=timedelta(hours=1)).result is RunResult.LEASE_LOST
    assert (published, bench.pending(), bench.state(plan)) == ([], {}, "inflight")


def test_an_executor_suspended_within_its_commit_step_is_fenced_by_the_table_too(bench: Bench):
    before, plan = bench.rows(), bench.request()
    claim = bench.claim()
    # After the last heartbeat, before the table's own lock.
    bench.format.hooks["commit"] = lambda: sleep_and_lose(bench)
    outcome = bench.run(claim, heartbeat=timedelta(hours=1))
    assert outcome.result is RunResult.LEASE_LOST
    assert (bench.state(plan), bench.commits(plan), bench.unowned(), bench.rows()) == ("completed", 1, (), before)
    assert bench.recorder.finished == []


def test_a_suspended_executor_that_publishes_after_the_take_over_withdraws_only_its_own_instant(bench: Bench):
    plan, claim = bench.request(), bench.claim()
    seen: list[dict[str, str]] = []

    def sleep_and_publish() -> None:
        bench.format.hooks.clear()
        bench.expire()
        assert bench.store.take_over_expired("second") is not None
        # The successor has asked and withdrawn, and published its own instant, when the sleeper publishes.
        theirs = Path(bench.table.location) / "pending" / "successor.json"
        theirs.write_text(f'{{"plan_id": "{plan.plan_id}x", "epoch": 2}}')
        seen.append(bench.pending())

    bench.format.hooks["prepare"] = sleep_and_publish
    assert bench.run(claim, heartbeat=timedelta(hours=1)).result is RunResult.LEASE_LOST
    assert bench.pending() == seen[0]


def test_a_take_over_withdraws_instants_that_were_never_recorded(bench: Bench):
    plan = bench.request()
    claim = bench.claim()
    with bench.format.writer(bench.table, no_spark) as writer:
        writer.rewrite(writer.prepare(plan, claim.epoch), lambda _: None)  # and then the process dies
    assert claim.staged == ()
    bench.expire()
    taken = bench.store.take_over_expired("second")
    assert taken is not None
    assert bench.run(taken).result is RunResult.COMPLETED
    assert (bench.commits(plan), bench.pending(), bench.unowned()) == (1, {}, ())


@pytest.mark.parametrize("answer", ["none", "the connection broke"])
def test_a_suspended_executor_leaves_its_expired_commit_that_another_executor_recorded(tmp_path: Path, answer: str):
    """The files of the commit were replaced meanwhile, and the retention keeps them for readers."""
    with bench_at(tmp_path, LocationsCase()) as bench:
        plan, claim = bench.request(), bench.claim()
        kept: set[str] = set()

        def sleep() -> None:
            bench.format.hooks.clear()
            bench.expire()
            assert bench.rescue() is not None
            assert bench.state(plan) == "completed"
            kept.update(item["path"] for item in bench.format.live(bench.table))
            bench.request()
            assert bench.run(bench.claim("second")).result is RunResult.COMPLETED
            assert bench.case.forget(bench.table)
            if answer != "none":
                raise Transient(answer)

        bench.format.hooks["landed"] = sleep
        assert bench.run(claim, heartbeat=timedelta(hours=1)).result is RunResult.LEASE_LOST
        assert len(kept) == 2
        assert kept <= set(bench.stored())
