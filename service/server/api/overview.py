# SPDX-License-Identifier: Apache-2.0
"""The routes about the whole service: its status, trend, processes, attempts at plans, deletions and settings."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from service.control import serializers
from service.control.planning.observed_reads import with_observed_reads
from service.control.serializers import queries
from service.server.api.context import ContextDep
from service.server.api.filters import TableFilterQuery
from service.server.api.responses import LIST_RESPONSES, TREND_RESPONSES, json_response, list_response
from service.server.api.security import Caller, require
from service.server.api.table_lookup import find_table

router = APIRouter(tags=["service"])


@router.get("/status")
def status(context: ContextDep) -> Response:
    """The state of the lake, its processes and open problems at `taken_at`, which is at most a second ago."""
    return json_response(serializers.status(context.lake_cache.get(fresh=True)))


@router.get("/trend", responses=TREND_RESPONSES)
def trend(context: ContextDep) -> Response:
    """The trend of all tables in modes propose and compact together over 30 days; its points are as in a table's."""
    return json_response(queries.trend_document(serializers.lake_points(context.lake_cache.get(fresh=True))))


@router.get("/report", responses=LIST_RESPONSES)
def report(
    context: ContextDep,
    request: Request,
    table_filter: TableFilterQuery,
    by: Annotated[Literal["owner", "tag", "database"], Query(description="The grouping.")] = "owner",
) -> Response:
    """Tables and savings by owner, tag or database, the `group` with the most rewritten bytes first.

    The group `null` has the tables without owner, tag or database. Files are those of the last good scans; completed
    plans, removed files, rewritten and freed bytes are totals since the beginning. A table with several tags counts in
    each of them.
    """
    figures = context.lake_cache.get(fresh=True).figures
    return list_response(request, serializers.report(by, context.store.table_totals(**table_filter), figures))


@router.get("/processes", responses=LIST_RESPONSES)
def processes(context: ContextDep, request: Request) -> Response:
    """The processes of this lakefold: role, running plans, leaderships, state of Spark, and the last heartbeat.

    A process that ended without a sign-off is listed for a day, with `live` false.
    """
    lake = context.lake_cache.get(fresh=True)
    return list_response(request, serializers.process_list(lake.processes, lake.leaders, lake.running_plans))


@router.get("/attempts", responses=LIST_RESPONSES)
def attempts(context: ContextDep, request: Request) -> Response:
    """The attempts at plans that ran in the last 24 hours, on which executor, from their begin to their end.

    `outcome` is the plan's state after the attempt: `requested` if it is tried again, `inflight` if it still runs
    (`ended_at` is null) or was taken over. `since` is later if there were more than about 700 attempts.
    """
    found = serializers.attempt_history(context.store.attempts(serializers.ATTEMPTS_PERIOD))
    return list_response(request, found["items"], since=found["since"], until=found["until"])


@router.get("/cleaning", responses=LIST_RESPONSES)
def cleaning(context: ContextDep, request: Request) -> Response:
    """Superseded bytes by the day (UTC) on which their retention ends, earliest first, one item per table and day.

    Days in the past are files that the cleaner has not deleted yet, or retains for a reason; `lakefold clean -n` shows
    the reasons.
    """
    return list_response(request, queries.load_deletion_days(context.store, context.configured_table))


@router.get("/settings", responses=LIST_RESPONSES)
def settings(
    context: ContextDep,
    request: Request,
    caller: Annotated[Caller, require("read")],
    table: Annotated[str | None, Query(description="The settings of this table instead of the service's.")] = None,
) -> Response:
    """Every setting in force and its origin; secrets are hidden."""
    if table is None:
        caller.require_all_tables()
        return list_response(request, serializers.service_settings(context.config))
    found = with_observed_reads(context.store, find_table(context, table))
    return list_response(request, serializers.table_settings(found))
