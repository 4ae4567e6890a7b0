# SPDX-License-Identifier: Apache-2.0
"""The late files of lakefold's instants: files written after the instant was withdrawn, or after its commit.

A suspended executor, a Java process that outlives its Python process, and a task on another host continue to write,
regardless of the state of their instant. No rollback covers these files, and their writer may end before it deletes
them. Readers that list directories consider them committed and read each of their rows twice: at once if the instant is
completed, and for a withdrawn instant as soon as the active timeline begins after it.

A writer that takes over an instant which lakefold has begun rolls back the files that have markers, and begins again
with a new inflight file. Files that are clearly older and have no marker belong to no attempt that can still commit.
They count as late even before the writer commits, because its commit would make them visible.

So lakefold records each instant in the table, with its partitions, before anything can be written under it: one small
file at ``.hoodie/.lakefold/instants``, beside the attempts. The record outlives the instant and its executors. The
sweep of any lakefold installation checks the recorded instants again.
"""

import json
import logging
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyarrow import fs as pafs

from lake.errors import LakefoldError
from lake.formats.hudi.files.names import parse_file_name, relative_path
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.pending.markers import list_marked_files
from lake.formats.hudi.pending.rollback_guard import has_markers
from lake.formats.hudi.timeline.clocks import MAX_WRITE_DELAY, max_skew_milliseconds
from lake.formats.hudi.timeline.timeline import COMMIT_ACTIONS, Instant, Timeline, write_stats
from lake.model import TableRef
from lake.plan import STAGED_WATCH_PERIOD

log = logging.getLogger(__name__)
DIRECTORY = ".hoodie/.lakefold/instants"
#: a check is due when the age of the record has grown by a quarter since the last check; the first one is due when the
#: age is a quarter above this time. An instant is checked about fifty times in all
_FIRST_CHECK_INTERVAL = timedelta(seconds=24)
_CHECK_INTERVAL_GROWTH = 1.25

#: ``InstantRecord.begun_at`` from before lakefold begins an instant until the time of its inflight file is known
_BEGINNING = "beginning"
#: how long after the record of ``_BEGINNING`` Hudi may take to write the inflight file
_BEGIN_TIMEOUT = timedelta(seconds=30)

#: how far the clocks may differ at least that set the times of a begun instant's files
_MIN_CLOCK_SKEW = timedelta(seconds=1)

#: this process's last check of each instant of each table: the record's time and its age at the check
_last_checks: dict[tuple[str, str], tuple[datetime, timedelta]] = {}
_MAX_LAST_CHECKS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantRecord:
    """The record of one of lakefold's instants: the partitions of its files, and lakefold's actions on it.

    ``begun_at`` is the time of the inflight file with which lakefold last began the instant, None before the first
    begin, and ``_BEGINNING`` while lakefold begins it. ``committed`` is True if lakefold saw the instant completed and
    has not seen it pending again. ``removed`` is True if lakefold removed the instant from the timeline while it was
    pending: it can't have completed since.
    """

    instant: str
    partitions: tuple[str, ...]
    begun_at: str | None = None
    committed: bool = False
    removed: bool = False


def record_path(instant: str) -> str:
    """Return the path of an instant's record, which lakefold rewrites with every action on the instant."""
    return f"{DIRECTORY}/{instant}.json"


def request_copy_path(instant: str) -> str:
    """Return the path of the copy of an instant's request; see ``pending.request_copies``."""
    return f"{DIRECTORY}/{instant}.request"


def record_instant(storage: TableStorage, timeline: Timeline, instant: str, partitions: Collection[str]) -> None:
    """Record an instant that is about to be published or begun, and delete records older than ``STAGED_WATCH_PERIOD``.

    The copies of the requests of these instants are deleted with them. Call it under the lock.
    """
    pending = {entry.time for entry in timeline.pending}
    for time, noted_at in _list_instant_records(storage):
        if time not in pending and datetime.now(UTC) - noted_at > STAGED_WATCH_PERIOD:
            storage.delete(request_copy_path(time))
            storage.delete(record_path(time))
    _write_instant_record(storage, InstantRecord(instant=instant, partitions=tuple(sorted(partitions))))


