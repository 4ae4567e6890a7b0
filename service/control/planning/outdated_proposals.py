# SPDX-License-Identifier: Apache-2.0
"""Proposals that nobody is to decide on any more, since the table is not what it was when they were made."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lake.capabilities import PendingAction
from lake.model import FileSlice, Snapshot
from lake.plan import PlanKind
from service.control.config.tables import ConfiguredTable
from service.control.store.views import Proposal
from service.text import plural

_FileGroup = tuple[str, str]
_PathAndLogs = tuple[str | None, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutdatedProposal:
    """A proposal to be replaced or taken back: the partitions that it holds until then, and why."""

    partitions: frozenset[str]
    reason: str


def find_outdated_proposals(
    proposals: Collection[Proposal],
    table: ConfiguredTable,
    snapshot: Snapshot,
    settings: str,
    pending: Collection[PendingAction],
) -> dict[str, OutdatedProposal]:
    """The out-of-date ones of ``proposals``, by the plan's id: a scan of ``table`` takes them back or replaces them.

    In mode propose these are the ones of which a file, or what they were made by, has changed; in any other mode all.
    Files that came beside those of a proposal change nothing about it: what is approved is what was looked at. One that
    was adopted names an instant of the table's, which has to be ``pending`` and to name the same files.
    """
    if table.mode != "propose":
        return mark_all_outdated(proposals, f"{table.name} is in mode {table.mode} now")
    now = _current_files([item for proposal in proposals for item in proposal.slices], snapshot)
    instants = {entry.instant: entry for entry in pending}
    found = {}
    for proposal in proposals:
        if proposal.adopted is None:
            why = _change_of_own_proposal(proposal, now, settings)
        else:
            why = _change_of_adopted_proposal(proposal, instants.get(proposal.adopted), now)
        if why is not None:
            found[proposal.plan_id] = OutdatedProposal(partitions=proposal.partitions, reason=why)
    return found


def exclude_stale_actions(pending: Collection[PendingAction], snapshot: Snapshot) -> list[PendingAction]:
    """``pending`` without what would be taken back as soon as it is proposed, since its files have changed."""
    now = _current_files([item for entry in pending for item in _slices_of_action(entry)], snapshot)
    return [
        entry
        for entry in pending
        if not _needs_unchanged_files(entry) or _changed_files_text(_slices_of_action(entry), now) is None
    ]


def mark_all_outdated(proposals: Collection[Proposal], reason: str) -> dict[str, OutdatedProposal]:
    """All of ``proposals`` as outdated for the same reason."""
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
        return f"what it would have executed, {proposal.adopted}, was executed or withdrawn by another process"
    if _by_group(_slices_of_action(entry)) != _by_group(proposal.slices):
        return f"{entry.action} {entry.instant} names other files now"
    return _changed_files_text(proposal.slices, current_files) if _needs_unchanged_files(entry) else None


def _needs_unchanged_files(entry: PendingAction) -> bool:
    """Whether what writers add to the files that it names makes it stale; logs after those of a compaction do not."""
    return entry.kind is PlanKind.CLUSTERING


def _slices_of_action(entry: PendingAction) -> list[FileSlice]:
    return [item for group in entry.groups for item in group.slices]


def _changed_files_text(slices: Sequence[FileSlice], current_files: Mapping[_FileGroup, _PathAndLogs]) -> str | None:
    """What is not as it was of ``slices``, in words."""
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
    """What the file groups of ``slices`` have now."""
    wanted = {item.file_id for item in slices}
    columns = snapshot.slices.select(["partition", "file_id", "path", "log_files"])
    rows = columns.filter(pc.is_in(columns["file_id"], value_set=pa.array(sorted(wanted), type=pa.string())))
    return {(row["partition"], row["file_id"]): (row["path"], tuple(row["log_files"])) for row in rows.to_pylist()}
