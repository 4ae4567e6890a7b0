# SPDX-License-Identifier: Apache-2.0
"""The row accounting of a table along its commits, which record the rows that they read, added, deleted and wrote.

If a commit without a lock lost rows of another commit, the files do not show the loss: each file is as its own commit
wrote it. The loss shows as a commit that does not build on its predecessor. The rows of slices with logs are known only
after merging and are not counted, but the files that a commit replaced are checked for them as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lake.formats.hudi.files.names import DataFileName, FileGroupId, parse_file_name
from lake.formats.hudi.timeline.timeline import planned_slices, write_stats

#: the operations that rewrite; a compaction of file groups that were replaced meanwhile loses nothing
_CLUSTER, _COMPACT = "cluster", ("compact", "log_compact")


class _LatestSlice(NamedTuple):
    """The latest slice of a file group by the commits so far; ``rows`` is None if logs may have changed them."""

    base: DataFileName | None
    rows: int | None
    logs: frozenset[str] = frozenset()


@dataclass(slots=True)
class RowAccounting:
    """The sum of commits, which must be added in the order of their completion."""

    #: one sentence per contradiction between a commit and the commits before it
    contradictions: list[str] = field(default_factory=list)
    _latest_slices: dict[FileGroupId, _LatestSlice] = field(default_factory=dict)
    _replaced_by: dict[FileGroupId, str] = field(default_factory=dict)

    def add_commit(self, time: str, metadata: Mapping[str, Any], plan: Mapping[str, Any] | None) -> None:
        """Account for one completed commit; ``plan`` is the record of its request, None if it had no plan."""
        operation = str(metadata.get("operationType") or "").lower()
        wrote = [(file, stat) for _, stat in write_stats(metadata) if (file := parse_file_name(stat.get("path") or ""))]
        replaced = [
            (partition, file_id)
            for partition, ids in (metadata.get("partitionToReplaceFileIds") or {}).items()
            for file_id in ids
        ]
        for group in replaced:
            if (before := self._replaced_by.get(group)) is not None:
                self._report(f"{time} replaced file group {_group_name(group)}, which {before} had replaced before")
        if operation == _CLUSTER:
            self._check_clustering(time, wrote, replaced, plan)
        for file, stat in wrote:
            self._check_write(time, operation, file, stat)
        for group in replaced:
            self._replaced_by.setdefault(group, time)
            self._latest_slices.pop(group, None)

    def _check_clustering(
        self,
        time: str,
        wrote: list[tuple[DataFileName, Mapping[str, Any]]],
        replaced: list[FileGroupId],
        plan: Mapping[str, Any] | None,
    ) -> None:
        """Check that a clustering read the latest slices of the replaced groups and wrote as many rows as it read."""
        for entry in planned_slices(plan or {}):
            now = self._latest_slices.get((entry.partition, entry.file_id))
            if now is None or now.base is None or entry.base is None:
                continue
            newer = sorted(now.logs - set(entry.logs))
            if now.base.name != entry.base and now.base.instant > (_instant_of(entry.partition, entry.base) or ""):
                newer = [now.base.name]
            if newer:
                self._report(
                    f"clustering {time} replaced {_group_name((entry.partition, entry.file_id))} without {newer[0]}"
                )
        read = [self._latest_slices[group].rows if group in self._latest_slices else None for group in replaced]
        known = [rows for rows in read if rows is not None]
        left = sum(stat.get("numWrites") or 0 for _, stat in wrote)
        if len(known) == len(read) and sum(known) != left:
            self._report(f"clustering {time} read {sum(known):,} rows and wrote {left:,}")

    def _check_write(self, time: str, operation: str, file: DataFileName, stat: Mapping[str, Any]) -> None:
        before = self._latest_slices.get(file.group_id)
        gone = self._replaced_by.get(file.group_id)
        if gone is not None and operation not in _COMPACT:
            self._report(f"{time} wrote to file group {_group_name(file.group_id)}, which {gone} had replaced before")
        if file.is_log:
            logs = before.logs if before else frozenset()
            self._latest_slices[file.group_id] = _LatestSlice(before.base if before else None, None, logs | {file.name})
            return
        rows = stat.get("numWrites") or 0
        if before is not None and before.base is not None and before.base.instant > file.instant:
            return  # a slow instant: the commit completed later but is older
        if before is not None and before.base is not None and operation not in _COMPACT:
            previous = stat.get("prevCommit")
            if previous not in (None, "null", before.base.instant, file.instant):
                self._report(
                    f"{time} rewrote {_group_name(file.group_id)} from {previous}, without {before.base.instant}"
                )
            elif before.rows is not None and previous == before.base.instant:
                added, dropped = stat.get("numInserts") or 0, stat.get("numDeletes") or 0
                if rows != before.rows + added - dropped:
                    self._report(
                        f"{time} wrote {rows:,} rows to {_group_name(file.group_id)}, which had {before.rows:,}, with "
                        f"{added:,} added and {dropped:,} deleted"
                    )
        self._latest_slices[file.group_id] = _LatestSlice(file, rows)

    def _report(self, text: str) -> None:
        self.contradictions.append(text)


def _group_name(group: FileGroupId) -> str:
    partition, file_id = group
    return f"{partition}/{file_id}" if partition else file_id


def _instant_of(partition: str, name: str) -> str | None:
    file = parse_file_name(f"{partition}/{name}")
    return file.instant if file is not None else None
