# SPDX-License-Identifier: Apache-2.0
"""The actions of the page: forms that write and then redirect to the page with the result.

Forms of other sites can't reach these routes: the cookie is SameSite=Strict, and a request with the cookie must come
from lakefold's own page (``service.server.api.security.check_same_origin``).
"""

from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Form, Request
from starlette.responses import RedirectResponse, Response

from lake.plan import PlanKind
from service.control.config.table_settings import OverrideError
from service.control.planning import bulk_actions, requests
from service.control.planning.plan_request import PlanRequest
from service.server.api.context import ContextDep
from service.server.api.lake_cache_invalidation import invalidates_lake_cache
from service.server.api.request_types import MOST_PARTITIONS, PartitionPath, Reason, RowNumber
from service.server.api.security import Caller, require
from service.server.api.table_lookup import find_table
from service.server.web.plan_filter import AddressPlanFilter, plan_filter_query
from service.server.web.plan_list import plan_list_path
from service.server.web.problems import PageRoute
from service.server.web.rendering import safe_local_path, table_path
from service.server.web.request_form import MAX_OVERRIDES, checked_overrides, request_form_path

router = APIRouter(include_in_schema=False, route_class=PageRoute, dependencies=[invalidates_lake_cache])

Writer = Annotated[Caller, require("write")]
WriterOfAll = Annotated[Caller, require("write", all_tables=True)]
SettingFields = Annotated[list[str] | None, Form(max_length=MAX_OVERRIDES)]


def _redirect(path: str) -> Response:
    return RedirectResponse(path, status_code=303)


@router.post("/tables/{name:path}/request")
def request_plans(
    context: ContextDep,
    caller: Writer,
    name: str,
    partition: Annotated[list[PartitionPath] | None, Form(max_length=MOST_PARTITIONS)] = None,
    kind: Annotated[PlanKind | Literal[""], Form()] = "",
    key: SettingFields = None,
    value: SettingFields = None,
    dry_run: Annotated[bool, Form()] = False,
) -> Response:
    """Request plans of a table, and redirect to the request, or back to the form if a setting is wrong.

    ``key`` and ``value`` are the settings for this request only, in pairs.
    """
    table = find_table(context, name)
    partitions = [part for part in partition or () if part] or None
    try:
        overrides = checked_overrides(context.config, table, key or (), value or ())
    except OverrideError:
        given = zip(key or (), value or (), strict=False)
        return _redirect(request_form_path(name, partitions[0] if partitions else None, kind, given))
    if not dry_run:
        requests.raise_if_refused(context.config, context.store, table, partitions)
    wanted = PlanRequest(partitions=partitions, kind=kind or None, overrides=overrides, dry_run=dry_run)
    request_id = requests.submit_request(context.config, context.store, table, wanted, actor=caller.actor)
    return _redirect(f"/requests/{quote(request_id)}")


@router.post("/tables/{name:path}/pause")
def pause_table(context: ContextDep, caller: Writer, name: str, reason: Annotated[Reason, Form()] = "") -> Response:
    """Pause a table."""
    context.store.pause(name, caller.actor, reason)
    return _redirect(table_path(name))


@router.post("/tables/{name:path}/resume")
def resume_table(context: ContextDep, caller: Writer, name: str) -> Response:
    """End a table's pause, halt and quarantine."""
    context.store.resume(name, caller.actor)
    return _redirect(table_path(name))


@router.post("/pause/confirm")
def pause_everything(context: ContextDep, caller: WriterOfAll, reason: Annotated[Reason, Form()] = "") -> Response:
    """Pause the whole service."""
    context.store.pause(None, caller.actor, reason)
    return _redirect("/")


@router.post("/resume")
def resume_everything(context: ContextDep, caller: WriterOfAll, next: Annotated[str, Form()] = "/") -> Response:
    """End the pause of the whole service, and return to the same page."""
    context.store.resume(None, caller.actor)
    return _redirect(safe_local_path(next))


@router.post("/notifications/retry")
def retry_notifications(
    context: ContextDep, caller: WriterOfAll, number: Annotated[RowNumber | None, Form()] = None
) -> Response:
    """Send a dead message again, or all dead messages if no number is given."""
    context.store.retry_notifications(None if number is None else [number], actor=caller.actor)
    return _redirect("/notifications")


@router.post("/notifications/drop")
def drop_notification(context: ContextDep, caller: WriterOfAll, number: Annotated[RowNumber, Form()]) -> Response:
    """Delete a dead message."""
    context.store.drop_notifications([number], actor=caller.actor)
    return _redirect("/notifications?state=dead")


@router.post("/bulk/{action}/confirm")
def apply_to_many(
    context: ContextDep,
    request: Request,
    caller: Writer,
    action: bulk_actions.BulkActionName,
    plan_filter: AddressPlanFilter,
    reason: Annotated[Reason, Form()] = "",
    key: Annotated[str | None, Form(min_length=1, max_length=255)] = None,
) -> Response:
    """Apply an action to the plans that the previous page listed, and redirect to the list with the result."""
    done = bulk_actions.run_bulk_action(
        context.store, action, plan_filter, actor=caller.actor, reason=reason, idempotency_key=key
    )
    return _redirect(plan_list_path(plan_filter_query(request.query_params), state="", action_id=done["action_id"]))


@router.post("/plans/{plan_id}/cancel")
def cancel_plan(context: ContextDep, caller: Writer, plan_id: str) -> Response:
    """Cancel a plan; if it is inflight, its executor ends it before the commit."""
    plan = context.store.plan(plan_id)
    context.store.request_cancel(plan.plan_id, actor=caller.actor, reason="cancelled on the page")
    return _redirect(f"/plans/{quote(plan.plan_id)}")


@router.post("/plans/{plan_id}/approve")
def approve_plan(context: ContextDep, caller: Writer, plan_id: str, reason: Annotated[Reason, Form()] = "") -> Response:
    """Approve a plan that waits for approval."""
    plan = context.store.plan(plan_id)
    context.store.approve(plan.plan_id, caller.actor, reason)
    return _redirect(f"/plans/{quote(plan.plan_id)}")


@router.post("/plans/{plan_id}/decline")
def decline_plan(context: ContextDep, caller: Writer, plan_id: str, reason: Annotated[Reason, Form()] = "") -> Response:
    """Decline a plan that waits for approval; it never runs."""
    plan = context.store.plan(plan_id)
    context.store.decline(plan.plan_id, caller.actor, reason)
    return _redirect(f"/plans/{quote(plan.plan_id)}")


@router.post("/plans/{plan_id}/retry")
def retry_plan(context: ContextDep, caller: Writer, plan_id: str) -> Response:
    """Return a failed plan to the state requested."""
    plan = context.store.plan(plan_id)
    context.store.retry(plan.plan_id, actor=caller.actor)
    return _redirect(f"/plans/{quote(plan.plan_id)}")
