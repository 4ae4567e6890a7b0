# SPDX-License-Identifier: Apache-2.0
"""Looks often at the places that were left a short while ago: writers that began there are ending now.

What such a look costs follows what was left lately, and has a bound. Older places of the same partitions are the
sweep's, which sees by their directories that they changed.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from executors.relocation.partition_sweep import SweepReport
from executors.relocation.sweep import has_recent_files, inspect_each, only_of_current_table, sweep_partitions
from lake.capabilities import ChangeDetector, DetectsChanges, RelocatesPartitions
from lake.model import TableRef
from lake.ports import SparkProvider, TableFormat
from lake.relocation.decide import is_unchanged
from lake.relocation.model import VacatedLocation
from lake.relocation_store import RelocationStore

MAX_LOCATIONS = 20_000
"""How many places are looked after, those that were left last; a sweep finds what is in the others."""

MAX_FULL_LISTINGS = 1_000
"""How many places a look lists in full, and without a look at their directories where there are no more."""

_ROTATION_SIZE = 250
"""How many of the others are listed in turn where there are more, whatever their directories' times say."""


@dataclass(slots=True)
class _TableRotation:
    detector: ChangeDetector
    #: places that changed, or were left since, which no look has seen to
    pending: set[str] = field(default_factory=set)
    #: the last place of the present turn
    last_location: str = ""


class RecentLocations:
    """What one process remembers between such looks. Not thread-safe."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, str, str | None], _TableRotation] = {}

    def choose(
        self, table: TableRef, format_: object, store: RelocationStore, within: timedelta
    ) -> Sequence[VacatedLocation]:
        """The moves begun ``within`` that time whose former places are to be listed now. Raises Transient.

        Of a partition there are all or none, so that the last one says where it should be.
        """
        left, key = store.recently_vacated(table, within, MAX_LOCATIONS), (table.name, table.location, table.identity)
        if len(left) <= MAX_FULL_LISTINGS or not isinstance(format_, DetectsChanges):
            self._tables.pop(key, None)
            return left
        known = self._tables.get(key)
        if known is None:
            known = self._tables[key] = _TableRotation(format_.change_detector(table))
        places = {one.location for one in left}
        changed = known.detector.find_changed_locations(places)
        # What is there again after a look that failed, or waits for its first one, comes after what changed now.
        known.pending = (known.pending | changed) & places
        every = sorted(places)
        start = next((index for index, place in enumerate(every) if place > known.last_location), 0)
        turn = every[start : start + _ROTATION_SIZE]
        known.last_location = turn[-1] if turn else ""
        order = [*turn, *sorted(known.pending, key=lambda place: place not in changed)]
        return _first_partitions(order, left, MAX_FULL_LISTINGS)

    def mark_swept(self, table: TableRef, vacated: Sequence[VacatedLocation], deferred: Collection[str]) -> None:
        """These were seen to, but for those of the partitions ``held``."""
        known = self._tables.get((table.name, table.location, table.identity))
        if known is not None:
            known.pending -= {one.location for one in vacated if one.partition not in deferred}


def _first_partitions(order: Sequence[str], left: Sequence[VacatedLocation], most: int) -> Sequence[VacatedLocation]:
    """All moves of the partitions that have left these places, the first ones first, until they are ``most``."""
    of_place = {one.location: one.partition for one in left}
    of_partition: dict[str, list[VacatedLocation]] = defaultdict(list)
    for one in left:
        of_partition[one.partition].append(one)
    chosen: list[VacatedLocation] = []
    for place in order:
        chosen += of_partition.pop(of_place[place], ())
        if len(chosen) >= most:
            break
    return chosen


def sweep_recent_locations(
    table: TableRef,
    *,
    format: TableFormat,
    store: RelocationStore,
    spark: SparkProvider,
    within: timedelta,
    recent: RecentLocations,
) -> SweepReport:
    """Look at places that were left ``within`` that time, and see to the partitions in which something is to be done.

    Raises what ``sweep_partitions`` does.
    """
    if not isinstance(format, RelocatesPartitions):
        return SweepReport()
    left = recent.choose(table, format, store, within)
    known = only_of_current_table(table, format, store.recently_relocated(table, left))
    seen, failed = inspect_each(table, format, known)
    due = [one.partition for one in known if one.partition in seen and not is_unchanged(one, seen[one.partition])]
    report = SweepReport()
    if due:
        report = sweep_partitions(table, format=format, store=store, spark=spark, partitions=due)
    if failed is not None:
        raise failed
    recent.mark_swept(
        table, left, {*report.deferred, *(one.partition for one in known if has_recent_files(one, seen[one.partition]))}
    )
    return report
