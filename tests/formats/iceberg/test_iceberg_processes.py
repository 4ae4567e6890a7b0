# SPDX-License-Identifier: Apache-2.0
"""Executors of Iceberg tables in processes of their own, each with a JVM: killed at every point of a plan."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.processes import KillContract
from contract.run import ended
from iceberg_case import NewCase
from iceberg_writers import merge_on_read_delete
from toys.bench import Bench, bench_at
from toys.processes import start, wait

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.paired("bench")]


@pytest.fixture(params=["rest", "postgresql"])
def bench(new_case: NewCase, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    with bench_at(tmp_path, new_case(request.param)) as made:
        yield made


@pytest.mark.shown_by(
    "tests/reliability/test_crashes.py::test_a_plan_whose_executor_is_killed_at_any_step_commits_exactly_once"
)
class TestKills(KillContract):
    """Killed at every point but the one right before the call of the catalog."""


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


@pytest.fixture
def merging(new_case: NewCase, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    with bench_at(tmp_path, new_case("postgresql", version=request.param, merge_on_read=True)) as made:
        yield made


@pytest.mark.parametrize("point", ["after_rewrite", "in_commit", "after_commit"])
@pytest.mark.parametrize("merging", [2, 3], indirect=True)
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
