# SPDX-License-Identifier: Apache-2.0
"""The sign-in with a token, which is stored in a session cookie that scripts can't read."""

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Request
from starlette.responses import RedirectResponse, Response

from service.server.api.context import ContextDep, request_context
from service.server.api.security import TOKEN_COOKIE, check_same_origin
from service.server.web.problems import PageRoute
from service.server.web.rendering import PageContent, render, safe_local_path

router = APIRouter(include_in_schema=False, route_class=PageRoute)

#: the form holds a token and an address, and needs no scope
MAX_BODY_BYTES = {"/login": 16 << 10}
_WHY_SIGN_IN = "Requesting, cancelling and retrying plans, pausing and resuming need the write scope."


def _render_form(request: Request, path: str, wrong: str = "", status: int = 200) -> Response:
    oidc, following = request_context(request).oidc, safe_local_path(path)
    page = PageContent(
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
    """Show the form. A cookie with a token that is no longer valid is deleted."""
    stale = request.state.token is not None and request.state.caller is None
    response = _render_form(request, next, "Your token is no longer valid; sign in with another one." if stale else "")
    if stale:
        response.delete_cookie(TOKEN_COOKIE, httponly=True, samesite="strict")
    return response


@router.post("/login")
def login(
    context: ContextDep, request: Request, token: Annotated[str, Form()] = "", next: Annotated[str, Form()] = "/"
) -> Response:
    """Store the token in the browser's cookie if it is in force."""
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
    """Delete the cookie. A token from an OIDC sign-in is also revoked; other tokens stay in force."""
    check_same_origin(request.method, request.headers)
    caller = request.state.caller
    if caller is not None and caller.person is not None:
        context.store.revoke_token(caller.name, actor=caller.actor)
    response = RedirectResponse("/", status_code=303)
    response.delete_cookie(TOKEN_COOKIE, httponly=True, samesite="strict")
    return response
