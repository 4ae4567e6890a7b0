# SPDX-License-Identifier: Apache-2.0
"""Connections to metastores that are used again.

The first call on a new one costs a metastore ten times what the others do: it makes itself a store for each.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from lake.metastore.client import MetastoreClient

MAX_IDLE_SECONDS = 10.0
"""Seconds after which an unused connection is not taken again: what is between may have forgotten it by then."""

MAX_AGE_SECONDS = 60.0
"""Seconds after which a connection is not taken again: another server of the list may be the first one by then."""

MAX_IDLE_CONNECTIONS = 8
"""How many unused connections are kept for each metastore."""

_lock = threading.Lock()
#: by process, since a fork must not speak on its parent's, and by address: when each was given back
_idle: dict[tuple[int, str], list[tuple[float, MetastoreClient]]] = {}


@contextmanager
def pooled_connection(uri: str) -> Iterator[MetastoreClient]:
    """A connection that nobody else uses for as long as this lasts; errors are as those of ``MetastoreClient``."""
    metastore = _take_idle(uri) or MetastoreClient(uri)
    try:
        yield metastore
    finally:
        _return_idle(metastore)


def _take_idle(uri: str) -> MetastoreClient | None:
    now = time.monotonic()
    with _lock:
        unused = _idle.get((os.getpid(), uri), [])
        while unused:
            since, metastore = unused.pop()
            if (
                now - since <= MAX_IDLE_SECONDS
                and now - metastore.opened_at <= MAX_AGE_SECONDS
                and metastore.is_reusable()
            ):
                return metastore
            metastore.close()
    return None


def _return_idle(metastore: MetastoreClient) -> None:
    with _lock:
        unused = _idle.setdefault((os.getpid(), metastore.uri), [])
        if len(unused) < MAX_IDLE_CONNECTIONS and metastore.is_reusable():
            unused.append((time.monotonic(), metastore))
            return
    metastore.close()
