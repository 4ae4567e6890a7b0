# SPDX-License-Identifier: Apache-2.0
"""Connections to metastores that are used again.

The first call on a new one costs a metastore ten times what the others do: it makes itself a store for each.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from lake.metastore.client import Metastore

IDLE = 10.0
"""Seconds after which an unused connection is not taken again: what is between may have forgotten it by then."""

AGE = 60.0
"""Seconds after which a connection is not taken again: another server of the list may be the first one by then."""

MOST = 8
"""How many unused connections are kept for each metastore."""

_lock = threading.Lock()
#: by process, since a fork must not speak on its parent's, and by address: when each was given back
_idle: dict[tuple[int, str], list[tuple[float, Metastore]]] = {}


@contextmanager
def connected(uri: str) -> Iterator[Metastore]:
    """A connection that nobody else uses for as long as this lasts; errors are as those of ``Metastore``."""
    metastore = _taken(uri) or Metastore(uri)
    try:
        yield metastore
    finally:
        _give_back(metastore)


def _taken(uri: str) -> Metastore | None:
    now = time.monotonic()
    with _lock:
        unused = _idle.get((os.getpid(), uri), [])
        while unused:
            since, metastore = unused.pop()
            if now - since <= IDLE and now - metastore.opened_at <= AGE and metastore.is_in_step():
                return metastore
            metastore.close()
    return None


def _give_back(metastore: Metastore) -> None:
    with _lock:
        unused = _idle.setdefault((os.getpid(), metastore.uri), [])
        if len(unused) < MOST and metastore.is_in_step():
            unused.append((time.monotonic(), metastore))
            return
    metastore.close()
