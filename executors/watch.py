# SPDX-License-Identifier: Apache-2.0
"""Chooses the moved partitions that a sweep looks at in full, so that its cost follows what changed."""

import logging
from collections.abc import Collection
from dataclasses import dataclass, field

from lake.model import TableRef
from lake.optional import Changes, TellsChanges
from lake.place_store import PlaceStore

log = logging.getLogger(__name__)

_IN_TURN = 50
"""How many partitions a sweep looks at, in turn, whatever they look like from outside."""

_ROUND = 240
"""In how many sweeps every partition of a large table has had its turn: an hour of them."""


@dataclass(slots=True)
class _Watched:
    changes: Changes
    #: partitions that changed, of which no sweep has seen to all
    pending: set[str] = field(default_factory=set)
    #: those of the present turn's sweep
    last: str = ""
    #: how many had their turn in this round, and in the last one
    so_far: int = 0
    count: int = 0


class Watch:
    """What one process remembers between its sweeps. Not thread-safe."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, str, str | None], _Watched] = {}

    def partitions(self, table: TableRef, format_: object, store: PlaceStore) -> Collection[str] | None:
        """The partitions to look at in this sweep: changed, waiting, or in turn; None for all. Raises Transient."""
        if not isinstance(format_, TellsChanges):
            return None
        key = table.name, table.location, table.identity
        known = self._tables.get(key)
        if known is None:
            known = self._tables[key] = _Watched(format_.changes(table))
        known.pending |= known.changes.look()
        for partition, places in known.changes.again.items():
            if store.again(table, partition, places):
                log.warning("table %s: %s was forgotten, and a writer is there again", table.name, min(places))
                known.pending.add(partition)
        some = max(_IN_TURN, -(-known.count // _ROUND))
        turn = store.moved_after(table, known.last, some)
        known.so_far += len(turn)
        known.last = turn[-1] if turn and len(turn) == some else ""
        if not known.last:
            known.count, known.so_far = known.so_far, 0
        return {*known.pending, *turn, *store.open_moves(table)}

    def looked(self, table: TableRef, held: Collection[str]) -> None:
        """The sweep has seen to all partitions that were chosen but to those ``held``."""
        known = self._tables.get((table.name, table.location, table.identity))
        if known is not None:
            known.pending = set(held)
