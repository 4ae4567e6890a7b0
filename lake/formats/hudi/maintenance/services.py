# SPDX-License-Identifier: Apache-2.0
"""Runs the table's own services: its clean policy, its archival, the rollback of failed writes.

Hudi's clean policy does not respect lakefold's retention, and its archiver considers a commit's replaced files deleted
as soon as a clean's bound is later than the commit. Two rules follow. A clean never deletes files that lakefold still
retains. No commit leaves the active timeline while a file that it replaced exists: that file would become live again,
and all its rows would be doubled.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta

from lake.errors import Conflict, Rejected
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.jvm.errors import translated_errors
from lake.formats.hudi.pending.actions import WRITER_TIMEOUT, is_executed_by_writer, list_pending_actions
from lake.formats.hudi.pending.attempt_files import ATTEMPT_TIMEOUT, delete_ended_attempts, list_attempts
from lake.formats.hudi.pending.late_files import is_begun_by_writer, read_instant_record
from lake.formats.hudi.pending.rollbacks import (
    describe_obsolete_rollback,
    find_obsolete_rollback,
    find_orphaned_rollbacks,
    find_running_rollback,
)
from lake.formats.hudi.plans import adoption
from lake.formats.hudi.plans.clean_bounds import KEEP_MAX, KEEP_MAX_DEFAULT, CleanerProgress, stated_earliest
from lake.formats.hudi.plans.cleaning import clean_files, planned_deletions, withdraw_pending_cleans
from lake.formats.hudi.plans.preconditions import check_preconditions, unchanged_instant_check, unchanged_timeline_check
from lake.formats.hudi.plans.rollback import finish_rollback
from lake.formats.hudi.plans.withdrawal import withdraw_plan
from lake.formats.hudi.read.commits import plan_id_of
from lake.formats.hudi.read.deletion_blockers import (
    REPLACING_KINDS,
    can_bound_archival,
    find_retained_files,
    readable_since,
)
from lake.formats.hudi.read.restores import (
    find_commits_undone_by_restores,
    find_deletable_commits,
    find_start_without_overlaps,
)
from lake.formats.hudi.read.superseded import find_replaced_files, find_superseding_instants
from lake.formats.hudi.timeline.timeline import COMMIT_ACTIONS, PLAN_KEY, Instant, Timeline, extra_metadata
from lake.plan import SupersededVersion
from lake.units import format_duration

_ROLLING_BACK = "rolling back"
_KEEP_MIN, _KEEP_MIN_DEFAULT = "hoodie.keep.min.commits", 20
_BEYOND_SAVEPOINTS = "hoodie.archive.beyond.savepoint"


def run_services(
    client: HudiClient,
    services: Collection[str],
    retained: Sequence[SupersededVersion],
    retention: timedelta = timedelta(),
) -> list[str]:
    """Run ``services`` (rollback, clean, archive) in that order, each under the table's lock.

    Returns one line for each service that did something. The files of ``retained`` stay, and so do all files that the
    timeline shows as replaced by a rewrite of any lakefold installation within ``retention``.
    """
    client.bundle.require_foreign_plans(client.table.name, "running the table's own services")
    lines = []
    known: Mapping[str, Callable[[], str | None]] = {
        "rollback": lambda: _roll_back_failed_writes(client),
        "clean": lambda: _run_clean_policy(client, retained, retention),
        "archive": lambda: _run_archival(client),
    }
    for service, run in known.items():
        if service in services:
            with (
                translated_errors(client.table, f"running the service {service}"),
                client.locked(f"running the service {service}"),
            ):
                line = run()
            if line is not None:
                lines.append(line)
    return lines


def _roll_back_failed_writes(client: HudiClient) -> str | None:
    """Roll back writes whose heartbeat has stopped, as Hudi's lazy policy does before a write."""
    if not client.optimistic:
        # Single writers have no heartbeats, so live and dead writers can't be distinguished.
        return 'nothing is rolled back: only writers with concurrency = "occ" have heartbeats'
    timeline = check_preconditions(client, _ROLLING_BACK, is_withdrawal=True)
    if (running := find_running_rollback(client.table, client.storage, timeline)) is not None:
        return f"nothing is rolled back: another process is executing rollback {running.time}"
    writes = [instant for instant in timeline.pending if instant.kind in COMMIT_ACTIONS]
    if (other := _find_write_of_same_time(timeline, writes)) is not None:
        return f"nothing is rolled back: {other}"
    before = {instant.time for instant in timeline.pending}
    java = client.new_unlocked_client({"hoodie.clean.failed.writes.policy": "LAZY"})
    try:
        java.rollbackFailedWrites(client.meta)
    finally:
        java.close()
    rolled_back = sorted(before - {instant.time for instant in client.read_timeline().pending})
    return f"rolled back {', '.join(rolled_back)}, whose writers died" if rolled_back else None


