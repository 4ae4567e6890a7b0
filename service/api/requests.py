# SPDX-License-Identifier: Apache-2.0
"""``/v1/requests``: asking for plans. Only the scheduler scans; the process that is asked waits for its answer."""

import asyncio
import time
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Header, Query
from pydantic import Field, StringConstraints
from starlette.responses import Response

from lake.plan import PlanKind
from service import problems
from service.api.bodies import Body, Partitions, TableName
from service.api.changes import changes_the_lake
from service.api.context import Context, Here
from service.api.paging import document
from service.api.problems import ProblemError
from service.api.security import Caller, require
from service.api.table_lookup import named
from service.planning import requests
from service.planning.answer import Answer
from service.planning.plan_request import PlanRequest
from service.problems import CommandError
from service.store import Request

router = APIRouter(prefix="/requests", tags=["requests"])

MOST_WAIT_SECONDS = 30.0
_POLL_SECONDS = 0.2
#: holders that the Link header of a refusal names
_MOST_LINKS = 5

#: lakefold's own knobs and those of other tools that are accepted in their place
SettingName = Annotated[str, StringConstraints(max_length=200, pattern=r"^[A-Za-z0-9_.-]+$")]
Setting = str | int | float | bool | list[str]


class WantedPlans(Body):
    """What plans are wanted of a table: of all of it or of ``partitions``, of any kind or one, with policy settings."""

    table: TableName
    partitions: Partitions | None = None
    kind: PlanKind | None = None
    overrides: Annotated[dict[SettingName, Setting], Field(default_factory=dict, max_length=100)]
    dry_run: bool = False


@router.post("", status_code=202, dependencies=[changes_the_lake])
async def request_plans(
    here: Here,
    wanted: WantedPlans,
    caller: Annotated[Caller, require("write")],
    dry_run: Annotated[bool, Query(description="Answer with the plans and store none.")] = False,
    wait: Annotated[
        float | None,
        Query(ge=0, le=MOST_WAIT_SECONDS, description="Seconds to wait for the answer: 0, and 30 for a dry run."),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=255,
            description="The same key requests only once.",
        ),
    ] = None,
) -> Response:
    """Ask for plans. 202 while the scheduler has not answered, then 200 with its answer, the same as for GET.

    409 where the table may not be planned now, or where live plans hold every partition asked for: `holders` names
    them. "Nothing to do" is an answer, with reasons.
    """
    wanted.dry_run |= dry_run
    request = await to_thread.run_sync(_submit, here, wanted, caller.actor, idempotency_key)
    patience = wait if wait is not None else MOST_WAIT_SECONDS if wanted.dry_run else 0.0
    deadline = time.monotonic() + patience
    while request.answer is None and (left := deadline - time.monotonic()) > 0:
        await asyncio.sleep(min(_POLL_SECONDS, left))
        request = await to_thread.run_sync(here.store.request, request.request_id)
    if request.answer is not None:
        _raise_problem(request, Answer.of(request.answer))
    response = document(request)
    response.status_code = 202 if request.answer is None else 200
    response.headers["Location"] = f"/v1/requests/{request.request_id}"
    return response


@router.get("/{request_id}")
def show_request(here: Here, request_id: str) -> Response:
    """A request and, once there is one, its `answer`: the plans made, reasons, and who holds what is taken."""
    return document(here.store.request(request_id))


def _submit(here: Context, wanted: WantedPlans, actor: str, key: str | None) -> Request:
    table = named(here, wanted.table)
    # What is known without a scan is said at once, but a repeated request gets the first one's answer.
    if not wanted.dry_run and not (key is not None and here.store.has_request(key, actor)):
        try:
            requests.refuse_now(here.config, here.store, table, wanted.partitions)
        except CommandError as error:
            raise _linked(error) from error
    asked = PlanRequest(
        partitions=wanted.partitions,
        kind=wanted.kind,
        overrides=wanted.overrides,
        dry_run=wanted.dry_run,
        idempotency_key=key,
    )
    return here.store.request(requests.submit(here.config, here.store, table, asked, actor=actor))


def _raise_problem(request: Request, answer: Answer) -> None:
    try:
        answer.raise_problem()
    except CommandError as error:
        told = CommandError(error.problem, str(error), **error.facts, request_id=request.request_id)
        raise _linked(told) from error


def _linked(error: CommandError) -> CommandError:
    """A refusal because of live plans with a link to them."""
    if error.problem is not problems.LIVE_PLAN:
        return error
    plans = sorted(set(error.facts.get("holders", {}).values()))[:_MOST_LINKS]
    links = ", ".join(f'</v1/plans/{plan_id}>; rel="related"' for plan_id in plans)
    return ProblemError(error.problem, str(error), {"Link": links} if links else None, **error.facts)
