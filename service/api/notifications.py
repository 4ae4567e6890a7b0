# SPDX-License-Identifier: Apache-2.0
"""``/v1/notifications``: what the webhook was told, and what it could not be told."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field
from starlette.responses import Response

from service.api.bodies import LARGEST, Body, RowNumber
from service.api.changes import changes_the_lake
from service.api.context import Here
from service.api.paging import LISTED, Limit, document, page
from service.api.security import Caller, require
from service.documents import notification, notifications_dropped, notifications_retried
from service.store import NotificationState

router = APIRouter(prefix="/notifications", tags=["notifications"])

_MOST_NUMBERS = 10_000
Writer = Annotated[Caller, require("write", everything=True)]

Number = Annotated[RowNumber, Path()]


class Chosen(Body):
    """Dead messages by their numbers; without `numbers` all of them."""

    numbers: Annotated[list[RowNumber], Field(min_length=1, max_length=_MOST_NUMBERS)] | None = None


@router.get("", responses=LISTED, dependencies=[require("read", everything=True)])
def list_notifications(
    here: Here,
    request: Request,
    state: Annotated[NotificationState | None, Query(description="Only messages in this state.")] = None,
    limit: Limit = 50,
    after: Annotated[int | None, Query(le=LARGEST, description="Continue after this message.")] = None,
) -> Response:
    """Messages to the webhook, newest first. Dead ones were given up: retry sends them again, drop forgets them."""
    found = here.store.notifications(state, limit + 1, after)
    shown = found[:limit]
    following = str(shown[-1].number) if len(found) > limit else None
    return page(request, [notification(message) for message in shown], following)


@router.post("/retry", dependencies=[changes_the_lake])
def retry_notifications(here: Here, caller: Writer, chosen: Chosen | None = None) -> Response:
    """Send dead messages again with all their attempts, all of those named or none; those that wait do so already.

    404 where one is unknown, 409 where one was delivered.
    """
    return document(
        notifications_retried(here.store.retry_notifications((chosen or Chosen()).numbers, actor=caller.actor))
    )


@router.post("/drop", dependencies=[changes_the_lake])
def drop_notifications(here: Here, caller: Writer, chosen: Chosen | None = None) -> Response:
    """Forget dead messages, all of those named or none; 404 where one is unknown, 409 where one is not dead."""
    return document(
        notifications_dropped(here.store.drop_notifications((chosen or Chosen()).numbers, actor=caller.actor))
    )


@router.post("/{number}/retry", dependencies=[changes_the_lake])
def retry_notification(here: Here, caller: Writer, number: Number) -> Response:
    """Send a dead message again with all its attempts; `retried` is 0 where it waits already, 409 once delivered."""
    return document(notifications_retried(here.store.retry_notifications([number], actor=caller.actor)))


@router.post("/{number}/drop", dependencies=[changes_the_lake])
def drop_notification(here: Here, caller: Writer, number: Number) -> Response:
    """Forget a dead message; 409 where it is not dead."""
    return document(notifications_dropped(here.store.drop_notifications([number], actor=caller.actor)))
