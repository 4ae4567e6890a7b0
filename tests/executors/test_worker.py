# SPDX-License-Identifier: Apache-2.0
"""The executor's loop: drains the queue, ends politely or at once, and survives what it depends on."""

import os
import signal
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from toys import timeline
from toys.bench import Background, Bench, Flaky, raising
from toys.cases import no_spark
from toys.processes import start, wait
from waiting import is_stopped, wait_for

from executors.context import RunContext
from executors.outcome import RunResult
from executors.worker import Worker, WorkerSettings
from lake.errors import EarlierAttemptPending, Rejected, SessionSpoiled, Transient
from lake.failpoints import failpoint
from lake.process_identity import executor_name

BEAT = timedelta(seconds=0.05)
FAST = {
    "poll_interval": timedelta(seconds=0.02),
    "drain_timeout": timedelta(seconds=1),
}


def worker(bench: Bench, *, store: Any = None, **options: Any) -> Worker:
    settings = WorkerSettings(**{**FAST, **options})
    return Worker(
        RunContext(
            store=store or bench.store,
            spark=no_spark,
            formats=lambda _: bench.format,
            observer=bench.recorder,
            heartbeat=BEAT,
        ),
        settings=settings,
        drop_session=lambda: None,
    )


def test_run_once_drains_the_queue_and_returns(bench: Bench):
    other = bench.add_table("other")
    plans = [bench.request(partitions=["dt=0"]), bench.request(partitions=["dt=1"]), bench.request(other)]
    assert worker(bench).run_once() == {RunResult.COMPLETED: 3}
    assert [bench.state(plan) for plan in plans] == ["completed"] * 3


def test_run_once_on_an_empty_queue_returns_at_once(bench: Bench):
    begun = time.monotonic()
    assert worker(bench, drain_timeout=timedelta(seconds=60)).run_once() == {}
    assert time.monotonic() - begun < 60, "its patience"


def test_run_once_waits_for_the_lease_of_a_silent_executor_and_takes_its_plan_over(short_leases: Bench):
    bench = short_leases
    plan = bench.request()
    bench.claim("silent")
    assert worker(bench).run_once() == {RunResult.REQUEUED: 1, RunResult.COMPLETED: 1}
    assert bench.state(plan) == "completed"
    assert bench.recorder.expired == 1


def test_run_once_leaves_plans_that_become_due_after_its_patience_to_others(bench: Bench):
    plan = bench.request()
    bench.claim("alive, with a lease of a minute")
    begun = time.monotonic()
    assert worker(bench).run_once() == {}
    assert time.monotonic() - begun < 60, "the lease"
    assert bench.state(plan) == "inflight"


def test_two_slots_run_two_plans_at_once(bench: Bench):
    other = bench.add_table("other")
    bench.request()
    bench.request(other)
    both = threading.Barrier(2, timeout=10)
    bench.format.hooks["prepare"] = lambda: both.wait() and None
    assert worker(bench, slots=2).run_once() == {RunResult.COMPLETED: 2}


def test_draining_finishes_the_current_plan_and_claims_no_other(bench: Bench):
    other = bench.add_table("other")
    first, second = bench.request(), bench.request(other)
    made = worker(bench)
    bench.format.hooks["rewrite"] = made.drain
    assert made.run() == {RunResult.COMPLETED: 1}
    assert [bench.state(first), bench.state(second)] == ["completed", "requested"]


def test_aborting_requeues_the_current_plan(bench: Bench):
    plan = bench.request()
    made = worker(bench)

    def abort() -> None:
        made.abort()
        bench.format.cancelled.wait(10)

    bench.format.hooks["rewrite"] = abort
    assert made.run() == {RunResult.REQUEUED: 1}
    assert (bench.state(plan), bench.pending(), bench.unowned()) == ("requested", {}, ())


@pytest.mark.slow
def test_a_database_outage_is_waited_out(bench: Bench):
    flaky = Flaky(bench.store)
    flaky.down = {"take_over_expired": 1, "claim": 1}
    plan = bench.request()
    made = worker(bench, store=flaky)
    running = Background(made.run)
    wait_for(lambda: bench.state(plan) == "completed", "the plan completed")
    made.drain()
    assert running.join() == {RunResult.COMPLETED: 1}


def test_an_unknown_format_fails_its_plan_and_the_worker_continues(bench: Bench):
    plan = bench.request()

    def formats(name: str) -> Any:
        raise Rejected(f"unknown table format {name!r}")

    made = Worker(RunContext(store=bench.store, spark=no_spark, formats=formats), settings=WorkerSettings(**FAST))
    assert made.run_once() == {RunResult.FAILED: 1}
    assert bench.store.plan(plan.plan_id).error == "unknown table format 'toy'"


