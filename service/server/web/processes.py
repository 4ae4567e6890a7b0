# SPDX-License-Identifier: Apache-2.0
"""The page of processes: their running plans, the executors' day, and notices about work that no process does."""

from datetime import datetime

from service.control import serializers
from service.control.lake_cache import LakeState
from service.server.web.gantt import ExecutorDay
from service.server.web.notices import process_notices
from service.server.web.rendering import PageContent


def processes_page(lake: LakeState, day: ExecutorDay | None, now: datetime) -> PageContent:
    """Return the page of the processes in ``lake``; ``day`` is the chart of the last day's attempts."""
    return PageContent(
        notices=tuple(process_notices(lake, now)),
        processes=serializers.process_list(lake.processes, lake.leaders, lake.running_plans),
        day=day,
    )
