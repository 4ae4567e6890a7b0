# SPDX-License-Identifier: Apache-2.0
"""Takes out the file groups that are live again, through Hudi's clean action, so that nothing brings them back."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from lake.errors import Transient
from lake.formats.hudi.audit.resurrected import find_resurrected
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.jvm.outcomes import outcomes
from lake.formats.hudi.plans.clean_start import native_progress
from lake.formats.hudi.plans.cleaning import MAX_FILES_PER_CLEAN, run_clean, withdraw_left
from lake.optional import Resurrected


def take_out(client: HudiClient) -> list[Resurrected]:
    """Delete every group that ``find_resurrected`` finds and has nothing against; those that went."""
    done: list[Resurrected] = []
    while True:
        with outcomes(client.table, "repairing"), client.locked("repairing"):
            withdraw_left(client, client.timeline())
            timeline = client.timeline()
            found = [group for group in find_resurrected(client.storage, timeline) if group.refusal is None]
            batch = list(_first(found))
            if not batch:
                return done
            paths: dict[str, list[str]] = defaultdict(list)
            for group in batch:
                paths[group.partition] += group.files
            newest = max(group.instant for group in batch)
            run_clean(client, timeline, paths, native_progress(timeline), superseded_by=newest)
            left = client.storage.sizes([path for group in batch for path in group.files])
        if left:
            raise Transient(f"{client.table.name}: Hudi's clean left {len(left)} files behind, {sorted(left)[0]} first")
        done += batch


def _first(groups: Sequence[Resurrected]) -> Iterator[Resurrected]:
    """As many whole groups, one at least, as fit into one clean."""
    files = 0
    for group in groups:
        if files and files + len(group.files) > MAX_FILES_PER_CLEAN:
            return
        files += len(group.files)
        yield group
