# SPDX-License-Identifier: Apache-2.0
"""The heartbeats for a dead man's switch: another system raises the alarm if they stop."""

import logging
import threading
import time
from datetime import timedelta

import httpx
from pydantic import SecretStr

from lake.errors import one_line
from lake.redaction import redact_address

logger = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 10.0


class Heartbeat:
    """The sender of heartbeats: it GETs ``url`` after successes of a loop, at most once per ``interval``.

    Without a URL it does nothing. ``beat`` returns at once. Only the first of several failures is logged.
    """

    def __init__(self, url: SecretStr | None, interval: timedelta) -> None:
        self._url = url.get_secret_value() if url is not None else None
        self._interval_seconds = interval.total_seconds()
        self._next_due = 0.0
        self._lock = threading.Lock()
        self._sending: threading.Thread | None = None
        self._failing = False

    def beat(self) -> None:
        """Send a heartbeat if one is due. The loop calls this after each success."""
        with self._lock:
            due = self._url is not None and time.monotonic() >= self._next_due
            if due and (self._sending is None or not self._sending.is_alive()):
                self._next_due = time.monotonic() + self._interval_seconds
                self._sending = threading.Thread(target=self._send, args=(self._url,), name="heartbeat", daemon=True)
                self._sending.start()

    def close(self) -> None:
        """Wait for the current request."""
        if self._sending is not None:
            self._sending.join(_TIMEOUT_SECONDS)

    def _send(self, url: str) -> None:
        try:
            httpx.get(url, timeout=_TIMEOUT_SECONDS, follow_redirects=False).raise_for_status()
        except httpx.HTTPStatusError as error:
            self._log_failure(url, f"answered {error.response.status_code}")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            self._log_failure(url, one_line(error))
        else:
            if self._failing:
                self._failing = False
                logger.info("heartbeat address %s answers again", redact_address(url))

    def _log_failure(self, url: str, why: str) -> None:
        if not self._failing:
            self._failing = True
            logger.warning("heartbeat address %s: %s; lakefold continues", redact_address(url), why)
