# SPDX-License-Identifier: Apache-2.0
"""File groups that readers see again since the commit that replaced them was archived; reasons against their removal.

Hudi's readers find replaced file groups in the active timeline alone. If a replacement is archived while the replaced
files are still in storage, readers read these files again, each of their rows twice. The archived timeline still
records the replacement. On this evidence the files are deleted, through Hudi's clean action like all deletions, so that
they can't become live again.

Replaced files are deleted only if their successors exist, are undamaged and are read. In two cases only the replaced
files hold the rows: the replacement was undone although the archived timeline records it (by a restore to an earlier
commit, or from a backup), or the files that it wrote are lost.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lake.capabilities import Resurrected
from lake.formats.hudi.audit.damage import find_damage
from lake.formats.hudi.files.names import FileGroupId, parse_file_name, relative_path
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.read.slices import ListedSlice, find_busy_groups, list_latest_slices
from lake.formats.hudi.timeline.timeline import COMMIT_ACTIONS, PLANNED_KINDS, Timeline, write_stats


@dataclass(slots=True)
class _CommitIndex:
    """The commits, archived ones included, indexed by the file groups that readers see."""

    #: completion time and instant time of the last commit that replaced a group, and of the last that wrote into it
    last_replaced: dict[FileGroupId, tuple[str, str]] = field(default_factory=dict)
    last_written: dict[FileGroupId, tuple[str, str]] = field(default_factory=dict)
    rows_by_path: dict[str, int] = field(default_factory=dict)
    #: by time of a clustering: the groups that it replaced, and the rows that it wrote
    clusterings: dict[str, tuple[frozenset[FileGroupId], int]] = field(default_factory=dict)
    #: completion time and instant time of the last commit that replaced a group, for all groups, listed or not
    all_replaced: dict[FileGroupId, tuple[str, str]] = field(default_factory=dict)
    #: by time of a commit that replaced groups: the groups into which it wrote
    successors: dict[str, frozenset[FileGroupId]] = field(default_factory=dict)

    def add_commit(
        self, time: str, completed_at: str, record: Mapping[str, Any], listed: Collection[FileGroupId]
    ) -> None:
        """Add one completed commit; commits may be added in any order."""
        stats = list(write_stats(record))
        for partition, stat in stats:
            group = partition, stat.get("fileId") or ""
            if group in listed:
                self.last_written[group] = max(self.last_written.get(group, ("", "")), (completed_at, time))
                self.rows_by_path[stat.get("path") or ""] = stat.get("numWrites") or 0
        gone = frozenset(
            (partition, file_id)
            for partition, file_ids in (record.get("partitionToReplaceFileIds") or {}).items()
            for file_id in file_ids
        )
        for group in gone:
            self.all_replaced[group] = max(self.all_replaced.get(group, ("", "")), (completed_at, time))
            if group in listed:
                self.last_replaced[group] = self.all_replaced[group]
        if gone:
            self.successors[time] = frozenset(
                (partition, stat["fileId"]) for partition, stat in stats if _has_file(stat)
            )
        if not gone.isdisjoint(listed) and record.get("operationType") == "CLUSTER":
            self.clusterings[time] = gone, sum(stat.get("numWrites") or 0 for _, stat in stats)


def _has_file(stat: Mapping[str, Any]) -> bool:
    return bool(stat.get("path") and stat.get("fileId"))


def find_resurrected(storage: TableStorage, timeline: Timeline) -> list[Resurrected]:
    """Return the file groups that readers see although a completed commit replaced them.

    They are sorted by partition and file id.
    """
    slices = {(entry.partition, entry.file_id): entry for entry in list_latest_slices(storage, timeline)}
    known = _CommitIndex()
    # The active timeline was listed first, so an instant archived meanwhile is found twice, never missed.
    for instant, record in zip(
        timeline.commits, storage.map_parallel(timeline.metadata, timeline.commits), strict=True
    ):
        known.add_commit(instant.time, instant.completed_at or instant.time, record or {}, slices)
    for entry in timeline.archived(COMMIT_ACTIONS, plans=False):
        known.add_commit(entry.time, entry.completed_at, entry.metadata or {}, slices)
    if not known.last_replaced:
        return []
    files: dict[FileGroupId, dict[str, int]] = defaultdict(dict)
    for path, size in storage.data_file_sizes({partition for partition, _ in known.last_replaced}).items():
        file = parse_file_name(path)
        if file is not None and file.group_id in known.last_replaced:
            files[file.group_id][path] = size
    rows = {
        group: None
        if (slice_ := slices[group]).logs or slice_.base is None
        else known.rows_by_path.get(relative_path(group[0], slice_.base))
        for group in known.last_replaced
    }
    refusals = _RemovalRefusals(storage, timeline, known, rows, slices)
    return [
        Resurrected(
            partition=group[0],
            file_id=group[1],
            instant=known.last_replaced[group][1],
            files=dict(sorted(files[group].items())),
            rows=rows[group],
            refusal=refusals.reason(group, files[group]),
        )
        for group in sorted(known.last_replaced)
    ]


def _read_restores(timeline: Timeline) -> Iterator[tuple[str, str]]:
    """Yield completion time and instant time of every restore, archived ones included."""
    for instant in timeline.completed:
        if instant.action == "restore":
            yield instant.completed_at or instant.time, instant.time
    for entry in timeline.archived({"restore"}, plans=False, metadata=False):
        yield entry.completed_at, entry.time


class _RemovalRefusals:
    """The reasons against removing resurrected file groups."""

    def __init__(
        self,
        storage: TableStorage,
        timeline: Timeline,
        commits: _CommitIndex,
        rows: Mapping[FileGroupId, int | None],
        slices: Mapping[FileGroupId, ListedSlice],
    ) -> None:
        self._commits, self._rows = commits, rows
        self._last_restore = max(_read_restores(timeline), default=("", ""))
        read = {group: slices[group] for group in slices.keys() - commits.last_replaced.keys()}
        #: by time of a replacement: the groups that hold the replaced rows now, None if unknown
        self._successors = {time: self._find_successors(time, read) for _, time in set(commits.last_replaced.values())}
        heirs = {group for found in self._successors.values() for group in found or ()}
        self._damage_by_group = find_damage(storage, timeline, {group: read[group] for group in heirs}) if heirs else {}
        self._busy = find_busy_groups(timeline)
        self._savepoint_of_path = {path: time for time, paths in timeline.savepoints().items() for path in paths}
        #: writes that have not declared their file groups yet
        self._undeclared_writes = [
            instant
            for instant in timeline.pending
            if instant.kind in COMMIT_ACTIONS - PLANNED_KINDS
            and not (instant.inflight_file and list(write_stats(timeline.inflight_metadata(instant))))
            and instant.time not in {found.time for found, _ in timeline.pending_plans()}
        ]

    def _find_successors(self, replacement: str, live_groups: Collection[FileGroupId]) -> frozenset[FileGroupId] | None:
        """Return the live groups that hold the rows of the groups replaced by ``replacement``.

        Returns None if one of the groups written instead is neither live nor replaced itself.
        """
        heirs, todo, seen = set(), [replacement], {replacement}
        while todo:
            for group in self._commits.successors.get(todo.pop(), ()):
                if group in live_groups:
                    heirs.add(group)
                    continue
                _, later = self._commits.all_replaced.get(group, ("", ""))
                if not later:
                    return None
                if later not in seen:
                    seen.add(later)
                    todo.append(later)
        return frozenset(heirs)

    def reason(self, group: FileGroupId, files: Collection[str]) -> str | None:
        """Return the reason against removing the group; None if it can be removed."""
        (completed_at, replacement), (written_at, writer) = (
            self._commits.last_replaced[group],
            self._commits.last_written[group],
        )
        if written_at >= completed_at:
            return (
                f"commit {writer} wrote into it after {replacement} had replaced it, so that it has rows of its own; "
                "delete the doubled keys with the table's writer"
            )
        if self._last_restore > (completed_at, replacement):
            return (
                f"restore {self._last_restore[1]} came after {replacement}, which it may have undone, so that the "
                "archived timeline proves nothing; delete the doubled keys with the table's writer, if there are any"
            )
        heirs = self._successors[replacement]
        if heirs is None:
            return (
                f"readers do not see a file group that {replacement} wrote in place of this one: the replaced rows may "
                "exist nowhere else"
            )
        damaged = next((self._damage_by_group[heir] for heir in sorted(heirs) if heir in self._damage_by_group), None)
        if damaged is not None:
            return (
                f"a file group that {replacement} wrote in place of this one is damaged; the replaced rows may exist "
                f"nowhere else: {damaged.text}"
            )
        busy = self._busy.reason(*group)
        if busy is not None:
            return f"{busy} uses it; try again after that action has ended"
        for instant in self._undeclared_writes:
            return f"{instant.kind} {instant.time} is in progress and does not name its files; try again later"
        saved = next((self._savepoint_of_path[path] for path in files if path in self._savepoint_of_path), None)
        if saved is not None:
            return f"kept by savepoint {saved}; delete the savepoint first"
        gone, wrote = self._commits.clusterings.get(replacement, (frozenset(), 0))
        counted = [count for other in gone if (count := self._rows.get(other)) is not None]
        if gone and len(counted) == len(gone) and sum(counted) != wrote:
            return f"clustering {replacement} wrote {wrote} rows, and the replaced file groups have {sum(counted)}"
        return None
