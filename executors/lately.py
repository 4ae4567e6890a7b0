# SPDX-License-Identifier: Apache-2.0
"""Looks often at the places that were left a short while ago: writers that began there are ending now.

What such a look costs follows what was left lately, and has a bound. Older places of the same partitions are the
sweep's, which sees by their directories that they changed.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from executors.late import of_this_table, seen_of_each, settles, sweep_places
from executors.late_round import LateReport
from lake.model import TableRef
from lake.moved import Left
from lake.optional import Changes, LeavesPlaces, TellsChanges
from lake.place_store import PlaceStore
from lake.places import is_untouched
from lake.ports import SparkProvider, TableFormat

PLACES_AT_ONCE = 20_000
"""How many places are looked after, those that were left last; a sweep finds what is in the others."""

IN_FULL = 1_000
"""How many places a look lists in full, and without a look at their directories where there are no more."""

_IN_TURN = 250
"""How many of the others are listed in turn where there are more, whatever their directories' times say."""


@dataclass(slots=True)
class _Looked:
    changes: Changes
    #: places that changed, or were left since, which no look has seen to
    pending: set[str] = field(default_factory=set)
    #: the last place of the present turn
    last: str = ""


class Lately:
    """What one process remembers between such looks. Not thread-safe."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, str, str | None], _Looked] = {}

    def chosen(self, table: TableRef, format_: object, store: PlaceStore, within: timedelta) -> Sequence[Left]:
        """The moves begun ``within`` that time whose former places are to be listed now. Raises Transient.

        Of a partition there are all or none, so that the last one says where it should be.
        """
        left, key = store.left_lately(table, within, PLACES_AT_ONCE), (table.name, table.location, table.identity)
        if len(left) <= IN_FULL or not isinstance(format_, TellsChanges):
            self._tables.pop(key, None)
            return left
        known = self._tables.get(key)
        if known is None:
            known = self._tables[key] = _Looked(format_.changes(table))
        places = {one.place for one in left}
        changed = known.changes.look_at(places)
        # What is there again after a look that failed, or waits for its first one, comes after what changed now.
        known.pending = (known.pending | changed) & places
        every = sorted(places)
        start = next((index for index, place in enumerate(every) if place > known.last), 0)
        turn = every[start : start + _IN_TURN]
        known.last = turn[-1] if turn else ""
        order = [*turn, *sorted(known.pending, key=lambda place: place not in changed)]
        return _first(order, left, IN_FULL)

    def looked(self, table: TableRef, left: Sequence[Left], held: Collection[str]) -> None:
        """These were seen to, but for those of the partitions ``held``."""
        known = self._tables.get((table.name, table.location, table.identity))
        if known is not None:
            known.pending -= {one.place for one in left if one.partition not in held}


def _first(order: Sequence[str], left: Sequence[Left], most: int) -> Sequence[Left]:
    """All moves of the partitions that have left these places, the first ones first, until they are ``most``."""
    of_place = {one.place: one.partition for one in left}
    of_partition: dict[str, list[Left]] = defaultdict(list)
    for one in left:
        of_partition[one.partition].append(one)
    chosen: list[Left] = []
    for place in order:
        chosen += of_partition.pop(of_place[place], ())
        if len(chosen) >= most:
            break
    return chosen


def sweep_lately(
    table: TableRef,
    *,
    format: TableFormat,
    store: PlaceStore,
    spark: SparkProvider,
    within: timedelta,
    lately: Lately,
) -> LateReport:
    """Look at places that were left ``within`` that time, and see to the partitions in which something is to be done.

    Raises what ``sweep_places`` does.
    """
    if not isinstance(format, LeavesPlaces):
        return LateReport()
    left = lately.chosen(table, format, store, within)
    known = of_this_table(table, format, store.moved_lately(table, left))
    seen, failed = seen_of_each(table, format, known)
    due = [one.partition for one in known if one.partition in seen and not is_untouched(one, seen[one.partition])]
    report = LateReport()
    if due:
        report = sweep_places(table, format=format, store=store, spark=spark, partitions=due)
    if failed is not None:
        raise failed
    lately.looked(table, left, {*report.held, *(one.partition for one in known if settles(one, seen[one.partition]))})
    return report