def test_after_an_incomplete_plan_the_session_is_checked(bench: Bench):
    bench.request()
    calls = iter([raising(Transient("the JVM died")), lambda: None])
    bench.format.hooks["rewritten"] = lambda: next(calls, lambda: None)()
    looked: list[int] = []
    made = Worker(
        RunContext(store=bench.store, spark=no_spark, formats=lambda _: bench.format, heartbeat=BEAT),
        settings=WorkerSettings(**FAST),
        drop_session=lambda: looked.append(1),
    )
    assert made.run_once() == {RunResult.REQUEUED: 1, RunResult.COMPLETED: 1}
    assert looked == [1]


def test_an_attempt_in_a_spoiled_session_does_not_count_once(bench: Bench):
    plan = bench.request()
    calls = iter([raising(SessionSpoiled("spoiled")), raising(SessionSpoiled("spoiled")), lambda: None])
    bench.format.hooks["rewritten"] = lambda: next(calls, lambda: None)()
    made = worker(bench)
    assert made.run_once() == {RunResult.REQUEUED: 2, RunResult.COMPLETED: 1}
    found = bench.store.plan(plan.plan_id)
    assert found.attempts == 2, "of three attempts the first one was given back"


def test_attempts_that_wait_for_an_earlier_one_never_count(bench: Bench):
    plan = bench.request()
    calls = iter([*[raising(EarlierAttemptPending("a writer executes it"))] * 3, lambda: None])
    bench.format.hooks["rewritten"] = lambda: next(calls, lambda: None)()
    assert worker(bench).run_once() == {RunResult.REQUEUED: 3, RunResult.COMPLETED: 1}
    assert bench.store.plan(plan.plan_id).attempts == 1, "of max_attempts = 3"


@pytest.mark.slow
def test_two_workers_share_one_queue_without_running_a_plan_twice(bench: Bench):
    tables = [bench.add_table(f"t{n}") for n in range(4)]
    plans = [bench.request(table, partitions=[f"dt={p}"]) for table in tables for p in range(2)]
    results = [Background(worker(bench).run_once) for _ in range(2)]
    tallies = [result.join() for result in results]
    assert sum(tally[RunResult.COMPLETED] for tally in tallies) == len(plans)
    for table in tables:
        assert timeline.manifest(table)["number"] == 6 + 2


def test_an_executors_name_is_never_given_twice():
    assert executor_name() != (time.sleep(0.002), executor_name())[1]


# In processes of their own.


@pytest.mark.slow
def test_sigterm_finishes_the_plan_and_a_second_one_stops_it(bench: Bench):
    gate = bench.home / "gate"
    for signals, state in ((1, "completed"), (2, "requested")):
        plan = bench.request()
        process = start(bench, "serve", failpoints=f"before_rewrite=wait:{gate}")
        try:
            wait_for(gate.with_name("gate.reached").exists, "the executor at the gate")
            for number in range(signals):
                process.send_signal(signal.SIGTERM)
                time.sleep(0.5)
                assert process.poll() is None, f"ended after signal {number + 1} before its plan"
            gate.touch()
            output = wait(process)
        finally:
            process.kill()
        assert process.returncode == 0, output
        assert bench.state(plan) == state, output
        assert (bench.pending(), bench.unowned()) == ({}, ())
        gate.unlink()
        gate.with_name("gate.reached").unlink()


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("name", ["published_unrecorded", "after_rewrite", "after_commit"])
def test_an_adopted_plan_whose_executor_was_killed_commits_exactly_once_on_its_instant(bench: Bench, name: str):
    before, plan = bench.rows(), bench.adopt("7")
    killed = start(bench, "once", failpoints=f"{name}=kill")
    wait(killed)
    assert killed.returncode == -signal.SIGKILL, f"{name} was not reached"
    successor = start(bench, "once")
    output = wait(successor)
    assert successor.returncode == 0, output
    assert (bench.state(plan), bench.commits(plan), bench.scheduled()) == ("completed", 1, {}), output
    assert (bench.rows(), bench.unowned(), bench.store.plan(plan.plan_id).instant) == (before, (), "7")


@pytest.mark.slow
def test_a_suspended_executor_keeps_its_adopted_plan_and_finishes_it(bench: Bench):
    before, plan = bench.rows(), bench.adopt("7")
    sleeper = start(bench, "once", failpoints="before_commit=stop")
    try:
        wait_for(lambda: is_stopped(sleeper.pid), "the executor stopped")
        time.sleep(1.5)
        output = wait(start(bench, "once"))
        assert bench.state(plan) == "inflight", output
        os.killpg(sleeper.pid, signal.SIGCONT)
        woken = wait(sleeper)
    finally:
        sleeper.kill()
    assert (bench.state(plan), bench.commits(plan), bench.scheduled()) == ("completed", 1, {}), woken
    assert (bench.rows(), bench.unowned(), bench.store.plan(plan.plan_id).epoch) == (before, (), 1)


def test_an_unknown_failpoint_action_is_refused_with_the_valid_ones(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LAKEFOLD_FAILPOINTS", "here=explode")
    with pytest.raises(ValueError, match="use kill, stop, hold, error, hold:PATH or wait:PATH"):
        failpoint("here")
    failpoint("elsewhere")
