# SPDX-License-Identifier: Apache-2.0
"""Files that are written under an instant of lakefold's after it was withdrawn, or after its commit.

An executor that slept, a Java process that outlives its Python and a task on another host write on, whatever became of
their instant meanwhile. No rollback knows of such files, and nobody who wrote them need be there to delete them. Of a
withdrawn instant they lie about until the active timeline begins after it; then, and at once under an instant that is
completed, readers that list directories take them for committed, every row of theirs twice.

So each instant that lakefold publishes or begins is noted in the table, with its partitions, before anything can be
written under it: one small file at ``.hoodie/.lakefold/instants``, beside the attempts, which outlives the instant and
whoever worked on it. By these notes the sweep of any lakefold looks again.
"""

import json
import logging
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta

from pyarrow import fs as pafs

from lake.errors import LakefoldError
from lake.formats.hudi.files.names import parse_file_name, relative_path
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.pending.markers import has_markers
from lake.formats.hudi.timeline.timeline import COMMIT_ACTIONS, Instant, Timeline, write_stats
from lake.plan import STAGED_WATCH_PERIOD

log = logging.getLogger(__name__)
DIRECTORY = ".hoodie/.lakefold/instants"
#: the first looks are so far apart, later ones a quarter of the time since then: some fifty in all
_FIRST_CHECK_INTERVAL = timedelta(seconds=24)
_CHECK_INTERVAL_GROWTH = 1.25

#: the last look of this process at each instant of each table: the note's time then, and how old that was
_last_checks: dict[tuple[str, str], tuple[datetime, timedelta]] = {}
_MAX_LAST_CHECKS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantRecord:
    """Where the files of ``instant`` are, and what lakefold itself did with it.

    ``begun_at`` is the time of the inflight file with which lakefold began it last, null before. ``committed`` tells
    that lakefold saw it completed.
    """

    instant: str
    partitions: tuple[str, ...]
    begun_at: str | None = None
    committed: bool = False


def record_path(instant: str) -> str:
    """Where the note on an instant is; it is written anew whenever lakefold does something with the instant."""
    return f"{DIRECTORY}/{instant}.json"


def record_instant(storage: TableStorage, timeline: Timeline, instant: str, partitions: Collection[str]) -> None:
    """Note an instant that is about to be published or begun, and forget those past ``STAGED_WATCH_PERIOD``; under the lock."""
    pending = {entry.time for entry in timeline.pending}
    for time, noted_at in _list_instant_records(storage):
        if time not in pending and datetime.now(UTC) - noted_at > STAGED_WATCH_PERIOD:
            storage.delete(record_path(time))
    _write_instant_record(storage, InstantRecord(instant=instant, partitions=tuple(sorted(partitions))))


def record_begin(storage: TableStorage, timeline: Timeline, instant: str) -> None:
    """Note that lakefold has just begun ``instant``; call it under the lock."""
    known = read_instant_record(storage, instant)
    if known is not None:
        _write_instant_record(storage, replace(known, begun_at=_inflight_written_at(storage, timeline, instant)))


def record_withdrawal(storage: TableStorage, instant: str) -> None:
    """Note that ``instant`` has just been withdrawn, from when on looks at it are counted; call it under the lock."""
    known = read_instant_record(storage, instant)
    if known is not None:
        _write_instant_record(storage, replace(known, begun_at=None))


def record_commit(storage: TableStorage, instant: str) -> None:
    """Note that ``instant`` is completed; never raises."""
    try:
        known = read_instant_record(storage, instant)
        if known is not None:
            _write_instant_record(storage, replace(known, committed=True))
    except (LakefoldError, OSError) as error:
        log.warning("%s: that it is committed could not be noted: %s", record_path(instant), error)


def read_instant_record(storage: TableStorage, instant: str) -> InstantRecord | None:
    """The note on an instant; None without one, as of a lakefold from before there were any."""
    with suppress(FileNotFoundError, ValueError, TypeError, KeyError):
        values = json.loads(storage.read(record_path(instant)))
        return InstantRecord(**values | {"partitions": tuple(values["partitions"])})
    return None


