# SPDX-License-Identifier: Apache-2.0
"""The stages of planning that do not depend on live plans: candidates and worthwhile work, once for all plans."""

from dataclasses import dataclass
from datetime import datetime

from lake.model import Snapshot
from planner.budgets import PlanSizeLimit
from planner.candidates import Candidates, PlanningConstraints, decide_candidates, read_candidates
from planner.cost import DEFAULT_COST_INPUTS, CostInputs
from planner.policy.fields import PlanningSettings
from planner.reasons import TEMPORARY, reason_mask
from planner.slice_columns import Mask
from planner.worthwhile import WorthwhileWork, find_worthwhile, worthwhile_mask

#: every file of the table may be planned
UNCONSTRAINED = PlanningConstraints()
_IS_TEMPORARY = reason_mask(TEMPORARY)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTable:
    """The work on a table at one snapshot, from which plans are selected.

    ``bounds`` is ``policy`` with the limits of ``budget``, which is None if it does not limit plans more than
    ``policy`` does. ``work`` is the worthwhile work within ``bounds``, ``unlimited_work`` within ``policy``: the same
    object without a budget. ``reducible`` marks the slices that are worthwhile now, without the budget, or once they no
    longer wait (``reasons.TEMPORARY``).
    """

    snapshot: Snapshot
    policy: PlanningSettings
    bounds: PlanningSettings
    budget: PlanSizeLimit | None
    constraints: PlanningConstraints
    cost_inputs: CostInputs
    candidates: Candidates
    work: WorthwhileWork
    unlimited_work: WorthwhileWork
    reducible: Mask


def prepare_table(
    snapshot: Snapshot,
    policy: PlanningSettings,
    *,
    now: datetime,
    constraints: PlanningConstraints = UNCONSTRAINED,
    cost_inputs: CostInputs = DEFAULT_COST_INPUTS,
    budget: PlanSizeLimit | None = None,
) -> PreparedTable:
    """Find the candidates of ``snapshot`` and all worthwhile work under ``policy``.

    ``now`` is timezone-aware. ``cost_inputs`` determine the cost of a group; a group that does not save its cost within
    the policy's ``payback`` is not worthwhile. Plans and groups are no larger than ``budget`` allows.
    """
    if now.tzinfo is None:
        raise ValueError("now must be timezone-aware")
    if budget is not None and budget.max_bytes >= policy.max_bytes_per_plan:
        budget = None
    bounds = policy if budget is None else budget.capped(policy)
    kinds = constraints.kinds
    undecided = read_candidates(snapshot, policy, constraints, now=now)
    found = later = decide_candidates(undecided, snapshot, policy, constraints, now=now)
    if _IS_TEMPORARY[found.reason_codes].any():
        later = decide_candidates(undecided, snapshot, policy, constraints, now=now, apply_waiting=False)
    work = unlimited_work = find_worthwhile(found, bounds, cost_inputs, now=now, kinds=kinds)
    if budget is not None:
        unlimited_work = find_worthwhile(found, policy, cost_inputs, now=now, kinds=kinds)
    reducible = work.mask | unlimited_work.mask
    if later is not found:
        reducible |= worthwhile_mask(later, policy, cost_inputs, now=now, kinds=kinds)
    return PreparedTable(
        snapshot=snapshot,
        policy=policy,
        bounds=bounds,
        budget=budget,
        constraints=constraints,
        cost_inputs=cost_inputs,
        candidates=found,
        work=work,
        unlimited_work=unlimited_work,
        reducible=reducible,
    )
