# SPDX-License-Identifier: Apache-2.0
"""Errors as problem documents (RFC 9457), those of FastAPI itself included; ``docs/problems.md`` has each kind."""

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
    """A problem with headers of its own."""

    def __init__(self, problem: Problem, detail: str, headers: Mapping[str, str] | None = None, **facts: Any) -> None:
        super().__init__(problem, detail, **facts)
        self.headers = dict(headers or {})


def problem_response(error: BaseException, instance: str) -> Response:
    """``error`` as a response; ``instance`` is the path asked for."""
    document = problems.problem_document(error)
    if problems.classify(error) is problems.ERROR:  # its text may tell what is nobody's business
        document["detail"] = "an error nobody foresaw; the log of lakefold has it"
    linked = {**document, "type": f"/{document['type']}", "instance": instance}
    return Response(
        # A half of a surrogate pair, which JSON may bring and UTF-8 can't hold, goes back as its escape.
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
    """The problem document of an HTTP error that a router or FastAPI raised."""
    assert isinstance(error, HTTPException)
    return problem_response(problem_from_http_error(request, error), request.url.path)


def problem_from_http_error(request: Request, error: HTTPException) -> HttpProblemError:
    """The problem that an HTTP error of a router or of FastAPI is, with its status and headers."""
    problem = _BY_STATUS.get(error.status_code, replace(problems.USAGE, status=error.status_code))
    detail = str(error.detail)
    if error.status_code == 404:
        detail = f"there is nothing at {request.url.path}"
    elif error.status_code == 405:
        detail = f"{request.method} is not for {request.url.path}"
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
