# SPDX-License-Identifier: Apache-2.0
"""Operators' actions on plans, tables and the service: cancel, approve, decline, retry, pause, resume."""

from typing import Annotated

from fastapi import APIRouter
from starlette.responses import Response

from lake.plan import Decision, PlanState
from service.api.bodies import Body, Reason
from service.api.changes import changes_the_lake
from service.api.context import Here
from service.api.paging import document
from service.api.security import Caller, require
from service.api.table_lookup import named
from service.documents import paused, plan_cancelled, plan_decided, plan_retried

router = APIRouter(dependencies=[changes_the_lake])

Writer = Annotated[Caller, require("write")]
WriterOfAll = Annotated[Caller, require("write", everything=True)]


class Cancel(Body):
    """Why a plan is cancelled, for its history."""

    reason: Reason = "cancelled over HTTP"


class Said(Body):
    """Why a plan is approved or declined, for its history."""

    reason: Reason = ""


class Pause(Body):
    """Why nothing more is begun, shown to others."""

    reason: Reason = ""


@router.post("/plans/{plan_id}/cancel", tags=["plans"])
def cancel_plan(here: Here, caller: Writer, plan_id: str, cancel: Cancel | None = None) -> Response:
    """Cancel a plan: at once while requested; 202 where its executor was asked to stop before the commit."""
    plan_id = here.store.plan(plan_id).plan_id
    state = here.store.request_cancel(plan_id, actor=caller.actor, reason=(cancel or Cancel()).reason)
    response = document(plan_cancelled(plan_id, state))
    response.status_code = 200 if state is PlanState.CANCELLED else 202
    return response


@router.post("/plans/{plan_id}/approve", tags=["plans"])
def approve_plan(here: Here, caller: Writer, plan_id: str, said: Said | None = None) -> Response:
    """Let a plan run that waits for it (mode `propose`); 409 where it does not, or somebody has decided before."""
    plan_id = here.store.plan(plan_id).plan_id
    here.store.approve(plan_id, caller.actor, (said or Said()).reason)
    return document(plan_decided(plan_id, Decision.APPROVED))


@router.post("/plans/{plan_id}/decline", tags=["plans"])
def decline_plan(here: Here, caller: Writer, plan_id: str, said: Said | None = None) -> Response:
    """End a plan that waits for approval. What it would have rewritten is not proposed again while it is as it is."""
    plan_id = here.store.plan(plan_id).plan_id
    here.store.decline(plan_id, caller.actor, (said or Said()).reason)
    return document(plan_decided(plan_id, Decision.DECLINED))


@router.post("/plans/{plan_id}/retry", tags=["plans"])
def retry_plan(here: Here, caller: Writer, plan_id: str) -> Response:
    """Request a failed plan again; 409 where its partitions are not free."""
    plan_id = here.store.plan(plan_id).plan_id
    here.store.retry(plan_id, caller.actor)
    return document(plan_retried(plan_id))


@router.post("/tables/{table}/pause", tags=["tables"])
def pause_table(here: Here, caller: Writer, table: str, pause: Pause | None = None) -> Response:
    """Begin no more plans of a table; what runs goes on to its end."""
    name = named(here, table).name
    here.store.pause(name, caller.actor, (pause or Pause()).reason)
    return document(paused(name, True))


@router.post("/tables/{table}/resume", tags=["tables"])
def resume_table(here: Here, caller: Writer, table: str) -> Response:
    """End a table's pause, its halt and its quarantine."""
    name = named(here, table).name
    here.store.resume(name, caller.actor)
    return document(paused(name, False))


@router.post("/pause", tags=["service"])
def pause_everything(here: Here, caller: WriterOfAll, pause: Pause | None = None) -> Response:
    """Begin no more plans of any table; what runs goes on to its end."""
    here.store.pause(None, caller.actor, (pause or Pause()).reason)
    return document(paused(None, True))


@router.post("/resume", tags=["service"])
def resume_everything(here: Here, caller: WriterOfAll) -> Response:
    """End the pause of the whole service; tables that are paused by themselves stay so."""
    here.store.resume(None, caller.actor)
    return document(paused(None, False))