def _find_write_of_same_time(timeline: Timeline, writes: Sequence[Instant]) -> str | None:
    """Return why Hudi must not roll ``writes`` back, None if it may: it could take another commit for one of them."""
    for write in writes:
        for other in timeline.find_other_commits(write.time, write.action):
            return f"{other.kind} {other.time} has the time of {write.kind} {write.time}, and Hudi may undo either"
    return None


def _run_clean_policy(client: HudiClient, retained: Sequence[SupersededVersion], retention: timedelta) -> str | None:
    """Delete, as one clean, the files that the table's clean policy selects and lakefold does not retain."""
    withdraw_pending_cleans(client, client.read_timeline())
    timeline = client.read_timeline()
    table = client.jvm.org.apache.hudi.table.HoodieSparkTable.create(client.write_config, client.context)
    found = table.createCleanerPlan(client.context, client.empty_option)
    if not found.isPresent():
        return None
    plan = json.loads(found.get().toString())
    kept = {version.path for version in retained} | find_retained_files(timeline, retention).keys()
    kept &= client.storage.sizes(list(kept)).keys()
    wanted = planned_deletions(plan)
    bound = readable_since(timeline, client.table.write_options)
    start = str((plan.get("earliestInstantToRetain") or {}).get("timestamp") or "")
    waits_from, superseded_at = _find_waiting_start(timeline, start), dict[str, str]()
    undone_by_restores = find_commits_undone_by_restores(timeline, bound)
    if undone_by_restores or waits_from is not None:
        superseded_at = dict(find_superseding_instants(client.storage, timeline, wanted.keys()))
        kept |= {path for path, time in superseded_at.items() if time in undone_by_restores}
    if waits_from is not None:
        # The clean states this instant, so that the next one reads the partitions of the files that wait.
        start, never = waits_from, "9" * 17
        kept |= {path for paths in wanted.values() for path in paths if superseded_at.get(path, never) >= start}
    deletable = {partition: [path for path in paths if path not in kept] for partition, paths in wanted.items()}
    deletable, superseded_by = _select_deletable_in_order(client, timeline, deletable, start)
    if waits_from is not None:
        superseded_by = max((superseded_at[path] for paths in deletable.values() for path in paths), default="")
    saved = timeline.savepoints()
    # Hudi deletes the whole directory of a deleted partition, including files that savepoints keep.
    skipped = {path for paths in wanted.values() for path in paths} - {p for paths in deletable.values() for p in paths}
    retained_directories = {path.rpartition("/")[0] for paths in (kept, skipped, *saved.values()) for path in paths}
    deleted_partitions = [name for name in plan.get("partitionsToBeDeleted") or () if name not in retained_directories]
    # A writer writes its files before it takes the lock: files just written to a deleted partition would also be
    # deleted.
    partitions = [] if client.optimistic else deleted_partitions
    if not deletable and not partitions:
        return None
    progress = CleanerProgress(
        start=start,
        newest_commit=str(plan.get("lastCompletedCommitTimestamp") or ""),
        source_clean=timeline.newest_commit_time,
        savepoints=tuple(sorted(saved)),
    )
    clean_files(client, timeline, deletable, progress, superseded_by=superseded_by, partitions=partitions)
    deleted = sum(len(paths) for paths in deletable.values())
    waiting = len(skipped - kept)
    text = f"the table's clean policy deleted {deleted} files"
    text += f", {len(skipped) - waiting} more are kept by lakefold's retention" if len(skipped) > waiting else ""
    return text + (f", {waiting} more wait for older ones" if waiting else "")


def _find_waiting_start(timeline: Timeline, start: str) -> str | None:
    """Return the instant at which files wait until ``start``, that of the policy, has passed all overlapping commits.

    None if none wait: no commit overlaps ``start``, or the newest clean states a later instant already.
    """
    found = find_start_without_overlaps(timeline, start) if start else None
    return found if found is not None and found >= stated_earliest(timeline) else None


