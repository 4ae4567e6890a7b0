# SPDX-License-Identifier: Apache-2.0
"""``/v1/status``, ``/v1/cleaning`` and ``/v1/settings``: one look at the service, and what it was told."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from service.control import serializers
from service.control.serializers import queries
from service.server.api.context import ContextDep
from service.server.api.responses import LIST_RESPONSES, TREND_RESPONSES, json_response, list_response
from service.server.api.security import Caller, require
from service.server.api.table_lookup import find_table

router = APIRouter(tags=["service"])


@router.get("/status")
def status(context: ContextDep) -> Response:
    """How the lake is, who works on it and what needs a person, as it was `taken_at`, a second ago at most."""
    return json_response(serializers.status(context.lake_cache.get(fresh=True)))


@router.get("/trend", responses=TREND_RESPONSES)
def trend(context: ContextDep) -> Response:
    """How the tables in modes propose and compact changed together over 30 days, in points as of a table's trend."""
    return json_response(queries.trend_document(serializers.lake_points(context.lake_cache.get(fresh=True))))


@router.get("/processes", responses=LIST_RESPONSES)
def processes(context: ContextDep, request: Request) -> Response:
    """The processes of this lakefold: what each does, runs and leads, how it is with Spark, and when it was last seen.

    One that ended without taking leave is shown for a day, with `live` false.
    """
    lake = context.lake_cache.get(fresh=True)
    return list_response(request, serializers.process_list(lake.processes, lake.leaders, lake.running_plans))


@router.get("/cleaning", responses=LIST_RESPONSES)
def cleaning(context: ContextDep, request: Request) -> Response:
    """Bytes that plans replaced by the day (UTC) on which their retention ends, earliest first, an item a table.

    Days in the past are what the cleaner has not come to yet, or keeps for a reason that `lakefold clean -n` tells.
    """
    return list_response(request, queries.load_deletion_days(context.store, context.configured_table))


@router.get("/settings", responses=LIST_RESPONSES)
def settings(
    context: ContextDep,
    request: Request,
    caller: Annotated[Caller, require("read")],
    table: Annotated[str | None, Query(description="The settings of this table instead of the service's.")] = None,
) -> Response:
    """Every setting in force and where it came from; secrets are hidden."""
    if table is None:
        caller.require_all_tables()
        return list_response(request, serializers.service_settings(context.config))
    return list_response(request, serializers.table_settings(find_table(context, table)))
