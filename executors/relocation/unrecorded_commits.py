# SPDX-License-Identifier: Apache-2.0
"""Commits in a directory that are not recorded yet: they have replaced files there that another record has too.

The executor of such a commit's plan may have been killed right after the commit. The files must stay where they are
until the commit is recorded: its partition needs them as evidence, and their retention has begun again.
"""

from collections.abc import Collection

from lake.errors import TableGone, one_line
from lake.model import TableRef
from lake.relocation.capabilities import RecordsRelocations
from lake.relocation_store import RelocationStore
from lake.storage.locations import relative_path, resolve_path


def unrecorded_commit(
    table: TableRef, directories: Collection[str], *, format: object, store: RelocationStore
) -> str | None:
    """Return why files in ``directories`` stay: a commit of this or another table may have replaced them again.

    The documents of a table show its commits. But while a plan of another table is inflight, its commit may be made at
    any time. Returns None if there is no such commit.
    """
    if not isinstance(format, RecordsRelocations):
        return None
    if (commit := _find_commit(table, directories, format, store)) is not None:
        return f"the commit {commit} has replaced files in the same directory, and is not recorded yet"
    return unrecorded_commit_elsewhere(table, directories, format=format, store=store)


def unrecorded_commit_elsewhere(
    table: TableRef, directories: Collection[str], *, format: object, store: RelocationStore
) -> str | None:
    """Return the same as ``unrecorded_commit`` for the commits of other tables only."""
    if not directories or not isinstance(format, RecordsRelocations):
        return None
    # A directory below this table's own one may be shared too: another table's plan does not see a table that was
    # created or renamed a moment ago.
    paths = {resolve_path(table.location, one) for one in directories}
    for plan in store.undecided_plans_elsewhere(table, directories):
        what = f"plan {plan.plan_id} of table {plan.table.name}"
        if plan.is_inflight:
            return f"{what} is inflight, and rewrites files in the same directory"
        try:
            spelled = {relative_path(plan.table.location, path) for path in paths}
            commit = _find_commit(plan.table, spelled, format, store)
        except TableGone as gone:  # it may have another name now
            if plan.is_watched:
                return f"{what} may have replaced files in the same directory: {one_line(gone)}"
            continue
        if commit is not None:
            return f"the commit {commit} of {what} has replaced files in the same directory, and is not recorded yet"
    return None


def _find_commit(
    table: TableRef, directories: Collection[str], format_: RecordsRelocations, store: RelocationStore
) -> str | None:
    """Return a commit of a table that relocated a partition from one of ``directories`` and that is not recorded."""
    found = format_.find_relocations(table, store.known_relocation_tokens(table))
    moves = ((one.commit.instant, move) for one in found if not one.is_recorded for move in one.commit.relocations)
    return next((instant for instant, move in moves if move.previous_location in directories), None)
