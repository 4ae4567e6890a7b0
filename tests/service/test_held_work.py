# SPDX-License-Identifier: Apache-2.0
"""Budgets and run hours from the configuration to the plans of a table: limits, waiting plans, and their messages."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from daemon_toys import write_config
from store_plans import sql
from toys.timeline_tables import create

from lake.model import TableRef
from lake.plan import PlanState
from service.control import serializers
from service.control.config.loader import load_config
from service.control.lake_cache import read_lake_state
from service.control.planning.scan import scan_and_plan
from service.control.serializers import queries
from service.control.store import Store
from service.control.wiring import create_store
from service.server.daemon.process import Daemon
from service.server.observability.metrics import Metrics

pytestmark = pytest.mark.slow


@pytest.fixture
def table(tmp_path: Path, toys: object) -> TableRef:
    """Two partitions of three small files each."""
    return create(tmp_path / "lake" / "t1", name="t1")


def partition_bytes(table: TableRef) -> int:
    """Of the larger of the two."""
    folders = (Path(table.location) / f"dt={number}" for number in range(2))
    return max(sum(file.stat().st_size for file in folder.iterdir()) for folder in folders)


@contextmanager
def daemon(home: Path, **policy: object) -> Iterator[Daemon]:
    with Daemon(load_config(write_config(home, policy=policy)), "all") as running:
        yield running


@pytest.fixture
def store(tmp_path: Path, table: TableRef) -> Iterator[Store]:
    opened = create_store(load_config(write_config(tmp_path)))
    opened.upgrade()
    yield opened
    opened.close()


def test_plans_are_cut_to_the_budget_of_their_table_and_the_rest_is_planned_when_there_is_room(
    tmp_path: Path, table: TableRef, store: Store
) -> None:
    policy = {"budget_bytes_per_hour": f"{partition_bytes(table)}B"}
    for _ in range(2):
        with daemon(tmp_path, **policy) as running:
            running.run_once()
        (done,) = store.plans()
        assert (done.state, done.partition_count) == (PlanState.COMPLETED, 1)
    assert done.estimate["worth"]["cpu_seconds"] == pytest.approx(5, abs=0.01)
    assert done.used_cpu_seconds is not None
    with daemon(tmp_path, **policy) as running:
        answer = scan_and_plan(running.config, running.store, running.scheduler._catalog.find("t1"), actor="test")
        assert (answer.outcome, answer.text) == ("nothing", "the budget of t1 is used up; later scans plan it")
    sql(store.url, "UPDATE charge SET at_ms = at_ms - 3600000")
    with daemon(tmp_path, **policy) as running:
        running.run_once()
    assert [plan.state for plan in store.plans()] == [PlanState.COMPLETED] * 2


def test_a_plan_outside_its_hours_waits_and_every_view_shows_that_reason(
    tmp_path: Path, table: TableRef, store: Store
) -> None:
    elsewhen = f"{datetime.now(UTC) + timedelta(days=3):%a} 12:00-12:01".lower()
    with daemon(tmp_path, run_windows=[elsewhen], max_num_groups=2) as running:
        running.run_once()
        (plan,) = running.store.plans()
        assert plan.state is PlanState.REQUESTED
        held = queries.load_plan(running.store, plan.plan_id)["wait_reason"]
        assert held.startswith("waits for the hours of t1 (run_windows), the next at ")
        lake = read_lake_state(running.store)
        (line,) = serializers.describe_held_work(serializers.status(lake)["work"])
        assert line == f"1 plan held back; plan {plan.plan_id} {held}."
        metrics = Metrics("all")
        metrics.stored.publish(lake)
        value = metrics.registry.get_sample_value
        assert [value("lakefold_plans_held", {"reason": kind}) for kind in ("budget", "window", "exceeds_budget")] == [
            0,
            1,
            0,
        ]
    with daemon(tmp_path) as running:
        running.run_once()
    assert store.plan(plan.plan_id).state is PlanState.COMPLETED
    assert serializers.held_reason(store, store.plan(plan.plan_id)) is None


def test_the_budget_of_all_tables_and_its_use_are_metrics(tmp_path: Path, table: TableRef, store: Store) -> None:
    path = write_config(tmp_path)
    path.write_text(path.read_text() + '\n[work]\nbytes_per_day = "1GiB"\n')
    with Daemon(load_config(path), "all") as running:
        running.run_once()
        lake = read_lake_state(running.store)
        metrics = Metrics("all")
        metrics.stored.publish(lake)
        value, labels = metrics.registry.get_sample_value, {"quantity": "bytes", "window": "day"}
        used = sum(plan.input_bytes for plan in running.store.plans())
        assert value("lakefold_work_budget", labels) == 1 << 30
        assert value("lakefold_work_used", labels) == used > 0
        assert value("lakefold_work_used", {"quantity": "bytes", "window": "hour"}) is None
        assert serializers.status(lake)["work"]["budget"]["bytes_per_day"]["remaining"] == (1 << 30) - used
