# SPDX-License-Identifier: Apache-2.0
"""The selection of one plan's content from all worthwhile work: either clustering groups or slices to compact."""

from dataclasses import dataclass

import numpy as np

from lake.plan import PlanKind
from planner.candidates import Candidates, Codes
from planner.groups import Groups
from planner.policy.enums import BALANCED
from planner.policy.fields import PlanningSettings
from planner.reasons import PLANNABLE, REASON_CODES, UNDECIDED, Reason, reason_mask
from planner.slice_columns import Ints, Mask
from planner.worthwhile import WorthwhileWork

_PLANNABLE = reason_mask(PLANNABLE)
#: if clustering skips a slice for one of these reasons, the slice's distance to compaction is reported instead
_SKIPPED_BY_CLUSTERING = reason_mask(
    (Reason.ABOVE_LIMIT, Reason.NOT_CLUSTERED, Reason.OVERSIZED, Reason.ALONE, Reason.FEW_FILES, Reason.NO_GAIN)
)


@dataclass(slots=True, kw_only=True)
class Selection:
    """The content of a plan: the groups of ``groups`` at the positions ``picked``; no plan if ``picked`` is empty.

    ``work`` is all worthwhile work, from which it was selected. ``reason_codes`` and ``reason_numbers`` are the reasons
    of all slices, including the slices that the candidates left undecided.
    """

    work: WorthwhileWork
    kind: PlanKind
    groups: Groups
    picked: Ints
    reason_codes: Codes
    reason_numbers: Ints

    def decide(self, rows: Mask | Ints, reason: Reason, reason_numbers: Ints | int = 0) -> None:
        """Set the reason of ``rows`` and the reason's number."""
        self.reason_codes[rows] = REASON_CODES[reason]
        self.reason_numbers[rows] = reason_numbers


def select_next_plan(
    work: WorthwhileWork, candidates: Candidates, policy: PlanningSettings, *, free: Mask
) -> Selection:
    """Select the next plan from ``work``, the worthwhile work of ``candidates``, and give every slice its reason.

    ``free`` marks the partitions that no live plan has locked.
    """
    selection = Selection(
        work=work,
        kind=PlanKind.CLUSTERING,
        groups=work.clusters,
        picked=np.empty(0, dtype=np.int64),
        reason_codes=candidates.reason_codes.copy(),
        reason_numbers=candidates.reason_numbers.copy(),
    )
    large = work.too_large_rows
    selection.decide(large, Reason.OVER_PLAN, candidates.bytes[large] + candidates.log_bytes[large])
    if not candidates.can_be_clustered:
        selection.decide(selection.reason_codes == UNDECIDED, Reason.NOT_CLUSTERED)
    grouped = _choose_groups(selection, work.clusters, candidates, policy, free)
    compacted = _choose_slices(selection, work.compaction_rows, candidates, policy, free)
    _explain_oversized(selection, candidates, free)
    if policy.compaction and PlanKind.COMPACTION in work.kinds:
        _explain_not_due(selection, work.compaction_rows, candidates, policy)
    if len(compacted) and not (work.is_clustering_first and len(grouped)):
        selection.kind, selection.groups = PlanKind.COMPACTION, _single_slice_groups(compacted, candidates)
        selection.picked = np.arange(len(compacted))
        _defer_to_next_plan(selection, work.clustering_rows)
        return selection
    _defer_to_next_plan(selection, work.compaction_rows)
    if PlanKind.CLUSTERING in work.kinds:
        selection.picked = grouped
    else:
        _defer_to_next_plan(selection, work.clustering_rows)
    return selection


def explain_budget(selection: Selection, unlimited: Selection, sizes: Ints) -> None:
    """Correct the reasons in ``selection``, whose plans a budget limits, by the reasons without this budget.

    ``unlimited`` was selected from the same candidates without the budget; ``sizes`` are the bytes of the slices, logs
    included. A slice that is worthwhile only without the budget gets the reason ``OVER_BUDGET`` with the bytes of its
    group; a live plan of its partition remains its reason. A slice that is not worthwhile at all gets its reason
    without the budget, which the smaller groups would distort.
    """
    planned, worthwhile = selection.work.mask, unlimited.work.mask
    selection.reason_codes[~planned] = unlimited.reason_codes[~planned]
    selection.reason_numbers[~planned] = unlimited.reason_numbers[~planned]
    clusters = unlimited.work.clusters
    in_clusters = np.zeros(len(sizes), dtype=np.bool_)
    in_clusters[unlimited.work.clustering_rows] = True
    group_sizes = np.zeros(len(sizes), dtype=np.int64)
    group_sizes[clusters.rows] = np.repeat(clusters.bytes, clusters.files)
    over_budget = worthwhile & ~planned & (selection.reason_codes != REASON_CODES[Reason.HELD])
    selection.decide(over_budget, Reason.OVER_BUDGET, np.where(in_clusters, group_sizes, sizes)[over_budget])


