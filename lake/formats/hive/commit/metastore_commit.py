# SPDX-License-Identifier: Apache-2.0
"""The one call of the metastore that commits. It compares nothing: so there is a look right before it, and one after.

What its owner does to a partition between the look before and the call, a moment later, is undone, as it is by any
client of a metastore that changes the same partition. What a writer adds to its files then is late.
"""

from collections.abc import Callable, Mapping

from lake.errors import CommitUnknown, Integrity, Transient
from lake.failpoints import failpoint
from lake.formats.hive.catalog.tables import find_lost_update, list_partitions, load_table, put_partitions
from lake.formats.hive.commit import commit_lookup, commit_record
from lake.formats.hive.commit.preconditions import PartitionSnapshot, file_identities
from lake.formats.hive.files.listing import list_partition_files
from lake.metastore import MetastoreClient, MetastorePartition, MetastoreTable
from lake.model import TableRef, partition_label
from lake.plan import Commit


def try_commit(
    metastore: MetastoreClient,
    table: MetastoreTable,
    ref: TableRef,
    expected: Mapping[str, PartitionSnapshot],
    updated: Mapping[str, MetastorePartition | MetastoreTable],
    commit: Commit,
    check_before_call: Callable[[], None],
    *,
    refuse_additions: bool,
) -> Transient | None:
    """Make the call, where the partitions are still as they were ``seen``; why it was not made or refused, or None.

    ``ready`` raises where it may not be made any more. Files that were only added speak against the call as long as
    the commit ``brings_more``. Where the metastore answers an error it is asked what it did.
    """
    failpoint("in_commit")
    try:
        other = _find_changed_partition(metastore, ref, expected, refuse_additions=refuse_additions)
        check_before_call()
    except BaseException:
        commit_record.withdraw_record(ref, commit.instant)
        raise
    if other is not None:
        commit_record.withdraw_record(ref, commit.instant)
        return Transient(f"{partition_label(other)} was changed right before its commit")
    try:
        put_partitions(metastore, table, updated.values())
    except CommitUnknown:
        raise
    except Transient as error:
        try:
            made = commit_lookup.committed_versions(metastore, table, ref, [commit.instant])
        except Transient as unknown:
            raise CommitUnknown(f"{error}; and then: {unknown}") from error
        if not made:
            commit_record.withdraw_record(ref, commit.instant)
            return error
    return None


def verify_after_commit(
    metastore: MetastoreClient,
    table: MetastoreTable,
    ref: TableRef,
    updated: Mapping[str, MetastorePartition | MetastoreTable],
) -> None:
    """Raise Integrity where somebody else has written the same at the same time: nothing kept the two apart."""
    now = load_table(metastore, ref)
    difference = find_lost_update(metastore, now, updated)
    if difference is None and now.storage.columns != table.storage.columns:
        difference = "the columns of the table changed"
    if difference is not None:
        raise Integrity(
            f"somebody changed {ref.name} in the metastore while a commit did, and one of the two may have "
            f"undone the other: {difference}; compare with what was intended, then lakefold resume"
        )


def _find_changed_partition(
    metastore: MetastoreClient, ref: TableRef, expected: Mapping[str, PartitionSnapshot], *, refuse_additions: bool
) -> str | None:
    """A partition that is not in the metastore, or in storage, as it was seen; None where there is none."""
    now = {place.name: place for place in list_partitions(metastore, load_table(metastore, ref), expected)}
    moved = next((name for name, one in expected.items() if now.get(name) != one.partition), None)
    if moved is not None:
        return moved
    # After the metastore, since files come more often than anything else changes.
    listings = list_partition_files(ref.name, [one.partition for one in expected.values()])
    files = {listing.partition.name: file_identities(listing) for listing in listings}
    for name, one in expected.items():
        finished = {path: file for path, file in files[name].items() if path not in one.incomplete}
        if _has_changed(one.files, finished, refuse_additions):
            return name
    return None


def _has_changed(before: Mapping[str, object], now: Mapping[str, object], refuse_additions: bool) -> bool:
    return before != now if refuse_additions else not before.items() <= now.items()
