# SPDX-License-Identifier: Apache-2.0
"""How long ago a process looked at something, on a machine that may have been suspended since."""

import time
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Since:
    """A moment: that of its making."""

    #: CLOCK_MONOTONIC, which stands still while a machine is suspended
    _steady: float = field(default_factory=time.monotonic)
    #: what the clock on the wall says, which somebody may set
    _told: float = field(default_factory=time.time)

    @property
    def seconds(self) -> float:
        """How long ago it was, in seconds, by the clock that says more: too much of it costs a look."""
        return max(time.monotonic() - self._steady, time.time() - self._told)
