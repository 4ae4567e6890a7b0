# SPDX-License-Identifier: Apache-2.0
"""How long ago a process looked at something, on a machine that may have been suspended since."""

import time
from collections.abc import Callable


class Stopwatch:
    """A moment: that of its making, by several clocks.

    CLOCK_MONOTONIC stands still while a machine is suspended. What the clock on the wall says somebody may set, and a
    machine that was paused finds late. ``others`` tell seconds on other machines.
    """

    def __init__(self, *others: Callable[[], float]) -> None:
        self._started = [(clock, clock()) for clock in (time.monotonic, time.time, *others)]

    @property
    def elapsed_seconds(self) -> float:
        """How long ago it was, in seconds, by the clock that says most: too much of it costs a look."""
        return max(clock() - begun for clock, begun in self._started)
