# SPDX-License-Identifier: Apache-2.0
"""The verification of a table: storage and readers' listing compared with the commits, and optionally the rows.

The comparison is that of ``damage``, which prevents rewrites of damaged file groups. Here it covers all known commits,
archived ones included, and all files in storage.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq

from lake.errors import Rejected, Transient
from lake.formats.hudi.audit.damage import DamageCheck, is_timeline_current
from lake.formats.hudi.audit.row_accounting import RowAccounting
from lake.formats.hudi.files.names import FileGroupId, parse_file_name, relative_path
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.read.hudi_rs import HudiRsReader, MergeUnsupported
from lake.formats.hudi.read.slices import ListedSlice, list_latest_slices
from lake.formats.hudi.timeline.file_history import FileHistory, active_history, read_commit_changes
from lake.formats.hudi.timeline.timeline import COMMIT_ACTIONS, Timeline, write_stats
from lake.model import Fault
from lake.plan import SupersededVersion
from lake.ports import TableVerification

_ATTEMPTS = 3


@dataclass(slots=True, kw_only=True)
class ReplayedCommits:
    """The sum of all known commits; ``paths`` are all files that the commits ever wrote, change data included."""

    history: FileHistory
    row_accounting: RowAccounting | None
    paths: set[str] = field(default_factory=set)
    #: partition, file id and instant of every slice
    slices: set[tuple[str, str, str]] = field(default_factory=set)

    def add_commit(
        self, time: str, completed_at: str, metadata: dict[str, Any] | None, plan: dict[str, Any] | None
    ) -> None:
        """Apply one completed commit."""
        record = read_commit_changes(metadata)
        self.history.add_commit(time, completed_at, record)
        for wrote in record.written_files or ():
            self.paths.add(wrote.path)
            self.slices.add((*wrote.group_id, wrote.instant))
        for _, stat in write_stats(metadata):
            self.paths.update(stat.get("cdcStats") or ())
        if self.row_accounting is not None and metadata is not None:
            self.row_accounting.add_commit(time, metadata, plan)


def replay_commits(timeline: Timeline, *, rows: bool) -> ReplayedCommits:
    """Replay all completed commits of both timelines in order of completion; ``rows`` adds the row accounting."""
    # The active timeline is read first, so an instant archived meanwhile is found twice, never missed.
    records = timeline.storage.map_parallel(timeline.commit_metadata, timeline.commits)
    plans = timeline.storage.map_parallel(timeline.plan, timeline.commits) if rows else [None] * len(records)
    commits = [
        (i.completed_at or i.time, i.time, record, plan)
        for i, record, plan in zip(timeline.commits, records, plans, strict=True)
    ]
    seen = {time for _, time, _, _ in commits}
    archived = timeline.archived(COMMIT_ACTIONS, plans=rows)
    commits += [(a.completed_at, a.time, a.metadata, a.plan) for a in archived if a.time not in seen]
    # Completion times of layout 1 are modification times of files, which do not survive copying the table.
    order = 1 if timeline.layout == 1 else 0
    past = ReplayedCommits(
        history=FileHistory(has_logs_named_by_base=timeline.layout == 1),
        row_accounting=RowAccounting() if rows else None,
    )
    for completed_at, time, metadata, plan in sorted(commits, key=lambda entry: (entry[order], entry[1])):
        past.add_commit(time, completed_at, metadata, plan)
    return past


def verify_table(storage: TableStorage, superseded: Sequence[SupersededVersion], *, rows: bool) -> TableVerification:
    """Compare storage with the commits. Raises Transient if writers commit faster than the table can be listed."""
    for _ in range(_ATTEMPTS):
        timeline = Timeline(storage)
        active_history(timeline)  # its error names an unreadable commit, hudi-rs's error does not
        on_disk = storage.list_table_files()
        slices = list_latest_slices(storage, timeline, listing=on_disk)
        if is_timeline_current(timeline):
            break
    else:
        raise Transient(f"{storage.location}: the table changed {_ATTEMPTS} times while it was listed; try again")
    past = replay_commits(timeline, rows=rows)
    history, sizes = past.history, on_disk.sizes
    groups = list(history.live_groups())
    damage = list(DamageCheck(history, timeline, on_disk, groups).find_in_table(slices))
    listed = {path for entry in slices for path, _ in entry.sized_paths}
    expected = {group: latest for group in groups if (latest := history.expected_slice(group)) is not None}
    live = listed | {wrote.path for latest in expected.values() for wrote in latest.files}
    present = {path for path in live if path in sizes}
    # The replacing commit may have been undone, or be of an earlier table at this location: then the file may be live.
    replaced = {version.path for version in superseded if history.has_commit(version.instant)}

    def of(*faults: Fault) -> set[str]:
        return {entry.path for entry in damage if entry.fault in faults}

    unowned = (path for path in sizes if _is_unowned(path, timeline, past, replaced))
    counted = wanted = None
    if rows:
        counted, wanted = _count_rows(storage, slices, history, present - of(Fault.WRONG_SIZE))
    return TableVerification(
        files=len(present),
        bytes=sum(sizes[path] for path in present),
        missing=_sorted_tuple(of(Fault.MISSING, Fault.UNLISTED)),
        wrong_size=_sorted_tuple(of(Fault.WRONG_SIZE)),
        resurrected=_sorted_tuple({*of(Fault.RESURRECTED), *(listed & replaced)}),
        unowned=_sorted_tuple({*of(Fault.UNOWNED), *unowned}),
        rows=counted,
        rows_expected=wanted,
        contradictions=tuple(past.row_accounting.contradictions) if past.row_accounting is not None else (),
    )


def _sorted_tuple(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(paths))


def _is_unowned(path: str, timeline: Timeline, commits: ReplayedCommits, superseded: Collection[str]) -> bool:
    """True if no commit wrote this data file: no known commit, no older unknown commit, and no pending write."""
    if path in commits.paths or path in superseded:
        return False
    file = parse_file_name(path)
    if file is None:
        return path.endswith(".parquet")
    if any(instant.time == file.instant for instant in timeline.pending):
        return False
    if file.is_log and commits.history.has_logs_named_by_base and (*file.group_id, file.instant) in commits.slices:
        return False  # a rollback of table version 6 keeps the log file and writes another log, outside any commit
    return file.instant >= commits.history.oldest_commit_time


def _count_rows(
    storage: TableStorage, slices: Sequence[ListedSlice], history: FileHistory, intact: Collection[str]
) -> tuple[int, int]:
    """Return the rows that hudi-rs reads and the rows expected by the commits.

    For files older than the known commits, the footers give the expected rows. Files that are not ``intact`` are not
    read: they are reported as damage. The expected rows of a slice with logs are known only after merging, so the
    merged rows count on both sides.
    """
    based = {group for group in history.live_groups() if (latest := history.expected_slice(group)) and latest.base}
    logs_only = [entry for entry in slices if entry.base is None and (entry.partition, entry.file_id) not in based]
    if logs_only:
        raise Rejected(
            f"{storage.location}: rows can't be counted, {len(logs_only)} file groups have log files only (first: "
            f"{relative_path(logs_only[0].partition, logs_only[0].logs[0])}), which hudi-rs does not read; they are "
            "countable once lakefold or the table's own compaction has rewritten them"
        )
    reader = HudiRsReader(storage)
    counted = wanted = 0
    merged: dict[FileGroupId, int] = {}
    for entry in slices:
        base = relative_path(entry.partition, entry.base or "")
        if base not in intact:
            continue
        logs = [path for name in entry.logs if (path := relative_path(entry.partition, name)) in intact]
        try:
            read = reader.count_rows(base, logs)
        except MergeUnsupported as complaint:
            raise Rejected(
                f"{storage.location}: rows can't be counted, hudi-rs does not merge {base} with its log files "
                f"({complaint}); count them with Spark, or again once lakefold or the table's own compaction has "
                "rewritten them"
            ) from complaint
        counted += read
        group = entry.partition, entry.file_id
        if entry.logs:
            merged[group] = read
        file = parse_file_name(base)
        if file is not None and not history.has_commit(file.instant) and file.instant < history.oldest_commit_time:
            with storage.open(base) as source:
                wanted += read if entry.logs else pq.ParquetFile(source).metadata.num_rows
    for group in history.live_groups():
        latest = history.expected_slice(group)
        if latest is not None and latest.logs:
            wanted += merged.get(group, latest.base.rows if latest.base is not None else 0)
        elif latest is not None and latest.base is not None:
            wanted += latest.base.rows
    return counted, wanted
