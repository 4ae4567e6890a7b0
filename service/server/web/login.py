# SPDX-License-Identifier: Apache-2.0
"""Signing in: a token given once, kept in a cookie that no script can read, gone with the browser."""

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Request
from starlette.responses import RedirectResponse, Response

from service.server.api.context import ContextDep, request_context
from service.server.api.security import TOKEN_COOKIE, check_same_origin
from service.server.web.problems import PageRoute
from service.server.web.rendering import render, safe_local_path

router = APIRouter(include_in_schema=False, route_class=PageRoute)

#: a form that everybody may send holds a token and an address
MAX_BODY_BYTES = {"/login": 16 << 10}
_WHY_SIGN_IN = "Requesting, cancelling and retrying plans, pausing and resuming need the write scope."


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginPage:
    """The form; ``next`` is the page to go on to."""

    why: str
    next: str
    error: str
    example_name: str
    #: where else one can sign in, and the address that leads there; '' for nowhere
    provider_name: str
    provider_url: str


def _render_form(request: Request, path: str, wrong: str = "", status: int = 200) -> Response:
    oidc, following = request_context(request).oidc, safe_local_path(path)
    page = LoginPage(
        why=_WHY_SIGN_IN,
        next=following,
        error=wrong,
        example_name="me",
        provider_name=oidc.display_name if oidc else "",
        provider_url=f"/login/oidc?{urlencode({'next': following})}" if oidc else "",
    )
    return render(request, "login.html", page, status=status)


@router.get("/login")
def login_form(request: Request, next: str = "/") -> Response:
    """The form. A token that is no longer valid is forgotten here."""
    stale = request.state.token is not None and request.state.caller is None
    response = _render_form(request, next, "Your token is no longer valid; sign in with another one." if stale else "")
    if stale:
        response.delete_cookie(TOKEN_COOKIE, httponly=True, samesite="strict")
    return response


@router.post("/login")
def login(
    context: ContextDep, request: Request, token: Annotated[str, Form()] = "", next: Annotated[str, Form()] = "/"
) -> Response:
    """Keep the token in the browser's cookie, if it is one in force."""
    check_same_origin(request.method, request.headers)
    if context.tokens.find(token.strip()) is None:
        return _render_form(request, next, "This token is wrong, expired or revoked.", status=403)
    response = RedirectResponse(safe_local_path(next), status_code=303)
    response.set_cookie(
        TOKEN_COOKIE, token.strip(), httponly=True, samesite="strict", secure=request.url.scheme == "https", path="/"
    )
    return response


@router.post("/logout")
def logout(context: ContextDep, request: Request) -> Response:
    """Forget the token in this browser; elsewhere it stays in force, but for one that was made for this browser."""
    check_same_origin(request.method, request.headers)
    caller = request.state.caller
    if caller is not None and caller.person is not None:
        context.store.revoke_token(caller.name, actor=caller.actor)
    response = RedirectResponse("/", status_code=303)
    response.delete_cookie(TOKEN_COOKIE, httponly=True, samesite="strict")
    return response
