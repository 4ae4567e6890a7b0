# SPDX-License-Identifier: Apache-2.0
"""Makes a plan known to its table: every slice compared with the table under the lock, then one pending instant.

Hudi itself checks nothing here: a stale slice loses the rows written since, and a file group in two pending plans
makes the table unreadable.
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from lake.errors import Conflict, Rejected, Transient
from lake.formats.hudi.client import HudiClient
from lake.formats.hudi.conflicts import writer_wins
from lake.formats.hudi.damage import damage_of, is_current
from lake.formats.hudi.late import note
from lake.formats.hudi.listing import Slice
from lake.formats.hudi.settings import SORT_COLUMNS
from lake.formats.hudi.storage import user
from lake.formats.hudi.timeline import (
    EPOCH_KEY,
    PLAN_KEY,
    Timeline,
    extra_metadata,
    join,
    planned_slices,
    write_stats,
)
from lake.model import FileSlice
from lake.plan import ClusteringGroup, LeftOut, Plan
from lake.ports import Prepared, Rewrite
from lake.units import format_duration

_STRATEGY = "org.apache.hudi.client.clustering.run.strategy.SparkSortAndSizeExecutionStrategy"
#: pending actions of a writer; planned table services are looked at by their file groups
_INGEST = frozenset({"commit", "deltacommit", "replacecommit"})

#: how long a plan waits for a gap between a writer's commits
WRITER_WAIT = timedelta(seconds=60)
_WRITER_POLL_SECONDS = 0.2
#: a difference seen while a commit or a clean came in between is looked at again
_LOOKS = 3

SliceKey = tuple[str, str]
"""Partition and file id."""


@dataclass(frozen=True, slots=True)
class LiveSlice:
    """A latest file slice as Hudi's view has it: file names, logs oldest first.

    ``damage`` says in which way its files are not what the commits say; null where they are.
    """

    base: str | None
    logs: tuple[str, ...]
    damage: str | None = None


def live_slices(client: HudiClient, planned: Iterable[FileSlice]) -> dict[SliceKey, LiveSlice]:
    """Latest slices of the partitions of ``planned`` by Hudi's own view, those of pending plans included.

    The groups of ``planned`` are compared with what the commits say; one that is damaged is always among them.
    """
    groups = {(slice_.partition, slice_.file_id) for slice_ in planned}
    for _ in range(_LOOKS):
        timeline = client.timeline()
        client.meta.reloadActiveTimeline()
        found = _slices_of_view(client, {partition for partition, _ in groups})
        damage = damage_of(client.storage, timeline, {key: _named(key, found.get(key)) for key in groups})
        if not damage or is_current(timeline):
            break
    for key, entry in damage.items():
        found[key] = replace(found.get(key, LiveSlice(None, ())), damage=entry.text)
    return found


def _named(key: SliceKey, now: LiveSlice | None) -> Slice | None:
    if now is None:
        return None
    sizes = (0,) * len(now.logs)
    return Slice(partition=key[0], file_id=key[1], base=now.base, bytes=0, logs=now.logs, log_sizes=sizes)


def _slices_of_view(client: HudiClient, partitions: Collection[str]) -> dict[SliceKey, LiveSlice]:
    hudi = client.jvm.org.apache.hudi
    metadata = hudi.common.config.HoodieMetadataConfig.newBuilder().enable(client.has_metadata_table).build()
    view = hudi.common.table.view.FileSystemViewManager.createInMemoryFileSystemView(
        client.context, client.meta, metadata
    )
    collectors = client.jvm.java.util.stream.Collectors
    found: dict[SliceKey, LiveSlice] = {}
    try:
        ordered = sorted(partitions)
        wanted = client.jvm.java.util.ArrayList()
        for partition in ordered:
            wanted.add(partition)
        view.loadPartitions(wanted)
        lists = [view.getLatestFileSlices(partition).collect(collectors.toList()) for partition in ordered]
        # A plan object renders all slices as JSON in one call; getters would cost milliseconds a slice, under the lock.
        rendered = hudi.common.util.ClusteringUtils.createClusteringPlan(
            "", client.jvm.java.util.HashMap(), client.array(client.jvm.java.util.List, lists), None
        ).toString()
        for group in json.loads(rendered)["inputGroups"]:
            for entry in planned_slices({"clusteringPlan": {"inputGroups": [group]}}):
                found[entry.partition, entry.file_id] = LiveSlice(entry.base, tuple(reversed(entry.logs)))
    finally:
        view.close()
    return found


def pending_groups(timeline: Timeline) -> dict[SliceKey, str]:
    """File groups of every pending clustering, compaction and log compaction, with what holds them."""
    held: dict[SliceKey, str] = {}
    for instant, plan in timeline.pending_plans():
        for entry in planned_slices(plan):
            held[entry.partition, entry.file_id] = f"pending {instant.kind} {instant.time}"
    return held


def inflight_ingest(client: HudiClient, timeline: Timeline, partitions: Collection[str]) -> str | None:
    """The live writer that may be about to commit to one of ``partitions``; None when there is none."""
    for instant in timeline.pending:
        if instant.kind not in _INGEST:
            continue
        if instant.kind == "replacecommit" and (timeline.plan(instant) or {}).get("clusteringPlan"):
            continue
        # Hudi aborts the commit of such a writer by itself. Its own check for writers that win counts it all the same.
        if client.optimistic and not writer_wins(client.table) and client.heartbeat_expired(instant.time):
            continue
        try:
            workload = timeline.inflight(instant)
        except FileNotFoundError:  # since the timeline was listed: whoever asks looks again
            return f"{instant.kind} {instant.time}, which has just ended"
        if workload and str(workload.get("operationType") or "").upper() == "BULK_INSERT":
            continue  # it only adds file groups
        touched = {partition for partition, _ in write_stats(workload)}
        if touched and not touched & set(partitions):
            continue
        where = f"partition {sorted(touched & set(partitions))[0]!r}" if touched else "partitions it does not name yet"
        return f"{instant.kind} {instant.time} on {where}"
    return None


def stale_reason(slice_: FileSlice, partition: str, live: Mapping[SliceKey, LiveSlice]) -> str | None:
    """Why a planned slice can't be rewritten as planned; None when it is what the table has now."""
    now = live.get((partition, slice_.file_id))
    if now is not None and now.damage is not None:
        return now.damage
    if now is None:
        return f"file group {slice_.file_id} is no longer live"
    base = slice_.path.rsplit("/", 1)[-1] if slice_.path else None
    if now.base != base:
        return f"file group {slice_.file_id} has base file {now.base or 'none'} now, the plan names {base or 'none'}"
    if set(now.logs) != set(slice_.log_files):
        return f"file group {slice_.file_id} has {len(now.logs)} log files, the plan names {len(slice_.log_files)}"
    return None


