# SPDX-License-Identifier: Apache-2.0
"""The loops that deliver the outbox, one for the webhook and one for each channel.

Delivery is at least once, by one process at a time, with retries.
"""

import logging
import math
import random
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from lake.redaction import add_secrets
from service.control.config.loader import Config, ConfigError
from service.control.config.notify import NotifySettings, parse_signing_keys
from service.control.store import Notification
from service.control.store.notifications import Notifications
from service.problems import describe_error
from service.server.notify.webhook import HTTP_GONE, DeliveryResult, Webhook
from service.server.observability.metrics import Metrics

logger = logging.getLogger(__name__)

_FIRST_RETRY_DELAY = timedelta(seconds=5)
_MAX_RETRY_DELAY = timedelta(hours=6)
_JITTER_SHARE = 0.2
_BATCH_SIZE = 50
_PRUNE_SECONDS = 3600.0


def open_webhook(config: Config) -> Webhook | None:
    """Open the configured webhook; returns None if there is none. Raises ConfigError for a bad file of secrets."""
    notify = config.notify
    if notify.webhook_url is None:
        return None
    return Webhook(notify.webhook_url.get_secret_value(), _load_signing_keys(config), notify.webhook_timeout)


def with_page_link(body: Any, notify: NotifySettings) -> dict[str, Any]:
    """Return a message with a link to the page of its plan or table; the link is None if ``page_url`` is not set."""
    link = None
    if notify.page_url is not None:
        kind, name = ("plans", body["plan"]) if body["plan"] else ("tables", body["table"] or "")
        link = f"{notify.page_url.rstrip('/')}/{kind}/{quote(name, safe='')}".rstrip("/")
    return {**body, "link": link}


class Receiver(Protocol):
    """A receiver of messages: the webhook, or a channel."""

    @property
    def display_url(self) -> str:
        """The receiver without its secrets, for people."""

    def send(self, body: Mapping[str, Any]) -> DeliveryResult:
        """Send a message; errors are returned, not raised. The status is None if the receiver did not answer."""

    def close(self) -> None:
        """Close the connections."""


class MessageDelivery:
    """Delivers messages to one receiver: the channel named ``channel``, or the webhook if it is None.

    A tick stops when ``is_leader()`` is false.
    """

    def __init__(
        self,
        notify: NotifySettings,
        store: Notifications,
        receiver: Receiver,
        metrics: Metrics,
        *,
        is_leader: Callable[[], bool],
        channel: str | None = None,
    ) -> None:
        self._notify, self._store, self._receiver, self._metrics = notify, store, receiver, metrics
        self.channel, self._is_leader = channel, is_leader
        self._failing = False
        self._pruned_at = -math.inf

    @property
    def _label(self) -> str:
        return f"{'webhook ' if self.channel is None else ''}{self._receiver.display_url}"

    def tick(self) -> None:
        """Send the due messages, oldest first, until the receiver does not answer. Raises StoreError."""
        for message in self._store.due_notifications(_BATCH_SIZE, self.channel) if self._is_leader() else ():
            if not self._is_leader():
                return
            answer = self._receiver.send(with_page_link(message.body, self._notify))
            self._record(message, answer)
            if answer.status is None and answer.error is not None:
                return  # the receiver does not answer: the other messages wait for the next tick, without an attempt
        if self._is_leader() and time.monotonic() - self._pruned_at > _PRUNE_SECONDS:
            self._store.prune_notifications(
                delivered=self._notify.delivered_retention, dead=self._notify.dead_retention
            )
            self._pruned_at = time.monotonic()

    def _record(self, message: Notification, answer: DeliveryResult) -> None:
        attempt = message.attempts + 1
        if answer.error is None:
            self._store.mark_notification_delivered(message.number)
            self._metrics.record_notification_attempt("delivered")
            if self._failing:
                self._failing = False
                logger.info("%s accepts messages again", self._label)
            return
        retry_after = None
        if answer.status != HTTP_GONE and attempt < self._notify.webhook_attempts:
            retry_after = max(retry_delay(attempt), answer.retry_after or timedelta(0))
        self._store.mark_notification_failed(message.number, answer.error, retry_after)
        self._metrics.record_notification_attempt("failed" if retry_after else "dead")
        if retry_after is None:
            logger.error(
                "notification %d (%s) given up after attempt %d: %s; to send it again: lakefold notifications retry %d",
                *(message.number, message.event, attempt, answer.error, message.number),
            )
        elif not self._failing:
            self._failing = True
            logger.warning("%s: %s; trying again", self._label, answer.error)


def retry_delay(attempt: int) -> timedelta:
    """Return the delay after failed ``attempt`` (counted from 1): exponential, with jitter."""
    doubled = min(_FIRST_RETRY_DELAY * (1 << min(attempt - 1, 32)), _MAX_RETRY_DELAY)
    return doubled * random.uniform(1 - _JITTER_SHARE, 1 + _JITTER_SHARE)


def _load_signing_keys(config: Config) -> tuple[bytes, ...]:
    notify, path = config.notify, config.notify.webhook_secret_file
    if notify.webhook_secret is not None:
        return parse_signing_keys(notify.webhook_secret.get_secret_value())
    assert path is not None, "a configuration with a webhook that has no secret is not valid"
    path = (config.file.parent if config.file else Path()) / path.expanduser()
    try:
        text = path.read_text(encoding="utf-8")
        add_secrets(text.split())
        return parse_signing_keys(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"notify.webhook_secret_file = {path}: {describe_error(error)}") from error
