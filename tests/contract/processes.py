# SPDX-License-Identifier: Apache-2.0
"""Executors in separate processes, killed at every named point; for every format."""

import signal

from toys.bench import Bench
from toys.processes import start, wait

from contract.run import ended
from lake.plan import Step

#: in the order in which a plan passes them
FAILPOINTS = [f"{when}_{step}" for step in Step for when in ("before", "after")]
FAILPOINTS[FAILPOINTS.index("after_prepare") : FAILPOINTS.index("after_prepare")] = ["staged", "published_unrecorded"]


class KillContract:
    """The state of a plan after its executor was killed at any point."""

    def test_plans_killed_at_each_failpoint_commit_exactly_once_and_leave_no_file(self, bench: Bench):
        tables = [bench.add_table(f"at {name}") for name in FAILPOINTS]
        before, plans = bench.rows(), [bench.request(table) for table in tables]
        # Each point but the last stops the first plan that reaches it, so one plan reaches the last point.
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
            assert len(bench.store.awaiting_deletion(table)) == 6
        told = [message.body["plan"] for message in bench.store.notifications()]
        assert sorted(told) == sorted(plan.plan_id for plan in plans), "each told exactly once"
