# SPDX-License-Identifier: Apache-2.0
"""The clock and the zone of each process of a run: libfaketime for its seconds, ``TZ`` for its zone.

Files have the true times, as on a storage with a clock of its own, and nothing that measures spans is touched.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

#: minutes off, as a host without NTP; hours off, as a clock that was set to another zone's time
_SECONDS = (0, 0, 90, -90, 32_400, -32_400)
_ZONES = ("", "", "UTC", "America/New_York", "Asia/Tokyo", "Australia/Lord_Howe")
INSTALL = "faketime is not installed; run: make servers"


@cache
def library() -> Path | None:
    """``libfaketime`` for processes with threads; None where it is not installed."""
    found = [*Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), *Path("/usr/lib/faketime").glob("*MT.so.1")]
    return min(found, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """What a process takes for the time: ``seconds`` ahead of the true one, in ``zone`` ('' is the machine's)."""

    seconds: int = 0
    zone: str = ""

    def environment(self) -> dict[str, str]:
        """The variables of a process with this clock."""
        found = {"TZ": self.zone} if self.zone else {}
        path = library()
        if self.seconds and path is not None:
            found |= {
                "LD_PRELOAD": str(path),
                "FAKETIME": f"{self.seconds:+d}s",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "FAKETIME_DISABLE_SHM": "1",
                "NO_FAKE_STAT": "1",
                "FAKE_UTIME": "0",
            }
        return found

    @property
    def is_right(self) -> bool:
        """Whether it is the machine's."""
        return self == RIGHT

    def __str__(self) -> str:
        return f"{self.seconds:+d} s{f' in {self.zone}' if self.zone else ''}"


RIGHT = Clock()


def clocks_of_daemons(random: Random, count: int, *, one_host: bool) -> tuple[Clock, ...]:
    """A clock for each daemon of an installation; all right in half of the installations.

    Daemons on one SQLite file are on ``one_host``: they have the same seconds, and none that leave leases for hours.
    """
    if random.random() < 0.5:
        return (RIGHT,) * count
    seconds = [random.choice(_SECONDS) for _ in range(count)]
    if one_host:
        seconds = [random.choice((0, 0, 90, -90, -32_400))] * count
    return tuple(Clock(seconds=one, zone=random.choice(_ZONES)) for one in seconds)


def in_words(clocks: Mapping[str, Clock]) -> str:
    """The clocks that are not right."""
    wrong = [f"{name} {clock}" for name, clock in clocks.items() if not clock.is_right]
    return ", ".join(wrong) or "all clocks right"
