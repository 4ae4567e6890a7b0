# SPDX-License-Identifier: Apache-2.0
"""Writing from the page: forms that ask for a token once, and answer with the page that shows what came of it.

A form of another site can't get here: the cookie is SameSite=Strict, and what came by cookie must have been sent by
a page of ours (``service.api.security.check_same_origin``).
"""

from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Form
from starlette.responses import RedirectResponse, Response

from lake.plan import PlanKind
from service import asking
from service.api.bodies import MOST_PARTITIONS, PartitionPath
from service.api.context import Here, changes_the_lake
from service.api.naming import named
from service.api.security import Caller, require
from service.web.problems import PageRoute
from service.web.rendering import table_path

router = APIRouter(include_in_schema=False, route_class=PageRoute, dependencies=[changes_the_lake])

Writer = Annotated[Caller, require("write")]


def _to(path: str) -> Response:
    return RedirectResponse(path, status_code=303)


@router.post("/tables/{name:path}/request")
def request_plans(
    here: Here,
    caller: Writer,
    name: str,
    partition: Annotated[list[PartitionPath] | None, Form(max_length=MOST_PARTITIONS)] = None,
    kind: Annotated[PlanKind | Literal[""], Form()] = "",
    dry_run: Annotated[bool, Form()] = False,
) -> Response:
    """Ask for plans of a table; the page of the request shows the answer."""
    table = named(here, name)
    partitions = [part for part in partition or () if part] or None
    if not dry_run:
        asking.refuse_now(here.config, here.store, table, partitions)
    request_id = asking.submit(
        here.config, here.store, table, partitions=partitions, overrides={}, dry_run=dry_run, idempotency_key=None,
        actor=caller.actor, kind=kind or None,
    )  # fmt: skip
    return _to(f"/requests/{quote(request_id)}")


@router.post("/tables/{name:path}/pause")
def pause_table(here: Here, caller: Writer, name: str) -> Response:
    """Begin no more plans of a table."""
    here.store.pause(name, caller.actor)
    return _to(table_path(name))


@router.post("/tables/{name:path}/resume")
def resume_table(here: Here, caller: Writer, name: str) -> Response:
    """End a table's pause, halt and quarantine."""
    here.store.resume(name, caller.actor)
    return _to(table_path(name))


@router.post("/plans/{plan_id}/cancel")
def cancel_plan(here: Here, caller: Writer, plan_id: str) -> Response:
    """Cancel a plan: at once while requested, before its commit while inflight."""
    plan = here.store.plan(plan_id)
    here.store.request_cancel(plan.plan_id, actor=caller.actor, reason="cancelled on the page")
    return _to(f"/plans/{quote(plan.plan_id)}")


@router.post("/plans/{plan_id}/retry")
def retry_plan(here: Here, caller: Writer, plan_id: str) -> Response:
    """Request a failed plan again."""
    plan = here.store.plan(plan_id)
    here.store.retry(plan.plan_id, actor=caller.actor)
    return _to(f"/plans/{quote(plan.plan_id)}")
