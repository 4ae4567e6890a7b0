# SPDX-License-Identifier: Apache-2.0
"""Executors in separate processes, killed and stopped at every named point, on each test format."""

import os
import signal
import time

import pytest
from support import SOAK
from toys.bench import Bench
from toys.cases import CROSSED
from toys.processes import start, wait
from waiting import is_stopped, wait_for

from contract.processes import KillContract
from contract.run import ended

pytestmark = pytest.mark.slow

#: the points at which an executor may be stopped until its plan is taken over
STOPS = ["published_unrecorded", "after_rewrite", "before_commit"]
ASLEEP = [
    ("timeline-sqlite", "before_commit"),
    ("versions-postgresql", "published_unrecorded"),
    ("locations-postgresql", "in_commit"),
]
KILLED = ["versions-sqlite"]
if SOAK:
    KILLED = CROSSED
    # If the table has a lock, the successor waits for an executor that is stopped in the middle of a commit.
    stops = {"timeline": STOPS, "locations": [*STOPS, "in_commit"], "versions": [*STOPS, "in_commit"]}
    ASLEEP = [(f"{case}-{on}", stop) for case in stops for on in ("sqlite", "postgresql") for stop in stops[case]]


@pytest.mark.parametrize("bench", KILLED, indirect=True)
class TestKills(KillContract):
    """Kills at every point; in the short run on one test format, since Hudi and Hive have their own tests."""


@pytest.mark.parametrize(("bench", "name"), ASLEEP, indirect=["bench"])
def test_an_executor_suspended_for_two_leases_finds_its_plan_finished_and_changes_nothing(bench: Bench, name: str):
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
