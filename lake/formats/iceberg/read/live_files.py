# SPDX-License-Identifier: Apache-2.0
"""The data files of a snapshot, with the row-level deletes that may apply to each, from its manifests."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lake.errors import Rejected, Transient, first_line
from lake.formats.iceberg.catalog.tables import LoadedTable
from lake.storage.locations import canonical_location

MAIN = "main"
"""The branch that readers read by default. lakefold works on this branch only."""

PARQUET = "PARQUET"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A data file of a snapshot.

    ``location`` is its name in the metadata, ``path`` the canonical spelling. ``partition`` is the partition's path as
    Iceberg writes it; ``partition_json`` are the partition's values by field id, in Iceberg's JSON of single values,
    since two partitions can have one path (null and the text ``null``). ``snapshot_id`` is the snapshot that added the
    file. ``deletes`` are the paths of all delete files that may apply to the file.
    """

    location: str
    path: str
    bytes: int
    rows: int
    file_format: str
    spec_id: int
    partition: str
    partition_json: str
    sequence_number: int
    file_sequence_number: int
    snapshot_id: int | None
    deletes: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Deletes:
    """The delete files of one partition: those of all its files, and position deletes that name one data file."""

    positions: list[tuple[int, str]] = field(default_factory=list)
    equalities: list[tuple[int, str]] = field(default_factory=list)


def snapshot_of(table: LoadedTable, ref: str = MAIN) -> Any | None:
    """Return the snapshot that a branch or tag names; None if there is none."""
    named = table.metadata.refs.get(ref)
    if named is not None:
        return table.metadata.snapshot_by_id(named.snapshot_id)
    return table.metadata.current_snapshot() if ref == MAIN else None


def read_live_files(
    table: LoadedTable, snapshot: Any | None, partitions: Collection[str] | None = None
) -> list[DataFile]:
    """Return the data files of ``snapshot``, all or those of the named partitions.

    Raises Transient if a manifest can't be read, Rejected if its content is unknown.
    """
    if snapshot is None:
        return []
    from pyiceberg.manifest import DataFileContent, ManifestContent

    namer = PartitionNamer(table)
    entries: list[tuple[Any, str, str]] = []
    by_partition: dict[tuple[int, str], _Deletes] = defaultdict(_Deletes)
    by_path: dict[str, list[tuple[int, str]]] = defaultdict(list)
    anywhere: list[tuple[int, str]] = []
    for manifest in manifests_of(table, snapshot):
        is_data = manifest.content == ManifestContent.DATA
        for entry in entries_of(table, manifest):
            file, (name, values) = entry.data_file, namer.describe(entry.data_file)
            if is_data:
                if partitions is None or name in partitions:
                    entries.append((entry, name, values))
                continue
            delete = int(entry.sequence_number or 0), canonical_location(file.file_path)
            if file.content == DataFileContent.EQUALITY_DELETES:
                if namer.is_unpartitioned(file.spec_id):
                    anywhere.append(delete)  # applies to files of every partition and spec
                else:
                    by_partition[file.spec_id, values].equalities.append(delete)
            elif (data_path := referenced_data_file(file)) is not None:
                by_path[data_path].append(delete)
            else:
                by_partition[file.spec_id, values].positions.append(delete)
    return [
        _data_file(entry, name, values, by_partition.get((entry.data_file.spec_id, values)), by_path, anywhere)
        for entry, name, values in entries
    ]


def _data_file(
    entry: Any,
    name: str,
    values: str,
    partition: _Deletes | None,
    by_path: Mapping[str, list[tuple[int, str]]],
    anywhere: list[tuple[int, str]],
) -> DataFile:
    file, sequence = entry.data_file, int(entry.sequence_number or 0)
    deletes = {path for number, path in by_path.get(file.file_path, ()) if number >= sequence}
    deletes.update(path for number, path in anywhere if number > sequence)
    if partition is not None:
        deletes.update(path for number, path in partition.positions if number >= sequence)
        deletes.update(path for number, path in partition.equalities if number > sequence)
    return DataFile(
        location=file.file_path,
        path=canonical_location(file.file_path),
        bytes=file.file_size_in_bytes,
        rows=file.record_count,
        file_format=str(getattr(file.file_format, "value", file.file_format)).upper(),
        spec_id=file.spec_id,
        partition=name,
        partition_json=values,
        sequence_number=sequence,
        file_sequence_number=int(entry.file_sequence_number or 0),
        snapshot_id=entry.snapshot_id,
        deletes=tuple(sorted(deletes)),
    )


