# SPDX-License-Identifier: Apache-2.0
"""The routes of operators' actions on plans, tables and the service: cancel, approve, decline, retry, pause, resume."""

from typing import Annotated

from fastapi import APIRouter
from starlette.responses import Response

from lake.plan import PlanState, ProposalDecision
from service.control.serializers import pause_result, plan_cancelled, plan_decided, plan_retried
from service.server.api.context import ContextDep
from service.server.api.lake_cache_invalidation import invalidates_lake_cache
from service.server.api.request_types import Reason, RequestBody
from service.server.api.responses import json_response
from service.server.api.security import Caller, require
from service.server.api.table_lookup import find_table

router = APIRouter(dependencies=[invalidates_lake_cache])

Writer = Annotated[Caller, require("write")]
WriterOfAll = Annotated[Caller, require("write", all_tables=True)]


class CancelBody(RequestBody):
    """The reason of a cancellation, for the plan's history."""

    reason: Reason = "cancelled over HTTP"


class DecisionBody(RequestBody):
    """The reason of a decision, for the plan's history."""

    reason: Reason = ""


class PauseBody(RequestBody):
    """The reason of a pause, shown to others."""

    reason: Reason = ""


@router.post("/plans/{plan_id}/cancel", tags=["plans"])
def cancel_plan(context: ContextDep, caller: Writer, plan_id: str, cancel: CancelBody | None = None) -> Response:
    """Cancel a plan. 202 if the plan is inflight: its executor ends it, unless its commit has already begun."""
    plan_id = context.store.plan(plan_id).plan_id
    state = context.store.request_cancel(plan_id, actor=caller.actor, reason=(cancel or CancelBody()).reason)
    response = json_response(plan_cancelled(plan_id, state))
    response.status_code = 200 if state is PlanState.CANCELLED else 202
    return response


@router.post("/plans/{plan_id}/approve", tags=["plans"])
def approve_plan(context: ContextDep, caller: Writer, plan_id: str, decision: DecisionBody | None = None) -> Response:
    """Approve a plan that waits for approval (mode `propose`); 409 if it does not wait or is already decided."""
    plan_id = context.store.plan(plan_id).plan_id
    context.store.approve(plan_id, caller.actor, (decision or DecisionBody()).reason)
    return json_response(plan_decided(plan_id, ProposalDecision.APPROVED))


@router.post("/plans/{plan_id}/decline", tags=["plans"])
def decline_plan(context: ContextDep, caller: Writer, plan_id: str, decision: DecisionBody | None = None) -> Response:
    """Decline a plan that waits for approval. Its files are not proposed again until they change."""
    plan_id = context.store.plan(plan_id).plan_id
    context.store.decline(plan_id, caller.actor, (decision or DecisionBody()).reason)
    return json_response(plan_decided(plan_id, ProposalDecision.DECLINED))


@router.post("/plans/{plan_id}/retry", tags=["plans"])
def retry_plan(context: ContextDep, caller: Writer, plan_id: str) -> Response:
    """Request a failed plan again; 409 if its partitions are not free."""
    plan_id = context.store.plan(plan_id).plan_id
    context.store.retry(plan_id, caller.actor)
    return json_response(plan_retried(plan_id))


@router.post("/tables/{table}/pause", tags=["tables"])
def pause_table(context: ContextDep, caller: Writer, table: str, pause: PauseBody | None = None) -> Response:
    """Pause a table: no further plans start, running plans finish."""
    name = find_table(context, table).name
    context.store.pause(name, caller.actor, (pause or PauseBody()).reason)
    return json_response(pause_result(name, True))


@router.post("/tables/{table}/resume", tags=["tables"])
def resume_table(context: ContextDep, caller: Writer, table: str) -> Response:
    """End a table's pause, its halt and its quarantine."""
    name = find_table(context, table).name
    context.store.resume(name, caller.actor)
    return json_response(pause_result(name, False))


@router.post("/pause", tags=["service"])
def pause_everything(context: ContextDep, caller: WriterOfAll, pause: PauseBody | None = None) -> Response:
    """Pause the whole service: no further plans start, running plans finish."""
    context.store.pause(None, caller.actor, (pause or PauseBody()).reason)
    return json_response(pause_result(None, True))


@router.post("/resume", tags=["service"])
def resume_everything(context: ContextDep, caller: WriterOfAll) -> Response:
    """End the pause of the whole service; tables with a pause of their own stay paused."""
    context.store.resume(None, caller.actor)
    return json_response(pause_result(None, False))
