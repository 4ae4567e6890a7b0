# SPDX-License-Identifier: Apache-2.0
"""The sign-in at an OpenID Connect provider: the authorization code flow with PKCE, state and nonce."""

import json
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote_plus, urlsplit

from lake.errors import one_line
from service import problems
from service.control.config.loader import Config, ConfigError
from service.control.config.oidc import OidcSettings
from service.problems import ProblemError

#: signatures with a key of the provider; "none" and signatures with the client's secret are not accepted
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_TIMEOUT_SECONDS = 10.0
#: how long the provider's metadata is cached
_METADATA_TTL_SECONDS = 600.0
#: the tolerated difference between the clocks of two machines
_LEEWAY_SECONDS = 60
_MAX_NAME_LENGTH = 200
#: concurrent requests to the provider
_MAX_CONCURRENT = 8
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSignIn:
    """A sign-in under way, which the browser stores in a cookie."""

    state: str
    nonce: str
    verifier: str
    next: str

    @classmethod
    def new(cls, next_: str) -> "PendingSignIn":
        """Create a sign-in with random values."""
        state, nonce, verifier = (secrets.token_urlsafe(48) for _ in range(3))
        return cls(state=state, nonce=nonce, verifier=verifier, next=next_)

    @classmethod
    def from_cookie(cls, value: str) -> "PendingSignIn | None":
        """Return the sign-in in the cookie ``value``, None if it is not valid."""
        try:
            values = json.loads(value)
            texts = {key: values[key] for key in ("state", "nonce", "verifier", "next")}
        except (ValueError, TypeError, KeyError):
            return None
        return cls(**texts) if all(isinstance(text, str) and text for text in texts.values()) else None

    @property
    def cookie_value(self) -> str:
        """The value of the cookie."""
        return json.dumps({"state": self.state, "nonce": self.nonce, "verifier": self.verifier, "next": self.next})


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """The person who signed in, and the scope that their groups give; None for no access."""

    name: str
    scope: str | None


