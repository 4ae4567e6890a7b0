# SPDX-License-Identifier: Apache-2.0
"""Signing in at a provider of OpenID Connect: the authorization code flow with PKCE, state and nonce."""

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
from service.config.loader import Config, ConfigError
from service.config.oidc import OidcSettings
from service.problems import CommandError

#: signatures with a key of the provider's; one made with the client's secret, or none, proves nothing here
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_TIMEOUT_SECONDS = 10.0
#: for so long what the provider says of itself is not asked for again
_FRESH_SECONDS = 600.0
#: by which the clocks of two machines may differ
_LEEWAY_SECONDS = 60
_LONGEST_NAME = 200
#: questions to the provider at a time
_MOST_AT_ONCE = 8
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A sign-in under way, which the browser keeps and brings back."""

    state: str
    nonce: str
    verifier: str
    next: str

    @classmethod
    def new(cls, next_: str) -> "Begun":
        """Another one, which nobody can guess."""
        state, nonce, verifier = (secrets.token_urlsafe(48) for _ in range(3))
        return cls(state=state, nonce=nonce, verifier=verifier, next=next_)

    @classmethod
    def of(cls, kept: str) -> "Begun | None":
        """The one that ``words`` are of; None for anything else."""
        try:
            values = json.loads(kept)
            texts = {key: values[key] for key in ("state", "nonce", "verifier", "next")}
        except (ValueError, TypeError, KeyError):
            return None
        return cls(**texts) if all(isinstance(text, str) and text for text in texts.values()) else None

    @property
    def words(self) -> str:
        """As a browser can keep it."""
        return json.dumps({"state": self.state, "nonce": self.nonce, "verifier": self.verifier, "next": self.next})


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Who signed in, and what their groups let them do; ``scope`` is None for nothing."""

    name: str
    scope: str | None


class Provider:
    """The provider of a configuration. Thread-safe. What it is asked raises CommandError where that fails."""

    def __init__(self, settings: OidcSettings) -> None:
        self.settings = settings
        self._asking = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self._known: Mapping[str, Any] = {}
        self._known_at = float("-inf")

    @property
    def shown(self) -> str:
        """How people know it."""
        return urlsplit(self.settings.issuer or "").netloc

    def address(self, begun: Begun) -> str:
        """Where to send a browser."""
        from authlib.common.urls import add_params_to_uri
        from authlib.oauth2.rfc7636 import create_s256_code_challenge

        asked = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": self.settings.redirect_url,
            "scope": " ".join(self.settings.scopes),
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": create_s256_code_challenge(begun.verifier),
            "code_challenge_method": "S256",
        }
        return str(add_params_to_uri(self._metadata()["authorization_endpoint"], list(asked.items())))

    def person(self, begun: Begun, code: str) -> Person:
        """Who came back from the provider with ``code``."""
        metadata = self._metadata()
        token = self._token(metadata, begun, code)
        claims = self.checked(token, begun.nonce, self._asked(metadata["jwks_uri"]))
        if self.settings.groups_claim not in claims and "userinfo_endpoint" in metadata:
            bearer = {"Authorization": f"Bearer {token.get('access_token')}"}
            claims = self._completed(claims, self._asked(metadata["userinfo_endpoint"], headers=bearer))
        return self._person(claims)

    def checked(self, token: Mapping[str, Any], nonce: str, keys: Mapping[str, Any]) -> dict[str, Any]:
        """The claims of the ID token in ``token``, signed with one of ``keys``, for this sign-in and this client."""
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
            what = f"what {self.shown} says about who signed in is not valid: {one_line(error)}"
            raise CommandError(problems.FORBIDDEN, what) from error
        return dict(claims)

    def _completed(self, claims: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
        if more.get("sub") != claims["sub"]:
            raise CommandError(problems.FORBIDDEN, f"{self.shown} described another person than the one who signed in")
        return {**more, **claims}

    def _person(self, claims: Mapping[str, Any]) -> Person:
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
        return Person(name=shown[:_LONGEST_NAME], scope=scope)

    def _metadata(self) -> Mapping[str, Any]:
        """What the provider says of itself."""
        if time.monotonic() - self._known_at > _FRESH_SECONDS:
            issuer = self.settings.issuer or ""
            found = self._asked(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            if found.get("issuer") != issuer:
                raise self._unusable(f"it calls itself {found.get('issuer')!r}, and [oidc] issuer says {issuer!r}")
            missing = [name for name in _ENDPOINTS if not isinstance(found.get(name), str)]
            if missing:
                raise self._unusable(f"it does not tell its {missing[0]}")
            self._known, self._known_at = found, time.monotonic()
        return self._known

    def _token(self, metadata: Mapping[str, Any], begun: Begun, code: str) -> dict[str, Any]:
        """What the provider gives for ``code``; CommandError where it has been used, or is another sign-in's."""
        settings, form = self.settings, {"grant_type": "authorization_code", "code": code}
        form |= {"redirect_uri": settings.redirect_url or "", "code_verifier": begun.verifier}
        known, auth = settings.client_id or "", None
        secret = settings.client_secret.get_secret_value() if settings.client_secret else ""
        if "client_secret_basic" in metadata.get("token_endpoint_auth_methods_supported", ["client_secret_basic"]):
            auth = (quote_plus(known), quote_plus(secret))  # RFC 6749, 2.3.1
        else:
            form |= {"client_id": known, "client_secret": secret}
        return self._asked(metadata["token_endpoint"], data=form, auth=auth)

    def _asked(self, url: str, **more: Any) -> dict[str, Any]:
        """The JSON object at ``url``; with a form in ``data`` what is answered to it."""
        import httpx

        # Whoever waits for a provider that is silent has a thread that others need.
        if not self._asking.acquire(blocking=False):
            raise self._unusable(f"{_MOST_AT_ONCE} others are waiting for it already")
        try:
            response = httpx.request("POST" if "data" in more else "GET", url, timeout=_TIMEOUT_SECONDS, **more)
            found = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise self._unusable(one_line(error)) from error
        finally:
            self._asking.release()
        if not isinstance(found, dict):
            raise self._unusable(f"{urlsplit(url).path} is no JSON object")
        if response.is_error:
            why = found.get("error_description") or found.get("error") or f"status {response.status_code}"
            raise CommandError(problems.FORBIDDEN, f"{self.shown} refuses: {why}")
        return found

    def _unusable(self, why: str) -> CommandError:
        return CommandError(problems.TRANSIENT, f"can't sign in at {self.shown}: {why}")


def provider_of(config: Config) -> Provider | None:
    """The provider of ``config``, None without one. Raises ConfigError where the extra for it is not installed."""
    if config.oidc.issuer is None:
        return None
    try:
        import authlib.oidc.core  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError("[oidc] needs what is not installed: pip install 'lakefold[oidc]'") from error
    return Provider(config.oidc)
