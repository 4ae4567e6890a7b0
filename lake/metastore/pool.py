# SPDX-License-Identifier: Apache-2.0
"""Reusable connections to metastores.

The first call on a new connection costs a metastore ten times as much as later calls: it creates a store for each
connection.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from lake.metastore.client import MetastoreClient

MAX_IDLE_SECONDS = 10.0
"""Seconds after which an idle connection is not reused: a proxy or firewall may have dropped it."""

MAX_AGE_SECONDS = 60.0
"""Seconds after which a connection is not reused, because an earlier server of the list may be reachable again."""

MAX_IDLE_CONNECTIONS = 8
"""How many idle connections are kept for each metastore."""

_lock = threading.Lock()
#: by process, since a fork must not use its parent's connections, and by address: each with the time of its return
_idle: dict[tuple[int, str], list[tuple[float, MetastoreClient]]] = {}


@contextmanager
def pooled_connection(uri: str) -> Iterator[MetastoreClient]:
    """Yield a connection for exclusive use inside the block; errors are as those of ``MetastoreClient``."""
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
