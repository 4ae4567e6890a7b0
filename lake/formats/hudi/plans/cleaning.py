# SPDX-License-Identifier: Apache-2.0
"""Cleans of lakefold's: exactly the named files, deleted through Hudi's clean action.

Every clean plan says from which instant on older states can be read (``compute_clean_bounds``). Without it Hudi's archiver
takes everything replaced before the clean as gone, archives the commits that replaced files which are still there, and
those files become live again: every row of theirs twice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.names import relative_path
from lake.formats.hudi.plans.clean_bounds import (
    NEWEST_DELETED_KEY,
    CleanBounds,
    CleanerProgress,
    archival_bound,
    compute_clean_bounds,
    read_cleaner_progress,
)
from lake.formats.hudi.plans.preconditions import check_preconditions, unchanged_instant_check, unmoved_timeline_check
from lake.formats.hudi.timeline.timeline import CLEAN_KEY, Instant, Timeline, extra_metadata

_CLEANING = "cleaning"
#: files of one clean plan: the table's lock is held while they are deleted
MAX_FILES_PER_CLEAN = 1000


def clean_files(
    client: HudiClient,
    timeline: Timeline,
    paths: Mapping[str, Sequence[str]],
    progress: CleanerProgress,
    *,
    superseded_by: str,
    partitions: Sequence[str] = (),
    fence: Callable[[], None] = lambda: None,
) -> None:
    """Clean these ``paths`` by partition, and whole ``partitions``; call it under the lock.

    ``timeline`` is the one on which they were chosen; Transient is raised where it has moved since. ``progress`` is how
    far the table's own cleaner is when this clean is done, ``superseded_by`` the newest commit that superseded one of
    the files, '' where no file is deleted. ``fence`` is the last look at whose deletion it is.
    """
    instant = client.new_instant()
    gone = frozenset(path for files in paths.values() for path in files)
    start = compute_clean_bounds(
        client.table, client.storage, timeline, instant, progress, deleted_paths=gone, superseded_by=superseded_by
    )
    publish_clean(client, timeline, instant, paths, start, partitions=partitions, fence=fence)
    client.run_clean(instant)


def withdraw_pending_cleans(client: HudiClient, timeline: Timeline) -> bool:
    """Withdraw the cleans that a killed lakefold left; whether there were any. Call it under the lock.

    A clean of lakefold's runs under the lock from its first byte to its last, so that one that is pending now has no
    process any more. Of one that had begun the deleted files are told to readers and to the metadata table by a clean
    of their own. That comes first: nothing but the pending plan says which files are gone.
    """
    left = list_pending_cleans(timeline)
    for clean in left:
        deleted = find_deleted_files(client, clean)
        if deleted:
            now = client.read_timeline()
            newest = clean.extra.get(NEWEST_DELETED_KEY, "")
            clean_files(client, now, deleted, read_cleaner_progress(now), superseded_by=newest)
        withdraw_clean(client, timeline, clean)
    return bool(left)


def hold_back_archival(client: HudiClient, timeline: Timeline, instant: str, partition: str) -> None:
    """See to it that the archiver holds the pending replacement ``instant`` back once it is completed.

    A clean by another process may have passed it while it was pending, as those by hours and by file versions do. Then
    a clean of no file, in ``partition``, corrects that. Call it under the lock.
    """
    if archival_bound(timeline, client.table.write_options) > instant:
        clean_files(client, timeline, {partition: ()}, read_cleaner_progress(timeline), superseded_by="")


def publish_clean(
    client: HudiClient,
    timeline: Timeline,
    instant: str,
    paths: Mapping[str, Sequence[str]],
    bounds: CleanBounds,
    *,
    partitions: Sequence[str] = (),
    fence: Callable[[], None] = lambda: None,
) -> None:
    """Write the requested clean ``instant``; call it under the lock."""
    kept = timeline.find(bounds.earliest_retained)
    record: dict[str, object] = {
        "earliestInstantToRetain": {
            "timestamp": bounds.earliest_retained,
            "action": kept.action if kept else "replacecommit",
            "state": "COMPLETED",
        },
        "lastCompletedCommitTimestamp": bounds.newest_commit,
        "policy": "KEEP_LATEST_COMMITS",
        "filesToBeDeletedPerPartition": {},
        "filePathsToBeDeletedPerPartition": {
            partition: [{"filePath": f"{client.base}/{path}", "isBootstrapBaseFile": False} for path in files]
            for partition, files in paths.items()
        },
        "partitionsToBeDeleted": list(partitions),
        "version": 2,
        "extraMetadata": dict(bounds.extra),
    }
    requested = client.meta.getInstantGenerator().getCleanRequestedInstant(instant)
    plan = client.avro_object("HoodieCleanerPlan", record)
    check_preconditions(
        client, _CLEANING, instant=instant, check=unmoved_timeline_check(client, timeline, _CLEANING), fence=fence
    )
    client.meta.getActiveTimeline().saveToCleanRequested(requested, client.option_of(plan))


_WITHDRAWING = "withdrawing a clean"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingClean:
    """A pending clean of lakefold's with its files by partition, and what its plan says besides."""

    instant: Instant
    paths: Mapping[str, Sequence[str]]
    extra: Mapping[str, str] = field(default_factory=dict)


def list_pending_cleans(timeline: Timeline) -> list[PendingClean]:
    """The pending cleans of lakefold's, by time."""
    found = []
    for instant in timeline.pending:
        if instant.kind == "clean":
            plan = timeline.plan(instant) or {}
            extra = extra_metadata(plan)
            if CLEAN_KEY in extra:
                found.append(PendingClean(instant=instant, paths=planned_deletions(plan), extra=extra))
    return found


def planned_deletions(plan: Mapping[str, Any]) -> dict[str, list[str]]:
    """The files that a clean plan deletes, by partition, as paths relative to the table."""
    return {
        partition: [relative_path(partition, str(entry["filePath"]).rsplit("/", 1)[-1]) for entry in entries]
        for partition, entries in (plan.get("filePathsToBeDeletedPerPartition") or {}).items()
    }


def find_deleted_files(client: HudiClient, clean: PendingClean) -> dict[str, list[str]]:
    """The files of a pending clean that are not in storage any more, by partition."""
    there = client.storage.sizes([path for paths in clean.paths.values() for path in paths])
    deleted = {name: [path for path in paths if path not in there] for name, paths in clean.paths.items()}
    return {name: paths for name, paths in deleted.items() if paths}


def withdraw_clean(client: HudiClient, timeline: Timeline, clean: PendingClean) -> None:
    """Take a pending clean of lakefold's off the timeline; call it under the table's lock."""
    check_preconditions(
        client, _WITHDRAWING, is_withdrawal=True, check=unchanged_instant_check(client, clean.instant, _WITHDRAWING)
    )
    for name in (clean.instant.inflight_file, clean.instant.requested_file):
        if name is not None:
            client.remove_file(f"{timeline.directory}/{name}")
    client.meta.reloadActiveTimeline()
