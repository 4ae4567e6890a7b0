# SPDX-License-Identifier: Apache-2.0
"""Selects the manifests that are rewritten because the table has too many small ones, and compares their contents.

Each append adds a manifest. Iceberg merges small manifests at some appends and never at fast appends, such as those of
Spark's streaming writer. Readers open every manifest that may list files for their query.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lake.errors import Transient
from lake.formats.iceberg.catalog.tables import LoadedTable
from lake.formats.iceberg.read.live_files import MAIN, entries_of, manifests_of, read_or_raise

MAX_FILES = 200_000
"""About the maximum number of data files whose entries one rewrite reads; they are held in memory."""

_TARGET_BYTES, _TARGET_BYTES_DEFAULT = "commit.manifest.target-size-bytes", 8 * 2**20
_MIN_COUNT, _MIN_COUNT_DEFAULT = "commit.manifest.min-count-to-merge", 100
_MAX_READS = 3
"""Maximum number of comparisons in one commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestRewrite:
    """Manifests of data files that are rewritten as fewer ones.

    ``manifests`` are their locations. ``output_of`` is the number of the new manifest for each data file, by the file's
    location.
    """

    manifests: frozenset[str]
    output_of: Mapping[str, int]


def select_manifests(table: LoadedTable, snapshot: Any | None, *, max_files: int = MAX_FILES) -> ManifestRewrite | None:
    """Return the small manifests of ``snapshot`` that are worth a rewrite; None if the table has too few of them.

    Also returns None if a writer may wait to publish a change of this very snapshot, see ``has_successor``.

    A manifest is small below half of the size that the table wants (``commit.manifest.target-size-bytes``). Their
    number is too large from ``commit.manifest.min-count-to-merge`` on, at which Iceberg's own appends merge them; the
    manifests of one partition spec count together. The oldest come first, up to about ``max_files`` data files. The new
    manifests list the files in the order of their partitions, so readers of few partitions open few manifests.

    Raises Transient if storage can't read a manifest, Rejected if its content or a property can't be parsed.
    """
    if snapshot is None or _has_successor(table, snapshot):
        return None
    from pyiceberg.manifest import ManifestContent

    target = max(1, table.whole_number(_TARGET_BYTES, _TARGET_BYTES_DEFAULT))
    minimum = max(2, table.whole_number(_MIN_COUNT, _MIN_COUNT_DEFAULT))
    small = defaultdict[int, list[Any]](list)
    for manifest in manifests_of(table, snapshot):
        is_small = manifest.content == ManifestContent.DATA and manifest.manifest_length < target / 2
        if is_small and _file_count(manifest) is not None and _has_all_columns(table, manifest.partition_spec_id):
            small[manifest.partition_spec_id].append(manifest)
    chosen, output_of, outputs = set[str](), dict[str, int](), 0
    for manifests in small.values():
        if len(manifests) < minimum or len(output_of) >= max_files:
            continue
        for batch in _batches(manifests, max_files - len(output_of)):
            count = math.ceil(sum(one.manifest_length for one in batch) / target)
            if 2 * count > len(batch):
                continue
            files = _sorted_files(table, batch)
            for position, location in enumerate(files):
                output_of[location] = outputs + position * count // len(files)
            chosen.update(one.manifest_path for one in batch)
            outputs += count
            break
    return ManifestRewrite(manifests=frozenset(chosen), output_of=output_of) if chosen else None


def has_successor(snapshot_id: int | None, parents: Iterable[int | None], branches: Iterable[tuple[str, int]]) -> bool:
    """Return True if a snapshot was made from ``snapshot_id``, or another branch than ``main`` begins there.

    A staged snapshot (``write.wap.enabled``) that replaces files, or a branch, can often be published only while its
    parent is the newest snapshot of ``main``. ``parents`` are the parents of all snapshots, ``branches`` the branches
    with their newest snapshots.
    """
    return snapshot_id in parents or any(name != MAIN and newest == snapshot_id for name, newest in branches)


def _has_successor(table: LoadedTable, snapshot: Any) -> bool:
    branches = [
        (name, ref.snapshot_id) for name, ref in table.metadata.refs.items() if ref.snapshot_ref_type == "branch"
    ]
    return has_successor(snapshot.snapshot_id, [one.parent_snapshot_id for one in table.metadata.snapshots], branches)


def _file_count(manifest: Any) -> int | None:
    """Return the number of a manifest's live files; None if the manifest list does not have it.

    Format version 1 allows this, and Iceberg (1.10) does not rewrite such manifests.
    """
    counts = (manifest.added_files_count, manifest.existing_files_count)
    return None if None in counts else sum(counts)


