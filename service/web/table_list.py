# SPDX-License-Identifier: Apache-2.0
"""The list of tables: in which order, which of them, and what their databases add up to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lake.model import median_bytes
from lake.units import format_bytes
from service import documents
from service.api.context import Context
from service.store import (
    DatabaseSum,
    NewestPlan,
    PointedScans,
    ScanRecord,
    TableObjective,
    TableOrder,
    TableState,
    TableTerms,
)
from service.text import percent, plural, share_of
from service.web.charts import Spark, sparkline
from service.web.rendering import query_path

TABLES_A_PAGE = 50
STATE_WORDS = ("halted", "unreadable", "missed", "paused", "compact", "propose", "observe", "off")
#: pages that can be jumped to on either side of this one, besides the first and the last
_PAGES_AROUND = 2
_NAMES = ("name", "database", "state", "format", "mode", "owner", "sort")
#: title, what it is ordered by, whether large values come first, and the class of its cells
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
_HINTS = {"Reducible": "share of small files that are worth a plan", "To rewrite": "bytes that plans would read"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """A column; ``sorted`` is 'ascending', 'descending' or '' as ``aria-sort`` has it."""

    title: str
    hint: str
    href: str
    sorted: str
    classes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A table in the list. ``scan`` is its last good scan; ``failing`` says why a later one failed, ``missed`` which
    objectives it misses.
    """

    name: str
    state: str
    owner: str | None
    scan: ScanRecord | None
    failing: str | None
    missed: str
    spark: Spark | None
    sizes_in_words: str
    median: int | None
    last_plan: NewestPlan | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableListPage:
    """A page of the list. ``query`` is what was asked, as the address has it; ``pages`` are those to jump to."""

    query: Mapping[str, str]
    filtered: bool
    headings: tuple[Heading, ...]
    lines: tuple[Line, ...]
    total: int
    number: int
    last: int
    pages: tuple[tuple[int, str], ...]
    choices: Mapping[str, tuple[str, ...]]
    by_database: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabasesPage:
    """What the databases add up to, each with the address of its tables."""

    query: Mapping[str, str]
    filtered: bool
    lines: tuple[tuple[DatabaseSum, str], ...]
    choices: Mapping[str, tuple[str, ...]]
    tables: str


def query_of(fields: Mapping[str, str]) -> dict[str, str]:
    """The part of an address that says which tables are meant, as it was written; '' for what it does not say."""
    return {name: fields.get(name, "") for name in _NAMES}


def table_list(
    context: Context, terms: TableTerms, order: TableOrder, descending: bool, number: int, query: Mapping[str, str]
) -> TableListPage:
    """The page with this ``number`` (from 1) of the tables that ``terms`` mean."""
    store = context.store
    found = store.list_tables(order, descending=descending, limit=TABLES_A_PAGE, page=number, **terms)
    states = {state.name: state for state in store.tables(found.names)}
    scans, plans = store.pointed_scans(names=found.names), store.newest_plans(found.names)
    objectives = store.objectives(found.names)
    last = max(1, -(-found.total // TABLES_A_PAGE))
    return TableListPage(
        query=query,
        filtered=any(query[name] for name in _NAMES if name != "sort"),
        headings=tuple(_heading(title, by, falls, css, query, order, descending) for title, by, falls, css in _COLUMNS),
        lines=tuple(
            _line(context, states[name], scans, plans.get(name), objectives.get(name, ()))
            for name in found.names
            if name in states
        ),
        total=found.total,
        number=found.number,
        last=last,
        pages=tuple(
            (page, query_path("/", query, page=str(page) if page > 1 else "")) for page in _around(found.number, last)
        ),
        choices=_choices(context),
        by_database=query_path("/databases", query, sort="", database=""),
    )


def databases_page(context: Context, terms: TableTerms, query: Mapping[str, str]) -> DatabasesPage:
    """What the databases of the tables that ``terms`` mean add up to."""
    kept = {**query, "sort": "", "database": ""}
    return DatabasesPage(
        query=kept,
        filtered=any(kept.values()),
        lines=tuple(
            (entry, query_path("/", kept, database=entry.database)) for entry in context.store.databases(**terms)
        ),
        choices=_choices(context),
        tables=query_path("/", kept),
    )


def _choices(context: Context) -> dict[str, tuple[str, ...]]:
    labels = context.store.table_labels()
    return {"format": tuple(labels["format"]), "owner": tuple(labels["owner"]), "state": STATE_WORDS}


def _heading(
    title: str,
    by: TableOrder | None,
    falls: bool,
    classes: str,
    query: Mapping[str, str],
    order: TableOrder,
    descending: bool,
) -> Heading:
    """A column whose link orders the list by it, and the other way round once it is."""
    here = by is order
    down = not descending if here else falls
    return Heading(
        title=title,
        hint=_HINTS.get(title, ""),
        href=query_path("/", query, sort=f"{'-' if down else ''}{by}") if by else "",
        sorted=("descending" if descending else "ascending") if here else "",
        classes=classes,
    )


def _around(number: int, last: int) -> list[int]:
    near = range(max(1, number - _PAGES_AROUND), min(last, number + _PAGES_AROUND) + 1)
    return sorted({1, *near, last})


def _line(
    context: Context,
    state: TableState,
    scans: PointedScans,
    plan: NewestPlan | None,
    objectives: Sequence[TableObjective],
) -> Line:
    table = context.configured(state)
    scan, newest, first = (found.get(state.name) for found in (scans.good, scans.last, scans.first))
    limit = table.policy.small_file_limit_bytes
    before = first.histogram if first and scan and first.taken_at < scan.taken_at else None
    median = median_bytes(scan.histogram) if scan else None
    words = ""
    if scan is not None:
        share = percent(share_of(scan.small_files, scan.files))
        middle = f", median {format_bytes(median)}" if median is not None else ""
        words = f"{plural(scan.files, 'file')}, {share} below {format_bytes(limit)}{middle}"
    return Line(
        name=state.name,
        state=documents.table_state_word(table, state),
        owner=table.owner,
        scan=scan,
        failing=newest.error if newest is not None and newest.outcome != "ok" else None,
        missed="; ".join(one.text for one in objectives if not one.met),
        spark=sparkline(scan.histogram, before, limit) if scan else None,
        sizes_in_words=words,
        median=median,
        last_plan=plan,
    )
