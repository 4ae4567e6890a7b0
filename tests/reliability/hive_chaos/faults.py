# SPDX-License-Identifier: Apache-2.0
"""The faults of a run: their kinds, their order, and the periods until lakefold has recovered from them."""

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import pairwise

from hive_race.ledger import BOUND, Read, Write

RECOVERY_SECONDS = 40.0
"""How long a daemon takes after a fault until its sweep is on time again."""

LOCKED_SECONDS = {"sweep": 120.0, "cleaner": 600.0, "plan at its commit": 120.0}
"""How long a partition stays locked after the last renewal of its owner (docs/lifecycle.md)."""


class Fault(StrEnum):
    """A fault of lakefold, of the metastore or of a clock, or a halt that a person has to settle."""

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


#: the faults that a deck contains twice
_TWICE = (Fault.KILL, Fault.STOP)


class Deck:
    """A shuffled deck that contains each fault once or twice; a new deck follows when it is empty."""

    def __init__(self, chance: random.Random, *, without: frozenset[Fault] = frozenset()) -> None:
        self._chance, self._without, self._left = chance, without, list[Fault]()

    def draw(self) -> Fault:
        """Return the next fault."""
        if not self._left:
            self._left = [one for one in (*Fault, *_TWICE) if one not in self._without]
            self._chance.shuffle(self._left)
        return self._left.pop()

    def put_back(self, fault: Fault) -> None:
        """Put back a fault that could not be injected; it is drawn after the other faults of the deck."""
        self._left.insert(0, fault)


class Spans:
    """The periods in which lakefold or the metastore was disturbed, in wall-clock seconds."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []
        self._locked: list[tuple[str, float, float]] = []
        self._running_since = math.inf
        #: by partition, the periods in which files were loaded into it; the last one may have no end yet
        self._loads: dict[str, list[tuple[float, float]]] = defaultdict(list)
        #: when the table was renamed
        self.renames: Sequence[float] = ()

    def begin_load(self, partition: str, began: float) -> None:
        """Begin the period in which a file is loaded into a partition.

        Late files wait while another file is being written in their location, since it may be of the same job.
        """
        self._loads[partition].append((began, math.inf))

    def end_load(self, partition: str, ended: float) -> None:
        """End the period of the load that was begun last."""
        self._loads[partition][-1] = (self._loads[partition][-1][0], ended)

    def begin(self, began: float) -> None:
        """Begin the period of a fault, which lasts until ``add`` is called."""
        self._running_since = began

    def add_lock(self, partition: str, kind: str, died: float) -> None:
        """Add the period in which a partition stays locked by a daemon that was killed; see ``LOCKED_SECONDS``."""
        self._locked.append((partition, died, died + LOCKED_SECONDS[kind]))

    def add(self, began: float, ended: float) -> None:
        """Add the period of a fault, extended by the time in which a daemon recovers from it."""
        self._spans.append((began, ended + RECOVERY_SECONDS))
        self._running_since = math.inf

    def is_due(self, write: Write, read: Read) -> bool:
        """True if a daemon had more than twice ``BOUND`` without a fault between the write's success and the read.

        The time of loads into the partition does not count, nor does ``BOUND`` after each rename of the table: so long
        it may take until the sweep knows the new name.
        """
        if write.ended is None:
            return False
        locked = [(start, stop) for partition, start, stop in self._locked if partition == read.partition]
        waits = [*self._loads[read.partition], *((at, at + BOUND) for at in self.renames)]
        return any(
            stop - start - sum(max(0.0, min(stop, ended) - max(start, began)) for began, ended in waits) > 2 * BOUND
            for start, stop in self._calm(write.ended, read.began, locked)
        )

    def _calm(self, began: float, ended: float, locked: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
        found = [*self._spans, *locked, (self._running_since, math.inf)]
        spans = sorted((max(start, began), min(stop, ended)) for start, stop in found)
        edges = [(began, began), *((start, stop) for start, stop in spans if start < stop), (ended, ended)]
        latest = began
        for (_, stop), (start, _) in pairwise(edges):
            latest = max(latest, stop)
            yield latest, start
