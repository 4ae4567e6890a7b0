# SPDX-License-Identifier: Apache-2.0
"""The bounds in a clean by lakefold: the oldest readable state, and the instant from which other cleaners continue.

Three parts of Hudi read the newest completed clean.

- From its earliest retained instant on, readers answer ``as.of.instant`` queries and savepoints can be created. That
  instant is therefore never older than the commit that superseded a deleted file: for an older instant Hudi would
  answer without the file's rows.
- The archiver holds back every replacement from that instant on. An older replacement may leave the active timeline; if
  its replaced files still exist, they are live again and all their rows are doubled. If an older replacement has to be
  held back, the clean lists it as a savepoint (``deletion_blockers.can_bound_archival``). The archiver then holds back
  every replacement from the oldest listed savepoint on.
- The incremental cleaner reads only partitions written to from that instant on. If the table's own cleaner has to
  continue at an earlier instant, the clean lists a savepoint that does not exist, and that cleaner reads the whole
  table once.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from lake.formats.hudi.files.cache import WeightedCache
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.pending.retries import is_try_due
from lake.formats.hudi.read.commits import plan_id_of
from lake.formats.hudi.read.deletion_blockers import REPLACING_KINDS, can_bound_archival
from lake.formats.hudi.read.restores import find_newest_overlapped
from lake.formats.hudi.read.superseded import find_replaced_files
from lake.formats.hudi.timeline.timeline import CLEAN_KEY, Instant, Timeline, extra_metadata, planned_slices
from lake.model import Concurrency, TableRef

CLEANER_START_KEY = "lakefold.clean.start"
"""The instant at which the table's own cleaner has to continue; '' if it has to read the whole table."""
NATIVE_CLEAN_KEY = "lakefold.clean.after"
"""The table's own clean that is the source of ``CLEANER_START_KEY``; '' if there is none."""
NEWEST_DELETED_KEY = "lakefold.clean.deleted"
"""The newest commit that superseded a file that lakefold has deleted: no state before this commit can be read."""
KEEP_MAX, KEEP_MAX_DEFAULT = "hoodie.keep.max.commits", 30
"""The number of commits above which the archiver archives."""

SAVEPOINTS_KEY = "savepointed_timestamps"
#: A savepoint that does not exist: if the newest clean names one, Hudi's cleaner reads the whole table once. It is
#: later than every instant, so that the archiver holds nothing back because of it.
_NONEXISTENT_SAVEPOINT = "99991231235959999"
#: the states in which ``find_passed_replacements`` found none: table, newest clean, savepoints and replacements
_unpassed_cache: WeightedCache[bool] = WeightedCache(100_000)
#: the commits of which no replaced file is left: table and fingerprint
_deleted_cache: WeightedCache[bool] = WeightedCache(100_000)
CORRECTION = "archival"
"""The subject of the tries (``pending.retries``) to correct what ``find_passed_replacements`` finds."""
#: The longest delay from the choice of an instant's time to its file on the timeline: a writer chooses the time first.
MAX_PUBLICATION_DELAY = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerProgress:
    """The progress of the table's own cleaner.

    ``start`` is the instant at which it continues, '' if it has to read the whole table. ``newest_commit`` is the
    newest commit that it recorded, ``source_clean`` the clean that records both. ``savepoints`` are the table's
    savepoints.
    """

    start: str = ""
    newest_commit: str = ""
    source_clean: str = ""
    savepoints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanBounds:
    """The bounds and the extra metadata that a clean by lakefold records besides its files."""

    earliest_retained: str
    newest_commit: str
    extra: Mapping[str, str] = field(default_factory=dict)


def newest_clean(timeline: Timeline) -> Instant | None:
    """Return the completed clean that the archiver and the incremental cleaner read."""
    return next((instant for instant in reversed(timeline.completed) if instant.action == "clean"), None)


def archival_bound(timeline: Timeline, options: Mapping[str, str]) -> str:
    """Return the instant from which on the archiver holds replacements back because of the newest clean.

    Returns '' if all are held back. ``options`` are the table's ``write_options``.
    """
    clean = newest_clean(timeline)
    return "" if clean is None else _archival_bound_of(timeline, clean, options)


def find_passing_clean(timeline: Timeline, options: Mapping[str, str], instant: str) -> Instant | None:
    """Return a pending clean that, once completed, makes the archiver hold back only replacements after ``instant``.

    Returns None if there is none. ``options`` are the table's ``write_options``.
    """
    pending = (clean for clean in timeline.pending if clean.kind == "clean")
    return next((clean for clean in pending if _archival_bound_of(timeline, clean, options) > instant), None)


