# SPDX-License-Identifier: Apache-2.0
"""``/v1/tables``: what there is, as the last scan of each table saw it."""

import heapq
from typing import Annotated

import pyarrow.compute as pc
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from service import documents, problems
from service.api.context import Here
from service.api.paging import LISTED, TREND, Limit, document, page
from service.api.table_lookup import named
from service.documents import readings, table_summary
from service.problems import CommandError

router = APIRouter(prefix="/tables", tags=["tables"])

#: of a number of bytes
_MOST_DIGITS = 20


@router.get("", responses=LISTED)
def list_tables(
    here: Here,
    request: Request,
    limit: Limit = 1000,
    after: Annotated[str | None, Query(description="The `next` of the page before.")] = None,
) -> Response:
    """The tables, those with most reducible bytes first."""
    start = _position(after)
    keyed = ((-bytes_, name) for name, bytes_ in here.store.reducible_bytes().items())
    # One more than are shown tells whether there is a next page.
    found = heapq.nsmallest(limit + 1, (key for key in keyed if start is None or key > start))
    shown = [name for _, name in found[:limit]]
    states, scans = {state.name: state for state in here.store.tables(shown)}, here.store.last_scans(shown)
    items = [table_summary(here.configured(states[name]), states[name], scans.get(name)) for name in shown]
    last = found[limit - 1] if len(found) > limit else None
    return page(request, items, f"{-last[0]}:{last[1]}" if last else None)


def _position(after: str | None) -> tuple[int, str] | None:
    """Reducible bytes and name behind which a list goes on; tables that moved meanwhile come twice or not at all."""
    if after is None:
        return None
    bytes_, colon, name = after.partition(":")
    if not colon or not bytes_.isdecimal() or len(bytes_) > _MOST_DIGITS:
        raise CommandError(problems.INVALID, f"query.after: {after!r} is not the next of a list of tables")
    return -int(bytes_), name


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
    after: Annotated[str | None, Query(description="Continue behind this partition.")] = None,
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
