# SPDX-License-Identifier: Apache-2.0
"""The pages of errors, which browsers get instead of problem documents."""

import logging
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from service import problems
from service.problems import ProblemError, classify, describe_error
from service.server.api.problems import on_http_error, problem_from_http_error
from service.server.web.formatting import as_sentence
from service.server.web.rendering import PageContent, render

logger = logging.getLogger(__name__)

#: maximum length of the value of a field that is wrong, in its problem
_MAX_VALUE = 80

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class PageRoute(APIRoute):
    """A route whose errors are pages; a request without a token is redirected to the sign-in page."""

    def get_route_handler(self) -> Handler:
        """See FastAPI."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except RequestValidationError as error:
                return problem_page(request, ProblemError(problems.INVALID_FIELD, _invalid_field(error)))
            except Exception as error:
                if classify(error) is problems.UNAUTHENTICATED:
                    return redirect_to_login(request)
                return problem_page(request, error)

        return handle


def _invalid_field(error: RequestValidationError) -> str:
    """Return the first field that is wrong, the reason, and its value if the address has it."""
    first = error.errors()[0]
    text = f"{first['loc'][-1]}: {first['msg'].removeprefix('Value error, ')}"
    value = first.get("input")
    # A form may have a secret, an address has none.
    return f"{text}, but is {value[:_MAX_VALUE]!r}" if first["loc"][0] == "query" and isinstance(value, str) else text


def redirect_to_login(request: Request) -> Response:
    """Redirect to the sign-in page, which leads back to the current page."""
    back = request.url.path if request.method == "GET" else page_of_action(request.url.path)
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"/login?{urlencode({'next': back + query})}", status_code=303)


def page_of_action(path: str) -> str:
    """Return the address of the page whose form posts to ``path``."""
    return path.rpartition("/")[0] or "/"


def problem_page(request: Request, error: Exception) -> Response:
    """Return ``error`` as a page with its status and headers."""
    if isinstance(error, HTTPException):
        error = problem_from_http_error(request, error)
    problem = classify(error)
    detail = describe_error(error)
    if problem is problems.ERROR:  # its text may contain internal details
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        detail = "Unexpected error; lakefold's log has the details."
    commands = ("lakefold db check",) if problem is problems.DATABASE else ()
    page = PageContent(status=problem.status, title=problem.title, detail=as_sentence(detail), commands=commands)
    response = render(request, "problems.html", page, status=problem.status)
    response.headers.update(getattr(error, "headers", {}))
    return response


def wants_html(request: Request) -> bool:
    """Return True if a browser requests a page; ``/v1`` and ``/-/`` never answer with pages."""
    return "text/html" in request.headers.get("accept", "") and not request.url.path.startswith(("/v1/", "/-/"))


async def on_missing_route(request: Request, error: Exception) -> Response:
    """Answer an unknown address with a page for browsers, and with a problem document for programs."""
    return problem_page(request, error) if wants_html(request) else await on_http_error(request, error)
