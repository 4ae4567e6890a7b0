# SPDX-License-Identifier: Apache-2.0
"""Forgets former places that are gone, so that what is kept of a partition does not grow with its rounds.

What a table tells of a move goes first, and what the database has of it afterwards: a move that only the table tells of
would be entered anew, behind those that followed it. A writer may make a forgotten place again for all that: then the
sweep finds it by its directory, see ``executors.relocation.watch``.
"""

import logging
from datetime import timedelta

from lake.capabilities import PrunesRelocations
from lake.model import TableRef
from lake.relocation_store import RelocationStore

log = logging.getLogger(__name__)

PRUNE_AFTER = timedelta(days=30)
"""How long ago a place was left, and what had been replaced there was deleted, before it may be forgotten."""

_MAX_PARTITIONS = 500


def prune_relocations(
    table: TableRef,
    *,
    format: object,
    store: RelocationStore,
    after: str = "",
    age: timedelta = PRUNE_AFTER,
) -> tuple[int, str]:
    """Forget moves of some partitions, from the first one after ``after`` on; how many, and the name to go on after.

    That name is '' where all partitions had their turn. A halted partition keeps everything. Raises what format and
    store raise.
    """
    if not isinstance(format, PrunesRelocations):
        return 0, ""
    found, last = store.relocation_histories(table, age, after, _MAX_PARTITIONS)
    halted = store.halted_partitions(table) if found else {}
    found = [past for past in found if past.partition not in halted]
    places = {move.previous_location for past in found for move in past.relocations if move.is_cleaned_up}
    gone = format.missing_locations(table, places) if places else ()
    moves = [move for past in found for move in past.prunable(gone)]
    if not moves:
        return 0, last
    kept = set(store.tokens_used_elsewhere(table, moves))
    told = {move.token for move in moves} - kept
    may_go = kept.union(format.prune_relocations(table, told) if told else ())
    forgotten = store.prune_relocations(table, [move.relocation_id for move in moves if move.token in may_go])
    if forgotten:
        log.info("table %s: forgot %d moves whose places are gone", table.name, forgotten)
    return forgotten, last
