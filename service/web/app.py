# SPDX-License-Identifier: Apache-2.0
"""The page as part of the application."""

from fastapi import FastAPI

from service.api.security import require
from service.web import actions, login, pages
from service.web.problems import on_not_found


def add_pages(app: FastAPI) -> None:
    """Serve the page beside ``/v1``: reading needs what reading ``/v1`` needs, signing in needs nothing."""
    app.add_exception_handler(404, on_not_found)
    app.include_router(pages.public)
    app.include_router(login.router)
    app.include_router(pages.router, dependencies=[require("read")])
    app.include_router(actions.router)
