# SPDX-License-Identifier: Apache-2.0
"""The limit of one client: requests a second."""

import time
from collections import OrderedDict

#: clients remembered; the one not seen for longest is forgotten first, and begins with a full bucket again
_MAX_CLIENTS = 10_000
#: seconds of its rate that a client may spend at once
_BURST_SECONDS = 4.0


class RateLimit:
    """A token bucket for each client. Used from one thread, the server's."""

    def __init__(self, per_second: float) -> None:
        self._rate, self._bucket_size = per_second, max(1.0, per_second * _BURST_SECONDS)
        #: client → what was left in its bucket, and when
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> float:
        """Count one request; 0.0 when it may be served, else the seconds until the next one may."""
        if not self._rate:
            return 0.0
        now = time.monotonic()
        left, at = self._buckets.pop(client, (self._bucket_size, now))
        left = min(self._bucket_size, left + (now - at) * self._rate)
        self._buckets[client] = (left - 1 if left >= 1 else left), now
        if len(self._buckets) > _MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if left >= 1 else (1 - left) / self._rate