def record_beginning(storage: TableStorage, instant: str) -> None:
    """Record that lakefold is about to begin the requested ``instant``; call it under the lock.

    If the process dies in Hudi's call, this record shows that the inflight file is lakefold's.
    """
    _change_record(storage, instant, begun_at=_BEGINNING)


def record_begin(storage: TableStorage, instant: str, written_at: datetime | None) -> None:
    """Record that lakefold has just begun ``instant``; call it under the lock.

    ``written_at`` is the modification time of its inflight file, None if there is none.
    """
    _change_record(storage, instant, begun_at=None if written_at is None else written_at.isoformat())


def record_pending(storage: TableStorage, instant: str) -> None:
    """Record that ``instant`` is pending, neither committed nor removed; call it under the lock.

    An instant that lakefold committed is pending again if its owner has rolled the commit back. An instant that
    lakefold removed is pending again if a writer began it at that moment.
    """
    known = read_instant_record(storage, instant)
    if known is not None and (known.committed or known.removed):
        _write_instant_record(storage, replace(known, committed=False, removed=False))


def record_withdrawal(storage: TableStorage, instant: str, *, removed: bool) -> None:
    """Record that ``instant`` has just been withdrawn, which restarts the checks; call it under the lock.

    ``removed`` is True if the instant is no longer on the timeline.
    """
    _change_record(storage, instant, begun_at=None, removed=removed)


def record_commit(storage: TableStorage, instant: str) -> None:
    """Record that ``instant`` is completed; never raises."""
    try:
        _change_record(storage, instant, committed=True)
    except (LakefoldError, OSError) as error:
        log.warning("%s: can't record that the instant is committed: %s", record_path(instant), error)


def _change_record(storage: TableStorage, instant: str, **changes: Any) -> None:
    known = read_instant_record(storage, instant)
    if known is not None:
        _write_instant_record(storage, replace(known, **changes))


def read_instant_record(storage: TableStorage, instant: str) -> InstantRecord | None:
    """Return the record of an instant; None if there is none, as for instants of earlier versions of lakefold."""
    with suppress(FileNotFoundError, ValueError, TypeError, KeyError):
        values = json.loads(storage.read(record_path(instant)))
        return InstantRecord(**values | {"partitions": tuple(values["partitions"])})
    return None


def is_begun_by_writer(storage: TableStorage, timeline: Timeline, instant: str) -> bool:
    """True if a writer, not lakefold, began the inflight ``instant``: writers may execute any pending plan.

    If the process dies in Hudi's call, the time of the inflight file is not recorded. Such a file counts as lakefold's
    if it appeared right after lakefold recorded that it would begin the instant, and if no file was written under the
    instant since. If a writer had begun the instant at that moment, a wrong guess would only make its commit fail.
    """
    known = read_instant_record(storage, instant)
    written_at = _inflight_written_at(storage, timeline, instant)
    if known is None or written_at is None:
        return False
    if known.begun_at != _BEGINNING:
        return written_at.isoformat() != known.begun_at
    recorded_at = storage.info(record_path(instant)).mtime
    return (
        not timedelta() <= written_at - recorded_at <= _BEGIN_TIMEOUT
        or has_markers(storage, instant)
        or bool(list_files_of_instant(storage, instant, known.partitions))
    )


