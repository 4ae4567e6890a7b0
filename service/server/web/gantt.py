# SPDX-License-Identifier: Apache-2.0
"""The day of each executor as a Gantt chart: a bar for each attempt at a plan, coloured by its outcome.

The colours are those of Okabe and Ito ("Color Universal Design", 2008, https://jfly.uni-koeln.de/color/). People with
colour vision deficiency can distinguish them.

This module builds the HTML of the bars, because a template would take several times as long: a day may have hundreds
of bars, and each is drawn for two widths of windows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape

from lake.plan import PlanState
from lake.units import format_elapsed
from service.server.web.charts import Tick
from service.server.web.formatting import format_clock
from service.server.web.time_axis import TimeAxis
from service.text import plural, process_label, short_id

#: maximum number of attempts in the chart, and in the table below it; both show the newest ones
_MAX_DRAWN, _MAX_LISTED = 400, 100
#: width of the picture, and letters of an executor's name, for wide and for narrow windows
_SIZES = ((960.0, 120), (360.0, 46))
_LABEL, _LANE, _GAP, _TOP, _BOTTOM, _SIDE = 20.0, 14.0, 10.0, 4.0, 26.0, 4.0
_MIN_WIDTH = 2.0
#: the state of the plan after an attempt → the words for the attempt, and its colour in the style sheet
OUTCOMES: Mapping[str, tuple[str, str]] = {
    PlanState.COMPLETED: ("completed", "done"),
    PlanState.INFLIGHT: ("running", "running"),
    PlanState.REQUESTED: ("to be tried again", "again"),
    PlanState.FAILED: ("failed", "failed"),
    PlanState.CANCELLED: ("cancelled", "cancelled"),
}
_TAKEN_OVER = ("taken over", "again")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLine:
    """One attempt as text; ``kind`` is its colour in the style sheet."""

    executor: str
    plan_id: str
    table: str
    began_at: datetime
    took: str
    outcome: str
    kind: str
    text: str
    #: the HTML before the position of its bar: the link to the plan and the start of the bar
    bar_begin: str
    #: the HTML after the position: the tooltip, and the ends of bar and link
    bar_end: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GanttBar:
    """The bar of an attempt."""

    x: float
    y: float
    width: float
    height: float
    line: AttemptLine

    @property
    def html(self) -> Markup:
        """The bar as a link to its plan."""
        position = f'x="{self.x:.1f}" y="{self.y:.1f}" width="{self.width:.1f}" height="{self.height:.1f}"'
        return Markup(f"{self.line.bar_begin}{position}{self.line.bar_end}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GanttRow:
    """The row of one executor: its name and its bars. Bars of attempts at the same time are below each other."""

    name: str
    label: str
    label_y: float
    top: float
    height: float
    bars: tuple[GanttBar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gantt:
    """The chart for windows of one width."""

    width: float
    height: float
    left: float
    right: float
    base: float
    rows: tuple[GanttRow, ...]
    x_ticks: tuple[Tick, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorDay:
    """The attempts since ``since``. The chart has ``drawn`` of ``total`` attempts; ``lines`` lists the newest ones."""

    since: datetime
    text: str
    drawn: int
    total: int
    legend: tuple[tuple[str, str], ...]
    lines: tuple[AttemptLine, ...]
    charts: tuple[Gantt, ...]


def executor_day(history: Mapping[str, Any]) -> ExecutorDay | None:
    """Return the chart of the document ``history`` (``serializers.attempt_history``); None if there are no attempts."""
    since, until, found = history["since"], history["until"], history["items"]
    if not found:
        return None
    drawn = sorted(found[-_MAX_DRAWN:], key=lambda one: (process_label(one["executor"]), one["began_at"]))
    # From the full hour before the first attempt that is drawn.
    begin = max(since, min(one["began_at"] for one in drawn).replace(minute=0, second=0, microsecond=0))
    lines = [(one, _line(one, until)) for one in drawn]
    executors = len({line.executor for _, line in lines})
    kinds = {line.kind for _, line in lines}
    words = {kind: word for word, kind in (*OUTCOMES.values(), ("tried again or taken over", "again"))}
    return ExecutorDay(
        since=begin,
        text=f"{plural(len(drawn), 'attempt')} at plans on {plural(executors, 'executor')} since "
        f"{format_clock(begin)}. The table below has the numbers.",
        drawn=len(drawn),
        total=len(found),
        legend=tuple((kind, word) for kind, word in words.items() if kind in kinds),
        lines=tuple(sorted((line for _, line in lines), key=lambda line: line.began_at, reverse=True)[:_MAX_LISTED]),
        charts=tuple(
            _gantt(lines, TimeAxis(begin=begin, end=until, left=_SIDE, right=width - _SIDE), letters)
            for width, letters in _SIZES
        ),
    )


def _line(attempt: Mapping[str, Any], until: datetime) -> AttemptLine:
    ended = attempt["ended_at"]
    word, kind = OUTCOMES[attempt["outcome"]]
    if attempt["outcome"] == PlanState.INFLIGHT and ended is not None:
        word, kind = _TAKEN_OVER
    took = format_elapsed(((ended or until) - attempt["began_at"]).total_seconds())
    plan = f"plan {short_id(attempt['plan_id'])} of {attempt['table']}"
    text = f"{plan}, {word}: {took} from {format_clock(attempt['began_at'])}"
    escaped = escape(text)
    return AttemptLine(
        executor=process_label(attempt["executor"]),
        plan_id=attempt["plan_id"],
        table=attempt["table"],
        began_at=attempt["began_at"],
        took=took,
        outcome=word,
        kind=kind,
        text=text,
        bar_begin=f'<a href="/plans/{quote(attempt["plan_id"])}" aria-label="{escaped}"><rect class="{kind}" ',
        bar_end=f"><title>{escaped}</title></rect></a>",
    )


def _gantt(lines: Sequence[tuple[Mapping[str, Any], AttemptLine]], axis: TimeAxis, letters: int) -> Gantt:
    """Return the chart of ``lines``, which are sorted by executor and begin."""
    rows: list[GanttRow] = []
    top = _TOP
    for name, entries in groupby(lines, key=lambda entry: entry[1].executor):
        attempts = list(entries)
        bars = tuple(_bars(attempts, axis, top + _LABEL))
        height = max(bar.y + bar.height for bar in bars) - (top + _LABEL)
        label = name if len(name) <= letters else f"{name[: letters - 13]}…{name[-12:]}"
        rows.append(GanttRow(name=name, label=label, label_y=top + 13, top=top + _LABEL, height=height, bars=bars))
        top += _LABEL + height + _GAP
    return Gantt(
        width=axis.right + _SIDE,
        height=top + _BOTTOM,
        left=axis.left,
        right=axis.right,
        base=top,
        rows=tuple(rows),
        x_ticks=axis.ticks(),
    )


def _bars(attempts: Sequence[tuple[Mapping[str, Any], AttemptLine]], axis: TimeAxis, top: float) -> Iterator[GanttBar]:
    """Yield the bars of one executor: each in the first lane that is free at its begin."""
    lanes: list[float] = []
    for attempt, line in attempts:
        x = axis.position(attempt["began_at"])
        end = axis.right if attempt["ended_at"] is None else axis.position(attempt["ended_at"])
        width = max(end - x, _MIN_WIDTH)
        x = min(x, axis.right - width)
        lane = next((number for number, free in enumerate(lanes) if free <= x + 0.01), len(lanes))
        if lane == len(lanes):
            lanes.append(0.0)
        lanes[lane] = x + width
        yield GanttBar(x=x, y=top + lane * _LANE, width=width, height=_LANE - 3, line=line)
