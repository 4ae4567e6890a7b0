# SPDX-License-Identifier: Apache-2.0
"""The routes ``/v1/tables`` and ``/v1/databases``: tables as of their last scans."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import pyarrow.compute as pc
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from service import problems
from service.control import serializers
from service.control.serializers import queries, table_summary
from service.problems import ProblemError
from service.server.api.context import Context, ContextDep
from service.server.api.filters import Sort, TableFilterQuery, parse_sort
from service.server.api.request_types import MAX_ROW_NUMBER
from service.server.api.responses import (
    LIST_RESPONSES,
    SAVINGS_RESPONSES,
    TREND_RESPONSES,
    Limit,
    json_response,
    list_response,
)
from service.server.api.table_lookup import find_table

router = APIRouter(prefix="/tables", tags=["tables"])
databases_router = APIRouter()


@router.get("", responses=LIST_RESPONSES)
def list_tables(
    context: ContextDep,
    request: Request,
    table_filter: TableFilterQuery,
    sort: Sort = "-rewrite_bytes",
    limit: Limit = 1000,
    after: Annotated[str | None, Query(description="The `next` of the previous page.")] = None,
    number: Annotated[
        int | None,
        Query(
            alias="page",
            ge=1,
            le=MAX_ROW_NUMBER,
            description="The page with this number; not together with `after`.",
        ),
    ] = None,
) -> Response:
    """The tables, by default sorted by descending reducible bytes; `total` is their number.

    Orders and states use the last good scan, `last_good_scan`; `scan` is the last scan, good or not, and `first_scan`
    the first good one.
    """
    if after is not None and number is not None:
        raise ProblemError(problems.USAGE, "page and after exclude each other")
    order, descending = parse_sort(request, sort)
    found = context.store.list_tables(
        order, descending=descending, limit=limit, page=number, after=after, **table_filter
    )
    return list_response(
        request,
        table_summaries(context, found.names),
        None if number is not None else found.next,
        total=found.total,
        page=found.number if after is None else None,
        pages=max(1, -(-found.total // limit)),
    )


def table_summaries(context: Context, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the documents of the tables with these ``names``, in the same order."""
    states, scans = (
        {state.name: state for state in context.store.table_states(names)},
        context.store.reference_scans(names=names),
    )
    return [
        table_summary(context.configured_table(states[name]), states[name], scans.of(name))
        for name in names
        if name in states
    ]


@databases_router.get("/databases", tags=["tables"], responses=LIST_RESPONSES)
def list_databases(context: ContextDep, request: Request, table_filter: TableFilterQuery) -> Response:
    """The totals of each database's tables, the database with the most bytes to rewrite first.

    A table's database is its name up to the last dot, '' if there is none.
    """
    return list_response(request, context.store.database_sums(**table_filter))


@router.get("/{table}")
def show_table(context: ContextDep, table: str) -> Response:
    """One table: its last scan, the facts from its format, and its policy."""
    return json_response(queries.load_table(context.store, find_table(context, table)))


@router.get("/{table}/partitions", responses=LIST_RESPONSES)
def list_partitions(
    context: ContextDep,
    request: Request,
    table: str,
    limit: Limit = 1000,
    after: Annotated[str | None, Query(description="Continue after this partition.")] = None,
    search: Annotated[str, Query(description="Only partitions whose path contains this, ignoring case.")] = "",
    worst: Annotated[
        bool, Query(description="Most reducible bytes first; only the first `limit` partitions, no next page.")
    ] = False,
) -> Response:
    """The partitions by path or worst first, as of the last complete scan; `taken_at` is null before that scan.

    Small files were below the limit in force at the scan. Reducible files are the small files that a plan takes now,
    or after an obstacle such as a live plan of the partition has ended. Reducible bytes are all bytes that plans
    would read. `lines` explain every file slice: chosen for a plan, or left alone, why, and by which setting.
    """
    layout = context.store.partition_layout(find_table(context, table).name)
    if layout is None:
        return list_response(request, [], taken_at=None)
    found = serializers.filter_partitions(layout.partitions, search)
    if worst:
        worst_first = serializers.partition_documents(serializers.worst_partitions(found, limit))
        return list_response(request, worst_first, taken_at=layout.taken_at)
    if after is not None:
        found = found.filter(pc.greater(found["partition"], after))
    items = serializers.partition_documents(found.slice(0, limit))
    return list_response(
        request, items, items[-1]["partition"] if found.num_rows > limit else None, taken_at=layout.taken_at
    )


@router.get("/{table}/trend", responses=TREND_RESPONSES)
def show_trend(context: ContextDep, table: str) -> Response:
    """The table's trend over 30 days: a point every four hours for the last seven days, and a point a day before that.

    A table has at most 68 points. The first one is its first good scan, if that is younger than 30 days; the last one
    is its last good scan. `rewritten_bytes` and `freed_bytes` of points are totals; those of `trends` are the bytes
    rewritten and deleted since `since`.
    """
    name = find_table(context, table).name
    good, first = context.store.last_scan(name, ok=True), context.store.first_scan(name)
    return json_response(queries.trend_document(serializers.table_points(context.store, name, good, first)))


@router.get("/{table}/savings", responses=SAVINGS_RESPONSES)
def show_savings(context: ContextDep, table: str) -> Response:
    """CPU time of the table's plans of the last 30 days, and the CPU time that readers have saved since each of them.

    The savings are those predicted for each plan, as if the files that it replaced had otherwise remained. There is a
    point after each plan, and one now; at most 500 plans count, the newest ones.
    """
    name = find_table(context, table).name
    return json_response(serializers.load_savings(context.store, name, datetime.now(UTC)))


@router.get("/{table}/objectives", responses=LIST_RESPONSES)
def list_objectives(context: ContextDep, request: Request, table: str) -> Response:
    """The table's objectives, each with the `history` of its error budget within its window, oldest first.

    A point has the remaining budget at that time, below 0 if it was overspent. Its `missed_share` is the share of the
    time until the next point in which the objective was missed.
    """
    return list_response(request, serializers.load_objectives(context.store, find_table(context, table).name))


@router.get("/{table}/scans", responses=LIST_RESPONSES)
def list_scans(context: ContextDep, request: Request, table: str, limit: Limit = 288) -> Response:
    """The newest scans, newest first: sizes, the reasons why files were left alone, or the error of a failed scan.

    `histogram` has the number of files of up to 1 KiB, then of up to 2 KiB, 4 KiB and so on, and last of files above
    16 GiB.
    """
    return list_response(request, context.store.scans(find_table(context, table).name, limit))
