# SPDX-License-Identifier: Apache-2.0
"""The loops of a daemon: their description, their timer, and the log of their failures."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from lake.errors import LakefoldError, one_line
from service.control.store import DatabaseUnreachable, SchemaMismatch

logger = logging.getLogger(__name__)

#: the interval after which a repeated failure is logged again
_REPEAT_LOG_SECONDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A loop that calls ``tick`` every ``interval``.

    While the daemon drains, only loops with ``runs_while_draining`` continue. A draining daemon begins nothing new and
    waits for its running plans.
    """

    name: str
    interval: timedelta
    tick: Callable[[], None]
    runs_while_draining: bool = False


class LoopFailureLog:
    """The log of failing loops: one line when a loop begins to fail or its error changes.

    An unchanged error is logged again after ``_REPEAT_LOG_SECONDS``.
    """

    def __init__(self) -> None:
        self._last_logged: dict[str, tuple[str, float]] = {}

    def log_failure(self, name: str, error: Exception) -> None:
        """Log that ``error`` ended a tick of the loop ``name``; outages of the database are logged by the store."""
        if isinstance(error, (DatabaseUnreachable, SchemaMismatch)):
            return
        text, last = one_line(error), self._last_logged.get(name, ("", 0.0))
        if text == last[0] and time.monotonic() - last[1] < _REPEAT_LOG_SECONDS:
            return
        self._last_logged[name] = text, time.monotonic()
        expected = isinstance(error, (LakefoldError, OSError))
        logger.error("loop %s: %s; it continues at its next tick", name, text, exc_info=None if expected else error)


_JITTER_SHARE = 0.1
_MAX_LOOPS = 16


class LoopRunner:
    """The timer that calls functions at intervals until ``stop``.

    An exception is passed to ``on_failure`` and ends only its own tick.
    """

    def __init__(self, on_failure: Callable[[str, Exception], None]) -> None:
        self._on_failure = on_failure
        self._stopping = threading.Event()
        # One thread for each possible loop: with a smaller pool loops would wait for each other.
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(_MAX_LOOPS)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            timezone=UTC,
            daemon=True,
        )

    def add_loop(self, interval: timedelta, name: str, function: Callable[[], None]) -> None:
        """Call ``function`` at once and then every ``interval``, with a jitter of a tenth so that daemons spread out.

        A tick that is due while the previous one runs is skipped. Raises ValueError for more than ``_MAX_LOOPS``
        loops.
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
        """Start the loops."""
        self._scheduler.start()

    def stop(self) -> None:
        """Stop the loops and return when the running ticks have ended."""
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
