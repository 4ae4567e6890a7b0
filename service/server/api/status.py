# SPDX-License-Identifier: Apache-2.0
"""The routes about the whole service: its status, trend, processes, and attempts at plans."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.control import serializers
from service.control.serializers import queries
from service.server.api.context import ContextDep
from service.server.api.responses import LIST_RESPONSES, TREND_RESPONSES, json_response, list_response

router = APIRouter(tags=["service"])


@router.get("/status")
def status(context: ContextDep) -> Response:
    """The state of the lake, its processes and open problems at `taken_at`, which is at most a second ago."""
    return json_response(serializers.status(context.lake_cache.get(fresh=True)))


@router.get("/trend", responses=TREND_RESPONSES)
def trend(context: ContextDep) -> Response:
    """The trend of all tables in modes propose and compact together over 30 days; its points are as in a table's."""
    return json_response(queries.trend_document(serializers.lake_points(context.lake_cache.get(fresh=True))))


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
