# SPDX-License-Identifier: Apache-2.0
"""The routes ``/v1/notifications``: messages to the webhook, delivered and not delivered."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field
from starlette.responses import Response

from service.control.serializers import notification, notifications_dropped, notifications_retried
from service.control.store import NotificationState
from service.server.api.context import ContextDep
from service.server.api.lake_cache_invalidation import invalidates_lake_cache
from service.server.api.request_types import MAX_ROW_NUMBER, RequestBody, RowNumber
from service.server.api.responses import LIST_RESPONSES, Limit, json_response, list_response
from service.server.api.security import Caller, require

router = APIRouter(prefix="/notifications", tags=["notifications"])

_MAX_NUMBERS = 10_000
Writer = Annotated[Caller, require("write", all_tables=True)]

Number = Annotated[RowNumber, Path()]


class NotificationNumbers(RequestBody):
    """The numbers of dead messages. Without `numbers`, the request concerns all dead messages."""

    numbers: Annotated[list[RowNumber], Field(min_length=1, max_length=_MAX_NUMBERS)] | None = None


@router.get("", responses=LIST_RESPONSES, dependencies=[require("read", all_tables=True)])
def list_notifications(
    context: ContextDep,
    request: Request,
    state: Annotated[NotificationState | None, Query(description="Only messages in this state.")] = None,
    limit: Limit = 50,
    after: Annotated[int | None, Query(le=MAX_ROW_NUMBER, description="Continue after this message.")] = None,
) -> Response:
    """Messages to the webhook and the channels, newest first.

    Dead messages were given up: retry sends them again, and drop deletes them.
    """
    found = context.store.notifications(state, limit + 1, after)
    shown = found[:limit]
    following = str(shown[-1].number) if len(found) > limit else None
    return list_response(request, [notification(message) for message in shown], following)


@router.post("/retry", dependencies=[invalidates_lake_cache])
def retry_notifications(context: ContextDep, caller: Writer, chosen: NotificationNumbers | None = None) -> Response:
    """Send dead messages again with a new set of attempts: all named messages or none. Waiting ones stay unchanged.

    404 if one is unknown, 409 if one was delivered.
    """
    return json_response(
        notifications_retried(
            context.store.retry_notifications((chosen or NotificationNumbers()).numbers, actor=caller.actor)
        )
    )


@router.post("/drop", dependencies=[invalidates_lake_cache])
def drop_notifications(context: ContextDep, caller: Writer, chosen: NotificationNumbers | None = None) -> Response:
    """Delete dead messages: all named messages or none; 404 if one is unknown, 409 if one is not dead."""
    return json_response(
        notifications_dropped(
            context.store.drop_notifications((chosen or NotificationNumbers()).numbers, actor=caller.actor)
        )
    )


@router.post("/{number}/retry", dependencies=[invalidates_lake_cache])
def retry_notification(context: ContextDep, caller: Writer, number: Number) -> Response:
    """Send a dead message again with a new set of attempts; `retried` is 0 if it waits; 409 if it was delivered."""
    return json_response(notifications_retried(context.store.retry_notifications([number], actor=caller.actor)))


@router.post("/{number}/drop", dependencies=[invalidates_lake_cache])
def drop_notification(context: ContextDep, caller: Writer, number: Number) -> Response:
    """Delete a dead message; 409 if it is not dead."""
    return json_response(notifications_dropped(context.store.drop_notifications([number], actor=caller.actor)))
