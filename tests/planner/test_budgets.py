# SPDX-License-Identifier: Apache-2.0
"""Budgets and the order of plans: nothing beyond a budget, nobody starves, and more is never worth less."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_inputs import MIB, NOW, File, snapshot

from planner.budgets import (
    DAY,
    HOUR,
    Budget,
    BudgetUsage,
    QueuedPlan,
    WorkAmount,
    blocked_by_table_budget,
    cap_by_budgets,
    max_plan_bytes,
    startable_plans,
)
from planner.cost import CostInputs, Rates, estimate_benefit
from planner.planner import plan_table
from planner.policy.policy import SizingPolicy
from planner.priority import priority_offset

TABLES = ("a", "b", "c")
NEW = "new"
_HOURS = 24
#: mistakes that only some queues show are found in so many (test_budget_defects.py)
MANY = settings(max_examples=500, deadline=None)
QUIET = settings(deadline=None)
ROOMS = st.builds(WorkAmount, bytes=st.integers(-5, 60), cpu_ms=st.integers(-5, 60) | st.just(math.inf))


@dataclass(frozen=True)
class Case:
    queue: list[QueuedPlan]
    worth: dict[str, float]
    left: WorkAmount
    of_tables: dict[str, WorkAmount]

    def picked(
        self, left: WorkAmount | None = None, of_tables: Mapping[str, WorkAmount] | None = None
    ) -> list[QueuedPlan]:
        rooms = self.of_tables if of_tables is None else of_tables
        return list(startable_plans(self.queue, self.left if left is None else left, rooms.__getitem__))

    def total(self, plans: Iterable[QueuedPlan]) -> float:
        return sum(self.worth[plan.plan_id] for plan in plans)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    costs = draw(
        st.lists(
            st.tuples(st.sampled_from(TABLES), st.integers(0, 30), st.integers(0, 30), st.floats(0, 1000)), max_size=20
        )
    )
    queue = [
        QueuedPlan(plan_id=str(number), table=table, cost=WorkAmount(bytes=size, cpu_ms=cpu))
        for number, (table, size, cpu, _) in enumerate(costs)
    ]
    worth = {str(number): worth for number, (*_, worth) in enumerate(costs)}
    return Case(queue, worth, draw(ROOMS), {table: draw(ROOMS) for table in TABLES})


def added(plans: Iterable[QueuedPlan]) -> WorkAmount:
    return sum((plan.cost for plan in plans), WorkAmount())


@MANY
@given(cases())
@pytest.mark.slow
def test_budgets_are_never_exceeded(case: Case):
    picked = case.picked()
    assert not picked or added(picked).is_within(case.left)
    for table in TABLES:
        own = [plan for plan in picked if plan.table == table]
        assert not own or added(own).is_within(case.of_tables[table])


@MANY
@given(cases(), st.integers(0, 40), st.integers(0, 40), st.sampled_from((*TABLES, None)))
@pytest.mark.slow
def test_raising_any_budget_starts_all_that_started_before(
    case: Case, more_bytes: int, more_cpu: int, whose: str | None
):
    more = WorkAmount(bytes=more_bytes, cpu_ms=more_cpu)
    if whose is None:
        raised = case.picked(left=case.left + more)
    else:
        raised = case.picked(of_tables={**case.of_tables, whose: case.of_tables[whose] + more})
    assert {plan.plan_id for plan in case.picked()} <= {plan.plan_id for plan in raised}
    assert case.total(raised) >= case.total(case.picked())


@QUIET
@given(cases())
def test_identical_input_picks_identical_plans(case: Case):
    assert case.picked() == case.picked()


@QUIET
@given(cases())
def test_plans_kept_back_by_the_budget_of_one_table_are_those_that_would_start_without_its_plans(case: Case):
    kept_back = blocked_by_table_budget(case.queue, case.left, case.of_tables.__getitem__)
    waits_for_own = {plan_id for plan_id, by in kept_back.items() if by.plan_id == plan_id}
    others = [plan for plan in case.queue if plan.plan_id not in waits_for_own]
    would_start = {plan.plan_id for plan in startable_plans(others, case.left, case.of_tables.__getitem__)}
    assert would_start == {plan.plan_id for plan in case.picked()} | kept_back.keys() - waits_for_own
    assert {by.plan_id for by in kept_back.values()} <= waits_for_own
    places = {plan.plan_id: place for place, plan in enumerate(case.queue)}
    assert all(places[by.plan_id] <= places[plan_id] for plan_id, by in kept_back.items())


@QUIET
@given(cases())
def test_taking_them_one_by_one_in_any_order_takes_the_same(case: Case):
    wanted, queue, left, of_tables = case.picked(), list(case.queue), case.left, dict(case.of_tables)
    taken = []
    while found := list(startable_plans(queue, left, of_tables.__getitem__)):
        one = found[len(taken) % len(found)]
        taken.append(one)
        queue.remove(one)
        left, of_tables[one.table] = left - one.cost, of_tables[one.table] - one.cost
    assert sorted(plan.plan_id for plan in taken) == sorted(plan.plan_id for plan in wanted)


@QUIET
@given(
    st.lists(st.tuples(st.sampled_from(TABLES), st.integers(1, 10), st.floats(0, 1e9)), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, 10), st.floats(1e3, 1e9)), max_size=4),
)
def test_no_table_starves_however_good_the_plans_are_that_keep_coming(plans, newcomers):
    """A day of hours, each with new plans of another table; what was there at first has started at its end."""
    budget, ageing = 10, HOUR / 4
    waiting = [
        (
            -priority_offset(worth, 1, ageing).total_seconds(),
            QueuedPlan(plan_id=str(n), table=table, cost=WorkAmount(bytes=size)),
        )
        for n, (table, size, worth) in enumerate(plans)
    ]
    first = {plan.plan_id for _, plan in waiting}
    for hour in range(_HOURS):
        for number, (size, worth) in enumerate(newcomers):
            rank = hour * 3600 - priority_offset(worth, 1, ageing).total_seconds()
            # As many as fit the hour's budget: what comes in can be done, but for what was there at first.
            if sum(size for size, _ in newcomers[: number + 1]) <= budget - 2:
                waiting.append((rank, QueuedPlan(plan_id=f"{hour}/{number}", table=NEW, cost=WorkAmount(bytes=size))))
        waiting.sort(key=lambda entry: (entry[0], entry[1].plan_id))
        room = WorkAmount(bytes=budget, cpu_ms=math.inf)
        of_tables = dict.fromkeys((*TABLES, NEW), room)
        started = {plan.plan_id for plan in startable_plans([plan for _, plan in waiting], room, of_tables.__getitem__)}
        waiting = [entry for entry in waiting if entry[1].plan_id not in started]
    left_of_first = {plan.plan_id for _, plan in waiting} & first
    assert not left_of_first


@QUIET
@given(
    st.lists(st.tuples(st.integers(0, 200 * 60_000), st.integers(1, 100)), min_size=1, max_size=40),
    st.integers(20, 200),
    st.integers(50, 800),
)
def test_in_no_hour_and_no_day_more_is_charged_than_the_budget(plans, hour_bytes: int, day_bytes: int):
    budget = Budget.from_settings(hour_bytes, day_bytes, 0, 0)
    charged: list[tuple[int, int]] = []
    hour_ms, day_ms = int(HOUR.total_seconds() * 1000), int(DAY.total_seconds() * 1000)
    now = 0
    for wait, size in plans:
        now += wait

        in_hour, in_day = (sum(size for at, size in charged if at > now - span) for span in (hour_ms, day_ms))
        left = budget.remaining(BudgetUsage(hour=WorkAmount(bytes=in_hour), day=WorkAmount(bytes=in_day)))
        one = QueuedPlan(plan_id="p", table="a", cost=WorkAmount(bytes=size))
        charged += [(now, size) for _ in startable_plans([one], left, lambda _: Budget().largest_plan)]
    for at, _ in charged:
        assert sum(size for other, size in charged if at - hour_ms < other <= at) <= hour_bytes
        assert sum(size for other, size in charged if at - day_ms < other <= at) <= day_bytes


def test_a_budget_of_nothing_is_none():
    assert not Budget.from_settings(0, 0, 0, 0).is_set
    assert Budget.from_settings(0, 7, 0, 0.5).largest_plan == WorkAmount(bytes=7, cpu_ms=1_800_000)


def test_a_budget_of_cpu_bounds_a_plan_by_the_bytes_that_it_pays_for():
    rates = Rates(fixed_seconds=10, seconds_per_byte=1 / MIB)
    assert max_plan_bytes([Budget.from_settings(0, 0, 0, 100 / 3600)], rates) == 90 * MIB
    assert (
        max_plan_bytes(
            [Budget.from_settings(50 * MIB, 0, 0, 100 / 3600), Budget.from_settings(0, 40 * MIB, 0, 0)], rates
        )
        == 40 * MIB
    )
    assert max_plan_bytes([Budget()], rates) == math.inf


@QUIET
@given(st.integers(20 * MIB, 2000 * MIB), st.floats(0.005, 0.1))
def test_the_planner_makes_no_plan_that_is_larger_than_a_whole_budget(most: int, cpu_hours: float):
    budget, policy, terms = Budget.from_settings(most, 0, 0, cpu_hours), SizingPolicy(), CostInputs()
    sizing = cap_by_budgets(policy, [budget], terms.rates)
    files = snapshot(File(id=f"{n:03}", bytes=10 * MIB) for n in range(200))
    made = plan_table(files, sizing, now=NOW, plan_id="plan-1").plan
    if made is not None:
        cost = WorkAmount(bytes=made.bytes, cpu_ms=round(1000 * estimate_benefit(made, policy, terms).cpu_seconds))
        assert cost.is_within(budget.largest_plan)
        assert made.bytes >= min(most, 200 * 10 * MIB, max_plan_bytes([budget], terms.rates)) * 0.4
    else:
        assert max_plan_bytes([budget], terms.rates) < 20 * MIB
