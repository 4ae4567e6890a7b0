# SPDX-License-Identifier: Apache-2.0
"""Unrecorded commits that may have replaced the files of a directory: until they are recorded, the files are kept.

The executor of such a commit's plan may have been killed right after the commit. Another record may have the same files
and allow their deletion. But the partition of the unrecorded commit needs them as evidence, and with that commit their
retention has begun again.
"""

from collections.abc import Collection

from lake.errors import LakefoldError, TableGone, one_line
from lake.model import TableRef
from lake.relocation.capabilities import RecordsRelocations
from lake.relocation_store import RelocationStore
from lake.storage.locations import relative_path, resolve_path


def reason_to_keep_files(
    table: TableRef, directories: Collection[str], *, format: object, store: RelocationStore
) -> str | None:
    """Return why files in ``directories`` must be kept: an unrecorded commit may have replaced them. None if none has.

    The commit may be one of this or of another table. The documents of a table show its commits. While a plan of
    another table is inflight, its commit may be made at any time, so the plan is a reason too. ``directories`` are
    relative to the table's location, or absolute if outside of it.
    """
    if not isinstance(format, RecordsRelocations):
        return None
    if (commit := _find_unrecorded_commit(table, directories, format, store)) is not None:
        return f"the commit {commit} has replaced files in the same directory, and is not recorded yet"
    return reason_to_keep_files_for_other_tables(table, directories, format=format, store=store)


def reason_to_keep_files_for_other_tables(
    table: TableRef, directories: Collection[str], *, format: object, store: RelocationStore
) -> str | None:
    """Do the same as ``reason_to_keep_files``, but for the commits of other tables only."""
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
            relative = {relative_path(plan.table.location, path) for path in paths}
            commit = _find_unrecorded_commit(plan.table, relative, format, store)
        except TableGone as error:  # the table may have another name now
            if plan.is_watched:
                return f"{what} may have replaced files in the same directory: {one_line(error)}"
            continue
        except LakefoldError as error:  # files of other directories must not wait for this table
            return f"{what} may have replaced files in the same directory: {one_line(error)}"
        if commit is not None:
            return f"the commit {commit} of {what} has replaced files in the same directory, and is not recorded yet"
    return None


def _find_unrecorded_commit(
    table: TableRef, directories: Collection[str], format_: RecordsRelocations, store: RelocationStore
) -> str | None:
    """Return the instant of an unrecorded commit that relocated a partition from one of ``directories``, or None."""
    for found in format_.find_relocations(table, store.known_relocation_tokens(table)):
        if found.is_recorded:
            continue
        if any(relocation.previous_location in directories for relocation in found.commit.relocations):
            return found.commit.instant
    return None
