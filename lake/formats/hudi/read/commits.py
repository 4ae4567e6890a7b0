# SPDX-License-Identifier: Apache-2.0
"""The commits of lakefold's plans, and the writers' commits that overlap them."""

from collections.abc import Collection, Hashable, Mapping
from typing import Any

from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.pending.actions import current_plan_id
from lake.formats.hudi.pending.attempt_files import list_attempts
from lake.formats.hudi.read.superseded import find_change_data
from lake.formats.hudi.timeline.timeline import (
    EPOCH_KEY,
    PLAN_KEY,
    Instant,
    Timeline,
    extra_metadata,
    instant_datetime,
    planned_slices,
    write_stats,
)
from lake.model import OverlappingCommit
from lake.plan import Commit, OutputFile, SupersededVersion

REWRITE_KINDS = ("clustering", "compaction", "replacecommit")
"""The kinds of instants that may be lakefold's; up to table version 6 a clustering is a replacecommit."""

#: plan ids of completed instants; by table and fingerprint of the completed file
_plan_id_cache: dict[tuple[str, Hashable], str | None] = {}
_MAX_CACHED_PLAN_IDS = 100_000


def find_commit(storage: TableStorage, timeline: Timeline, plan_id: str) -> Commit | None:
    """Return the completed commit of ``plan_id``. Searches the active, then the archived timeline, newest first."""
    active = find_recent_commits(storage, timeline, {plan_id}).get(plan_id)
    if active is not None:
        return active
    for archived in timeline.archived({"replacecommit", "commit"}, containing=plan_id.encode()):
        if recorded_plan_id(archived.plan, archived.metadata) == plan_id:
            return _build_commit(storage, timeline.properties, plan_id, archived.time, archived.plan, archived.metadata)
    return None


def find_recent_commits(storage: TableStorage, timeline: Timeline, plan_ids: Collection[str]) -> dict[str, Commit]:
    """Return the completed commits of the active timeline that name one of ``plan_ids``."""
    found: dict[str, Commit] = {}
    for instant in reversed(timeline.completed):
        plan_id = plan_id_of(timeline, instant)
        if plan_id is not None and plan_id in plan_ids and plan_id not in found:
            plan, metadata = timeline.plan(instant), timeline.metadata(instant)
            found[plan_id] = _build_commit(storage, timeline.properties, plan_id, instant.time, plan, metadata)
    return found


def plan_id_of(timeline: Timeline, instant: Instant) -> str | None:
    """Return the id of the lakefold plan of a completed instant; None if the instant is foreign."""
    if instant.kind not in REWRITE_KINDS:
        return None
    key = timeline.storage.location, timeline.fingerprint(instant)
    if key in _plan_id_cache:
        return _plan_id_cache[key]
    metadata = timeline.metadata(instant)
    name = recorded_plan_id(timeline.plan(instant), metadata)
    if metadata is not None:  # while the file is empty, its writer may not have finished
        if len(_plan_id_cache) >= _MAX_CACHED_PLAN_IDS:
            _plan_id_cache.clear()
        _plan_id_cache[key] = name
    return name


def recorded_plan_id(plan: Mapping[str, Any] | None, metadata: Mapping[str, Any] | None) -> str | None:
    """Return the id of the lakefold plan that a completed rewrite belongs to; None if it is foreign.

    A commit by lakefold names the plan that made it. Its request may name another plan, whose instant this plan
    adopted. If another process executed lakefold's request, only the request names a plan.
    """
    return extra_metadata(metadata).get(PLAN_KEY) or extra_metadata(plan).get(PLAN_KEY)


def _build_commit(
    storage: TableStorage,
    properties: Mapping[str, str],
    plan_id: str,
    instant: str,
    plan: Mapping[str, object] | None,
    metadata: Mapping[str, object] | None,
) -> Commit:
    outputs = tuple(
        OutputFile(
            partition=partition,
            path=stat["path"],
            bytes=stat.get("fileSizeInBytes") or 0,
            rows=stat.get("numWrites") or 0,
        )
        for partition, stat in write_stats(metadata)
        if stat.get("path")
    )
    inputs = [(entry.partition, path) for entry in planned_slices(plan or {}) for path in entry.paths]
    change_data = find_change_data(storage, properties, [path for _, path in inputs])
    inputs += [(path.rpartition("/")[0], path) for paths in change_data.values() for path in paths]
    sizes = storage.sizes([path for _, path in inputs])
    superseded = tuple(
        SupersededVersion(partition=partition, path=path, bytes=sizes.get(path, 0), instant=instant)
        for partition, path in inputs
    )
    epoch = extra_metadata(metadata).get(EPOCH_KEY)
    return Commit(
        plan_id=plan_id,
        instant=instant,
        outputs=outputs,
        superseded=superseded,
        epoch=int(epoch) if epoch is not None else None,
    )


def pending_plan_ids(timeline: Timeline) -> dict[str, str]:
    """Return the id of the current plan of each pending rewrite by lakefold, by instant time."""
    plans = timeline.pending_plans()
    at_work = list_attempts(timeline.storage) if plans else {}
    named = {instant.time: current_plan_id(plan, at_work.get(instant.time, ())) for instant, plan in plans}
    return {time: plan_id for time, plan_id in named.items() if plan_id is not None}


def find_overlaps(timeline: Timeline) -> tuple[OverlappingCommit, ...]:
    """Return the foreign commits of the active timeline that overlapped a lakefold plan, oldest first.

    Each names the first plan that it overlapped.
    """
    own_commits: list[tuple[Instant, str, str]] = []
    other_commits: list[tuple[Instant, str]] = []
    for instant in timeline.commits:
        end, plan_id = timeline.known_completion(instant), plan_id_of(timeline, instant)
        if end is not None and plan_id is None:
            other_commits.append((instant, end))
        elif end is not None and plan_id is not None and _is_published_by_lakefold(timeline, instant):
            own_commits.append((instant, end, plan_id))
    found = []
    for instant, end in other_commits:
        overlapped_plan = next(
            (plan for own, own_end, plan in own_commits if own.time < end and instant.time < own_end), None
        )
        if overlapped_plan is not None:
            at = instant_datetime(end, timeline.timezone)
            found.append(
                OverlappingCommit(instant=instant.time, action=instant.kind, completed_at=at, plan_id=overlapped_plan)
            )
    return tuple(found)


def _is_published_by_lakefold(timeline: Timeline, instant: Instant) -> bool:
    return PLAN_KEY in extra_metadata(timeline.plan(instant))
