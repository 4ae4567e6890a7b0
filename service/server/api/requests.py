# SPDX-License-Identifier: Apache-2.0
"""The routes ``/v1/requests``: requests for plans. Only the scheduler scans; this process waits for its answer."""

import asyncio
import time
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Header, Query
from pydantic import Field, StringConstraints
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from lake.plan import PlanKind
from planner.policy.aliases import FORMER_NAMES
from service import problems
from service.control.planning import requests
from service.control.planning.plan_request import PlanRequest, PlanResponse
from service.control.store import Request
from service.former_names import both_names
from service.problems import ProblemError
from service.server.api.context import Context, ContextDep
from service.server.api.deprecation import mark_deprecated
from service.server.api.lake_cache_invalidation import invalidates_lake_cache
from service.server.api.problems import HttpProblemError
from service.server.api.request_types import Partitions, RequestBody, TableName
from service.server.api.responses import json_response
from service.server.api.security import Caller, require
from service.server.api.table_lookup import find_table
from service.text import to_jsonable

router = APIRouter(prefix="/requests", tags=["requests"])

MAX_WAIT_SECONDS = 30.0
_POLL_SECONDS = 0.2
#: holders that the Link header of a refusal names
_MAX_LINKS = 5

#: lakefold's own settings, and the settings of other tools that are accepted instead
SettingName = Annotated[str, StringConstraints(max_length=200, pattern=r"^[A-Za-z0-9_.-]+$")]
Setting = str | int | float | bool | list[str]


class PlanRequestBody(RequestBody):
    """A request for plans of a table or of `partitions`, of any `kind` or one kind; `overrides` are policy settings."""

    table: TableName
    partitions: Partitions | None = None
    kind: PlanKind | None = None
    overrides: Annotated[dict[SettingName, Setting], Field(default_factory=dict, max_length=100)]
    dry_run: bool = False


@router.post("", status_code=202, dependencies=[invalidates_lake_cache])
async def request_plans(
    context: ContextDep,
    http_request: HttpRequest,
    body: PlanRequestBody,
    caller: Annotated[Caller, require("write")],
    dry_run: Annotated[bool, Query(description="Answer with the plans and store none.")] = False,
    wait: Annotated[
        float | None,
        Query(ge=0, le=MAX_WAIT_SECONDS, description="Seconds to wait for the answer: 0, and 30 for a dry run."),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=255,
            description="Repeated requests with the same key count as one.",
        ),
    ] = None,
) -> Response:
    """Request plans. 202 while the scheduler has not answered, then 200. The body is the same as for GET.

    409 if the table may not be planned now, or if live plans hold every requested partition: `holders` names them.
    "Nothing to do" is an answer, with reasons.
    """
    body.dry_run |= dry_run
    if body.overrides.keys() & FORMER_NAMES.keys():
        mark_deprecated(http_request)
    request = await to_thread.run_sync(_submit, context, body, caller.actor, idempotency_key)
    wait_seconds = wait if wait is not None else MAX_WAIT_SECONDS if body.dry_run else 0.0
    deadline = time.monotonic() + wait_seconds
    while request.answer is None and (left := deadline - time.monotonic()) > 0:
        await asyncio.sleep(min(_POLL_SECONDS, left))
        request = await to_thread.run_sync(context.store.request, request.request_id)
    if request.answer is not None:
        _raise_problem(request, PlanResponse.from_document(request.answer))
    response = json_response(_request_document(request))
    response.status_code = 202 if request.answer is None else 200
    response.headers["Location"] = f"/v1/requests/{request.request_id}"
    return response


@router.get("/{request_id}")
def show_request(context: ContextDep, request_id: str) -> Response:
    """A request and, once there is one, its `answer`: new plans, reasons, and the plans that hold partitions."""
    return json_response(_request_document(context.store.request(request_id)))


def _request_document(request: Request) -> dict[str, Any]:
    """Return a request as JSON; an answer that an earlier release stored gets the present names, too."""
    document: dict[str, Any] = to_jsonable(request)
    if answer := document["answer"]:
        answer["reasons"] = [both_names("decision", reason) for reason in answer["reasons"]]
    return document


def _submit(context: Context, body: PlanRequestBody, actor: str, key: str | None) -> Request:
    table = find_table(context, body.table)
    # Refusals that need no scan are immediate, but a repeated request gets the first request's answer.
    if not body.dry_run and not (key is not None and context.store.has_request(key, actor)):
        try:
            requests.raise_if_refused(context.config, context.store, table, body.partitions)
        except ProblemError as error:
            raise _with_plan_links(error) from error
    plan_request = PlanRequest(
        partitions=body.partitions,
        kind=body.kind,
        overrides=body.overrides,
        dry_run=body.dry_run,
        idempotency_key=key,
    )
    return context.store.request(
        requests.submit_request(context.config, context.store, table, plan_request, actor=actor)
    )


def _raise_problem(request: Request, answer: PlanResponse) -> None:
    try:
        answer.raise_problem()
    except ProblemError as error:
        detailed = ProblemError(error.problem, str(error), **error.facts, request_id=request.request_id)
        raise _with_plan_links(detailed) from error


def _with_plan_links(error: ProblemError) -> ProblemError:
    """Add links to the live plans if they are the reason of the refusal."""
    if error.problem is not problems.LIVE_PLAN:
        return error
    plans = sorted(set(error.facts.get("holders", {}).values()))[:_MAX_LINKS]
    links = ", ".join(f'</v1/plans/{plan_id}>; rel="related"' for plan_id in plans)
    return HttpProblemError(error.problem, str(error), {"Link": links} if links else None, **error.facts)
