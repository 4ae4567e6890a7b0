# SPDX-License-Identifier: Apache-2.0
"""Deletes exactly the named superseded files through Hudi's clean action.

Every clean plan says from which instant on replaced files may still exist (``clean_start``). Without it Hudi's archiver
takes everything replaced before the clean as gone, archives the commits that replaced files which are still there, and
those files become live again: every row of theirs twice.
"""

from collections.abc import Callable, Mapping, Sequence

from lake.errors import Conflict, Transient
from lake.formats.hudi.clean_start import CleanStart, Progress, clean_start, held_from, native_progress
from lake.formats.hudi.client import HudiClient
from lake.formats.hudi.commits import reasons_to_keep
from lake.formats.hudi.outcomes import outcomes
from lake.formats.hudi.timeline import Timeline
from lake.plan import SupersededVersion
from lake.ports import Deletion

#: files of one clean plan: the table's lock is held while they are deleted
MAX_FILES_PER_CLEAN = 1000


def delete(
    client: HudiClient, versions: Sequence[SupersededVersion], fence: Callable[[], None] = lambda: None
) -> Deletion:
    """Delete ``versions``, oldest replacing instant first, in clean plans of bounded size; what became of them.

    ``fence`` is the last look at whose deletion it is. Files already gone free nothing, and one of another size than
    was replaced stays; its time is not asked for, since Hudi uses no name twice and times do not survive a copy of the
    table. Raises Conflict where a version is live, pending or kept by a savepoint (before anything of its batch is
    deleted), Transient where Hudi left a file behind.
    """
    freed, left = 0, dict[int, str]()
    ordered = sorted(enumerate(versions), key=lambda numbered: (numbered[1].instant, numbered[1].path))
    for start in range(0, len(ordered), MAX_FILES_PER_CLEAN):
        batch = dict(ordered[start : start + MAX_FILES_PER_CLEAN])
        with outcomes(client.table, "cleaning"), client.locked("cleaning"):
            done = _delete_batch(client, batch, fence)
        freed += done.bytes_freed
        left |= done.left
    return Deletion(bytes_freed=freed, left=left)


def _delete_batch(client: HudiClient, batch: Mapping[int, SupersededVersion], fence: Callable[[], None]) -> Deletion:
    timeline = client.timeline()
    sizes = client.storage.sizes([version.path for version in batch.values()])
    there = {index: version for index, version in batch.items() if version.path in sizes}
    left = {index: why for index, v in there.items() if (why := v.differs(sizes[v.path])) is not None}
    victims = [version for index, version in there.items() if index not in left]
    if not victims:
        return Deletion(left=left)
    kept = {path: reason for path, reason in reasons_to_keep(client.storage, timeline, victims).items() if reason}
    if kept:
        path, reason = next(iter(kept.items()))
        raise Conflict(f"{client.table.name}: {len(kept)} superseded files can't be deleted now; {path}: {reason}")
    by_partition: dict[str, list[str]] = {}
    for victim in victims:
        by_partition.setdefault(victim.partition, []).append(victim.path)
    fence()
    run_clean(client, timeline, by_partition, native_progress(timeline))
    behind = client.storage.sizes([version.path for version in victims])
    if behind:
        raise Transient(f"{client.table.name}: Hudi's clean left {len(behind)} files behind, {sorted(behind)[0]} first")
    return Deletion(bytes_freed=sum(sizes[version.path] for version in victims), left=left)


def run_clean(
    client: HudiClient,
    timeline: Timeline,
    paths: Mapping[str, Sequence[str]],
    progress: Progress,
    *,
    partitions: Sequence[str] = (),
) -> None:
    """Clean these ``paths`` by partition, and whole ``partitions``; call it under the lock.

    ``progress`` is how far the table's own cleaner is when this clean is done.
    """
    instant = client.new_instant()
    gone = frozenset(path for files in paths.values() for path in files)
    start = clean_start(client.table, client.storage, timeline, instant, progress, gone)
    publish_clean(client, timeline, instant, paths, start, partitions=partitions)
    client.bundle.run_pending_cleans(client.worker)


def hold_back(client: HudiClient, timeline: Timeline, instant: str, partition: str) -> None:
    """See to it that the archiver holds the pending replacement ``instant`` back once it is completed.

    A clean by another process may have passed it while it was pending, as those by hours and by file versions do. Then
    a clean of no file, in ``partition``, corrects that. Call it under the lock.
    """
    if held_from(timeline) > instant:
        run_clean(client, timeline, {partition: ()}, native_progress(timeline))


def publish_clean(
    client: HudiClient,
    timeline: Timeline,
    instant: str,
    paths: Mapping[str, Sequence[str]],
    start: CleanStart,
    *,
    partitions: Sequence[str] = (),
) -> None:
    """Write the requested clean ``instant``; call it under the lock."""
    kept = timeline.find(start.earliest)
    record: dict[str, object] = {
        "earliestInstantToRetain": {
            "timestamp": start.earliest,
            "action": kept.action if kept else "replacecommit",
            "state": "COMPLETED",
        },
        "lastCompletedCommitTimestamp": start.commit,
        "policy": "KEEP_LATEST_COMMITS",
        "filesToBeDeletedPerPartition": {},
        "filePathsToBeDeletedPerPartition": {
            partition: [{"filePath": f"{client.base}/{path}", "isBootstrapBaseFile": False} for path in files]
            for partition, files in paths.items()
        },
        "partitionsToBeDeleted": list(partitions),
        "version": 2,
        "extraMetadata": dict(start.extra),
    }
    requested = client.meta.getInstantGenerator().getCleanRequestedInstant(instant)
    plan = client.avro("HoodieCleanerPlan", record)
    client.confirm_lock("cleaning")
    client.meta.getActiveTimeline().saveToCleanRequested(requested, client.present(plan))
