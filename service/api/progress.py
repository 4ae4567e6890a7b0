# SPDX-License-Identifier: Apache-2.0
"""``/v1/plans/{plan_id}/progress``: bytes and steps of a plan as server-sent events, until its end."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Annotated, cast

from anyio import to_thread
from fastapi import APIRouter, Header, Request
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from lake.plan import LIVE_STATES
from service import problems
from service.api.context import Here
from service.api.problems import ProblemError
from service.documents import plan_progress
from service.store import PlanView, StoreError
from service.store.listing import Listing
from service.text import to_json

logger = logging.getLogger(__name__)
router = APIRouter(prefix="/plans", tags=["plans"])

MOST_STREAMS = 200
_ROUND_SECONDS = 1.0
_HEARTBEAT_SECONDS = 10
#: how long a browser waits before it takes a broken stream up again
_RETRY_MILLISECONDS = 2000

News = asyncio.Queue[PlanView | None]


class Progress:
    """What everybody hears who follows a plan: one query a round for all of them, none while nobody listens.

    Used from the server's own thread, but for ``close``.
    """

    def __init__(self, store: Listing) -> None:
        self._store = store
        self._listeners: dict[str, set[News]] = {}
        self._rounds: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def full(self) -> bool:
        """Whether as many streams are open as may be."""
        return self._closed or sum(map(len, self._listeners.values())) >= MOST_STREAMS

    def close(self) -> None:
        """End every stream within a round, from any thread."""
        self._closed = True

    @contextmanager
    def listening(self, plan_id: str) -> Iterator[News]:
        """Where each round puts the plan as it is then; None when the server ends."""
        news: News = asyncio.Queue(maxsize=1)
        self._listeners.setdefault(plan_id, set()).add(news)
        if self._rounds is None or self._rounds.done():
            self._rounds = asyncio.get_running_loop().create_task(self._go_round())
        try:
            yield news
        finally:
            self._listeners[plan_id].discard(news)
            if not self._listeners[plan_id]:
                del self._listeners[plan_id]

    async def _go_round(self) -> None:
        while self._listeners:
            await asyncio.sleep(_ROUND_SECONDS)
            try:
                plans = await to_thread.run_sync(self._store.plans_by_id, tuple(self._listeners))
            except StoreError as error:  # the store tells of its outages; who listens hears the heartbeat
                logger.debug("progress: %s", error)
                plans = {}
            for plan_id, listeners in self._listeners.items():
                for news in listeners:
                    if self._closed:
                        _put(news, None)
                    elif plan_id in plans:
                        _put(news, plans[plan_id])


@router.get(
    "/{plan_id}/progress",
    response_class=EventSourceResponse,
    responses={204: {"description": "Nothing new will come."}},
)
async def plan_progress_events(
    here: Here,
    request: Request,
    plan_id: str,
    last_event_id: Annotated[str | None, Header(max_length=200, description="The last event that was heard.")] = None,
) -> Response:
    """Events `progress` whose data is the plan's progress: one at once, one at each change, until the plan's end.

    A comment comes now and then as a sign of life. 204 where the caller has heard the last event already.
    """
    hub = cast(Progress, request.app.state.progress)
    plan = await to_thread.run_sync(here.store.plan, plan_id)
    if plan.state not in LIVE_STATES and last_event_id == _event_id(plan):
        return Response(status_code=204)
    if hub.full:
        detail = f"{MOST_STREAMS} streams are open; ask for the plan itself from time to time"
        raise ProblemError(problems.TRANSIENT, detail, {"Retry-After": "10"})
    return EventSourceResponse(_events(hub, plan, last_event_id), ping=_HEARTBEAT_SECONDS, sep="\n")


async def _events(hub: Progress, plan: PlanView, heard: str | None) -> AsyncIterator[ServerSentEvent]:
    with hub.listening(plan.plan_id) as news:
        while True:
            if heard != (event_id := _event_id(plan)):
                heard = event_id
                data = to_json(plan_progress(plan))
                yield ServerSentEvent(data, event="progress", id=event_id, retry=_RETRY_MILLISECONDS)
            if plan.state not in LIVE_STATES:
                return
            latest = await news.get()
            if latest is None:
                return
            plan = latest


def _event_id(plan: PlanView) -> str:
    """The same for the same news, whoever tells them and when."""
    return f"{plan.state}-{plan.epoch}-{plan.step or 'begin'}-{plan.progress_bytes_done}"


def _put(news: News, plan: PlanView | None) -> None:
    """Whoever reads too slowly misses what is out of date, and costs no memory."""
    if news.full():
        news.get_nowait()
    news.put_nowait(plan)
