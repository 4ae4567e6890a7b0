# SPDX-License-Identifier: Apache-2.0
"""What one plan takes of everything that is worth it: either clustering groups or slices to compact."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from lake.plan import PlanKind
from planner.candidates import Candidates, Ints, Mask
from planner.choices import BALANCED, RewriteFirst
from planner.compaction import choose_slices, due_slices, explain_others, one_group_each
from planner.cost import Terms, payback_days, pays_back
from planner.groups import Groups, first_that_fit, form_groups
from planner.knobs import Sizing
from planner.reasons import CODE, READY, Reason, any_of

_READY = any_of(READY)
CONSTANTS = Terms()
"""Terms of an installation without a history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The groups that a plan takes: those of ``groups`` at the places ``picked``; no plan without any.

    ``clustered`` and ``due`` are the rows of all that is worth it, by what would be done with them.
    """

    kind: PlanKind
    groups: Groups
    picked: Ints
    clustered: Ints
    due: Ints


def select(
    found: Candidates,
    policy: Sizing,
    terms: Terms,
    *,
    now: datetime,
    free: Mask,
    kinds: Collection[PlanKind] = tuple(PlanKind),
) -> Selection:
    """What the next plan takes of what is undecided in ``found``; every slice of it is given its reason.

    ``free`` says of each partition whether no live plan holds it.
    """
    clusters, clustered, due = worth_it(found, policy, terms, now=now, kinds=kinds)
    grouped = _choose_groups(clusters, found, policy, terms, free)
    compacted = choose_slices(due, found, policy, free)
    if _compacting(policy, kinds):
        explain_others(due, found, policy)
    if len(compacted) and not (_clustering_first(policy, kinds) and len(grouped)):
        kind, groups, picked = PlanKind.COMPACTION, one_group_each(compacted, found), np.arange(len(compacted))
        _put_off(clustered, found)
    else:
        kind, groups, picked = PlanKind.CLUSTERING, clusters, grouped
        _put_off(due, found)
        if PlanKind.CLUSTERING not in kinds:
            _put_off(clustered, found)
            picked = picked[:0]
    return Selection(kind=kind, groups=groups, picked=picked, clustered=clustered, due=due)


def worth_it(
    found: Candidates, policy: Sizing, terms: Terms, *, now: datetime, kinds: Collection[PlanKind] = tuple(PlanKind)
) -> tuple[Groups, Ints, Ints]:
    """The groups of what is undecided, the rows of those worth a rewrite, and the rows of slices to be compacted.

    It is all that is worth it, whatever a plan may hold and live plans hold. No row is in both; ``rewrite_first`` says
    which kind gets what both want.
    """
    clustering_first = _clustering_first(policy, kinds)
    due = due_slices(found, policy, now=now) if _compacting(policy, kinds) else np.empty(0, dtype=np.int64)
    if not clustering_first:
        found.decide(due, Reason.NEXT_PLAN_KIND)  # not for clustering to take
    clusters = form_groups(found, policy)
    if policy.payback and clusters.keep.any():
        lost = clusters.keep & ~pays_back(_payback_days(clusters, found, policy, terms), policy)
        why_not = np.where(lost, CODE[Reason.NO_PAYBACK], clusters.why_not).astype(np.int8)
        clusters = replace(clusters, keep=clusters.keep & ~lost, why_not=why_not)
    clustered = clusters.rows[np.repeat(clusters.keep, clusters.files)]
    if clustering_first:
        due = due[~np.isin(due, clustered)]
    return clusters, clustered, due


def _payback_days(groups: Groups, found: Candidates, policy: Sizing, terms: Terms) -> Ints:
    logs = np.add.reduceat(found.log_bytes[groups.rows], groups.start)
    return payback_days(groups, logs, policy, terms)


def _compacting(policy: Sizing, kinds: Collection[PlanKind]) -> bool:
    return policy.compaction and PlanKind.COMPACTION in kinds


def _clustering_first(policy: Sizing, kinds: Collection[PlanKind]) -> bool:
    return PlanKind.CLUSTERING in kinds and policy.rewrite_first == RewriteFirst.CLUSTERING


def _put_off(rows: Ints, found: Candidates) -> None:
    """Leave to a later plan what a plan of the other kind would have taken now."""
    if len(rows):
        found.decide(rows[_READY[found.codes[rows]]], Reason.NEXT_PLAN_KIND)


def _choose_groups(groups: Groups, found: Candidates, policy: Sizing, terms: Terms, free: Mask) -> Ints:
    """The groups of one plan; every slice of every group is given its reason."""
    codes = groups.why_not.copy()
    numbers = np.where(codes == CODE[Reason.NO_GAIN], groups.outputs, groups.files)
    over = codes == CODE[Reason.OVER_PLAN]
    numbers[over] = groups.bytes[over]
    lost = codes == CODE[Reason.NO_PAYBACK]
    if lost.any():
        numbers[lost] = _payback_days(groups, found, policy, terms)[lost]
    codes[~free[groups.partition]] = CODE[Reason.HELD]

    wanted = np.flatnonzero(groups.keep & free[groups.partition])
    taken = wanted  # in the order of partitions
    if len(wanted) > policy.max_num_groups or groups.bytes[wanted].sum() > policy.max_bytes_per_plan:
        offered = wanted[_preference(groups, wanted, found, policy)]
        places, room = first_that_fit(groups.bytes[offered], policy.max_num_groups, policy.max_bytes_per_plan)
        taken = np.sort(offered[places])
        full = len(taken) == policy.max_num_groups
        waiting = groups.bytes[wanted]
        later = np.where(full & (waiting <= room), CODE[Reason.NEXT_PLAN_GROUPS], CODE[Reason.NEXT_PLAN_BYTES])
        codes[wanted], numbers[wanted] = later, waiting
    codes[taken] = CODE[Reason.CHOSEN]
    numbers[taken] = np.arange(len(taken))

    if not free.all():
        found.decide((found.codes == CODE[Reason.OVERSIZED]) & ~free[found.partition], Reason.HELD)
    found.codes[groups.rows] = np.repeat(codes, groups.files)
    found.numbers[groups.rows] = np.repeat(numbers, groups.files)
    return taken


def _preference(groups: Groups, wanted: Ints, found: Candidates, policy: Sizing) -> Ints:
    """The order in which ``wanted`` groups are offered to the plan.

    A format's own strategy goes by partition. Otherwise the most small files removed for the share of the plan used
    up, of its bytes and of its groups together: by bytes alone, pairs of tiny files would take every place there is.
    """
    place = np.zeros(len(found.partitions), dtype=np.int64)
    place[found.order] = np.arange(len(found.order))
    if policy.strategy != BALANCED:
        return np.lexsort((groups.start[wanted], place[groups.partition[wanted]]))
    share = groups.bytes[wanted] / policy.max_bytes_per_plan + 1 / policy.max_num_groups
    gain = (groups.files - groups.small_after)[wanted] / share
    return np.lexsort((groups.start[wanted], groups.bytes[wanted], -gain))
