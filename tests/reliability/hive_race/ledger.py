# SPDX-License-Identifier: Apache-2.0
"""What a writer did, and whether what readers saw follows from it. Pure: times and rows in, findings out.

One writer owns a partition, so that its writes to it are in order and each has ended before the next one begins.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import SOAK

BOUND = 10.0 if SOAK else 40.0
"""Seconds within which the rows of a late writer are to be seen, from its success on: ten (docs/hive.md).

The short run goes on beside other tests, and four times as long is no failure there; it prints how long it took.
"""

Row = tuple[int, int]
"""A row's id and the number of the write that it is of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One statement as far as it concerns one partition. ``ended`` is None until it has reported its success.

    ``drops``: the partition was dropped before. Until the sweep has moved them aside, replaced files in the partition's
    own directory are read (docs/concepts.md, "What owners do to Hive tables").
    """

    number: int
    partition: str
    overwrites: bool
    low: int
    high: int
    began: float
    ended: float | None
    drops: bool = False

    @property
    def rows(self) -> frozenset[Row]:
        """What it writes."""
        return frozenset((value, self.number) for value in range(self.low, self.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What a reader saw of one partition between two moments, and where; ``place`` is None if it is unknown."""

    partition: str
    place: Path | None
    began: float
    ended: float
    rows: Mapping[Row, int]


@dataclass(slots=True)
class Ledger:
    """Every write, by partition and in order."""

    writes: dict[str, list[Write]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, path: Path) -> "Ledger":
        """What a writer has noted so far: a line when a statement begins and one when it has ended."""
        begun: dict[int, dict[str, Any]] = {}
        ended: dict[int, float] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                entry = json.loads(line)
            except ValueError:
                break  # being written
            if "ended" in entry:
                ended[entry["number"]] = entry["ended"]
            else:
                begun[entry["number"]] = entry
        found = cls()
        for number in sorted(begun):
            entry = begun[number]
            for partition, (low, high) in entry["partitions"].items():
                found.writes[partition].append(
                    Write(
                        number=number,
                        partition=partition,
                        overwrites=entry["overwrites"],
                        low=low,
                        high=high,
                        began=entry["began"],
                        ended=ended.get(number),
                        drops=entry.get("drops", False),
                    )
                )
        return found

    def rows(self) -> dict[str, Counter[Row]]:
        """The rows of each partition once all writes have ended."""
        found: dict[str, Counter[Row]] = {}
        for partition, writes in self.writes.items():
            last = max((index for index, write in enumerate(writes) if write.overwrites), default=0)
            found[partition] = Counter(row for write in writes[last:] for row in write.rows)
        return found


