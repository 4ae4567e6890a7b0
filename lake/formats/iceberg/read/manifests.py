# SPDX-License-Identifier: Apache-2.0
"""Selects the manifests that are rewritten because the table has too many small ones, and compares their contents.

Each append adds a manifest. Iceberg merges small manifests at some appends and never at fast appends, such as those of
Spark's streaming writer. Readers open every manifest that may list files for their query.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lake.formats.iceberg.catalog.tables import LoadedTable
from lake.formats.iceberg.read.live_files import entries_of, manifests_of, read_or_raise

MAX_FILES = 200_000
"""About the maximum number of data files whose entries one rewrite reads; they are held in memory."""

_TARGET_BYTES, _TARGET_BYTES_DEFAULT = "commit.manifest.target-size-bytes", 8 * 2**20
_MIN_COUNT, _MIN_COUNT_DEFAULT = "commit.manifest.min-count-to-merge", 100


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

    A manifest is small below half of the size that the table wants (``commit.manifest.target-size-bytes``). Their
    number is too large from ``commit.manifest.min-count-to-merge`` on, at which Iceberg's own appends merge them; the
    manifests of one partition spec count together. The oldest come first, up to about ``max_files`` data files. The new
    manifests list the files in the order of their partitions, so readers of few partitions open few manifests.

    Raises Transient if storage can't read a manifest, Rejected if its content can't be parsed.
    """
    if snapshot is None:
        return None
    from pyiceberg.manifest import ManifestContent

    target = max(1, _number(table, _TARGET_BYTES, _TARGET_BYTES_DEFAULT))
    small = defaultdict[int, list[Any]](list)
    for manifest in manifests_of(table, snapshot):
        is_small = manifest.content == ManifestContent.DATA and manifest.manifest_length < target / 2
        if is_small and _has_all_columns(table, manifest.partition_spec_id):
            small[manifest.partition_spec_id].append(manifest)
    minimum = max(2, _number(table, _MIN_COUNT, _MIN_COUNT_DEFAULT))
    chosen, output_of, outputs = set[str](), dict[str, int](), 0
    for manifests in small.values():
        if len(manifests) < minimum or len(output_of) >= max_files:
            continue
        # A manifest list begins with the newest manifests.
        one = _read(table, reversed(manifests), max_files - len(output_of))
        count = math.ceil(one.bytes / target)
        if 2 * count > len(one.manifests):
            continue
        for position, location in enumerate(one.sorted_files()):
            output_of[location] = outputs + position * count // len(one.files)
        chosen.update(one.manifests)
        outputs += count
    return ManifestRewrite(manifests=frozenset(chosen), output_of=output_of) if chosen else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """Manifests of one partition spec that have been read: their locations and size, the files and their partitions."""

    manifests: Sequence[str]
    bytes: int
    files: Mapping[str, tuple[Any, ...]]

    def sorted_files(self) -> list[str]:
        """Return the files in the order of their partitions, the oldest of a partition first."""
        return sorted(self.files, key=lambda one: [(value is not None, value) for value in self.files[one]])


def _read(table: LoadedTable, manifests: Iterable[Any], max_files: int) -> _Read:
    paths, size, files = list[str](), 0, dict[str, tuple[Any, ...]]()
    for manifest in manifests:
        for entry in entries_of(table, manifest):
            files[entry.data_file.file_path] = _values(entry.data_file.partition)
        paths.append(manifest.manifest_path)
        size += manifest.manifest_length
        if len(files) >= max_files:
            break
    return _Read(manifests=paths, bytes=size, files=files)


def _values(partition: Any) -> tuple[Any, ...]:
    return tuple(partition[position] for position in range(len(partition)))


def _number(table: LoadedTable, key: str, default: int) -> int:
    return int(table.metadata.properties.get(key, default))


def _has_all_columns(table: LoadedTable, spec_id: int) -> bool:
    """Return True if the table still has the columns of a partition spec.

    Iceberg (1.10) writes null for the value of a dropped column when it rewrites a manifest.
    """
    schema = table.metadata.schema()
    return all(schema.find_column_name(field.source_id) is not None for field in table.metadata.specs()[spec_id].fields)


def differing_files(table: LoadedTable, before: str, after: str) -> list[str]:
    """Return the locations of the data and delete files that two snapshots list differently.

    ``before`` and ``after`` are their manifest lists. Files differ if only one snapshot lists them, or lists them more
    often, or with other partition values, sequence numbers, snapshot or size. Only manifests that the snapshots don't
    share are read. Raises as ``select_manifests`` does.
    """
    old, new = _manifests_by_path(table, before), _manifests_by_path(table, after)
    removed = Counter(_entries(table, (old[path] for path in old.keys() - new.keys())))
    added = Counter(_entries(table, (new[path] for path in new.keys() - old.keys())))
    return sorted({str(entry[0]) for entry in (removed - added) + (added - removed)})


def _manifests_by_path(table: LoadedTable, manifest_list: str) -> dict[str, Any]:
    from pyiceberg.manifest import read_manifest_list

    found = read_or_raise(table, manifest_list, lambda: list(read_manifest_list(table.io.new_input(manifest_list))))
    return {one.manifest_path: one for one in found}


def _entries(table: LoadedTable, manifests: Iterable[Any]) -> Iterable[tuple[Any, ...]]:
    for manifest in manifests:
        for entry in entries_of(table, manifest):
            file = entry.data_file
            yield (
                file.file_path,
                manifest.content,
                manifest.partition_spec_id,
                _values(file.partition),
                entry.snapshot_id,
                entry.sequence_number,
                entry.file_sequence_number,
                file.record_count,
                file.file_size_in_bytes,
            )
