# SPDX-License-Identifier: Apache-2.0
"""``[notify]`` of the configuration: who is told, of what, and how patiently."""

import base64
import binascii
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import Field, SecretStr, model_validator

from service.sections import Duration, SecretAddress, Section, WebAddress

#: everything a webhook can be told
EVENTS = (
    "plan.completed",
    "plan.failed",
    "plan.cancelled",
    "table.halted",
    "table.paused",
    "table.resumed",
    "scan.failing",
    "scan.recovered",
    "clean.failing",
    "clean.recovered",
)
_SHORTEST_BYTES, _LONGEST_BYTES = 24, 64
_MAKE_ONE = "make one with: openssl rand -base64 32"


class Notify(Section):
    """``[notify]``: a webhook and addresses that expect signs of life. Nothing is sent where they are not set."""

    webhook_url: SecretAddress | None = None
    #: Standard Webhooks' form, base64 with or without ``whsec_``; several, separated by blanks, sign each message
    webhook_secret: SecretStr | None = None
    webhook_secret_file: Path | None = None
    webhook_timeout: Duration = timedelta(seconds=10)
    webhook_attempts: int = Field(default=15, ge=1, le=100)
    events: tuple[str, ...] = ("*",)
    page_url: WebAddress | None = None
    keep_delivered: Duration = timedelta(days=3)
    keep_dead: Duration = timedelta(days=30)
    heartbeat_url: SecretAddress | None = None
    clean_heartbeat_url: SecretAddress | None = None
    heartbeat_interval: Duration = timedelta(minutes=1)

    @model_validator(mode="after")
    def _usable(self) -> "Notify":
        for name, value in self:
            if isinstance(value, timedelta) and value <= timedelta(0):
                raise ValueError(f"{name} must be above zero")
        for pattern in self.events:
            if not any(fnmatchcase(event, pattern) for event in EVENTS):
                raise ValueError(f"events: {pattern!r} is none of {', '.join(EVENTS)} and fits none")
        if self.webhook_secret is not None and self.webhook_secret_file is not None:
            raise ValueError("webhook_secret and webhook_secret_file exclude each other")
        if self.webhook_url is not None and self.webhook_secret is None and self.webhook_secret_file is None:
            raise ValueError(f"webhook_url needs webhook_secret or webhook_secret_file; {_MAKE_ONE}")
        if self.webhook_secret is not None:
            signing_keys(self.webhook_secret.get_secret_value())
        return self

    @property
    def wanted_events(self) -> frozenset[str]:
        """The events to tell the webhook; none without a webhook."""
        if self.webhook_url is None:
            return frozenset()
        return frozenset(event for event in EVENTS if any(fnmatchcase(event, pattern) for pattern in self.events))


def signing_keys(text: str) -> tuple[bytes, ...]:
    """The keys in a setting's or a file's text. Raises ValueError, which never quotes it."""
    keys = []
    for number, word in enumerate(text.split(), 1):
        try:
            key = base64.b64decode(word.removeprefix("whsec_"), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not _SHORTEST_BYTES <= len(key) <= _LONGEST_BYTES:
            size = f"{_SHORTEST_BYTES} to {_LONGEST_BYTES} bytes"
            raise ValueError(f"webhook secret #{number} is not base64 of {size}; {_MAKE_ONE}")
        keys.append(key)
    if not keys:
        raise ValueError(f"the webhook secret is empty; {_MAKE_ONE}")
    return tuple(keys)
