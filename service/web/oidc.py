# SPDX-License-Identifier: Apache-2.0
"""Signing in at the provider of ``[oidc]``: there and back, with a token for the browser at the end."""

import hmac
import secrets
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote, unquote

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from service import problems
from service.api.context import Context, Here
from service.api.oidc import Begun, Provider
from service.api.security import COOKIE
from service.api.tokens import digest, new_token
from service.config.oidc import CALLBACK
from service.problems import CommandError
from service.web.problems import PageRoute
from service.web.rendering import own_path, render

router = APIRouter(include_in_schema=False, route_class=PageRoute)

BEGIN = "/login/oidc"
#: what a browser keeps while it is at the provider
UNDER_WAY = "lakefold_sign_in"
_MINUTES = 10

Word = Annotated[str, Query(max_length=4096)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIn:
    """Who signed in, and the page to go on to."""

    name: str
    next: str


@router.get(BEGIN)
def begin(here: Here, next: Annotated[str, Query(max_length=1024)] = "/") -> Response:
    """To the provider."""
    provider = _provider(here)
    begun = Begun.new(own_path(next))
    response = RedirectResponse(provider.address(begun), status_code=303)
    # Lax and not strict: the way back begins at the provider's.
    response.set_cookie(
        UNDER_WAY,
        quote(begun.words, safe=""),
        max_age=_MINUTES * 60,
        path=BEGIN,
        httponly=True,
        samesite="lax",
        secure=_is_secure(provider),
    )
    return response


@router.get(CALLBACK)
def come_back(
    here: Here, request: Request, code: Word = "", state: Word = "", error: Word = "", error_description: Word = ""
) -> Response:
    """From the provider; with a token for this browser where it says that somebody in one of the groups signed in."""
    provider = _provider(here)
    begun = Begun.of(unquote(request.cookies.get(UNDER_WAY, "")))
    if begun is None or not hmac.compare_digest(begun.state.encode(), state.encode()):
        raise CommandError(problems.USAGE, "this sign-in was not started in this browser, or too long ago; start again")
    if error or not code:
        why = error_description or error or "it gave no reason"
        raise CommandError(problems.FORBIDDEN, f"{provider.shown} did not sign you in: {why}")
    person = provider.person(begun, code)
    if person.scope is None:
        raise CommandError(
            problems.FORBIDDEN,
            f"{person.name} is in no group that may read; see read_groups and write_groups of [oidc]",
        )
    token = new_token()
    here.store.add_token(
        f"{person.name} {secrets.token_hex(4)}",
        digest=digest(token),
        scope=person.scope,
        expires_in=provider.settings.session,
        actor=f"oidc {person.name}",
        person=person.name,
    )
    # A page and not a redirect: a strict cookie is not sent on a way that began elsewhere.
    response = render(request, "signed_in.html", SignedIn(name=person.name, next=begun.next))
    response.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=_is_secure(provider), path="/")
    response.delete_cookie(UNDER_WAY, path=BEGIN, httponly=True, samesite="lax")
    return response


def _provider(here: Context) -> Provider:
    if here.oidc is None:
        raise CommandError(problems.NOT_FOUND, "no sign-in provider is configured: [oidc] issuer is not set")
    return here.oidc


def _is_secure(provider: Provider) -> bool:
    return (provider.settings.redirect_url or "").startswith("https:")
