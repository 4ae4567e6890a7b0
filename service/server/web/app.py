# SPDX-License-Identifier: Apache-2.0
"""The routers of the page in the application."""

from fastapi import APIRouter

from service.server.api.security import require
from service.server.web import actions, login, oidc_sign_in, pages


def add_pages(root: APIRouter) -> None:
    """Add the page to the application. Reading needs the same scope as reading ``/v1``; the sign-in needs no scope."""
    root.include_router(pages.public_router)
    root.include_router(login.router)
    root.include_router(oidc_sign_in.router)
    root.include_router(pages.router, dependencies=[require("read")])
    root.include_router(actions.router)
