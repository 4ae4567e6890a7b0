# SPDX-License-Identifier: Apache-2.0
"""Proposals that nobody is to decide on any more, since the table is not what it was when they were made."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lake.model import Snapshot
from service.config.tables import ConfiguredTable
from service.store.views import Proposal
from service.text import plural

_Files = tuple[str | None, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outdated:
    """A proposal to be replaced or taken back: the partitions that it holds until then, and why."""

    partitions: frozenset[str]
    why: str


def outdated(
    proposals: Collection[Proposal], table: ConfiguredTable, snapshot: Snapshot, settings: str
) -> dict[str, Outdated]:
    """Those of ``proposals``, by the plan's id, that a scan of ``table`` does not leave to whoever decides.

    In mode propose these are the ones of which a file, or what they were made by, has changed; in any other mode all.
    Files that came beside those of a proposal change nothing about it: what is approved is what was looked at.
    """
    if table.mode != "propose":
        return all_of(proposals, f"{table.name} is in mode {table.mode} now")
    now = _files(proposals, snapshot)
    found = {}
    for proposal in proposals:
        why = _difference(proposal, now, settings)
        if why is not None:
            found[proposal.plan_id] = Outdated(partitions=proposal.partitions, why=why)
    return found


def all_of(proposals: Collection[Proposal], why: str) -> dict[str, Outdated]:
    """All of ``proposals`` as outdated for the same reason."""
    return {item.plan_id: Outdated(partitions=item.partitions, why=why) for item in proposals}


def _difference(proposal: Proposal, now: Mapping[tuple[str, str], _Files], settings: str) -> str | None:
    if proposal.settings not in (None, settings):
        return "the settings of its table changed"
    changed = [
        item for item in proposal.slices if now.get((item.partition, item.file_id)) != (item.path, item.log_files)
    ]
    if not changed:
        return None
    first, of = changed[0], plural(len(proposal.slices), "file")
    return f"{len(changed):,} of its {of} changed, such as {first.path or first.file_id}"


def _files(proposals: Collection[Proposal], snapshot: Snapshot) -> dict[tuple[str, str], _Files]:
    """What the file groups of ``proposals`` have now."""
    wanted = {item.file_id for proposal in proposals for item in proposal.slices}
    columns = snapshot.slices.select(["partition", "file_id", "path", "log_files"])
    rows = columns.filter(pc.is_in(columns["file_id"], value_set=pa.array(sorted(wanted), type=pa.string())))
    return {(row["partition"], row["file_id"]): (row["path"], tuple(row["log_files"])) for row in rows.to_pylist()}
