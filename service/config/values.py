# SPDX-License-Identifier: Apache-2.0
"""Building blocks of the configuration's sections: their base, and the kinds of value in them."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, SecretStr

from lake.units import parse_duration


class Section(BaseModel):
    """A section whose keys are all known. Errors never quote what was written: it may be a secret."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def flatten(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys that TOML nested (``clustering.x = 1`` without quotes) as the flat keys they are."""
    flat: dict[str, Any] = {}
    for key, value in section.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = tuple(value) if isinstance(value, list) else value
    return flat


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _texts(section: Any) -> Any:
    return {key: _text(value) for key, value in flatten(section).items()} if isinstance(section, Mapping) else section


def _web_address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be http://host/… or https://host/…")
    return url


def _secret_address(url: SecretStr) -> SecretStr:
    _web_address(url.get_secret_value())
    return url


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
Texts = Annotated[dict[str, str], BeforeValidator(_texts)]
WebAddress = Annotated[str, AfterValidator(_web_address)]
#: an address that lets in whoever knows it, as those of chats and of monitoring services do
SecretAddress = Annotated[SecretStr, AfterValidator(_secret_address)]
