# SPDX-License-Identifier: Apache-2.0
"""The faults of a run: which there are, in which order they come, and until when lakefold recovers from them."""

import random
from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise

from hive_race.ledger import BOUND, Read, Write

RECOVERY_SECONDS = 40.0
"""How long a daemon takes after a fault until its sweep is on time again."""


class Fault(StrEnum):
    """What is done to lakefold, to the metastore, to clocks, or to what a person has to settle."""

    KILL = "kills of the daemon"
    JVM = "kills of its Java process alone"
    STOP = "stops of the daemon"
    METASTORE_STOPS = "stops of the metastore"
    METASTORE_DIES = "kills of the metastore"
    CLOCK = "changes of the daemon's clock"
    WRITERS_CLOCK = "changes of the owner's and the loader's clocks"
    LOST = "lost databases"
    AWAY = "outages of the database"
    PARTITION_HALTED = "halts of a partition"
    TABLE_HALTED = "halts of the table"


#: those of which a round has more than one
_TWICE = (Fault.KILL, Fault.STOP)


class Deck:
    """Faults in random order. Each one comes before any other one has come twice as often."""

    def __init__(self, chance: random.Random, *, without: frozenset[Fault] = frozenset()) -> None:
        self._chance, self._without, self._left = chance, without, list[Fault]()

    def draw(self) -> Fault:
        """The next one."""
        if not self._left:
            self._left = [one for one in (*Fault, *_TWICE) if one not in self._without]
            self._chance.shuffle(self._left)
        return self._left.pop()

    def put_back(self, fault: Fault) -> None:
        """Have one come again that could not be done; others come before it."""
        self._left.insert(0, fault)


class Spans:
    """When something was wrong with lakefold or the metastore; wall-clock seconds."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []

    def add(self, began: float, ended: float) -> None:
        """One fault, and the time in which a daemon recovers from it."""
        self._spans.append((began, ended + RECOVERY_SECONDS))

    def is_due(self, write: Write, read: Read) -> bool:
        """Whether a daemon had the time of ``BOUND``, twice and without a fault, since the write's success."""
        if write.ended is None:
            return False
        return any(stop - start > 2 * BOUND for start, stop in self._calm(write.ended, read.began))

    def _calm(self, began: float, ended: float) -> Iterator[tuple[float, float]]:
        spans = sorted((max(start, began), min(stop, ended)) for start, stop in self._spans)
        edges = [(began, began), *((start, stop) for start, stop in spans if start < stop), (ended, ended)]
        latest = began
        for (_, stop), (start, _) in pairwise(edges):
            latest = max(latest, stop)
            yield latest, start