def find_instants_with_late_files(table: TableRef, storage: TableStorage, timeline: Timeline) -> list[str]:
    """Return the ended instants with late files, markers or an unrecorded commit, among the instants due for a check.

    Instants that a writer executes are checked every time. Needs no lock, so nothing may be deleted without a second
    check under the lock.
    """
    found = []
    pending = {entry.time for entry in timeline.pending}
    for time, noted_at in _list_instant_records(storage):
        age = max(timedelta(), datetime.now(UTC) - noted_at)
        key = storage.location, time
        if time in pending:
            if is_begun_by_writer(storage, timeline, time) and _has_late_files(table, storage, timeline, time):
                found.append(time)
            continue
        if age > STAGED_WATCH_PERIOD or not _is_due(key, noted_at, age):
            continue
        known = read_instant_record(storage, time)
        if known is not None and (
            list_late_files(table, storage, timeline, known)
            or has_markers(storage, time)
            or is_unrecorded_commit(timeline, known)
        ):
            found.append(time)  # checked again until it has no late file
            continue
        if len(_last_checks) >= _MAX_LAST_CHECKS:
            _last_checks.clear()
        _last_checks[key] = noted_at, age
    return found


def is_unrecorded_commit(timeline: Timeline, record: InstantRecord) -> bool:
    """True if the recorded instant has completed on the active timeline, and the record does not show that.

    A writer has executed lakefold's plan, or lakefold was killed after its commit.
    """
    at_time = [one for one in timeline.instants if one.time == record.instant and one.action in COMMIT_ACTIONS]
    return not record.committed and len(at_time) == 1 and not at_time[0].pending


def _has_late_files(table: TableRef, storage: TableStorage, timeline: Timeline, time: str) -> bool:
    known = read_instant_record(storage, time)
    return known is not None and bool(list_late_files(table, storage, timeline, known))


def _is_due(key: tuple[str, str], recorded_at: datetime, age: timedelta) -> bool:
    seen, at_age = _last_checks.get(key, (None, timedelta()))
    return seen != recorded_at or age >= max(at_age, _FIRST_CHECK_INTERVAL) * _CHECK_INTERVAL_GROWTH


def list_late_files(
    table: TableRef,
    storage: TableStorage,
    timeline: Timeline,
    record: InstantRecord,
    *,
    is_of_earlier_table: bool = False,
) -> list[str]:
    """Return the base files of an ended instant that belong to no commit, or of a pending one to an earlier attempt.

    ``is_of_earlier_table`` is True if the table has no record of the instant because it was created again since.
    """
    written = list_files_of_instant(storage, record.instant, record.partitions)
    instants = [one for one in timeline.instants if one.time == record.instant and one.action in COMMIT_ACTIONS]
    if not written or len(instants) > 1:
        return []  # a file's name does not show to which of several instants it belongs
    instant = instants[0] if instants else None
    if instant is not None and instant.pending:
        return _files_of_earlier_attempts(table, storage, timeline, instant, written)
    committed = _committed_files(timeline, record, instant, is_of_earlier_table=is_of_earlier_table)
    return [] if committed is None else [path for path in written if path not in committed]


def _files_of_earlier_attempts(
    table: TableRef, storage: TableStorage, timeline: Timeline, instant: Instant, written: Collection[str]
) -> list[str]:
    """Return those of the files ``written`` under a begun instant that are older than its inflight file.

    Each attempt begins with a new inflight file. Not all storages set the times of both by one clock, so a file has to
    be older by a margin. A file with a marker stays: its writer deletes it, or the sweep after the writer's commit.
    """
    begun_at = timeline.modified_at(instant.inflight_file)
    if begun_at is None:
        return []
    skew = timedelta(milliseconds=max_skew_milliseconds(table))
    before = begun_at - max(skew, _MIN_CLOCK_SKEW) - MAX_WRITE_DELAY
    times = storage.modified_times(written)
    older = [path for path in written if times.get(path, begun_at) < before]
    marked = list_marked_files(storage, instant.time, older)
    return [path for path in older if path not in marked]