def _batches(manifests: Sequence[Any], max_files: int) -> Iterator[Sequence[Any]]:
    """Yield the manifests in batches of about ``max_files`` files, the oldest first."""
    batch, files = list[Any](), 0
    # A manifest list begins with the newest manifests.
    for manifest in reversed(manifests):
        batch.append(manifest)
        files += _file_count(manifest) or 0
        if files >= max_files:
            yield batch
            batch, files = [], 0
    if batch:
        yield batch


def _sorted_files(table: LoadedTable, manifests: Iterable[Any]) -> list[str]:
    """Return the files of manifests in the order of their partitions, the oldest of a partition first."""
    partitions = {
        entry.data_file.file_path: _values(entry.data_file.partition)
        for manifest in manifests
        for entry in entries_of(table, manifest)
    }
    return sorted(partitions, key=lambda one: partitions[one])


def _values(partition: Any) -> tuple[tuple[Any, ...], ...]:
    """Return the values of a partition in a form that can be sorted and compared, NaN and null included."""
    return tuple(_comparable(partition[position]) for position in range(len(partition)))


def _comparable(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (0,)
    return (1,) if value != value else (2, type(value).__name__, value)


def _has_all_columns(table: LoadedTable, spec_id: int) -> bool:
    """Return True if the table still has the columns of a partition spec.

    Iceberg (1.10) writes null for the value of a dropped column when it rewrites a manifest.
    """
    schema = table.metadata.schema()
    return all(schema.find_column_name(field.source_id) is not None for field in table.metadata.specs()[spec_id].fields)


class ManifestComparison:
    """Compares the files that a snapshot lists with those that its successor would list.

    It remembers the manifests that it has compared. A commit that is repeated because another one was faster usually
    replaces the same manifests, and reading them again would take so long that the next commit is faster again.
    """

    def __init__(self, table: LoadedTable) -> None:
        self._table, self._equal, self._reads = table, set[tuple[Any, ...]](), 0

    def differing_files(self, before: str, after: str) -> list[str]:
        """Return the locations of the data and delete files that two snapshots list differently.

        ``before`` and ``after`` are their manifest lists. Files differ if only one snapshot lists them, or lists them
        more often, or with another entry (see ``_entries``), or if a new manifest says that the file was added. Only
        manifests that the snapshots don't share are read. Raises as ``select_manifests`` does, and Transient if other
        commits replaced the compared manifests too often.
        """
        old, new = self._manifests(before), self._manifests(after)
        replaced = {path: old[path] for path in old.keys() - new.keys()}
        created = {path: new[path] for path in new.keys() - old.keys()}
        # A repeated commit gives other sequence numbers to its manifests. Only added files inherit them, and files in
        # manifests of format version 1, where they are 0.
        key = (
            frozenset(replaced),
            frozenset((path, one.added_snapshot_id, one.sequence_number == 0) for path, one in created.items()),
        )
        if key in self._equal:
            return []
        if self._reads == _MAX_READS:
            raise Transient(f"{self._table.ref.name}: writers replaced manifests during {_MAX_READS} rewrites of them")
        self._reads += 1
        removed = Counter(_entries(self._table, replaced.values(), is_new=False))
        added = Counter(_entries(self._table, created.values(), is_new=True))
        if removed == added:
            self._equal.add(key)
            return []
        return sorted({path for path, _ in (removed - added) + (added - removed)})

    def _manifests(self, manifest_list: str) -> dict[str, Any]:
        from pyiceberg.manifest import read_manifest_list

        opened = self._table.io.new_input(manifest_list)
        found = read_or_raise(self._table, manifest_list, lambda: list(read_manifest_list(opened)))
        return {one.manifest_path: one for one in found}


def _entries(table: LoadedTable, manifests: Iterable[Any], *, is_new: bool) -> Iterator[tuple[str, int]]:
    """Yield the location of each live file, and a hash of what readers use of its entry."""
    from pyiceberg.manifest import ManifestEntryStatus

    for manifest in manifests:
        for entry in entries_of(table, manifest):
            file = entry.data_file
            maps = (
                file.value_counts,
                file.null_value_counts,
                file.nan_value_counts,
                file.lower_bounds,
                file.upper_bounds,
            )
            read = (
                is_new and entry.status != ManifestEntryStatus.EXISTING,
                manifest.content,
                manifest.partition_spec_id,
                _values(file.partition),
                entry.snapshot_id,
                entry.sequence_number,
                entry.file_sequence_number,
                int(file.content or 0),
                file.file_format,
                file.record_count,
                file.file_size_in_bytes,
                file.key_metadata,
                file.sort_order_id,
                *(frozenset((one or {}).items()) for one in maps),
            )
            yield file.file_path, hash(read)
