# SPDX-License-Identifier: Apache-2.0
"""Errors as problem documents (RFC 9457), including FastAPI's own errors; ``docs/problems.md`` lists the kinds."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from lake.errors import LakefoldError
from service import problems
from service.problems import Problem, ProblemError
from service.text import to_json

logger = logging.getLogger(__name__)

_BY_STATUS: Mapping[int, Problem] = {
    401: problems.UNAUTHENTICATED,
    403: problems.FORBIDDEN,
    404: problems.NOT_FOUND,
    405: problems.METHOD_NOT_ALLOWED,
    408: problems.BODY_TIMEOUT,
    413: problems.BODY_TOO_LARGE,
    421: problems.WRONG_HOST,
    422: problems.INVALID_FIELD,
    429: problems.TOO_MANY_REQUESTS,
    503: problems.TRANSIENT,
}


class HttpProblemError(ProblemError):
    """A problem with HTTP headers."""

    def __init__(self, problem: Problem, detail: str, headers: Mapping[str, str] | None = None, **facts: Any) -> None:
        super().__init__(problem, detail, **facts)
        self.headers = dict(headers or {})


def problem_response(error: BaseException, instance: str) -> Response:
    """Return ``error`` as a response; ``instance`` is the requested path."""
    document = problems.problem_document(error)
    if problems.classify(error) is problems.ERROR:  # its text may contain internal details
        document["detail"] = "an unexpected error; lakefold's log has the details"
    linked = {**document, "type": f"/{document['type']}", "instance": instance}
    return Response(
        # JSON may contain a lone surrogate, which UTF-8 can't encode: it is returned as an escape.
        to_json(linked).encode(errors="backslashreplace"),
        status_code=document["status"],
        headers=getattr(error, "headers", None),
        media_type="application/problem+json",
    )


def add_exception_handlers(app: FastAPI) -> None:
    """Answer every error with a problem document."""
    for kind in (LakefoldError, Exception):
        app.add_exception_handler(kind, _on_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)


async def _on_error(request: Request, error: Exception) -> Response:
    if problems.classify(error) in (problems.ERROR, problems.INTEGRITY):
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem_response(error, request.url.path)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer an HTTP error of a router or of FastAPI with a problem document."""
    assert isinstance(error, HTTPException)
    return problem_response(problem_from_http_error(request, error), request.url.path)


def problem_from_http_error(request: Request, error: HTTPException) -> HttpProblemError:
    """Convert an HTTP error of a router or of FastAPI to a problem with its status and headers."""
    problem = _BY_STATUS.get(error.status_code, replace(problems.USAGE, status=error.status_code))
    detail = str(error.detail)
    if error.status_code == 404:
        detail = f"there is nothing at {request.url.path}"
    elif error.status_code == 405:
        detail = f"{request.url.path} does not accept {request.method}"
    return HttpProblemError(problem, detail, error.headers)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = [
        {"where": ".".join(str(part) for part in entry["loc"]), "message": entry["msg"].removeprefix("Value error, ")}
        for entry in error.errors()
    ]
    first = errors[0]
    invalid = ProblemError(problems.INVALID_FIELD, f"{first['where']}: {first['message']}", errors=errors)
    return problem_response(invalid, request.url.path)
