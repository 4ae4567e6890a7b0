# SPDX-License-Identifier: Apache-2.0
"""The routes ``/v1/plans``: requested, running and ended plans."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from service.control.serializers import plan_summary, queries
from service.server.api.context import ContextDep
from service.server.api.filters import PlanFilterQuery
from service.server.api.responses import LIST_RESPONSES, SIZES_RESPONSES, Limit, json_response, list_response

router = APIRouter(prefix="/plans", tags=["plans"])


@router.get("", responses=LIST_RESPONSES)
def list_plans(
    context: ContextDep,
    request: Request,
    plan_filter: PlanFilterQuery,
    limit: Limit = 50,
    after: Annotated[str | None, Query(description="Continue after this plan.")] = None,
) -> Response:
    """Plans, newest first."""
    found = context.store.plans(**plan_filter, limit=limit + 1, after=after)
    plans = found[:limit]
    return list_response(
        request, [plan_summary(plan) for plan in plans], plans[-1].plan_id if len(found) > limit else None
    )


@router.get("/{plan_id}")
def show_plan(context: ContextDep, plan_id: str) -> Response:
    """One plan with its groups, partitions and events; any unique part of its id suffices."""
    return json_response(queries.load_plan(context.store, plan_id))


@router.get("/{plan_id}/sizes", responses=SIZES_RESPONSES)
def plan_sizes(context: ContextDep, plan_id: str) -> Response:
    """The number of files of each size that a plan rewrites (`before`), and that it is expected to write (`after`).

    Each list has the number of files of up to 1 KiB, then of up to 2 KiB, 4 KiB and so on, and last of files above
    16 GiB. The expected files of a group are equal parts of its bytes.
    """
    return json_response(context.plan_sizes([context.store.plan(plan_id).plan_id])[0])


@router.get("/{plan_id}/events", responses=LIST_RESPONSES)
def plan_events(context: ContextDep, request: Request, plan_id: str) -> Response:
    """The events of a plan, oldest first."""
    return list_response(request, context.store.plan_events(plan_id))
