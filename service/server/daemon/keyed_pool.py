# SPDX-License-Identifier: Apache-2.0
"""Lanes: work for tables on a few threads, so that one table never waits for another."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

logger = logging.getLogger(__name__)


class KeyedPool:
    """Runs work for tables on a few threads, at most one piece of work for each key at a time.

    A table whose storage hangs keeps one lane busy; the other tables go on in the others.
    """

    def __init__(self, name: str, workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix=name)
        self._busy: set[str] = set()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)

    def submit(self, key: str, function: Callable[[], None]) -> bool:
        """Run ``function`` soon; False when work for ``key`` is waiting or under way. It must not raise."""
        with self._lock:
            if key in self._busy:
                return False
            self._busy.add(key)
        self._pool.submit(self._run, key, function)
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Block until nothing is waiting or under way; False when ``timeout`` seconds passed before."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._busy, timeout)

    def stop(self) -> None:
        """Drop what waits, end when what is under way has ended."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, key: str, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception:
            logger.exception("work for %s ended in an error nobody handled", key)
        finally:
            with self._idle:
                self._busy.discard(key)
                self._idle.notify_all()
