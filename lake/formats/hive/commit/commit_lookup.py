# SPDX-License-Identifier: Apache-2.0
"""Lookup of commits: the commit of a plan or a version, and whether its call of the metastore was made."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from lake.errors import CommitLost, Transient
from lake.formats.hive.catalog.tables import CatalogPartition, list_partitions, load_table
from lake.formats.hive.commit.commit_record import (
    CommitRecord,
    archived_record,
    can_be_in_flight,
    is_marked_committed,
    mark_committed,
    mark_undone,
    read_record,
    undone_partitions,
    unmark_undone,
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
from lake.plan import Commit, Relocation
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

    If there is none, the commit of each attempt is marked as undone before this returns. The plan may end without a
    commit then, and the files that the commit would have replaced are the table's.
    ``list_all_partitions`` lists the table's partitions; it is called only if no commit is found. Raises CommitLost if
    a partition is at the plan's version and the record of the commit is gone.
    """
    found = archived_record(ref, plan_id)
    if found is not None:
        if undone_partitions(ref, found.commit.instant):
            found = without_undone_partitions(ref, found, list(list_partitions(metastore, table, found.partitions)))
        return None if found is None else found.commit
    records = [record for version in list_versions(ref, plan_id) if (record := read_record(ref, version)) is not None]
    for record in records:
        if (shown := _shown_by_table(metastore, table, ref, record)) is not None:
            # The executor that made the call may have been killed before it marked the commit.
            mark_committed(ref, record.commit.instant)
            return shown.commit
    # If the calls of several attempts were made, the last one was in force when the partition was dropped.
    for record in sorted(records, key=lambda one: one.written_ns, reverse=True):
        if (applied := _applied_and_dropped(metastore, table, ref, record)) is not None:
            return applied.commit
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
    for record in records:
        try:
            mark_undone(ref, record.commit.instant, record.partitions)
        except OSError as error:
            raise Transient(f"{ref.name}: a commit can't be marked as undone: {error.strerror or error}") from error
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
        if record is not None and _applied_record(metastore, table, ref, record) is not None:
            found.add(version)
    return found


def applied_commits(
    metastore: MetastoreClient, table: MetastoreTable, ref: TableRef, versions: Collection[str]
) -> Sequence[Commit]:
    """Return the commits of ``versions`` for which the table shows that their call was made."""
    records = [record for record in (read_record(ref, version) for version in versions) if record is not None]
    applied = (_applied_record(metastore, table, ref, one) for one in records)
    return [one.commit for one in applied if one is not None]


def without_undone_partitions(
    ref: TableRef, record: CommitRecord, partitions: Collection[CatalogPartition]
) -> CommitRecord | None:
    """Return a record without the partitions in which its commit was undone before they were dropped.

    None if no partition is left. ``partitions`` are at least those of the record that the metastore has. Readers of a
    partition that is marked as undone read the replaced files when it was marked. If it is dropped and added again,
    these files are its owner's. A missing directory in the version is evidence for the opposite, as in
    ``_applied_and_dropped``.
    """
    marked = undone_partitions(ref, record.commit.instant)
    if not marked:
        return record
    naming = [one for one in partitions if one.parameters.get(VERSION_KEY) == record.commit.instant]
    in_force: set[str | int | None] = {one.name for one in naming}
    in_force |= {one.created_at for one in naming if one.name not in record.partitions}  # a partition that was renamed
    undone = {
        move.partition
        for move in _dropped_moves(record, partitions)
        if move.partition in marked
        and not {move.partition, move.partition_created_at} & in_force
        and _has_directory(ref, move)
    }
    if not undone:
        return record
    commit = record.commit
    relocations = tuple(one for one in commit.relocations if one.partition not in undone)
    left = replace(
        commit,
        outputs=tuple(one for one in commit.outputs if one.partition not in undone),
        superseded=tuple(one for one in commit.superseded if one.partition not in undone),
        relocations=relocations,
    )
    names = tuple(name for name in record.partitions if name not in undone)
    return replace(record, commit=left, partitions=names) if relocations else None


