# SPDX-License-Identifier: Apache-2.0
"""The selection of a table's partitions for planning, and their order."""

import re
from collections.abc import Iterable
from datetime import datetime

from planner.policy.enums import PartitionFilter
from planner.policy.fields import PlanningSettings

_HOURS = 24


def select_partitions(paths: Iterable[str], policy: PlanningSettings, *, now: datetime) -> list[str]:
    """Return the partitions among ``paths`` that ``policy`` plans, in the order of planning.

    First, a list of partitions narrows the table, or else a pattern that must match the whole path. Then
    the filter's mode applies to the partitions sorted by path, whatever their paths mean. ``day_rolling`` takes the
    partitions whose position modulo 24 is the hour of ``now`` in its own time zone. ``skip_latest_partitions`` leaves
    out the last partitions by path in every mode.
    """
    chosen = sorted(dict.fromkeys(paths))
    if policy.partition_selected:
        wanted = {path.strip("/") for path in policy.partition_selected}
        chosen = [path for path in chosen if path in wanted]
    elif policy.partition_regex is not None:
        pattern = re.compile(policy.partition_regex)
        chosen = [path for path in chosen if pattern.fullmatch(path)]
    if policy.skip_latest_partitions:
        chosen = chosen[: -policy.skip_latest_partitions]
    match policy.partition_filter:
        case PartitionFilter.RECENT_DAYS:
            chosen = chosen[-policy.recent_partitions :]
        case PartitionFilter.DAY_ROLLING:
            chosen = chosen[now.hour :: _HOURS]
        case PartitionFilter.SELECTED:
            low, high = policy.partition_begin, policy.partition_end
            chosen = [path for path in chosen if (low is None or path >= low) and (high is None or path <= high)]
    return chosen
