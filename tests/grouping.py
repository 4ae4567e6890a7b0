# SPDX-License-Identifier: Apache-2.0
"""The groups of a whole table, which the planner forms range by range."""

import numpy as np

from planner.candidates import Candidates
from planner.groups import Groups, concatenate_groups, form_groups_by_range
from planner.policy.fields import PlanningSettings
from planner.reasons import UNDECIDED


def form_groups(candidates: Candidates, policy: PlanningSettings) -> Groups:
    """Form groups of all undecided slices, locked partitions included."""
    wanted = candidates.reason_codes == UNDECIDED
    return concatenate_groups(form_groups_by_range(candidates, policy, wanted), int(np.count_nonzero(wanted)))
