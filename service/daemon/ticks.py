# SPDX-License-Identifier: Apache-2.0
"""Ticks: each loop of the daemon called at its interval, in a thread of its own, never twice at once.

Nothing durable is here. What a tick does is decided from the database's rows, so a missed tick costs a delay.
"""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

_JITTER_SHARE = 0.1
_MAX_LOOPS = 16


class LoopRunner:
    """Calls functions at intervals until ``stop``. An exception is handed to ``failed`` and ends only its own tick."""

    def __init__(self, on_failure: Callable[[str, Exception], None]) -> None:
        self._on_failure = on_failure
        self._stopping = threading.Event()
        # One thread for each possible loop: a pool smaller than that would make loops wait for each other.
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(_MAX_LOOPS)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            timezone=UTC,
            daemon=True,
        )

    def add_loop(self, interval: timedelta, name: str, function: Callable[[], None]) -> None:
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
            self._on_failure(name, error)
