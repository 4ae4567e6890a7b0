# SPDX-License-Identifier: Apache-2.0
"""Removes resurrected file groups through Hudi's clean action, so that they do not become live again."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from lake.capabilities import Resurrected
from lake.errors import Transient
from lake.formats.hudi.audit.resurrected import find_resurrected
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.jvm.errors import translated_errors
from lake.formats.hudi.plans.clean_bounds import read_cleaner_progress
from lake.formats.hudi.plans.cleaning import MAX_FILES_PER_CLEAN, clean_files, withdraw_pending_cleans


def remove_resurrected(client: HudiClient) -> list[Resurrected]:
    """Delete every group that ``find_resurrected`` finds without a refusal. Returns the deleted groups."""
    done: list[Resurrected] = []
    while True:
        with translated_errors(client.table, "repairing"), client.locked("repairing"):
            withdraw_pending_cleans(client, client.read_timeline())
            timeline = client.read_timeline()
            found = [group for group in find_resurrected(client.storage, timeline) if group.refusal is None]
            batch = list(_first_batch(found))
            if not batch:
                return done
            paths: dict[str, list[str]] = defaultdict(list)
            for group in batch:
                paths[group.partition] += group.files
            newest = max(group.instant for group in batch)
            clean_files(client, timeline, paths, read_cleaner_progress(timeline), superseded_by=newest)
            left = client.storage.sizes([path for group in batch for path in group.files])
        if left:
            raise Transient(f"{client.table.name}: Hudi's clean left {len(left)} files, such as {sorted(left)[0]}")
        done += batch


def _first_batch(groups: Sequence[Resurrected]) -> Iterator[Resurrected]:
    """Yield as many whole groups as fit into one clean, at least one."""
    files = 0
    for group in groups:
        if files and files + len(group.files) > MAX_FILES_PER_CLEAN:
            return
        files += len(group.files)
        yield group
