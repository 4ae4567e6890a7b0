# SPDX-License-Identifier: Apache-2.0
"""lakefold's clustering plans: published with exact slices, and verified against the table before the commit."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lake.errors import Conflict, Rejected
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.names import FileGroupId, relative_path
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
    stale_reason,
)
from lake.formats.hudi.plans.preconditions import PUBLISHING, OwnInstant, check_preconditions
from lake.formats.hudi.read.flink_state import find_flink_index
from lake.formats.hudi.timeline.timeline import EPOCH_KEY, PLAN_KEY, SORT_COLUMNS, Timeline
from lake.model import FileSlice
from lake.plan import ClusteringGroup, Plan, SkippedGroup
from lake.ports import PreparedPlan

_STRATEGY = "org.apache.hudi.client.clustering.run.strategy.SparkSortAndSizeExecutionStrategy"


def select_live_groups(
    plan: Plan, live: Mapping[FileGroupId, LiveSlice], pending: Mapping[FileGroupId, str]
) -> tuple[tuple[int, ...], tuple[SkippedGroup, ...]]:
    """Return the indices of the groups that can still be rewritten, and each skipped group with its first reason."""
    kept: list[int] = []
    left_out: list[SkippedGroup] = []
    seen: set[FileGroupId] = set()
    for index, group in enumerate(plan.groups):
        reason = None
        for slice_ in group.slices:
            key = (slice_.partition, slice_.file_id)
            if key in pending:
                reason = f"file group {slice_.file_id} is in {pending[key]}"
            elif key in seen:
                reason = f"file group {slice_.file_id} is in two groups of the plan"
            else:
                reason = stale_reason(slice_, live)
            seen.add(key)
            if reason:
                break
        if reason:
            left_out.append(SkippedGroup(group=index, reason=reason))
        else:
            kept.append(index)
    return tuple(kept), tuple(left_out)


def clustering_slice_record(
    client: HudiClient, slice_: FileSlice, base: str | None, logs: Sequence[str]
) -> dict[str, Any]:
    """Return ``slice_`` in the form of Hudi's clustering plans: absolute paths of its base file and logs."""

    def absolute(name: str) -> str:
        return f"{client.base}/{relative_path(slice_.partition, name)}"

    return {
        "dataFilePath": absolute(base) if base else "",
        "deltaFilePaths": [absolute(name) for name in logs],
        "fileId": slice_.file_id,
        "partitionPath": slice_.partition,
        "bootstrapFilePath": "",
        "version": 1,
    }


def _group_record(client: HudiClient, group: ClusteringGroup, live: Mapping[FileGroupId, LiveSlice]) -> dict[str, Any]:
    now = [(s, live[s.partition, s.file_id]) for s in group.slices]
    return {
        "numOutputFileGroups": group.output_files,
        "metrics": {},
        "extraMetadata": {},
        "version": 1,
        "slices": [clustering_slice_record(client, s, latest.base, latest.logs) for s, latest in now],
    }


def publish_clustering(
    client: HudiClient, timeline: Timeline, plan: Plan, epoch: int, on_instant: Callable[[str], None]
) -> PreparedPlan:
    """Write ``plan`` to the timeline as one requested clustering; call it under the lock, with no writer inflight.

    ``on_instant`` is called with the instant before it is written. Raises Rejected if a Flink job's index would break.
    """
    flink = find_flink_index(timeline, plan.table.write_options)
    if flink is not None:
        raise Rejected(f"{plan.table.name}: {flink}")
    live = read_live_slices(client, [slice_ for group in plan.groups for slice_ in group.slices])
    kept, left_out = select_live_groups(plan, live, find_groups_of_others(timeline, plan))
    if not kept:
        changed = (
            f"every group of the plan was changed or added to another plan meanwhile; the first: {left_out[0].reason}"
        )
        raise Conflict(f"{plan.table.name}: {changed}", left_out)
    plan_metadata = {PLAN_KEY: plan.plan_id, EPOCH_KEY: str(epoch)}
    parameters = {SORT_COLUMNS: ",".join(plan.options.sort_columns)} if plan.options.sort_columns else {}
    record = {
        "operationType": "CLUSTER",
        "version": 1,
        "extraMetadata": plan_metadata,
        "clusteringPlan": {
            "strategy": {"strategyClassName": _STRATEGY, "strategyParams": parameters, "version": 1},
            "extraMetadata": plan_metadata,
            "version": 1,
            "preserveHoodieMetadata": True,
            "missingSchedulePartitions": [],
            "inputGroups": [_group_record(client, plan.groups[index], live) for index in kept],
        },
    }
    metadata = client.avro_object("HoodieRequestedReplaceMetadata", record)
    instant = client.new_instant()
    on_instant(instant)
    requested = client.bundle.requested_clustering(client.meta, instant)
    record_instant(client.storage, timeline, instant, plan.partitions)
    reads = input_paths(plan, kept)
    check_preconditions(
        client,
        PUBLISHING,
        own=OwnInstant(time=instant, inputs=reads),
        check=publication_check(client, timeline, plan.partitions),
    )
    record_log_sizes(client, timeline, plan)
    client.meta.getActiveTimeline().saveToPendingClusterCommit(requested, metadata)
    return PreparedPlan(plan=plan, epoch=epoch, instant=instant, live_groups=kept, skipped=left_out)


def check_clustering_inputs(client: HudiClient, prepared: PreparedPlan) -> None:
    """Raise Conflict if the instant is no longer pending or an input changed; under the lock."""
    plan = prepared.plan
    timeline = require_pending(client, prepared, "replacecommit")
    groups = [plan.groups[index] for index in prepared.live_groups]
    live = read_live_slices(client, [slice_ for group in groups for slice_ in group.slices])
    for group in groups:
        for slice_ in group.slices:
            reason = stale_reason(slice_, live)
            if reason:
                raise Conflict(f"{plan.table.name}: {reason}")
    refuse_changed_logs(client, timeline, plan, prepared.live_groups)
