# SPDX-License-Identifier: Apache-2.0
"""What a clean of lakefold's says: from where on older states can be read, and what it passes on to other cleaners.

Three parts of Hudi read the newest completed clean.

- Readers: from its earliest retained instant on, queries ``as.of.instant`` are answered and savepoints are taken. So
  that instant is never older than the commit that superseded a deleted file: Hudi would answer without its rows.
- The archiver holds back the first replacement from that instant on. An older one may leave the active timeline, and
  where its files still exist they are live again, every row of theirs twice. Where a replacement from before that
  instant has to be held back, it is listed as a savepoint that the clean knew (``promises.can_bound_archival``): from the
  oldest of these on the archiver holds back what was replaced.
- The incremental cleaner looks only at partitions that were written to from that instant on. Where that is later than
  where the table's own cleaner has to go on, the clean lists a savepoint that does not exist, and the cleaner looks at
  the whole table once.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.read.deletion_blockers import REPLACING_KINDS, can_bound_archival
from lake.formats.hudi.read.superseded import find_replaced_files
from lake.formats.hudi.timeline.timeline import CLEAN_KEY, Instant, Timeline, extra_metadata
from lake.model import TableRef

CLEANER_START_KEY = "lakefold.clean.start"
"""Where the table's own cleaner has to go on, '' where it has to look at the whole table."""
NATIVE_CLEAN_KEY = "lakefold.clean.after"
"""The table's own clean that says so, '' where there is none."""
NEWEST_DELETED_KEY = "lakefold.clean.deleted"
"""The newest commit some of whose superseded files lakefold has deleted: no state before it can be read."""
KEEP_MAX, KEEP_MAX_DEFAULT = "hoodie.keep.max.commits", 30
"""How many commits the archiver lets come together before it archives."""

SAVEPOINTS_KEY = "savepointed_timestamps"
#: A savepoint that does not exist: where the newest clean names one, Hudi's cleaner looks at the whole table once.
#: It is later than every instant, so that the archiver does not take it for one from which on it holds back.
_NONEXISTENT_SAVEPOINT = "99991231235959999"
#: How long an instant's time may be taken before its file is on the timeline: a writer takes the time first.
MAX_PUBLICATION_DELAY = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerProgress:
    """How far the table's own cleaner got.

    ``start`` is where it goes on, '' where it has to look at the whole table; ``commit`` the newest commit that it
    knew; ``clean`` the clean that says so; ``savepoints`` those that there are.
    """

    start: str = ""
    newest_commit: str = ""
    source_clean: str = ""
    savepoints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanBounds:
    """What a clean of ours says besides its files."""

    earliest_retained: str
    newest_commit: str
    extra: Mapping[str, str] = field(default_factory=dict)


def newest_clean(timeline: Timeline) -> Instant | None:
    """The completed clean that the archiver and the incremental cleaner read."""
    return next((instant for instant in reversed(timeline.completed) if instant.action == "clean"), None)


def archival_bound(timeline: Timeline, options: Mapping[str, str]) -> str:
    """The time from which on the newest clean holds replacements back from the archiver; '' where all are held.

    ``options`` are the table's ``write_options``.
    """
    clean = newest_clean(timeline)
    if clean is None:
        return ""
    plan = timeline.plan(clean) or {}
    # Without a start, as with KEEP_LATEST_FILE_VERSIONS, everything replaced before the clean is taken as gone.
    earliest = str((plan.get("earliestInstantToRetain") or {}).get("timestamp") or clean.time)
    if not can_bound_archival(timeline, options):
        return earliest
    listed = filter(None, (extra_metadata(plan).get(SAVEPOINTS_KEY) or "").split(","))
    return min([earliest, *listed])


def read_cleaner_progress(timeline: Timeline) -> CleanerProgress:
    """How far the table's own cleaner got, as the newest clean says or, where that is ours, passes on."""
    clean, saved = newest_clean(timeline), tuple(sorted(timeline.savepoints()))
    if clean is None:
        return CleanerProgress(savepoints=saved)
    record = timeline.metadata(clean) or {}
    extra = extra_metadata(record)
    if CLEAN_KEY not in extra:
        start, native = str(record.get("earliestCommitToRetain") or "").strip(), clean.time
    else:  # one of an earlier lakefold says nothing: the whole table is looked at
        start, native = extra.get(CLEANER_START_KEY, ""), extra.get(NATIVE_CLEAN_KEY, "")
    known = set(filter(None, extra.get(SAVEPOINTS_KEY, "").split(",")))
    first = min((instant.time for instant in timeline.commits), default="")
    if start < first or known - set(saved):
        start = ""  # as Hudi's cleaner sees it
    commit = str(record.get("lastCompletedCommitTimestamp") or "")
    ours_of_old = CLEAN_KEY in extra and CLEANER_START_KEY not in extra
    return CleanerProgress(
        start=start, newest_commit="" if ours_of_old else commit, source_clean=native, savepoints=saved
    )


