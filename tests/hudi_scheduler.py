# SPDX-License-Identifier: Apache-2.0
"""What Hudi's own size-based planner would schedule, by the parts of ours."""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

import numpy as np
from grouping import form_groups

from lake.model import Snapshot
from lake.plan import ClusteringGroup
from planner.candidates import PlanningConstraints, find_candidates
from planner.plan_selection import _order_of_preference
from planner.policy.policy import SizingPolicy
from planner.result import clustering_groups


def hudi_groups(
    snapshot: Snapshot,
    policy: SizingPolicy,
    *,
    now: datetime,
    partitions: Collection[str] | None = None,
    single_groups: bool = True,
) -> tuple[ClusteringGroup, ...]:
    """The groups that Hudi's own size-based planner would schedule, before the convergence rule drops any.

    What ``run_clustering(op => 'schedule')`` writes into a plan: the same slices in the same order and the same number
    of outputs, but for slices that count as equally large, whose order Hudi leaves to a hash table. ``single_groups``
    is its ``single.group.clustering.enabled``: may one file be rewritten into one? Hudi knows no ``quiet_period``.
    """
    policy = replace(policy, strategy="hudi")
    found = find_candidates(snapshot, policy, PlanningConstraints(partitions=partitions), now=now)
    groups = form_groups(found, policy)
    offered = _order_of_preference(groups, np.arange(len(groups.start)), found, policy)
    # Hudi stops cutting a partition at so many groups, then drops those not worth it, then limits the plan.
    partition = groups.partition[offered]
    first = np.flatnonzero(np.diff(partition, prepend=-1))
    number = np.arange(len(offered)) - np.repeat(first, np.diff(first, append=len(offered)))
    kept = offered[number < policy.max_num_groups]
    if not (single_groups or policy.sort_columns):
        kept = kept[(groups.files[kept] > 1) | (groups.outputs[kept] > 1)]
    return clustering_groups(snapshot, found, groups, kept[: policy.max_num_groups])
