# SPDX-License-Identifier: Apache-2.0
"""Deletes exactly the named superseded files, through Hudi's clean action."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from lake.errors import Conflict, Transient
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.jvm.errors import translated_errors
from lake.formats.hudi.plans.clean_bounds import read_cleaner_progress
from lake.formats.hudi.plans.cleaning import MAX_FILES_PER_CLEAN, clean_files, withdraw_pending_cleans
from lake.formats.hudi.read.deletion_blockers import find_deletion_blockers, find_retained_files
from lake.plan import SupersededVersion
from lake.ports import DeletionResult


def delete_versions(
    client: HudiClient,
    versions: Sequence[SupersededVersion],
    fence: Callable[[], None] = lambda: None,
    retention: timedelta = timedelta(),
) -> DeletionResult:
    """Delete ``versions``, oldest replacing instant first, in clean plans of bounded size.

    ``fence`` is the last check that the deletion still belongs to the caller. Files that no longer exist free no bytes.
    A file stays if its size is not the recorded size. Its time is not compared, since Hudi uses no name twice and
    copying a table changes times.

    Raises Conflict, before anything of the batch is deleted, if a version has to stay: it is live, pending or kept by a
    savepoint, it has to wait for older files, or a rewrite of any lakefold installation replaced it within
    ``retention`` according to the timeline. Raises Transient if Hudi did not delete a file.
    """
    freed, left = 0, dict[int, str]()
    ordered = sorted(enumerate(versions), key=lambda numbered: (numbered[1].instant, numbered[1].path))
    for start in range(0, len(ordered), MAX_FILES_PER_CLEAN):
        batch = dict(ordered[start : start + MAX_FILES_PER_CLEAN])
        with translated_errors(client.table, "cleaning"), client.locked("cleaning"):
            done = _delete_batch(client, batch, fence, retention)
        freed += done.bytes_freed
        left |= done.retained
    return DeletionResult(bytes_freed=freed, retained=left)


def _delete_batch(
    client: HudiClient, batch: Mapping[int, SupersededVersion], fence: Callable[[], None], retention: timedelta
) -> DeletionResult:
    withdraw_pending_cleans(client, client.read_timeline())
    timeline = client.read_timeline()
    sizes = client.storage.sizes([version.path for version in batch.values()])
    there = {index: version for index, version in batch.items() if version.path in sizes}
    left = {index: why for index, v in there.items() if (why := v.difference(sizes[v.path])) is not None}
    victims = [version for index, version in there.items() if index not in left]
    if not victims:
        return DeletionResult(retained=left)
    reasons = find_deletion_blockers(client.storage, timeline, victims, client.table.write_options, retention=retention)
    retained = find_retained_files(timeline, retention)
    kept = {path: why for path, reason in reasons.items() if (why := reason or retained.get(path))}
    if kept:
        path, reason = next(iter(kept.items()))
        raise Conflict(f"{client.table.name}: {len(kept)} superseded files can't be deleted now; {path}: {reason}")
    by_partition: dict[str, list[str]] = {}
    for victim in victims:
        by_partition.setdefault(victim.partition, []).append(victim.path)
    newest = max(victim.instant for victim in victims)
    clean_files(client, timeline, by_partition, read_cleaner_progress(timeline), superseded_by=newest, fence=fence)
    remaining = client.storage.sizes([version.path for version in victims])
    if remaining:
        raise Transient(
            f"{client.table.name}: Hudi's clean left {len(remaining)} files, such as {sorted(remaining)[0]}"
        )
    return DeletionResult(bytes_freed=sum(sizes[version.path] for version in victims), retained=left)
