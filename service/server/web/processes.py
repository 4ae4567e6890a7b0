# SPDX-License-Identifier: Apache-2.0
"""The page of processes: who works, on what, and what is left undone for want of somebody."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.control import serializers
from service.control.lake_cache import LakeState
from service.server.web.notices import Notice, process_notices


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessesPage:
    """Everything the page shows."""

    notices: tuple[Notice, ...]
    processes: Sequence[Mapping[str, Any]]


def processes_page(lake: LakeState) -> ProcessesPage:
    """The page of one reading."""
    return ProcessesPage(
        notices=tuple(process_notices(lake, lake.figures.taken_at)),
        processes=serializers.process_list(lake.processes, lake.leaders, lake.running_plans),
    )
