# SPDX-License-Identifier: Apache-2.0
"""Elapsed time on a machine that may be suspended meanwhile."""

import time
from collections.abc import Callable


class Stopwatch:
    """Measures the time since its creation by several clocks.

    CLOCK_MONOTONIC stands still while a machine is suspended. The wall clock may be set, and a machine that was paused
    may correct it late. ``others`` are clocks of other machines, in seconds.
    """

    def __init__(self, *others: Callable[[], float]) -> None:
        self._started = [(clock, clock()) for clock in (time.monotonic, time.time, *others)]

    @property
    def elapsed_seconds(self) -> float:
        """The elapsed time in seconds, by the clock that shows most: an overestimate only costs another check."""
        return max(clock() - begun for clock, begun in self._started)
