# SPDX-License-Identifier: Apache-2.0
"""The list of tables with order and filters, and the totals of databases."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from lake.units import format_bytes, format_until
from service.control import serializers
from service.control.store import (
    NewestPlan,
    ReferenceScans,
    ScanRecord,
    TableFilter,
    TableObjective,
    TableOrder,
    TableState,
)
from service.modes import PLANNED_MODES
from service.server.api.context import Context
from service.server.web.charts import Sparkline, sparkline
from service.server.web.rendering import PageContent, query_path
from service.text import format_percent, plural, share_of

TABLES_PER_PAGE = 50
STATE_CHOICES = ("halted", "unreadable", "objective_missed", "paused", "compact", "propose", "observe", "off")
#: linked pages on either side of the current one, besides the first and the last
_PAGES_AROUND = 2
_QUERY_FIELDS = ("name", "database", "state", "format", "mode", "owner", "tag", "sort")
#: title, order, whether large values come first, and the class of the cells
_COLUMNS = (
    ("Table", TableOrder.NAME, False, ""),
    ("State", TableOrder.STATE, False, "middle-up"),
    ("File sizes", None, False, "middle-up"),
    ("Files", TableOrder.FILES, True, "n middle-up"),
    ("Reducible", TableOrder.REDUCIBLE, True, "n"),
    ("Median", TableOrder.MEDIAN, False, "n wide-only"),
    ("Size", TableOrder.BYTES, True, "n wide-only"),
    ("To rewrite", TableOrder.REWRITE, True, "n"),
    ("Last plan", TableOrder.PLAN, True, "middle-up"),
    ("Scanned", TableOrder.SCANNED, True, "n wide-only"),
)
_HINTS = {"Reducible": "share of small files that are worth rewriting", "To rewrite": "bytes that plans would read"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """The heading of a column; ``sorted`` is 'ascending', 'descending' or '', the value of ``aria-sort``."""

    title: str
    hint: str
    href: str
    sorted: str
    classes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLine:
    """A table in the list.

    ``scan`` is the last good scan; ``scan_error`` is the error of a later failed scan. ``missed_objectives`` lists the
    objectives that the table misses. ``waiting_until`` is the end of the quiet period if nothing else keeps the table
    from being planned, else ''.
    """

    name: str
    state: str
    owner: str | None
    tags: tuple[str, ...]
    scan: ScanRecord | None
    scan_error: str | None
    missed_objectives: str
    waiting_until: str
    sparkline: Sparkline | None
    sizes_text: str
    last_plan: NewestPlan | None


def table_filter_query(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the filter fields of a URL's query unchanged; '' for missing fields."""
    return {name: fields.get(name, "") for name in _QUERY_FIELDS}


def table_list_page(
    context: Context,
    table_filter: TableFilter,
    order: TableOrder,
    descending: bool,
    number: int,
    query: Mapping[str, str],
) -> PageContent:
    """Return page ``number`` (from 1) of the tables that match ``table_filter``."""
    store = context.store
    found = store.list_tables(order, descending=descending, limit=TABLES_PER_PAGE, page=number, **table_filter)
    states = {state.name: state for state in store.table_states(found.names)}
    scans, plans = store.reference_scans(names=found.names), store.newest_plans(found.names)
    objectives = store.objectives(found.names)
    last = max(1, -(-found.total // TABLES_PER_PAGE))
    return PageContent(
        query=query,
        filtered=any(query[name] for name in _QUERY_FIELDS if name != "sort"),
        headings=tuple(_heading(title, by, falls, css, query, order, descending) for title, by, falls, css in _COLUMNS),
        lines=tuple(
            _line(context, states[name], scans, plans.get(name), objectives.get(name, ()))
            for name in found.names
            if name in states
        ),
        total=found.total,
        page_number=found.number,
        last_page=last,
        pages=tuple(
            (page, query_path("/", query, page=str(page) if page > 1 else ""))
            for page in _nearby_pages(found.number, last)
        ),
        choices=_choices(context),
        by_database_url=query_path("/databases", query, sort="", database=""),
    )


def databases_page(context: Context, table_filter: TableFilter, query: Mapping[str, str]) -> PageContent:
    """Return the totals of the databases, over the tables that match ``table_filter``."""
    kept = {**query, "sort": "", "database": ""}
    return PageContent(
        query=kept,
        filtered=any(kept.values()),
        lines=tuple(
            (entry, query_path("/", kept, database=entry.database))
            for entry in context.store.database_sums(**table_filter)
        ),
        choices=_choices(context),
        tables_url=query_path("/", kept),
    )


def _choices(context: Context) -> dict[str, tuple[str, ...]]:
    labels = context.store.table_labels()
    return {
        "format": tuple(labels["format"]),
        "owner": tuple(labels["owner"]),
        "tag": tuple(labels["tag"]),
        "state": STATE_CHOICES,
    }


def _heading(
    title: str,
    by: TableOrder | None,
    descends_first: bool,
    classes: str,
    query: Mapping[str, str],
    order: TableOrder,
    descending: bool,
) -> Heading:
    """Return the heading of a column, with a link that sorts the list by the column, or reverses the present order."""
    here = by is order
    down = not descending if here else descends_first
    return Heading(
        title=title,
        hint=_HINTS.get(title, ""),
        href=query_path("/", query, sort=f"{'-' if down else ''}{by}") if by else "",
        sorted=("descending" if descending else "ascending") if here else "",
        classes=classes,
    )


def _nearby_pages(number: int, last: int) -> list[int]:
    nearby = range(max(1, number - _PAGES_AROUND), min(last, number + _PAGES_AROUND) + 1)
    return sorted({1, *nearby, last})


def _line(
    context: Context,
    state: TableState,
    scans: ReferenceScans,
    plan: NewestPlan | None,
    objectives: Sequence[TableObjective],
) -> TableLine:
    table = context.configured_table(state)
    scan, newest, first = (found.get(state.name) for found in (scans.latest_ok, scans.latest, scans.first_ok))
    limit, now = table.policy.small_file_limit_bytes, datetime.now(UTC)
    until = scan.waiting_until if scan and table.mode in PLANNED_MODES else None
    before = first.histogram if first and scan and first.taken_at < scan.taken_at else None
    words = ""
    if scan is not None:
        share = format_percent(share_of(scan.small_files, scan.files))
        middle = "" if scan.median_bytes is None else f", median {format_bytes(scan.median_bytes)}"
        words = f"{plural(scan.files, 'file')}, {share} below {format_bytes(limit)}{middle}"
    return TableLine(
        name=state.name,
        state=serializers.displayed_state(table, state),
        owner=table.owner,
        tags=table.tags,
        scan=scan,
        scan_error=newest.error if newest is not None and newest.outcome != "ok" else None,
        missed_objectives="; ".join(one.text for one in objectives if not one.met),
        waiting_until=format_until(until, now) if until and until > now else "",
        sparkline=sparkline(scan.histogram, before, limit) if scan else None,
        sizes_text=words,
        last_plan=plan,
    )
