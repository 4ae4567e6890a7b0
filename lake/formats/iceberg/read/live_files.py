# SPDX-License-Identifier: Apache-2.0
"""The data files of a snapshot, with the row-level deletes that may apply to each, from its manifests."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from lake.errors import Rejected, Transient, first_line
from lake.formats.iceberg.catalog.tables import LoadedTable
from lake.formats.iceberg.read.partitions import Partition, PartitionNamer
from lake.storage.locations import canonical_location

MAIN = "main"
"""The branch that readers read by default. lakefold works on this branch only."""

PARQUET = "PARQUET"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A data file of a snapshot.

    ``location`` is its name in the metadata, ``path`` the canonical spelling. ``partition`` and ``partition_json`` are
    name and values of its ``Partition``. ``snapshot_id`` is the snapshot that added the file. ``deletes`` are the paths
    of all delete files that may apply to the file. ``problem`` is the reason why the file can't be rewritten as it is
    listed; None if it can.
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
    problem: str | None = None


def _lists() -> dict[Any, list[tuple[int, str]]]:
    return defaultdict(list)


@dataclass(slots=True, kw_only=True)
class _Deletes:
    """The delete files of a snapshot, each as its sequence number and its path.

    ``positions`` and ``equalities`` are those of one partition of one spec, ``by_path`` those of one data file.
    ``anywhere`` are equality deletes that apply to files of every partition and spec.
    """

    positions: dict[tuple[int, str], list[tuple[int, str]]] = field(default_factory=_lists)
    equalities: dict[tuple[int, str], list[tuple[int, str]]] = field(default_factory=_lists)
    by_path: dict[str, list[tuple[int, str]]] = field(default_factory=_lists)
    anywhere: list[tuple[int, str]] = field(default_factory=list)

    def of(self, file: Any, partition: Partition, sequence: int) -> set[str]:
        """Return the paths of those that may apply to a data file with this sequence number."""
        key = (file.spec_id, partition.values)
        by_position = [*self.by_path.get(file.file_path, ()), *self.positions.get(key, ())]
        by_value = [*self.anywhere, *self.equalities.get(key, ())]
        return {path for number, path in by_position if number >= sequence} | {
            path for number, path in by_value if number > sequence
        }


def snapshot_of(table: LoadedTable, ref: str = MAIN) -> Any | None:
    """Return the snapshot that a branch or tag names; None if there is none."""
    named = table.metadata.refs.get(ref)
    if named is not None:
        return table.metadata.snapshot_by_id(named.snapshot_id)
    return table.metadata.current_snapshot() if ref == MAIN else None


def read_live_files(
    table: LoadedTable, snapshot: Any | None, partitions: Collection[str] | None = None
) -> list[DataFile]:
    """Return the data files of ``snapshot``: all files, or only those of ``partitions``. Returns each file once.

    Raises Transient if a manifest can't be read, Rejected if its content is unknown.
    """
    if snapshot is None:
        return []
    from pyiceberg.manifest import DataFileContent, ManifestContent

    namer = PartitionNamer(table)
    entries: list[tuple[Any, Partition]] = []
    listed = Counter[str]()
    deletes = _Deletes()
    for manifest in manifests_of(table, snapshot):
        is_data = manifest.content == ManifestContent.DATA
        for entry in entries_of(table, manifest):
            file, partition = entry.data_file, namer.describe(entry.data_file)
            if is_data:
                listed[canonical_location(file.file_path)] += 1
                if partitions is None or partition.name in partitions:
                    entries.append((entry, partition))
                continue
            delete = int(entry.sequence_number or 0), canonical_location(file.file_path)
            if file.content == DataFileContent.EQUALITY_DELETES:
                if namer.is_unpartitioned(file.spec_id):
                    deletes.anywhere.append(delete)
                else:
                    deletes.equalities[file.spec_id, partition.values].append(delete)
            elif (data_path := referenced_data_file(file)) is not None:
                deletes.by_path[data_path].append(delete)
            else:
                deletes.positions[file.spec_id, partition.values].append(delete)
    found: dict[str, DataFile] = {}
    for entry, partition in entries:
        one = _data_file(entry, partition, deletes)
        if one.path in found:
            one = replace(one, deletes=tuple(sorted({*one.deletes, *found[one.path].deletes})))
        if listed[one.path] > 1:
            problem = f"the snapshot lists it {listed[one.path]} times, and readers read its rows as often"
            one = replace(one, problem=problem)
        found[one.path] = one
    return list(found.values())


def _data_file(entry: Any, partition: Partition, deletes: _Deletes) -> DataFile:
    file, sequence = entry.data_file, int(entry.sequence_number or 0)
    return DataFile(
        location=file.file_path,
        path=canonical_location(file.file_path),
        bytes=file.file_size_in_bytes,
        rows=file.record_count,
        file_format=str(getattr(file.file_format, "value", file.file_format)).upper(),
        spec_id=file.spec_id,
        partition=partition.name,
        partition_json=partition.values,
        sequence_number=sequence,
        file_sequence_number=int(entry.file_sequence_number or 0),
        snapshot_id=entry.snapshot_id,
        deletes=tuple(sorted(deletes.of(file, partition, sequence))),
        problem=partition.problem,
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
    """Return the entries of a manifest, with ``deleted`` also its deleted entries. Raises Transient if unreadable."""
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


def all_file_locations(table: LoadedTable) -> Iterator[str]:
    """Yield the names of all data and delete files that any snapshot of the table lists, some of them twice.

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