class Judge:
    """Looks at the reads of one reader, in their order, and finds what no order of the writes explains.

    What is written into a place in the moment in which the partition leaves it is late: it may have been seen there,
    and not be seen again before the bound. Rows that an overwrite removes from a place in that moment may have been
    missed there, and be seen once more in the next place, until the overwrite is due.

    ``is_fresh``: the reader asks for everything anew at each read, so that what is missing is missing. A session that
    lives long has listings in its cache; it may see less, but nothing twice, nothing too early and nothing again.
    ``is_due`` says from when on the rows of a write have to be seen; without it that is ``BOUND`` after the success of
    its writer.
    """

    def __init__(self, *, is_fresh: bool = True, is_due: "Callable[[Write, Read], bool] | None" = None) -> None:
        self._is_fresh, self._is_due = is_fresh, is_due or _is_due
        self._seen: dict[str, set[Row]] = defaultdict(set)
        #: rows that an overwrite has removed, each with the place where it was missed first
        self._vanished: dict[str, dict[Row, Path | None]] = defaultdict(dict)
        self._place: dict[str, Path | None] = {}
        #: by write and partition, how long after its success a reader saw all of it, and nothing that it replaced
        self.delays: dict[tuple[int, str], float] = {}
        self.reads = self.seen_early = 0
        #: when rows that were seen early were first missed, and for how long a reader missed any
        self._missed: dict[tuple[str, Row], float] = {}
        self.missed_for = 0.0

    def look(self, read: Read, writes: Sequence[Write]) -> list[str]:
        """What is wrong with a read; all that began before the read ended has to be among ``writes``."""
        self.reads += 1
        return list(self._wrong(read, writes))

    def _wrong(self, read: Read, writes: Sequence[Write]) -> Iterator[str]:
        partition, rows = read.partition, read.rows
        if doubled := sorted(row for row, count in rows.items() if count > 1):
            yield f"{partition}: {len(doubled)} rows are doubled, such as {doubled[0]}"
        begun = [write for write in writes if write.began <= read.ended]
        if strange := sorted(row for row in rows if row[1] not in {write.number for write in begun}):
            yield f"{partition}: {strange[0]} was not written yet"
        vanished = self._vanished[partition]
        for row in self._overwritten_late(read, begun):
            del vanished[row]
        if again := sorted(vanished.keys() & rows):
            yield f"{partition}: {len(again)} rows were gone and are there again, such as {again[0]}"
        seen = self._seen[partition]
        late = self._late(read, begun)
        self.seen_early += bool(late)
        self._missed |= {(partition, row): read.began for row in late}
        since = [self._missed.pop((partition, row)) for row in rows if (partition, row) in self._missed]
        self.missed_for = max((self.missed_for, *(read.began - first for first in since)))
        seen -= late
        if self._is_fresh:
            yield from self._missing(read, begun)
            yield from self._replaced(read, begun)
            self._measure(read, begun)
        vanished |= dict.fromkeys(seen.difference(rows, vanished), read.place)
        seen.intersection_update(rows)
        seen.update(rows)
        self._place[partition] = read.place

    def _late(self, read: Read, begun: Sequence[Write]) -> set[Row]:
        """Rows that were seen in a place which the partition has left by now, and whose time has not come yet."""
        if read.place is not None and self._place.get(read.partition) == read.place:
            return set()
        young = {write.number for write in begun[_last_overwrite(begun) :] if not self._is_due(write, read)}
        return {row for row in self._seen[read.partition].difference(read.rows) if row[1] in young}

    def _overwritten_late(self, read: Read, begun: Sequence[Write]) -> list[Row]:
        """Rows that were missed in a place which the partition has left, and whose overwrite is not due yet."""
        young = max((write.number for write in begun if write.overwrites and not self._is_due(write, read)), default=0)
        return [
            row
            for row, place in self._vanished[read.partition].items()
            if row in read.rows and row[1] < young and (read.place is None or place != read.place)
        ]

    def _missing(self, read: Read, begun: Sequence[Write]) -> Iterator[str]:
        """Rows that were seen, or written long enough ago, and that no overwrite can have removed by now."""
        kept = begun[_last_overwrite(begun) :]
        due = {row for write in kept if self._is_due(write, read) for row in write.rows}
        due |= {row for row in self._seen[read.partition] if row[1] in {write.number for write in kept}}
        if lost := sorted(due.difference(read.rows)):
            yield f"{read.partition}: {len(lost)} rows are missing, such as {lost[0]}"

    def _replaced(self, read: Read, begun: Sequence[Write]) -> Iterator[str]:
        """Rows that an overwrite removed long enough ago, unless a drop of the partition has shown them again."""
        if any(write.drops and not self._is_due(write, read) for write in begun):
            return
        due = [index for index, write in enumerate(begun) if write.overwrites and self._is_due(write, read)]
        removed = {write.number for write in begun[: due[-1]]} if due else set()
        removed -= unmet_at_a_drop(begun, self._is_due)
        if stale := sorted(row for row in read.rows if row[1] in removed):
            yield f"{read.partition}: {len(stale)} rows are read that were overwritten, such as {stale[0]}"

    def _measure(self, read: Read, begun: Sequence[Write]) -> None:
        for index, write in enumerate(begun):
            key = write.number, read.partition
            if write.ended is None or write.ended > read.began or key in self.delays:
                continue
            later = any(other.overwrites for other in begun[index + 1 :])
            old = {other.number for other in begun[:index]} if write.overwrites else set()
            if later or (write.rows <= read.rows.keys() and not any(row[1] in old for row in read.rows)):
                self.delays[key] = read.began - write.ended


def unmet_at_a_drop(writes: Sequence[Write], is_due: "Callable[[Write, Read], bool]") -> set[int]:
    """The writes that no sweep need have met when their partition was dropped.

    The rows of such a write may be read in the next partition, since its file is in the directory (docs/concepts.md).
    """
    found = set()
    for index, drop in enumerate(writes):
        if drop.drops:
            then = Read(partition=drop.partition, place=None, began=drop.began, ended=drop.began, rows={})
            found |= {write.number for write in writes[:index] if not write.drops and not is_due(write, then)}
    return found


def _last_overwrite(writes: Sequence[Write]) -> int:
    return max((index for index, write in enumerate(writes) if write.overwrites), default=0)


def _is_due(write: Write, read: Read) -> bool:
    return write.ended is not None and write.ended + BOUND < read.began


def in_short(findings: Iterable[str]) -> str:
    """The first findings, for a message."""
    return "\n".join(list(findings)[:20])
