# SPDX-License-Identifier: Apache-2.0
"""A loop of a daemon as a row of its table, and what is said of a loop that fails."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from lake.errors import LakefoldError, one_line
from service.store import DatabaseUnreachable, SchemaBehind

logger = logging.getLogger(__name__)

#: a loop that keeps failing in the same way says so again after a while
_TELL_AGAIN_SECONDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """``tick`` is called every ``every``; ``to_the_end`` also while the plans under way end and nothing new begins."""

    name: str
    every: timedelta
    tick: Callable[[], None]
    to_the_end: bool = False


class Complaints:
    """One log line when a loop begins to fail, or fails in another way than before."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[str, float]] = {}

    def tell(self, name: str, error: Exception) -> None:
        """``error`` ended a tick of the loop ``name``; of its outages the store tells itself."""
        if isinstance(error, (DatabaseUnreachable, SchemaBehind)):
            return
        text, last = one_line(error), self._told.get(name, ("", 0.0))
        if text == last[0] and time.monotonic() - last[1] < _TELL_AGAIN_SECONDS:
            return
        self._told[name] = text, time.monotonic()
        foreseen = isinstance(error, (LakefoldError, OSError))
        logger.error("loop %s: %s; it goes on at its next tick", name, text, exc_info=None if foreseen else error)
