# SPDX-License-Identifier: Apache-2.0
"""The pending actions of a timeline: their owners, their activity, and whether lakefold can execute them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from lake.capabilities import PendingAction
from lake.formats.hudi.files.names import MARKER_DIRECTORY, parse_file_name, relative_path
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.pending.attempt_files import ATTEMPT_TIMEOUT, AttemptFile, list_attempts
from lake.formats.hudi.pending.heartbeats import has_live_heartbeat, heartbeat_timeout, last_heartbeat
from lake.formats.hudi.pending.late_files import is_begun_by_writer
from lake.formats.hudi.pending.rollbacks import rollback_action, rollback_target
from lake.formats.hudi.timeline.timeline import (
    PLAN_KEY,
    SORT_COLUMNS,
    Instant,
    InstantState,
    PlannedSlice,
    Timeline,
    extra_metadata,
    instant_datetime,
    planned_slices,
)
from lake.model import Concurrency, FileSlice, TableRef
from lake.plan import ClusteringGroup, PlanKind

#: the limit for clusterings and single writers, which have no heartbeat: only their files show activity, and a task may
#: write one file for a long time
WRITER_TIMEOUT = timedelta(minutes=10)
#: the actions that only pending rewrites have: completed ones are commits and replacecommits. Up to table version 6 a
#: pending clustering is a replacecommit, too, so its rollback is not recognized and may count as an owner's
_PENDING_REWRITES = frozenset({"clustering", "compaction"})


def list_pending_actions(table: TableRef, storage: TableStorage, timeline: Timeline) -> list[PendingAction]:
    """Return the pending instants of the active timeline, oldest first."""
    plans = dict(timeline.pending_plans())
    at_work = list_attempts(storage) if timeline.pending else {}
    rolled_back = _rollback_targets(table, storage, timeline)
    found = (
        _pending_action(table, storage, timeline, instant, plans.get(instant), at_work.get(instant.time, ()))
        for instant in timeline.pending
    )
    return [replace(entry, is_rolled_back=entry.instant in rolled_back) for entry in found]


def _rollback_targets(table: TableRef, storage: TableStorage, timeline: Timeline) -> set[str]:
    """Return the instants whose completed commit an owner may be rolling back now.

    A single writer keeps no heartbeat, and its rollback writes nothing to the timeline while it deletes files. If it
    continues the rollback of another process, it does not renew that process's heartbeat. So without optimistic
    concurrency, or without a heartbeat, a rollback may run for ``ATTEMPT_TIMEOUT`` after its newest file. A rollback
    that was planned for a pending rewrite is not an owner's: lakefold or a writer withdraws a plan by it, and lakefold
    may finish it under the table's lock.
    """
    found = set()
    for instant in timeline.pending:
        if instant.kind != "rollback":
            continue
        heartbeat = last_heartbeat(storage, instant.time)
        if heartbeat is not None and table.concurrency is Concurrency.OCC:
            is_alive = has_live_heartbeat(table, storage, instant.time)
        else:
            is_alive = datetime.now(UTC) - _newest_activity(storage, timeline, instant, heartbeat) <= ATTEMPT_TIMEOUT
        if is_alive:
            with suppress(FileNotFoundError):  # the instant ended after the listing
                plan = timeline.plan(instant)
                if rollback_action(plan) not in _PENDING_REWRITES:
                    found.add(rollback_target(plan))
    return found


def _pending_action(
    table: TableRef,
    storage: TableStorage,
    timeline: Timeline,
    instant: Instant,
    plan: Mapping[str, Any] | None,
    attempts_at_instant: Sequence[AttemptFile],
) -> PendingAction:
    plan_id = current_plan_id(plan, attempts_at_instant)
    last_activity, alive = _last_activity(
        table, storage, timeline, instant, attempts_at_instant, is_ours=plan_id is not None
    )
    kind = plan_kind(instant, plan)
    partitions = {entry.partition for entry in planned_slices(plan or {})}
    groups = tuple(plan_groups(storage, plan)) if plan is not None and kind is not None else ()
    return PendingAction(
        instant=instant.time,
        action=kind.value if kind else instant.kind,
        is_begun=instant.state is not InstantState.REQUESTED,
        since=instant_datetime(instant.time, timeline.timezone),
        last_activity=last_activity,
        is_alive=alive,
        plan_id=plan_id,
        kind=kind,
        groups=groups,
        sort_columns=_sort_columns(plan),
        refusal=_refusal(plan, groups) if plan is not None and kind is not None else None,
        has_live_owner=any(attempt.is_alive for attempt in attempts_at_instant),
        must_execute=plan_id is not None and must_execute(storage, timeline, instant, partitions),
    )


def must_execute(storage: TableStorage, timeline: Timeline, instant: Instant, partitions: Collection[str]) -> bool:
    """True if a requested compaction must be executed, because log files are named after it, or may be from now on.

    Up to table version 6 a writer names its logs after the pending compaction. Without the compaction these logs would
    belong to no slice. An upgrade of the table keeps both the names and the pending compaction.
    """
    if instant.kind != "compaction":
        return False
    may_be_named = timeline.layout == 1 and any(i.kind == "deltacommit" for i in timeline.pending)
    return may_be_named or _has_logs(storage, instant.time, partitions)


def _has_logs(storage: TableStorage, time: str, partitions: Collection[str]) -> bool:
    """True if a log file in ``partitions`` has the instant ``time`` in its name."""
    files = (
        parse_file_name(relative_path(partition, name))
        for partition in partitions
        for name in storage.list_file_names(partition)
    )
    return any(file.is_log and file.instant == time for file in files if file is not None)


def current_plan_id(plan: Mapping[str, Any] | None, attempts_at_instant: Sequence[AttemptFile]) -> str | None:
    """Return the id of the lakefold plan that a pending rewrite belongs to now; None if the rewrite is foreign.

    The plan either requested the rewrite or has adopted it since.
    """
    named = extra_metadata(plan).get(PLAN_KEY)
    return attempts_at_instant[-1].attempt.plan_id if named is not None and attempts_at_instant else named


def plan_kind(instant: Instant, plan: Mapping[str, Any] | None) -> PlanKind | None:
    """Return the kind of rewrite of a pending instant; None if the instant isn't a rewrite."""
    if plan is not None and plan.get("clusteringPlan"):
        return PlanKind.CLUSTERING
    return PlanKind.COMPACTION if instant.kind == "compaction" else None


