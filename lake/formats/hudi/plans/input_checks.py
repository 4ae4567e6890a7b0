# SPDX-License-Identifier: Apache-2.0
"""Checks under the lock that a plan's inputs are the table's current files.

Hudi itself checks nothing here: a stale slice loses the rows written since, and a file group in two pending plans makes
the table unreadable.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from lake.errors import Conflict, EarlierAttemptPending
from lake.formats.hudi.audit.damage import find_damage, is_timeline_current
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.names import FileGroupId, is_foreign_file, relative_path, slice_paths
from lake.formats.hudi.pending.actions import WRITER_TIMEOUT
from lake.formats.hudi.read.slices import ListedSlice
from lake.formats.hudi.timeline.archive import ArchiveUnreadable
from lake.formats.hudi.timeline.file_history import FileHistory, active_history, add_archived, read_commits_after
from lake.formats.hudi.timeline.timeline import PLAN_KEY, Instant, Timeline, extra_metadata, planned_slices
from lake.model import FileSlice
from lake.plan import Plan
from lake.ports import PreparedPlan, Rewrite
from lake.units import format_duration

#: maximum number of comparisons: a commit or a clean between two readings can cause a difference
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class LiveSlice:
    """A latest file slice in Hudi's view: file names, logs oldest first.

    ``damage`` describes how its files differ from the commits; None if they don't.
    """

    base: str | None
    logs: tuple[str, ...]
    damage: str | None = None


def read_live_slices(client: HudiClient, planned: Iterable[FileSlice]) -> dict[FileGroupId, LiveSlice]:
    """Return the latest slices in the partitions of ``planned`` from Hudi's own view, also those of pending plans.

    The groups of ``planned`` are compared with the commits. A damaged group is always in the result.
    """
    groups = {(slice_.partition, slice_.file_id) for slice_ in planned}
    for _ in range(_ATTEMPTS):
        timeline = client.read_timeline()
        client.meta.reloadActiveTimeline()
        found = _read_view(client, {partition for partition, _ in groups})
        damage = find_damage(client.storage, timeline, {key: _as_listed_slice(key, found.get(key)) for key in groups})
        if not damage or is_timeline_current(timeline):
            break
    for key, entry in damage.items():
        found[key] = replace(found.get(key, LiveSlice(None, ())), damage=entry.text)
    return found


def _as_listed_slice(key: FileGroupId, now: LiveSlice | None) -> ListedSlice | None:
    if now is None:
        return None
    sizes = (0,) * len(now.logs)
    return ListedSlice(partition=key[0], file_id=key[1], base=now.base, bytes=0, logs=now.logs, log_sizes=sizes)


def _read_view(client: HudiClient, partitions: Collection[str]) -> dict[FileGroupId, LiveSlice]:
    hudi = client.jvm.org.apache.hudi
    collectors = client.jvm.java.util.stream.Collectors
    found: dict[FileGroupId, LiveSlice] = {}
    view, ordered = _open_view(client, sorted(partitions))
    try:
        lists = [view.getLatestFileSlices(partition).collect(collectors.toList()) for partition in ordered]
        # A plan object renders all slices as JSON in one call; getters would cost milliseconds a slice, under the lock.
        rendered = hudi.common.util.ClusteringUtils.createClusteringPlan(
            "", client.jvm.java.util.HashMap(), client.bundle.array(client.jvm.java.util.List, lists), None
        ).toString()
        for group in json.loads(rendered)["inputGroups"]:
            for entry in planned_slices({"clusteringPlan": {"inputGroups": [group]}}):
                found[entry.partition, entry.file_id] = LiveSlice(entry.base, tuple(reversed(entry.logs)))
    finally:
        view.close()
    return found


def _open_view(client: HudiClient, partitions: list[str]) -> tuple[Any, list[str]]:
    """Return Hudi's view of ``partitions``, and the partitions that have slices; the caller closes the view.

    Without a metadata table Hudi lists the directories, and fails at a foreign file whose name has no file id. The view
    is then built from lakefold's listing, without the foreign files.
    """
    hudi, java = client.jvm.org.apache.hudi, client.jvm.java
    foreign = () if client.has_metadata_table else client.storage.list_table_files(partitions).foreign_files
    if not foreign:
        metadata = hudi.common.config.HoodieMetadataConfig.newBuilder().enable(client.has_metadata_table).build()
        view = hudi.common.table.view.FileSystemViewManager.createInMemoryFileSystemView(
            client.context, client.meta, metadata
        )
        wanted = java.util.ArrayList()
        for partition in partitions:
            wanted.add(partition)
        view.loadPartitions(wanted)
        return view, partitions
    listed, filled = java.util.ArrayList(), []
    for partition in partitions:
        files = _list_without_foreign(client, partition)
        listed.addAll(files)
        if not files.isEmpty():
            filled.append(partition)
    timeline = client.meta.getActiveTimeline().filterCompletedAndCompactionInstants()
    return hudi.common.table.view.HoodieTableFileSystemView(client.meta, timeline, listed), filled


def _list_without_foreign(client: HudiClient, partition: str) -> Any:
    """Return the entries of the directory of ``partition`` without foreign files, as a Java list."""
    storage, path_of = client.meta.getStorage(), client.jvm.org.apache.hudi.storage.StoragePath
    others = client.jvm.java.util.ArrayList()
    for info in client.storage.children(partition):
        if is_foreign_file(info.base_name):
            others.add(storage.getPathInfo(path_of(f"{client.base}/{relative_path(partition, info.base_name)}")))
    files = client.jvm.java.util.ArrayList(storage.listDirectEntries(path_of(f"{client.base}/{partition}".rstrip("/"))))
    files.removeAll(others)
    return files


def find_pending_groups(timeline: Timeline) -> dict[FileGroupId, str]:
    """Return the file groups of every pending clustering, compaction and log compaction, with the plan's name."""
    return _groups_of(timeline.pending_plans())


