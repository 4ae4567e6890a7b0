# SPDX-License-Identifier: Apache-2.0
"""A table's snapshot in lakefold's terms: one slice for each data file."""

import os
from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import UTC, datetime

import pyarrow as pa

from lake.errors import Transient
from lake.formats.iceberg.catalog.tables import LoadedTable
from lake.formats.iceberg.read import refusals
from lake.formats.iceberg.read.live_files import DataFile, read_live_files, snapshot_of
from lake.model import SLICES_SCHEMA, Snapshot


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
    )


def slices_table(table: LoadedTable, files: Sequence[DataFile]) -> pa.Table:
    """Return the slices of ``files``, as ``SLICES_SCHEMA``."""
    times = {one.snapshot_id: datetime.fromtimestamp(one.timestamp_ms / 1000, UTC) for one in table.metadata.snapshots}
    whole, sizes = refusals.table_reason(table), _delete_sizes(files)
    has_order = table.metadata.format_version > 1  # version 1 has no sequence numbers
    rows = [
        {
            "partition": file.partition,
            "file_id": file.path,
            "path": file.path,
            "bytes": file.bytes,
            "rows": file.rows,
            "log_files": list(file.deletes),
            "log_bytes": sum(sizes[file.path, path] for path in file.deletes),
            "oldest_log_at": None,
            "delta_kind": refusals.delta_kind(file.deletes),
            "deleted_rows": None,
            "modified_at": times.get(file.snapshot_id) or _written_at(table, file),
            "written_order": file.file_sequence_number if has_order else None,
            "group_key": f"{file.spec_id}:{file.partition_json}",
            "busy_reason": whole or refusals.file_reason(table, file),
        }
        for file in files
    ]
    return pa.Table.from_pylist(rows, SLICES_SCHEMA)


def _delete_sizes(files: Sequence[DataFile]) -> dict[tuple[str, str], int]:
    """Divide the size of each delete file among its data files; the result maps (data file, delete file) to bytes."""
    served: dict[str, list[str]] = defaultdict(list)
    for file in files:
        for path in file.deletes:
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


def _written_at(table: LoadedTable, file: DataFile) -> datetime:
    """Return when a file was written whose snapshot has expired: by storage, or if it is lost by the table's age."""
    try:
        return datetime.fromtimestamp(os.stat(file.path).st_mtime, UTC)
    except FileNotFoundError:
        return datetime.fromtimestamp(table.metadata.last_updated_ms / 1000, UTC)
    except OSError as error:
        raise Transient(f"{table.ref.name}: {file.path}: {error.strerror}") from error
