# SPDX-License-Identifier: Apache-2.0
"""What was done to a table, commit by commit, from the active timeline and the archived one. Needs no JVM."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from lake.formats.hudi.files.names import Group, data_file
from lake.formats.hudi.timeline.timeline import (
    COMMIT_ACTIONS,
    PLAN_KEY,
    Timeline,
    extra_metadata,
    instant_datetime,
    write_stats,
)
from lake.history import Change, Check, FileWritten, History, PastCommit, go_on, standing

#: operations that leave rows as they are; where none is recorded the action says it
_REWRITES = {"CLUSTER", "COMPACT", "LOG_COMPACT"}
_REWRITING_KINDS = {"clustering", "compaction", "logcompaction"}
#: what a writer leaves in its commits, by its name for people
_APPLICATIONS = {
    "deltastreamer.checkpoint.key": "Hudi Streamer",
    "streamer.checkpoint.key.v2": "Hudi Streamer",
    "_hudi_streaming_sink_checkpoint": "Spark Structured Streaming",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """A completed commit as the timeline tells it; ``plan`` is what was requested, where that was read."""

    time: str
    completed_at: str
    kind: str
    metadata: Mapping[str, Any] | None
    plan: Mapping[str, Any] | None


def past(timeline: Timeline, since: datetime, until: datetime, check: Check = go_on) -> History:
    """The table at ``since`` and what was done to it until ``until``."""
    commits, notes = [], []
    told = sorted(_checked(_told(timeline), check), key=lambda entry: (entry.completed_at, entry.time))
    silent = sum(entry.metadata is None for entry in told)
    if silent:
        notes.append(f"{silent} commits do not say what they wrote and are left out")
    for entry in _checked(told, check):
        commit = _commit(entry, instant_datetime(entry.completed_at, timeline.timezone))
        if entry.metadata is not None and commit.at <= until:
            commits.append(commit)
    before = [commit for commit in commits if commit.at < since]
    if not before and commits:
        notes.append(f"the oldest commit in the table's history is from {commits[0].at:%Y-%m-%d %H:%M} UTC")
        since = max(since, commits[0].at)
    return History(
        since=since,
        until=until,
        files=tuple(standing(before)),
        commits=tuple(commits[len(before) :]),
        writer="hudi-mor" if timeline.properties.get("hoodie.table.type") == "MERGE_ON_READ" else "hudi-cow",
        notes=tuple(notes),
    )


def _checked(told: Iterable[_Told], check: Check) -> Iterator[_Told]:
    for entry in told:
        check()
        yield entry


def _told(timeline: Timeline) -> Iterator[_Told]:
    """Every completed commit once; what is archived meanwhile is in both timelines."""
    active = timeline.commits
    for instant, metadata in zip(active, timeline.storage.each(timeline.written, active), strict=True):
        yield _Told(
            time=instant.time,
            completed_at=instant.completed_at or instant.time,
            kind=instant.kind,
            metadata=metadata,
            plan=timeline.plan(instant) if instant.kind in _REWRITING_KINDS else None,
        )
    known = {instant.time for instant in active}
    for archived in timeline.archived(COMMIT_ACTIONS):
        if archived.time not in known:
            kind = "clustering" if (archived.plan or {}).get("clusteringPlan") else archived.action
            yield _Told(
                time=archived.time,
                completed_at=archived.completed_at,
                kind="compaction" if (archived.plan or {}).get("operations") else kind,
                metadata=archived.metadata,
                plan=archived.plan,
            )


def _commit(told: _Told, at: datetime) -> PastCommit:
    metadata = told.metadata or {}
    operation = metadata.get("operationType") or ""
    rewrites = operation in _REWRITES if operation not in ("", "UNKNOWN") else told.kind in _REWRITING_KINDS
    extra = extra_metadata(metadata)
    replaced: Mapping[str, list[str]] = metadata.get("partitionToReplaceFileIds") or {}
    return PastCommit(
        at=at,
        change=Change.REWRITE if rewrites else Change.WRITE,
        operation=(operation or told.kind).lower(),
        wrote=tuple(_written(metadata, at, logs=not rewrites)),
        took_out=tuple((partition, file_id) for partition, ids in replaced.items() for file_id in ids),
        plan_id=(extra.get(PLAN_KEY) or extra_metadata(told.plan).get(PLAN_KEY)) if rewrites else None,
        application=next((name for key, name in _APPLICATIONS.items() if key in extra), None),
    )


def _written(metadata: Mapping[str, Any], at: datetime, *, logs: bool) -> Iterator[FileWritten]:
    """What a commit wrote, one entry a file group. Logs that were merged into one are the same logs to a reader."""
    found: dict[Group, FileWritten] = {}
    for _, stat in write_stats(metadata):
        file = data_file(stat.get("path") or "")
        size = stat.get("fileSizeInBytes") or 0
        if file is None or not size or (file.is_log and (not logs or file.is_cdc)):
            continue
        entry = found.get(file.group) or FileWritten(partition=file.partition, file_id=file.file_id, at=at)
        if file.is_log:
            new = not (stat.get("logOffset") or 0)
            entry = replace(entry, log_files=entry.log_files + new, log_bytes=entry.log_bytes + size)
        else:
            entry = replace(entry, bytes=size, rows=stat.get("numWrites") or 0)
        found[file.group] = entry
    yield from found.values()
