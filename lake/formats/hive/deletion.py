# SPDX-License-Identifier: Apache-2.0
"""Deletes files that plans have replaced, after a look whether anybody reads them."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from posixpath import dirname

from lake.elapsed import Since
from lake.errors import Conflict
from lake.filesystems import files_of
from lake.formats.hive import commits
from lake.formats.hive.catalog import open_metastore, places_of, table_of
from lake.formats.hive.commits import homes_of, leave_former_home, version_at
from lake.formats.hive.evidence import check_identity
from lake.formats.hive.neighbours import check_unread_by_others
from lake.formats.hive.superseded import directories_of, in_use
from lake.locations import file_at
from lake.model import TableRef
from lake.plan import SupersededVersion
from lake.ports import Deletion

_SURE_FOR = timedelta(minutes=2)
"""How long after a look a file may be deleted without another one; a fence holds its partition for longer."""


def delete(
    ref: TableRef,
    versions: Sequence[SupersededVersion],
    retention: timedelta,
    fence: Callable[[], None],
    clock: Callable[[], float],
) -> Deletion:
    """See ``TableWriter``. ``fence`` raises where another process may have the partitions by now.

    ``clock`` is another machine's, in seconds: this one, with all its clocks, may be stopped at any file.
    """
    files = files_of(ref.location)
    looked = Since(clock)
    _look(ref, versions, retention, fence)
    partitions: dict[str, set[str]] = defaultdict(set)
    for version in versions:
        partitions[version.instant].add(version.partition)
    commits.note_cleaning(ref, partitions)
    freed, left = 0, {}
    for index, version in enumerate(versions):
        path = file_at(ref.location, version.path)
        try:
            there = files.status(path)
            # Many deletions may take long, and a process may be stopped at any of them, for longer than its hold.
            if looked.seconds > _SURE_FOR.total_seconds():
                looked = Since(clock)
                _look(ref, versions[index:], retention, fence)
                there = files.status(path)
        except FileNotFoundError:
            continue
        other = version.differs(there.bytes, datetime.fromtimestamp(there.modified_ns / 1e9, UTC))
        if other is not None:
            left[index] = other
            continue
        files.delete(path)
        freed += there.bytes
    # Also of files that are gone already: whoever deleted them may have died before he came here.
    for directory in {dirname(file_at(ref.location, version.path)) for version in versions}:
        # A partition's own directory stays, for whoever drops the partition and adds it again.
        if (made_by := version_at(ref, directory)) is not None:
            _remove_empty(ref, directory)
            commits.forget(ref, made_by)
    leave_former_home(ref)
    return Deletion(bytes_freed=freed, left=left)


def _look(
    ref: TableRef, versions: Sequence[SupersededVersion], retention: timedelta, fence: Callable[[], None]
) -> None:
    """Raise Conflict where these may not be deleted any more."""
    fence()
    with open_metastore(ref) as metastore:
        table = table_of(metastore, ref)
        check_identity(ref, table)
        check_unread_by_others(metastore, table, directories_of(ref, versions), retention)
        places = list(places_of(metastore, table))
    for reason in in_use(ref, versions, places).values():
        raise Conflict(reason)


def _remove_empty(ref: TableRef, directory: str) -> None:
    """Remove a directory of a version, and those above it in the version, as far as they are empty."""
    files = files_of(ref.location)
    with suppress(OSError):
        while dirname(directory) not in homes_of(ref):
            files.remove_empty(directory)
            directory = dirname(directory)