def _last_activity(
    table: TableRef,
    storage: TableStorage,
    timeline: Timeline,
    instant: Instant,
    attempts_at_instant: Sequence[AttemptFile],
    *,
    is_ours: bool,
) -> tuple[datetime, bool]:
    """Return when ``instant`` was last active, and whether its owner counts as alive.

    The owner counts as alive if the last activity is recent. Attempts of lakefold show activity by their attempt files.
    For a heartbeat, the limit is Hudi's own, from the heartbeat settings in the table's write options. If only files
    show activity, the limit is ``WRITER_TIMEOUT``, or ``ATTEMPT_TIMEOUT`` for lakefold's instants (``is_ours``).
    """
    is_writers = (
        (is_ours or bool(attempts_at_instant))
        and instant.state is InstantState.INFLIGHT
        and is_begun_by_writer(storage, timeline, instant.time)
    )
    if attempts_at_instant and not is_writers:
        return max(attempt.renewed_at for attempt in attempts_at_instant), any(
            attempt.is_alive for attempt in attempts_at_instant
        )
    limit = ATTEMPT_TIMEOUT if is_ours and not is_writers else WRITER_TIMEOUT
    heartbeat = last_heartbeat(storage, instant.time)
    if heartbeat is not None:
        last, limit = heartbeat, heartbeat_timeout(table.write_options)
    else:
        last = _newest_activity(storage, timeline, instant, None)
    return last, datetime.now(UTC) - last <= limit


def _newest_activity(
    storage: TableStorage, timeline: Timeline, instant: Instant, heartbeat: datetime | None
) -> datetime:
    """Return the newest time among the files of ``instant``, its markers and its ``heartbeat``."""
    files = [name for name in (instant.inflight_file, instant.requested_file) if name is not None]
    times = [storage.newest_modification(f"{timeline.directory}/{name}") for name in files]
    times += [heartbeat, storage.newest_modification(f"{MARKER_DIRECTORY}/{instant.time}")]
    return max((time for time in times if time is not None), default=instant_datetime(instant.time, timeline.timezone))


def is_executed_by_writer(table: TableRef, storage: TableStorage, timeline: Timeline, instant: Instant) -> bool:
    """True if a writer now executes a pending instant of a lakefold plan, so lakefold must not roll it back."""
    if instant.state is not InstantState.INFLIGHT or not is_begun_by_writer(storage, timeline, instant.time):
        return False
    return is_writer_alive(table, storage, timeline, instant)


def is_writer_alive(table: TableRef, storage: TableStorage, timeline: Timeline, instant: Instant) -> bool:
    """True if the writer that executes a pending instant was active within the time limit for writers."""
    _, alive = _last_activity(table, storage, timeline, instant, (), is_ours=False)
    return alive


def plan_groups(storage: TableStorage, plan: Mapping[str, Any]) -> Iterator[ClusteringGroup]:
    """Yield the groups of a scheduled clustering, or each slice of a scheduled compaction as a group.

    Sizes are those of the files in storage, 0 if missing.
    """
    sizes = storage.sizes([path for entry in planned_slices(plan) for path in entry.paths])
    clustering = plan.get("clusteringPlan")
    if not clustering:
        for entry in planned_slices(plan):
            yield ClusteringGroup(partition=entry.partition, slices=(_slice(entry, sizes),), output_files=1)
        return
    for group in clustering.get("inputGroups") or ():
        slices = tuple(_slice(e, sizes) for e in planned_slices({"clusteringPlan": {"inputGroups": [group]}}))
        yield ClusteringGroup(
            partition=slices[0].partition if slices else "",
            slices=slices,
            output_files=group.get("numOutputFileGroups") or 1,
        )


def _slice(entry: PlannedSlice, sizes: Mapping[str, int]) -> FileSlice:
    path = relative_path(entry.partition, entry.base) if entry.base else None
    return FileSlice(
        partition=entry.partition,
        file_id=entry.file_id,
        path=path,
        bytes=sizes.get(path, 0) if path else 0,
        log_files=entry.logs,
        log_bytes=sum(sizes.get(relative_path(entry.partition, name), 0) for name in entry.logs),
    )


def _sort_columns(plan: Mapping[str, Any] | None) -> tuple[str, ...]:
    strategy = ((plan or {}).get("clusteringPlan") or {}).get("strategy") or {}
    named = (strategy.get("strategyParams") or {}).get(SORT_COLUMNS) or ""
    return tuple(column.strip() for column in named.split(",") if column.strip())


def _refusal(plan: Mapping[str, Any], groups: tuple[ClusteringGroup, ...]) -> str | None:
    """Return why lakefold can't execute and verify this foreign plan; None if it can."""
    if not groups or any(not group.slices for group in groups):
        return "it names no file slices"
    clustering = plan.get("clusteringPlan")
    if not clustering:
        return None
    if clustering.get("preserveHoodieMetadata") is False:
        return "it drops commit times (hoodie.clustering.preserve.commit.metadata = false), so it can't be verified"
    for group in groups:
        if len({s.partition for s in group.slices}) > 1:
            return "one of its groups spans several partitions"
    return None
