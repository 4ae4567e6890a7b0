# SPDX-License-Identifier: Apache-2.0
"""The clock and the zone of each process of a run: libfaketime sets the clock, ``TZ`` sets the zone.

Files have the true times, as on a storage with a clock of its own. Elapsed time is measured by the true clock.

Hudi orders everything by the times of its writers' clocks. The ledger can predict the contents of a table only if the
writers' times never run backwards. So the clock of a table's writers follows these rules:

- All writers of a table have the same clock, during the whole run. If a clock were set back, or if two clocks differed,
  an update could have an earlier time than the row that it updates. Hudi then hides the update, with and without
  lakefold.
- A clock that is behind is corrected at the end of the run, which only sets it forward. A clock that is ahead is never
  corrected.
- 90 seconds ahead: lakefold waits until the true time has passed the times on the table.
- Nine hours ahead, on a table with ``LOCAL`` times: lakefold would have to wait for nine hours, unless it runs in a
  zone in which its true clock shows the writers' times. The test puts lakefold in this zone at the end of the run. On a
  table with times in UTC no zone helps, and the run could not finish. So there is no such run.

If the writers' clock is behind, Hudi rolls back the work of a killed writer only after this clock has passed the last
heartbeat of the killed writer. In such a run, as with wrong clocks of lakefold itself, lakefold may refuse to work, but
must not lose a row.
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
#: the directory of the ``sitecustomize`` with which Python can sleep under libfaketime
_AWAKE = str(Path(__file__).with_name("awake"))
INSTALL = "faketime is not installed; run: make servers"


@cache
def library() -> Path | None:
    """Return the path of ``libfaketime`` for processes with threads; None if it is not installed."""
    found = [*Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), *Path("/usr/lib/faketime").glob("*MT.so.1")]
    return min(found, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The clock of a process: ``seconds`` ahead of the true time, in ``zone`` ('' is the machine's zone)."""

    seconds: int = 0
    zone: str = ""

    def environment(self) -> dict[str, str]:
        """Return the variables of a process with this clock. Raises FileNotFoundError without libfaketime."""
        found = {"TZ": self.zone} if self.zone else {}
        if self.seconds:
            path = library()
            if path is None:
                raise FileNotFoundError(INSTALL)
            found |= {
                "LD_PRELOAD": str(path),
                "FAKETIME": f"{self.seconds:+d}s",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                # libfaketime's workaround for older C libraries makes a JVM's own threads wait in a busy loop.
                "FAKETIME_FORCE_MONOTONIC_FIX": "0",
                "FAKETIME_DISABLE_SHM": "1",
                "NO_FAKE_STAT": "1",
                "FAKE_UTIME": "0",
                "PYTHONPATH": os.pathsep.join(filter(None, (_AWAKE, os.environ.get("PYTHONPATH")))),
            }
        return found

    @property
    def is_right(self) -> bool:
        """True for the clock and the zone of the machine."""
        return self == RIGHT

    def __str__(self) -> str:
        return f"{self.seconds:+d} s{f' in {self.zone}' if self.zone else ''}"


RIGHT = Clock()
#: a zone whose ``LOCAL`` times are those of a writer in UTC whose clock is nine hours ahead
AHEAD_BY_HOURS = Clock(zone="Asia/Tokyo")


def clocks_of_daemons(random: Random, count: int, *, one_host: bool) -> tuple[Clock, ...]:
    """Return a clock for each daemon of an installation; in half of the installations all clocks are right.

    Daemons on one SQLite file are on ``one_host``: they have the same seconds. These are never hours ahead, because a
    lease would then last for hours.
    """
    if random.random() < 0.5:
        return (RIGHT,) * count
    seconds = [random.choice(_SECONDS) for _ in range(count)]
    if one_host:
        seconds = [random.choice((0, 0, 90, -90, -32_400))] * count
    return tuple(Clock(seconds=one, zone=random.choice(_ZONES)) for one in seconds)


def clock_of_writers(random: Random, *, is_utc: bool) -> Clock:
    """Return the clock of all writers of a table; its seconds are right in two thirds of the runs.

    A ``LOCAL`` timeline has the zone of its writers. They get the machine's zone, in which the test runs its commands.
    """
    zone = random.choice(("", "America/New_York", "Asia/Tokyo")) if is_utc else ""
    wrong = [90, -90, -32_400, *([] if is_utc else [32_400])]
    return Clock(seconds=random.choice(wrong) if random.random() < 0.35 else 0, zone=zone)


def in_words(clocks: Mapping[str, Clock]) -> str:
    """Return the clocks that are not right, as text."""
    wrong = [f"{name} {clock}" for name, clock in clocks.items() if not clock.is_right]
    return ", ".join(wrong) or "all clocks right"
