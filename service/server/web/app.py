# SPDX-License-Identifier: Apache-2.0
"""The page as part of the application."""

from fastapi import APIRouter

from service.server.api.security import require
from service.server.web import actions, login, oidc, pages


def add_pages(root: APIRouter) -> None:
    """Serve the page beside ``/v1``: reading needs what reading ``/v1`` needs, signing in needs nothing."""
    root.include_router(pages.public_router)
    root.include_router(login.router)
    root.include_router(oidc.router)
    root.include_router(pages.router, dependencies=[require("read")])
    root.include_router(actions.router)
