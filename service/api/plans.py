# SPDX-License-Identifier: Apache-2.0
"""``/v1/plans``: what is planned, running and done."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from service.api.context import Here
from service.api.paging import LISTED, Limit, document, page
from service.api.plan_terms import Terms
from service.documents import plan_summary, readings

router = APIRouter(prefix="/plans", tags=["plans"])


@router.get("", responses=LISTED)
def list_plans(
    here: Here,
    request: Request,
    terms: Terms,
    limit: Limit = 50,
    after: Annotated[str | None, Query(description="Continue after this plan.")] = None,
) -> Response:
    """Plans, newest first."""
    found = here.store.plans(**terms, limit=limit + 1, after=after)
    plans = found[:limit]
    return page(request, [plan_summary(plan) for plan in plans], plans[-1].plan_id if len(found) > limit else None)


@router.get("/{plan_id}")
def show_plan(here: Here, plan_id: str) -> Response:
    """One plan with its groups, partitions and events; any unique part of an id will do."""
    return document(readings.plan(here.store, plan_id))


@router.get("/{plan_id}/events", responses=LISTED)
def plan_events(here: Here, request: Request, plan_id: str) -> Response:
    """What happened to a plan, oldest first."""
    return page(request, here.store.events(plan_id))
