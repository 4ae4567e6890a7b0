# SPDX-License-Identifier: Apache-2.0
"""lakefold's compaction plans: published with exact slices, then executed and committed in two steps like clusterings.

Compaction allows more concurrent writes than clustering. Writers continue to append to a slice that is being compacted:
a log belongs to the base file that was the newest when the log's commit completed. Logs completed after the plan's
instant therefore belong to the new base file. Two consequences follow. New logs before the instant do not invalidate
the slice; the plan takes the logs present under the lock. Hudi's conflict resolution is not called, since neither side
can lose work.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from lake.errors import Conflict
from lake.formats.hudi.audit.damage import find_damage, to_listed_slice
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.names import FileGroupId, parse_file_name, relative_path, slice_paths
from lake.formats.hudi.pending.actions import must_execute
from lake.formats.hudi.pending.attempt_files import refuse_live_attempts
from lake.formats.hudi.pending.late_files import record_instant
from lake.formats.hudi.plans.inflight_writers import publication_check
from lake.formats.hudi.plans.input_checks import (
    LiveSlice,
    find_groups_of_others,
    input_paths,
    read_live_slices,
    record_log_sizes,
    refuse_changed_logs,
    require_pending,
    stale_base_reason,
)
from lake.formats.hudi.plans.preconditions import PUBLISHING, OwnInstant, check_preconditions
from lake.formats.hudi.plans.requests import delete_request
from lake.formats.hudi.plans.rollback import roll_back_rewrite
from lake.formats.hudi.read.slices import replaced_groups
from lake.formats.hudi.timeline.file_history import active_history
from lake.formats.hudi.timeline.timeline import (
    EPOCH_KEY,
    PLAN_KEY,
    Instant,
    InstantState,
    Timeline,
    extra_metadata,
    planned_slices,
)
from lake.model import FileSlice
from lake.plan import ClusteringGroup, Plan, PlanKind, SkippedGroup
from lake.ports import PreparedPlan

#: version 2 of Hudi's plan has file names instead of paths
_PLAN_VERSION = 2


def publish_compaction(
    client: HudiClient, timeline: Timeline, plan: Plan, epoch: int, on_instant: Callable[[str], None]
) -> PreparedPlan:
    """Write ``plan`` to the timeline as one requested compaction; call it under the lock, with no writer inflight.

    ``on_instant`` is called with the instant before it is written. The returned plan has the current log files of the
    slices. Raises Conflict if no slice can be compacted, or if a request that had to stay can't be executed.
    """
    kept_request = _find_requested(timeline, plan.plan_id)
    if kept_request is not None:
        refuse_live_attempts(client.storage, plan.table.name, kept_request[0].time)
        on_instant(kept_request[0].time)
        record_instant(client.storage, timeline, kept_request[0].time, plan.partitions)
        prepared = _prepare_requested(client, plan, epoch, *kept_request)
        # The commit would be refused for the same reason, after the whole rewrite.
        check_compaction_inputs(client, timeline, prepared.plan, prepared.live_groups, prepared.instant)
        record_log_sizes(client, timeline, prepared.plan, requested=prepared.instant)
        return prepared
    live = read_live_slices(client, [slice_ for group in plan.groups for slice_ in group.slices])
    held = find_groups_of_others(timeline, plan)
    groups, kept, left_out = list(plan.groups), [], []
    for index, group in enumerate(plan.groups):
        (planned,) = group.slices
        key = (planned.partition, planned.file_id)
        reason = (
            f"file group {planned.file_id} is in {held[key]}" if key in held else _stale_reason(planned, live.get(key))
        )
        if reason is None:
            groups[index] = _with_logs(client, group, live[key].logs)
            kept.append(index)
        else:
            left_out.append(SkippedGroup(group=index, reason=reason))
    if not kept:
        raise Conflict(
            f"{plan.table.name}: no slice of the plan can be compacted; the first: {left_out[0].reason}",
            tuple(left_out),
        )
    record = {
        "operations": [_operation_record(groups[index].slices[0]) for index in kept],
        "extraMetadata": {PLAN_KEY: plan.plan_id, EPOCH_KEY: str(epoch)},
        "version": _PLAN_VERSION,
        "strategy": None,
        "preserveHoodieMetadata": True,
        "missingSchedulePartitions": None,
    }
    metadata = client.avro_object("HoodieCompactionPlan", record)
    instant = client.new_instant()
    on_instant(instant)
    requested = client.meta.getInstantGenerator().getCompactionRequestedInstant(instant)
    record_instant(client.storage, timeline, instant, plan.partitions)
    current = replace(plan, groups=tuple(groups))
    reads = input_paths(current, kept)
    check_preconditions(
        client,
        PUBLISHING,
        own=OwnInstant(time=instant, inputs=reads),
        check=publication_check(client, timeline, plan.partitions),
    )
    record_log_sizes(client, timeline, current)
    client.meta.getActiveTimeline().saveToCompactionRequested(requested, metadata)
    return PreparedPlan(plan=current, epoch=epoch, instant=instant, live_groups=tuple(kept), skipped=tuple(left_out))


def _find_requested(timeline: Timeline, plan_id: str) -> tuple[Instant, Mapping[str, Any]] | None:
    """Return the requested compaction that an earlier attempt could not withdraw; see ``withdraw_compaction``.

    Returns None if the compaction is inflight: a writer may be executing it.
    """
    for instant, record in timeline.pending_plans():
        is_requested = instant.kind == "compaction" and instant.state is InstantState.REQUESTED
        if is_requested and extra_metadata(record).get(PLAN_KEY) == plan_id:
            return instant, record
    return None


def _prepare_requested(
    client: HudiClient, plan: Plan, epoch: int, instant: Instant, record: Mapping[str, Any]
) -> PreparedPlan:
    """Prepare the same instant again, with exactly the slices that it names."""
    logs: dict[FileGroupId, tuple[str, ...]] = {(s.partition, s.file_id): s.logs for s in planned_slices(record)}
    groups, kept, left_out = list(plan.groups), [], []
    for index, group in enumerate(plan.groups):
        names = logs.get((group.partition, group.slices[0].file_id))
        if names is None:
            left_out.append(SkippedGroup(group=index, reason=f"not part of compaction {instant.time}"))
        else:
            groups[index] = _with_logs(client, group, names)
            kept.append(index)
    return PreparedPlan(
        plan=replace(plan, groups=tuple(groups)),
        epoch=epoch,
        instant=instant.time,
        live_groups=tuple(kept),
        skipped=tuple(left_out),
    )


def _stale_reason(planned: FileSlice, now: LiveSlice | None) -> str | None:
    """Return why a planned slice can no longer be compacted; None if it can. Its number of logs may have changed."""
    reason = stale_base_reason(planned, now)
    if reason is None and now is not None and not now.logs:
        return f"file group {planned.file_id} has no log files left"
    return reason


def _with_logs(client: HudiClient, group: ClusteringGroup, names: Collection[str]) -> ClusteringGroup:
    (planned,) = group.slices
    sizes = client.storage.sizes([relative_path(planned.partition, name) for name in names])
    return replace(group, slices=(replace(planned, log_files=tuple(names), log_bytes=sum(sizes.values())),))


def _operation_record(slice_: FileSlice) -> dict[str, Any]:
    file = parse_file_name(slice_.path or relative_path(slice_.partition, slice_.log_files[0]))
    return {
        "baseInstantTime": file.instant if file else None,
        "dataFilePath": slice_.path.rsplit("/", 1)[-1] if slice_.path else None,
        "deltaFilePaths": list(slice_.log_files),
        "fileId": slice_.file_id,
        "partitionPath": slice_.partition,
        "bootstrapFilePath": None,
        # Hudi 1.2 fails with a NullPointerException while it merges if the second metric is missing.
        "metrics": {
            "TOTAL_LOG_FILES": float(len(slice_.log_files)),
            "TOTAL_LOG_FILES_SIZE": float(slice_.log_bytes),
        },
    }


def check_begun_compaction(client: HudiClient, prepared: PreparedPlan) -> None:
    """Raise Conflict if the instant is no longer pending or an input changed; under the lock."""
    plan = prepared.plan
    timeline = require_pending(client, prepared, "commit")
    check_compaction_inputs(client, timeline, plan, prepared.live_groups, prepared.instant)
    refuse_changed_logs(client, timeline, plan, prepared.live_groups)


def check_compaction_inputs(
    client: HudiClient, timeline: Timeline, plan: Plan, groups: Collection[int], instant: str
) -> None:
    """Raise Conflict if a slice of ``groups`` can't be compacted as planned under ``instant``.

    A slice can't be compacted if it was replaced, if its files in storage differ from its commits, or if it has a log
    older than ``instant`` that is not in the plan: its writer's clock is behind, or, on layout 1, its writer did not
    see the plan.
    """
    gone = replaced_groups(timeline)
    slices = [s for index in groups for s in plan.groups[index].slices]
    there = client.storage.sizes([path for s in slices for path in slice_paths(s)])
    for slice_ in slices:
        if (slice_.partition, slice_.file_id) in gone:
            raise Conflict(f"{plan.table.name}: file group {slice_.file_id} was replaced")
        for path in slice_paths(slice_):
            if path not in there:
                raise Conflict(f"{plan.table.name}: {path} is gone from storage")
    # Hudi lists the slice that follows the pending compaction, so only storage and commits are compared.
    planned = {(s.partition, s.file_id): to_listed_slice(s) for s in slices}
    for damage in find_damage(client.storage, timeline, planned, compare_listing=False).values():
        raise Conflict(f"{plan.table.name}: {damage.text}")
    for slice_ in slices:
        _refuse_earlier_logs(timeline, slice_, instant)


def _refuse_earlier_logs(timeline: Timeline, slice_: FileSlice, instant: str) -> None:
    """Raise Conflict if the slice has a log that is not in the plan although it precedes the compaction."""
    expected = active_history(timeline).expected_slice((slice_.partition, slice_.file_id))
    for name, log in expected.logs.items() if expected is not None else ():
        if name not in slice_.log_files and log.since < instant:
            why = (
                f"is named after {log.since}: its writer did not see the compaction, which would lose the log's rows. "
                "No process may execute it. lakefold withdraws its own compaction unless logs are named after it. If "
                f"there are such logs, have a writer write partition {slice_.partition!r} anew (INSERT OVERWRITE)"
                if timeline.layout == 1
                else f"was completed at {log.since}, by a clock that is behind"
            )
            raise Conflict(f"{relative_path(slice_.partition, name)} is not in compaction {instant} and {why}")


def withdraw_compaction(client: HudiClient, instant: Instant, partitions: Collection[str]) -> bool:
    """Roll back a pending compaction and remove it from the timeline. Call this under the lock.

    Returns True if it was rolled back or removed. If ``must_execute`` is true, the request stays, and the plan's next
    attempt or an adopting plan executes it.
    """
    begun = instant.state is InstantState.INFLIGHT
    if begun:
        roll_back_rewrite(client, instant, PlanKind.COMPACTION, partitions)
    after = client.read_timeline().find(instant.time, action=instant.action)
    if after is None or after.state is not InstantState.REQUESTED:
        return begun
    return delete_unneeded_request(client, after, partitions) or begun


def delete_unneeded_request(client: HudiClient, instant: Instant, partitions: Collection[str]) -> bool:
    """Delete the request of a requested compaction unless it must be executed. Returns True if it was deleted."""

    def is_needed(now: Timeline) -> bool:
        # Writers of older Hudi begin without the lock. A writer that began after the check may have seen the request
        # and name its logs after the request.
        return must_execute(client.storage, now, instant, partitions)

    if is_needed(client.read_timeline()):
        return False
    requested = client.meta.getInstantGenerator().getCompactionRequestedInstant(instant.time)
    return delete_request(client, instant, requested, is_needed)
