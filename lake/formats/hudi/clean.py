# SPDX-License-Identifier: Apache-2.0
"""Deletes exactly the named superseded files through Hudi's clean action.

Every clean plan says from which instant on replaced files may still exist (``clean_start``). Without it Hudi's archiver
takes everything replaced before the clean as gone, archives the commits that replaced files which are still there, and
those files become live again: every row of theirs twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from lake.errors import Conflict, Transient
from lake.formats.hudi.clean_start import CleanStart, Progress, clean_start, held_from, native_progress
from lake.formats.hudi.client import HudiClient
from lake.formats.hudi.commits import reasons_to_keep
from lake.formats.hudi.outcomes import outcomes
from lake.formats.hudi.timeline import Timeline
from lake.plan import SupersededVersion

#: files of one clean plan: the table's lock is held while they are deleted
MAX_FILES_PER_CLEAN = 1000


def delete(client: HudiClient, versions: Sequence[SupersededVersion], remaining: Sequence[SupersededVersion]) -> int:
    """Delete ``versions``, oldest replacing instant first, in clean plans of bounded size; bytes freed.

    ``remaining`` stay. Files already gone free nothing. Raises Conflict where a version is live, pending or kept by
    a savepoint (before anything of its batch is deleted), Transient where Hudi left a file behind.
    """
    freed = 0
    ordered = sorted(versions, key=lambda v: (v.instant, v.path))
    for done, batch in _batches(ordered):
        with outcomes(client.table, "cleaning"), client.locked("cleaning"):
            freed += _delete_batch(client, batch, [*ordered[done + len(batch) :], *remaining])
    return freed


def _batches(versions: Sequence[SupersededVersion]) -> Iterator[tuple[int, list[SupersededVersion]]]:
    iterator, done = iter(versions), 0
    while batch := list(islice(iterator, MAX_FILES_PER_CLEAN)):
        yield done, batch
        done += len(batch)


def _delete_batch(
    client: HudiClient, batch: Sequence[SupersededVersion], remaining: Sequence[SupersededVersion]
) -> int:
    timeline = client.timeline()
    sizes = client.storage.sizes([version.path for version in batch])
    victims = [version for version in batch if version.path in sizes]
    if not victims:
        return 0
    kept = {path: reason for path, reason in reasons_to_keep(client.storage, timeline, victims).items() if reason}
    if kept:
        path, reason = next(iter(kept.items()))
        raise Conflict(f"{client.table.name}: {len(kept)} superseded files can't be deleted now; {path}: {reason}")
    by_partition: dict[str, list[str]] = {}
    for victim in victims:
        by_partition.setdefault(victim.partition, []).append(victim.path)
    run_clean(client, timeline, by_partition, native_progress(timeline))
    left = client.storage.sizes([version.path for version in victims])
    if left:
        raise Transient(f"{client.table.name}: Hudi's clean left {len(left)} files behind, {sorted(left)[0]} first")
    return sum(sizes.values())


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
