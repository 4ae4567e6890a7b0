# SPDX-License-Identifier: Apache-2.0
"""The archived timeline in both layouts: the instants that Hudi moved out of the active timeline.

Layout 2 keeps Parquet files under a manifest, one row per instant. Layout 1 keeps Hudi log files
``.commits_.archive.N_TOKEN`` with Avro records, one for each state of an instant.
"""

import json
import re
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lake.errors import Transient, first_line
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.timeline.records import LogRecord, decode_record, read_log_records

COMPLETES_AS = {"clustering": "replacecommit", "compaction": "commit", "logcompaction": "deltacommit"}
"""The action under which a requested action completes, if the two differ."""

_HISTORY = re.compile(r"(\d+)_(\d+)_\d+\.parquet")
_LOG = re.compile(r"\.commits_\.archive\.(\d+)(?:_.+)?")
_HEAD = ("commitTime", "actionType", "actionState", "stateTransitionTime")
_PLANS = ("hoodieRequestedReplaceMetadata", "hoodieCompactionPlan")
_METADATA = {
    "commit": "hoodieCommitMetadata",
    "deltacommit": "hoodieCommitMetadata",
    "replacecommit": "hoodieReplaceCommitMetadata",
    "clean": "hoodieCleanMetadata",
    "rollback": "hoodieRollbackMetadata",
    "savepoint": "hoodieSavePointMetadata",
}


class ArchiveUnreadable(Transient):
    """The archive file at ``path`` is damaged or missing. The message names the file and the remedy."""

    def __init__(self, storage: TableStorage, path: str, why: str) -> None:
        super().__init__(f"{storage.display_path(path)} can't be read ({why}); put it back from a backup")
        self.path = path


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFilter:
    """The filter of archived instants; None means all.

    ``actions`` and ``times`` select instants, ``plans`` and ``metadata`` the two large parts to read. ``containing``
    selects instants with these bytes in one of the parts read.
    """

    actions: Collection[str] | None = None
    containing: bytes | None = None
    times: Collection[str] | None = None
    plans: bool = True
    metadata: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedInstant:
    """A completed instant of the archived timeline.

    ``plan`` is the record of its request, None if the action has no plan; ``metadata`` the record of its completion.
    """

    time: str
    completed_at: str
    action: str
    plan: dict[str, Any] | None
    metadata: dict[str, Any] | None


def read_archive_v2(storage: TableStorage, directory: str, archive_filter: ArchiveFilter) -> Iterator[ArchivedInstant]:
    """Yield archived instants of layout 2, newest first."""
    columns = ["instantTime", "completionTime", "action"]
    heavy = ["plan"] * archive_filter.plans + ["metadata"] * archive_filter.metadata
    times, containing = archive_filter.times, archive_filter.containing
    for name in _list_archive_files(storage, directory):
        path = f"{directory}/{name}"
        bounds = _HISTORY.fullmatch(name)
        if times is not None and bounds and not any(bounds.group(1) <= t <= bounds.group(2) for t in times):
            continue
        table = _read_history_file(storage, directory, name, [*columns, *heavy])
        if archive_filter.actions is not None:
            actions = pa.array(sorted(archive_filter.actions), type=table["action"].type)
            table = table.filter(pc.is_in(table["action"], value_set=actions))
        if times is not None:
            wanted_times = pa.array(sorted(times), type=table["instantTime"].type)
            table = table.filter(pc.is_in(table["instantTime"], value_set=wanted_times))
        for row in reversed(table.sort_by("instantTime").to_pylist()):
            if containing is not None and not any(containing in (row[column] or b"") for column in heavy):
                continue
            with _with_archive_errors(storage, path):
                found = ArchivedInstant(
                    time=row["instantTime"],
                    completed_at=row["completionTime"] or row["instantTime"],
                    action=row["action"],
                    plan=decode_record(row.get("plan")),
                    metadata=decode_record(row.get("metadata")),
                )
            yield found


