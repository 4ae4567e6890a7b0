# SPDX-License-Identifier: Apache-2.0
"""What rewrites are predicted to cost and to save, by the formulas of docs/planning.md."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_inputs import GIB, MIB, File, plan, reasons, texts

from lake.engines import BYTES_PER_SECOND
from lake.plan import Plan
from planner.cost import Benefit, CostInputs, Prices, estimate_benefit
from planner.policy.policy import SizingPolicy
from planner.policy.validation import validation_errors
from planner.rates import FIXED_SECONDS, Rates, fit_rates

EUROS = Prices(cpu_hour=0.05, request_1000=0.005, gib_month=0.02, currency="EUR")
SIXTY = [File(id=f"{number:02}", bytes=10 * MIB) for number in range(60)]


def worth(files: list[File], terms: CostInputs | None = None, **settings: object) -> Benefit:
    policy = SizingPolicy.from_settings(settings)
    made: Plan | None = plan(files, policy).plan
    assert made is not None
    return estimate_benefit(made, policy, terms or CostInputs())


def test_without_history_the_constants_predict_the_cost_of_a_plan():
    assert fit_rates("arrow", []) == Rates(
        fixed_seconds=FIXED_SECONDS, seconds_per_byte=1 / BYTES_PER_SECOND["arrow"], plans=0
    )
    assert worth(SIXTY).cpu_seconds == pytest.approx(5 + 600 / 25)


def test_small_plans_determine_only_the_fixed_cost():
    found = fit_rates("spark", [(MIB, 20.0)] * 100)
    assert found.fixed_seconds == pytest.approx(20, rel=0.02)
    assert found.seconds_per_byte == pytest.approx(1 / BYTES_PER_SECOND["spark"], rel=0.05)


def test_large_plans_determine_the_cost_of_a_byte():
    found = fit_rates("spark", [(60 * GIB, 600.0)] * 100)
    assert found.cpu_seconds(60 * GIB) == pytest.approx(600, rel=0.05)
    assert found.plans == 100


@given(
    fixed=st.floats(1, 100),
    speed=st.floats(5, 500),
    sizes=st.lists(st.integers(1, 200 * GIB), min_size=60, max_size=100),
)
@pytest.mark.slow
def test_a_history_that_follows_the_formula_is_learned(fixed: float, speed: float, sizes: list[int]):
    sizes = [size if place % 2 else size % MIB + 1 for place, size in enumerate(sizes)]
    history = [(size, fixed + size / (speed * MIB)) for size in sizes]
    found = fit_rates("spark", history)
    constants = fit_rates("spark", [])
    off = sum(((found.cpu_seconds(n) - s) / constants.cpu_seconds(n)) ** 2 for n, s in history)
    off_before = sum(((constants.cpu_seconds(n) - s) / constants.cpu_seconds(n)) ** 2 for n, s in history)
    assert off <= off_before + 1e-6


@given(st.lists(st.tuples(st.integers(0, 1 << 50), st.floats(0, 1e9)), max_size=100))
def test_after_any_history_a_larger_plan_has_a_longer_prediction(history: list[tuple[int, float]]):
    found = fit_rates("auto", history)
    assert 0 < found.cpu_seconds(0) < found.cpu_seconds(GIB) < found.cpu_seconds(2 * GIB)


@given(st.floats(0, 1e9))
def test_the_largest_plan_for_some_cpu_takes_no_more_than_that(seconds: float):
    most = Rates().max_bytes(seconds)
    assert most == 0 or Rates().cpu_seconds(most) <= seconds * (1 + 1e-9)


def test_a_plan_saves_opens_footers_and_the_cpu_of_both_with_each_read():
    found = worth(SIXTY, reads_per_day=48)
    assert (found.files_saved, found.opens_saved_a_day) == (59, 59 * 48)
    assert found.bytes_saved_a_day == 59 * 48 * 64 * 1024
    assert found.cpu_seconds_saved_a_day == pytest.approx(59 * 48 * 0.02)
    assert found.payback_days == pytest.approx(29 / (59 * 48 * 0.02))
    assert (found.cost, found.saved_a_day, found.currency) == (None, None, "")


def test_merged_logs_are_bytes_that_readers_save():
    files = [File(id="a", bytes=GIB // 2, logs=[f".log.{n}" for n in range(5)], log_bytes=100 * MIB)]
    found = worth(files, reads_per_day=10)
    assert (found.files_saved, found.opens_saved_a_day) == (0, 50)
    assert found.bytes_saved_a_day == 10 * 100 * MIB + 50 * 64 * 1024
    assert found.cpu_seconds_saved_a_day == pytest.approx(50 * 0.02 + 10 * 100 / 25)


def test_with_prices_a_plan_shows_money():
    found = worth(SIXTY, CostInputs(prices=EUROS, retention=timedelta(days=365.25 / 12)))
    of_cpu, requests, stored = 29 / 3600 * 0.05, (60 * 2 + 1) / 1000 * 0.005, 600 / 1024 * 0.02
    assert found.cost == pytest.approx(of_cpu + requests + stored)
    assert found.saved_a_day == pytest.approx(59 * 24 * (0.02 / 3600 * 0.05 + 2 / 1000 * 0.005))
    assert found.currency == "EUR"
    assert found.payback_days == pytest.approx(found.cost / found.saved_a_day)


def test_a_group_that_does_not_pay_back_in_time_is_left_alone_with_the_reason():
    pair = [File(id="a", bytes=250 * MIB), File(id="b", bytes=250 * MIB)]
    lax, strict = plan(pair, {"payback": "42d"}), plan(pair, {"payback": "41d"})
    assert reasons(lax) == {"a": "chosen", "b": "chosen"}
    assert reasons(strict) == {"a": "no_payback", "b": "no_payback"}
    assert texts(strict)["a"] == "no payback: only after 42 days (payback is 41 d)"
    assert (strict.plan, strict.reducible_files) == (None, 0)


def test_a_table_without_reads_never_pays_back_and_is_planned_if_cost_does_not_matter():
    assert texts(plan(SIXTY, {"reads_per_day": 0}))["00"] == "no payback: the table is not read (reads_per_day is 0)"
    assert plan(SIXTY, {"reads_per_day": 0, "payback": 0}).plan is not None


def test_the_price_of_storage_may_make_a_rewrite_not_worth_it():
    terms = CostInputs(prices=Prices(cpu_hour=0.05, gib_month=1000.0))
    assert set(reasons(plan(SIXTY, cost_inputs=terms)).values()) == {"no_payback"}
    assert set(reasons(plan(SIXTY, cost_inputs=CostInputs(prices=EUROS))).values()) == {"chosen"}


def test_a_slow_installation_leaves_files_alone_that_a_fast_one_rewrites():
    slow = CostInputs(rates=fit_rates("auto", [(60 * GIB, 1_000_000.0)] * 50))
    pair = [File(id="a", bytes=250 * MIB), File(id="b", bytes=250 * MIB)]
    assert set(reasons(plan(pair, cost_inputs=slow)).values()) == {"no_payback"}
    assert set(reasons(plan(pair)).values()) == {"chosen"}


def test_reads_and_payback_below_zero_are_refused():
    assert [*validation_errors(SizingPolicy())] == []
    for settings, words in (({"reads_per_day": -1}, "reads_per_day is -1.0"), ({"payback": "-1d"}, "payback")):
        with pytest.raises(ValueError, match=words):
            SizingPolicy.from_settings(settings)