def find_passed_replacements(table: TableRef, storage: TableStorage, timeline: Timeline) -> list[Instant]:
    """Return lakefold's completed clusterings that the archiver may archive although their replaced files exist.

    Hudi plans a clean without the table's lock, and saves the plan afterwards. If a clustering commits in between, no
    check finds the clean, and the clean does not delete the replaced files. Once it has completed, the archiver counts
    them as deleted. Needs no lock.

    Returns none on a table of a single writer, which does not run while lakefold works, and none if the correction has
    failed, until its next try is due (``pending.retries``).
    """
    clean = newest_clean(timeline)
    replacements = [commit for commit in timeline.commits if commit.action == "replacecommit"]
    if table.concurrency is not Concurrency.OCC or clean is None or not replacements:
        return []
    if not is_try_due(storage, CORRECTION):
        return []
    saved = tuple(instant.time for instant in timeline.completed_savepoints)
    key = storage.location, timeline.fingerprint(clean), saved, tuple(commit.time for commit in replacements)
    if _unpassed_cache.get(key) is not None:
        return []
    found = _find_passed_by(storage, timeline, clean, replacements, table.write_options)
    if not found:
        _unpassed_cache.put(key, True, 1 + len(saved) + len(replacements))
    return found


def _find_passed_by(
    storage: TableStorage,
    timeline: Timeline,
    clean: Instant,
    replacements: Collection[Instant],
    options: Mapping[str, str],
) -> list[Instant]:
    """Return those of ``replacements`` that ``clean`` passed although replaced files exist that no savepoint keeps.

    The savepoints, which name all files of the table, are read last.
    """
    own = [commit for commit in replacements if plan_id_of(timeline, commit) is not None]
    if not own or CLEAN_KEY in extra_metadata(timeline.metadata(clean)):
        return []
    bound = _archival_bound_of(timeline, clean, options)
    there = {commit: _existing_inputs(storage, timeline, commit) for commit in own if commit.time < bound}
    if not any(there.values()):
        return []
    saved = {path for paths in timeline.savepoints().values() for path in paths}
    return [commit for commit, paths in there.items() if any(path not in saved for path in paths)]


def _existing_inputs(storage: TableStorage, timeline: Timeline, commit: Instant) -> Collection[str]:
    """Return the replaced files of ``commit`` in storage. Files that are gone never return, so they are remembered."""
    key = storage.location, timeline.fingerprint(commit)
    if _deleted_cache.get(key) is not None:
        return ()
    found = storage.sizes(_planned_paths(timeline, commit))
    if not found:
        _deleted_cache.put(key, True, 1)
    return found.keys()


def _planned_paths(timeline: Timeline, commit: Instant) -> list[str]:
    return [path for entry in planned_slices(timeline.plan(commit) or {}) for path in entry.paths]


def _archival_bound_of(timeline: Timeline, clean: Instant, options: Mapping[str, str]) -> str:
    plan = timeline.plan(clean) or {}
    # Without an earliest instant, as with KEEP_LATEST_FILE_VERSIONS, Hudi treats all files replaced before the clean as
    # deleted.
    earliest = str((plan.get("earliestInstantToRetain") or {}).get("timestamp") or clean.time)
    if not can_bound_archival(timeline, options):
        return earliest
    listed = filter(None, (extra_metadata(plan).get(SAVEPOINTS_KEY) or "").split(","))
    return min([earliest, *listed])


