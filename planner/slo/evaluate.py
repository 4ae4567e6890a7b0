# SPDX-License-Identifier: Apache-2.0
"""The evaluation of a table's objectives by a scan.

Residual small files count against no objective, since no worthwhile plan can remove them.
"""

from datetime import timedelta

import pyarrow.compute as pc

from lake.units import GIB
from planner.policy.fields import TableSettings
from planner.result import PlanningResult
from planner.slo.model import Objective, ObjectiveEvaluation

#: maximum validity of an evaluation without a next scan: this number of scan intervals, or this time if it is longer
_VALID_SCAN_INTERVALS = 3
_MIN_VALIDITY = timedelta(hours=1)


def evaluate_objectives(planning: PlanningResult, settings: TableSettings) -> tuple[ObjectiveEvaluation, ...]:
    """Evaluate the configured objectives by the planned snapshot."""
    if not settings.has_objectives:
        return ()
    bounds = {
        Objective.SMALL_FILE_SHARE: settings.slo_small_file_share,
        Objective.FILES_PER_GIB: settings.slo_files_per_gib,
        Objective.OLDEST_SMALL_FILE: settings.slo_oldest_small_file.total_seconds(),
    }
    values = _objective_values(planning)
    holds = max(_MIN_VALIDITY, _VALID_SCAN_INTERVALS * settings.scan_interval)
    return tuple(
        ObjectiveEvaluation(
            objective=objective,
            value=values[objective],
            bound=bound,
            goal=settings.slo_goal,
            window=settings.slo_window,
            valid_for=holds,
        )
        for objective, bound in bounds.items()
        if bound
    )


def _objective_values(planning: PlanningResult) -> dict[Objective, float]:
    decisions = planning.decisions
    is_file, sizes = pc.is_valid(decisions["path"]), decisions["bytes"]
    small = pc.and_(is_file, pc.less(sizes, planning.policy.small_file_limit_bytes))
    reducible = pc.and_(small, decisions["reducible"])
    counted = pc.and_(is_file, pc.or_(reducible, pc.invert(small)))
    files, avoidable, kept = (int(pc.sum(mask, min_count=0).as_py()) for mask in (is_file, reducible, counted))
    size = int(pc.sum(pc.if_else(counted, sizes, 0), min_count=0).as_py())
    oldest = pc.min(planning.snapshot.slices["modified_at"].filter(reducible)).as_py()
    age = timedelta(0) if oldest is None else planning.snapshot.taken_at - oldest
    return {
        Objective.SMALL_FILE_SHARE: avoidable / files if files else 0.0,
        Objective.FILES_PER_GIB: kept * GIB / size if size else 0.0,
        Objective.OLDEST_SMALL_FILE: max(0.0, age.total_seconds()),
    }