def _committed_files(
    timeline: Timeline, record: InstantRecord, instant: Instant | None, *, is_of_earlier_table: bool
) -> frozenset[str] | None:
    """Return the files that must stay: the instant's committed files or, without a commit, the files of savepoints.

    Returns None if they are unknown.
    """
    if instant is not None:
        return _files_named_in(timeline.commit_metadata(instant))
    # The active timeline was listed first, so an instant archived meanwhile is found twice, never missed.
    archived = timeline.archived(COMMIT_ACTIONS, plans=False, times={record.instant})
    by_action = {one.action: one.metadata for one in archived}  # Hudi may have archived it twice
    if by_action:
        return _files_named_in(next(iter(by_action.values()))) if len(by_action) == 1 else None
    if is_of_earlier_table:
        is_uncommitted = min(_archived_times(timeline), default="") < record.instant
    else:
        is_uncommitted = not record.committed and (record.removed or is_covered_by_timelines(timeline, record.instant))
    return frozenset(path for paths in timeline.savepoints().values() for path in paths) if is_uncommitted else None


def _files_named_in(metadata: dict[str, object] | None) -> frozenset[str] | None:
    return None if metadata is None else frozenset(str(stat.get("path")) for _, stat in write_stats(metadata))


def is_covered_by_timelines(timeline: Timeline, instant: str) -> bool:
    """True if the active or the archived timeline would contain ``instant`` if it had completed.

    Hudi archives the oldest commits first. Older and newer commits in the archive show that the archive has not lost
    the instant. If there are only older ones, the newest file of the archive may be lost. Then an older commit on the
    active timeline shows that the instant was not archived, unless a savepoint keeps that commit: Hudi may archive
    later commits then.
    """
    archived = _archived_times(timeline)
    if max(archived, default="") > instant:
        return min(archived) < instant
    saved = {savepoint.time for savepoint in timeline.completed_savepoints}
    return any(commit.time < instant and commit.time not in saved for commit in timeline.commits)


def _archived_times(timeline: Timeline) -> frozenset[str]:
    """Return the times of all archived commits. Reads the archive."""
    return frozenset(entry.time for entry in timeline.archived(COMMIT_ACTIONS, plans=False, metadata=False))


def list_files_of_instant(storage: TableStorage, time: str, partitions: Collection[str]) -> list[str]:
    """Return the base files in ``partitions`` with the instant ``time`` in their names."""
    listed = storage.map_parallel(storage.list_file_names, partitions)
    paths = [
        relative_path(partition, name) for partition, names in zip(partitions, listed, strict=True) for name in names
    ]
    files = ((path, parse_file_name(path)) for path in paths)
    return [path for path, file in files if file is not None and not file.is_log and file.instant == time]


def without_files_of_others(timeline: Timeline, time: str, action: str, paths: Collection[str]) -> list[str]:
    """Return those of ``paths``, base files of ``time``, that only the instant with ``action`` can have written.

    List the files before the timeline. A writer before Hudi 1.0 chooses times without a lock, so its write may have the
    time of a plan. The names of their files don't differ; only the completed write shows which files are its own.
    """
    left = list(paths)
    for other in timeline.find_other_commits(time, action):
        named = None if other.pending else _files_named_in(timeline.commit_metadata(other))
        left = [] if named is None else [path for path in left if path not in named]
    return left


def _list_instant_records(storage: TableStorage) -> Iterator[tuple[str, datetime]]:
    for info in storage.children(DIRECTORY):
        if info.type == pafs.FileType.File and info.base_name.endswith(".json"):
            yield info.base_name.removesuffix(".json"), info.mtime


def _inflight_written_at(storage: TableStorage, timeline: Timeline, instant: str) -> datetime | None:
    found = timeline.find_rewrite(instant)
    if found is None or found.inflight_file is None:
        return None
    info = storage.info(f"{timeline.directory}/{found.inflight_file}")
    return info.mtime if info.type == pafs.FileType.File else None


def _write_instant_record(storage: TableStorage, record: InstantRecord) -> None:
    storage.write(record_path(record.instant), json.dumps(asdict(record)).encode())
