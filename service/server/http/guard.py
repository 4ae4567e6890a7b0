# SPDX-License-Identifier: Apache-2.0
"""The guard before every handler: it checks the host name, the caller and the limits of a request."""

import math
from typing import Any

from anyio import to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from lake.errors import LakefoldError
from service import problems
from service.control.store import AccessChannel
from service.control.store.audit import current_channel
from service.server.api import callbacks, security, simulate
from service.server.api.context import Context
from service.server.api.problems import HttpProblemError, problem_from_http_error, problem_response
from service.server.api.security import Caller
from service.server.api.security_headers import with_security_headers
from service.server.http.rate_limit import RateLimit
from service.server.http.request_body import BodyMemory, LimitedBody, body_too_large, discard_body, send_chunked
from service.server.web import login
from service.server.web.problems import problem_page, wants_html

#: the maximum number of digits in a Content-Length header
_MAX_LENGTH_DIGITS = 18
#: maximum body bytes of paths with another key or none instead of a token; other paths have http.max_body_size
_MAX_BODY_WITHOUT_TOKEN = callbacks.MAX_BODY_BYTES | login.MAX_BODY_BYTES
#: maximum body bytes of paths that need only the read scope
_MAX_BODY_OF_READERS = simulate.MAX_BODY_BYTES
#: maximum bytes of all bodies in memory at a time; a single larger body is allowed
_MAX_BODY_MEMORY = 16 << 20


class Guard:
    """The middleware that refuses a request or passes it on with ``request.state.caller``.

    A refusal is a problem document, for browsers a page. ``caller`` is None if there is no valid token and reads need
    a token; the routes decide with ``require``.
    """

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app, self._context = app, context
        self._hosts = security.allowed_hosts(context)
        self._rate_limit = RateLimit(context.config.http.rate_limit)
        self._body_memory = BodyMemory(_MAX_BODY_MEMORY)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        send = with_security_headers(send_chunked(send))
        current_channel.set(AccessChannel.HTTP if scope["path"].startswith("/v1/") else AccessChannel.PAGE)
        request, http = Request(scope), self._context.config.http
        most = (_MAX_BODY_WITHOUT_TOKEN | _MAX_BODY_OF_READERS).get(request.url.path, http.max_body_size)
        try:
            host = security.request_host(request.headers)
            _check_framing(scope, request)
            if not request.url.path.startswith("/-/"):
                await self._check_request(scope, request, host)
            if "\x00" in scope["path"] or b"%00" in scope["query_string"]:
                # PostgreSQL can't store or compare NUL characters.
                raise HttpProblemError(problems.USAGE, "the address contains a NUL character")
            if _content_length(request) > most:
                raise body_too_large(most)
        except (LakefoldError, HTTPException) as error:
            problem = problem_from_http_error(request, error) if isinstance(error, HTTPException) else error
            refused = problem_page(request, problem) if wants_html(request) else None
            return await (refused or problem_response(problem, request.url.path))(scope, receive, send)
        if not _reads_body(request):
            return await self._app(scope, discard_body(receive), send)
        with LimitedBody(
            receive, max_bytes=most, seconds=http.body_timeout.total_seconds(), memory=self._body_memory
        ) as body:
            return await self._app(scope, body.receive, send)

    async def _check_request(self, scope: Scope, request: Request, host: str) -> None:
        """Check host name, rate and origin, and set the request's caller. Raises ProblemError."""
        if self._hosts is not None and host not in self._hosts:
            raise HttpProblemError(
                problems.WRONG_HOST, f"the host name {host!r} is not allowed; add it to http.allowed_hosts", host=host
            )
        token, by_cookie = security.request_token(request)
        caller = await self._find_caller(token)
        state: dict[str, Any] = scope.setdefault("state", {})
        client = scope.get("client")
        wait = self._rate_limit.take(f"token {caller.name}" if caller else f"from {client[0] if client else ''}")
        if wait:
            detail = f"more than {self._context.config.http.rate_limit:g} requests a second; see http.rate_limit"
            raise HttpProblemError(problems.TOO_MANY_REQUESTS, detail, {"Retry-After": str(math.ceil(wait))})
        if caller is not None and by_cookie:
            security.check_same_origin(scope["method"], request.headers)
        if caller is None and token is None and security.allows_anonymous_reads(self._context, host, request.headers):
            caller = Caller(None, security.READ)
        state["caller"], state["token"] = caller, token

    async def _find_caller(self, token: str | None) -> Caller | None:
        if token is None:
            return None
        tokens = self._context.tokens
        # Only a query may take long, so a fresh cache is read in the server's own thread.
        found = tokens.find(token) if tokens.is_fresh else await to_thread.run_sync(tokens.find, token)
        return None if found is None else Caller(found.name, found.scope, found.table_scope, found.person)


def _reads_body(request: Request) -> bool:
    """Return True if the body is read: from callers with the write scope, and on paths that need no write scope.

    Routes refuse all other callers because of their scope, so that reading their bodies would only cost memory.
    """
    if request.method in security.SAFE_METHODS:
        return False
    caller: Caller | None = getattr(request.state, "caller", None)
    path = request.url.path
    return path in _MAX_BODY_WITHOUT_TOKEN or (
        caller is not None and (caller.scope == security.WRITE or path in _MAX_BODY_OF_READERS)
    )


def _check_framing(scope: Scope, request: Request) -> None:
    """Raise ProblemError for a body whose end a proxy may find at another place than this server (RFC 9112, 6.3)."""
    if "transfer-encoding" in request.headers and (
        "content-length" in request.headers or scope["http_version"] == "1.0"
    ):
        detail = "a body has either Content-Length or, in HTTP/1.1, Transfer-Encoding; never both"
        raise HttpProblemError(problems.USAGE, detail, {"Connection": "close"})


def _content_length(request: Request) -> int:
    """Return the announced length of the body, 0 if it is chunked. Raises ProblemError if it is not a number."""
    announced = request.headers.get("content-length", "0")
    if not announced.isdecimal() or len(announced) > _MAX_LENGTH_DIGITS:
        raise HttpProblemError(problems.USAGE, f"content-length is {announced!r} and not a number")
    return int(announced)
