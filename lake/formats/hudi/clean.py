# SPDX-License-Identifier: Apache-2.0
"""Deletes exactly the named superseded files through Hudi's clean action.

Every clean plan says from which instant on replaced files may still exist. Without it Hudi's archiver takes
everything replaced before the clean as gone, archives the commits that replaced files which are still there, and
those files become live again: every row of theirs twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from lake.errors import Conflict, Transient
from lake.formats.hudi.client import HudiClient
from lake.formats.hudi.commits import reasons_to_keep
from lake.formats.hudi.names import data_file
from lake.formats.hudi.outcomes import outcomes
from lake.formats.hudi.storage import Storage
from lake.formats.hudi.timeline import Timeline, join
from lake.plan import SupersededVersion

#: files of one clean plan: the table's lock is held while they are deleted
MAX_FILES_PER_CLEAN = 1000
CLEAN_KEY = "lakefold.clean"


def oldest_replacement_on_disk(storage: Storage, timeline: Timeline, without: frozenset[str] = frozenset()) -> str:
    """The oldest completed replacecommit some of whose replaced files exist, not counting ``without``; '' if none."""
    files: dict[str, dict[str, set[str]]] = {}
    for instant in timeline.completed:  # by time
        if instant.action != "replacecommit":
            continue
        record = timeline.metadata(instant) or {}
        for partition, file_ids in (record.get("partitionToReplaceFileIds") or {}).items():
            if partition not in files:
                files[partition] = _paths_by_file_id(storage, partition)
            if any(files[partition].get(file_id, frozenset()) - without for file_id in file_ids):
                return instant.time
    return ""


def _paths_by_file_id(storage: Storage, partition: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name in storage.names(partition):
        path = join(partition, name)
        file = data_file(path)
        if file is not None:
            found.setdefault(file.file_id, set()).add(path)
    return found


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
    staying = client.storage.sizes([version.path for version in remaining])
    candidates = [version.instant for version in remaining if version.path in staying]
    on_disk = oldest_replacement_on_disk(client.storage, timeline, frozenset(v.path for v in victims))
    if on_disk:
        candidates.append(on_disk)
    by_partition: dict[str, list[str]] = {}
    for victim in victims:
        by_partition.setdefault(victim.partition, []).append(victim.path)
    publish_clean(client, timeline, by_partition, min(candidates, default=None))
    client.bundle.run_pending_cleans(client.worker)
    left = client.storage.sizes([version.path for version in victims])
    if left:
        raise Transient(f"{client.table.name}: Hudi's clean left {len(left)} files behind, {sorted(left)[0]} first")
    return sum(sizes.values())


def publish_clean(
    client: HudiClient,
    timeline: Timeline,
    paths: Mapping[str, Sequence[str]],
    earliest: str | None,
    *,
    partitions: Sequence[str] = (),
) -> None:
    """Write one requested clean of these ``paths`` by partition, and of whole ``partitions``; call it under the lock.

    ``earliest`` is the oldest instant from which replaced files still exist, None where there are none.
    """
    kept = timeline.find(earliest) if earliest else None
    instant = client.new_instant()
    record: dict[str, object] = {
        "earliestInstantToRetain": earliest
        and {"timestamp": earliest, "action": kept.action if kept else "replacecommit", "state": "COMPLETED"},
        "lastCompletedCommitTimestamp": timeline.newest,
        "policy": "KEEP_LATEST_COMMITS" if earliest else "KEEP_LATEST_FILE_VERSIONS",
        "filesToBeDeletedPerPartition": {},
        "filePathsToBeDeletedPerPartition": {
            partition: [{"filePath": f"{client.base}/{path}", "isBootstrapBaseFile": False} for path in files]
            for partition, files in paths.items()
        },
        "partitionsToBeDeleted": list(partitions),
        "version": 2,
        "extraMetadata": {CLEAN_KEY: instant},
    }
    requested = client.meta.getInstantGenerator().getCleanRequestedInstant(instant)
    plan = client.avro("HoodieCleanerPlan", record)
    client.meta.getActiveTimeline().saveToCleanRequested(requested, client.present(plan))
