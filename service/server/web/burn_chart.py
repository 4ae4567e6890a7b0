# SPDX-License-Identifier: Apache-2.0
"""The timeline of a table's objectives: how each error budget was spent, and when the objective was missed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.server.web.time_chart import Series, TimeChart, time_chart


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnChart:
    """The timeline of one objective in its window."""

    name: str
    chart: TimeChart


def burn_charts(objectives: Sequence[Mapping[str, Any]]) -> tuple[BurnChart, ...]:
    """Return the timelines of the documents of ``serializers.load_objectives``.

    An objective that was measured only once has none.
    """
    found = []
    for objective in objectives:
        history = objective["history"]
        if not history:
            continue
        name = objective["objective"]
        series = (
            Series(
                name="error budget left",
                key="first",
                points=[(point["at"], point["budget_left"]) for point in history],
                format=_percent,
                is_step=False,
            ),
            Series(
                name="share of time missed",
                key="second",
                points=[(point["at"], point["missed_share"]) for point in history],
                format=_percent,
                is_filled=True,
            ),
        )
        if (chart := time_chart(f"Error budget of {name}", series)) is not None:
            found.append(BurnChart(name=name, chart=chart))
    return tuple(found)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
