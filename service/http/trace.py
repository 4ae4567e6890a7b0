# SPDX-License-Identifier: Apache-2.0
"""The caller's trace, handed on to what a request stores, so that the plans asked for belong to it."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from lake.trace import traced


class TraceparentMiddleware:
    """Takes W3C's ``traceparent`` header for the time of a request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        given = Headers(scope=scope).get("traceparent") if scope["type"] == "http" else None
        with traced(given):
            await self._app(scope, receive, send)
