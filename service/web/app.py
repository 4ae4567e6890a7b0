# SPDX-License-Identifier: Apache-2.0
"""The page as part of the application."""

from fastapi import FastAPI

from service.api.security import require
from service.web import actions, login, pages
from service.web.problems import on_no_route


def add_pages(app: FastAPI) -> None:
    """Serve the page beside ``/v1``: reading needs what reading ``/v1`` needs, signing in needs nothing."""
    for status in (404, 405):
        app.add_exception_handler(status, on_no_route)
    app.include_router(pages.public)
    app.include_router(login.router)
    app.include_router(pages.router, dependencies=[require("read")])
    app.include_router(actions.router)
