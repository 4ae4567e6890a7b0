# SPDX-License-Identifier: Apache-2.0
"""The headers of the answer to a request that uses a former name."""

from datetime import UTC, datetime

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: the time when the names of earlier releases were deprecated
DEPRECATED_SINCE = datetime(2026, 11, 26, tzinfo=UTC)
#: the document with the present names
_DOCUMENT = "/openapi.json"
_MARK = "uses_former_names"


def mark_deprecated(request: Request) -> None:
    """Mark a request that uses a former name, so that its answer has the headers."""
    setattr(request.state, _MARK, True)


class DeprecationMiddleware:
    """The middleware that adds ``Deprecation`` (RFC 9745) and a link to the answers of marked requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""

        state = scope.setdefault("state", {})

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and state.get(_MARK):
                headers = MutableHeaders(scope=message)
                headers["Deprecation"] = f"@{int(DEPRECATED_SINCE.timestamp())}"
                headers.append("Link", f'<{_DOCUMENT}>; rel="deprecation"')
            await send(message)

        await self._app(scope, receive, sending)
