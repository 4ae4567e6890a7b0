# SPDX-License-Identifier: Apache-2.0
"""The partitions on the page of a table: a strip of all partitions in order, and the worst ones in figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

import pyarrow.compute as pc

from lake.units import format_bytes
from service.control.serializers import filter_partitions, worst_partitions
from service.control.store import PartitionLayout
from service.server.web.calendars import PartitionCalendar, partition_calendar
from service.server.web.charts import heat_level
from service.text import format_percent, partition_name, plural, share_of

#: partitions drawn at once
CELLS_PER_PAGE = 400
#: partitions listed at once
_MAX_WORST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StripPosition:
    """The view of a table's partitions: the first partition on the strip, and the search text."""

    path: str
    start: int
    search: str

    def link(self, anchor: str, *, start: int | None = None, partition: str | None = None) -> str:
        """Return a link to the same view with another ``start``, or with ``partition`` explained."""
        first = self.start if start is None else start
        query = {
            **({} if partition is None else {"partition": partition}),
            **({"start": first} if first else {}),
            **({"search": self.search} if self.search else {}),
        }
        return f"{self.path}?{urlencode(query)}#{anchor}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A partition on the strip."""

    name: str
    heat: int
    title: str
    href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """The partitions number ``start`` to ``end`` (from 1) of ``total``, as of the complete scan at ``taken_at``.

    ``calendar`` has the same cells by date and key; None if they have no dates. ``reasons`` explain the files of the
    selected partition; None if no partition is selected.
    """

    cells: tuple[Cell, ...]
    calendar: PartitionCalendar[Cell] | None
    total: int
    start: int
    end: int
    previous: str
    next: str
    reasons: tuple[Mapping[str, Any], ...] | None
    taken_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstPartitions:
    """The worst partitions, out of ``total`` whose path contains ``search``."""

    lines: tuple[Mapping[str, Any], ...]
    total: int
    search: str
    start: int


def partition_strip(layout: PartitionLayout | None, position: StripPosition, partition: str | None) -> Strip | None:
    """Return the part of the strip at ``position``, and the reasons for the files of ``partition``."""
    if layout is None:
        return None
    found, lines = layout.partitions, None
    if partition is not None:
        chosen = found.filter(pc.equal(found["partition"], partition))["lines"].to_pylist()
        lines = tuple(chosen[0]) if chosen else ()
    start = max(0, min(position.start, found.num_rows - 1)) // CELLS_PER_PAGE * CELLS_PER_PAGE
    shown = found.drop_columns("lines").slice(start, CELLS_PER_PAGE).to_pylist()
    cells = tuple(_cell(entry, position, start) for entry in shown)
    return Strip(
        cells=cells,
        calendar=partition_calendar(cells, lambda cell: cell.name),
        total=found.num_rows,
        start=start + 1,
        end=start + len(shown),
        previous=position.link("partitions", start=start - CELLS_PER_PAGE) if start else "",
        next=position.link("partitions", start=start + CELLS_PER_PAGE)
        if start + CELLS_PER_PAGE < found.num_rows
        else "",
        reasons=lines,
        taken_at=layout.taken_at,
    )


def _cell(entry: Mapping[str, Any], position: StripPosition, start: int) -> Cell:
    share = share_of(entry["reducible_files"], entry["files"])
    files, size = plural(entry["files"], "file"), format_bytes(entry["bytes"])
    return Cell(
        name=entry["partition"],
        heat=heat_level(share),
        title=f"{partition_name(entry['partition'])}: {files}, {format_percent(share)} reducible, {size}",
        href=position.link("explain", start=start, partition=entry["partition"]),
    )


def worst_partition_list(layout: PartitionLayout | None, position: StripPosition) -> WorstPartitions | None:
    """Return the partitions with the most bytes to rewrite.

    Without a search, partitions without reducible files are left out.
    """
    if layout is None:
        return None
    found = filter_partitions(layout.partitions.drop_columns("lines"), position.search)
    if not position.search:
        found = found.filter(pc.greater(found["reducible_files"], 0))
    return WorstPartitions(
        lines=tuple(_worst_line(entry, position) for entry in worst_partitions(found, _MAX_WORST).to_pylist()),
        total=found.num_rows,
        search=position.search,
        start=position.start,
    )


def _worst_line(entry: Mapping[str, Any], position: StripPosition) -> Mapping[str, Any]:
    name, share = entry["partition"], share_of(entry["reducible_files"], entry["files"])
    return {**entry, "label": partition_name(name), "href": position.link("explain", partition=name), "share": share}
