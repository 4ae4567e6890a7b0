# SPDX-License-Identifier: Apache-2.0
"""A thread pool for work on tables or requests, at most one job for each of them at a time."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

logger = logging.getLogger(__name__)


class KeyedPool:
    """A pool of ``workers`` threads that runs at most one job for each key at a time.

    A table whose storage hangs occupies one thread; the jobs of other tables continue on the other threads.
    """

    def __init__(self, name: str, workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix=name)
        self._busy: set[str] = set()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)

    def submit(self, key: str, function: Callable[[], None]) -> bool:
        """Run ``function`` soon; returns False if a job for ``key`` waits or runs. ``function`` must not raise."""
        with self._lock:
            if key in self._busy:
                return False
            self._busy.add(key)
        self._pool.submit(self._run, key, function)
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Block until no job waits or runs; returns False if this takes longer than ``timeout`` seconds."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._busy, timeout)

    def stop(self) -> None:
        """Discard waiting jobs and return when the running jobs have ended."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, key: str, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception:
            logger.exception("work for %s ended in an unexpected error", key)
        finally:
            with self._idle:
                self._busy.discard(key)
                self._idle.notify_all()
