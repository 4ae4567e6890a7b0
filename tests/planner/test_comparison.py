# SPDX-License-Identifier: Apache-2.0
"""Which of several policies is best, which one is recommended, and what advice comes to."""

from dataclasses import replace
from datetime import timedelta

import pytest
from replay_inputs import MIB, SINCE, commit, generated, history, written

from lake.history import TableHistory
from planner.advice.writer_advice import advise
from planner.cost import CostInputs
from planner.policy.policy import SizingPolicy
from planner.rates import Rates
from planner.replay.comparison import (
    CONFIGURED,
    NO_COMPACTION,
    PolicyComparison,
    PolicyVariant,
    compare_policies,
    replay_variants,
)
from planner.replay.events import writer_history
from planner.writers.simulation import WriterKind

HOUR = timedelta(hours=1)
TERMS = CostInputs(rates=Rates(fixed_seconds=5, seconds_per_byte=1e-8))


def compared(told: TableHistory, **policies: SizingPolicy) -> PolicyComparison:
    """Compare no compaction, the defaults, and ``policies``."""
    tried = [
        PolicyVariant(name=NO_COMPACTION, settings={}, policy=None),
        PolicyVariant(name=CONFIGURED, settings={}, policy=SizingPolicy()),
        *(PolicyVariant(name=name, settings={"x": name}, policy=policy) for name, policy in policies.items()),
    ]
    script = writer_history(told)
    found = list(replay_variants(script, tried, TERMS, small_file_limit_bytes=300 * MIB))
    return compare_policies(script, tried, found, TERMS.rates)


def small_files(hours: int) -> TableHistory:
    """A file of 4 MiB an hour."""
    return history(
        *(commit(SINCE + number * HOUR, written(f"f{number}", 4 * MIB)) for number in range(hours)), days=hours / 24
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_best_policies_are_those_that_no_other_policy_equals_or_beats(seed: int) -> None:
    found = compared(
        generated(80, 4, seed, updates=0.2),
        four=SizingPolicy(min_input_files=4),
        twenty=SizingPolicy(min_input_files=20),
        never=SizingPolicy(min_input_files=5000),
    )
    costs = {one.variant.name: (one.files, one.rewritten_bytes_a_day, one.cpu_seconds_a_day) for one in found.outcomes}
    for one in found.outcomes:
        mine = costs[one.variant.name]
        beaten = any(
            other != mine and all(a <= b for a, b in zip(other, mine, strict=True)) for other in costs.values()
        )
        assert one.is_pareto_optimal is not beaten
    assert next(one for one in found.outcomes if one.variant.name == NO_COMPACTION).is_pareto_optimal


def test_among_policies_with_nearly_as_few_files_the_one_that_rewrites_least_is_recommended() -> None:
    found = compared(small_files(400), eight=SizingPolicy(min_input_files=8), never=SizingPolicy(min_input_files=5000))
    assert found.recommended == "eight"
    assert "fewer files than without compaction" in found.reason
    assert "the configured policy keeps" in found.reason


def test_the_configured_policy_stays_where_nothing_does_as_well_for_noticeably_less() -> None:
    found = compared(small_files(400), never=SizingPolicy(min_input_files=5000))
    assert found.recommended == CONFIGURED
    assert found.reason.endswith("no policy with nearly as few files rewrites a tenth less")


def test_no_policy_is_recommended_where_none_helps() -> None:
    large = history(*(commit(SINCE + number * HOUR, written(f"f{number}", 400 * MIB)) for number in range(9)))
    assert compared(large, four=SizingPolicy(min_input_files=4)).recommended == NO_COMPACTION


def test_write_amplification_is_one_without_compaction_and_grows_with_rewritten_bytes() -> None:
    found = {one.variant.name: one for one in compared(small_files(50)).outcomes}
    assert found[NO_COMPACTION].write_amplification == 1.0
    configured = found[CONFIGURED]
    assert configured.write_amplification == pytest.approx(1 + configured.result.work.rewritten_bytes / (50 * 4 * MIB))


def test_fewer_tasks_of_a_bulk_insert_keep_rows_and_bytes_and_save_the_rewriting() -> None:
    told = history(
        *(
            commit(
                SINCE + number * HOUR,
                *(written(f"f{number}-{part}", 40 * MIB) for part in range(16)),
                operation="bulk_insert",
            )
            for number in range(48)
        ),
        days=2,
    )
    policy = SizingPolicy(payback=timedelta())
    found = advise(told, WriterKind.HUDI_COW, policy, TERMS, max_files=10_000)
    tasks = found.trials[0]
    assert (tasks.remedy.setting, tasks.remedy.value) == ("hoodie.bulkinsert.shuffle.parallelism", "6")
    assert tasks.savings.files == (16 - 6) * 48
    assert tasks.savings.writer_bytes == pytest.approx(0, abs=1000)
    assert found.sources[0].files == 16 * 48


def test_a_model_that_does_not_reproduce_the_history_gives_no_advice() -> None:
    found = advise(
        replace(small_files(5), writer_model="hive"), WriterKind.HIVE, SizingPolicy(), TERMS, max_files=10_000
    )
    assert (found.trials, found.best) == ((), None)
