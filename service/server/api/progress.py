# SPDX-License-Identifier: Apache-2.0
"""The route ``/v1/plans/{plan_id}/progress``: bytes and steps of a plan as server-sent events, until its end."""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, cast

from anyio import to_thread
from fastapi import APIRouter, Header, Request
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from lake.plan import LIVE_STATES
from service import problems
from service.control.serializers import plan_progress
from service.control.store import PlanView, StoreError
from service.control.store.plan_queries import PlanQueries
from service.server.api.context import ContextDep
from service.server.api.problems import HttpProblemError
from service.server.api.token_cache import TokenCache
from service.text import to_json

logger = logging.getLogger(__name__)
router = APIRouter(prefix="/plans", tags=["plans"])

MAX_STREAMS = 200
_POLL_SECONDS = 1.0
_HEARTBEAT_SECONDS = 10
#: the time that a browser waits before it reopens a broken stream
_RETRY_MILLISECONDS = 2000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subscriber:
    """A client that follows a plan with ``token``, None for a read that needs no token.

    ``updates`` holds the plan of the last round; None means that the stream ends.
    """

    token: str | None
    updates: asyncio.Queue[PlanView | None] = field(default_factory=lambda: asyncio.Queue(maxsize=1))

    def publish(self, plan: PlanView | None) -> None:
        """Replace the waiting update: a slow client misses outdated updates and costs no memory."""
        if self.updates.full():
            self.updates.get_nowait()
        self.updates.put_nowait(plan)


class ProgressStreams:
    """The progress streams of a process: one query per round for all subscribers, none without subscribers.

    The stream of a token that is no longer valid ends at the next round. Used from the server's thread, except
    ``close``.
    """

    def __init__(self, store: PlanQueries, tokens: TokenCache, max_streams: int = MAX_STREAMS) -> None:
        self._store, self._tokens, self.max_streams = store, tokens, min(max_streams, MAX_STREAMS)
        self._subscribers: dict[str, set[Subscriber]] = {}
        self._poll_task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def is_full(self) -> bool:
        """True if the maximum of open streams is reached."""
        return self._closed or sum(map(len, self._subscribers.values())) >= self.max_streams

    def close(self) -> None:
        """End every stream within a round, from any thread."""
        self._closed = True

    @contextmanager
    def subscribe(self, plan_id: str, token: str | None) -> Iterator[Subscriber]:
        """Subscribe to a plan; the subscriber gets an update each round until the server stops or the token ends."""
        listener = Subscriber(token=token)
        self._subscribers.setdefault(plan_id, set()).add(listener)
        if self._poll_task is None or self._poll_task.done():
            self._poll_task = asyncio.get_running_loop().create_task(self._poll_until_unused())
        try:
            yield listener
        finally:
            self._subscribers[plan_id].discard(listener)
            if not self._subscribers[plan_id]:
                del self._subscribers[plan_id]

    async def _poll_until_unused(self) -> None:
        while self._subscribers:
            await asyncio.sleep(_POLL_SECONDS)
            subscribed = [listener for listeners in self._subscribers.values() for listener in listeners]
            tokens = {listener.token for listener in subscribed if listener.token is not None}
            plans, void = await to_thread.run_sync(self._read_plans, tuple(self._subscribers), tokens)
            for plan_id, listeners in self._subscribers.items():
                for listener in listeners:
                    if self._closed or listener.token in void:
                        listener.publish(None)
                    elif plan_id in plans:
                        listener.publish(plans[plan_id])

    def _read_plans(
        self, plan_ids: Collection[str], tokens: Collection[str]
    ) -> tuple[Mapping[str, PlanView], Collection[str]]:
        """Return the current state of these plans, and the tokens that are no longer valid."""
        try:
            void = {token for token in tokens if self._tokens.find(token) is None}
            return self._store.plans_by_id(plan_ids), void
        except StoreError as error:  # the store logs its outages; subscribers still get the keep-alive comments
            logger.debug("progress: %s", error)
            return {}, ()


@router.get(
    "/{plan_id}/progress",
    response_class=EventSourceResponse,
    responses={204: {"description": "No more events will follow."}},
)
async def plan_progress_events(
    context: ContextDep,
    request: Request,
    plan_id: str,
    last_event_id: Annotated[
        str | None, Header(max_length=200, description="The last event that was received.")
    ] = None,
) -> Response:
    """Events `progress` whose data is the plan's progress: one at once, one at each change, until the plan's end.

    Comments in between keep the stream alive. 204 if the caller has already received the last event.
    """
    hub = cast(ProgressStreams, request.app.state.progress)
    plan = await to_thread.run_sync(context.store.plan, plan_id)
    if plan.state not in LIVE_STATES and last_event_id == _event_id(plan):
        return Response(status_code=204)
    if hub.is_full:
        detail = f"{hub.max_streams} streams are open; poll the plan itself instead"
        raise HttpProblemError(problems.TRANSIENT, detail, {"Retry-After": "10"})
    events = _progress_events(hub, plan, last_event_id, request.state.token)
    return EventSourceResponse(events, ping=_HEARTBEAT_SECONDS, sep="\n")


async def _progress_events(
    streams: ProgressStreams, plan: PlanView, last_event_id: str | None, token: str | None
) -> AsyncIterator[ServerSentEvent]:
    with streams.subscribe(plan.plan_id, token) as listener:
        while True:
            if last_event_id != (event_id := _event_id(plan)):
                last_event_id = event_id
                data = to_json(plan_progress(plan))
                yield ServerSentEvent(data, event="progress", id=event_id, retry=_RETRY_MILLISECONDS)
            if plan.state not in LIVE_STATES:
                return
            latest = await listener.updates.get()
            if latest is None:
                return
            plan = latest


def _event_id(plan: PlanView) -> str:
    """Return an id that depends only on the reported progress, not on the process or the time."""
    return f"{plan.state}-{plan.epoch}-{plan.step or 'begin'}-{plan.progress_bytes_done}"
