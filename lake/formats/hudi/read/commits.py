# SPDX-License-Identifier: Apache-2.0
"""Which commits are ours, and which superseded files nobody needs any more."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from lake.formats.hudi.files.names import relative_path
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.pending.actions import current_plan_id
from lake.formats.hudi.pending.attempt_files import list_attempts
from lake.formats.hudi.read.deletion_blockers import find_ordering_blockers
from lake.formats.hudi.read.slices import committed_times, is_listed_by_metadata_table, list_latest_slices
from lake.formats.hudi.timeline.file_history import WeightedCache
from lake.formats.hudi.timeline.timeline import (
    CLEAN_KEY,
    COMMIT_ACTIONS,
    EPOCH_KEY,
    PLAN_KEY,
    PLANNED_KINDS,
    Instant,
    Timeline,
    extra_metadata,
    instant_datetime,
    planned_slices,
    write_stats,
)
from lake.model import OverlappingCommit
from lake.plan import Commit, OutputFile, SupersededVersion

_REWRITE_KINDS = ("clustering", "compaction", "replacecommit")


#: whose plan a completed instant names; by table and by what identifies the content of the file that completed it
_plan_id_cache: dict[tuple[str, Hashable], str | None] = {}
_MAX_CACHED_PLAN_IDS = 100_000
#: files that a completed clean of others deleted, which never change either
_foreign_clean_cache: WeightedCache[frozenset[str]] = WeightedCache(300_000)


def find_commit(storage: TableStorage, timeline: Timeline, plan_id: str) -> Commit | None:
    """The completed commit that names ``plan_id``: active timeline newest first, then the archived one."""
    active = find_recent_commits(storage, timeline, {plan_id}).get(plan_id)
    if active is not None:
        return active
    for archived in timeline.archived({"replacecommit", "commit"}, containing=plan_id.encode()):
        if recorded_plan_id(archived.plan, archived.metadata) == plan_id:
            return _build_commit(storage, plan_id, archived.time, archived.plan, archived.metadata)
    return None


def find_recent_commits(storage: TableStorage, timeline: Timeline, plan_ids: Collection[str]) -> dict[str, Commit]:
    """The completed commits of the active timeline that name one of ``plan_ids``."""
    found: dict[str, Commit] = {}
    for instant in reversed(timeline.completed):
        plan_id = plan_id_of(timeline, instant)
        if plan_id is not None and plan_id in plan_ids and plan_id not in found:
            plan, metadata = timeline.plan(instant), timeline.metadata(instant)
            found[plan_id] = _build_commit(storage, plan_id, instant.time, plan, metadata)
    return found


def plan_id_of(timeline: Timeline, instant: Instant) -> str | None:
    """The plan of lakefold's that a completed instant belongs to, None for one of others."""
    if instant.kind not in _REWRITE_KINDS:
        return None
    key = timeline.storage.location, timeline.fingerprint(instant)
    if key in _plan_id_cache:
        return _plan_id_cache[key]
    metadata = timeline.metadata(instant)
    name = recorded_plan_id(timeline.plan(instant), metadata)
    if metadata is not None:  # an empty file may be one that is being written
        if len(_plan_id_cache) >= _MAX_CACHED_PLAN_IDS:
            _plan_id_cache.clear()
        _plan_id_cache[key] = name
    return name


def recorded_plan_id(plan: Mapping[str, Any] | None, metadata: Mapping[str, Any] | None) -> str | None:
    """The plan of ours that a completed rewrite belongs to.

    A commit of ours names the plan that made it, which need not be the one that wrote the request: plans are adopted.
    Where another process executed a request of ours, only the request tells.
    """
    return extra_metadata(metadata).get(PLAN_KEY) or extra_metadata(plan).get(PLAN_KEY)


