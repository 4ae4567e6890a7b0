# SPDX-License-Identifier: Apache-2.0
"""The HTTP application: every router with the scope that it requires."""

from functools import cache
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute

from lake.version import __version__
from service.server.api import (
    audit,
    bulk_actions,
    callbacks,
    cleaning,
    events,
    explain,
    health,
    history,
    notifications,
    operator_actions,
    plans,
    progress,
    replay,
    report,
    requests,
    settings,
    simulate,
    status,
    tables,
)
from service.server.api.context import Context
from service.server.api.deprecation import DeprecationMiddleware
from service.server.api.former_fields import add_former_fields
from service.server.api.problems import add_exception_handlers
from service.server.api.security import require
from service.server.http.connections import connection_limit
from service.server.http.guard import Guard
from service.server.http.middleware import TimingMiddleware, TraceparentMiddleware
from service.server.web.app import add_pages
from service.server.web.problems import on_missing_route

#: the routers of ``/v1``; each route that writes requires the write scope itself
ROUTERS: tuple[APIRouter, ...] = (
    status.router,
    report.router,
    cleaning.router,
    settings.router,
    tables.router,
    tables.databases_router,
    explain.router,
    replay.router,
    history.router,
    plans.router,
    progress.router,
    requests.router,
    operator_actions.router,
    bulk_actions.router,
    notifications.router,
    audit.router,
    events.router,
    simulate.router,
)

_DESCRIPTION = """\
Plans, tables and requests of one lakefold. Times are ISO 8601 in UTC, bytes are integers. Lists are
`{"items": […], "next": …}`: `next` is the value of `after` for the following page, null on the last one; the
`Link` header leads to the same page. Errors are problem documents (RFC 9457).
"""

_PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "A problem document (RFC 9457)",
        "content": {
            "application/problem+json": {
                "schema": {
                    "type": "object",
                    "required": ["type", "title", "status", "detail", "instance", "exit_code"],
                    "properties": {
                        "type": {"type": "string", "description": "A heading of docs/problems.md"},
                        "title": {"type": "string"},
                        "status": {"type": "integer"},
                        "detail": {"type": "string"},
                        "instance": {"type": "string", "description": "The requested path"},
                        "exit_code": {
                            "type": "integer",
                            "description": "The exit code of the command line for this error",
                        },
                    },
                }
            }
        },
    }
}


@cache
def _routes(serves_api: bool, metrics_token: bool) -> list[BaseRoute]:
    """Return every route of a process with the scope that it requires.

    FastAPI analyses a route's parameters at its first use, which takes much of an application's start. Therefore all
    applications of a process, and the OpenAPI document, share one set of routes.
    """
    root = APIRouter(responses=_PROBLEM_RESPONSES)
    root.include_router(health.health)
    root.include_router(health.explanations)
    root.include_router(health.metrics, dependencies=[require("read", all_tables=True)] if metrics_token else [])
    if serves_api:
        for router in ROUTERS:
            root.include_router(router, prefix="/v1", dependencies=[require("read")])
        root.include_router(callbacks.router, prefix="/v1")
        add_pages(root)
        root.add_api_route("/openapi.json", _openapi, include_in_schema=False, dependencies=[require("read")])
    return root.routes


def create_bare_app(*, serves_api: bool, metrics_token: bool = False) -> FastAPI:
    """Create the application with the routes only, without the context of a process."""
    app = FastAPI(
        title="lakefold",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        routes=_routes(serves_api, metrics_token),
    )
    add_exception_handlers(app)
    if serves_api:
        for code in (404, 405):
            app.add_exception_handler(code, on_missing_route)
    return app


def create_app(context: Context) -> FastAPI:
    """Create the application of a process."""
    app = create_bare_app(serves_api=context.serves_api, metrics_token=context.config.http.metrics_need_token)
    app.state.context = context
    # An open stream is never closed to make room, so half of the connections are reserved for other requests.
    most = connection_limit(context.config.http.max_connections) // 2
    app.state.progress = progress.ProgressStreams(context.store, context.tokens, most)
    app.add_middleware(TraceparentMiddleware)
    app.add_middleware(DeprecationMiddleware)
    app.add_middleware(Guard, context=context)
    # Outside the guard, so that refused requests are timed too.
    app.add_middleware(TimingMiddleware, metrics=context.metrics, routes=app.routes)
    return app


@cache
def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document of ``/v1``."""
    document = create_bare_app(serves_api=True).openapi()
    schemes = document["components"]["securitySchemes"]
    schemes |= callbacks.SECURITY_SCHEMES
    add_former_fields(document)
    return document


async def _openapi() -> JSONResponse:
    """Serve the OpenAPI document."""
    return JSONResponse(openapi_document())
