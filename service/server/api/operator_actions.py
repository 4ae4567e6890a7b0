# SPDX-License-Identifier: Apache-2.0
"""Operators' actions on plans, tables and the service: cancel, approve, decline, retry, pause, resume."""

from typing import Annotated

from fastapi import APIRouter
from starlette.responses import Response

from lake.plan import PlanState, ProposalDecision
from service.control.serializers import pause_result, plan_cancelled, plan_decided, plan_retried
from service.server.api.cache_invalidation import invalidates_lake_cache
from service.server.api.context import ContextDep
from service.server.api.request_types import Reason, RequestBody
from service.server.api.responses import json_response
from service.server.api.security import Caller, require
from service.server.api.table_lookup import find_table

router = APIRouter(dependencies=[invalidates_lake_cache])

Writer = Annotated[Caller, require("write")]
WriterOfAll = Annotated[Caller, require("write", all_tables=True)]


class CancelBody(RequestBody):
    """Why a plan is cancelled, for its history."""

    reason: Reason = "cancelled over HTTP"


class DecisionBody(RequestBody):
    """Why a plan is approved or declined, for its history."""

    reason: Reason = ""


class PauseBody(RequestBody):
    """Why nothing more is begun, shown to others."""

    reason: Reason = ""


@router.post("/plans/{plan_id}/cancel", tags=["plans"])
def cancel_plan(context: ContextDep, caller: Writer, plan_id: str, cancel: CancelBody | None = None) -> Response:
    """Cancel a plan: at once while requested; 202 where its executor was asked to stop before the commit."""
    plan_id = context.store.plan(plan_id).plan_id
    state = context.store.request_cancel(plan_id, actor=caller.actor, reason=(cancel or CancelBody()).reason)
    response = json_response(plan_cancelled(plan_id, state))
    response.status_code = 200 if state is PlanState.CANCELLED else 202
    return response


@router.post("/plans/{plan_id}/approve", tags=["plans"])
def approve_plan(context: ContextDep, caller: Writer, plan_id: str, said: DecisionBody | None = None) -> Response:
    """Let a plan run that waits for it (mode `propose`); 409 where it does not, or somebody has decided before."""
    plan_id = context.store.plan(plan_id).plan_id
    context.store.approve(plan_id, caller.actor, (said or DecisionBody()).reason)
    return json_response(plan_decided(plan_id, ProposalDecision.APPROVED))


@router.post("/plans/{plan_id}/decline", tags=["plans"])
def decline_plan(context: ContextDep, caller: Writer, plan_id: str, said: DecisionBody | None = None) -> Response:
    """End a plan that waits for approval. What it would have rewritten is not proposed again while it is as it is."""
    plan_id = context.store.plan(plan_id).plan_id
    context.store.decline(plan_id, caller.actor, (said or DecisionBody()).reason)
    return json_response(plan_decided(plan_id, ProposalDecision.DECLINED))


@router.post("/plans/{plan_id}/retry", tags=["plans"])
def retry_plan(context: ContextDep, caller: Writer, plan_id: str) -> Response:
    """Request a failed plan again; 409 where its partitions are not free."""
    plan_id = context.store.plan(plan_id).plan_id
    context.store.retry(plan_id, caller.actor)
    return json_response(plan_retried(plan_id))


@router.post("/tables/{table}/pause", tags=["tables"])
def pause_table(context: ContextDep, caller: Writer, table: str, pause: PauseBody | None = None) -> Response:
    """Begin no more plans of a table; what runs goes on to its end."""
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
    """Begin no more plans of any table; what runs goes on to its end."""
    context.store.pause(None, caller.actor, (pause or PauseBody()).reason)
    return json_response(pause_result(None, True))


@router.post("/resume", tags=["service"])
def resume_everything(context: ContextDep, caller: WriterOfAll) -> Response:
    """End the pause of the whole service; tables that are paused by themselves stay so."""
    context.store.resume(None, caller.actor)
    return json_response(pause_result(None, False))
