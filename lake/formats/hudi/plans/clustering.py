# SPDX-License-Identifier: Apache-2.0
"""Clustering plans of ours: published with exact slices, and still what the table has before the commit."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lake.errors import Conflict
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.names import Group, join
from lake.formats.hudi.pending.late_files import note
from lake.formats.hudi.plans.freshness import (
    LiveSlice,
    inputs_of,
    live_slices,
    pending_groups,
    stale_reason,
    still_pending,
    still_there,
)
from lake.formats.hudi.plans.last_look import PUBLISHING, last_look, unmoved
from lake.formats.hudi.timeline.timeline import EPOCH_KEY, PLAN_KEY, SORT_COLUMNS, Timeline
from lake.model import FileSlice
from lake.plan import ClusteringGroup, LeftOut, Plan
from lake.ports import Prepared, Rewrite

_STRATEGY = "org.apache.hudi.client.clustering.run.strategy.SparkSortAndSizeExecutionStrategy"


def examine(
    plan: Plan, live: Mapping[Group, LiveSlice], held: Mapping[Group, str]
) -> tuple[tuple[int, ...], tuple[LeftOut, ...]]:
    """Indices of the groups that can still be rewritten, and the others with their first reason."""
    kept: list[int] = []
    left_out: list[LeftOut] = []
    seen: set[Group] = set()
    for index, group in enumerate(plan.groups):
        reason = None
        for slice_ in group.slices:
            key = (slice_.partition, slice_.file_id)
            if key in held:
                reason = f"file group {slice_.file_id} is in {held[key]}"
            elif key in seen:
                reason = f"file group {slice_.file_id} is in two groups of the plan"
            else:
                reason = stale_reason(slice_, live)
            seen.add(key)
            if reason:
                break
        if reason:
            left_out.append(LeftOut(group=index, reason=reason))
        else:
            kept.append(index)
    return tuple(kept), tuple(left_out)


def slice_record(client: HudiClient, slice_: FileSlice, base: str | None, logs: Sequence[str]) -> dict[str, Any]:
    """``slice_`` as a clustering plan of Hudi's names it: absolute paths of its base file and of its logs."""

    def absolute(name: str) -> str:
        return f"{client.base}/{join(slice_.partition, name)}"

    return {
        "dataFilePath": absolute(base) if base else "",
        "deltaFilePaths": [absolute(name) for name in logs],
        "fileId": slice_.file_id,
        "partitionPath": slice_.partition,
        "bootstrapFilePath": "",
        "version": 1,
    }


def _group_record(client: HudiClient, group: ClusteringGroup, live: Mapping[Group, LiveSlice]) -> dict[str, Any]:
    now = [(s, live[s.partition, s.file_id]) for s in group.slices]
    return {
        "numOutputFileGroups": group.output_files,
        "metrics": {},
        "extraMetadata": {},
        "version": 1,
        "slices": [slice_record(client, s, latest.base, latest.logs) for s, latest in now],
    }


def make_known(
    client: HudiClient, timeline: Timeline, plan: Plan, epoch: int, stage: Callable[[str], None]
) -> Prepared:
    """Write ``plan`` to the timeline as one requested clustering; call it under the lock, with no writer inflight.

    ``stage`` hears of the instant first.
    """
    live = live_slices(client, [slice_ for group in plan.groups for slice_ in group.slices])
    kept, left_out = examine(plan, live, pending_groups(timeline))
    if not kept:
        changed = f"every group of the plan was changed or taken after planning; the first: {left_out[0].reason}"
        raise Conflict(f"{plan.table.name}: {changed}", left_out)
    ours = {PLAN_KEY: plan.plan_id, EPOCH_KEY: str(epoch)}
    parameters = {SORT_COLUMNS: ",".join(plan.options.sort_columns)} if plan.options.sort_columns else {}
    record = {
        "operationType": "CLUSTER",
        "version": 1,
        "extraMetadata": ours,
        "clusteringPlan": {
            "strategy": {"strategyClassName": _STRATEGY, "strategyParams": parameters, "version": 1},
            "extraMetadata": ours,
            "version": 1,
            "preserveHoodieMetadata": True,
            "missingSchedulePartitions": [],
            "inputGroups": [_group_record(client, plan.groups[index], live) for index in kept],
        },
    }
    metadata = client.avro("HoodieRequestedReplaceMetadata", record)
    instant = client.new_instant()
    stage(instant)
    requested = client.bundle.requested_clustering(client.meta, instant)
    note(client.storage, timeline, instant, plan.partitions)
    reads = inputs_of(plan, kept)
    last_look(client, PUBLISHING, instant=instant, reads=reads, check=unmoved(client, timeline, PUBLISHING))
    client.meta.getActiveTimeline().saveToPendingClusterCommit(requested, metadata)
    return Prepared(plan=plan, epoch=epoch, instant=instant, groups=kept, left_out=left_out)


def unchanged(client: HudiClient, rewrite: Rewrite) -> None:
    """Raise Conflict where the instant is not pending any more, a file is gone or an input changed; under the lock."""
    prepared, plan = rewrite.prepared, rewrite.prepared.plan
    still_pending(client, prepared, "replacecommit")
    still_there(client, rewrite)
    groups = [plan.groups[index] for index in prepared.groups]
    live = live_slices(client, [slice_ for group in groups for slice_ in group.slices])
    for group in groups:
        for slice_ in group.slices:
            reason = stale_reason(slice_, live)
            if reason:
                raise Conflict(f"{plan.table.name}: {reason}")
