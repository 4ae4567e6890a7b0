# SPDX-License-Identifier: Apache-2.0
"""``[notify]`` of the configuration: the webhook, its events and retries, and heartbeat addresses."""

import base64
import binascii
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import Field, SecretStr, model_validator

from service.control.config.field_types import Duration, SecretAddress, SettingsSection, WebAddress

#: all events that a webhook can receive
EVENTS = (
    "plan.proposed",
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
_MIN_KEY_BYTES, _MAX_KEY_BYTES = 24, 64
_KEY_HINT = "make one with: openssl rand -base64 32"


class ChannelSettings(SettingsSection):
    """A channel for people, such as Slack or e-mail, by its address in Apprise's notation."""

    name: str = Field(pattern=r"^[\w.-]{1,50}$", description="required: the channel's name in lists and logs")
    address: SecretStr | None = Field(default=None, description="the address, which is never shown")
    address_file: Path | None = Field(
        default=None,
        description="the path of a file with the address, instead of `address`; a relative path is relative to the "
        "configuration file",
    )
    events: tuple[str, ...] = Field(
        default=("plan.failed", "plan.proposed", "table.halted", "scan.failing", "clean.failing"),
        description="the events that are reported: names, or patterns such as `plan.*`",
    )

    @model_validator(mode="after")
    def _check(self) -> "ChannelSettings":
        _check_events(self.events)
        if (self.address is None) == (self.address_file is None):
            raise ValueError(f"channel {self.name!r} needs either address or address_file")
        return self

    @property
    def selected_events(self) -> frozenset[str]:
        """The events to send to the channel."""
        return frozenset(event for event in EVENTS if any(fnmatchcase(event, pattern) for pattern in self.events))


class NotifySettings(SettingsSection):
    """``[notify]``: a webhook, channels, and addresses that expect heartbeats. No address is set by default."""

    webhook_url: SecretAddress | None = Field(
        default=None,
        description="the URL to which messages are posted, of which only the host is shown; if it is unset, no message "
        "is written",
    )
    webhook_secret: SecretStr | None = Field(
        default=None,
        description="the secret that signs messages: base64 of 24 to 64 bytes, with or without `whsec_` in front; "
        "if there are several secrets, separated by blanks, each of them signs every message",
    )
    webhook_secret_file: Path | None = Field(
        default=None,
        description="the path of a file with the secret, instead of `webhook_secret`; a relative path is relative to "
        "the configuration file",
    )
    webhook_timeout: Duration = Field(
        default=timedelta(seconds=10),
        description="the time-out of connecting, of sending, and of each part of the answer",
    )
    webhook_attempts: int = Field(
        default=15,
        ge=1,
        le=100,
        description="how often a message is sent, over about a day, before it is given up",
    )
    events: tuple[str, ...] = Field(
        default=("*",), description="the events that are reported: names, or patterns such as `plan.*`"
    )
    channels: tuple[ChannelSettings, ...] = Field(
        default=(),
        description="channels for people (`[[notify.channels]]`): `name`, `address` or `address_file` in Apprise's "
        "notation, and `events`, by default failures and proposals ([notifications.md](notifications.md#channels))",
    )
    page_url: WebAddress | None = Field(
        default=None, description="the address of lakefold's page for people; if it is set, messages have a `link`"
    )
    delivered_retention: Duration = Field(
        default=timedelta(days=3), description="how long delivered messages stay in the database"
    )
    dead_retention: Duration = Field(
        default=timedelta(days=30), description="how long messages that were given up stay in the database"
    )
    heartbeat_url: SecretAddress | None = Field(
        default=None, description="an address that is called after each successful scan"
    )
    clean_heartbeat_url: SecretAddress | None = Field(
        default=None, description="an address that is called after each round of cleaning in which no table failed"
    )
    heartbeat_interval: Duration = Field(
        default=timedelta(minutes=1), description="the least time between two calls of the same address"
    )

    @model_validator(mode="after")
    def _check(self) -> "NotifySettings":
        for name, value in self:
            if isinstance(value, timedelta) and value <= timedelta(0):
                raise ValueError(f"{name} must be above zero")
        _check_events(self.events)
        names = [channel.name for channel in self.channels]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"channels: two of them are called {twice[0]!r}")
        if self.webhook_secret is not None and self.webhook_secret_file is not None:
            raise ValueError("webhook_secret and webhook_secret_file exclude each other")
        if self.webhook_url is not None and self.webhook_secret is None and self.webhook_secret_file is None:
            raise ValueError(f"webhook_url needs webhook_secret or webhook_secret_file; {_KEY_HINT}")
        if self.webhook_secret is not None:
            parse_signing_keys(self.webhook_secret.get_secret_value())
        return self

    @property
    def selected_events(self) -> frozenset[str]:
        """The events to send to the webhook. There are none without a webhook."""
        if self.webhook_url is None:
            return frozenset()
        return frozenset(event for event in EVENTS if any(fnmatchcase(event, pattern) for pattern in self.events))


def _check_events(patterns: tuple[str, ...]) -> None:
    """Raise ValueError for a pattern that matches no event."""
    for pattern in patterns:
        if not any(fnmatchcase(event, pattern) for event in EVENTS):
            raise ValueError(f"events: {pattern!r} is not one of {', '.join(EVENTS)} and matches none of them")


def parse_signing_keys(text: str) -> tuple[bytes, ...]:
    """Return the keys in the text of a setting or file. Raises ValueError, which never quotes the text."""
    keys = []
    for number, word in enumerate(text.split(), 1):
        try:
            key = base64.b64decode(word.removeprefix("whsec_"), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not _MIN_KEY_BYTES <= len(key) <= _MAX_KEY_BYTES:
            size = f"{_MIN_KEY_BYTES} to {_MAX_KEY_BYTES} bytes"
            raise ValueError(f"webhook secret #{number} is not base64 of {size}; {_KEY_HINT}")
        keys.append(key)
    if not keys:
        raise ValueError(f"the webhook secret is empty; {_KEY_HINT}")
    return tuple(keys)
