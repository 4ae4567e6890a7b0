# SPDX-License-Identifier: Apache-2.0
"""All worthwhile work of a table: groups to cluster and slices to compact, without the limits of a plan and locks."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from lake.plan import PlanKind
from planner.candidates import Candidates, Ints, Mask
from planner.compaction import due_slices
from planner.cost import CostInputs, require_payback
from planner.groups import Groups, form_groups
from planner.policy.enums import RewriteFirst
from planner.policy.fields import PlanningSettings
from planner.reasons import UNDECIDED


@dataclass(frozen=True, slots=True, kw_only=True)
class WorthwhileWork:
    """All worthwhile work of a table's candidates. No slice is both to be clustered and to be compacted.

    ``kinds`` are the allowed kinds of plans, and ``is_clustering_first`` is True if clustering comes first among them.
    ``clusters`` are all groups to cluster, with the groups that are not worthwhile. ``clustering_rows`` are the rows of
    the worthwhile groups, ``compaction_rows`` the rows of slices to compact, best first. ``too_large_rows`` are slices
    that compaction would take if they were not larger than a plan may be. ``mask`` marks the worthwhile slices among
    all slices.
    """

    kinds: Collection[PlanKind]
    is_clustering_first: bool
    clusters: Groups
    clustering_rows: Ints
    compaction_rows: Ints
    too_large_rows: Ints
    mask: Mask


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
    none = np.empty(0, dtype=np.int64)
    is_clustering_first = PlanKind.CLUSTERING in kinds and policy.rewrite_first == RewriteFirst.CLUSTERING
    due, too_large = due_slices(candidates, policy, now=now) if PlanKind.COMPACTION in kinds else (none, none)
    clusterable = candidates.reason_codes == UNDECIDED
    if not candidates.can_be_clustered:
        clusterable[:] = False
    if not is_clustering_first:
        clusterable[due] = False
    clusterable[too_large] = False
    clusters = form_groups(candidates, policy, np.flatnonzero(clusterable))
    if clusters.worthwhile.any():
        logs = np.add.reduceat(candidates.log_bytes[clusters.rows], clusters.start)
        clusters = require_payback(clusters, logs, policy, cost_inputs)
    clustered = clusters.rows[np.repeat(clusters.worthwhile, clusters.files)]
    due = due[~np.isin(due, clustered)] if is_clustering_first else due
    worthwhile = np.zeros(len(candidates.bytes), dtype=np.bool_)
    worthwhile[clustered] = worthwhile[due] = True
    return WorthwhileWork(
        kinds=kinds,
        is_clustering_first=is_clustering_first,
        clusters=clusters,
        clustering_rows=clustered,
        compaction_rows=due,
        too_large_rows=too_large,
        mask=worthwhile,
    )