def _select_deletable_in_order(
    client: HudiClient, timeline: Timeline, paths: Mapping[str, list[str]], start: str
) -> tuple[dict[str, list[str]], str]:
    """Return the ``paths`` that can be deleted now, and an instant not older than the commits that superseded them.

    ``start`` is the instant from which on the table's policy keeps states readable, '' if it states none. All ``paths``
    can be deleted if there is a ``start`` and the archiver can be given a bound of its own. Otherwise files are deleted
    in the order of the commits that superseded them, and the files of a commit that overlapped others together with
    all files that were replaced during the overlap (``find_deletable_commits``).
    """
    found = {partition: files for partition, files in paths.items() if files}
    if not found or (start and can_bound_archival(timeline, client.table.write_options)):
        return found, start if found else ""
    superseded_at = find_superseding_instants(client.storage, timeline, found.keys())
    all_paths = {path for files in found.values() for path in files}
    bounds = [i.time for i in timeline.pending if i.kind in REPLACING_KINDS]
    bounds.append(find_replaced_files(client.storage, timeline, all_paths).oldest_commit)
    bound = min(filter(None, bounds), default="9" * 17)
    times = find_deletable_commits(timeline, superseded_at.values(), bound)
    found = {
        partition: [path for path in files if superseded_at.get(path) in times] for partition, files in found.items()
    }
    found = {partition: files for partition, files in found.items() if files}
    return found, max((superseded_at[path] for files in found.values() for path in files), default="")


def _run_archival(client: HudiClient) -> str | None:
    """Run Hudi's archival, bounded by savepoints and by the oldest commit with existing replaced files.

    As many commits of writers stay as Hudi would keep without lakefold's commits: a streaming job looks up its
    checkpoint in the newest of its own commits on the active timeline.
    The bound of savepoints applies regardless of the writers' settings: if a commit that a savepoint keeps stays on
    the active timeline, readers miss the files of later commits that are archived.
    """
    timeline = client.read_timeline()
    minimum = int(client.table.write_options.get(_KEEP_MIN, _KEEP_MIN_DEFAULT))
    maximum = int(client.table.write_options.get(KEEP_MAX, KEEP_MAX_DEFAULT))
    commits = [i for i in timeline.completed if i.action in COMMIT_ACTIONS]
    minimum = _count_with_commits_of_writers(timeline, commits, minimum)
    oldest = find_replaced_files(client.storage, timeline).oldest_commit
    if oldest:
        minimum = max(minimum, len([i for i in commits if i.time >= oldest]))
    maximum = max(maximum, minimum + 1)
    check_preconditions(client, "archiving", check=unchanged_timeline_check(client, timeline, "archiving"))
    java = client.new_unlocked_client({_KEEP_MIN: str(minimum), KEEP_MAX: str(maximum), _BEYOND_SAVEPOINTS: "false"})
    try:
        java.archive()
    finally:
        java.close()
    archived = len(set(timeline.completed) - set(client.read_timeline().completed))
    return f"archived {archived} instants" if archived else None


def _count_with_commits_of_writers(timeline: Timeline, commits: Sequence[Instant], writers: int) -> int:
    """Return how many of the newest ``commits`` contain ``writers`` commits that are not lakefold's.

    Returns the number of all ``commits`` if they contain fewer.
    """
    found = 0
    for count, instant in enumerate(reversed(commits), start=1):
        found += plan_id_of(timeline, instant) is None
        if found >= writers:
            return count
    return len(commits)


