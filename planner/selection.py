# SPDX-License-Identifier: Apache-2.0
"""The selection of one plan's content from all worthwhile work: either clustering groups or slices to compact."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from lake.plan import PlanKind
from planner.candidates import Candidates, Ints, Mask
from planner.compaction import choose_slices, due_slices, explain_not_due, single_slice_groups
from planner.cost import CostInputs, is_within_payback, payback_days
from planner.groups import Groups, first_fit, form_groups
from planner.policy.enums import BALANCED, RewriteFirst
from planner.policy.fields import PlanningSettings
from planner.reasons import PLANNABLE, REASON_CODES, UNDECIDED, Reason, reason_mask

_PLANNABLE = reason_mask(PLANNABLE)
DEFAULT_COST_INPUTS = CostInputs()
"""The cost inputs of an installation without history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The content of a plan: the groups of ``groups`` at the positions ``picked``; no plan if ``picked`` is empty.

    ``clusters`` are all groups to cluster. ``clustering_rows`` and ``compaction_rows`` are the rows of all worthwhile
    slices, by the kind of rewrite.
    """

    kind: PlanKind
    groups: Groups
    picked: Ints
    clusters: Groups
    clustering_rows: Ints
    compaction_rows: Ints

    def worthwhile(self, slices: int) -> Mask:
        """Return which of a snapshot's ``slices`` are worthwhile."""
        found = np.zeros(slices, dtype=np.bool_)
        found[self.clustering_rows] = found[self.compaction_rows] = True
        return found


def select_next_plan(
    candidates: Candidates,
    policy: PlanningSettings,
    cost_inputs: CostInputs,
    *,
    now: datetime,
    free: Mask,
    kinds: Collection[PlanKind] = tuple(PlanKind),
) -> Selection:
    """Select the next plan from the undecided slices of ``candidates`` and give each of these slices its reason.

    ``free`` marks the partitions that no live plan has locked.
    """
    clusters, clustered, due = find_worthwhile(candidates, policy, cost_inputs, now=now, kinds=kinds)
    grouped = _choose_groups(clusters, candidates, policy, cost_inputs, free)
    compacted = choose_slices(due, candidates, policy, free)
    if _should_compact(policy, kinds):
        explain_not_due(due, candidates, policy)
    if len(compacted) and not (_is_clustering_first(policy, kinds) and len(grouped)):
        kind, groups, picked = (
            PlanKind.COMPACTION,
            single_slice_groups(compacted, candidates),
            np.arange(len(compacted)),
        )
        _defer_to_next_plan(clustered, candidates)
    else:
        kind, groups, picked = PlanKind.CLUSTERING, clusters, grouped
        _defer_to_next_plan(due, candidates)
        if PlanKind.CLUSTERING not in kinds:
            _defer_to_next_plan(clustered, candidates)
            picked = picked[:0]
    return Selection(
        kind=kind, groups=groups, picked=picked, clusters=clusters, clustering_rows=clustered, compaction_rows=due
    )


def explain_budget(candidates: Candidates, within: Selection, decided: Candidates, unlimited: Selection) -> None:
    """Correct the reasons in ``candidates``, whose plans a budget limits, by the reasons without this budget.

    ``within`` was selected from ``candidates``, and ``unlimited`` from ``decided``, the same candidates without the
    budget. A slice that is worthwhile only without the budget gets the reason ``OVER_BUDGET`` with the bytes of its
    group; a live plan of its partition remains its reason. A slice that is not worthwhile at all gets its reason
    without the budget, which the smaller groups would distort.
    """
    planned, worthwhile = within.worthwhile(len(candidates.bytes)), unlimited.worthwhile(len(candidates.bytes))
    candidates.reason_codes[~planned] = decided.reason_codes[~planned]
    candidates.reason_numbers[~planned] = decided.reason_numbers[~planned]
    sizes = candidates.bytes + candidates.log_bytes
    clusters = unlimited.clusters
    in_clusters = np.zeros(len(sizes), dtype=np.bool_)
    in_clusters[unlimited.clustering_rows] = True
    group_sizes = np.zeros(len(sizes), dtype=np.int64)
    group_sizes[clusters.rows] = np.repeat(clusters.bytes, clusters.files)
    over = worthwhile & ~planned & (candidates.reason_codes != REASON_CODES[Reason.HELD])
    candidates.decide(over, Reason.OVER_BUDGET, np.where(in_clusters, group_sizes, sizes)[over])