def examine(
    plan: Plan, live: Mapping[SliceKey, LiveSlice], held: Mapping[SliceKey, str]
) -> tuple[tuple[int, ...], tuple[LeftOut, ...]]:
    """Indices of the groups that can still be rewritten, and the others with their first reason."""
    kept: list[int] = []
    left_out: list[LeftOut] = []
    seen: set[SliceKey] = set()
    for index, group in enumerate(plan.groups):
        reason = None
        for slice_ in group.slices:
            key = (slice_.partition, slice_.file_id)
            if key in held:
                reason = f"file group {slice_.file_id} is in {held[key]}"
            elif key in seen:
                reason = f"file group {slice_.file_id} is in two groups of the plan"
            else:
                reason = stale_reason(slice_, slice_.partition, live)
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


def _group_record(client: HudiClient, group: ClusteringGroup, live: Mapping[SliceKey, LiveSlice]) -> dict[str, Any]:
    now = [(s, live[s.partition, s.file_id]) for s in group.slices]
    return {
        "numOutputFileGroups": group.output_files,
        "metrics": {},
        "extraMetadata": {},
        "version": 1,
        "slices": [slice_record(client, s, latest.base, latest.logs) for s, latest in now],
    }


def refuse_read_only(client: HudiClient) -> None:
    """Raise Rejected where lakefold may not write to the table; Java would say that a file does not exist."""
    for directory in ("", client.timeline().directory):
        if not client.storage.is_writable(directory):
            raise Rejected(
                f"{client.table.name}: {client.storage.shown(directory)} is read-only for {user()}; give lakefold "
                'write access to the whole table, or set mode = "observe" for it'
            )


MakeKnown = Callable[[HudiClient, Timeline, Plan, int], Prepared]
"""Writes a plan under an epoch to the timeline, in the lock section that looked at it."""


