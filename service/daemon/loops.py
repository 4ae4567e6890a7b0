# SPDX-License-Identifier: Apache-2.0
"""A loop of a daemon as a row of its table, and what is said of a loop that fails."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from lake.errors import LakefoldError, one_line
from service.store import DatabaseUnreachable, SchemaMismatch

logger = logging.getLogger(__name__)

#: a loop that keeps failing in the same way says so again after a while
_REPEAT_LOG_SECONDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """``tick`` is called every ``every``; ``runs_while_draining`` also while the plans under way end and nothing new begins."""

    name: str
    interval: timedelta
    tick: Callable[[], None]
    runs_while_draining: bool = False


class LoopFailureLog:
    """One log line when a loop begins to fail, or fails in another way than before."""

    def __init__(self) -> None:
        self._last_logged: dict[str, tuple[str, float]] = {}

    def log_failure(self, name: str, error: Exception) -> None:
        """``error`` ended a tick of the loop ``name``; of its outages the store tells itself."""
        if isinstance(error, (DatabaseUnreachable, SchemaMismatch)):
            return
        text, last = one_line(error), self._last_logged.get(name, ("", 0.0))
        if text == last[0] and time.monotonic() - last[1] < _REPEAT_LOG_SECONDS:
            return
        self._last_logged[name] = text, time.monotonic()
        foreseen = isinstance(error, (LakefoldError, OSError))
        logger.error("loop %s: %s; it goes on at its next tick", name, text, exc_info=None if foreseen else error)
