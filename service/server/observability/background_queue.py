# SPDX-License-Identifier: Apache-2.0
"""A queue for work that may take long or fail, outside the threads that run plans."""

import logging
import queue
import threading
import time
from collections.abc import Callable

from lake.errors import one_line

logger = logging.getLogger(__name__)

_MAX_QUEUED = 1000
_REPEAT_LOG_SECONDS = 300.0


class BackgroundQueue:
    """A thread that calls functions one after the other; functions beyond ``capacity`` waiting ones are dropped.

    Failures and drops are logged when they begin, and at intervals while they last.
    """

    def __init__(self, name: str, capacity: int = _MAX_QUEUED) -> None:
        self._name = name
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(capacity)
        self._logged_at = -_REPEAT_LOG_SECONDS
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[], None]) -> None:
        """Call ``function`` soon; returns at once and never raises."""
        try:
            self._queue.put_nowait(function)
        except queue.Full:
            self._log_problem("too slow; events are dropped")

    def close(self, seconds: float) -> None:
        """Process the waiting functions for at most ``seconds``; nothing may be submitted afterwards."""
        deadline = time.monotonic() + seconds
        while self._thread.is_alive() and time.monotonic() < deadline:
            try:
                self._queue.put(None, timeout=max(0.0, deadline - time.monotonic()))
            except queue.Full:
                break
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while (function := self._queue.get()) is not None:
            try:
                function()
            except Exception as error:
                self._log_problem(one_line(error))

    def _log_problem(self, problem: str) -> None:
        if time.monotonic() - self._logged_at >= _REPEAT_LOG_SECONDS:
            self._logged_at = time.monotonic()
            logger.warning("%s: %s; plans continue", self._name, problem)
