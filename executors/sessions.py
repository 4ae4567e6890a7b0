# SPDX-License-Identifier: Apache-2.0
"""The process's Spark session for everything that needs one, and whether it can be had at all."""

import logging
import threading
import time
from typing import Any

from executors.spark import drop_dead_session
from lake.errors import one_line
from lake.ports import SparkProvider

log = logging.getLogger(__name__)

_WAIT_SECONDS = 2.0
_WAIT_MAX_SECONDS = 60.0


class Sessions:
    """A ``SparkProvider`` that remembers a failed start. Thread-safe.

    While ``broken`` says why no session can be had, nobody should take up work that needs one: he would hold it for as
    long as a start takes and give it back.
    """

    def __init__(self, start: SparkProvider) -> None:
        self._start = start
        self._session: Any = None
        self._failures = 0
        self._again_at = 0.0
        self._trying = threading.Lock()
        #: why the last start failed; None since one succeeded, or before the first
        self.broken: str | None = None

    def __call__(self) -> Any:
        """The session. Raises what a start raises."""
        try:
            self._session = self._start()
        except Exception as error:
            self._session = None
            self._failures += 1
            self._again_at = time.monotonic() + min(_WAIT_MAX_SECONDS, _WAIT_SECONDS * 2 ** (self._failures - 1))
            if self.broken is None:
                log.error("no work that needs Spark until it starts: %s", one_line(error))
            self.broken = one_line(error)
            raise
        if self.broken is not None:
            log.info("Spark has started, after %d tries that failed", self._failures)
        self._failures, self.broken = 0, None
        return self._session

    def usable(self) -> bool:
        """Whether to take up work that needs a session; after a failed start tries again, each time later."""
        if self.broken is None:
            return True
        if time.monotonic() < self._again_at or not self._trying.acquire(blocking=False):
            return False
        try:
            self()
        except Exception:  # remembered and told already
            return False
        finally:
            self._trying.release()
        return True

    def close(self) -> None:
        """End the session, if there is one."""
        if self._session is not None and not drop_dead_session():
            self._session.stop()
        self._session = None
