# SPDX-License-Identifier: Apache-2.0
"""The limit of requests per second and client."""

from collections import OrderedDict
from time import monotonic

#: the maximum number of buckets; the least recently used is removed first; its client then starts with a full bucket
_MAX_CLIENTS = 10_000
#: the burst: a client may send the requests of this many seconds at once
_BURST_SECONDS = 4.0


class RateLimit:
    """A token bucket for each client. Used from the server's thread only."""

    def __init__(self, per_second: float) -> None:
        self._rate, self._bucket_size = per_second, max(1.0, per_second * _BURST_SECONDS)
        #: client → the level of its bucket, and the time of this level
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> float:
        """Count one request. Returns 0.0 if it may be served, else the seconds until the next one may be served."""
        if not self._rate:
            return 0.0
        now = monotonic()
        left, at = self._buckets.pop(client, (self._bucket_size, now))
        left = min(self._bucket_size, left + (now - at) * self._rate)
        self._buckets[client] = (left - 1 if left >= 1 else left), now
        if len(self._buckets) > _MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if left >= 1 else (1 - left) / self._rate