def _groups_of(pending: Iterable[tuple[Instant, Mapping[str, Any]]]) -> dict[FileGroupId, str]:
    held: dict[FileGroupId, str] = {}
    for instant, plan in pending:
        for entry in planned_slices(plan):
            held[entry.partition, entry.file_id] = f"pending {instant.kind} {instant.time}"
    return held


def find_groups_of_others(timeline: Timeline, plan: Plan) -> dict[FileGroupId, str]:
    """Return the file groups of all pending plans. Raises EarlierAttemptPending if ``plan`` itself is pending.

    The plan was withdrawn before. A withdrawal leaves only an instant that a writer, or a later attempt that is alive,
    may be executing.
    """
    pending = timeline.pending_plans()
    for instant, record in pending:
        if extra_metadata(record).get(PLAN_KEY) == plan.plan_id:
            raise EarlierAttemptPending(
                f"{plan.table.name}: {instant.kind} {instant.time}, an earlier attempt of this plan, is still pending, "
                "and a writer may be executing it. The plan waits until the writer commits it, or has shown no sign "
                f"of life for {format_duration(WRITER_TIMEOUT)}"
            )
    return _groups_of(pending)


def record_log_sizes(client: HudiClient, timeline: Timeline, plan: Plan, *, requested: str | None = None) -> None:
    """Record the committed sizes of the logs of ``plan`` in ``client``, for ``refuse_changed_logs``; under the lock.

    ``requested`` is the time of a plan that was requested earlier. Raises Conflict if a later commit has written to one
    of its logs since: Hudi reads a log only up to the time of the plan, and then leaves the whole log behind.
    """
    sizes = _committed_log_sizes(timeline, plan, range(len(plan.groups)))
    for commit, changes in read_commits_after(timeline, requested) if sizes and requested is not None else ():
        for wrote in changes.written_files or ():
            if wrote.path in sizes:
                raise Conflict(
                    f"{plan.table.name}: {commit.kind} {commit.time} wrote to {wrote.path} after {requested}, the time "
                    "of the plan"
                )
    client.input_log_sizes = sizes


