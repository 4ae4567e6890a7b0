# SPDX-License-Identifier: Apache-2.0
"""Outdated proposals: plans that wait for approval although the table has changed since they were made."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lake.capabilities import PendingAction
from lake.model import FileSlice, Snapshot
from lake.plan import PlanKind
from service.control.config.table_settings import ConfiguredTable
from service.control.store.views import Proposal
from service.text import plural

_FileGroup = tuple[str, str]
_PathAndLogs = tuple[str | None, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutdatedProposal:
    """A proposal to be replaced or withdrawn: the partitions that it holds until then, and the reason."""

    partitions: frozenset[str]
    reason: str


def find_outdated_proposals(
    proposals: Collection[Proposal],
    table: ConfiguredTable,
    snapshot: Snapshot,
    pending: Collection[PendingAction],
) -> dict[str, OutdatedProposal]:
    """Return the outdated proposals by plan id; a scan of ``table`` withdraws or replaces them.

    In mode propose a proposal is outdated if one of its files or its settings changed. In every other mode all
    proposals are outdated. New files beside a proposal's files do not make it outdated: the approval covers the files
    that were reviewed. An adopted proposal names an instant of the table; it is outdated unless the instant is
    ``pending`` with the same files and, for a clustering, these files are unchanged.
    """
    if table.mode != "propose":
        return mark_all_outdated(proposals, f"{table.name} is in mode {table.mode} now")
    now = _current_files([item for proposal in proposals for item in proposal.slices], snapshot)
    instants = {entry.instant: entry for entry in pending}
    found = {}
    for proposal in proposals:
        if proposal.adopted is None:
            why = _change_of_own_proposal(proposal, now, table.settings_digest)
        else:
            why = _change_of_adopted_proposal(proposal, instants.get(proposal.adopted), now)
        if why is not None:
            found[proposal.plan_id] = OutdatedProposal(partitions=proposal.partitions, reason=why)
    return found


def exclude_stale_actions(pending: Collection[PendingAction], snapshot: Snapshot) -> list[PendingAction]:
    """Return ``pending`` without actions whose files have changed: their proposals would be withdrawn at once."""
    now = _current_files([item for entry in pending for item in _slices_of_action(entry)], snapshot)
    return [
        entry
        for entry in pending
        if not _needs_unchanged_files(entry) or _changed_files_text(_slices_of_action(entry), now) is None
    ]


def mark_all_outdated(proposals: Collection[Proposal], reason: str) -> dict[str, OutdatedProposal]:
    """Return all of ``proposals`` as outdated for the same reason."""
    return {item.plan_id: OutdatedProposal(partitions=item.partitions, reason=reason) for item in proposals}


def _change_of_own_proposal(
    proposal: Proposal, current_files: Mapping[_FileGroup, _PathAndLogs], settings: str
) -> str | None:
    if proposal.settings not in (None, settings):
        return "the settings of its table changed"
    return _changed_files_text(proposal.slices, current_files)


def _change_of_adopted_proposal(
    proposal: Proposal, entry: PendingAction | None, current_files: Mapping[_FileGroup, _PathAndLogs]
) -> str | None:
    if entry is None:
        return (
            f"the rewrite that it would have executed, {proposal.adopted}, was executed or withdrawn by another process"
        )
    if _by_group(_slices_of_action(entry)) != _by_group(proposal.slices):
        return f"{entry.action} {entry.instant} names other files now"
    return _changed_files_text(proposal.slices, current_files) if _needs_unchanged_files(entry) else None


def _needs_unchanged_files(entry: PendingAction) -> bool:
    """Return True if files that writers add make the action stale; new logs do not make a compaction stale."""
    return entry.kind is PlanKind.CLUSTERING


def _slices_of_action(entry: PendingAction) -> list[FileSlice]:
    return [item for group in entry.groups for item in group.slices]


def _changed_files_text(slices: Sequence[FileSlice], current_files: Mapping[_FileGroup, _PathAndLogs]) -> str | None:
    """Return the changes of ``slices`` as text; None if there is no change."""
    changed = [
        item for item in slices if current_files.get((item.partition, item.file_id)) != (item.path, item.log_files)
    ]
    if not changed:
        return None
    first, of = changed[0], plural(len(slices), "file")
    return f"{len(changed):,} of its {of} changed, such as {first.path or first.file_id}"


def _by_group(slices: Iterable[FileSlice]) -> dict[_FileGroup, _PathAndLogs]:
    return {(item.partition, item.file_id): (item.path, item.log_files) for item in slices}


def _current_files(slices: Iterable[FileSlice], snapshot: Snapshot) -> dict[_FileGroup, _PathAndLogs]:
    """Return the current base file and logs of the file groups of ``slices``."""
    wanted = {item.file_id for item in slices}
    columns = snapshot.slices.select(["partition", "file_id", "path", "log_files"])
    rows = columns.filter(pc.is_in(columns["file_id"], value_set=pa.array(sorted(wanted), type=pa.string())))
    return {(row["partition"], row["file_id"]): (row["path"], tuple(row["log_files"])) for row in rows.to_pylist()}
