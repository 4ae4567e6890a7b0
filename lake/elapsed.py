# SPDX-License-Identifier: Apache-2.0
"""How long ago a process looked at something, on a machine that may have been suspended since."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Since:
    """A moment: that of its making. ``clock`` tells seconds on another machine."""

    clock: Callable[[], float] = time.monotonic
    #: CLOCK_MONOTONIC, which stands still while a machine is suspended
    _steady: float = field(default_factory=time.monotonic, init=False)
    #: what the clock on the wall says, which somebody may set, and which a machine that was paused finds late
    _told: float = field(default_factory=time.time, init=False)
    _asked: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_asked", self.clock())

    @property
    def seconds(self) -> float:
        """How long ago it was, in seconds, by the clock that says most: too much of it costs a look."""
        return max(time.monotonic() - self._steady, time.time() - self._told, self.clock() - self._asked)
