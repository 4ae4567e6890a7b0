# SPDX-License-Identifier: Apache-2.0
"""Building blocks of the configuration's sections: their base class and the types of their values."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, SecretStr

from lake.units import parse_duration


class SettingsSection(BaseModel):
    """A section in which every key is known. Errors never quote a value, since it may be a secret."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def flatten(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the keys that TOML nested (``clustering.x = 1`` without quotes) as flat dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in section.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = tuple(value) if isinstance(value, list) else value
    return flat


def _to_string(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _to_string_map(section: Any) -> Any:
    return (
        {key: _to_string(value) for key, value in flatten(section).items()} if isinstance(section, Mapping) else section
    )


def _check_web_address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be http://host/… or https://host/…")
    return url


def _check_secret_address(url: SecretStr) -> SecretStr:
    _check_web_address(url.get_secret_value())
    return url


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
StringMap = Annotated[dict[str, str], BeforeValidator(_to_string_map)]
WebAddress = Annotated[str, AfterValidator(_check_web_address)]
#: an address that grants access by itself, as the addresses of chats and of monitoring services do
SecretAddress = Annotated[SecretStr, AfterValidator(_check_secret_address)]
