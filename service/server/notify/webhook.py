# SPDX-License-Identifier: Apache-2.0
"""The webhook: messages signed by the Standard Webhooks specification, whose libraries receivers can use."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from lake.errors import one_line
from lake.redaction import redact_address
from lake.version import __version__

HTTP_GONE = 410
#: the longest ``Retry-After`` that is accepted
_MAX_RETRY_AFTER = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryResult:
    """The result of an attempt: the message is delivered if ``error`` is None.

    ``status`` is None if the receiver did not answer; ``retry_after`` is the delay that it requested.
    """

    status: int | None = None
    error: str | None = None
    retry_after: timedelta | None = None


class Webhook:
    """The webhook at ``url``, which signs with each of ``keys`` and follows no redirect.

    Close it, or use it in a ``with`` block.
    """

    def __init__(self, url: str, keys: Sequence[bytes], timeout: timedelta) -> None:
        self._url, self._keys = url, tuple(keys)
        self._client = httpx.Client(
            timeout=timeout.total_seconds(),
            follow_redirects=False,
            headers={"user-agent": f"lakefold/{__version__}", "content-type": "application/json"},
        )

    def __enter__(self) -> "Webhook":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def display_url(self) -> str:
        """The address without its secrets."""
        return redact_address(self._url)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def send(self, body: Mapping[str, Any]) -> DeliveryResult:
        """POST ``body``, whose ``id`` is the same at every attempt. Network errors are returned, not raised."""
        payload = json.dumps(body, separators=(",", ":"), sort_keys=True).encode()
        headers = signature_headers(str(body["id"]), int(time.time()), payload, self._keys)
        try:
            # The answer's body is never read: it may be endless.
            with self._client.stream("POST", self._url, content=payload, headers=headers) as response:
                return _delivery_result(response)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            return DeliveryResult(error=one_line(error))


def signature_headers(message_id: str, at: int, payload: bytes, keys: Sequence[bytes]) -> dict[str, str]:
    """Return the signature headers: HMAC-SHA256 over id, time and payload with each key.

    ``at`` is the time of sending, in seconds since 1970.
    """
    content = f"{message_id}.{at}.".encode() + payload
    signatures = (base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode() for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(at),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def _delivery_result(response: httpx.Response) -> DeliveryResult:
    status = response.status_code
    if response.is_success:
        return DeliveryResult(status=status)
    if response.has_redirect_location:
        error = f"answered {status}, a redirect, which is not followed; set the address it leads to"
    else:
        error = f"answered {status} {response.reason_phrase}".strip()
    return DeliveryResult(status=status, error=error, retry_after=_retry_after(response.headers.get("retry-after", "")))


def _retry_after(text: str) -> timedelta | None:
    """Parse the header's seconds or date as a time from now; returns None if it is not usable."""
    try:
        wanted = timedelta(seconds=int(text)) if text.isdecimal() else parsedate_to_datetime(text) - datetime.now(UTC)
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(wanted, timedelta(0)), _MAX_RETRY_AFTER)
