# SPDX-License-Identifier: Apache-2.0
"""The cleans by lakefold: they delete exactly the named files, through Hudi's clean action.

Every clean plan has the earliest instant whose state can be read (``compute_clean_bounds``). Without this instant
Hudi's archiver treats all files replaced before the clean as deleted and archives commits whose replaced files still
exist. These files become live again, and all their rows are doubled.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from lake.errors import LakefoldError, Transient
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.names import relative_path
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.jvm.errors import translated_errors
from lake.formats.hudi.pending.actions import WRITER_TIMEOUT
from lake.formats.hudi.pending.late_files import record_instant, record_withdrawal
from lake.formats.hudi.pending.retries import is_try_due, record_failed_try, record_success
from lake.formats.hudi.plans.clean_bounds import (
    CORRECTION,
    MAX_PUBLICATION_DELAY,
    NEWEST_DELETED_KEY,
    CleanBounds,
    CleanerProgress,
    archival_bound,
    compute_clean_bounds,
    find_passed_replacements,
    find_passing_clean,
    may_pass_unseen_replacement,
    read_cleaner_progress,
)
from lake.formats.hudi.plans.preconditions import (
    OwnInstant,
    check_preconditions,
    unchanged_instant_check,
    unchanged_timeline_check,
)
from lake.formats.hudi.plans.requests import delete_request
from lake.formats.hudi.read.deletion_blockers import AUTOMATIC_CLEAN_KEY
from lake.formats.hudi.timeline.timeline import CLEAN_KEY, Instant, Timeline, extra_metadata, planned_slices
from lake.model import TableRef
from lake.units import format_duration

log = logging.getLogger(__name__)
_CLEANING = "cleaning"
_WITHDRAWING = "withdrawing a clean"
#: a clean by lakefold holds the table's lock; if it is pending for longer than this, its process probably died
_MAX_CLEAN_DURATION = timedelta(minutes=1)
#: maximum number of files of one clean plan: the table's lock is held while they are deleted
MAX_FILES_PER_CLEAN = 1000
#: how long a commit waits for the end of a clean by another process
PASSING_CLEAN_TIMEOUT = timedelta(seconds=60)
_PASSING_CLEAN_POLL_SECONDS = 0.2


def clean_files(
    client: HudiClient,
    timeline: Timeline,
    paths: Mapping[str, Sequence[str]],
    progress: CleanerProgress,
    *,
    superseded_by: str,
    partitions: Sequence[str] = (),
    fence: Callable[[], None] = lambda: None,
) -> None:
    """Delete ``paths``, by partition, and whole ``partitions`` by one clean; call it under the lock.

    The files were chosen on ``timeline``; raises Transient if the timeline has changed since. ``progress`` is the
    progress of the table's own cleaner after the clean. ``superseded_by`` is the newest commit that superseded one of
    the files, '' if no file is deleted. ``fence`` is the last check that the deletion still belongs to the caller.

    Logs a warning if the files were replaced so recently that a writer's replacement may have an earlier instant and
    not be on the timeline yet. The archiver then counts the files that this replacement replaces as deleted: if it
    archives the replacement before the next clean, all their rows are read twice.
    """
    instant = client.new_instant()
    if may_pass_unseen_replacement(client.table, timeline, instant, superseded_by):
        log.warning(
            "%s: files are deleted less than %s after commit %s replaced them; files that a writer is replacing just "
            "now may be read again later, and their rows twice. Set the table's retention to %s or longer",
            client.table.name,
            format_duration(MAX_PUBLICATION_DELAY),
            superseded_by,
            format_duration(MAX_PUBLICATION_DELAY),
        )
    gone = frozenset(path for files in paths.values() for path in files)
    start = compute_clean_bounds(
        client.table, client.storage, timeline, instant, progress, deleted_paths=gone, superseded_by=superseded_by
    )
    publish_clean(client, timeline, instant, paths, start, partitions=partitions, fence=fence)
    if gone or partitions:
        _refuse_new_savepoint(client, timeline, instant)
    client.run_clean(instant)


def _refuse_new_savepoint(client: HudiClient, before: Timeline, clean: str) -> None:
    """Withdraw the requested ``clean`` and raise Transient if a savepoint was begun since ``before`` was listed.

    Hudi creates a savepoint without a lock: it reads the earliest retained instant of the newest clean, lists files,
    and only then writes the savepoint to the timeline. A savepoint that begins after the clean is on the timeline gets
    the clean's bound. This check misses only a savepoint for which Hudi is still listing files when the clean begins to
    delete.
    """
    now = client.read_timeline()
    known = {instant.time for instant in before.completed_savepoints}
    saved = next((i for i in now.instants if i.action == "savepoint" and (i.pending or i.time not in known)), None)
    if saved is None:
        return
    requested = now.find(clean, action="clean")
    if requested is not None:
        withdraw_clean(client, now, PendingClean(instant=requested, paths={}))
    raise Transient(
        f"{client.table.name}: savepoint {saved.time} was begun while a clean was being published; nothing was "
        "deleted, and the deletion is tried again"
    )


def withdraw_pending_cleans(client: HudiClient, timeline: Timeline, instants: Collection[str] | None = None) -> bool:
    """Withdraw the pending cleans by lakefold; call it under the lock. Returns whether there were any.

    If ``instants`` are given, only these are withdrawn. A clean by lakefold runs entirely under the lock, so the
    lakefold process of a pending clean has ended. But a writer's cleaner executes every pending clean without the lock:
    if it executes one that is withdrawn here, it fails after its commit. So Transient is raised, before anything is
    withdrawn, if a writer may be executing one of the cleans.

    If the clean had begun, a new clean reports its deleted files to readers and to the metadata table. The new clean
    runs before the withdrawal: only the pending plan lists the deleted files.
    """
    pending = [c for c in list_pending_cleans(timeline) if instants is None or c.instant.time in instants]
    for clean in pending:
        if _may_be_executed_by_writer(client.table, timeline, clean.instant):
            raise Transient(
                f"{client.table.name}: a writer's cleaner may be executing the pending clean {clean.instant.time}; "
                f"unless it ends, lakefold withdraws it {format_duration(WRITER_TIMEOUT)} after its beginning. If no "
                f'writer cleans this table, set {AUTOMATIC_CLEAN_KEY} = "false" in its write_options'
            )
    for clean in pending:
        deleted = find_deleted_files(client, clean)
        if deleted:
            now = client.read_timeline()
            newest = clean.extra.get(NEWEST_DELETED_KEY, "")
            clean_files(client, now, deleted, read_cleaner_progress(now), superseded_by=newest)
        withdraw_clean(client, timeline, clean)
    return bool(pending)


def _may_be_executed_by_writer(table: TableRef, timeline: Timeline, clean: Instant) -> bool:
    """True if a writer's cleaner may be executing the pending ``clean``, which was begun within ``WRITER_TIMEOUT``.

    A writer's cleaner also executes a clean that a killed lakefold had begun, and does not change the inflight file. So
    it does not matter which of the two began the clean. False if no writer cleans the table (``AUTOMATIC_CLEAN_KEY``).
    """
    if clean.inflight_file is None or table.write_options.get(AUTOMATIC_CLEAN_KEY, "").lower() == "false":
        return False
    return not _is_older(timeline, clean.inflight_file, WRITER_TIMEOUT)


def _is_older(timeline: Timeline, name: str | None, age: timedelta) -> bool:
    now = datetime.now(UTC)
    return name is None or now - (timeline.modified_at(name) or now) > age


def find_abandoned_cleans(table: TableRef, storage: TableStorage, timeline: Timeline) -> list[str]:
    """Return the pending cleans by lakefold that have been pending for longer than a clean takes. Needs no lock.

    Writers' cleaners execute every pending clean, whatever has happened to the table since it was planned: its owner
    may have rolled back the commit that replaced the files, or have saved them. A clean that a writer may be executing
    is left out. Returns none if the withdrawal failed, until its next try is due.
    """
    if not is_try_due(storage, _WITHDRAWING):
        return []
    return [
        clean.instant.time
        for clean in list_pending_cleans(timeline)
        if _is_older(timeline, clean.instant.requested_file, _MAX_CLEAN_DURATION)
        and not _may_be_executed_by_writer(table, timeline, clean.instant)
    ]


def withdraw_abandoned_cleans(client: HudiClient) -> None:
    """Withdraw the cleans of ``find_abandoned_cleans``. If that fails, the next try is delayed."""
    if not find_abandoned_cleans(client.table, client.storage, client.read_timeline()):
        return
    try:
        with translated_errors(client.table, _WITHDRAWING), client.locked(_WITHDRAWING):
            timeline = client.read_timeline()
            withdraw_pending_cleans(client, timeline, find_abandoned_cleans(client.table, client.storage, timeline))
    except LakefoldError:
        record_failed_try(client.storage, _WITHDRAWING)
        raise
    record_success(client.storage, _WITHDRAWING)
    log.warning("%s: a cleaner was killed and had left its plan; the plan is withdrawn", client.table.name)


def hold_back_archival(client: HudiClient, timeline: Timeline, instant: str, partition: str) -> None:
    """Make the archiver hold back the pending replacement ``instant`` after its completion; call it under the lock.

    A clean by another process may have passed the instant while it was pending, as cleans by hours and by file versions
    do. A clean in ``partition`` that deletes no file then corrects this. Raises Transient while such a clean is
    pending: it would end after the correction.
    """
    refuse_passing_clean(client, timeline, instant)
    if archival_bound(timeline, client.table.write_options) > instant:
        clean_files(client, timeline, {partition: ()}, read_cleaner_progress(timeline), superseded_by="")


def hold_back_passed_replacements(client: HudiClient) -> None:
    """Make the archiver hold back the commits of ``find_passed_replacements``, by a clean that deletes no file.

    Raises Transient or Rejected if that is impossible now; the next try is then delayed.
    """
    if not find_passed_replacements(client.table, client.storage, client.read_timeline()):
        return
    try:
        with translated_errors(client.table, _CLEANING), client.locked(_CLEANING):
            _hold_back_now(client)
    except LakefoldError:
        record_failed_try(client.storage, CORRECTION)
        raise
    record_success(client.storage, CORRECTION)


def _hold_back_now(client: HudiClient) -> None:
    timeline = client.read_timeline()
    passed = find_passed_replacements(client.table, client.storage, timeline)
    if passed:
        partition = min(entry.partition for entry in planned_slices(timeline.plan(passed[0]) or {}))
        clean_files(client, timeline, {partition: ()}, read_cleaner_progress(timeline), superseded_by="")
        log.warning(
            "%s: a clean by another process had let commit %s be archived before its replaced files are deleted; "
            "corrected",
            client.table.name,
            passed[0].time,
        )


def await_passing_clean(client: HudiClient, instant: str) -> None:
    """Wait until no pending clean passes the pending replacement ``instant``, at most ``PASSING_CLEAN_TIMEOUT``.

    Call it without the lock, which the clean needs to end.
    """
    deadline = time.monotonic() + PASSING_CLEAN_TIMEOUT.total_seconds()
    while time.monotonic() < deadline:
        if find_passing_clean(client.read_timeline(), client.table.write_options, instant) is None:
            return
        time.sleep(_PASSING_CLEAN_POLL_SECONDS)


def refuse_passing_clean(client: HudiClient, timeline: Timeline, instant: str) -> None:
    """Raise Transient if a pending clean passes the pending replacement ``instant``; see ``hold_back_archival``."""
    clean = find_passing_clean(timeline, client.table.write_options, instant)
    if clean is not None:
        raise Transient(
            f"{client.table.name}: the pending clean {clean.time} counts files as deleted that {instant} replaces; the "
            "plan is tried again. If the process of that clean died, the next clean of the table's writer finishes it"
        )


def publish_clean(
    client: HudiClient,
    timeline: Timeline,
    instant: str,
    paths: Mapping[str, Sequence[str]],
    bounds: CleanBounds,
    *,
    partitions: Sequence[str] = (),
    fence: Callable[[], None] = lambda: None,
) -> None:
    """Write the requested clean ``instant``; call it under the lock."""
    kept = timeline.find(bounds.earliest_retained)
    record: dict[str, object] = {
        "earliestInstantToRetain": {
            "timestamp": bounds.earliest_retained,
            "action": kept.action if kept else "replacecommit",
            "state": "COMPLETED",
        },
        "lastCompletedCommitTimestamp": bounds.newest_commit,
        "policy": "KEEP_LATEST_COMMITS",
        "filesToBeDeletedPerPartition": {},
        "filePathsToBeDeletedPerPartition": {
            partition: [{"filePath": f"{client.base}/{path}", "isBootstrapBaseFile": False} for path in files]
            for partition, files in paths.items()
        },
        "partitionsToBeDeleted": list(partitions),
        "version": 2,
        "extraMetadata": dict(bounds.extra),
    }
    requested = client.meta.getInstantGenerator().getCleanRequestedInstant(instant)
    plan = client.avro_object("HoodieCleanerPlan", record)
    check_preconditions(
        client,
        _CLEANING,
        own=OwnInstant(time=instant),
        check=unchanged_timeline_check(client, timeline, _CLEANING),
        fence=fence,
    )
    client.meta.getActiveTimeline().saveToCleanRequested(requested, client.option_of(plan))


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingClean:
    """A pending clean by lakefold: its files by partition, and the extra metadata of its plan."""

    instant: Instant
    paths: Mapping[str, Sequence[str]]
    extra: Mapping[str, str] = field(default_factory=dict)


def list_pending_cleans(timeline: Timeline) -> list[PendingClean]:
    """Return the pending cleans by lakefold, sorted by time."""
    found = []
    for instant in timeline.pending:
        if instant.kind == "clean":
            plan = timeline.plan(instant) or {}
            extra = extra_metadata(plan)
            if CLEAN_KEY in extra:
                found.append(PendingClean(instant=instant, paths=planned_deletions(plan), extra=extra))
    return found


def planned_deletions(plan: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the files that a clean plan deletes, by partition, as paths relative to the table."""
    return {
        partition: [relative_path(partition, str(entry["filePath"]).rsplit("/", 1)[-1]) for entry in entries]
        for partition, entries in (plan.get("filePathsToBeDeletedPerPartition") or {}).items()
    }