def read_cleaner_progress(timeline: Timeline) -> CleanerProgress:
    """Return the progress of the table's own cleaner from the newest clean; cleans by lakefold repeat it."""
    clean, saved = newest_clean(timeline), tuple(sorted(timeline.savepoints()))
    if clean is None:
        return CleanerProgress(savepoints=saved)
    record = timeline.metadata(clean) or {}
    extra = extra_metadata(record)
    if CLEAN_KEY not in extra:
        start, native = str(record.get("earliestCommitToRetain") or "").strip(), clean.time
    else:  # a clean by an earlier lakefold lacks the key: the whole table is read
        start, native = extra.get(CLEANER_START_KEY, ""), extra.get(NATIVE_CLEAN_KEY, "")
    known = set(filter(None, extra.get(SAVEPOINTS_KEY, "").split(",")))
    first = min((instant.time for instant in timeline.commits), default="")
    if start < first or known - set(saved):
        start = ""  # as Hudi's cleaner decides
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
    """Return the bounds of clean ``clean``, which deletes ``deleted_paths``; call it under the table's lock.

    ``superseded_by`` is the newest commit that superseded one of these files, '' if the clean deletes none.
    """
    replaced = find_replaced_files(storage, timeline, deleted_paths)
    deleted = max(superseded_by, replaced.newest_deleted_commit, _newest_deleted_commit(timeline))
    pending = [instant.time for instant in timeline.pending if instant.kind in REPLACING_KINDS]
    replacing = min((time for time in (replaced.oldest_commit, *pending) if time), default="9" * 17)
    held = min(_long_before(clean), replacing)
    # A restore to a commit that ran within one of the deleted commits would need the deleted files.
    overlapped = [newest for time, newest in find_newest_overlapped(timeline).items() if time <= deleted]
    last = max([deleted, *overlapped])
    # Hudi allows a savepoint of the very bound that the table's own cleaner records. So this bound has to be later than
    # such a commit.
    is_before_start = deleted <= progress.start and all(newest < progress.start for newest in overlapped)
    after_last = max(_first_readable_after(timeline, last), stated_earliest(timeline))
    readable = max(last, stated_earliest(timeline)) if is_before_start else after_last
    has_archiver_bound, savepoints = can_bound_archival(timeline, table.write_options), list(progress.savepoints)
    earliest = max(readable, progress.start) or held
    if not has_archiver_bound:
        # Without a bound of its own for the archiver, both bounds are one instant. lakefold deletes files in the order
        # of their commits. Only if another process deleted out of order do the bounds conflict; then the archiver's
        # bound wins, so that the rows of the newest state are right. The bound for readers wins against instants that
        # are not on the timeline yet, if a restore to an earlier instant would need deleted files.
        if overlapped and after_last <= replacing:
            held = max(held, after_last)
        earliest = min(earliest, held) if superseded_by <= held else readable
    elif held < earliest:
        savepoints.append(held)
    start = progress.start
    if start < earliest:
        start = ""
        if timeline.layout != 1:  # cleaners before Hudi 1.0 fail at a missing savepoint
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


def may_pass_unseen_replacement(table: TableRef, timeline: Timeline, clean: str, superseded_by: str) -> bool:
    """True if the archiver may archive a replacement too early that is not on the timeline yet; see ``clean_files``.

    A clean has one bound on a table whose cleans can't bound archival, and this bound is later than ``superseded_by``.
    A replacement that gets an earlier instant must be on the timeline by then.
    """
    if table.concurrency is not Concurrency.OCC:  # a single writer does not run meanwhile
        return False
    return superseded_by > _long_before(clean) and not can_bound_archival(timeline, table.write_options)


def stated_earliest(timeline: Timeline) -> str:
    """Return the earliest retained instant of the newest clean; '' if it has none."""
    clean = newest_clean(timeline)
    return str(((timeline.metadata(clean) if clean else None) or {}).get("earliestCommitToRetain") or "").strip()


def _newest_deleted_commit(timeline: Timeline) -> str:
    """Return the ``NEWEST_DELETED_KEY`` of the newest clean by lakefold; '' if there is none."""
    for instant in reversed(timeline.completed):
        if instant.action == "clean":
            extra = extra_metadata(timeline.metadata(instant))
            if CLEAN_KEY in extra:
                return extra.get(NEWEST_DELETED_KEY, "")
    return ""


def _first_readable_after(timeline: Timeline, deleted: str) -> str:
    """Return the earliest instant that makes all states before ``deleted`` unreadable and lets that commit be archived.

    This is one millisecond later, or ``deleted`` itself while it is the newest commit: queries and savepoints of the
    newest commit must not be refused.
    """
    if not deleted or timeline.newest_commit_time <= deleted:
        return deleted
    try:
        then = datetime.strptime(f"{deleted:0<17}"[:17] + "000", "%Y%m%d%H%M%S%f") + timedelta(milliseconds=1)
    except ValueError:  # not a time, such as an instant of Hudi's bootstrap
        return deleted
    return f"{then:%Y%m%d%H%M%S%f}"[:17]


def _long_before(instant: str) -> str:
    """Return a time so long before ``instant`` that every instant begun earlier is on the timeline."""
    then = datetime.strptime(instant[:14], "%Y%m%d%H%M%S") - MAX_PUBLICATION_DELAY
    return f"{then:%Y%m%d%H%M%S}{instant[14:]}"