def roll_back_instant(client: HudiClient, time: str) -> str:
    """Roll back the unfinished instant ``time`` of another process. Returns a description of the result.

    A clustering or compaction stays scheduled, except a lakefold plan, which is withdrawn; a write is removed. If the
    instant is a rollback that no writer finishes, lakefold finishes it. Raises Conflict if the instant is not pending,
    or its owner is alive; Rejected for actions that Hudi completes by itself.
    """
    with translated_errors(client.table, _ROLLING_BACK), client.locked(_ROLLING_BACK):
        timeline = client.read_timeline()
        instant = _find_abandoned(client, timeline, time)
        planned_by = extra_metadata(timeline.plan(instant)).get(PLAN_KEY)
        if planned_by is not None:
            return _withdraw_dead_plan(client, instant, planned_by)
        if any(
            entry.instant == time and entry.kind
            for entry in list_pending_actions(client.table, client.storage, timeline)
        ):
            adoption.abort_adopted(client, time)
            return f"{instant.kind} {time} is rolled back to requested: its files are deleted"
        orphaned = next((one for one in find_orphaned_rollbacks(timeline) if one.instant == instant), None)
        if orphaned is not None:
            finish_rollback(client, orphaned)
            return f"rollback {time} of {orphaned.action} {orphaned.target} is finished"
        if (obsolete := find_obsolete_rollback(timeline, instant)) is not None:
            raise Rejected(
                f"{client.table.name}: rollback {time} must not be finished; "
                f"{describe_obsolete_rollback(timeline, obsolete)}"
            )
        if instant.kind not in COMMIT_ACTIONS:
            raise Rejected(
                f"{client.table.name}: {instant.kind} {time} is not a write; Hudi ends a pending {instant.kind} with "
                "its next one"
            )
        if (other := _find_write_of_same_time(timeline, [instant])) is not None:
            raise Rejected(f"{client.table.name}: {instant.kind} {time} is not rolled back: {other}")
        check_preconditions(
            client, _ROLLING_BACK, is_withdrawal=True, check=unchanged_instant_check(client, instant, _ROLLING_BACK)
        )
        client.write_client.rollback(time)
        return f"{instant.kind} {time} is rolled back: its files are deleted"


def _withdraw_dead_plan(client: HudiClient, instant: Instant, plan_id: str) -> str:
    """Withdraw an instant of a lakefold process that has ended; call it under the lock."""
    delete_ended_attempts(client.storage, instant.time)
    withdraw_plan(client, plan_id, {instant.time})
    if client.read_timeline().find(instant.time, action=instant.action) is None:
        return f"{instant.kind} {instant.time} of plan {plan_id} is withdrawn: its files are deleted"
    return (
        f"{instant.kind} {instant.time} of plan {plan_id} stays scheduled, since log files are named after it; "
        "its files are deleted. With adopt_pending = true a scan plans its execution"
    )


def _is_left_by_lakefold(client: HudiClient, timeline: Timeline, time: str) -> bool:
    """True if no process of lakefold and no writer executes the pending instant ``time`` of a lakefold plan.

    lakefold keeps an attempt file for as long as it works at an instant. The instant has none if the table's owner
    rolled back its commit, which makes it pending again. Call it under the lock.
    """
    return (
        read_instant_record(client.storage, time) is not None
        and not list_attempts(client.storage).get(time)
        and not is_begun_by_writer(client.storage, timeline, time)
    )


def _find_abandoned(client: HudiClient, timeline: Timeline, time: str) -> Instant:
    name = client.table.name
    instant = next((i for i in timeline.pending if i.time == time), None)
    if instant is None:
        completed = timeline.find(time)
        what = f"{completed.kind} {time} is completed" if completed else f"there is no instant {time} on its timeline"
        raise Conflict(f"{name}: {what}; only pending instants can be rolled back")
    entry = next(e for e in list_pending_actions(client.table, client.storage, timeline) if e.instant == time)
    # The heartbeat of a write begins before its request exists. No process executes a requested rewrite yet.
    is_write = entry.kind is None and instant.kind in COMMIT_ACTIONS
    if (
        entry.is_alive
        and (entry.is_begun or entry.plan_id is not None or is_write)
        and not (entry.plan_id is not None and _is_left_by_lakefold(client, timeline, time))
    ):
        sign = f"last active at {entry.last_activity:%H:%M:%S} UTC"
        if entry.plan_id is None:
            raise Conflict(f"{name}: {entry.action} {time} is alive, {sign}")
        at_work = list_attempts(client.storage).get(time)
        if is_executed_by_writer(client.table, client.storage, timeline, instant):
            raise Conflict(
                f"{name}: {entry.action} {time} of plan {entry.plan_id} may be executed by another process, a writer "
                f"of the table, {sign}; the writer counts as dead {format_duration(WRITER_TIMEOUT)} after that, and "
                "then the plan continues by itself"
            )
        owner = f"{at_work[-1].attempt.process}, {sign}" if at_work else sign
        raise Conflict(
            f"{name}: {entry.action} {time} of plan {entry.plan_id} may be executed by another lakefold: "
            f"{owner}; it counts as dead once its process is known to have ended, or "
            f"{format_duration(ATTEMPT_TIMEOUT)} after its last activity"
        )
    return instant
