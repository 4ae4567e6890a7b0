# SPDX-License-Identifier: Apache-2.0
"""The page of processes: their running plans, and notices about work that no process does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.control import serializers
from service.control.lake_cache import LakeState
from service.server.web.notices import Notice, process_notices


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessesPage:
    """The content of the page."""

    notices: tuple[Notice, ...]
    processes: Sequence[Mapping[str, Any]]


def processes_page(lake: LakeState) -> ProcessesPage:
    """Return the page for one reading of the lake."""
    return ProcessesPage(
        notices=tuple(process_notices(lake, lake.figures.taken_at)),
        processes=serializers.process_list(lake.processes, lake.leaders, lake.running_plans),
    )
