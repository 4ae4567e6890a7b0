# SPDX-License-Identifier: Apache-2.0
"""The one call of the metastore that commits. It compares nothing, so partitions are checked right before and after it.

If the owner changes a partition between the check and the call, the call undoes that change. A metastore offers no way
to prevent this. Files that a writer adds to the partition between the check and the call are late files.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lake.errors import CommitUnknown, Integrity, TableGone, Transient
from lake.failpoints import failpoint
from lake.formats.hive.catalog.refusals import check_table
from lake.formats.hive.catalog.tables import find_lost_updates, list_partitions, load_table, put_partitions
from lake.formats.hive.commit import commit_lookup, commit_record
from lake.formats.hive.commit.preconditions import PartitionSnapshot, file_identities
from lake.formats.hive.commit.version_names import VERSION_KEY
from lake.formats.hive.files.listing import list_partition_files
from lake.metastore import MetastoreClient, MetastorePartition, MetastoreTable
from lake.model import TableRef, partition_label
from lake.plan import Commit


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionUpdate:
    """The change that a commit makes in the metastore: the partitions by name, as ``expected`` and as ``updated``.

    For a table without partitions ``updated`` is the table itself.
    """

    ref: TableRef
    table: MetastoreTable
    expected: Mapping[str, PartitionSnapshot]
    updated: Mapping[str, MetastorePartition | MetastoreTable]


def try_commit(
    metastore: MetastoreClient,
    update: PartitionUpdate,
    commit: Commit,
    check_before_call: Callable[[], None],
    *,
    refuse_additions: bool,
) -> Transient | None:
    """Make the call if the partitions are still as expected. Returns None if the call was made, else the reason.

    ``check_before_call`` raises if the call must not be made. With ``refuse_additions``, added files prevent the call
    as well. If the metastore answers with an error, the table is read to find out whether the call was made. Raises
    CommitUnknown if that remains unknown.
    """
    ref, table = update.ref, update.table
    failpoint("in_commit")
    try:
        other = _find_changed_partition(metastore, ref, update.expected, refuse_additions=refuse_additions)
        check_before_call()
    except BaseException:
        commit_record.withdraw_record(ref, commit.instant)
        raise
    if other is not None:
        commit_record.withdraw_record(ref, commit.instant)
        return Transient(f"{partition_label(other)} was changed right before its commit")
    try:
        put_partitions(metastore, table, update.updated.values())
    except CommitUnknown:
        raise
    except Transient as error:
        try:
            made = commit_lookup.committed_versions(metastore, table, ref, [commit.instant])
        except (Transient, TableGone) as unknown:
            raise CommitUnknown(f"{error}; and then: {unknown}") from error
        if not made:
            commit_record.withdraw_record(ref, commit.instant)
            return error
    return None


def verify_after_commit(metastore: MetastoreClient, update: PartitionUpdate, version: str) -> None:
    """Mark the commit of ``version``. Raise Integrity if a partition is not as the call wrote it, or columns changed.

    In both cases another program called the metastore at the same time, which no lock prevents. A partition that a
    program has written back as it was before the call is left to the sweep. If no partition names the version, nothing
    is marked: the call is undone, and with a mark the commit would count once a partition is dropped.
    """
    ref = update.ref
    table = load_table(metastore, ref)
    now = {partition.name: partition for partition in list_partitions(metastore, table, update.updated)}
    if any(partition.parameters.get(VERSION_KEY) == version for partition in now.values()):
        commit_record.mark_committed(ref, version)
    before = {name: one.partition for name, one in update.expected.items()}
    lost = find_lost_updates(before, update.updated, now)
    if table.storage.columns != update.table.storage.columns:
        raise Integrity(_lost_update_message(ref, "the columns of the table changed"))
    if lost:
        first, *others = lost.values()
        more = f" (and {len(others)} more)" if others else ""
        reasons = {name: _lost_update_message(ref, difference) for name, difference in lost.items()}
        raise Integrity(_lost_update_message(ref, f"{first}{more}"), partitions=reasons)


def _lost_update_message(ref: TableRef, difference: str) -> str:
    return (
        f"another program changed {ref.name} in the metastore during a commit, and one of the two may have undone the "
        f"other: {difference}; compare with the intended change, then lakefold resume {ref.name}"
    )


def _find_changed_partition(
    metastore: MetastoreClient, ref: TableRef, expected: Mapping[str, PartitionSnapshot], *, refuse_additions: bool
) -> str | None:
    """Return a partition that differs from ``expected`` in the metastore or in storage. None if there is none.

    Raises TableRefused if the table can't be served any longer.
    """
    table = load_table(metastore, ref)
    check_table(ref.name, table)
    now = {partition.name: partition for partition in list_partitions(metastore, table, expected)}
    moved = next((name for name, one in expected.items() if now.get(name) != one.partition), None)
    if moved is not None:
        return moved
    # Storage is read after the metastore, since writers add files more often than owners change partitions.
    listings = list_partition_files(ref.name, [one.partition for one in expected.values()])
    found = {listing.partition.name: listing for listing in listings}
    for name, one in expected.items():
        files = file_identities(found[name])
        finished = {path: file for path, file in files.items() if path not in one.incomplete}
        # The files of a directory in it would be left behind.
        if found[name].directories or _has_changed(one.files, finished, refuse_additions):
            return name
    return None


def _has_changed(before: Mapping[str, object], now: Mapping[str, object], refuse_additions: bool) -> bool:
    return before != now if refuse_additions else not before.items() <= now.items()