def compute_clean_bounds(
    table: TableRef,
    storage: TableStorage,
    timeline: Timeline,
    clean: str,
    progress: CleanerProgress,
    *,
    deleted_paths: Collection[str] = (),
    superseded_by: str = "",
) -> CleanBounds:
    """What the clean of instant ``clean`` says, which deletes ``without``; call it under the table's lock.

    ``superseded_by`` is the newest commit that superseded one of these files, '' where the clean deletes none.
    """
    replaced = find_replaced_files(storage, timeline, deleted_paths)
    deleted = max(superseded_by, replaced.newest_deleted_commit, _newest_deleted_commit(timeline))
    pending = [instant.time for instant in timeline.pending if instant.kind in REPLACING_KINDS]
    held = min(time for time in (_long_before(clean), replaced.oldest_commit, *pending) if time)
    passed = deleted <= progress.start  # the table's own cleaner says so anyway
    readable = max(deleted if passed else _first_readable_after(timeline, deleted), _stated_earliest(timeline))
    apart, savepoints = can_bound_archival(timeline, table.write_options), list(progress.savepoints)
    earliest = max(readable, progress.start) or held
    if not apart:
        # Deletions keep to the order of the commits, so that only a clean of another process may have gone too far.
        # The rows of the newest state come first then.
        earliest = min(earliest, held) if superseded_by <= held else readable
    elif held < earliest:
        savepoints.append(held)
    start = progress.start
    if start < earliest:
        start = ""
        if timeline.layout != 1:  # cleaners before Hudi 1.0 fail at a savepoint that they don't find
            savepoints.append(_NONEXISTENT_SAVEPOINT)
    extra = {
        CLEAN_KEY: clean,
        CLEANER_START_KEY: start,
        NATIVE_CLEAN_KEY: progress.source_clean,
        NEWEST_DELETED_KEY: deleted,
    }
    if savepoints:
        extra[SAVEPOINTS_KEY] = ",".join(sorted(set(savepoints)))
    return CleanBounds(earliest_retained=earliest, newest_commit=progress.newest_commit, extra=extra)


def _stated_earliest(timeline: Timeline) -> str:
    """The earliest retained instant of the newest clean, '' where it has none."""
    clean = newest_clean(timeline)
    return str(((timeline.metadata(clean) if clean else None) or {}).get("earliestCommitToRetain") or "").strip()


def _newest_deleted_commit(timeline: Timeline) -> str:
    """What the newest clean of lakefold's notes under ``NEWEST_DELETED_KEY``."""
    for instant in reversed(timeline.completed):
        if instant.action == "clean":
            extra = extra_metadata(timeline.metadata(instant))
            if CLEAN_KEY in extra:
                return extra.get(NEWEST_DELETED_KEY, "")
    return ""


def _first_readable_after(timeline: Timeline, deleted: str) -> str:
    """The earliest instant that says that nothing before ``deleted`` can be read, and lets that commit be archived.

    That is a millisecond later, or ``deleted`` itself as long as it is the newest commit: queries of the newest commit
    and savepoints of it must not be refused.
    """
    if not deleted or timeline.newest_commit_time <= deleted:
        return deleted
    try:
        then = datetime.strptime(f"{deleted:0<17}"[:17] + "000", "%Y%m%d%H%M%S%f") + timedelta(milliseconds=1)
    except ValueError:  # no time, such as an instant of Hudi's bootstrap
        return deleted
    return f"{then:%Y%m%d%H%M%S%f}"[:17]


def _long_before(instant: str) -> str:
    """A time so long before ``instant`` that whatever began earlier is on the timeline."""
    then = datetime.strptime(instant[:14], "%Y%m%d%H%M%S") - MAX_PUBLICATION_DELAY
    return f"{then:%Y%m%d%H%M%S}{instant[14:]}"
