# SPDX-License-Identifier: Apache-2.0
"""Deletes records of relocations that were discarded, or whose locations no longer exist.

Otherwise the records would grow without limit. The table's record of a relocation is deleted first, and the database's
record afterwards: in the other order, a sweep could add the relocation to the database again, after its successors. If
a writer recreates a location whose record was deleted, the sweep finds it by its directory, see
``executors.relocation.watch``.
"""

import logging
from datetime import timedelta

from lake.model import TableRef
from lake.relocation.capabilities import PrunesRelocations
from lake.relocation_store import RelocationStore

log = logging.getLogger(__name__)

PRUNE_AFTER = timedelta(days=30)
"""The time from the relocation, and from the deletion of its replaced files, until its record may be pruned."""

_MAX_PARTITIONS = 500


def prune_relocations(
    table: TableRef,
    *,
    format: object,
    store: RelocationStore,
    after: str = "",
    age: timedelta = PRUNE_AFTER,
) -> tuple[int, str]:
    """Prune relocations of the partitions that follow ``after`` by name. Returns their number and the next ``after``.

    The next ``after`` is '' once all partitions have been processed. A halted partition retains everything. Raises the
    errors of format and store.
    """
    if not isinstance(format, PrunesRelocations):
        return 0, ""
    found, last = store.relocation_histories(table, age, after, _MAX_PARTITIONS)
    halted = store.halted_partitions(table) if found else {}
    found = [past for past in found if past.partition not in halted]
    locations = {
        relocation.previous_location
        for past in found
        for relocation in (*past.relocations, *past.discarded)
        if relocation.is_cleaned_up
    }
    gone = format.missing_locations(table, locations) if locations else ()
    relocations = [relocation for past in found for relocation in past.prunable(gone)]
    if not relocations:
        return 0, last
    kept = set(store.tokens_used_elsewhere(table, relocations))
    tokens = {relocation.token for relocation in relocations} - kept
    may_go = kept.union(format.prune_relocations(table, tokens) if tokens else ())
    pruned = store.prune_relocations(
        table, [relocation.relocation_id for relocation in relocations if relocation.token in may_go]
    )
    if pruned:
        log.info(
            "table %s: pruned %d relocations that were discarded, or whose locations no longer exist",
            table.name,
            pruned,
        )
    return pruned, last
