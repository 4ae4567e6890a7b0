# SPDX-License-Identifier: Apache-2.0
"""The process's Spark session for everything that needs one, and whether it can be had at all."""

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
from lake.plan import Claim
from lake.ports import SparkProvider

log = logging.getLogger(__name__)

_BACKOFF_SECONDS = 2.0
_BACKOFF_MAX_SECONDS = 60.0


class SparkSessions:
    """A ``SparkProvider`` that remembers a failed start. Thread-safe.

    While ``broken`` says why no session can be had, nobody should take up work that needs one: he would hold it for as
    long as a start takes and give it back.
    """

    def __init__(
        self,
        start: SparkProvider,
        missing_formats: Callable[[], Collection[str]] = tuple,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """``lacks`` are formats of waiting work for which the session was not started, ``busy`` whether plans run."""
        self._start, self._missing_formats, self._is_busy = start, missing_formats, is_busy
        self._session: Any = None
        self._failures = 0
        self._retry_at = 0.0
        self._start_lock = threading.Lock()
        self._jvm: subprocess.Popen[bytes] | None = None
        self._is_starting = self._is_spoiled = False
        self._start_error: str | None = None
        #: where the session's jobs can be looked at; None without a session, or where its UI is off
        self.ui: str | None = None

    @property
    def failure(self) -> str | None:
        """Why no session can be had: the last start failed, or its JVM has ended and no other was started yet."""
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
        """The session. Raises what a start raises."""
        self._is_starting = self._session is None
        try:
            self._session = self._start()
        except Exception as error:
            self._session = self._jvm = self.ui = None
            self._failures += 1
            self._retry_at = time.monotonic() + min(_BACKOFF_MAX_SECONDS, _BACKOFF_SECONDS * 2 ** (self._failures - 1))
            if self._start_error is None:
                log.error("no work that needs Spark until it starts: %s", one_line(error))
            self._start_error = one_line(error)
            raise
        finally:
            self._is_starting = False
        if self._start_error is not None:
            log.info("Spark has started, after %d tries that failed", self._failures)
        self._failures, self._start_error = 0, None
        self._jvm = jvm_process()
        self.ui = getattr(getattr(self._session, "sparkContext", None), "uiWebUrl", None)
        return self._session

    def mark_spoiled(self) -> None:
        """Have the session end as soon as no plan runs, since work fails in it that does not fail in another one."""
        self._is_spoiled = self._session is not None

    def ensure_usable(self) -> bool:
        """Whether to take up work that needs a session.

        After a failed start tries again, each time later, and at once where the session's JVM has ended. One that
        lacks what waiting work needs is ended as soon as no plan runs, and nothing is taken up until then.
        """
        if self.failure is None:
            lacks = self._missing_formats() if self._session is not None else ()
            if not lacks and not self._is_spoiled:
                return True
            if self._is_busy():
                return False
            if self._is_spoiled:
                log.warning("Spark is started anew: its session was spoiled, so that all work of a kind failed in it")
            else:
                log.info("Spark is started anew: it was started without what %s tables need", " and ".join(lacks))
            end_session()
            self._session = self._jvm = self.ui = None
            self._is_spoiled = False
            return True
        if time.monotonic() < self._retry_at or not self._start_lock.acquire(blocking=False):
            return False
        try:
            self()
        except Exception:  # remembered and told already
            return False
        finally:
            self._start_lock.release()
        return True

    def observer(self) -> Observer:
        """What notices by the outcomes of plans and cleans that the session is spoiled."""
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

    def clean_failed(self, table: str, reason: str) -> None:
        self._mark_if_spoiled(reason)

    def _mark_if_spoiled(self, reason: str | None) -> None:
        if reason == SessionSpoiled.__name__:
            self._sessions.mark_spoiled()
