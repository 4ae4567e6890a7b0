# SPDX-License-Identifier: Apache-2.0
"""From where on a clean says that replaced files may still exist, and what it passes on to the next cleaner.

Two of Hudi's services read the newest completed clean. The archiver holds back the first replacement from that start
on; an older one may leave the active timeline, and where its files still exist they are live again, every row of theirs
twice. The incremental cleaner looks only at partitions that were written to from that start on. So the start is never
later than a replacement whose files exist or that is still pending, and it never moves past what the table's own
cleaner has not looked at, unless that cleaner is told to look at the whole table once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from lake.formats.hudi.files.names import data_file, join
from lake.formats.hudi.files.storage import Storage
from lake.formats.hudi.timeline.timeline import CLEAN_KEY, Instant, Timeline, extra_metadata
from lake.model import TableRef

START_KEY = "lakefold.clean.start"
"""Where the table's own cleaner has to go on, '' where it has to look at the whole table."""
NATIVE_KEY = "lakefold.clean.after"
"""The table's own clean that says so, '' where there is none."""
KEEP_MAX, KEEP_MAX_DEFAULT = "hoodie.keep.max.commits", 30
"""How many commits the archiver lets come together before it archives."""

SAVEPOINTS_KEY = "savepointed_timestamps"
#: A savepoint that does not exist: where the newest clean names one, Hudi's cleaner looks at the whole table once.
#: It is later than every instant, so that the archiver does not take it for one that holds it back.
_LOOK_AT_ALL = "99991231235959999"
_FIRST = "0" * 17
#: How long an instant's time may be taken before its file is on the timeline: a writer takes the time first.
UNSEEN = timedelta(minutes=10)
_REPLACING = frozenset({"clustering", "replacecommit"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the table's own cleaner got.

    ``start`` is where it goes on, '' where it has to look at the whole table; ``commit`` the newest commit that it
    knew; ``clean`` the clean that says so; ``savepoints`` those that there are.
    """

    start: str = ""
    commit: str = ""
    clean: str = ""
    savepoints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanStart:
    """What a clean of ours says besides its files."""

    earliest: str
    commit: str
    extra: Mapping[str, str] = field(default_factory=dict)


def oldest_replacement_on_disk(storage: Storage, timeline: Timeline, without: frozenset[str] = frozenset()) -> str:
    """The oldest completed replacecommit some of whose replaced files exist, not counting ``without``; '' if none."""
    files: dict[str, dict[str, set[str]]] = {}
    for instant in timeline.completed:  # by time
        if instant.action != "replacecommit":
            continue
        record = timeline.metadata(instant) or {}
        for partition, file_ids in (record.get("partitionToReplaceFileIds") or {}).items():
            if partition not in files:
                files[partition] = _paths_by_file_id(storage, partition)
            if any(files[partition].get(file_id, frozenset()) - without for file_id in file_ids):
                return instant.time
    return ""


def _paths_by_file_id(storage: Storage, partition: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name in storage.names(partition):
        path = join(partition, name)
        file = data_file(path)
        if file is not None:
            found.setdefault(file.file_id, set()).add(path)
    return found


def newest_clean(timeline: Timeline) -> Instant | None:
    """The completed clean that the archiver and the incremental cleaner read."""
    return next((instant for instant in reversed(timeline.completed) if instant.action == "clean"), None)


def held_from(timeline: Timeline) -> str:
    """The time from which on the newest clean holds replacements back from the archiver; '' where all are held."""
    clean = newest_clean(timeline)
    if clean is None:
        return ""
    # Without a start, as with KEEP_LATEST_FILE_VERSIONS, everything replaced before the clean is taken as gone.
    return str(((timeline.plan(clean) or {}).get("earliestInstantToRetain") or {}).get("timestamp") or clean.time)


def native_progress(timeline: Timeline) -> Progress:
    """How far the table's own cleaner got, as the newest clean says or, where that is ours, passes on."""
    clean, saved = newest_clean(timeline), tuple(sorted(timeline.savepoints()))
    if clean is None:
        return Progress(savepoints=saved)
    record = timeline.metadata(clean) or {}
    extra = extra_metadata(record)
    if CLEAN_KEY not in extra:
        start, native = str(record.get("earliestCommitToRetain") or "").strip(), clean.time
    else:  # one of an earlier lakefold says nothing: the whole table is looked at
        start, native = extra.get(START_KEY, ""), extra.get(NATIVE_KEY, "")
    known = set(filter(None, extra.get(SAVEPOINTS_KEY, "").split(",")))
    first = min((instant.time for instant in timeline.commits), default="")
    if start < first or known - set(saved):
        start = ""  # as Hudi's cleaner sees it
    commit = str(record.get("lastCompletedCommitTimestamp") or "")
    ours_of_old = CLEAN_KEY in extra and START_KEY not in extra
    return Progress(start=start, commit="" if ours_of_old else commit, clean=native, savepoints=saved)


def clean_start(
    table: TableRef,
    storage: Storage,
    timeline: Timeline,
    clean: str,
    progress: Progress,
    without: frozenset[str] = frozenset(),
) -> CleanStart:
    """What the clean of instant ``clean`` says, which deletes ``without``; call it under the table's lock."""
    candidates = [instant.time for instant in timeline.pending if instant.kind in _REPLACING]
    candidates += [_before(clean), oldest_replacement_on_disk(storage, timeline, without)]
    safe = min(time for time in candidates if time)
    start, savepoints = progress.start, list(progress.savepoints)
    most = int(table.write_options.get(KEEP_MAX, KEEP_MAX_DEFAULT))
    # A cleaner that is at work moves on with each of its cleans; one that was switched off would stop the archiver.
    silent = sum(instant.time > progress.clean for instant in timeline.commits) > most
    if start and (start >= safe or not silent):
        earliest = min(start, safe)
    elif timeline.layout != 1:
        start, earliest = "", safe
        savepoints.append(_LOOK_AT_ALL)
    else:  # cleaners before Hudi 1.0 fail at a savepoint that they don't find
        start, earliest = "", safe if silent else _FIRST
    extra = {CLEAN_KEY: clean, START_KEY: start, NATIVE_KEY: progress.clean}
    if savepoints:
        extra[SAVEPOINTS_KEY] = ",".join(savepoints)
    return CleanStart(earliest=earliest, commit=progress.commit, extra=extra)


def _before(instant: str) -> str:
    """A time so long before ``instant`` that whatever began earlier is on the timeline."""
    then = datetime.strptime(instant[:14], "%Y%m%d%H%M%S") - UNSEEN
    return f"{then:%Y%m%d%H%M%S}{instant[14:]}"
