# SPDX-License-Identifier: Apache-2.0
"""The pending rollbacks of rewrites that no writer finishes, because their target has left the timeline.

Hudi's rollback of a begun clustering deletes the files, writes to the metadata table, deletes the clustering from the
timeline, and completes last. If its process dies before that, a pending rollback without a target remains. Hudi's
writes finish pending rollbacks, but they leave rollbacks of clusterings and compactions to the next execution of the
plan. Without the target the plan is never executed again, and a withdrawal does not find the target, either. The
pending rollback loses no row. But the metadata table archives nothing from its time on, and up to table version 6 its
compaction stops: after 1000 commits (``hoodie.metadata.max.deltacommits.when_pending``) every write fails.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.pending.heartbeats import has_live_heartbeat
from lake.formats.hudi.pending.late_files import is_covered_by_timelines, read_instant_record
from lake.formats.hudi.pending.retries import is_try_due, record_failed_try
from lake.formats.hudi.timeline.archive import ArchiveUnreadable
from lake.formats.hudi.timeline.timeline import Instant, Timeline
from lake.model import TableRef

log = logging.getLogger(__name__)
#: the actions of clusterings and compactions; up to table version 6 a clustering is a replacecommit
_REWRITE_ACTIONS = frozenset({"clustering", "compaction", "replacecommit"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanedRollback:
    """A pending rollback, and the time and action of its target, which is no longer on the timeline."""

    instant: Instant
    target: str
    action: str


def rollback_target(plan: Mapping[str, Any] | None) -> str:
    """Return the time of the instant that a rollback with this plan undoes; 'None' if the plan does not name it."""
    return str(((plan or {}).get("instantToRollback") or {}).get("commitTime"))


def rollback_action(plan: Mapping[str, Any] | None) -> str:
    """Return the action of the instant that a rollback with this plan undoes; '' if the plan does not name it."""
    return str(((plan or {}).get("instantToRollback") or {}).get("action") or "")


def find_running_rollback(
    table: TableRef, storage: TableStorage, timeline: Timeline, target: str = ""
) -> Instant | None:
    """Return the pending rollback that a live process executes; of ``target``, '' for any. None if there is none.

    Hudi executes rollbacks without the table's lock. Under optimistic concurrency, the process of a rollback renews a
    heartbeat, by which Hudi keeps other processes away. A second execution would make the first one fail.
    """
    for instant in timeline.pending:
        if instant.kind != "rollback" or not has_live_heartbeat(table, storage, instant.time):
            continue
        try:
            if not target or rollback_target(timeline.plan(instant)) == target:
                return instant
        except FileNotFoundError:  # the rollback ended after the listing
            continue
    return None


def find_orphaned_rollbacks(timeline: Timeline) -> Iterator[OrphanedRollback]:
    """Yield the pending rollbacks whose target, a clustering or compaction, was removed from the timeline.

    A target that has completed and was archived is not on the active timeline either. A rollback of such a target would
    delete committed files, so it is left out. It is also left out if the archive does not reach back to its target.
    """
    return (orphaned for orphaned in _list_without_target(timeline) if _is_unarchived(timeline, orphaned))


def find_obsolete_rollback(timeline: Timeline, rollback: Instant) -> OrphanedRollback | None:
    """Return the pending ``rollback`` if its target has completed and was archived; None otherwise.

    No process may execute it: it would delete the files of its target, which are committed.
    """
    found = (orphaned for orphaned in _list_without_target(timeline) if orphaned.instant == rollback)
    return next((orphaned for orphaned in found if _is_archived(timeline, orphaned)), None)


def describe_obsolete_rollback(timeline: Timeline, obsolete: OrphanedRollback) -> str:
    """Describe, for a message, how to end a rollback of ``find_obsolete_rollback``."""
    names = (obsolete.instant.inflight_file, obsolete.instant.requested_file)
    files = [timeline.storage.display_path(f"{timeline.directory}/{name}") for name in names if name is not None]
    return (
        f"delete {' and '.join(files)}: the rollback would delete the files of {obsolete.action} {obsolete.target}, "
        "which has completed and is archived"
    )


def is_without_target(timeline: Timeline, orphaned: OrphanedRollback) -> bool:
    """True if ``orphaned`` is still pending, and its target not on the active timeline. The archive is not read."""
    return orphaned in _list_without_target(timeline)


def _list_without_target(timeline: Timeline) -> Iterator[OrphanedRollback]:
    """Yield the pending rollbacks whose target, a clustering or compaction, is not on the active timeline."""
    for instant in timeline.pending:
        if instant.kind != "rollback":
            continue
        try:
            plan = timeline.plan(instant)
        except FileNotFoundError:  # the rollback ended after the listing
            continue
        target, action = rollback_target(plan), rollback_action(plan)
        if action in _REWRITE_ACTIONS and timeline.find(target) is None:
            yield OrphanedRollback(instant=instant, target=target, action=action)


def _is_unarchived(timeline: Timeline, orphaned: OrphanedRollback) -> bool:
    """True if the target of ``orphaned`` was removed and not archived. Reads the archive."""
    return not _is_archived(timeline, orphaned) and is_covered_by_timelines(timeline, orphaned.target)


def _is_archived(timeline: Timeline, orphaned: OrphanedRollback) -> bool:
    # The active timeline was listed first, so a target archived meanwhile is found twice, never missed.
    return any(True for _ in timeline.archived(times={orphaned.target}, plans=False, metadata=False))


def find_orphaned_rollbacks_of_lakefold(storage: TableStorage, timeline: Timeline) -> list[OrphanedRollback]:
    """Return the rollbacks of ``find_orphaned_rollbacks`` whose target was an instant of a lakefold plan.

    The plan may be one of another database. An instant that lakefold saw completed is left out. So is a rollback that
    this process failed to finish, until its next try is due (``pending.retries``). If the archive excludes a rollback,
    or is damaged and can't be searched for its target, this counts as a failed try: the sweep must not read the archive
    each time.
    """
    found = []
    for orphaned in _list_without_target(timeline):
        if not is_try_due(storage, orphaned.instant.time) or not _is_uncommitted(storage, orphaned.target):
            continue
        try:
            if _is_unarchived(timeline, orphaned):
                found.append(orphaned)
                continue
        except ArchiveUnreadable as error:
            log.warning("rollback %s of %s can't be finished: %s", orphaned.instant.time, orphaned.target, error)
        record_failed_try(storage, orphaned.instant.time)
    return found


def _is_uncommitted(storage: TableStorage, instant: str) -> bool:
    record = read_instant_record(storage, instant)
    return record is not None and not record.committed
