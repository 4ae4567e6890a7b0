# SPDX-License-Identifier: Apache-2.0
"""Late records: commits found in a table although their plans ended cancelled or failed."""

import logging
from functools import partial

from executors.outcome import figures_of
from lake.errors import CommitLost, one_line
from lake.model import TableRef
from lake.optional import LeavesPlaces
from lake.plan import PlanState
from lake.plan_store import PlanStore
from lake.ports import TableFormat

log = logging.getLogger(__name__)


def record_late(table: TableRef, *, format: TableFormat, store: PlanStore) -> int:
    """Record the commits of plans that ended cancelled or failed although their table holds them; how many there were.

    No run of this lakefold ends a plan so. An earlier one did, and so does an executor that commits without the
    database, from a copy of it or in spite of it. Unrecorded, what such a commit replaced would stay for ever.
    Where the table says that what one did is gone, it is halted.
    """
    uncommitted = store.uncommitted(table)
    try:
        commits = format.landed(table, uncommitted) if uncommitted else {}
    except CommitLost as lost:
        log.error("table %s is halted: %s", table.name, one_line(lost))
        store.halt_table(table, one_line(lost))
        return 0
    recorded = 0
    for plan_id, commit in commits.items():
        if store.complete_late(commit, partial(figures_of, commit=commit)):
            recorded += 1
            log.warning("plan %s of %s had ended, yet %s is its commit: recorded", plan_id, table.name, commit.instant)
    if isinstance(format, LeavesPlaces):
        recorded += _record_of_others(table, format, store)
    return recorded


def _record_of_others(table: TableRef, format_: LeavesPlaces, store: PlanStore) -> int:
    """Commits of attempts that a later attempt of their plan has followed, and that were made all the same.

    Somebody had undone them right after they were made, so that they were taken for none; or their executor slept
    right before its call, and has taken away what the later attempt made, and partitions that this one had left out.
    """
    left = store.leftovers(table)
    completed = [one.staged for one in left if store.plan_state(one.plan_id) is PlanState.COMPLETED]
    recorded = 0
    for commit in format_.made(table, completed) if completed else ():
        if store.add_moves(table, commit):
            recorded += 1
            log.warning(
                "%s: %s, of an earlier attempt at plan %s, was made as well: recorded",
                table.name, commit.instant, commit.plan_id,
            )  # fmt: skip
    return recorded
