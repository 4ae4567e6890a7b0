# SPDX-License-Identifier: Apache-2.0
"""Clean plans that are pending on a timeline: what a killed cleaner left, and what other processes left.

Hudi executes every pending clean plan whenever it cleans again, and does not look at the table before. Since a plan was
made its owner may have rolled back the commit that superseded the files, so that they are live again. So lakefold
executes no clean plan but the one that it has just published. One of its own that is left is withdrawn: what is still
due is planned again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.names import relative_path
from lake.formats.hudi.plans.last_look import check_preconditions, unchanged_instant_check
from lake.formats.hudi.timeline.timeline import CLEAN_KEY, Instant, Timeline, extra_metadata

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
