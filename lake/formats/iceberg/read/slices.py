# SPDX-License-Identifier: Apache-2.0
"""A table's snapshot in lakefold's terms: one slice for each data file."""

import os
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from lake.errors import Transient
from lake.formats.iceberg.catalog.tables import LoadedTable
from lake.formats.iceberg.read import refusals
from lake.formats.iceberg.read.commits import PLAN, summary_of
from lake.formats.iceberg.read.delete_files import DeleteContent, DeleteFile
from lake.formats.iceberg.read.live_files import DataFile, ancestors, read_live_files, snapshot_of
from lake.model import SLICES_SCHEMA, DeltaKind, Snapshot


def read_snapshot(table: LoadedTable, partitions: Collection[str] | None = None) -> Snapshot:
    """Return the files of the branch ``main``: all files, or only those of ``partitions``.

    Raises the errors of ``read_live_files``.
    """
    taken_at, newest = datetime.now(UTC), snapshot_of(table)
    files = read_live_files(table, newest, partitions)
    return Snapshot(
        table=table.ref,
        instant="" if newest is None else str(newest.snapshot_id),
        taken_at=taken_at,
        slices=slices_table(table, files),
        uncompacted_commits=uncompacted_commits(table, newest),
    )


def uncompacted_commits(table: LoadedTable, newest: Any | None) -> int:
    """Return the number of commits since the last rewrite that added delete files and no data files.

    Counts back from the snapshot ``newest``, as far as the table still has its ancestors.
    """
    by_id = {one.snapshot_id: one for one in table.metadata.snapshots}
    counted = 0
    for snapshot in ancestors(by_id, newest):
        summary = summary_of(snapshot)
        if PLAN in summary or _operation(snapshot) == "replace":
            break
        counted += int(summary.get("added-delete-files", 0)) > 0 and not int(summary.get("added-data-files", 0))
    return counted


def _operation(snapshot: Any) -> str:
    return "" if snapshot.summary is None else str(snapshot.summary.operation.value)


def slices_table(table: LoadedTable, files: Sequence[DataFile]) -> pa.Table:
    """Return the slices of ``files``, as ``SLICES_SCHEMA``."""
    times = {one.snapshot_id: datetime.fromtimestamp(one.timestamp_ms / 1000, UTC) for one in table.metadata.snapshots}
    whole, sizes = refusals.table_reason(table), _delete_sizes(files)
    has_order = table.metadata.format_version > 1  # version 1 has no sequence numbers
    written = _FileTimes(table, times)
    refused = refusals.FileRefusals(table)
    rows = [
        {
            "partition": file.partition,
            "file_id": file.path,
            "path": file.path,
            "bytes": file.bytes,
            "rows": file.rows,
            "log_files": list(file.delete_paths),
            "log_bytes": sum(sizes[file.path, path] for path in file.delete_paths),
            "oldest_log_at": min((written.at(one) for one in file.deletes), default=None),
            "delta_kind": delta_kind(file.deletes),
            "deleted_rows": deleted_rows(file),
            "modified_at": max([written.at(file), *map(written.at, file.deletes)]),
            "written_order": file.file_sequence_number if has_order else None,
            "group_key": f"{file.spec_id}:{file.partition_json}",
            "busy_reason": whole or refused.reason(file),
        }
        for file in files
    ]
    return pa.Table.from_pylist(rows, SLICES_SCHEMA)


def delta_kind(deletes: Sequence[DeleteFile]) -> DeltaKind | None:
    """Return the kind of a file's deletes; None without any."""
    if not deletes:
        return None
    is_vector = all(one.content is DeleteContent.VECTOR for one in deletes)
    return DeltaKind.VECTOR if is_vector else DeltaKind.DELETES


def deleted_rows(file: DataFile) -> int | None:
    """Return how many rows of a file are known to be deleted, from the deletes that are for this file only.

    Returns None if no deletes are for this file only.
    """
    known = [one.rows for one in file.deletes if one.data_location is not None]
    return min(sum(known), file.rows) if known else None


def _delete_sizes(files: Sequence[DataFile]) -> dict[tuple[str, str], int]:
    """Divide the size of each delete file among its data files; the result maps (data file, delete file) to bytes."""
    served: dict[str, list[str]] = defaultdict(list)
    for file in files:
        for path in file.delete_paths:
            served[path].append(file.path)
    parts = {}
    for path, data_paths in served.items():
        try:
            size = os.stat(path).st_size
        except OSError:
            size = 0  # a lost delete file is reported by `verify`
        for position, data_path in enumerate(data_paths):
            parts[data_path, path] = size // len(data_paths) + (position < size % len(data_paths))
    return parts


class _FileTimes:
    """The times when files became visible: ``snapshots`` has those of the snapshots that the table still has."""

    def __init__(self, table: LoadedTable, snapshots: Mapping[int | None, datetime]) -> None:
        self._table, self._snapshots = table, snapshots
        self._stored: dict[str, datetime] = {}

    def at(self, file: DataFile | DeleteFile) -> datetime:
        """Return the time of the snapshot that added the file.

        If this snapshot has expired, return the file's own time, or the table's time if the file is lost.
        """
        if (found := self._snapshots.get(file.snapshot_id)) is not None:
            return found
        if file.path not in self._stored:
            self._stored[file.path] = self._stored_at(file.path)
        return self._stored[file.path]

    def _stored_at(self, path: str) -> datetime:
        try:
            return datetime.fromtimestamp(os.stat(path).st_mtime, UTC)
        except FileNotFoundError:
            return datetime.fromtimestamp(self._table.metadata.last_updated_ms / 1000, UTC)
        except OSError as error:
            raise Transient(f"{self._table.ref.name}: {path}: {error.strerror}") from error