def publish(
    client: HudiClient, plan: Plan, epoch: int, make_known: MakeKnown, fence: Callable[[], None] = lambda: None
) -> Prepared:
    """Revalidate ``plan`` and write it to the timeline as one requested instant, all under the table's lock.

    ``fence`` is asked under the lock whether the plan is still this executor's, see ``lake.ports.Fenced``.
    Waits for a moment in which no writer is inflight on the plan's partitions: whichever of the two commits first,
    the other one loses its work. Raises Conflict when there is none for ``WRITER_WAIT`` or no group is left,
    Transient when the lock is taken or a writer has just begun, Rejected where the table can't be written to.
    """
    refuse_read_only(client)
    deadline = time.monotonic() + WRITER_WAIT.total_seconds()
    while True:
        # The look without the lock is what waiting costs; the one that counts is under it.
        busy = inflight_ingest(client, client.timeline(), plan.partitions)
        if busy is None:
            with client.locked("publishing a plan", metadata=False):
                timeline = client.timeline()
                busy = inflight_ingest(client, timeline, plan.partitions)
                if busy is None:
                    fence()
                    prepared = make_known(client, timeline, plan, epoch)
                    _refuse_unseen(client, prepared)
                    return prepared
        if time.monotonic() >= deadline:
            raise Conflict(
                f"{plan.table.name}: a writer is inflight ({busy}) and left no gap in {format_duration(WRITER_WAIT)}; "
                "the next scan plans again. If that writer is dead, the table's next write rolls it back"
            )
        time.sleep(_WRITER_POLL_SECONDS)


def _refuse_unseen(client: HudiClient, prepared: Prepared) -> None:
    """Raise Transient where a writer began between the look at the timeline and the publication.

    Such a writer has not seen the instant, as one that begins from now on does, and writers begin without any lock.
    """
    busy = inflight_ingest(client, client.timeline(), prepared.plan.partitions)
    if busy is not None:
        raise Transient(
            f"{prepared.plan.table.name}: a writer ({busy}) began while {prepared.instant} was being published and may "
            "not have seen it"
        )


def make_known(
    client: HudiClient, timeline: Timeline, plan: Plan, epoch: int, stage: Callable[[str], None]
) -> Prepared:
    """Write ``plan`` to the timeline as one requested clustering; call it under the lock, with no writer inflight.

    ``stage`` hears of the instant first.
    """
    live = live_slices(client, [slice_ for group in plan.groups for slice_ in group.slices])
    kept, left_out = examine(plan, live, pending_groups(timeline))
    if not kept:
        raise Conflict(f"{plan.table.name}: no group of the plan is left; the first: {left_out[0].reason}", left_out)
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
    client.confirm_lock("publishing a plan")
    client.meta.getActiveTimeline().saveToPendingClusterCommit(requested, metadata)
    return Prepared(plan=plan, epoch=epoch, instant=instant, groups=kept, left_out=left_out)


def still_pending(client: HudiClient, prepared: Prepared, action: str) -> Timeline:
    """The timeline, on which the plan's own instant is pending; call it under the lock. Raises Conflict otherwise."""
    plan = prepared.plan
    timeline = client.timeline()
    instant = timeline.find(prepared.instant, action=action)
    ours = extra_metadata(timeline.plan(instant)).get(PLAN_KEY) if instant else None
    if instant is None or not instant.pending or ours != plan.plan_id:
        raise Conflict(
            f"{plan.table.name}: instant {prepared.instant} is no longer pending, another process withdrew or ended it"
        )
    return timeline


def still_there(client: HudiClient, rewrite: Rewrite) -> None:
    """Raise Conflict where a file that ``rewrite`` wrote is gone, or another is in its place; call it under the lock.

    Where two attempts have one instant, only one of them has its files still there.
    """
    prepared = rewrite.prepared
    there = client.storage.sizes([output.path for output in rewrite.outputs])
    if any(there.get(output.path) != output.bytes for output in rewrite.outputs):
        name = prepared.plan.table.name
        raise Conflict(f"{name}: another process took back what was written of {prepared.instant}")


def unchanged(client: HudiClient, rewrite: Rewrite) -> None:
    """Raise Conflict where the instant is not pending any more, a file is gone or an input changed; under the lock."""
    prepared, plan = rewrite.prepared, rewrite.prepared.plan
    still_pending(client, prepared, "replacecommit")
    still_there(client, rewrite)
    groups = [plan.groups[index] for index in prepared.groups]
    live = live_slices(client, [slice_ for group in groups for slice_ in group.slices])
    for group in groups:
        for slice_ in group.slices:
            reason = stale_reason(slice_, slice_.partition, live)
            if reason:
                raise Conflict(f"{plan.table.name}: {reason}")
