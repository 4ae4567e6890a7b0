# SPDX-License-Identifier: Apache-2.0
"""Planning: from a table's snapshot and its policy to the next plan, with a reason for every slice.

The stages are: candidates and worthwhile work (``prepare_table``), the selection of one plan, the result. A stage takes
the results of earlier stages and does not change them, so one preparation serves all plans at its snapshot.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

import numpy as np

from lake.model import Snapshot
from planner.budgets import PlanSizeLimit
from planner.candidates import PlanningConstraints
from planner.cost import DEFAULT_COST_INPUTS, CostInputs, estimate_benefit
from planner.plan_selection import explain_budget, select_next_plan
from planner.policy.fields import PlanningSettings
from planner.preparation import UNCONSTRAINED, PreparedTable, prepare_table
from planner.result import PlanningResult, decision_table, estimate_effect, selected_plan


def plan_table(
    snapshot: Snapshot,
    policy: PlanningSettings,
    *,
    now: datetime,
    plan_id: str,
    constraints: PlanningConstraints = UNCONSTRAINED,
    cost_inputs: CostInputs = DEFAULT_COST_INPUTS,
    budget: PlanSizeLimit | None = None,
) -> PlanningResult:
    """Plan ``snapshot`` under ``policy``. The result has the reason of every slice that is not part of the plan.

    ``now`` is timezone-aware; ``plan_id`` is the id of the plan, if there is one. If ``constraints`` allow both kinds
    of plans, ``rewrite_first`` is the kind that is planned first and gets a slice which fits both. ``cost_inputs``
    determine the cost of a group; a group that does not save its cost within the policy's ``payback`` is not planned.
    Plans and groups are no larger than ``budget`` allows. The result depends on the arguments only; the same slices in
    any order give the same plan.
    """
    prepared = prepare_table(snapshot, policy, now=now, constraints=constraints, cost_inputs=cost_inputs, budget=budget)
    return next_plan(prepared, plan_id, constraints.locked_partitions)


def next_plan(prepared: PreparedTable, plan_id: str, locked_partitions: Mapping[str, str]) -> PlanningResult:
    """Return the next plan of a table, with the id ``plan_id``, and the reasons of all slices that it leaves.

    ``locked_partitions`` are the partitions that live plans have locked, with the plans' ids. They replace the locked
    partitions in the constraints of ``prepared``.
    """
    snapshot, policy, candidates = prepared.snapshot, prepared.policy, prepared.candidates
    free = np.ones(len(candidates.partitions), dtype=np.bool_)
    free[[index for index, name in enumerate(candidates.partitions) if name in locked_partitions]] = False
    selection = select_next_plan(prepared.work, candidates, prepared.bounds, free=free)
    if prepared.budget is not None:
        unlimited = select_next_plan(prepared.unlimited_work, candidates, policy, free=free)
        explain_budget(selection, unlimited, candidates.bytes + candidates.log_bytes)
    plan = selected_plan(selection, snapshot, candidates, policy, plan_id)
    return PlanningResult(
        snapshot=snapshot,
        policy=policy,
        budget=prepared.budget,
        constraints=replace(prepared.constraints, locked_partitions=dict(locked_partitions)),
        plan=plan,
        benefit=None if plan is None else estimate_benefit(plan, policy, prepared.cost_inputs),
        decisions=decision_table(snapshot, selection, prepared.reducible),
        estimate=estimate_effect(selection, snapshot, candidates, policy),
    )
