# SPDX-License-Identifier: Apache-2.0
"""The chart of a table's plans: the CPU time that the plans took, and the CPU time that readers have saved since."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lake.units import format_elapsed
from service.server.web.time_chart import Series, TimeChart, time_chart

#: maximum number of points in the chart; it leaves out other points, but never the last one
_MAX_POINTS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsPanel:
    """Cumulative savings and CPU time of the ``plans`` since ``since``.

    ``chart`` is None if all points have the same time.
    """

    plans: int
    since: datetime
    spent: str
    saved: str
    saved_per_day: str
    files_removed: int
    chart: TimeChart | None


def savings_panel(found: Mapping[str, Any]) -> SavingsPanel | None:
    """Return the panel of the document ``found`` of ``serializers.load_savings``; None if there are no plans."""
    points = found["points"]
    if not points:
        return None
    step = -(-len(points) // _MAX_POINTS)
    shown = [point for number, point in enumerate(reversed(points)) if number % step == 0][::-1]
    last = points[-1]
    series = (
        Series(
            name="saved by readers",
            key="first",
            points=[(point["at"], point["cpu_seconds_saved"]) for point in shown],
            format=_cpu,
            is_step=False,
            is_filled=True,
        ),
        Series(
            name="spent by plans",
            key="second",
            points=[(point["at"], point["cpu_seconds_spent"]) for point in shown],
            format=_cpu,
        ),
    )
    return SavingsPanel(
        plans=found["plans"],
        since=found["since"],
        spent=_cpu(last["cpu_seconds_spent"]),
        saved=_cpu(last["cpu_seconds_saved"]),
        saved_per_day=_cpu(found["cpu_seconds_saved_per_day"]),
        files_removed=last["files_removed"],
        chart=time_chart("CPU time saved and spent", series),
    )


def _cpu(seconds: float) -> str:
    return format_elapsed(seconds) if seconds else "0 s"