def _build_commit(
    storage: TableStorage,
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
    """Pending rewrites that name a plan of ours: instant and the id of the plan that they are of now."""
    plans = timeline.pending_plans()
    at_work = list_attempts(timeline.storage) if plans else {}
    named = {instant.time: current_plan_id(plan, at_work.get(instant.time, ())) for instant, plan in plans}
    return {time: plan_id for time, plan_id in named.items() if plan_id is not None}


def find_deletion_blockers(
    storage: TableStorage,
    timeline: Timeline,
    versions: Sequence[SupersededVersion],
    options: Mapping[str, str],
) -> dict[str, str | None]:
    """For each version's path why it must stay, None when it may go; ``options`` are the table's ``write_options``."""
    if not versions:
        return {}
    completed = _completed_times(timeline, versions)
    # A clean asks under the lock, so that storage is listed only where it matters. hudi-rs finds partitions by the
    # values of their columns, on which no deletion is to rest.
    where = None if is_listed_by_metadata_table(timeline) else {version.partition for version in versions}
    live = {path for entry in list_latest_slices(storage, timeline, where) for path, _ in entry.sized_paths}
    needed: dict[str, str] = {}
    for instant, plan in timeline.pending_plans():
        kind = instant.kind if instant.kind in PLANNED_KINDS else "clustering"
        for entry in planned_slices(plan):
            needed.update((path, f"needed by pending {kind} {instant.time}") for path in entry.paths)
    for savepoint, paths in timeline.savepoints().items():
        needed.update((path, f"kept by savepoint {savepoint}") for path in paths)

    def reason(version: SupersededVersion) -> str | None:
        if version.instant not in completed:
            return f"instant {version.instant} that replaced it is not completed (rolled back or restored)"
        if version.path in live:
            return "live: it is in a latest file slice"
        return needed.get(version.path)

    reasons = {version.path: reason(version) for version in versions}
    free = [version for version in versions if reasons[version.path] is None]
    return reasons | find_ordering_blockers(storage, timeline, options, free)


def _completed_times(timeline: Timeline, versions: Sequence[SupersededVersion]) -> set[str]:
    """Completed instants: those of the active timeline, and those that replaced ``versions`` and were archived since.

    The active timeline was listed before: what is archived meanwhile is in both, not in none.
    """
    completed = set(committed_times(timeline))
    unknown = {v.instant for v in versions} - completed
    if unknown:
        completed.update(a.time for a in timeline.archived(COMMIT_ACTIONS, plans=False, metadata=False, times=unknown))
    return completed


def find_obsolete_deletions(
    storage: TableStorage, timeline: Timeline, versions: Sequence[SupersededVersion]
) -> dict[int, str]:
    """Versions, by index, that nobody has to delete any more: their replacement is undone, or a clean took them.

    A table that was made anew at the same place does not know the instant either, so that a file of its own is never
    taken for an old one of the same name.
    """
    completed = _completed_times(timeline, versions)
    closed = {
        index: f"instant {version.instant} that replaced it is not among the table's commits: rolled back, restored "
        "away, or of a table that was made anew"
        for index, version in enumerate(versions)
        if version.instant not in completed
    }
    cleaned = _files_of_foreign_cleans(timeline)
    taken = {index: v.path for index, v in enumerate(versions) if index not in closed and v.path in cleaned}
    there = storage.sizes(list(taken.values()))
    for index, path in taken.items():
        if path not in there:
            closed[index] = f"deleted by the table's own clean {cleaned[path]}"
    return closed


def _files_of_foreign_cleans(timeline: Timeline) -> dict[str, str]:
    """Files that completed cleans of the active timeline deleted and that are not lakefold's, with the clean's time."""
    cleans = [instant for instant in timeline.completed if instant.action == "clean"]
    deleted = timeline.storage.map_parallel(lambda clean: _files_of_foreign_clean(timeline, clean), cleans)
    return {path: clean.time for clean, paths in zip(cleans, deleted, strict=True) for path in paths}


def _files_of_foreign_clean(timeline: Timeline, clean: Instant) -> frozenset[str]:
    key = timeline.storage.location, timeline.fingerprint(clean)
    found = _foreign_clean_cache.get(key)
    if found is None:
        record = timeline.metadata(clean) or {}
        entries = {} if CLEAN_KEY in extra_metadata(record) else record.get("partitionMetadata") or {}
        found = frozenset(
            relative_path(partition, path.rsplit("/", 1)[-1])
            for partition, entry in entries.items()
            for path in entry.get("successDeleteFiles") or ()
        )
        _foreign_clean_cache.put(key, found, 1 + len(found))
    return found


#: how far the times of an instant's files may be from its name before they are taken for those of a copy
_MAX_FILE_TIME_DIFFERENCE = timedelta(minutes=1)


def find_overlaps(timeline: Timeline) -> tuple[OverlappingCommit, ...]:
    """Such commits of the active timeline, oldest first, each with the first plan that it met."""
    ours: list[tuple[Instant, str, str]] = []
    theirs: list[tuple[Instant, str]] = []
    for instant in timeline.commits:
        end, plan_id = _completion_time(timeline, instant), plan_id_of(timeline, instant)
        if end is not None and plan_id is None:
            theirs.append((instant, end))
        elif end is not None and plan_id is not None and _is_published_by_lakefold(timeline, instant):
            ours.append((instant, end, plan_id))
    found = []
    for instant, end in theirs:
        met = next((plan for own, own_end, plan in ours if own.time < end and instant.time < own_end), None)
        if met is not None:
            at = instant_datetime(end, timeline.timezone)
            found.append(OverlappingCommit(instant=instant.time, action=instant.kind, completed_at=at, plan_id=met))
    return tuple(found)


def _is_published_by_lakefold(timeline: Timeline, instant: Instant) -> bool:
    return PLAN_KEY in extra_metadata(timeline.plan(instant))


def _completion_time(timeline: Timeline, instant: Instant) -> str | None:
    """When a commit completed; None where that is not known, as in layout 1 of a table that was copied."""
    if timeline.layout != 1:
        return instant.completed_at
    requested = timeline.modified_at(instant.requested_file)
    begun = instant_datetime(instant.time, timeline.timezone)
    return (
        instant.completed_at if requested is not None and abs(requested - begun) < _MAX_FILE_TIME_DIFFERENCE else None
    )