def refuse_changed_logs(client: HudiClient, timeline: Timeline, plan: Plan, groups: Iterable[int]) -> None:
    """Raise Conflict if the commits have another size for a log of ``groups`` than ``record_log_sizes`` found.

    On storage that can append, as HDFS, writers before Hudi 1.0 append to the newest log instead of creating one. On
    any storage a rollback of a commit of layout 1 leaves the commit's logs in place, with a block that rolls them back.
    In both cases all logs that the plan names are still there.
    """
    for path, size in _committed_log_sizes(timeline, plan, groups).items():
        before = client.input_log_sizes.get(path)
        if size == before and path in client.input_log_sizes:
            continue
        if size is None or (before is not None and size < before):
            raise Conflict(f"{plan.table.name}: a commit that wrote to {path} was rolled back while the plan ran")
        raise Conflict(f"{plan.table.name}: a writer appended to {path} while the plan ran")


def _committed_log_sizes(timeline: Timeline, plan: Plan, groups: Iterable[int]) -> dict[str, int | None]:
    """Return the sizes of the logs of ``groups`` by the commits, by path; None for a log that no commit names.

    Empty from layout 2 on, whose logs never change.
    """
    slices = [slice_ for index in groups for slice_ in plan.groups[index].slices if slice_.log_files]
    if timeline.layout != 1 or not slices:
        return {}
    history = active_history(timeline)
    sizes = _sizes_of_logs(history, slices)
    if None in sizes.values():
        # Without an archive that can be read, a log of an archived commit counts as one that no commit names.
        with suppress(ArchiveUnreadable):
            sizes = _sizes_of_logs(add_archived(timeline, history), slices)
    return sizes


def _sizes_of_logs(history: FileHistory, slices: Iterable[FileSlice]) -> dict[str, int | None]:
    sizes: dict[str, int | None] = {}
    for slice_ in slices:
        expected = history.expected_slice((slice_.partition, slice_.file_id))
        logs = {} if expected is None else expected.logs
        for name in slice_.log_files:
            sizes[relative_path(slice_.partition, name)] = (logs[name].bytes or 0) if name in logs else None
    return sizes


def stale_reason(slice_: FileSlice, live: Mapping[FileGroupId, LiveSlice]) -> str | None:
    """Return why a planned slice can't be rewritten as planned; None if it is unchanged."""
    now = live.get((slice_.partition, slice_.file_id))
    reason = stale_base_reason(slice_, now)
    if reason is None and now is not None and set(now.logs) != set(slice_.log_files):
        return f"file group {slice_.file_id} has {len(now.logs)} log files, the plan names {len(slice_.log_files)}"
    return reason


def stale_base_reason(slice_: FileSlice, now: LiveSlice | None) -> str | None:
    """Return why a planned slice can't be rewritten, regardless of its logs; None if its base file is unchanged."""
    if now is None:
        return f"file group {slice_.file_id} is no longer live"
    if now.damage is not None:
        return now.damage
    base = slice_.path.rsplit("/", 1)[-1] if slice_.path else None
    if now.base != base:
        return f"file group {slice_.file_id} has base file {now.base or 'none'} now, the plan names {base or 'none'}"
    return None


def input_paths(plan: Plan, groups: Iterable[int]) -> frozenset[str]:
    """Return the files of the slices that these groups of ``plan`` name, as paths relative to the table."""
    return frozenset(path for index in groups for slice_ in plan.groups[index].slices for path in slice_paths(slice_))


def require_pending(client: HudiClient, prepared: PreparedPlan, action: str) -> Timeline:
    """Return the timeline on which the plan's own instant is pending, else raise Conflict; call it under the lock."""
    plan = prepared.plan
    timeline = client.read_timeline()
    instant = timeline.find(prepared.instant, action=action)
    plan_id_found = extra_metadata(timeline.plan(instant)).get(PLAN_KEY) if instant else None
    if instant is None or not instant.pending or plan_id_found != plan.plan_id:
        raise Conflict(
            f"{plan.table.name}: instant {prepared.instant} is no longer pending, another process withdrew or ended it"
        )
    return timeline


def require_outputs(client: HudiClient, rewrite: Rewrite) -> None:
    """Raise Conflict if a file that ``rewrite`` wrote is missing or was replaced; call it under the lock.

    If two attempts have the same instant, only one of them still has its files.
    """
    prepared = rewrite.prepared
    there = client.storage.sizes([output.path for output in rewrite.outputs])
    if any(there.get(output.path) != output.bytes for output in rewrite.outputs):
        name = prepared.plan.table.name
        raise Conflict(f"{name}: another process rolled back the files of {prepared.instant}")
