# SPDX-License-Identifier: Apache-2.0
"""``/v1/tables``: what there is, as the last scan of each table saw it."""

from collections.abc import Sequence
from typing import Annotated, Any

import pyarrow.compute as pc
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from service import documents, problems
from service.api.bodies import LARGEST
from service.api.context import Context, Here
from service.api.paging import LISTED, TREND, Limit, document, page
from service.api.table_lookup import named
from service.api.table_terms import Sort, Terms, order_of
from service.documents import readings, table_summary
from service.problems import CommandError

router = APIRouter(prefix="/tables", tags=["tables"])
databases = APIRouter()


@router.get("", responses=LISTED)
def list_tables(
    here: Here,
    request: Request,
    terms: Terms,
    sort: Sort = "-rewrite",
    limit: Limit = 1000,
    after: Annotated[str | None, Query(description="The `next` of the page before.")] = None,
    number: Annotated[
        int | None, Query(alias="page", ge=1, le=LARGEST, description="The page with this number, not the one `after`.")
    ] = None,
) -> Response:
    """The tables, those with most reducible bytes first unless `sort` says otherwise; `total` is how many there are.

    Orders and states go by the last good scan; `scan` is the last one, be it good or not.
    """
    if after is not None and number is not None:
        raise CommandError(problems.USAGE, "page and after exclude each other")
    order, descending = order_of(sort)
    found = here.store.list_tables(order, descending=descending, limit=limit, page=number, after=after, **terms)
    return page(
        request,
        summaries(here, found.names),
        None if number is not None else found.next,
        total=found.total,
        page=found.number if after is None else None,
        pages=max(1, -(-found.total // limit)),
    )


def summaries(here: Context, names: Sequence[str]) -> list[dict[str, Any]]:
    """The documents of the tables with these ``names``, in their order."""
    states, scans = (
        {state.name: state for state in here.store.tables(names)},
        here.store.pointed_scans(names=names).last,
    )
    return [
        table_summary(here.configured(states[name]), states[name], scans.get(name)) for name in names if name in states
    ]


@databases.get("/databases", tags=["tables"], responses=LISTED)
def list_databases(here: Here, request: Request, terms: Terms) -> Response:
    """What the tables of each database add up to, those with most to rewrite first.

    A table's database is its name up to the last dot, '' where there is none.
    """
    return page(request, here.store.databases(**terms))


@router.get("/{table}")
def show_table(here: Here, table: str) -> Response:
    """One table: its last scan, the facts its format tells, and its policy."""
    return document(readings.table(here.store, named(here, table)))


@router.get("/{table}/partitions", responses=LISTED)
def list_partitions(
    here: Here,
    request: Request,
    table: str,
    limit: Limit = 1000,
    after: Annotated[str | None, Query(description="Continue after this partition.")] = None,
    search: Annotated[str, Query(description="Only partitions whose path contains this, in whatever case.")] = "",
    worst: Annotated[
        bool, Query(description="Those with most reducible bytes first; `limit` of them, without a next page.")
    ] = False,
) -> Response:
    """The partitions by path or worst first, as the last whole scan found them; `taken_at` is null before the first.

    Small files were below the limit in force at the scan. Reducible files are those of them that a plan takes, now or
    once what they wait for is over, such as a live plan of the partition; reducible bytes are all that plans would
    read. `lines` account for every file slice: chosen for a plan, or left alone, why, and by which setting.
    """
    layout = here.store.partition_layout(named(here, table).name)
    if layout is None:
        return page(request, [], taken_at=None)
    found = documents.named_like(layout.partitions, search)
    if worst:
        return page(request, documents.worst(found, limit).to_pylist(), taken_at=layout.taken_at)
    if after is not None:
        found = found.filter(pc.greater(found["partition"], after))
    items = found.slice(0, limit).to_pylist()
    return page(request, items, items[-1]["partition"] if found.num_rows > limit else None, taken_at=layout.taken_at)


@router.get("/{table}/trend", responses=TREND)
def show_trend(here: Here, table: str) -> Response:
    """How the table changed over 30 days: a point each four hours of the last seven days, one a day before that.

    At most 67 points are kept of a table; the last one is its last good scan. `rewritten_bytes` and `freed_bytes` of
    points are totals, those of `trends` are what was rewritten and deleted since `since`.
    """
    name = named(here, table).name
    good = here.store.last_scan(name, ok=True)
    return document(readings.trend(documents.table_points(here.store, name, good)))


@router.get("/{table}/scans", responses=LISTED)
def list_scans(here: Here, request: Request, table: str, limit: Limit = 288) -> Response:
    """The newest scans, newest first: sizes, what was left alone and why, or the error of a scan that failed."""
    return page(request, here.store.scans(named(here, table).name, limit))