def find_deleted_files(client: HudiClient, clean: PendingClean) -> dict[str, list[str]]:
    """Return the files of a pending clean that are no longer in storage, by partition."""
    there = client.storage.sizes([path for paths in clean.paths.values() for path in paths])
    deleted = {name: [path for path in paths if path not in there] for name, paths in clean.paths.items()}
    return {name: paths for name, paths in deleted.items() if paths}


def withdraw_clean(client: HudiClient, timeline: Timeline, clean: PendingClean) -> None:
    """Remove a pending clean by lakefold from the timeline; call it under the table's lock.

    Raises Transient if a writer began the clean meanwhile: the clean then stays, with its request.
    """
    instant = clean.instant
    record_instant(client.storage, timeline, instant.time, ())  # the copy of the request is kept as long as the record
    check_preconditions(
        client, _WITHDRAWING, is_withdrawal=True, check=unchanged_instant_check(client, instant, _WITHDRAWING)
    )
    if instant.inflight_file is not None:
        client.remove_file(f"{timeline.directory}/{instant.inflight_file}")
    requested = client.meta.getInstantGenerator().getCleanRequestedInstant(instant.time)
    is_removed = delete_request(client, instant, requested)
    client.meta.reloadActiveTimeline()
    if not is_removed:
        raise Transient(f"{client.table.name}: a writer began clean {instant.time} while lakefold withdrew it")
    record_withdrawal(client.storage, instant.time, removed=True)
