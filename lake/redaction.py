# SPDX-License-Identifier: Apache-2.0
"""Keeps secrets out of everything that people or collectors read: settings shown, log lines, errors, stored texts.

Settings are hidden by their names, and passwords inside values by their form. That is what a reader can rely on.
Behind it stands a second line: whatever the configuration in force holds as a secret is replaced wherever it turns up
in a text, such as in an error that a library wrote.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

HIDDEN = "***"
#: settings whose value is a secret; what Spark and Hadoop hide by default, and the names of object stores and formats
_SECRET_NAME = re.compile(
    r"passw(or)?d|passphrase|secret|token|credential|signature"
    r"|(access|account|api|private|encryption|shared|storage|master)[._-]?key",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"(\w://[^\s/:@]*:)([^\s/@]+)(?=@)")
_IN_VALUE = re.compile(
    r"((?:passw(?:or)?d|pwd|secret|token|signature|sig)=|bearer (?=\S{8}))([^&;,\s'\"]+)", re.IGNORECASE
)
#: a shorter text, or a plain word, would hide harmless words everywhere and no more than its name hides already
_SHORTEST = 8

_known: set[str] = set()


@runtime_checkable
class _Secret(Protocol):
    """pydantic's SecretStr; importing that would cost every command, --help too, its start."""

    def get_secret_value(self) -> str: ...


def is_secret(name: str) -> bool:
    """Whether a setting of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def shown(name: str, value: Any) -> Any:
    """A setting's value as it may be shown: hidden by its name, or with the passwords inside it hidden."""
    if isinstance(value, _Secret):
        return hide_address(value.get_secret_value()) if "url" in name else HIDDEN
    if isinstance(value, str):
        return HIDDEN if value and is_secret(name) else hide(value)
    if isinstance(value, Mapping):
        return {key: shown(str(key), item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(name, item) for item in value]
    return value


def hide_address(url: str) -> str:
    """Only where a secret address leads: scheme and host."""
    scheme, separator, rest = url.partition("://")
    host = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]
    return f"{scheme}{separator}{host}/{HIDDEN}" if separator else HIDDEN


def without_password(url: str) -> str:
    """A database URL that may be shown."""
    scheme, separator, rest = url.partition("://")
    login, at, host = rest.rpartition("@")
    if not at:
        return hide(url)
    return hide(f"{scheme}{separator}{login.partition(':')[0]}{':***' if ':' in login else ''}@{host}")


def hide(text: str) -> str:
    """``text`` without passwords in URLs and settings, and without any secret of the configuration in force."""
    text = _IN_VALUE.sub(rf"\1{HIDDEN}", _IN_URL.sub(rf"\1{HIDDEN}", text))
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def remember(values: Iterable[str]) -> None:
    """Replace these secrets from now on wherever ``hide`` meets them in this process."""
    _known.update(value for value in values if len(value) >= _SHORTEST and not value.isalpha())


def remember_settings(settings: Iterable[tuple[str, Any]]) -> None:
    """``remember`` the secrets among settings (name, value): by kind, by name, and the passwords inside values."""
    for name, value in settings:
        if isinstance(value, Mapping):
            remember_settings((f"{name}.{key}", item) for key, item in value.items())
        elif isinstance(value, _Secret):
            remember(_parts(value.get_secret_value()))
        elif isinstance(value, str):
            remember([value] if is_secret(name) else _inside(value))


def _parts(secret: str) -> Iterable[str]:
    """What gives a secret away: of an address its login and what follows the host, of a list of keys each key."""
    yield from _inside(secret)
    if secret.startswith(("http://", "https://")):
        yield secret.partition("://")[2].partition("/")[2]
    elif "://" not in secret:
        yield from (word.removeprefix("whsec_") for word in secret.split())


def _inside(value: str) -> Iterable[str]:
    """The passwords inside a value that is none by itself."""
    yield from (found[2] for found in _IN_URL.finditer(value))
    yield from (found[2] for found in _IN_VALUE.finditer(value))
