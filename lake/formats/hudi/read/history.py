# SPDX-License-Identifier: Apache-2.0
"""The history of a table, commit by commit, from the active and the archived timeline. Needs no JVM."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from lake.formats.hudi.files.names import FileGroupId, parse_file_name
from lake.formats.hudi.timeline.timeline import (
    COMMIT_ACTIONS,
    PLAN_KEY,
    Timeline,
    extra_metadata,
    instant_datetime,
    write_stats,
)
from lake.history import (
    CancellationCheck,
    ChangeKind,
    FileWritten,
    HistoricalCommit,
    TableHistory,
    file_groups_after,
    no_check,
)

#: operations that do not change rows; if the operation isn't recorded, the action decides
REWRITE_OPERATIONS = {"CLUSTER", "COMPACT", "LOG_COMPACT"}
REWRITE_KINDS = {"clustering", "compaction", "logcompaction"}
#: keys that writers set in their commits' extra metadata, with the writers' names for people
_APPLICATION_OF_KEY = {
    "deltastreamer.checkpoint.key": "Hudi Streamer",
    "streamer.checkpoint.key.v2": "Hudi Streamer",
    "_hudi_streaming_sink_checkpoint": "Spark Structured Streaming",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _CommitRecord:
    """A completed commit from the timeline; ``plan`` is the record of its request, None if it has no plan."""

    time: str
    completed_at: str
    kind: str
    metadata: Mapping[str, Any] | None
    plan: Mapping[str, Any] | None


def read_history(
    timeline: Timeline, since: datetime, until: datetime, check: CancellationCheck = no_check
) -> TableHistory:
    """Return the table at ``since`` and its commits until ``until``."""
    commits, notes = [], []
    records = sorted(
        _with_checks(_read_commit_records(timeline), check), key=lambda entry: (entry.completed_at, entry.time)
    )
    without_metadata = sum(entry.metadata is None for entry in records)
    if without_metadata:
        notes.append(f"{without_metadata} commits do not name their files and are left out")
    for entry in _with_checks(records, check):
        commit = _to_past_commit(entry, instant_datetime(entry.completed_at, timeline.timezone))
        if entry.metadata is not None and commit.at <= until:
            commits.append(commit)
    before = [commit for commit in commits if commit.at < since]
    if not before and commits:
        notes.append(f"the oldest commit in the table's history is from {commits[0].at:%Y-%m-%d %H:%M} UTC")
        since = max(since, commits[0].at)
    return TableHistory(
        since=since,
        until=until,
        files=tuple(file_groups_after(before)),
        commits=tuple(commits[len(before) :]),
        writer_model="hudi-mor" if timeline.properties.get("hoodie.table.type") == "MERGE_ON_READ" else "hudi-cow",
        notes=tuple(notes),
    )


def _with_checks(records: Iterable[_CommitRecord], check: CancellationCheck) -> Iterator[_CommitRecord]:
    for entry in records:
        check()
        yield entry


def _read_commit_records(timeline: Timeline) -> Iterator[_CommitRecord]:
    """Yield every completed commit once; a commit archived meanwhile is in both timelines."""
    active = timeline.commits
    for instant, metadata in zip(active, timeline.storage.map_parallel(timeline.commit_metadata, active), strict=True):
        yield _CommitRecord(
            time=instant.time,
            completed_at=instant.completed_at or instant.time,
            kind=instant.kind,
            metadata=metadata,
            plan=timeline.plan(instant) if instant.kind in REWRITE_KINDS else None,
        )
    known = {instant.time for instant in active}
    for archived in timeline.archived(COMMIT_ACTIONS):
        if archived.time not in known:
            kind = "clustering" if (archived.plan or {}).get("clusteringPlan") else archived.action
            yield _CommitRecord(
                time=archived.time,
                completed_at=archived.completed_at,
                kind="compaction" if (archived.plan or {}).get("operations") else kind,
                metadata=archived.metadata,
                plan=archived.plan,
            )


def _to_past_commit(record: _CommitRecord, at: datetime) -> HistoricalCommit:
    metadata = record.metadata or {}
    operation = metadata.get("operationType") or ""
    rewrites = operation in REWRITE_OPERATIONS if operation not in ("", "UNKNOWN") else record.kind in REWRITE_KINDS
    extra = extra_metadata(metadata)
    replaced: Mapping[str, list[str]] = metadata.get("partitionToReplaceFileIds") or {}
    return HistoricalCommit(
        at=at,
        change=ChangeKind.REWRITE if rewrites else ChangeKind.WRITE,
        operation=(operation or record.kind).lower(),
        written=tuple(_written_files(metadata, at, logs=not rewrites)),
        removed_groups=tuple((partition, file_id) for partition, ids in replaced.items() for file_id in ids),
        plan_id=(extra.get(PLAN_KEY) or extra_metadata(record.plan).get(PLAN_KEY)) if rewrites else None,
        application=application_of(extra),
    )


def application_of(extra: Mapping[str, str]) -> str | None:
    """Return the program that wrote a commit with this extra metadata; None if it left no trace."""
    return next((name for key, name in _APPLICATION_OF_KEY.items() if key in extra), None)


def _written_files(metadata: Mapping[str, Any], at: datetime, *, logs: bool) -> Iterator[FileWritten]:
    """Yield the files that a commit wrote, one entry per file group.

    Logs that a rewrite merged into one (``logs`` False) don't count: readers see the same logs.
    """
    found: dict[FileGroupId, FileWritten] = {}
    for _, stat in write_stats(metadata):
        file = parse_file_name(stat.get("path") or "")
        size = stat.get("fileSizeInBytes") or 0
        if file is None or not size or (file.is_log and (not logs or file.is_cdc)):
            continue
        entry = found.get(file.group_id) or FileWritten(partition=file.partition, file_id=file.file_id, at=at)
        if file.is_log:
            new = not (stat.get("logOffset") or 0)
            entry = replace(entry, log_files=entry.log_files + new, log_bytes=entry.log_bytes + size)
        else:
            entry = replace(entry, bytes=size, rows=stat.get("numWrites") or 0)
        found[file.group_id] = entry
    yield from found.values()