def find_worthwhile(
    candidates: Candidates,
    policy: PlanningSettings,
    cost_inputs: CostInputs,
    *,
    now: datetime,
    kinds: Collection[PlanKind] = tuple(PlanKind),
) -> tuple[Groups, Ints, Ints]:
    """Return the groups of undecided slices, the rows of the worthwhile groups, and the rows of slices to compact.

    These are all worthwhile slices, regardless of the limits of a plan and of live plans. No row is in both sets:
    ``rewrite_first`` is the kind that gets a slice which fits both.
    """
    clustering_first = candidates.can_be_clustered and _is_clustering_first(policy, kinds)
    due = due_slices(candidates, policy, now=now) if _should_compact(policy, kinds) else np.empty(0, dtype=np.int64)
    if not clustering_first:
        candidates.decide(due, Reason.NEXT_PLAN_KIND)  # so that clustering does not take them
    if not candidates.can_be_clustered:
        candidates.decide(candidates.reason_codes == UNDECIDED, Reason.NOT_CLUSTERED)
    clusters = form_groups(candidates, policy)
    if policy.payback and clusters.worthwhile.any():
        lost = clusters.worthwhile & ~is_within_payback(
            _group_payback_days(clusters, candidates, policy, cost_inputs), policy
        )
        why_not = np.where(lost, REASON_CODES[Reason.NO_PAYBACK], clusters.rejection_codes).astype(np.int8)
        clusters = replace(clusters, worthwhile=clusters.worthwhile & ~lost, rejection_codes=why_not)
    clustered = clusters.rows[np.repeat(clusters.worthwhile, clusters.files)]
    if clustering_first:
        due = due[~np.isin(due, clustered)]
    return clusters, clustered, due


def _group_payback_days(
    groups: Groups, candidates: Candidates, policy: PlanningSettings, cost_inputs: CostInputs
) -> Ints:
    logs = np.add.reduceat(candidates.log_bytes[groups.rows], groups.start)
    return payback_days(groups, logs, policy, cost_inputs)


def _should_compact(policy: PlanningSettings, kinds: Collection[PlanKind]) -> bool:
    return policy.compaction and PlanKind.COMPACTION in kinds


def _is_clustering_first(policy: PlanningSettings, kinds: Collection[PlanKind]) -> bool:
    return PlanKind.CLUSTERING in kinds and policy.rewrite_first == RewriteFirst.CLUSTERING


def _defer_to_next_plan(rows: Ints, candidates: Candidates) -> None:
    """Defer the plannable slices of ``rows`` to a later plan, since this plan is of the other kind."""
    if len(rows):
        candidates.decide(rows[_PLANNABLE[candidates.reason_codes[rows]]], Reason.NEXT_PLAN_KIND)


def _choose_groups(
    groups: Groups, candidates: Candidates, policy: PlanningSettings, cost_inputs: CostInputs, free: Mask
) -> Ints:
    """Choose the groups of one plan and give every slice of every group its reason."""
    codes = groups.rejection_codes.copy()
    numbers = np.where(codes == REASON_CODES[Reason.NO_GAIN], groups.outputs, groups.files)
    over = codes == REASON_CODES[Reason.OVER_PLAN]
    numbers[over] = groups.bytes[over]
    lost = codes == REASON_CODES[Reason.NO_PAYBACK]
    if lost.any():
        numbers[lost] = _group_payback_days(groups, candidates, policy, cost_inputs)[lost]
    codes[~free[groups.partition]] = REASON_CODES[Reason.HELD]

    wanted = np.flatnonzero(groups.worthwhile & free[groups.partition])
    taken = wanted  # in the order of partitions
    if len(wanted) > policy.max_num_groups or groups.bytes[wanted].sum() > policy.max_bytes_per_plan:
        offered = wanted[_order_of_preference(groups, wanted, candidates, policy)]
        chosen, room = first_fit(groups.bytes[offered], policy.max_num_groups, policy.max_bytes_per_plan)
        taken = np.sort(offered[chosen])
        full = len(taken) == policy.max_num_groups
        waiting = groups.bytes[wanted]
        later = np.where(
            full & (waiting <= room), REASON_CODES[Reason.NEXT_PLAN_GROUPS], REASON_CODES[Reason.NEXT_PLAN_BYTES]
        )
        codes[wanted], numbers[wanted] = later, waiting
    codes[taken] = REASON_CODES[Reason.CHOSEN]
    numbers[taken] = np.arange(len(taken))

    if not free.all():
        candidates.decide(
            (candidates.reason_codes == REASON_CODES[Reason.OVERSIZED]) & ~free[candidates.partition], Reason.HELD
        )
    candidates.reason_codes[groups.rows] = np.repeat(codes, groups.files)
    candidates.reason_numbers[groups.rows] = np.repeat(numbers, groups.files)
    return taken


def _order_of_preference(groups: Groups, wanted: Ints, candidates: Candidates, policy: PlanningSettings) -> Ints:
    """Return the order in which the ``wanted`` groups are offered to the plan.

    A format's own strategy orders by partition. Otherwise groups are ordered by the number of small files that they
    remove, divided by the share of the plan's limits that they use. The share counts bytes and groups: if it counted
    only bytes, pairs of tiny files would use up all groups.
    """
    rank = np.zeros(len(candidates.partitions), dtype=np.int64)
    rank[candidates.partition_order] = np.arange(len(candidates.partition_order))
    if policy.strategy != BALANCED:
        return np.lexsort((groups.start[wanted], rank[groups.partition[wanted]]))
    share = groups.bytes[wanted] / policy.max_bytes_per_plan + 1 / policy.max_num_groups
    gain = (groups.files - groups.small_outputs)[wanted] / share
    return np.lexsort((groups.start[wanted], groups.bytes[wanted], -gain))
