# SPDX-License-Identifier: Apache-2.0
"""Deletes files that plans have replaced, after a check that no partition or table is read from them."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from posixpath import dirname

from lake.errors import Conflict
from lake.formats.hive.catalog.tables import list_partitions, load_table, open_metastore
from lake.formats.hive.commit import commit_record
from lake.formats.hive.commit.commit_record import migrate_legacy_data_dir
from lake.formats.hive.commit.preconditions import check_identity
from lake.formats.hive.commit.version_names import (
    data_dirs,
    directory_before_archive,
    location_of_archive,
    version_of_directory,
)
from lake.formats.hive.directories.deletion_blockers import files_in_use, parent_directories
from lake.formats.hive.directories.shared_directories import check_no_foreign_readers
from lake.model import TableRef
from lake.plan import SupersededVersion
from lake.ports import DeletionResult
from lake.stopwatch import Stopwatch
from lake.storage.filesystems import file_io_of
from lake.storage.locations import resolve_path

_MAX_CHECK_AGE = timedelta(minutes=2)
"""The maximum age of a check at a deletion; an older check is repeated first. The partition's lock lasts longer."""


def delete(
    ref: TableRef,
    versions: Sequence[SupersededVersion],
    retention: timedelta,
    fence: Callable[[], None],
    clock: Callable[[], float],
) -> DeletionResult:
    """See ``TableWriter``. ``fence`` raises if another process may have the partition locks now.

    ``clock`` returns the seconds of a clock on another machine, because this machine, and its clocks with it, may be
    suspended between two deletions.
    """
    files = file_io_of(ref.location)
    since_check = Stopwatch(clock)
    _check_deletable(ref, versions, retention, fence)
    partitions: dict[str, set[str]] = defaultdict(set)
    for version in versions:
        partitions[version.instant].add(version.partition)
    commit_record.mark_cleaning(ref, partitions)
    freed, left = 0, {}
    for index, version in enumerate(versions):
        path = resolve_path(ref.location, version.path)
        try:
            there = files.status(path)
            # Many deletions take long, and the process may be suspended during one of them until its locks have
            # expired. So an old check is repeated.
            if since_check.elapsed_seconds > _MAX_CHECK_AGE.total_seconds():
                since_check = Stopwatch(clock)
                _check_deletable(ref, versions[index:], retention, fence)
                there = files.status(path)
        except FileNotFoundError:
            continue
        other = version.difference(there.bytes, datetime.fromtimestamp(there.modified_ns / 1e9, UTC))
        if other is not None:
            left[index] = other
            continue
        files.delete_data_file(path)
        freed += there.bytes
    # This includes directories of missing files: the process that deleted the files may have died before this step.
    for directory in {dirname(resolve_path(ref.location, version.path)) for version in versions}:
        # A partition's own directory stays: the partition may be dropped and added again.
        if (made_by := version_of_directory(ref, directory)) is not None:
            _remove_empty_directories(ref, directory, data_dirs(ref))
            commit_record.remove_emptied_version(ref, made_by)
        elif (location := location_of_archive(directory)) is not None:
            _remove_empty_directories(ref, directory, (dirname(location),))
    migrate_legacy_data_dir(ref)
    return DeletionResult(bytes_freed=freed, retained=left)


def readable_directories(ref: TableRef, versions: Sequence[SupersededVersion]) -> Collection[str]:
    """Return the directories that contain these files, and those from which lakefold has moved some of the files.

    If another table is read from one of the latter, it may have been reading these files before the move. Then the
    files must not be deleted.
    """
    directories = parent_directories(ref, versions)
    return {*directories, *filter(None, (directory_before_archive(ref, directory) for directory in directories))}


def _check_deletable(
    ref: TableRef, versions: Sequence[SupersededVersion], retention: timedelta, fence: Callable[[], None]
) -> None:
    """Raise Conflict if ``versions`` must not be deleted now."""
    fence()
    _check_readers(ref, versions, retention)
    # A partition that was read from there a moment ago may just have been relocated by a commit, see ``fence``.
    fence()


def _check_readers(ref: TableRef, versions: Sequence[SupersededVersion], retention: timedelta) -> None:
    with open_metastore(ref) as metastore:
        table = load_table(metastore, ref)
        check_identity(ref, table)
        check_no_foreign_readers(metastore, table, readable_directories(ref, versions), retention)
        partitions = list(list_partitions(metastore, table))
    for reason in files_in_use(ref, versions, partitions).values():
        raise Conflict(reason)


def _remove_empty_directories(ref: TableRef, directory: str, above: Collection[str]) -> None:
    """Remove ``directory`` and then its parents, as long as they are empty. Directories in ``above`` stay."""
    files = file_io_of(ref.location)
    with suppress(OSError):
        while dirname(directory) not in above:
            files.remove_empty_directory(directory)
            directory = dirname(directory)
