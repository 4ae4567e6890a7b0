# SPDX-License-Identifier: Apache-2.0
"""The renewal of a resource that this process holds for a limited time: a lease, a lock, a role, an attempt file.

The store that grants the resource (a database, an object, a file system) decides who holds it, by its own clock. A
``Renewer`` repeats the request and tracks what the answers prove. It counts from the moment *before* a request was
sent: a slow answer proves less, and never more. It counts by a ``Stopwatch``, since the machine may be suspended.

States:

- **uncertain**: no granted request was sent within ``validity``; another process may hold the resource
- **certain**: a granted request was sent less than ``validity`` ago; ``is_certain`` is True
- **lost**: the store has refused a request; ``loss_reason`` is its answer
- **closed**: this process releases the resource; ``loss_reason`` says so

Transitions:

- → uncertain: construction, since it is not known here when the resource was acquired
- uncertain, certain → certain: a request was granted, and its answer came within ``validity``
- certain → uncertain: ``validity`` has passed; no code has to run for this
- uncertain, certain → lost: a request was refused
- each → closed: ``close``

Lost and closed are final: a process that acquires the resource again uses a new ``Renewer``.

Failures:

- A request raises or gets no answer: it may have been granted, and the state stays as it is. ``renew_now`` passes the
  error on; the thread logs the first error of a series and sends its next request after the interval.
- The process is stopped between a request and its answer, or between two requests (SIGSTOP): when it continues, the
  state is uncertain at once, before any answer. An overdue request is then sent without delay. If the whole machine was
  suspended, the request is sent within the interval, since the thread's timer stood still.
- A request hangs: the state becomes uncertain. ``renew_now`` waits for the request, because answers of parallel
  requests could be taken in the wrong order. ``close`` waits for it too, but not longer than ``join_timeout``.
- The process forks: the child has no thread, and in the child the state is closed.

Guarantees:

- While the state is certain, no other process holds the resource, if each grant of the store lasts for ``validity``.
- After ``close`` no request is sent, and no request of the thread is under way unless it hangs for longer than
  ``join_timeout``. A request with a ``join_timeout`` must therefore only extend, and never acquire.
- ``is_certain`` and ``loss_reason`` never wait for a request, and no request is sent under a lock of the caller's.

A running thread proves nothing. Before a step that needs the resource, its holder checks ``is_certain`` or sends a
request of its own by ``renew_now``.
"""

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from datetime import timedelta
from typing import Self

from lake.errors import one_line
from lake.stopwatch import Stopwatch

log = logging.getLogger(__name__)


class Renewer:
    """Renews one resource between ``start`` and ``close`` from its own thread, and on request from its holder's thread.

    ``renew`` sends one request. It returns None if the request was granted and the reason if it was refused; it raises
    if the outcome is unknown. Both threads call it, one at a time. Without a ``validity`` the state is never certain.
    """

    def __init__(
        self,
        name: str,
        renew: Callable[[], str | None],
        *,
        interval: timedelta,
        validity: timedelta | None = None,
        join_timeout: timedelta | None = None,
    ) -> None:
        self._name, self._renew = name, renew
        self._interval_seconds = interval.total_seconds()
        self._validity_seconds = -math.inf if validity is None else validity.total_seconds()
        self._join_seconds = None if join_timeout is None else join_timeout.total_seconds()
        self._process_id = os.getpid()
        #: the time since the last granted request was sent
        self._since_grant: Stopwatch | None = None
        self._refusal: str | None = None
        self._closed = threading.Event()
        self._request_lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def is_certain(self) -> bool:
        """True if no other process can hold the resource now."""
        granted = self._since_grant
        return self.loss_reason is None and granted is not None and granted.elapsed_seconds < self._validity_seconds

    @property
    def loss_reason(self) -> str | None:
        """Why this process no longer holds the resource; None unless that is known."""
        if self._refusal is not None:
            return self._refusal
        if self._closed.is_set() or os.getpid() != self._process_id:
            return f"{self._name} was released"
        return None

    def start(self) -> None:
        """Renew every interval from now on. The thread logs with the fields of the calling thread."""
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._renew_until_closed,), name=f"renewal of {self._name}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End renewal. Does not release the resource: the caller does, afterwards."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(self._join_seconds)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def renew_now(self, renew: Callable[[], str | None] | None = None) -> str | None:
        """Send one request from this thread, or ``renew`` in its place. Returns ``loss_reason``.

        Raises the error of the request: then it is unknown whether the request was granted. Once the resource is lost,
        nothing is sent.
        """
        if self.loss_reason is None:
            with self._request_lock:
                if self.loss_reason is None:  # not refused or closed while another request was under way
                    asked = Stopwatch()
                    self._refusal = (renew or self._renew)()
                    if self._refusal is None:
                        self._since_grant = asked
        return self.loss_reason

    def _renew_until_closed(self) -> None:
        is_failing = False
        asked = time.monotonic()
        while not self._closed.wait(max(0.0, asked + self._interval_seconds - time.monotonic())):
            asked = time.monotonic()
            try:
                lost = self.renew_now()
            except Exception as error:
                if not is_failing:
                    log.warning("%s could not be renewed, and is tried again: %s", self._name, one_line(error))
                is_failing = True
                continue
            is_failing = False
            if lost is not None:
                if not self._closed.is_set():
                    log.warning("%s was lost: %s", self._name, lost)
                return