def _dropped_moves(record: CommitRecord, partitions: Collection[CatalogPartition]) -> Sequence[Relocation]:
    """Return the relocations of a commit whose partition was dropped since, and perhaps added again."""
    created_at = {one.name: one.created_at for one in partitions}
    return [
        move
        for move in record.commit.relocations
        if move.partition_created_at is not None and created_at.get(move.partition) != move.partition_created_at
    ]


def _has_directory(ref: TableRef, move: Relocation) -> bool:
    return file_io_of(ref.location).exists(resolve_path(ref.location, move.location))


def _is_located_by_plan(ref: TableRef, partition: CatalogPartition, plan_id: str) -> bool:
    """True if a plan made the last commit of a partition, and the owner has not moved the partition since then."""
    version = version_of_directory(ref, partition.location)
    return partition.parameters.get(PLAN_KEY) == plan_id and version is not None and plan_id_of(version) == plan_id


def _applied_record(
    metastore: MetastoreClient, table: MetastoreTable, ref: TableRef, record: CommitRecord
) -> CommitRecord | None:
    """Return a record if the table, or the mark of the commit, shows that the call of the commit was made.

    Partitions that were dropped after the commit was undone are left out.
    """
    shown = _shown_by_table(metastore, table, ref, record)
    return _applied_and_dropped(metastore, table, ref, record) if shown is None else shown


def _shown_by_table(
    metastore: MetastoreClient, table: MetastoreTable, ref: TableRef, record: CommitRecord
) -> CommitRecord | None:
    """Return a record if a partition names the version of its commit, or if a writer has written into the version.

    A writer may undo the call by writing back the partition that it had read before, as Hive does at the end of an
    INSERT. A writer writes into the version only after it has read the new location. Partitions that were dropped after
    the commit was undone are left out.
    """
    version = record.commit.instant
    partitions = list(list_partitions(metastore, table, record.partitions))
    naming = {one.name for one in partitions if one.parameters.get(VERSION_KEY) == version}
    if naming & undone_partitions(ref, version):
        # A program has written the commit's entry again, and later the partition may be dropped.
        unmark_undone(ref, version, naming)
        partitions = list(list_partitions(metastore, table, record.partitions))
        naming = {one.name for one in partitions if one.parameters.get(VERSION_KEY) == version}
    counted = without_undone_partitions(ref, record, partitions)
    return counted if naming or (counted is not None and has_foreign_files(ref, counted)) else None


def _applied_and_dropped(
    metastore: MetastoreClient, table: MetastoreTable, ref: TableRef, record: CommitRecord
) -> CommitRecord | None:
    """Return a record if a partition of its commit was dropped since the call of the commit was made.

    The mark alone does not show that the commit counts: a writer may have undone it by writing a partition back. If any
    partition of the commit was dropped, the mark is enough. Otherwise the plan would be executed again and, if the
    partition is added again, would rewrite replaced rows together with new ones. A writer may have written another
    partition of the commit back before the drop. The sweep sets the location of such a partition again. If a look-up
    had marked the commit as undone before the drop, the commit does not count for the dropped partition.

    An executor that was killed right after its call has not marked the commit. In this case a missing directory of a
    dropped partition is the evidence: the DROP PARTITION of a managed table deletes the directory from which the
    partition is read, and nothing else deletes a directory of a version that has its record.
    """
    if record.table_created_at != table.created_at:
        return None
    partitions = list(list_partitions(metastore, table, record.partitions))
    counted = without_undone_partitions(ref, record, partitions)
    dropped = [] if counted is None else _dropped_moves(counted, partitions)
    is_applied = (dropped and is_marked_committed(ref, record.commit.instant)) or any(
        not _has_directory(ref, move) for move in dropped
    )
    return counted if is_applied else None


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