def referenced_data_file(file: Any) -> str | None:
    """Return the one data file that position deletes are for, by their bounds; None if they may be for several."""
    path_id = 2147483546  # the reserved field id of file_path
    lower, upper = (file.lower_bounds or {}).get(path_id), (file.upper_bounds or {}).get(path_id)
    return lower.decode() if lower and lower == upper else None


def manifests_of(table: LoadedTable, snapshot: Any) -> Collection[Any]:
    """Return the manifests of a snapshot. Raises Transient if they can't be read."""
    found: Collection[Any] = _read(table, snapshot.manifest_list, lambda: list(snapshot.manifests(table.io)))
    return found


def entries_of(table: LoadedTable, manifest: Any, *, deleted: bool = False) -> Collection[Any]:
    """Return the entries of a manifest, ``deleted`` ones as well if wanted. Raises Transient if it can't be read."""
    found: Collection[Any] = _read(
        table, manifest.manifest_path, lambda: manifest.fetch_manifest_entry(table.io, discard_deleted=not deleted)
    )
    return found


def _read(table: LoadedTable, path: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except OSError as error:
        # An expiry may have removed it since the metadata was read.
        raise Transient(f"{table.ref.name}: {path} can't be read ({first_line(error)})") from error
    except (ValueError, TypeError, KeyError, EOFError, AssertionError) as error:
        raise Rejected(f"{table.ref.name}: {path} can't be read: {first_line(error)}") from error


class PartitionNamer:
    """Names the partitions of a table's files, each by its path and by its values."""

    def __init__(self, table: LoadedTable) -> None:
        self._name, self._schema, self._specs = table.ref.name, table.metadata.schema(), table.metadata.specs()
        self._types: dict[int, Any] = {}
        self._known: dict[tuple[Any, ...], tuple[str, str]] = {}

    def is_unpartitioned(self, spec_id: int) -> bool:
        """Return True if files of this spec belong to no partition."""
        return bool(self._specs[spec_id].is_unpartitioned())

    def describe(self, file: Any) -> tuple[str, str]:
        """Return the partition of a data or delete file: its path, and its values as JSON by field id."""
        values = tuple(file.partition[position] for position in range(len(self._specs[file.spec_id].fields)))
        # Equal numbers of different types, such as 0.0 and -0.0, must not share an entry.
        key = (file.spec_id, repr(values))
        if key not in self._known:
            self._known[key] = self._describe(file.spec_id, file.partition, values)
        return self._known[key]

    def _describe(self, spec_id: int, record: Any, values: tuple[Any, ...]) -> tuple[str, str]:
        from pyiceberg.conversions import to_json

        spec = self._specs[spec_id]
        if not spec.fields:
            return "", "{}"
        try:
            if spec_id not in self._types:
                self._types[spec_id] = spec.partition_type(self._schema).fields
            types = self._types[spec_id]
            document = {
                str(one.field_id): to_json(one.field_type, value)
                for one, value in zip(types, values, strict=True)
                if value is not None
            }
            return spec.partition_to_path(record, self._schema), json.dumps(document, sort_keys=True)
        except (TypeError, ValueError, KeyError) as error:  # such as a partition of a column that was dropped
            raise Rejected(
                f"{self._name}: a partition of spec {spec_id} ({spec}) can't be named: {first_line(error)}"
            ) from error


def all_file_locations(table: LoadedTable) -> Iterator[str]:
    """Yield the names of all data and delete files that any snapshot of the table lists; a file may come twice.

    Raises as ``read_live_files`` does.
    """
    seen = set[str]()
    for snapshot in table.metadata.snapshots:
        for manifest in manifests_of(table, snapshot):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            for entry in entries_of(table, manifest):
                yield entry.data_file.file_path
