# SPDX-License-Identifier: Apache-2.0
"""Removes secrets from all text that people or collectors read: shown settings, log lines, errors, stored texts.

Settings are hidden by their names, and passwords inside values by their form. As a second line of defence, each secret
of the configuration in force is replaced in every text, such as an error message of a library.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

REDACTED = "***"
#: settings whose value is a secret: settings that Spark and Hadoop hide by default, and names of object stores and
#: formats
_SECRET_NAME = re.compile(
    r"passw(or)?d|passphrase|secret|token|credential|signature"
    r"|(access|account|api|private|encryption|shared|storage|master)[._-]?key",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"(\w://[^\s/:@]*:)([^\s/@]+)(?=@)")
_IN_VALUE = re.compile(
    r"((?:passw(?:or)?d|pwd|secret|token|signature|sig)=|bearer (?=\S{8}))([^&;,\s'\"]+)", re.IGNORECASE
)
#: shorter secrets, and secrets that are plain words, are not replaced in texts, since harmless words would disappear;
#: settings with such values are hidden by their names
_MIN_SECRET_LENGTH = 8

_secrets: set[str] = set()


@runtime_checkable
class _SecretValue(Protocol):
    """pydantic's SecretStr; importing pydantic would slow down the start of every command, --help included."""

    def get_secret_value(self) -> str: ...


def is_secret(name: str) -> bool:
    """True if a setting of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def redact_setting(name: str, value: Any) -> Any:
    """Return a setting's value as it may be shown: hidden because of its name, or without the passwords inside it."""
    if isinstance(value, _SecretValue):
        return redact_address(value.get_secret_value()) if "url" in name else REDACTED
    if isinstance(value, str):
        return REDACTED if value and is_secret(name) else redact(value)
    if isinstance(value, Mapping):
        return {key: redact_setting(str(key), item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_setting(name, item) for item in value]
    return value


def redact_address(url: str) -> str:
    """Return only scheme and host of a secret address."""
    scheme, separator, rest = url.partition("://")
    host = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]
    return f"{scheme}{separator}{host}/{REDACTED}" if separator else REDACTED


def redact_database_url(url: str) -> str:
    """Return a database URL without its password."""
    scheme, separator, rest = url.partition("://")
    login, at, host = rest.rpartition("@")
    if not at:
        return redact(url)
    return redact(f"{scheme}{separator}{login.partition(':')[0]}{':***' if ':' in login else ''}@{host}")


def redact(text: str) -> str:
    """Return ``text`` without passwords in URLs and settings, and without secrets of the configuration in force."""
    text = _IN_VALUE.sub(rf"\1{REDACTED}", _IN_URL.sub(rf"\1{REDACTED}", text))
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    return text


def add_secrets(values: Iterable[str]) -> None:
    """Make ``redact`` replace these secrets in every text of this process from now on."""
    _secrets.update(value for value in values if len(value) >= _MIN_SECRET_LENGTH and not value.isalpha())


def add_secrets_of_settings(settings: Iterable[tuple[str, Any]]) -> None:
    """``add_secrets`` for settings (name, value): secrets by type, by name, and the passwords inside values."""
    for name, value in settings:
        if isinstance(value, Mapping):
            add_secrets_of_settings((f"{name}.{key}", item) for key, item in value.items())
        elif isinstance(value, _SecretValue):
            add_secrets(_secret_parts(value.get_secret_value()))
        elif isinstance(value, str):
            add_secrets([value] if is_secret(name) else _embedded_passwords(value))


def _secret_parts(secret: str) -> Iterable[str]:
    """Yield the parts that reveal a secret: the login and path of an address, or each key in a list of keys."""
    yield from _embedded_passwords(secret)
    if secret.startswith(("http://", "https://")):
        yield secret.partition("://")[2].partition("/")[2]
    elif "://" not in secret:
        yield from (word.removeprefix("whsec_") for word in secret.split())


def _embedded_passwords(value: str) -> Iterable[str]:
    """Yield the passwords inside a value that is not a secret as a whole."""
    yield from (found[2] for found in _IN_URL.finditer(value))
    yield from (found[2] for found in _IN_VALUE.finditer(value))
