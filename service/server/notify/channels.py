# SPDX-License-Identifier: Apache-2.0
"""Channels for people, such as Slack and e-mail: messages as text, sent by Apprise."""

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lake.redaction import add_secrets, redact
from service.control.config.loader import Config, ConfigError
from service.control.config.notify import ChannelSettings
from service.problems import describe_error
from service.server.notify.webhook import DeliveryResult
from service.text import describe_figures

_EXTRA = "pip install 'lakefold[apprise]'"
#: events that report the end of a problem, or a success
_GOOD_EVENTS = frozenset({"plan.completed", "table.resumed", "scan.recovered", "clean.recovered"})
_FAILURES = frozenset({"plan.failed", "table.halted", "scan.failing", "clean.failing"})
_MAX_ERROR_LENGTH = 300


class _LastWarning(logging.Handler):
    """Keeps the last warning of Apprise, which returns no reason when it fails. The warning may contain secrets."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``."""
        self.text = record.getMessage()


def _secret_parts(address: str) -> Iterator[str]:
    """Yield the parts of an address that may be secret.

    The host is not secret if a login precedes it, or if it is an IP address. Any other host may be secret:
    slack://TokenA/TokenB/TokenC.
    """
    login, at, rest = address.partition("://")[2].rpartition("@")
    if at:
        rest = re.sub(r"^[^/?:]+", "", rest)
    for part in re.split(r"[/?&=@:]+", f"{login}/{rest}"):
        if not re.fullmatch(r"[\d.]+", part):
            yield part


class Channel:
    """One channel. ``send`` formats the message as a title and a text; secrets of the address are in no result."""

    def __init__(self, settings: ChannelSettings, address: str) -> None:
        """Raises ConfigError if Apprise is not installed or does not know the address."""
        add_secrets([address, *_secret_parts(address)])
        try:
            import apprise
        except ImportError as error:
            raise ConfigError(f"notify.channels {settings.name!r} needs Apprise: {_EXTRA}") from error
        self._log = logging.getLogger("apprise")
        # At lower levels Apprise logs addresses and messages; its warnings are in the results of ``send``.
        self._log.setLevel(logging.WARNING)
        self._log.propagate = False
        logging.getLogger("urllib3").setLevel(logging.WARNING)  # logs addresses as well
        self._types = apprise.NotifyType
        self._target = apprise.Apprise.instantiate(address, suppress_exceptions=True)
        if self._target is None:
            scheme = re.match(r"[a-z]{1,20}(?=://)", address)
            known = f" (scheme {scheme[0]})" if scheme else ""
            raise ConfigError(
                f"notify.channels {settings.name!r}: Apprise can't use its address{known}; its documentation has the "
                "addresses of each service, such as slack://TokenA/TokenB/TokenC and mailtos://user:password@host"
            )
        # Apprise would wait for seconds between two messages; if a service limits its rate, the outbox waits.
        self._target.request_rate_per_sec = 0
        self.display_url = f"channel {settings.name} ({self._target.service_name})"

    def close(self) -> None:
        """Do nothing: every message has a connection of its own."""

    def send(self, body: Mapping[str, Any]) -> DeliveryResult:
        """Send a message. Errors are returned, not raised; Apprise does not say whether the receiver answered."""
        event, warning = str(body["event"]), _LastWarning()
        kind = self._types.SUCCESS if event in _GOOD_EVENTS else self._types.INFO
        kind = self._types.FAILURE if event in _FAILURES else kind
        self._log.addHandler(warning)
        try:
            is_sent = self._target.notify(body=message_text(body), title=message_title(body), notify_type=kind)
        except Exception as error:  # a plugin of Apprise may raise anything
            return DeliveryResult(error=redact(describe_error(error))[:_MAX_ERROR_LENGTH])
        finally:
            self._log.removeHandler(warning)
        if is_sent:
            return DeliveryResult()
        reason = " ".join(redact(warning.text).split())[:_MAX_ERROR_LENGTH]
        return DeliveryResult(error=reason or f"{self._target.service_name} did not accept the message")


def message_title(body: Mapping[str, Any]) -> str:
    """Return the title of a message, such as ``lakefold: plan failed: sales.orders``."""
    return f"lakefold: {body['event'].replace('.', ' ')}: {body['table'] or 'all tables'}"


def message_text(body: Mapping[str, Any]) -> str:
    """Return the text of a message: its reason, figures, partition, plan and link, each in its own line."""
    lines = [
        body["reason"],
        describe_figures(body["figures"]),
        f"partition {body['partition']}" if body.get("partition") else "",
        f"plan {body['plan']}" if body["plan"] else "",
        body["link"] or "",
    ]
    return "\n".join(line for line in lines if line) or body["event"]


def open_channels(config: Config) -> dict[str, Channel]:
    """Open the configured channels, by name. Raises ConfigError for an address that can't be used."""
    return {settings.name: Channel(settings, _read_address(config, settings)) for settings in config.notify.channels}


def _read_address(config: Config, settings: ChannelSettings) -> str:
    if settings.address is not None:
        return settings.address.get_secret_value()
    assert settings.address_file is not None, "a configuration with a channel that has no address is not valid"
    path = (config.file.parent if config.file else Path()) / settings.address_file.expanduser()
    try:
        address = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"notify.channels {settings.name!r}: address_file = {path}: {describe_error(error)}"
        ) from error
    if not address:
        raise ConfigError(f"notify.channels {settings.name!r}: address_file = {path}: the file is empty")
    return address
