# SPDX-License-Identifier: Apache-2.0
"""All worthwhile work of a table: groups to cluster and slices to compact, without the limits of a plan and locks."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from lake.plan import PlanKind
from planner.candidates import Candidates
from planner.compaction import due_slices
from planner.cost import CostInputs, require_payback
from planner.groups import Groups, concatenate_groups, form_groups_by_range
from planner.policy.enums import RewriteFirst
from planner.policy.fields import PlanningSettings
from planner.reasons import UNDECIDED
from planner.slice_columns import Ints, Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class WorthwhileWork:
    """All worthwhile work of a table's candidates. No slice is both to be clustered and to be compacted.

    ``kinds`` are the allowed kinds of plans, and ``is_clustering_first`` is True if clustering comes first among them.
    ``clusters`` are all groups to cluster, with the groups that are not worthwhile. ``compaction_rows`` are the rows of
    slices to compact, best first. ``too_large_rows`` are slices that compaction would take if they were not larger than
    a plan may be. ``mask`` marks the worthwhile slices among all slices.
    """

    kinds: Collection[PlanKind]
    is_clustering_first: bool
    clusters: Groups
    compaction_rows: Ints
    too_large_rows: Ints
    mask: Mask

    @property
    def clustering_rows(self) -> Ints:
        """The rows of the worthwhile groups to cluster."""
        return self.clusters.rows[np.repeat(self.clusters.worthwhile, self.clusters.files)]


def find_worthwhile(
    candidates: Candidates,
    policy: PlanningSettings,
    cost_inputs: CostInputs,
    *,
    now: datetime,
    kinds: Collection[PlanKind] = tuple(PlanKind),
) -> WorthwhileWork:
    """Return all worthwhile work of ``candidates``, regardless of the limits of a plan and of live plans.

    ``rewrite_first`` is the kind that gets a slice which fits both.
    """
    is_clustering_first, due, too_large, clusterable = _divide(candidates, policy, now=now, kinds=kinds)
    mask = np.zeros(len(clusterable), dtype=np.bool_)
    groups = _payable_groups(candidates, policy, cost_inputs, clusterable, mask)
    clusters = concatenate_groups(groups, int(np.count_nonzero(clusterable)))
    if is_clustering_first:
        due = due[~mask[due]]
    mask[due] = True
    return WorthwhileWork(
        kinds=kinds,
        is_clustering_first=is_clustering_first,
        clusters=clusters,
        compaction_rows=due,
        too_large_rows=too_large,
        mask=mask,
    )


def worthwhile_mask(
    candidates: Candidates,
    policy: PlanningSettings,
    cost_inputs: CostInputs,
    *,
    now: datetime,
    kinds: Collection[PlanKind] = tuple(PlanKind),
) -> Mask:
    """Return the ``mask`` of ``find_worthwhile``, with less memory: the groups of one range are kept at a time."""
    _, due, _, clusterable = _divide(candidates, policy, now=now, kinds=kinds)
    mask = np.zeros(len(clusterable), dtype=np.bool_)
    for _groups in _payable_groups(candidates, policy, cost_inputs, clusterable, mask):
        pass
    mask[due] = True
    return mask


def _divide(
    candidates: Candidates, policy: PlanningSettings, *, now: datetime, kinds: Collection[PlanKind]
) -> tuple[bool, Ints, Ints, Mask]:
    """Divide the candidates into those to compact and those that may be clustered.

    Returns whether clustering comes first, the rows to compact, the rows that are too large for that, and the mask of
    the slices that may be clustered.
    """
    none = np.empty(0, dtype=np.int64)
    is_clustering_first = PlanKind.CLUSTERING in kinds and policy.rewrite_first == RewriteFirst.CLUSTERING
    due, too_large = due_slices(candidates, policy, now=now) if PlanKind.COMPACTION in kinds else (none, none)
    clusterable = candidates.reason_codes == UNDECIDED
    if not candidates.can_be_clustered:
        clusterable[:] = False
    if not is_clustering_first:
        clusterable[due] = False
    clusterable[too_large] = False
    return is_clustering_first, due, too_large, clusterable


def _payable_groups(
    candidates: Candidates, policy: PlanningSettings, cost_inputs: CostInputs, clusterable: Mask, mask: Mask
) -> Iterator[Groups]:
    """Yield the groups of the ``clusterable`` slices range by range. Set ``mask`` for slices of worthwhile groups."""
    for formed in form_groups_by_range(candidates, policy, clusterable):
        groups = require_payback(formed, policy, cost_inputs)
        mask[groups.rows] = np.repeat(groups.worthwhile, groups.files)
        yield groups
