# SPDX-License-Identifier: Apache-2.0
"""The data files of a snapshot, with the row-level deletes that may apply to each, from its manifests."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lake.errors import Rejected, Transient, first_line
from lake.formats.iceberg.catalog.tables import LoadedTable
from lake.formats.iceberg.read.delete_files import DeleteFile, DeleteIndex, read_delete_file, read_references
from lake.formats.iceberg.read.partitions import Partition, PartitionNamer
from lake.storage.locations import canonical_location

MAIN = "main"
"""The branch that readers read by default. lakefold works on this branch only."""

PARQUET = "PARQUET"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A data file of a snapshot.

    ``location`` is its name in the metadata, ``path`` the canonical spelling. ``partition`` and ``partition_json`` are
    name and values of its ``Partition``. ``snapshot_id`` is the snapshot that added the file. ``deletes`` are all
    delete files that may apply to the file, the oldest first. ``problem`` is the reason why the file's partition
    values, or its entries in the snapshot, prevent a rewrite; None if they do not.
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
    deletes: tuple[DeleteFile, ...] = ()
    problem: str | None = None

    @property
    def delete_paths(self) -> tuple[str, ...]:
        """The paths of ``deletes``, each once."""
        return tuple(dict.fromkeys(one.path for one in self.deletes))


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFiles:
    """The data files of a snapshot, and all its delete files, also those that apply to no data file."""

    data: list[DataFile] = field(default_factory=list)
    deletes: list[DeleteFile] = field(default_factory=list)


def snapshot_of(table: LoadedTable, ref: str = MAIN) -> Any | None:
    """Return the snapshot that a branch or tag names; None if there is none."""
    named = table.metadata.refs.get(ref)
    if named is not None:
        return table.metadata.snapshot_by_id(named.snapshot_id)
    return table.metadata.current_snapshot() if ref == MAIN else None


def ancestors(by_id: Mapping[int, Any], snapshot: Any | None) -> Iterator[Any]:
    """Yield a snapshot and its ancestors, newest first, as far as the table still has them; nothing for None."""
    while snapshot is not None:
        yield snapshot
        snapshot = by_id.get(snapshot.parent_snapshot_id)


def descends_from(table: LoadedTable, snapshot: Any | None, snapshot_id: int) -> bool:
    """Return True if ``snapshot`` is ``snapshot_id`` or was made on top of it, by the snapshots that the table has."""
    by_id = {one.snapshot_id: one for one in table.metadata.snapshots}
    return any(snapshot_id in (one.snapshot_id, one.parent_snapshot_id) for one in ancestors(by_id, snapshot))


def read_live_files(
    table: LoadedTable, snapshot: Any | None, partitions: Collection[str] | None = None
) -> list[DataFile]:
    """Return the data files of ``snapshot``: all files, or only those of ``partitions``. Returns each file once.

    Raises Transient if storage can't read a manifest, Rejected if a manifest's content can't be parsed.
    """
    return read_all_files(table, snapshot, partitions).data


def read_all_files(table: LoadedTable, snapshot: Any | None, partitions: Collection[str] | None = None) -> LiveFiles:
    """Return the files of ``snapshot``: the data files that ``read_live_files`` returns, and all delete files.

    Raises as ``read_live_files`` does.
    """
    if snapshot is None:
        return LiveFiles()
    from pyiceberg.manifest import ManifestContent

    namer = PartitionNamer(table)
    entries: list[tuple[Any, Partition]] = []
    listed = Counter[str]()
    deletes = DeleteIndex()
    for manifest in manifests_of(table, snapshot):
        if manifest.content != ManifestContent.DATA:
            for file in _delete_files(table, manifest, namer):
                deletes.add(file, is_unpartitioned=namer.is_unpartitioned(file.spec_id))
            continue
        for entry in entries_of(table, manifest):
            partition = namer.describe(entry.data_file)
            listed[canonical_location(entry.data_file.file_path)] += 1
            if partitions is None or partition.name in partitions:
                entries.append((entry, partition))
    found: dict[str, DataFile] = {}
    for entry, partition in entries:
        one = _data_file(entry, partition, deletes)
        if one.path in found:
            one = replace(one, deletes=tuple(dict.fromkeys((*found[one.path].deletes, *one.deletes))))
        if listed[one.path] > 1:
            problem = f"the snapshot lists it {listed[one.path]} times, and readers read its rows as often"
            one = replace(one, problem=problem)
        found[one.path] = one
    return LiveFiles(data=list(found.values()), deletes=list(deletes))


def _delete_files(table: LoadedTable, manifest: Any, namer: PartitionNamer) -> Iterator[DeleteFile]:
    from pyiceberg.manifest import ManifestEntryStatus

    references = read_or_raise(table, manifest.manifest_path, lambda: read_references(table, manifest))
    for entry, reference in zip(entries_of(table, manifest, deleted=True), references, strict=True):
        if entry.status != ManifestEntryStatus.DELETED:
            yield read_delete_file(entry, reference, namer.describe(entry.data_file))


def _data_file(entry: Any, partition: Partition, deletes: DeleteIndex) -> DataFile:
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
        deletes=deletes.of(file.file_path, file.spec_id, partition.values, sequence),
        problem=partition.problem,
    )


def manifests_of(table: LoadedTable, snapshot: Any) -> Collection[Any]:
    """Return the manifests of a snapshot. Raises Transient if they can't be read."""
    found: Collection[Any] = read_or_raise(table, snapshot.manifest_list, lambda: list(snapshot.manifests(table.io)))
    return found


def has_delete_files(table: LoadedTable, snapshot: Any) -> bool:
    """Return True if a snapshot has manifests of delete files. Raises Transient if they can't be read."""
    from pyiceberg.manifest import ManifestContent

    return any(one.content != ManifestContent.DATA for one in manifests_of(table, snapshot))


def entries_of(table: LoadedTable, manifest: Any, *, deleted: bool = False) -> Collection[Any]:
    """Return the entries of a manifest, with ``deleted`` also its deleted entries. Raises Transient if unreadable."""
    found: Collection[Any] = read_or_raise(
        table, manifest.manifest_path, lambda: manifest.fetch_manifest_entry(table.io, discard_deleted=not deleted)
    )
    return found


def read_or_raise(table: LoadedTable, path: str, read: Callable[[], Any]) -> Any:
    """Return what ``read`` reads from ``path``.

    Raises Transient if storage can't read the file, Rejected if the file's content can't be parsed.
    """
    try:
        return read()
    except OSError as error:
        # An expiry may have removed the file since the metadata was read.
        raise Transient(f"{table.ref.name}: {path} can't be read ({first_line(error)})") from error
    except (ValueError, TypeError, KeyError, EOFError, AssertionError) as error:
        raise Rejected(f"{table.ref.name}: {path} can't be read: {first_line(error)}") from error


def all_manifests(table: LoadedTable) -> Iterator[Any]:
    """Yield the manifests of all snapshots of the table, each once. Raises as ``read_live_files`` does."""
    seen = set[str]()
    for snapshot in table.metadata.snapshots:
        for manifest in manifests_of(table, snapshot):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield manifest


def all_file_locations(table: LoadedTable) -> Iterator[str]:
    """Yield the names of all data and delete files that any snapshot of the table lists, some of them twice.

    Raises as ``read_live_files`` does.
    """
    for manifest in all_manifests(table):
        for entry in entries_of(table, manifest):
            yield entry.data_file.file_path