def newest_heads_v2(
    storage: TableStorage, directory: str, before: tuple[str, str], limit: int
) -> list[ArchivedInstant]:
    """Return the ``limit`` newest archived instants of layout 2 that sort before ``before``, newest first.

    ``before`` is a time and an action. Plans and metadata are not read, nor are files with only older instants.
    """
    found: list[tuple[str, str, str]] = []
    for name in _list_archive_files(storage, directory):
        bounds = _HISTORY.fullmatch(name)
        if bounds and len(found) == limit and bounds.group(2) < found[-1][0]:
            break  # the files are sorted by their newest instants
        if bounds and bounds.group(1) > before[0]:
            continue
        table = _read_history_file(storage, directory, name, ["instantTime", "completionTime", "action"])
        heads = (
            (row["instantTime"], row["action"], row["completionTime"] or row["instantTime"])
            for row in table.to_pylist()
        )
        found = sorted({*found, *(head for head in heads if head[:2] < before)}, reverse=True)[:limit]
    return [
        ArchivedInstant(time=time, completed_at=completed_at, action=action, plan=None, metadata=None)
        for time, action, completed_at in found
    ]


def _read_history_file(storage: TableStorage, directory: str, name: str, columns: list[str]) -> pa.Table:
    path = f"{directory}/{name}"
    try:
        with _with_archive_errors(storage, path), storage.open(path) as source:
            return pq.ParquetFile(source).read(columns=columns)
    except FileNotFoundError as error:
        if name not in _list_archive_files(storage, directory):
            raise  # the file was merged into another file meanwhile
        raise ArchiveUnreadable(storage, path, "it is missing") from error


@contextmanager
def _with_archive_errors(storage: TableStorage, path: str) -> Iterator[None]:
    """Raise ArchiveUnreadable with the path of the archive file that can't be read."""
    try:
        yield
    except (pa.ArrowException, ValueError, KeyError, EOFError, struct.error, Transient) as error:
        raise ArchiveUnreadable(storage, path, first_line(error)) from error


def _list_archive_files(storage: TableStorage, directory: str) -> tuple[str, ...]:
    """Return the files that the newest manifest names, newest instants first."""
    names = storage.list_file_names(directory)
    live: Collection[str] = {name for name in names if name.endswith(".parquet")}
    if "_version_" in names:
        # A manifest is valid once this file names it; files that the manifest doesn't list are being replaced.
        version = storage.read(f"{directory}/_version_").decode().strip()
        with _with_archive_errors(storage, path := f"{directory}/manifest_{version}"):
            listed = {entry["fileName"] for entry in json.loads(storage.read(path))["files"]}
        live = {name for name in listed if name.endswith(".parquet")}

    def newest(name: str) -> str:
        match = _HISTORY.fullmatch(name)
        return match.group(2) if match else "9"

    return tuple(sorted(live, key=newest, reverse=True))


def read_archive_v1(storage: TableStorage, directory: str, archive_filter: ArchiveFilter) -> Iterator[ArchivedInstant]:
    """Yield archived instants of layout 1, newest first.

    All files are read, as Hudi does: the states of one instant may be in several files.
    """
    states: dict[tuple[str, str], dict[str, tuple[LogRecord, str]]] = {}
    for name in storage.list_file_names(directory):
        if _LOG.fullmatch(name):
            with _with_archive_errors(storage, path := f"{directory}/{name}"):
                heads = [(record, record.decode(*_HEAD)) for record in read_log_records(storage.read(path))]
            for record, head in heads:
                action = COMPLETES_AS.get(head["actionType"], head["actionType"])
                if archive_filter.times is not None and head["commitTime"] not in archive_filter.times:
                    continue
                if archive_filter.actions is not None and action not in archive_filter.actions:
                    continue
                # Records of Hudi before 0.6 have no state: only completed instants were archived.
                state = head.get("actionState") or "COMPLETED"
                known = states.setdefault((head["commitTime"], action), {})
                known[state] = record, head.get("stateTransitionTime") or head["commitTime"]
    for (time, action), found in sorted(states.items(), reverse=True):
        if "COMPLETED" not in found:
            continue
        requests = [found[state][0] for state in ("REQUESTED", "INFLIGHT") if state in found]
        completed, completed_at = found["COMPLETED"]
        heavy = requests * archive_filter.plans + [completed] * archive_filter.metadata
        if archive_filter.containing is not None and not any(
            archive_filter.containing in record.content for record in heavy
        ):
            continue
        yield ArchivedInstant(
            time=time,
            completed_at=completed_at,
            action=action,
            plan=_plan(requests) if archive_filter.plans else None,
            metadata=completed.decode().get(_METADATA.get(action, "")) if archive_filter.metadata else None,
        )


def _plan(requests: Collection[LogRecord]) -> dict[str, Any] | None:
    for request in requests:
        record = request.decode()
        for field in _PLANS:
            if record.get(field):
                plan: dict[str, Any] = record[field]
                return plan
    return None
