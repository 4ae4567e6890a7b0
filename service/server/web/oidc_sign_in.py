# SPDX-License-Identifier: Apache-2.0
"""The sign-in at the provider of ``[oidc]``: the redirect to the provider, and the callback, which issues a token."""

import hmac
import secrets
from typing import Annotated
from urllib.parse import quote, unquote

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from service import problems
from service.control.config.oidc import CALLBACK_PATH
from service.problems import ProblemError
from service.server.api.context import Context, ContextDep
from service.server.api.oidc_provider import OidcProvider, PendingSignIn
from service.server.api.security import TOKEN_COOKIE
from service.server.api.token_cache import new_token, token_digest
from service.server.web.problems import PageRoute
from service.server.web.rendering import PageContent, render, safe_local_path

router = APIRouter(include_in_schema=False, route_class=PageRoute)

SIGN_IN_PATH = "/login/oidc"
#: the cookie with the pending sign-in while the browser is at the provider
SIGN_IN_COOKIE = "lakefold_sign_in"
_COOKIE_MINUTES = 10

Word = Annotated[str, Query(max_length=4096)]


@router.get(SIGN_IN_PATH)
def start_sign_in(context: ContextDep, next: Annotated[str, Query(max_length=1024)] = "/") -> Response:
    """Redirect the browser to the provider."""
    provider = _provider(context)
    sign_in = PendingSignIn.new(safe_local_path(next))
    response = RedirectResponse(provider.authorization_url(sign_in), status_code=303)
    # Lax and not strict, because the callback is a navigation from the provider's site.
    response.set_cookie(
        SIGN_IN_COOKIE,
        quote(sign_in.cookie_value, safe=""),
        max_age=_COOKIE_MINUTES * 60,
        path=SIGN_IN_PATH,
        httponly=True,
        samesite="lax",
        secure=_is_secure(provider),
    )
    return response


@router.get(CALLBACK_PATH)
def finish_sign_in(
    context: ContextDep,
    request: Request,
    code: Word = "",
    state: Word = "",
    error: Word = "",
    error_description: Word = "",
) -> Response:
    """Handle the provider's callback: issue a token for this browser if one of the person's groups has access."""
    provider = _provider(context)
    sign_in = PendingSignIn.from_cookie(unquote(request.cookies.get(SIGN_IN_COOKIE, "")))
    if sign_in is None or not hmac.compare_digest(sign_in.state.encode(), state.encode()):
        raise ProblemError(problems.USAGE, "this sign-in was not started in this browser, or too long ago; start again")
    if error or not code:
        why = error_description or error or "it gave no reason"
        raise ProblemError(problems.FORBIDDEN, f"{provider.display_name} did not sign you in: {why}")
    person = provider.authenticate(sign_in, code)
    if person.scope is None:
        raise ProblemError(
            problems.FORBIDDEN,
            f"{person.name} is in no group that may read; see read_groups and write_groups of [oidc]",
        )
    token = new_token()
    context.store.add_token(
        f"{person.name} {secrets.token_hex(4)}",
        digest=token_digest(token),
        scope=person.scope,
        expires_in=provider.settings.session_lifetime,
        actor=f"oidc {person.name}",
        person=person.name,
    )
    # A page and not a redirect: a strict cookie is not sent in a redirect chain that began at another site.
    response = render(request, "signed_in.html", PageContent(name=person.name, next=sign_in.next))
    response.set_cookie(TOKEN_COOKIE, token, httponly=True, samesite="strict", secure=_is_secure(provider), path="/")
    response.delete_cookie(SIGN_IN_COOKIE, path=SIGN_IN_PATH, httponly=True, samesite="lax")
    return response


def _provider(context: Context) -> OidcProvider:
    if context.oidc is None:
        raise ProblemError(problems.NOT_FOUND, "no sign-in provider is configured: [oidc] issuer is not set")
    return context.oidc


def _is_secure(provider: OidcProvider) -> bool:
    return (provider.settings.redirect_url or "").startswith("https:")