def _choose_groups(
    selection: Selection, groups: Groups, candidates: Candidates, policy: PlanningSettings, free: Mask
) -> Ints:
    """Return the positions of the groups of one plan, and give every slice of every group its reason."""
    codes, numbers = groups.rejection_codes.copy(), groups.rejection_numbers.copy()
    codes[~free[groups.partition]] = REASON_CODES[Reason.HELD]

    wanted = np.flatnonzero(groups.worthwhile & free[groups.partition])
    taken = wanted  # in the order of partitions
    if len(wanted) > policy.max_num_groups or groups.bytes[wanted].sum() > policy.max_bytes_per_plan:
        offered = wanted[_order_of_preference(groups, wanted, candidates, policy)]
        chosen, room = _first_fit(groups.bytes[offered], policy.max_num_groups, policy.max_bytes_per_plan)
        taken = np.sort(offered[chosen])
        full = len(taken) == policy.max_num_groups
        waiting = groups.bytes[wanted]
        later = np.where(
            full & (waiting <= room), REASON_CODES[Reason.NEXT_PLAN_GROUPS], REASON_CODES[Reason.NEXT_PLAN_BYTES]
        )
        codes[wanted], numbers[wanted] = later, waiting
    codes[taken] = REASON_CODES[Reason.CHOSEN]
    numbers[taken] = np.arange(len(taken))
    selection.reason_codes[groups.rows] = np.repeat(codes, groups.files)
    selection.reason_numbers[groups.rows] = np.repeat(numbers, groups.files)
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
    removed = np.where(groups.is_split, 0, groups.files - groups.small_outputs)
    gain = removed[wanted] / share
    return np.lexsort((groups.start[wanted], groups.bytes[wanted], -gain))


def _first_fit(sizes: Ints, max_count: int, capacity: int) -> tuple[Ints, int]:
    """Return positions of the first ``sizes``, up to ``max_count``, that fit into ``capacity``, and the capacity left.

    A size that exceeds the capacity left is skipped in favour of later sizes that fit.
    """
    taken: list[Ints] = []
    position = count = 0
    while count < max_count and position < len(sizes):
        reach = np.cumsum(sizes[position : position + max_count - count])
        fit = int(np.searchsorted(reach, capacity, side="right"))
        if fit:
            taken.append(np.arange(position, position + fit))
            capacity -= int(reach[fit - 1])
            position, count = position + fit, count + fit
            continue
        fits = sizes[position:] <= capacity
        step = int(fits.argmax())
        if not fits[step]:
            break
        position += step
    return (np.concatenate(taken) if taken else np.empty(0, dtype=np.int64)), capacity


def _choose_slices(
    selection: Selection, due: Ints, candidates: Candidates, policy: PlanningSettings, free: Mask
) -> Ints:
    """Return the rows of ``due`` for one compaction plan, in their order, and give every row of ``due`` its reason."""
    if not len(due):
        return due
    sizes = candidates.bytes[due] + candidates.log_bytes[due]
    available = free[candidates.partition[due]]
    selection.decide(due[~available], Reason.HELD)
    wanted = np.flatnonzero(available)
    places, room = _first_fit(sizes[wanted], policy.max_slices_per_compaction, policy.max_bytes_per_plan)
    waiting = sizes[wanted]
    full = (len(places) == policy.max_slices_per_compaction) & (waiting <= room)
    selection.reason_codes[due[wanted]] = np.where(
        full, REASON_CODES[Reason.NEXT_PLAN_SLICES], REASON_CODES[Reason.NEXT_PLAN_BYTES]
    )
    selection.reason_numbers[due[wanted]] = waiting
    chosen = due[wanted[places]]
    selection.decide(chosen, Reason.CHOSEN, np.arange(len(chosen)))
    return chosen


def _single_slice_groups(rows: Ints, candidates: Candidates) -> Groups:
    """Return a group for each of ``rows``, which becomes one file."""
    positions = np.arange(len(rows), dtype=np.int64)
    ones = np.ones(len(rows), dtype=np.int64)
    return Groups(
        rows=rows,
        start=positions,
        end=positions + 1,
        partition=candidates.partition[rows].astype(np.int64),
        bytes=candidates.bytes[rows] + candidates.log_bytes[rows],
        log_bytes=candidates.log_bytes[rows],
        outputs=ones,
        small_outputs=ones,
        worthwhile=ones.astype(np.bool_),
        rejection_codes=np.zeros(len(rows), dtype=np.int8),
        rejection_numbers=np.zeros(len(rows), dtype=np.int64),
    )


def _explain_oversized(selection: Selection, candidates: Candidates, free: Mask) -> None:
    """Set the reason of the slices that are still undecided: they are too large for every group."""
    rows = np.flatnonzero(selection.reason_codes == UNDECIDED)
    selection.decide(rows, Reason.OVERSIZED, candidates.bytes[rows] + candidates.log_bytes[rows])
    selection.decide(rows[~free[candidates.partition[rows]]], Reason.HELD)


def _explain_not_due(selection: Selection, due: Ints, candidates: Candidates, policy: PlanningSettings) -> None:
    """Set the reason of slices with logs that no plan takes: too few log files, or too few deleted rows."""
    left = candidates.rewritable & (candidates.log_files > 0) & _SKIPPED_BY_CLUSTERING[selection.reason_codes]
    left[due] = False
    selection.decide(left, Reason.FEW_LOGS, candidates.log_files[left])
    rows = np.flatnonzero(left)
    shares = candidates.details.deleted_row_share(rows) if policy.compact_delete_ratio else None
    if shares is not None:
        known = ~np.isnan(shares)
        selection.decide(rows[known], Reason.FEW_DELETED, np.floor(shares[known] * 1_000).astype(np.int64))


def _defer_to_next_plan(selection: Selection, rows: Ints) -> None:
    """Defer the plannable slices of ``rows`` to a later plan, since this plan is of the other kind."""
    selection.decide(rows[_PLANNABLE[selection.reason_codes[rows]]], Reason.NEXT_PLAN_KIND)
