# SPDX-License-Identifier: Apache-2.0
"""``[oidc]`` of the configuration: people sign in to the page at an OpenID Connect provider; groups give rights."""

from datetime import timedelta
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from service.control.config.field_types import Duration, SettingsSection, WebAddress

#: the path to which the provider redirects people
CALLBACK_PATH = "/login/oidc/callback"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def _check_https(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
        raise ValueError("must be https://…; http:// is allowed only for this machine")
    return url


def _check_callback_path(url: str) -> str:
    parts = urlsplit(url)
    if parts.path != CALLBACK_PATH or parts.query or parts.fragment:
        raise ValueError(f"must be the page's address followed by {CALLBACK_PATH}")
    return url


HttpsAddress = Annotated[WebAddress, AfterValidator(_check_https)]


class OidcSettings(SettingsSection):
    """``[oidc]``: signing in to the page at an OpenID Connect provider; disabled without an issuer."""

    issuer: HttpsAddress | None = Field(
        default=None, description="the provider's issuer URL; if it is unset, sign-in is off"
    )
    client_id: str | None = Field(default=None, description="lakefold's client id at the provider")
    client_secret: SecretStr | None = Field(default=None, description="the secret of this client at the provider")
    redirect_url: Annotated[HttpsAddress, AfterValidator(_check_callback_path)] | None = Field(
        default=None, description=f"the page's address with `{CALLBACK_PATH}`, as it is registered at the provider"
    )
    scopes: tuple[str, ...] = Field(
        default=("openid", "email"), description="scopes to request; some providers also need `groups` or `profile`"
    )
    name_claim: str = Field(
        default="email", description="the claim with a person's name; `sub` if a token lacks this claim"
    )
    groups_claim: str = Field(default="groups", description="the claim with the groups of a person")
    write_groups: tuple[str, ...] = Field(default=(), description="groups whose members may write")
    read_groups: tuple[str, ...] = Field(
        default=(), description='groups whose members may read; `["*"]` for all people'
    )
    session_lifetime: Annotated[Duration, Field(gt=timedelta(0))] = Field(
        default=timedelta(hours=8), description="the time after which people have to sign in again"
    )

    @model_validator(mode="after")
    def _check_complete(self) -> "OidcSettings":
        if self.issuer is None:
            return self
        for name in ("client_id", "redirect_url"):
            if not getattr(self, name):
                raise ValueError(f"{name} is needed besides issuer")
        if self.client_secret is None or not self.client_secret.get_secret_value():
            raise ValueError("client_secret is needed besides issuer; in the environment: LAKEFOLD_OIDC__CLIENT_SECRET")
        if "openid" not in self.scopes:
            raise ValueError('scopes lack "openid"')
        if not self.read_groups and not self.write_groups:
            raise ValueError('no person could sign in; set read_groups (["*"] for all people) or write_groups')
        return self
