# SPDX-License-Identifier: Apache-2.0
"""Proposals that nobody is to decide on any more, since the table is not what it was when they were made."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lake.model import FileSlice, Snapshot
from lake.optional import Unfinished
from lake.plan import PlanKind
from service.config.tables import ConfiguredTable
from service.store.views import Proposal
from service.text import plural

_Group = tuple[str, str]
_Files = tuple[str | None, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outdated:
    """A proposal to be replaced or taken back: the partitions that it holds until then, and why."""

    partitions: frozenset[str]
    why: str


def outdated(
    proposals: Collection[Proposal],
    table: ConfiguredTable,
    snapshot: Snapshot,
    settings: str,
    pending: Collection[Unfinished],
) -> dict[str, Outdated]:
    """The out-of-date ones of ``proposals``, by the plan's id: a scan of ``table`` takes them back or replaces them.

    In mode propose these are the ones of which a file, or what they were made by, has changed; in any other mode all.
    Files that came beside those of a proposal change nothing about it: what is approved is what was looked at. One that
    was adopted names an instant of the table's, which has to be ``pending`` and to name the same files.
    """
    if table.mode != "propose":
        return all_of(proposals, f"{table.name} is in mode {table.mode} now")
    now = _files([item for proposal in proposals for item in proposal.slices], snapshot)
    instants = {entry.instant: entry for entry in pending}
    found = {}
    for proposal in proposals:
        if proposal.adopted is None:
            why = _difference(proposal, now, settings)
        else:
            why = _of_others(proposal, instants.get(proposal.adopted), now)
        if why is not None:
            found[proposal.plan_id] = Outdated(partitions=proposal.partitions, why=why)
    return found


def without_stale(pending: Collection[Unfinished], snapshot: Snapshot) -> list[Unfinished]:
    """``pending`` without what would be taken back as soon as it is proposed, since its files have changed."""
    now = _files([item for entry in pending for item in _named(entry)], snapshot)
    return [entry for entry in pending if not _needs_its_files(entry) or _changed(_named(entry), now) is None]


def all_of(proposals: Collection[Proposal], why: str) -> dict[str, Outdated]:
    """All of ``proposals`` as outdated for the same reason."""
    return {item.plan_id: Outdated(partitions=item.partitions, why=why) for item in proposals}


def _difference(proposal: Proposal, now: Mapping[_Group, _Files], settings: str) -> str | None:
    if proposal.settings not in (None, settings):
        return "the settings of its table changed"
    return _changed(proposal.slices, now)


def _of_others(proposal: Proposal, entry: Unfinished | None, now: Mapping[_Group, _Files]) -> str | None:
    if entry is None:
        return f"what it would have executed, {proposal.adopted}, was executed or withdrawn by another process"
    if _by_group(_named(entry)) != _by_group(proposal.slices):
        return f"{entry.action} {entry.instant} names other files now"
    return _changed(proposal.slices, now) if _needs_its_files(entry) else None


def _needs_its_files(entry: Unfinished) -> bool:
    """Whether what writers add to the files that it names makes it stale; logs after those of a compaction do not."""
    return entry.kind is PlanKind.CLUSTERING


def _named(entry: Unfinished) -> list[FileSlice]:
    return [item for group in entry.groups for item in group.slices]


def _changed(slices: Sequence[FileSlice], now: Mapping[_Group, _Files]) -> str | None:
    """What is not as it was of ``slices``, in words."""
    changed = [item for item in slices if now.get((item.partition, item.file_id)) != (item.path, item.log_files)]
    if not changed:
        return None
    first, of = changed[0], plural(len(slices), "file")
    return f"{len(changed):,} of its {of} changed, such as {first.path or first.file_id}"


def _by_group(slices: Iterable[FileSlice]) -> dict[_Group, _Files]:
    return {(item.partition, item.file_id): (item.path, item.log_files) for item in slices}


def _files(slices: Iterable[FileSlice], snapshot: Snapshot) -> dict[_Group, _Files]:
    """What the file groups of ``slices`` have now."""
    wanted = {item.file_id for item in slices}
    columns = snapshot.slices.select(["partition", "file_id", "path", "log_files"])
    rows = columns.filter(pc.is_in(columns["file_id"], value_set=pa.array(sorted(wanted), type=pa.string())))
    return {(row["partition"], row["file_id"]): (row["path"], tuple(row["log_files"])) for row in rows.to_pylist()}
