# SPDX-License-Identifier: Apache-2.0
"""Executors in processes of their own, killed and stopped at every named point, on each format."""

import os
import signal
import time

import pytest
from support import SOAK
from toys.bench import Bench
from toys.processes import start, wait
from waiting import is_stopped, wait_for

from contract.run import ended
from lake.plan import Step

pytestmark = pytest.mark.slow

#: in the order in which a plan comes by
FAILPOINTS = [f"{when}_{step}" for step in Step for when in ("before", "after")]
FAILPOINTS[FAILPOINTS.index("after_prepare") : FAILPOINTS.index("after_prepare")] = ["staged", "published_unrecorded"]

#: where an executor may be stopped for so long that its plan is taken over
STOPS = ["published_unrecorded", "after_rewrite", "before_commit"]
ASLEEP = [("timeline-sqlite", "before_commit"), ("locations-sqlite", "after_rewrite"),
          ("versions-postgresql", "published_unrecorded"),
          ("locations-postgresql", "in_commit"), ("versions-sqlite", "in_commit")]  # fmt: skip
if SOAK:
    # With a lock of the table the successor waits for whoever is stopped in the middle of a commit.
    stops = {"timeline": STOPS, "locations": [*STOPS, "in_commit"], "versions": [*STOPS, "in_commit"]}
    ASLEEP = [(f"{case}-{on}", stop) for case in stops for on in ("sqlite", "postgresql") for stop in stops[case]]


def test_of_plans_killed_each_at_another_failpoint_every_one_lands_exactly_once_and_leaves_nothing_behind(bench: Bench):
    tables = [bench.add_table(f"at {name}") for name in FAILPOINTS]
    before, plans = bench.rows(), [bench.request(table) for table in tables]
    # Each point but the last holds the first plan that comes by, so that the last is reached by the one plan left.
    *held, last = FAILPOINTS
    failpoints = ",".join([*(f"{name}=hold" for name in held), f"{last}=kill"])
    killed = start(bench, "once", lease=60, failpoints=failpoints, slots=len(plans))
    wait(killed)
    assert killed.returncode == -signal.SIGKILL, f"{last} was not reached"
    assert [bench.case.rows(table) for table in tables] == [before] * len(tables), "readers saw half a plan"
    steps = {bench.store.plan(plan.plan_id).step for plan in plans}
    assert steps == {None, *Step}, "each was somewhere else"
    bench.expire()
    successor = start(bench, "once")
    output = wait(successor)
    assert successor.returncode == 0, output
    for table, plan in zip(tables, plans, strict=True):
        bench.table = table
        assert bench.state(plan) == "completed", output
        ended(bench, plan, before)
        assert len(bench.store.superseded(table)) == 6
    told = [message.body["plan"] for message in bench.store.notifications()]
    assert sorted(told) == sorted(plan.plan_id for plan in plans), "each told exactly once"


@pytest.mark.parametrize(("bench", "name"), ASLEEP, indirect=["bench"])
def test_an_executor_stopped_for_two_leases_wakes_up_to_a_finished_plan_and_changes_nothing(bench: Bench, name: str):
    before, plan = bench.rows(), bench.request()
    sleeper = start(bench, "once", failpoints=f"{name}=stop", most=0.5)
    try:
        wait_for(lambda: is_stopped(sleeper.pid), "the executor stopped")
        time.sleep(2)
        output = wait(start(bench, "once"))
        assert bench.state(plan) == "completed", output
        os.killpg(sleeper.pid, signal.SIGCONT)
        woken = wait(sleeper)
    finally:
        sleeper.kill()
    assert "'lost'" in woken or "LOST" in woken, woken
    assert bench.state(plan) == "completed", woken
    assert bench.case.commits(bench.table) == [(plan.plan_id, bench.store.plan(plan.plan_id).epoch)]
    ended(bench, plan, before)
