# SPDX-License-Identifier: Apache-2.0
"""Frequent checks of locations that were left recently: writers that began there are ending now.

The cost of a check depends on the number of recent locations, and is bounded. Older locations of the same partitions
are left to the sweep, which detects their changes by their directories.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from executors.context import RunContext
from executors.relocation.partition_sweep import SweepReport
from executors.relocation.sweep import has_recent_files, inspect_each, only_of_current_table, sweep_partitions
from lake.model import TableRef
from lake.ports import TableFormat
from lake.relocation.capabilities import ChangeDetector, DetectsChanges, RelocatesPartitions
from lake.relocation.decide import is_unchanged
from lake.relocation.model import VacatedLocation
from lake.relocation_store import RelocationStore

MAX_LOCATIONS = 20_000
"""Maximum number of checked locations, the most recent ones; a sweep finds files in the other locations."""

MAX_FULL_LISTINGS = 1_000
"""Maximum number of locations that a check lists. If there are more, it first selects them by directory times."""

_ROTATION_SIZE = 250
"""The number of further locations that each check lists in rotation, regardless of their directories' times."""


@dataclass(slots=True)
class _TableRotation:
    detector: ChangeDetector
    #: locations that changed, or are new, since the first check, and that no check has processed yet
    pending: set[str] = field(default_factory=set)
    #: the last location that the rotation has listed
    last_location: str = ""


class RecentLocations:
    """The state that one process keeps between checks of recent locations. Not thread-safe."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, str, str | None], _TableRotation] = {}

    def choose(
        self, table: TableRef, format_: object, store: RelocationStore, within: timedelta
    ) -> Sequence[VacatedLocation]:
        """Return relocations begun in the last ``within`` whose previous locations are due now.

        The result has all of a partition's relocations or none: the last relocation shows the partition's location.
        """
        left, key = store.recently_vacated(table, within, MAX_LOCATIONS), (table.name, table.location, table.identity)
        if len(left) <= MAX_FULL_LISTINGS or not isinstance(format_, DetectsChanges):
            self._tables.pop(key, None)
            return left
        known = self._tables.get(key)
        if known is None:
            known = self._tables[key] = _TableRotation(format_.change_detector(table))
        locations = {one.location for one in left}
        changed = known.detector.find_changed_locations(locations)
        known.pending = (known.pending | changed) & locations
        every = sorted(locations)
        start = next((index for index, location in enumerate(every) if location > known.last_location), 0)
        turn = every[start : start + _ROTATION_SIZE]
        known.last_location = turn[-1] if turn else ""
        # Locations that were pending before come after locations that have changed now.
        order = [*turn, *sorted(known.pending, key=lambda location: location not in changed)]
        return _first_partitions(order, left, MAX_FULL_LISTINGS)

    def mark_swept(self, table: TableRef, vacated: Sequence[VacatedLocation], deferred: Collection[str]) -> None:
        """Mark these locations as swept, except those of the ``deferred`` partitions."""
        known = self._tables.get((table.name, table.location, table.identity))
        if known is not None:
            waiting = {one.location for one in vacated if one.partition in deferred}
            known.pending -= {one.location for one in vacated} - waiting


def _first_partitions(order: Sequence[str], left: Sequence[VacatedLocation], most: int) -> Sequence[VacatedLocation]:
    """Return ``left`` by whole partitions, in the ``order`` of their locations, until at least ``most`` are chosen."""
    partitions_of_location: dict[str, list[str]] = defaultdict(list)
    of_partition: dict[str, list[VacatedLocation]] = defaultdict(list)
    for one in left:
        partitions_of_location[one.location].append(one.partition)
        of_partition[one.partition].append(one)
    chosen: list[VacatedLocation] = []
    for location in order:
        for partition in partitions_of_location[location]:
            chosen += of_partition.pop(partition, ())
        if len(chosen) >= most:
            break
    return chosen


def sweep_recent_locations(
    table: TableRef,
    context: RunContext,
    *,
    format: TableFormat,
    within: timedelta,
    recent: RecentLocations,
) -> SweepReport:
    """Check locations that were left in the last ``within``, and sweep the partitions that have work.

    Raises the errors of ``sweep_partitions``.
    """
    if not isinstance(format, RelocatesPartitions):
        return SweepReport()
    left = recent.choose(table, format, context.relocations, within)
    known = only_of_current_table(table, format, context.relocations.recently_relocated(table, left))
    states, failed = inspect_each(table, format, known)
    due = [one.partition for one in known if one.partition in states and not is_unchanged(one, states[one.partition])]
    report = SweepReport()
    if due:
        report = sweep_partitions(table, context, format=format, partitions=due)
    if failed is not None:
        raise failed
    recent.mark_swept(
        table,
        left,
        {*report.deferred, *(one.partition for one in known if has_recent_files(one, states[one.partition]))},
    )
    return report
