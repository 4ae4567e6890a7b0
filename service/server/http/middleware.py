# SPDX-License-Identifier: Apache-2.0
"""Middleware: the latency of each route is measured, and the ``traceparent`` header is read."""

import time
from collections.abc import Sequence

from fastapi.routing import iter_route_contexts
from starlette.datastructures import Headers
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lake.trace import traced
from service.server.observability.metrics import Metrics

#: the label of unknown paths and methods, so that callers can't create metric series
_OTHER = "other"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class TimingMiddleware:
    """The middleware that records in ``metrics`` the time until each answer began.

    This is the metric ``lakefold_http_request_duration_seconds``. A request that failed before its answer began has the
    status 500. A request is counted under the template of its path among ``routes``, such as ``/v1/plans/{plan}``.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: Sequence[BaseRoute]) -> None:
        self._app, self._metrics = app, metrics
        # The route in a request's scope has no application prefix: this maps it to the complete template.
        self._templates = {id(found.original_route): found.path for found in iter_route_contexts(routes)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        begun, recorded = time.perf_counter(), False

        def record(status: int) -> None:
            nonlocal recorded
            recorded = True
            method = scope["method"] if scope["method"] in _METHODS else _OTHER
            route = self._templates.get(id(scope.get("route"))) or _OTHER
            self._metrics.record_response(method, route, status, time.perf_counter() - begun)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                record(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception:
            if not recorded:
                record(500)
            raise


class TraceparentMiddleware:
    """The middleware that applies W3C's ``traceparent`` header during a request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        given = Headers(scope=scope).get("traceparent") if scope["type"] == "http" else None
        with traced(given):
            await self._app(scope, receive, send)
