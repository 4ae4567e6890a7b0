# SPDX-License-Identifier: Apache-2.0
"""The process's one Spark session, shared by all work that needs Spark, and the failures of its start."""

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from executors.observer import Observer
from executors.outcome import RunOutcome
from executors.spark import drop_dead_session, end_session, jvm_process
from lake.errors import SessionSpoiled, one_line
from lake.model import TableRef
from lake.plan import Claim
from lake.ports import SparkProvider

log = logging.getLogger(__name__)

_BACKOFF_SECONDS = 2.0
_BACKOFF_MAX_SECONDS = 60.0


class SparkSessions:
    """A ``SparkProvider`` that remembers a failed start. Thread-safe.

    While there is a ``failure``, no work that needs a session should be claimed: the claim would be held for the
    duration of a start and then returned.
    """

    def __init__(
        self,
        start: SparkProvider,
        missing_formats: Callable[[], Collection[str]] = tuple,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """``missing_formats`` returns formats that waiting work needs and the session lacks.

        ``is_busy`` returns True if plans are running.
        """
        self._start, self._missing_formats, self._is_busy = start, missing_formats, is_busy
        self._session: Any = None
        self._failures = 0
        self._retry_at = 0.0
        self._start_lock = threading.Lock()
        self._jvm: subprocess.Popen[bytes] | None = None
        self._is_starting = self._is_spoiled = False
        self._start_error: str | None = None
        #: the address of the session's UI; None if there is no session, or its UI is off
        self.ui: str | None = None

    @property
    def failure(self) -> str | None:
        """The reason why there is no session: the last start failed, or the JVM has ended and is not restarted yet."""
        if self._start_error is None and self._jvm is not None and self._jvm.poll() is not None:
            return "the JVM of Spark has ended; another one is started"
        return self._start_error

    @property
    def state(self) -> str:
        """``broken``, ``running``, ``starting``, or ``none`` before the first work that needs a session."""
        if self.failure is not None:
            return "broken"
        return "running" if self._session is not None else "starting" if self._is_starting else "none"

    def __call__(self) -> Any:
        """Return the session. Raises the errors of a start."""
        self._is_starting = self._session is None
        if self._is_starting and self._start_error is None:
            log.info(
                "Spark is starting; the first start fetches the packages of the table formats, which can take minutes"
            )
        try:
            self._session = self._start()
        except Exception as error:
            self._session = self._jvm = self.ui = None
            self._failures += 1
            self._retry_at = time.monotonic() + min(_BACKOFF_MAX_SECONDS, _BACKOFF_SECONDS * 2 ** (self._failures - 1))
            if self._start_error is None:
                log.error("work that needs Spark waits until Spark starts: %s", one_line(error))
            self._start_error = one_line(error)
            raise
        finally:
            self._is_starting = False
        if self._start_error is not None:
            log.info("Spark has started, after %d failed attempts", self._failures)
        self._failures, self._start_error = 0, None
        self._jvm = jvm_process()
        self.ui = getattr(getattr(self._session, "sparkContext", None), "uiWebUrl", None)
        return self._session

    def mark_spoiled(self) -> None:
        """Let the session end as soon as no plan runs: some work that failed in it would succeed in a new session."""
        self._is_spoiled = self._session is not None

    def ensure_usable(self) -> bool:
        """Return whether to claim work that needs a session.

        After a failed start, Spark is started again with growing delays, and at once if the session's JVM has ended. A
        session that lacks requirements of waiting work is ended as soon as no plan runs, and nothing is claimed until
        then.
        """
        if self.failure is None:
            lacks = self._missing_formats() if self._session is not None else ()
            if not lacks and not self._is_spoiled:
                return True
            if self._is_busy():
                return False
            if self._is_spoiled:
                log.warning("Spark is restarted: its session was spoiled, so that all work of a kind failed in it")
            else:
                log.info("Spark is restarted: its session lacks the requirements of %s tables", " and ".join(lacks))
            end_session()
            self._session = self._jvm = self.ui = None
            self._is_spoiled = False
            return True
        if time.monotonic() < self._retry_at or not self._start_lock.acquire(blocking=False):
            return False
        try:
            self()
        except Exception:  # recorded and logged already
            return False
        finally:
            self._start_lock.release()
        return True

    def observer(self) -> Observer:
        """Return an observer that marks the session as spoiled by the outcomes of plans and cleans."""
        return _SpoiledSessionObserver(self)

    def close(self) -> None:
        """End the session, if there is one."""
        if self._session is not None and not drop_dead_session():
            self._session.stop()
        self._session = self._jvm = None


class _SpoiledSessionObserver(Observer):
    def __init__(self, sessions: SparkSessions) -> None:
        self._sessions = sessions

    def plan_finished(self, claim: Claim, outcome: RunOutcome) -> None:
        self._mark_if_spoiled(outcome.reason)

    def clean_failed(self, table: TableRef, reason: str) -> None:
        self._mark_if_spoiled(reason)

    def _mark_if_spoiled(self, reason: str | None) -> None:
        if reason == SessionSpoiled.__name__:
            self._sessions.mark_spoiled()
