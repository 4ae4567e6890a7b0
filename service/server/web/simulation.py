# SPDX-License-Identifier: Apache-2.0
"""The page of a simulation: the files that a writer makes, batch by batch, and the shipped scenarios."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lake.units import format_bytes
from planner.writers.model import SimulationError
from planner.writers.scenario import parse_toml
from service.control.serializers import describe_sizes, simulation
from service.problems import ProblemError
from service.server.web.formatting import as_sentence
from service.server.web.rendering import PageContent
from service.text import plural

#: an installed lakefold has the scenarios beside this module, a clone has them in docs/
_SCENARIO_DIRECTORIES = (Path(__file__).parent / "scenarios", Path(__file__).parents[3] / "docs" / "scenarios")
#: files of all batches together; the limit is low because a foreign link can make a browser request the page
_MAX_FILES = 5_000
#: the chart shows the last batches, at most this number; the table lists all batches
_BATCHES_DRAWN = 30
#: maximum number of files that a column draws one by one; more files are drawn in groups
_MAX_FILES_DRAWN = 80
_WIDTH, _HEIGHT, _TOP, _BOTTOM = 960.0, 260.0, 20.0, 24.0
_MAX_COLUMN_WIDTH = 110.0
_MIN_BOX_HEIGHT = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A file, or a group of files, in a column; ``kind`` is small, large or logs."""

    y: float
    height: float
    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The files after one batch."""

    x: float
    width: float
    label: str
    total: str
    total_y: float
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationChart:
    """A chart with one column per batch, whose height is the size of the table."""

    width: float
    height: float
    base: float
    stacks: tuple[Stack, ...]

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of boxes that are drawn, for the legend."""
        return frozenset(box.kind for stack in self.stacks for box in stack.boxes)


@cache
def shipped_scenarios() -> Mapping[str, str]:
    """Return the shipped scenarios by name."""
    directory = next(directory for directory in _SCENARIO_DIRECTORIES if directory.is_dir())
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(directory.glob("*.toml"))}


def simulation_page(example: str, scenario: str) -> PageContent:
    """Return the page of the scenario that a person wrote, or else of the shipped ``example``.

    ``result`` of the page is None if the scenario has an error or is empty.
    """
    known = shipped_scenarios()
    text = scenario.replace("\r\n", "\n") or known.get(example, "")
    found, message = None, ""
    if text:
        try:
            found = simulation(parse_toml(text), most_files=_MAX_FILES)
        except (SimulationError, ProblemError) as error:
            message = str(error)
    return PageContent(
        examples=tuple(known),
        example=example,
        scenario=text,
        error=as_sentence(message),
        result=found,
        chart=_chart(found["steps"]) if found else None,
        sizes=tuple(describe_sizes(step["layout"]) for step in found["steps"]) if found else (),
        chart_text=_chart_text(found["steps"]) if found else "",
    )


def _chart_text(steps: Sequence[Mapping[str, Any]]) -> str:
    last = steps[-1]
    return (
        f"Files batch by batch; after the last one {plural(last['files'], 'file')}, {last['small_files']:,} of them "
        "small. The numbers are in the table."
    )


def _chart(steps: Sequence[Mapping[str, Any]]) -> SimulationChart:
    drawn = steps[-_BATCHES_DRAWN:]
    slot = _WIDTH / len(drawn)
    width = min(slot * 0.72, _MAX_COLUMN_WIDTH)
    most = max(step["bytes"] + step["log_bytes"] for step in drawn) or 1
    base = _HEIGHT - _BOTTOM
    stacks = []
    for index, step in enumerate(drawn):
        boxes = tuple(_boxes(step["layout"], (base - _TOP) / most, base))
        stacks.append(
            Stack(
                x=index * slot + (slot - width) / 2,
                width=width,
                label=f"{step['batch']:,}",
                total=format_bytes(step["bytes"] + step["log_bytes"]),
                total_y=min((box.y for box in boxes), default=base) - 6,
                boxes=boxes,
            )
        )
    return SimulationChart(width=_WIDTH, height=_HEIGHT, base=base, stacks=tuple(stacks))


def _boxes(layout: Sequence[Mapping[str, Any]], scale: float, base: float) -> Iterator[Box]:
    """Yield the boxes of a column from the bottom up with gaps, each file below its logs."""
    y = base
    for kind, size, name in _aggregated_boxes(layout) if len(layout) > _MAX_FILES_DRAWN else _file_boxes(layout):
        height = size * scale
        y -= height
        yield Box(y=y, height=max(height - 1, _MIN_BOX_HEIGHT), kind=kind, name=name)


def _file_boxes(layout: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, int, str]]:
    for file in layout:
        partition_text = f" in {file['partition']}" if file["partition"] else ""
        if file["bytes"]:
            kind = "small" if file["small"] else "large"
            yield kind, file["bytes"], f"file {file['file']}{partition_text}: {file['bytes']:,} bytes, {kind}"
        if file["logs"]:
            size = sum(file["logs"])
            logs = plural(len(file["logs"]), "log")
            yield "logs", size, f"{logs} of file {file['file']}{partition_text}: {size:,} bytes"


def _aggregated_boxes(layout: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, int, str]]:
    for kind, small in (("large", False), ("small", True)):
        files = [file["bytes"] for file in layout if file["small"] is small]
        if files:
            yield kind, sum(files), f"{plural(len(files), f'{kind} file')}: {sum(files):,} bytes"
    logs = [sum(file["logs"]) for file in layout if file["logs"]]
    if logs:
        yield "logs", sum(logs), f"logs of {plural(len(logs), 'file')}: {sum(logs):,} bytes"