class OidcProvider:
    """The provider of a configuration. Thread-safe. Every request to it raises ProblemError if it fails."""

    def __init__(self, settings: OidcSettings) -> None:
        self.settings = settings
        self._request_slots = threading.BoundedSemaphore(_MAX_CONCURRENT)
        self._metadata_cache: Mapping[str, Any] = {}
        self._metadata_read_at = float("-inf")

    @property
    def display_name(self) -> str:
        """The provider's host name."""
        return urlsplit(self.settings.issuer or "").netloc

    def authorization_url(self, sign_in: PendingSignIn) -> str:
        """Return the address to which the browser is redirected."""
        from authlib.common.urls import add_params_to_uri
        from authlib.oauth2.rfc7636 import create_s256_code_challenge

        parameters = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": self.settings.redirect_url,
            "scope": " ".join(self.settings.scopes),
            "state": sign_in.state,
            "nonce": sign_in.nonce,
            "code_challenge": create_s256_code_challenge(sign_in.verifier),
            "code_challenge_method": "S256",
        }
        return str(add_params_to_uri(self._metadata()["authorization_endpoint"], list(parameters.items())))

    def authenticate(self, sign_in: PendingSignIn, code: str) -> Person:
        """Exchange ``code`` and return the person who signed in."""
        metadata = self._metadata()
        token = self._exchange_code(metadata, sign_in, code)
        claims = self.verify_id_token(token, sign_in.nonce, self._request_json(metadata["jwks_uri"]))
        if self.settings.groups_claim not in claims and "userinfo_endpoint" in metadata:
            bearer = {"Authorization": f"Bearer {token.get('access_token')}"}
            claims = self._merge_userinfo(claims, self._request_json(metadata["userinfo_endpoint"], headers=bearer))
        return self._person_from_claims(claims)

    def verify_id_token(self, token: Mapping[str, Any], nonce: str, keys: Mapping[str, Any]) -> dict[str, Any]:
        """Verify the ID token in ``token`` and return its claims.

        Raises ProblemError unless it is signed with one of ``keys`` and made for this sign-in and this client.
        """
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet, KeySetSerialization

        try:
            decoded = jwt.decode(
                token["id_token"], KeySet.import_key_set(cast(KeySetSerialization, keys)), algorithms=list(_ALGORITHMS)
            )
            claims = CodeIDToken(
                decoded.claims,
                decoded.header,
                options={
                    "iss": {"essential": True, "value": self.settings.issuer},
                    "aud": {"essential": True, "value": self.settings.client_id},
                },
                params={
                    "nonce": nonce,
                    "client_id": self.settings.client_id,
                    "access_token": token.get("access_token"),
                },
            )
            claims.validate(leeway=_LEEWAY_SECONDS)
        except (JoseError, KeyError, ValueError, TypeError) as error:
            what = f"the ID token of {self.display_name} is not valid: {one_line(error)}"
            raise ProblemError(problems.FORBIDDEN, what) from error
        return dict(claims)

    def _merge_userinfo(self, claims: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
        if more.get("sub") != claims["sub"]:
            raise ProblemError(
                problems.FORBIDDEN, f"{self.display_name} returned the user information of another person"
            )
        return {**more, **claims}

    def _person_from_claims(self, claims: Mapping[str, Any]) -> Person:
        groups = claims.get(self.settings.groups_claim) or ()
        own = {groups} if isinstance(groups, str) else {group for group in groups if isinstance(group, str)}
        scope = None
        if "*" in self.settings.read_groups or own & set(self.settings.read_groups):
            scope = "read"
        if own & set(self.settings.write_groups):
            scope = "write"
        name = claims.get(self.settings.name_claim)
        unproved = self.settings.name_claim == "email" and claims.get("email_verified") is False
        if not isinstance(name, str) or not name.strip() or not name.isprintable() or unproved:
            name = str(claims["sub"])
        shown = "".join(char for char in name if char.isprintable())
        return Person(name=shown[:_MAX_NAME_LENGTH], scope=scope)

    def _metadata(self) -> Mapping[str, Any]:
        """Return the provider's metadata. Raises ProblemError if they are incomplete or of another issuer."""
        if time.monotonic() - self._metadata_read_at > _METADATA_TTL_SECONDS:
            issuer = self.settings.issuer or ""
            found = self._request_json(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            if found.get("issuer") != issuer:
                raise self._provider_error(f"its issuer is {found.get('issuer')!r}, and [oidc] issuer is {issuer!r}")
            missing = [name for name in _ENDPOINTS if not isinstance(found.get(name), str)]
            if missing:
                raise self._provider_error(f"its metadata have no {missing[0]}")
            self._metadata_cache, self._metadata_read_at = found, time.monotonic()
        return self._metadata_cache

    def _exchange_code(self, metadata: Mapping[str, Any], sign_in: PendingSignIn, code: str) -> dict[str, Any]:
        """Exchange ``code`` for tokens. Raises ProblemError if it was used before or belongs to another sign-in."""
        settings, form = self.settings, {"grant_type": "authorization_code", "code": code}
        form |= {"redirect_uri": settings.redirect_url or "", "code_verifier": sign_in.verifier}
        known, auth = settings.client_id or "", None
        secret = settings.client_secret.get_secret_value() if settings.client_secret else ""
        if "client_secret_basic" in metadata.get("token_endpoint_auth_methods_supported", ["client_secret_basic"]):
            auth = (quote_plus(known), quote_plus(secret))  # RFC 6749, 2.3.1
        else:
            form |= {"client_id": known, "client_secret": secret}
        return self._request_json(metadata["token_endpoint"], data=form, auth=auth)

    def _request_json(self, url: str, **more: Any) -> dict[str, Any]:
        """GET the JSON object at ``url``, or POST the form ``data`` and return the answer."""
        import httpx

        # Limited, because a request that waits for a silent provider blocks a thread that other requests need.
        if not self._request_slots.acquire(blocking=False):
            raise self._provider_error(f"{_MAX_CONCURRENT} requests are waiting for it already")
        try:
            response = httpx.request("POST" if "data" in more else "GET", url, timeout=_TIMEOUT_SECONDS, **more)
            found = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise self._provider_error(one_line(error)) from error
        finally:
            self._request_slots.release()
        if not isinstance(found, dict):
            raise self._provider_error(f"{urlsplit(url).path} is not a JSON object")
        if response.is_error:
            why = found.get("error_description") or found.get("error") or f"status {response.status_code}"
            raise ProblemError(problems.FORBIDDEN, f"{self.display_name} refuses: {why}")
        return found

    def _provider_error(self, why: str) -> ProblemError:
        return ProblemError(problems.TRANSIENT, f"can't sign in at {self.display_name}: {why}")


def create_provider(config: Config) -> OidcProvider | None:
    """Return the provider of ``config``; None if it has none. Raises ConfigError if its extra is not installed."""
    if config.oidc.issuer is None:
        return None
    try:
        import authlib.oidc.core  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError("[oidc] needs a package that is not installed: pip install 'lakefold[oidc]'") from error
    return OidcProvider(config.oidc)
