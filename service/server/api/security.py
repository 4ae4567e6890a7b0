# SPDX-License-Identifier: Apache-2.0
"""Callers and their permissions: bearer tokens, the page's cookie, and anonymous reads on the loopback."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from lake.errors import Rejected
from service import problems
from service.control.store import UNRESTRICTED, TableScope
from service.server.api.context import Context
from service.server.api.problems import HttpProblemError

#: the cookie with the page's token
TOKEN_COOKIE = "lakefold_token"
READ, WRITE = "read", "write"
#: methods that change nothing and whose requests have no body
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
#: headers that proxies add; a forwarded request may come from anywhere
_FORWARDING_HEADERS = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
#: a name or IPv4 address, or an IPv6 address in brackets, and a port; no list and no user information
_HOST_PATTERN = re.compile(r"(?:(?P<name>[A-Za-z0-9._-]+)|\[(?P<ipv6>[0-9A-Fa-f:.]+)\])(?::[0-9]{1,5})?")

#: only for the OpenAPI document; the Guard has already read the header
_TokenSecurityScheme = Annotated[
    Any,
    Depends(
        HTTPBearer(auto_error=False, scheme_name="token", description="lakefold tokens add NAME --scope read|write")
    ),
]


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request: the name of a token, its scope, and the tables it may access.

    ``name`` is None for a read that needs no token; ``person`` is the person who signed in, if any.
    """

    name: str | None
    scope: str
    table_scope: TableScope = UNRESTRICTED
    person: str | None = None

    @property
    def actor(self) -> str:
        """The caller's name in the audit trail."""
        if self.person is not None:
            return f"oidc {self.person}"
        return f"token {self.name}" if self.name is not None else "anonymous"

    def require_all_tables(self) -> None:
        """Raise ProblemError if the caller is limited to some tables; for requests that concern all tables."""
        if not self.table_scope.is_unrestricted:
            detail = f"{self.actor} is limited to {self.table_scope.text}; this concerns all tables"
            raise HttpProblemError(problems.FORBIDDEN, detail, tables=self.table_scope.patterns)


def require(scope: str, *, all_tables: bool = False) -> Any:
    """Return a dependency that admits only callers with ``scope`` (read or write); its value is the Caller.

    It answers 401 if a token is missing or not valid, and 403 if its scope does not suffice or, with ``all_tables``, if
    the token is limited to some tables.
    """

    async def required(request: Request, _: _TokenSecurityScheme) -> Caller:
        caller: Caller | None = request.state.caller
        if caller is None:
            if request.state.token is not None:
                raise _unauthenticated("the token is wrong, expired or revoked", 'error="invalid_token"')
            raise _unauthenticated("a token is needed: Authorization: Bearer …", "")
        if scope == WRITE and caller.scope != WRITE:
            if caller.name is None:
                what = "writing needs a token of scope write: Authorization: Bearer …"
                raise _unauthenticated(what, 'scope="write"')
            detail = f"token {caller.name!r} has scope {caller.scope}; this needs scope {scope}"
            raise HttpProblemError(problems.FORBIDDEN, detail, scope=scope)
        if all_tables:
            caller.require_all_tables()
        return caller

    required.scope = scope  # type: ignore[attr-defined]
    return Depends(required)


def _unauthenticated(detail: str, parameters: str) -> HttpProblemError:
    challenge = ", ".join(filter(None, ('Bearer realm="lakefold"', parameters)))
    return HttpProblemError(problems.UNAUTHENTICATED, detail, {"WWW-Authenticate": challenge})


def request_token(connection: HTTPConnection) -> tuple[str | None, bool]:
    """Return the token of a request, and whether it came in the cookie."""
    kind, _, value = connection.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and value.strip():
        return value.strip(), False
    cookie = connection.cookies.get(TOKEN_COOKIE)
    return (cookie, True) if cookie else (None, False)


def request_host(headers: Headers) -> str:
    """Return the host name of a request in lower case, without its port; '' if it has none.

    Raises ProblemError for a malformed header, which other programs may interpret differently.
    """
    header = headers.get("host", "")
    found = _HOST_PATTERN.fullmatch(header)
    if header and found is None:
        raise HttpProblemError(problems.USAGE, f"the Host header is {header!r} and not NAME or NAME:PORT")
    return (found["name"] or found["ipv6"]).lower() if found else ""


def check_same_origin(method: str, headers: Headers) -> None:
    """Raise ProblemError if another site may have started a write by cookie."""
    if method in SAFE_METHODS:
        return
    site = headers.get("sec-fetch-site")
    origin = urlsplit(headers.get("origin", "")).netloc
    if site == "same-origin" or (site is None and origin and origin == headers.get("host")):
        return
    raise HttpProblemError(problems.FORBIDDEN, "a write with the page's cookie must come from the page itself")


def is_loopback(address: str) -> bool:
    """Return True if only this machine can reach ``address``."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def allows_anonymous_reads(context: Context, host: str, headers: Headers) -> bool:
    """Return True if a read needs no token: on the loopback, under a loopback name, and not through a proxy."""
    forwarded = any(name in headers for name in _FORWARDING_HEADERS)
    return is_loopback(context.config.http.address) and host in _LOOPBACK_HOSTS and not forwarded


def allowed_hosts(context: Context) -> frozenset[str] | None:
    """Return the host names that requests may use; None if any name may be used.

    Another site can point its own name at the loopback (DNS rebinding). So on the loopback only its own names and
    http.allowed_hosts are accepted. Outside the loopback the API and the page need a token, which another site does not
    have. So names are only restricted if http.allowed_hosts is set.
    """
    http = context.config.http
    if not is_loopback(http.address) and not http.allowed_hosts:
        return None
    return frozenset((*_LOOPBACK_HOSTS, http.address, *(host.lower() for host in http.allowed_hosts)))


def check_exposure(context: Context) -> None:
    """Raise Rejected if others could reach the process, it needs tokens, and there is neither a token nor OIDC."""
    http = context.config.http
    needs_token = context.serves_api or http.metrics_need_token
    if needs_token and not is_loopback(http.address) and context.oidc is None and not context.tokens.has_tokens():
        raise Rejected(
            f"http.address {http.address} can be reached by others and no token is stored; first: "
            'lakefold tokens add NAME --scope read, or set [http] address = "127.0.0.1"'
        )
