# SPDX-License-Identifier: Apache-2.0
"""The recorded CPU time of completed plans, from which later plans are predicted."""

from dataclasses import asdict, replace
from datetime import timedelta

import pytest
from store_plans import TRIPS, claimed, commit_of, figures_of, make_plan

from lake.plan import Plan, Step
from planner.cost import CostInputs, Prices, estimate_benefit
from planner.policy.policy import SizingPolicy
from planner.rates import fit_rates
from service.control.serializers import describe_cost, plan_cost, prediction_errors
from service.control.store import Store, StoreSettings
from service.control.store.plan_creation import QueueEntry
from service.text import to_jsonable

pytestmark = pytest.mark.paired("database_url")

STEPS = {Step.FIND_COMMIT.value: 500, Step.START.value: 30_000, Step.REWRITE.value: 8_000, Step.COMMIT.value: 1_500}
EUROS = CostInputs(prices=Prices(cpu_hour=3.6, currency="EUR"))


def predicted(store: Store, plan: Plan, terms: CostInputs) -> None:
    worth = estimate_benefit(plan, SizingPolicy(), terms)
    store.add_plan(
        plan,
        request_id=None,
        actor="test",
        estimate={"worth": to_jsonable(asdict(worth))},
        queued=QueueEntry(cpu_seconds=worth.cpu_seconds),
    )


def completed(store: Store, *partitions: str, terms: CostInputs = EUROS, files: int = 2) -> Plan:
    plan = make_plan(*partitions, files=files)
    predicted(store, plan, terms)
    store.complete(claimed(store), commit_of(plan), figures_of(plan), STEPS)
    return plan


def test_history_has_bytes_and_cpu_seconds_of_completed_plans_of_the_format_and_engine(database_url: str) -> None:
    store = Store(database_url, StoreSettings(cores_per_plan=2.5))
    assert store.cpu_history("hudi", "auto") == []
    plan = completed(store, "dt=1", "dt=2")
    failed = make_plan("dt=3")
    predicted(store, failed, EUROS)
    store.fail(claimed(store), "no")
    assert store.cpu_history("hudi", "auto") == [(plan.bytes, 25.0)], "10 s of 2.5 cores, without starting Spark"
    assert store.cpu_history("hudi", "arrow") == store.cpu_history("iceberg", "auto") == []
    store.close()


def test_a_plan_shows_its_prediction_beside_its_result(store: Store) -> None:
    plan = completed(store, "dt=1")
    view = store.plan(plan.plan_id)
    worth = plan_cost(view)
    assert worth["predicted"]["cpu_seconds"] == pytest.approx(5.64)
    assert worth["actual"] == {
        "cpu_seconds": 10.0,
        "cpu_measured": False,
        "bytes": plan.bytes,
        "files_saved": 1,
        "cost": pytest.approx(0.01),
    }
    assert worth["errors"] == {"cpu_seconds": pytest.approx(0.436), "bytes": 0.0, "files_saved": 0.0}
    assert dict(describe_cost(worth)) == {
        "predicted": "5.64 s of CPU, 16.0 MiB rewritten, 1 file fewer; 0.00564 EUR (default estimate)",
        "saves": "24 opens, 1.5 MiB and 480 ms of CPU a day, 0.00048 EUR; pays back after 11.7 d "
        "(24 reads a day, configured)",
        "actual": "10 s of CPU (estimated from the duration of its steps, off by 44 %), 16.0 MiB written, 1 file "
        "fewer; 0.01 EUR",
    }


def test_measured_cpu_time_of_tasks_replaces_the_estimate_of_the_rewriting(database_url: str) -> None:
    store = Store(database_url, StoreSettings(cores_per_plan=2.5, max_attempts=3, backoff=timedelta()))
    plan = make_plan("dt=1")
    predicted(store, plan, EUROS)
    claim = claimed(store)
    store.record_step(claim, Step.REWRITE, milliseconds=5_000, cpu_milliseconds=99_000)
    store.requeue(claim, "the lock was not free")  # what an earlier attempt used is not that of the last
    claim = claimed(store)
    store.record_step(claim, Step.FIND_COMMIT, milliseconds=500)
    store.record_step(claim, Step.REWRITE, milliseconds=8_000, cpu_milliseconds=60_000)
    store.record_step(claim, Step.COMMIT, milliseconds=1_500)
    store.complete(claim, commit_of(plan), figures_of(plan), STEPS)
    view = store.plan(plan.plan_id)
    assert (view.used_cpu_seconds, view.cpu_measured) == (65.0, True), "60 s measured, and 2 s of 2.5 cores"
    assert store.cpu_history("hudi", "auto") == [(plan.bytes, 65.0)]
    assert "1m 5s of CPU (12 × as much as predicted" in dict(describe_cost(plan_cost(view)))["actual"]
    store.close()


def test_predictions_become_better_with_history(store: Store) -> None:
    errors = []
    for number in range(8):
        terms = CostInputs(rates=fit_rates("auto", store.cpu_history(TRIPS.format, "auto")))
        plan = completed(store, f"dt={number}", terms=terms)
        errors.append(plan_cost(store.plan(plan.plan_id))["errors"]["cpu_seconds"])
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.4
    assert errors[-1] < 0.1
    assert prediction_errors(store.plans())["cpu_seconds"] < errors[1]
    assert "(from 7 earlier plans)" in describe_cost(plan_cost(store.plans()[0]))[0][1]


def test_plans_from_before_predictions_were_made_have_none_and_spoil_none(store: Store) -> None:
    plan = make_plan("dt=1")
    store.add_plan(plan, request_id=None, actor="test", estimate={})
    worth = plan_cost(store.plan(plan.plan_id))
    assert (worth, describe_cost(worth), prediction_errors(store.plans())) == (
        {"predicted": None, "actual": None, "happened": None, "errors": {}},
        [],
        {},
    )
    view = replace(store.plan(plan.plan_id), used_cpu_seconds=3.0, files_before=2, files_after=1, bytes_after=5)
    assert prediction_errors([view]) == {}
    assert [label for label, _ in describe_cost(plan_cost(view))] == ["actual"]
