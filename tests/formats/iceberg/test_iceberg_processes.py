# SPDX-License-Identifier: Apache-2.0
"""Executors of Iceberg tables in processes of their own, each with a JVM: killed and stopped at every point of a plan.

Tables of version 1 in a REST catalog are only observed, so that they have no plans.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.held import POINTS, Held
from contract.processes import FAILPOINTS, KillContract
from contract.run import ended
from iceberg_case import NewCase
from iceberg_writers import merge_on_read_delete
from support import record_figure
from toys.bench import Bench, bench_at
from toys.processes import start, wait
from waiting import is_stopped, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.paired("bench")]


KINDS = ("postgresql 1", "hive 1", "rest 2", "postgresql 2", "rest 3", "postgresql 3")
WITH_DELETES = ("rest 2", "postgresql 2", "rest 3", "postgresql 3")


@pytest.fixture(params=KINDS)
def bench(new_case: NewCase, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    kind, version = request.param.split()
    with bench_at(tmp_path, new_case(kind, version=int(version))) as made:
        yield made


def figure(bench: Bench, what: str, result: str) -> None:
    case = bench.case
    record_figure(f"{what}, Iceberg version {case.version}, catalog {case.kind}", result)  # type: ignore[attr-defined]


@pytest.mark.shown_by(
    "tests/reliability/test_crashes.py::test_a_plan_whose_executor_is_killed_at_any_step_commits_exactly_once"
)
class TestKills(KillContract):
    """Killed at every point but the one right before the call of the catalog."""

    def test_plans_killed_at_each_failpoint_commit_exactly_once_and_leave_no_file(self, bench: Bench):
        super().test_plans_killed_at_each_failpoint_commit_exactly_once_and_leave_no_file(bench)
        points = f"{len(FAILPOINTS)} named failpoints"
        figure(bench, f"kill -9 of an executor with plans at {points}", "each plan committed once, no file left")


def test_a_plan_killed_right_before_its_call_commits_once(bench: Bench):
    before, plan = bench.rows(), bench.request()
    killed = start(bench, "once", lease=60, failpoints="in_commit=kill")
    output = wait(killed)
    assert killed.returncode == -signal.SIGKILL, output
    assert bench.rows() == before
    bench.expire()
    output = wait(start(bench, "once", lease=60))
    assert bench.state(plan) == "completed", output
    ended(bench, plan, before)


def test_executors_suspended_at_every_point_for_longer_than_their_leases_change_nothing_afterwards(bench: Bench):
    held = Held(bench, POINTS)
    try:
        os.killpg(held.process.pid, signal.SIGSTOP)
        wait_for(lambda: is_stopped(held.process.pid), "the executor stopped")
        bench.expire()
        successor = start(bench, "once", lease=60)
        output = wait(successor)
        assert successor.returncode == 0, output
        assert {bench.state(plan) for plan in held.plans} == {"completed"}, output
        held.open()
        os.killpg(held.process.pid, signal.SIGCONT)
        woken = wait(held.process)
    finally:
        held.process.kill()
    held.check(output + woken)
    result = "one commit each; the stopped executors changed nothing"
    figure(bench, f"SIGSTOP of executor and JVM at {len(POINTS)} points, take-over, SIGCONT", result)


@pytest.fixture(params=WITH_DELETES)
def merging(new_case: NewCase, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    kind, version = request.param.split()
    with bench_at(tmp_path, new_case(kind, version=int(version), merge_on_read=True)) as made:
        yield made


@pytest.mark.parametrize("point", ["after_rewrite", "in_commit", "after_commit"])
@pytest.mark.crossed(3)
def test_a_killed_plan_with_deletes_commits_once_and_no_deleted_row_returns(merging: Bench, point: str):
    merge_on_read_delete(merging.case, merging.table, "id IN (7, 299)")
    before, plan = merging.rows(), merging.request()
    killed = start(merging, "once", lease=60, failpoints=f"{point}=kill")
    output = wait(killed)
    assert killed.returncode == -signal.SIGKILL, output
    assert merging.rows() == before
    merging.expire()
    output = wait(start(merging, "once", lease=60))
    assert merging.state(plan) == "completed", output
    ended(merging, plan, before)
    assert len(before) == 298
    figure(
        merging,
        f"kill -9 of an executor {point.replace('_', ' ')} of a plan over files with row-level deletes",
        "the plan committed once; no deleted row returned",
    )
