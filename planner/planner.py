# SPDX-License-Identifier: Apache-2.0
"""Planning: from a table's snapshot and its policy to the next plan, with a reason for every slice.

The stages are: candidates, worthwhile work (compaction, groups, payback), the selection of one plan, the result. A
stage takes the results of earlier stages and does not change them.
"""

from datetime import datetime

import numpy as np

from lake.model import Snapshot
from planner.budgets import PlanSizeLimit
from planner.candidates import PlanningConstraints, find_candidates
from planner.cost import DEFAULT_COST_INPUTS, CostInputs, estimate_benefit
from planner.policy.fields import PlanningSettings
from planner.reasons import TEMPORARY, reason_mask
from planner.result import PlanningResult, decision_table, estimate_effect, selected_plan
from planner.selection import explain_budget, select_next_plan
from planner.worthwhile import find_worthwhile

#: every file of the table may be planned
UNCONSTRAINED = PlanningConstraints()
_IS_TEMPORARY = reason_mask(TEMPORARY)


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
    if now.tzinfo is None:
        raise ValueError("now must be timezone-aware")
    if budget is not None and budget.max_bytes >= policy.max_bytes_per_plan:
        budget = None
    bounds = policy if budget is None else budget.capped(policy)
    kinds = constraints.kinds

    found = later = find_candidates(snapshot, policy, constraints, now=now)
    if _IS_TEMPORARY[found.reason_codes].any():
        later = find_candidates(snapshot, policy, constraints, now=now, apply_waiting=False)
    free = np.ones(len(found.partitions), dtype=np.bool_)
    free[[index for index, name in enumerate(found.partitions) if name in constraints.locked_partitions]] = False

    work = unlimited_work = find_worthwhile(found, bounds, cost_inputs, now=now, kinds=kinds)
    if budget is not None:
        unlimited_work = find_worthwhile(found, policy, cost_inputs, now=now, kinds=kinds)
    reducible = work.mask | unlimited_work.mask
    if later is not found:
        reducible |= find_worthwhile(later, policy, cost_inputs, now=now, kinds=kinds).mask

    selection = select_next_plan(work, found, bounds, free=free)
    if budget is not None:
        unlimited = select_next_plan(unlimited_work, found, policy, free=free)
        explain_budget(selection, unlimited, found.bytes + found.log_bytes)
    plan = selected_plan(selection, snapshot, found, policy, plan_id)
    return PlanningResult(
        snapshot=snapshot,
        policy=policy,
        budget=budget,
        constraints=constraints,
        plan=plan,
        decisions=decision_table(snapshot, selection, reducible),
        estimate=estimate_effect(selection, snapshot, found, policy),
        benefit=None if plan is None else estimate_benefit(plan, policy, cost_inputs),
    )
