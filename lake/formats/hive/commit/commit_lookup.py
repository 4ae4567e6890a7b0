# SPDX-License-Identifier: Apache-2.0
"""Lookup of commits: the commit of a plan or a version, and whether its call of the metastore was made."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress

from lake.errors import CommitLost, Transient
from lake.formats.hive.catalog.tables import CatalogPartition, list_partitions, load_table
from lake.formats.hive.commit.commit_record import (
    CommitRecord,
    archived_record,
    can_be_in_flight,
    is_marked_committed,
    mark_committed,
    read_record,
)
from lake.formats.hive.commit.version_names import (
    ATTEMPTS_DIR,
    EPOCH_KEY,
    PLAN_KEY,
    RECORD_FILE,
    VERSION_KEY,
    data_dirs,
    plan_id_of,
    version_directory,
    version_of_directory,
)
from lake.formats.hive.directories.shared_directories import foreign_readers
from lake.formats.hive.files.listing import is_hidden, to_located_file
from lake.metastore import MetastoreClient, MetastoreTable
from lake.model import TableRef, partition_label
from lake.plan import Commit
from lake.storage.filesystems import file_io_of
from lake.storage.locations import resolve_path


def list_versions(ref: TableRef, plan_id: str) -> Iterator[str]:
    """Yield the versions in storage that attempts at a plan have made."""
    names: set[str] = set()
    for directory in data_dirs(ref):
        with suppress(FileNotFoundError):
            names |= {entry.name for entry in file_io_of(ref.location).list(directory)}
    yield from (name for name in sorted(names) if plan_id_of(name) == plan_id)


def find_commit(
    metastore: MetastoreClient,
    table: MetastoreTable,
    ref: TableRef,
    plan_id: str,
    list_all_partitions: Callable[[], Sequence[CatalogPartition]],
) -> Commit | None:
    """Return the commit that names a plan. None if there is no such commit.

    ``list_all_partitions`` lists the table's partitions; it is called only if no commit is found. Raises CommitLost if
    a partition is at the plan's version and the record of the commit is gone.
    """
    found = archived_record(ref, plan_id)
    if found is not None:
        return found.commit
    records = [record for version in list_versions(ref, plan_id) if (record := read_record(ref, version)) is not None]
    for record in records:
        if _is_shown_by_table(metastore, table, ref, record):
            # The executor that made the call may have been killed before it marked the commit.
            mark_committed(ref, record.commit.instant)
            return record.commit
    # If the calls of several attempts were made, the last one was in force when the partition was dropped.
    for record in sorted(records, key=lambda one: one.written_ns, reverse=True):
        if _is_applied_and_dropped(metastore, table, ref, record):
            return record.commit
    partitions = list_all_partitions()
    # All partitions of the commit may have another name since a call that is not marked.
    named = {partition.parameters.get(VERSION_KEY) for partition in partitions}
    for record in records:
        if record.commit.instant in named:
            mark_committed(ref, record.commit.instant)
            return record.commit
    lost = [partition.name for partition in partitions if _is_located_by_plan(ref, partition, plan_id)]
    if lost:
        raise CommitLost(_lost_commit_message(table, ref, plan_id, lost), plan_id, lost)
    return None


def _lost_commit_message(table: MetastoreTable, ref: TableRef, plan_id: str, partitions: Sequence[str]) -> str:
    more = f" (and {len(partitions) - 1} more)" if len(partitions) > 1 else ""
    what, how = (
        (
            f"{partition_label(partitions[0])} of {ref.name}{more}",
            "drop such partitions and add them with their own directories as LOCATION",
        )
        if table.partition_columns
        else (ref.name, f"SET LOCATION to it, UNSET TBLPROPERTIES ('{PLAN_KEY}', '{EPOCH_KEY}', '{VERSION_KEY}')")
    )
    return (
        f"{what} is read from the version of plan {plan_id}, which is gone, probably removed by an overwrite "
        f"of all of {ref.location}; if so, {how}, then lakefold resume {ref.name}"
    )


def withdrawable_versions(metastore: MetastoreClient, ref: TableRef, versions: Collection[str], now: float) -> set[str]:
    """Return the ``versions`` in storage that belong to no commit, neither completed nor in flight.

    A version that a partition or another table is read from is not withdrawable: an ``INSERT OVERWRITE`` of the whole
    table may have removed the record and written its rows into the version. A directory with the name of a version but
    with foreign files only is not withdrawable either: a writer has made it.
    """
    files = file_io_of(ref.location)
    there = {
        one for one in versions if files.exists(version_directory(ref, one)) and not can_be_in_flight(ref, one, now)
    }
    if not there:
        return set()
    table = load_table(metastore, ref)
    read_from = {version_of_directory(ref, partition.location) for partition in list_partitions(metastore, table)}
    strangers = {one for one in there if not _is_original_version(ref, one)}
    by_others = foreign_readers(metastore, table, {version_directory(ref, one) for one in there})
    read_from |= {version_of_directory(ref, f"{directory}/") for directory in by_others}
    return there - read_from - strangers - committed_versions(metastore, table, ref, there)


def committed_versions(
    metastore: MetastoreClient, table: MetastoreTable, ref: TableRef, versions: Collection[str]
) -> set[str]:
    """Return the ``versions`` that a commit has made part of the table, now or earlier."""
    found = set()
    for version in versions:
        old = archived_record(ref, plan_id_of(version))
        if old is not None and old.commit.instant == version:
            found.add(version)
            continue
        record = read_record(ref, version)
        if record is not None and _is_applied(metastore, table, ref, record):
            found.add(version)
    return found


def applied_commits(
    metastore: MetastoreClient, table: MetastoreTable, ref: TableRef, versions: Collection[str]
) -> Sequence[Commit]:
    """Return the commits of ``versions`` for which the table shows that their call was made."""
    records = [record for record in (read_record(ref, version) for version in versions) if record is not None]
    return [one.commit for one in records if _is_applied(metastore, table, ref, one)]


def _is_named_by_partition(metastore: MetastoreClient, table: MetastoreTable, record: CommitRecord) -> bool:
    partitions = list_partitions(metastore, table, record.partitions)
    return any(partition.parameters.get(VERSION_KEY) == record.commit.instant for partition in partitions)


def _is_located_by_plan(ref: TableRef, partition: CatalogPartition, plan_id: str) -> bool:
    """True if a plan made the last commit of a partition, and the owner has not moved the partition since then."""
    version = version_of_directory(ref, partition.location)
    return partition.parameters.get(PLAN_KEY) == plan_id and version is not None and plan_id_of(version) == plan_id


def _is_applied(metastore: MetastoreClient, table: MetastoreTable, ref: TableRef, record: CommitRecord) -> bool:
    """True if the table, or the mark of the commit, shows that the call of a commit was made."""
    return _is_shown_by_table(metastore, table, ref, record) or _is_applied_and_dropped(metastore, table, ref, record)


def _is_shown_by_table(metastore: MetastoreClient, table: MetastoreTable, ref: TableRef, record: CommitRecord) -> bool:
    """True if a partition names the version of a commit, or a writer has written into the version.

    A writer may undo the call by writing back the partition that it had read before, as Hive does at the end of an
    INSERT. A writer writes into the version only after it has read the new location.
    """
    return _is_named_by_partition(metastore, table, record) or has_foreign_files(ref, record)


def _is_applied_and_dropped(
    metastore: MetastoreClient, table: MetastoreTable, ref: TableRef, record: CommitRecord
) -> bool:
    """True if a partition of a commit was dropped since the call of the commit was made.

    The mark alone does not show that the commit counts: a writer may have undone it by writing a partition back. If any
    partition of the commit was dropped, the mark is enough. Otherwise the plan would be executed again and, if the
    partition is added again, would rewrite replaced rows together with new ones. A writer may have written another
    partition of the commit back before the drop. The sweep sets the location of such a partition again.

    An executor that was killed right after its call has not marked the commit. In this case a missing directory of a
    dropped partition is the evidence: the DROP PARTITION of a managed table deletes the directory from which the
    partition is read, and nothing else deletes a directory of a version that has its record.
    """
    if record.table_created_at != table.created_at:
        return False
    created_at = {one.name: one.created_at for one in list_partitions(metastore, table, record.partitions)}
    dropped = [
        move
        for move in record.commit.relocations
        if move.partition_created_at is not None and created_at.get(move.partition) != move.partition_created_at
    ]
    if not dropped:
        return False
    if is_marked_committed(ref, record.commit.instant):
        return True
    files = file_io_of(ref.location)
    return any(not files.exists(resolve_path(ref.location, move.location)) for move in dropped)


def has_foreign_files(ref: TableRef, record: CommitRecord) -> bool:
    """True if a writer has written into the version of a commit: it has read the location that the call had set."""
    files = file_io_of(ref.location)
    for move in record.commit.relocations:
        try:
            entries = files.list(resolve_path(ref.location, move.location))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Transient(f"{move.location} can't be listed: {error.strerror}") from error
        there = {
            to_located_file(ref.location, entry.path, entry.bytes, entry.modified_ns)
            for entry in entries
            if not is_hidden(entry.name)
        }
        if not there <= set(move.files):
            return True
    return False


def _is_original_version(ref: TableRef, version: str) -> bool:
    """True if an attempt made the version. False if a writer created it again after all of it was removed."""
    try:
        names = {entry.name for entry in file_io_of(ref.location).list(version_directory(ref, version))}
    except FileNotFoundError:
        return True
    except OSError as error:
        raise Transient(f"version {version} can't be listed: {error.strerror}") from error
    return not names or bool(names & {ATTEMPTS_DIR, RECORD_FILE})
