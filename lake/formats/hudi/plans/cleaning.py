# SPDX-License-Identifier: Apache-2.0
"""Cleans of ours: exactly the named files, deleted through Hudi's clean action.

Every clean plan says from which instant on replaced files may still exist (``clean_start``). Without it Hudi's archiver
takes everything replaced before the clean as gone, archives the commits that replaced files which are still there, and
those files become live again: every row of theirs twice.
"""

from collections.abc import Mapping, Sequence

from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.plans.clean_start import CleanStart, Progress, clean_start, held_from, native_progress
from lake.formats.hudi.timeline.timeline import Timeline

#: files of one clean plan: the table's lock is held while they are deleted
MAX_FILES_PER_CLEAN = 1000


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
