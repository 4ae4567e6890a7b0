# SPDX-License-Identifier: Apache-2.0
"""Chooses the relocated partitions that a sweep inspects in full, so that its cost depends on the changes."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from lake.model import TableRef
from lake.relocation.capabilities import ChangeDetector, DetectsChanges
from lake.relocation_store import RelocationStore

log = logging.getLogger(__name__)

_MIN_ROTATION_SIZE = 50
"""The minimum number of partitions that each sweep inspects in rotation, even if no change was detected."""

_SWEEPS_PER_ROTATION = 240
"""All partitions of a large table are inspected once within this number of sweeps, an hour by default."""


@dataclass(slots=True)
class _WatchedTable:
    detector: ChangeDetector
    #: partitions that changed and that no sweep has processed completely
    pending: set[str] = field(default_factory=set)
    #: the last partition that this rotation has inspected, '' before its first one
    last_partition: str = ""
    #: the number of partitions inspected in this rotation so far, and in the whole last one
    count_so_far: int = 0
    last_count: int = 0
    #: by partition, the previous locations outside of the table's directory that were checked before
    outside: dict[str, Collection[str]] = field(default_factory=dict)


class PartitionWatch:
    """The state that one process keeps between its sweeps. Not thread-safe."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, str, str | None], _WatchedTable] = {}

    def choose_partitions(self, table: TableRef, format_: object, store: RelocationStore) -> Collection[str] | None:
        """Return the partitions to sweep now: changed, waiting, or in rotation; None for all. Raises Transient."""
        if not isinstance(format_, DetectsChanges):
            return None
        key = table.name, table.location, table.identity
        known = self._tables.get(key)
        if known is None:
            known = self._tables[key] = _WatchedTable(format_.change_detector(table))
            known.outside.update(store.outside_locations(table))
            # The first check only records the state with which later ones compare.
            known.detector.find_changed_locations(_all_of(known.outside))
        changed = known.detector.find_changed_partitions()
        # The detector derives the partition from the name of a changed directory. Other partitions may have left this
        # directory too.
        known.pending |= changed | store.partitions_that_left(table, changed)
        for partition, locations in known.detector.recreated_locations.items():
            if store.add_recreated_locations(table, partition, locations):
                log.warning(
                    "table %s: a writer recreated %s, whose record was pruned: it is swept again",
                    table.name,
                    min(locations),
                )
                known.pending.add(partition)
        some = max(_MIN_ROTATION_SIZE, -(-known.last_count // _SWEEPS_PER_ROTATION))
        turn = store.next_relocated_partitions(table, known.last_partition, some)
        known.count_so_far += len(turn)
        known.last_partition = turn[-1] if turn and len(turn) == some else ""
        if not known.last_partition:
            known.last_count, known.count_so_far = known.count_so_far, 0
        known.pending |= _changed_outside(known)
        known.outside |= dict.fromkeys(turn, ()) | dict(store.outside_locations(table, turn))
        return {*known.pending, *turn, *store.unfinished_partitions(table)}

    def mark_swept(self, table: TableRef, deferred: Collection[str]) -> None:
        """Mark all chosen partitions as swept, except the ``deferred`` ones."""
        known = self._tables.get((table.name, table.location, table.identity))
        if known is not None:
            known.pending = set(deferred)


def _changed_outside(known: _WatchedTable) -> frozenset[str]:
    """Return the partitions with a changed location outside of the table's directory."""
    changed = known.detector.find_changed_locations(_all_of(known.outside))
    return frozenset(one for one, locations in known.outside.items() if not changed.isdisjoint(locations))


def _all_of(outside: Mapping[str, Collection[str]]) -> Collection[str]:
    return {location for locations in outside.values() for location in locations}
