# SPDX-License-Identifier: Apache-2.0
"""Ticks: each loop of the daemon called at its interval, in a thread of its own, never twice at once.

Nothing durable is here. What a tick does is decided from the database's rows, so a missed tick costs a delay.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor as Pool
from datetime import UTC, datetime, timedelta

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

logger = logging.getLogger(__name__)

_JITTER_SHARE = 0.1
_MAX_LOOPS = 16


class Ticks:
    """Calls functions at intervals until ``stop``. An exception is handed to ``failed`` and ends only its own tick."""

    def __init__(self, failed: Callable[[str, Exception], None]) -> None:
        self._failed = failed
        self._stopping = threading.Event()
        # One thread for each possible loop: a pool smaller than that would make loops wait for each other.
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(_MAX_LOOPS)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            timezone=UTC,
            daemon=True,
        )

    def every(self, interval: timedelta, name: str, function: Callable[[], None]) -> None:
        """Call ``function`` now and then every ``interval`` and up to a tenth more, so that daemons spread out.

        A call that is still running when the next is due makes that one fall out. Raises ValueError for more
        loops than there are threads.
        """
        if len(self._scheduler.get_jobs()) >= _MAX_LOOPS:
            raise ValueError(f"no more than {_MAX_LOOPS} loops")
        seconds = interval.total_seconds()
        self._scheduler.add_job(
            self._run,
            "interval",
            args=(name, function),
            id=name,
            seconds=seconds,
            jitter=seconds * _JITTER_SHARE,
            next_run_time=datetime.now(UTC),
        )

    def start(self) -> None:
        """Begin ticking."""
        self._scheduler.start()

    def stop(self) -> None:
        """No more ticks; returns when those under way have ended."""
        self._stopping.set()
        if self._scheduler.running:
            self._scheduler.shutdown(wait=True)

    def _run(self, name: str, function: Callable[[], None]) -> None:
        if self._stopping.is_set():
            return
        try:
            function()
        except Exception as error:
            self._failed(name, error)


class Lanes:
    """Runs work for tables on a few threads, at most one piece of work for each key at a time.

    A table whose storage hangs keeps one lane busy; the other tables go on in the others.
    """

    def __init__(self, name: str, lanes: int) -> None:
        self._pool = Pool(lanes, thread_name_prefix=name)
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
