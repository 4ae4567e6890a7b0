# SPDX-License-Identifier: Apache-2.0
"""Executors of Hive tables in processes of their own: killed, stopped, and left without a metastore, at every point.

All points are met by one process, with a plan of another table at each; in the short run the one half of them by a
stop, the other by a killed metastore.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from contract.held import POINTS, Held
from contract.processes import KillContract
from hive_case import DATABASE, HiveCase, Owner, table_name
from hive_metastore import MetastoreServer
from support import SOAK, record_figure
from toys.bench import Bench, bench_on
from toys.processes import start, wait
from waiting import suspend

from executors.outcome import RunResult
from lake.formats.hive.commit import metastore_commit
from lake.model import TableRef
from lake.plan import Plan

pytestmark = [pytest.mark.slow, *([pytest.mark.soak] if SOAK else [])]

PAIRS = [f"{kind}-{database}" for kind in ("parquet", "orc") for database in ("sqlite", "postgresql")]


def on(*pairs: str) -> pytest.MarkDecorator:
    """On these kinds of files and databases, paired off, in the short run; on all in the long one."""
    return pytest.mark.parametrize("bench", PAIRS if SOAK else pairs, indirect=True)


@pytest.fixture
def bench(metastore: MetastoreServer, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    kind, database = request.param.split("-")
    with bench_on(database, HiveCase(uri=metastore.uri, kind=kind), request, tmp_path) as made:
        yield made


def figure(bench: Bench, what: str, result: str) -> None:
    database = "postgresql" if bench.url.startswith("postgresql") else "sqlite"
    record_figure(f"{what}, Hive {bench.case.kind} on {database}", result)  # type: ignore[attr-defined]


@on("parquet-postgresql")
@pytest.mark.shown_by(
    "tests/reliability/test_crashes.py::test_a_plan_whose_executor_is_killed_at_any_step_commits_exactly_once"
)
class TestKills(KillContract):
    """Killed at every point. What a commit that was begun would make the table's stays for days, so that is apart."""


@on("parquet-postgresql")
def test_a_plan_killed_right_before_its_call_commits_once(bench: Bench):
    before, plan = bench.rows(), bench.request()
    killed = start(bench, "once", lease=60, failpoints="in_commit=kill")
    wait(killed)
    assert killed.returncode == -signal.SIGKILL
    assert bench.rows() == before
    bench.expire()
    output = wait(start(bench, "once"))
    bench.sweep()
    assert (bench.state(plan), bench.commits(plan), bench.rows()) == ("completed", 1, before), output


@on("orc-sqlite")
def test_executors_suspended_at_every_point_for_longer_than_their_leases_change_nothing_afterwards(bench: Bench):
    points = POINTS if SOAK else POINTS[::2]
    held = Held(bench, points)
    try:
        suspend(held.process.pid)
        bench.expire()
        successor = start(bench, "once", lease=60)
        output = wait(successor)
        assert successor.returncode == 0, output
        states = {bench.state(plan) for plan in held.plans}
        assert states == {"completed"}, output
        held.open()
        os.killpg(held.process.pid, signal.SIGCONT)
        woken = wait(held.process)
    finally:
        held.process.kill()
    held.check(output + woken)
    figure(
        bench,
        f"SIGSTOP at {len(points)} points, take-over, SIGCONT",
        "one commit each; the stopped executors changed nothing",
    )


@on("parquet-sqlite")
def test_plans_whose_metastore_is_killed_at_every_point_commit_once_after_its_restart(
    bench: Bench, metastore: MetastoreServer
):
    points = POINTS if SOAK else POINTS[1::2]
    held = Held(bench, points)
    try:
        metastore.stop()
        held.process.send_signal(signal.SIGTERM)  # what is under way ends, and is not begun again
        held.open()
        time.sleep(1)
    finally:
        metastore.start()
    try:
        lost = wait(held.process)
    finally:
        held.process.kill()
    bench.expire()
    successor = start(bench, "once", lease=60)
    output = wait(successor)
    assert successor.returncode == 0, output
    held.check(lost + output)
    figure(
        bench,
        f"metastore killed with plans at {len(points)} points",
        "each committed once, after the metastore was started again",
    )


# What its owner does to a partition after the last listing.

PARTITION = "dt=0"


def dropped(owner: Owner, table: TableRef, elsewhere: Path) -> None:
    owner.drop(table_name(table), "0")


def added_again(owner: Owner, table: TableRef, elsewhere: Path) -> None:
    owner.drop(table_name(table), "0")
    owner.add(table_name(table), "0", elsewhere)


def relocated(owner: Owner, table: TableRef, elsewhere: Path) -> None:
    ((_, partition),) = owner.partitions(DATABASE, table_name(table), [PARTITION])
    moved = partition.with_changes(partition.storage.with_location(f"file:{elsewhere}"), partition.parameters)
    owner.alter_partitions(DATABASE, table_name(table), [moved])


@pytest.mark.parametrize("change", [dropped, added_again, relocated])
@on("orc-postgresql")
def test_an_owners_change_of_a_partition_right_before_the_move_stays(
    bench: Bench, tmp_path: Path, change: Callable[[Owner, TableRef, Path], None]
):
    case: Any = bench.case
    plan: Plan = bench.request()
    elsewhere, acted = tmp_path / "elsewhere", list[bool]()
    elsewhere.mkdir()

    def act(name: str) -> None:
        if name == "in_commit" and not acted:
            acted.append(True)
            with Owner(case.uri) as owner:
                change(owner, bench.table, elsewhere)

    with mock.patch.object(metastore_commit, "failpoint", act):
        assert bench.run().result is RunResult.COMPLETED, "the other partition is moved"
    assert [group.left_out is None for group in bench.store.plan(plan.plan_id).groups] == [False, True]
    places = case.places(bench.table)
    assert places.get(PARTITION) == (None if change is dropped else elsewhere)
    assert ".lakefold" in str(places["dt=1"])
    bench.sweep()
    assert case.places(bench.table) == places
    assert bench.store.table_state(bench.table.name).halted_reason is None
    assert bench.clean(timedelta()).deleted_files == 3, "of the partition that was moved"
    assert len(list((Path(bench.table.location) / PARTITION).glob("*.*"))) == 3
