# SPDX-License-Identifier: Apache-2.0
"""Compares storage with a table's snapshots, and describes a table to a person."""

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from lake.errors import Conflict, Rejected, Transient, first_line
from lake.formats.iceberg.catalog.tables import LoadedTable, data_location
from lake.formats.iceberg.read import refusals
from lake.formats.iceberg.read.commits import summary_of
from lake.formats.iceberg.read.live_files import (
    MAIN,
    DataFile,
    all_file_locations,
    manifests_of,
    read_all_files,
    snapshot_of,
)
from lake.formats.iceberg.read.merged_rows import MergedReader
from lake.plan import SupersededVersion
from lake.ports import TableVerification
from lake.storage.locations import canonical_location, is_local, resolve_path
from lake.units import format_bytes

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.sorting import SortField

_DATA_SUFFIXES = (".parquet", ".orc", ".avro", ".puffin")


def _transformed(table: LoadedTable, field: "PartitionField | SortField") -> str:
    """Return the column of a partition or sort field, with its transform unless the value is the column's own."""
    column = table.metadata.schema().find_column_name(field.source_id) or f"dropped column {field.source_id}"
    return column if str(field.transform) == "identity" else f"{field.transform}({column})"


def verify(table: LoadedTable, superseded: Sequence[SupersededVersion], *, rows: bool) -> TableVerification:
    """See ``TableFormat.verify``. ``unowned`` are the files in the data directory that no snapshot lists.

    ``missing`` and ``wrong_size`` also include delete files.
    """
    live = read_all_files(table, snapshot_of(table))
    files = live.data
    sizes = {file.path: file.bytes for file in files} | {file.path: file.bytes for file in live.deletes}
    stored = {path: _size(path) for path in sizes}
    replaced = {resolve_path(table.ref.location, version.path) for version in superseded}
    known = {canonical_location(location) for location in all_file_locations(table)} | replaced
    return TableVerification(
        files=len(files),
        bytes=sum(file.bytes for file in files),
        missing=tuple(sorted(path for path, size in stored.items() if size is None)),
        wrong_size=tuple(sorted(path for path, size in stored.items() if size not in (None, sizes[path]))),
        resurrected=tuple(sorted(replaced & stored.keys())),
        unowned=tuple(sorted(path for path in _data_files(table) if path not in known)),
        rows=_count_rows(table, files) if rows else None,
        # The metadata does not record how many rows of a data file are deleted: only the delete files show it.
        rows_expected=sum(file.rows for file in files) if rows and not any(file.deletes for file in files) else None,
    )


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Transient(f"{path}: {error.strerror}") from error


def _data_files(table: LoadedTable) -> Collection[str]:
    directory = data_location(table)
    if not is_local(directory):
        return ()
    return [
        os.path.join(parent, name)
        for parent, _, names in os.walk(canonical_location(directory))
        for name in names
        if name.endswith(_DATA_SUFFIXES) and not name.startswith((".", "_"))
    ]


def _count_rows(table: LoadedTable, files: Sequence[DataFile]) -> int:
    counted = 0
    for file in files:
        try:
            if file.deletes and os.path.exists(file.path):
                counted += sum(batch.num_rows for batch in MergedReader([file]).read())
                continue
            counted += pq.read_metadata(file.path).num_rows
        except FileNotFoundError:
            continue  # `missing` names the file, which counts as empty
        except (pa.ArrowException, OSError, Conflict) as error:
            raise Rejected(f"{table.ref.name}: rows of {file.path} can't be counted: {first_line(error)}") from error
    return counted


def describe(table: LoadedTable) -> Mapping[str, str]:
    """Return the facts about a table that are worth showing to a person."""
    metadata, newest = table.metadata, snapshot_of(table)
    spec, order = metadata.spec(), metadata.sort_order()
    tags = sorted(name for name in metadata.refs if name != MAIN)
    properties = {key: value for key, value in sorted(metadata.properties.items()) if key.startswith("write.")}
    engine = {} if newest is None else summary_of(newest)
    refusal = refusals.table_reason(table)
    return {
        "format version": str(metadata.format_version),
        "snapshot": "none" if newest is None else str(newest.snapshot_id),
        "snapshots": str(len(metadata.snapshots)),
        "manifests": _describe_manifests(table, newest),
        "delete files": engine.get("total-delete-files", "0"),
        "branches and tags": ", ".join(tags) or f"only {MAIN}",
        "partitioned by": ", ".join(_transformed(table, one) for one in spec.fields) or "nothing",
        "partition specs": str(len(metadata.partition_specs)),
        "sorted by": ", ".join(f"{_transformed(table, one)} {one.direction} {one.null_order}" for one in order.fields)
        or "nothing",
        "write properties": ", ".join(f"{key}={value}" for key, value in properties.items()) or "none",
        "metadata": table.metadata_location,
        **({} if refusal is None else {"not rewritten": refusal}),
        "writers": f"last commit by {engine.get('engine-name', 'an unnamed engine')}" if newest is not None else "none",
    }


def _describe_manifests(table: LoadedTable, snapshot: "Snapshot | None") -> str:
    """Return the number and the size of a snapshot's manifests. Raises Transient if they can't be read."""
    if snapshot is None:
        return "none"
    sizes = [one.manifest_length for one in manifests_of(table, snapshot)]
    return f"{len(sizes)}, {format_bytes(sum(sizes))}" if sizes else "none"
