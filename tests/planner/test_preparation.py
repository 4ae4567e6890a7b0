# SPDX-License-Identifier: Apache-2.0
"""One preparation of a table serves all plans at its snapshot."""

from datetime import timedelta

import pytest
from plan_inputs import GIB, MIB, NOW, File, snapshot

from planner.budgets import PlanSizeLimit
from planner.candidates import PlanningConstraints
from planner.planner import next_plan, plan_table
from planner.policy.policy import SizingPolicy
from planner.preparation import prepare_table

FILES = [
    *(File(id=f"small-{n}", bytes=(3 + n) * MIB, partition=f"dt={n % 4}") for n in range(40)),
    *(File(id=f"logs-{n}", bytes=90 * MIB, partition=f"dt={n % 4}", log_bytes=n * 9 * MIB) for n in range(12)),
    *(File(id=f"young-{n}", bytes=MIB, partition=f"dt={n}", age=timedelta(seconds=9)) for n in range(4)),
    *(File(id=f"large-{n}", bytes=2 * GIB, partition=f"dt={n}") for n in range(4)),
]


@pytest.mark.parametrize("rewrite_first", ["compaction", "clustering"])
@pytest.mark.parametrize("limit", [None, 0, 60 * MIB, 400 * MIB])
def test_each_further_plan_of_a_preparation_is_the_plan_that_a_new_planning_makes(
    rewrite_first: str, limit: int | None
) -> None:
    settings = {"rewrite_first": rewrite_first, "compaction": True, "compact_log_ratio": 0.5, "max_num_groups": 1}
    settings["max_slices_per_compaction"] = 2
    shot, policy, held = snapshot(FILES), SizingPolicy.from_settings(settings), dict[str, str]()
    budget = None if limit is None else PlanSizeLimit(setting="budget_bytes_per_hour", value="x", max_bytes=limit)
    prepared, plans = prepare_table(shot, policy, now=NOW, budget=budget), 0
    while True:
        constraints = PlanningConstraints(locked_partitions=held)
        again = plan_table(shot, policy, now=NOW, plan_id="p", constraints=constraints, budget=budget)
        further = next_plan(prepared, "p", held)
        assert (further.plan, further.estimate, further.benefit) == (again.plan, again.estimate, again.benefit)
        assert further.decisions == again.decisions
        assert further.reason_texts(range(len(FILES))) == again.reason_texts(range(len(FILES)))
        if further.plan is None:
            break
        plans, held = plans + 1, held | dict.fromkeys(further.plan.partitions, "other")
    assert plans > 1 if limit != 0 else plans == 0