def is_begun_by_writer(storage: TableStorage, timeline: Timeline, instant: str) -> bool:
    """Whether somebody else than lakefold began the inflight ``instant``: a writer executes whatever is pending.

    So it looks as well where a lakefold died before it could note that it had begun.
    """
    known = read_instant_record(storage, instant)
    return known is not None and _inflight_written_at(storage, timeline, instant) != known.begun_at


def find_instants_with_late_files(storage: TableStorage, timeline: Timeline) -> list[str]:
    """Instants that are over and under which there are files that belong to no commit; only those that are due.

    No lock is needed to find them, and nothing may be deleted without a second look under the lock.
    """
    found = []
    pending = {entry.time for entry in timeline.pending}
    for time, noted_at in _list_instant_records(storage):
        age = max(timedelta(), datetime.now(UTC) - noted_at)
        key = storage.location, time
        if time in pending or age > STAGED_WATCH_PERIOD or not _is_due(key, noted_at, age):
            continue
        known = read_instant_record(storage, time)
        if known is not None and (list_late_files(storage, timeline, known) or has_markers(storage, time)):
            found.append(time)  # looked at again until there are none
            continue
        if len(_last_checks) >= _MAX_LAST_CHECKS:
            _last_checks.clear()
        _last_checks[key] = noted_at, age
    return found


def _is_due(key: tuple[str, str], recorded_at: datetime, age: timedelta) -> bool:
    seen, at_age = _last_checks.get(key, (None, timedelta()))
    return seen != recorded_at or age >= max(at_age, _FIRST_CHECK_INTERVAL) * _CHECK_INTERVAL_GROWTH


def list_late_files(storage: TableStorage, timeline: Timeline, record: InstantRecord) -> list[str]:
    """Base files of an instant that is over which belong to no commit; none while it is pending."""
    written = list_files_of_instant(storage, record.instant, record.partitions)
    instant = timeline.find(record.instant)
    if not written or (instant is not None and instant.pending):
        return []
    mine = _committed_files(timeline, record, instant)
    return [] if mine is None else [path for path in written if path not in mine]


def _committed_files(timeline: Timeline, record: InstantRecord, instant: Instant | None) -> frozenset[str] | None:
    """Files of the instant that have an owner; None where nobody can tell."""
    if instant is not None:
        return _files_named_in(timeline.commit_metadata(instant))
    # The active timeline was listed before: what is archived meanwhile is in both, not in none.
    for archived in timeline.archived(plans=False, times={record.instant}):
        return _files_named_in(archived.metadata)
    if record.committed or not _is_covered_by_archive(timeline, record.instant):
        return None
    return frozenset(path for paths in timeline.savepoints().values() for path in paths)


def _files_named_in(metadata: dict[str, object] | None) -> frozenset[str] | None:
    return None if metadata is None else frozenset(str(stat.get("path")) for _, stat in write_stats(metadata))


def _is_covered_by_archive(timeline: Timeline, instant: str) -> bool:
    """Whether the archived timeline would know ``instant``, had it ever been completed."""
    archived = [entry.time for entry in timeline.archived(COMMIT_ACTIONS, plans=False, metadata=False)]
    return min(archived, default="") < instant


def list_files_of_instant(storage: TableStorage, time: str, partitions: Collection[str]) -> list[str]:
    """The base files in ``partitions`` that carry the instant ``time``."""
    listed = storage.map_parallel(storage.list_file_names, partitions)
    paths = [
        relative_path(partition, name) for partition, names in zip(partitions, listed, strict=True) for name in names
    ]
    files = ((path, parse_file_name(path)) for path in paths)
    return [path for path, file in files if file is not None and not file.is_log and file.instant == time]


def _list_instant_records(storage: TableStorage) -> Iterator[tuple[str, datetime]]:
    for info in storage.children(DIRECTORY):
        if info.type == pafs.FileType.File and info.base_name.endswith(".json"):
            yield info.base_name.removesuffix(".json"), info.mtime


def _inflight_written_at(storage: TableStorage, timeline: Timeline, instant: str) -> str | None:
    found = timeline.find(instant)
    if found is None or found.inflight_file is None:
        return None
    info = storage.info(f"{timeline.directory}/{found.inflight_file}")
    return info.mtime.isoformat() if info.type == pafs.FileType.File else None


def _write_instant_record(storage: TableStorage, record: InstantRecord) -> None:
    storage.write(record_path(record.instant), json.dumps(asdict(record)).encode())
