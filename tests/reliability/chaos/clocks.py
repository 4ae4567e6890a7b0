# SPDX-License-Identifier: Apache-2.0
"""The clock and the zone of each process of a run: libfaketime for its seconds, ``TZ`` for its zone.

Files have the true times, as on a storage with a clock of its own, and nothing that measures spans is touched.

Hudi orders everything by what its writers take for the time. A ledger says what a table must contain only while Hudi's
own writer does not overtake itself. Hence of a writer's clock:

- It is the same for all of a table's writers, and for all of a run: with one that is set back, or two that differ, an
  update can be older than what it updates, and Hudi hides it, with lakefold or without.
- One that is behind is set right for the end of the run, which only sets it forward. One that is ahead never is.
- 90 seconds ahead: lakefold waits until the true time has passed the table's.
- Nine hours ahead: no host is right before nine hours have passed, but for one thing, on a table with ``LOCAL`` times.
  There a lakefold in the writers' zone forms the times that they form, and so it is told to at the end. On a table with
  times in UTC nothing can end well within a run, so there is no such run.
- 90 seconds behind: not on a table of version 6, where lakefold can't tell it from a slow storage (docs/formats.md).

Of a writer that is behind Hudi takes back what a killed one left only when its own clock has passed the last heartbeat.
What is asked of lakefold is then as with wrong clocks of its own: that it refuses or loses nothing.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

#: minutes off, as a host without NTP; hours off, as a clock that was set to another zone's time
_SECONDS = (0, 0, 90, -90, 32_400, -32_400)
_ZONES = ("", "", "UTC", "America/New_York", "Asia/Tokyo", "Australia/Lord_Howe")
#: where ``sitecustomize`` is with which Python can sleep under libfaketime
_AWAKE = str(Path(__file__).with_name("awake"))
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
        """The variables of a process with this clock. Raises FileNotFoundError where libfaketime is not installed."""
        found = {"TZ": self.zone} if self.zone else {}
        if self.seconds:
            path = library()
            if path is None:
                raise FileNotFoundError(INSTALL)
            found |= {
                "LD_PRELOAD": str(path),
                "FAKETIME": f"{self.seconds:+d}s",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "FAKETIME_DISABLE_SHM": "1",
                "NO_FAKE_STAT": "1",
                "FAKE_UTIME": "0",
                "PYTHONPATH": os.pathsep.join(filter(None, (_AWAKE, os.environ.get("PYTHONPATH")))),
            }
        return found

    @property
    def is_right(self) -> bool:
        """Whether it is the machine's."""
        return self == RIGHT

    def __str__(self) -> str:
        return f"{self.seconds:+d} s{f' in {self.zone}' if self.zone else ''}"


RIGHT = Clock()
#: a zone whose ``LOCAL`` times are those of a writer in UTC whose clock is nine hours ahead
AHEAD_BY_HOURS = Clock(zone="Asia/Tokyo")


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


def clock_of_writers(random: Random, *, is_utc: bool, layout: int) -> Clock:
    """The clock of all writers of a table; its seconds are right in two thirds of the runs.

    Of a ``LOCAL`` timeline the writer's zone is the table's, and the commands of the test are in the machine's.
    """
    zone = random.choice(("", "America/New_York", "Asia/Tokyo")) if is_utc else ""
    wrong = [90, -32_400, *([-90] if layout > 1 else []), *([] if is_utc else [32_400])]
    return Clock(seconds=random.choice(wrong) if random.random() < 0.35 else 0, zone=zone)


def in_words(clocks: Mapping[str, Clock]) -> str:
    """The clocks that are not right."""
    wrong = [f"{name} {clock}" for name, clock in clocks.items() if not clock.is_right]
    return ", ".join(wrong) or "all clocks right"
