# SPDX-License-Identifier: Apache-2.0
"""Finds the partitions of a table that changed between two checks without listing the partitions.

A directory's modification time changes when a file in it is made, renamed or removed. One listing of the directories
that hold partitions therefore shows changes in all of them. Each check reads the names of partitions from the
metastore, and a bounded number of partitions. A fingerprint of eight bytes is remembered for each directory.
"""

import logging
import time
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from posixpath import basename

from lake.errors import Transient
from lake.formats.hive.catalog.tables import list_partitions, load_table, open_metastore
from lake.formats.hive.commit import commit_record, version_names
from lake.formats.hive.commit.version_names import data_dirs, relocation_token
from lake.formats.hive.files.listing import is_hidden
from lake.metastore import MetastoreClient, MetastoreTable
from lake.model import TableRef
from lake.storage.files import FileEntry
from lake.storage.filesystems import file_io_of
from lake.storage.locations import is_below_table, relative_path, resolve_path

log = logging.getLogger(__name__)

MAX_PARTITIONS_PER_CHECK = 1_000
"""The number of partitions that each check reads from the metastore; all partitions are read in rotation."""

MAX_DIRECTORIES_PER_CHECK = 100_000
"""Maximum number of directories that one check lists; the next check continues there. A check of locations counts all
entries of the directories above them, and one for each listing."""

_COST_OUTSIDE = 50
"""An entry or listing outside of the table's directory counts as this many: such a directory may have any size."""

_MIN_RELIABLE_AGE_SECONDS = 60
"""A directory's time shows all changes only if it is older than this: changes in one clock tick have equal times."""


class HiveChangeDetector:
    """See ``lake.relocation.capabilities.ChangeDetector``."""

    def __init__(self, ref: TableRef) -> None:
        self._ref, self._files = ref, file_io_of(ref.location)
        #: root (the table's directory or a version) → directory of partitions → the fingerprint of each entry
        self._fingerprints: dict[str, dict[str, array[int]]] = {}
        self._partition_fingerprints: dict[str, int] = {}
        #: the names of all partitions at the last check, None before the first one
        self._names: frozenset[str] | None = None
        self._last_partition, self._last_root, self._check_number = "", "", 0
        self._has_baseline = False
        #: partitions that changed, until a check has returned them
        self._unreported: set[str] = set()
        #: root → the partitions, with their locations, that writers have created again there
        self._recreated: dict[str, list[tuple[str, str]]] = {}
        #: fingerprints of the locations that ``find_changed_locations`` was called with: 0 if the location is missing,
        #: None until its parent directory is listed
        self._location_fingerprints: dict[str, int | None] = {}
        #: the parent directory after which the next check of locations continues, and the cost by which the last check
        #: exceeded its limit: it counts towards the limit of the next check
        self._last_parent, self._excess_cost = "", 0
        #: parent directories of locations whose last listing failed
        self._unreachable: set[str] = set()

    def find_changed_partitions(self) -> frozenset[str]:
        """See ``ChangeDetector``."""
        self._check_number += 1
        with open_metastore(self._ref) as metastore:
            table = load_table(metastore, self._ref)
            if not table.partition_columns:
                return frozenset({""})
            self._unreported.update(self._changed_in_catalog(metastore, table))
        self._unreported.update(self._changed_in_directories(len(table.partition_columns)))
        changed, self._unreported = frozenset(self._unreported), set()
        return changed

    def find_changed_locations(self, locations: Collection[str]) -> frozenset[str]:
        """See ``ChangeDetector``."""
        self._check_number += 1
        by_directory: dict[str, dict[str, str]] = defaultdict(dict)
        for location in locations:
            parent, _, name = resolve_path(self._ref.location, location).rpartition("/")
            by_directory[parent][name] = location
        known = self._location_fingerprints
        changed = {location for location in locations if location not in known}
        fingerprints = {location: known.get(location) for location in locations}
        parents, cost = sorted(by_directory), self._excess_cost
        for parent in parents[bisect_right(parents, self._last_parent) :]:
            if cost >= MAX_DIRECTORIES_PER_CHECK:
                break
            self._last_parent, names = parent, by_directory[parent]
            try:
                listed = self._list_directory(parent)
            except OSError as error:
                # This may have taken long. The other directories are listed by the next check.
                cost = MAX_DIRECTORIES_PER_CHECK
                self._log_unreachable(parent, error)
                continue
            self._unreachable.discard(parent)
            entries = [one for one in listed if one.is_directory]
            present = {
                one.name: fingerprint
                for one, fingerprint in zip(entries, self._fingerprint_entries(entries), strict=True)
            }
            # The first listing of a directory has no earlier listing to compare with.
            changed |= {loc for name, loc in names.items() if fingerprints[loc] not in (None, present.get(name, 0))}
            fingerprints |= {location: present.get(name, 0) for name, location in names.items()}
            is_inside = is_below_table(relative_path(self._ref.location, parent))
            cost += (1 + len(listed)) * (1 if is_inside else _COST_OUTSIDE)
        else:
            self._last_parent = ""
        self._location_fingerprints, self._excess_cost = fingerprints, max(0, cost - MAX_DIRECTORIES_PER_CHECK)
        return frozenset(changed)

    def _list_directory(self, directory: str) -> Sequence[FileEntry]:
        try:
            return self._files.list(directory)
        # A directory that can't be listed shows nothing. The rotation still checks its partitions.
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return ()

    def _log_unreachable(self, directory: str, error: OSError) -> None:
        if directory not in self._unreachable:
            self._unreachable.add(directory)
            log.warning(
                "table %s: %s can't be listed: %s. Late files below it are found only by the rotation",
                self._ref.name,
                directory,
                error.strerror,
            )

    @property
    def recreated_locations(self) -> Mapping[str, Collection[str]]:
        """See ``ChangeDetector``."""
        found: dict[str, set[str]] = defaultdict(set)
        for partition, location in (one for some in self._recreated.values() for one in some):
            found[partition].add(location)
        return found

    def _changed_in_catalog(self, metastore: MetastoreClient, table: MetastoreTable) -> Iterator[str]:
        names = sorted(metastore.partition_names(table.database, table.name))
        present = frozenset(names)
        for name in self._partition_fingerprints.keys() - present:
            del self._partition_fingerprints[name]
            yield name
        if self._names is not None:
            # A name that returns may be that of a partition whose replaced files are in its directory.
            yield from present - self._names
        self._names = present
        start = bisect_right(names, self._last_partition)
        some = names[start : start + MAX_PARTITIONS_PER_CHECK]
        self._last_partition = some[-1] if start + MAX_PARTITIONS_PER_CHECK < len(names) else ""
        for partition in list_partitions(metastore, table, some):
            mark = hash((partition.location, relocation_token(partition.parameters), partition.created_at))
            if self._partition_fingerprints.setdefault(partition.name, mark) != mark:
                self._partition_fingerprints[partition.name] = mark
                yield partition.name

    def _changed_in_directories(self, depth: int) -> Iterator[str]:
        try:
            roots, seen = self._roots(), 0
            for root in roots[bisect_right(roots, self._last_root) :]:
                before, self._fingerprints[root] = self._fingerprints.get(root), {}
                is_ours = root == self._ref.location or commit_record.has_lakefold_files(self._ref, basename(root))
                recreated = self._recreated[root] = []
                for holder, entries in self._partition_parents(root, depth):
                    seen += len(entries)
                    if not is_ours:
                        recreated += self._recreated_locations(root, holder, entries)
                    marks = self._fingerprints[root][holder] = self._fingerprint_entries(entries)
                    if before is not None or self._has_baseline:
                        yield from _changed_partitions(root, holder, entries, marks, (before or {}).get(holder))
                self._last_root = root
                if seen >= MAX_DIRECTORIES_PER_CHECK:
                    return
            self._last_root, self._has_baseline = "", True
        except OSError as error:
            raise Transient(f"{self._ref.location} can't be listed: {error.strerror}") from error

    def _roots(self) -> Sequence[str]:
        """Return the table's own directory and its versions, and drop the fingerprints of versions that are gone."""
        roots = [self._ref.location]
        for directory in data_dirs(self._ref):
            with suppress(FileNotFoundError):
                roots += [
                    one.path for one in self._files.list(directory) if one.is_directory and not is_hidden(one.name)
                ]
        for root in self._fingerprints.keys() - set(roots):
            del self._fingerprints[root]
        for root in self._recreated.keys() - set(roots):
            del self._recreated[root]
        return sorted(roots)

    def _recreated_locations(self, root: str, parent: str, entries: Sequence[FileEntry]) -> Iterator[tuple[str, str]]:
        """Yield the partitions that have files, with their locations, in a version without files of lakefold."""
        if not version_names.is_version_name(basename(root)):
            return
        for entry in entries:
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                if not all(is_hidden(one.name) for one in self._files.list(entry.path)):
                    yield _partition_name(root, f"{parent}/{entry.name}"), relative_path(self._ref.location, entry.path)

    def _partition_parents(self, root: str, depth: int) -> Iterator[tuple[str, Sequence[FileEntry]]]:
        """Yield each directory of a root that holds partitions, with the partitions' directories."""
        level = [root]
        for step in range(depth):
            below: list[str] = []
            for directory in level:
                try:
                    entries = [
                        one for one in self._files.list(directory) if one.is_directory and _may_be_partition(one.name)
                    ]
                # A directory that can't be listed, such as a foreign one, shows nothing; the metastore covers it.
                except (FileNotFoundError, NotADirectoryError, PermissionError):
                    continue
                if step == depth - 1:
                    yield directory, entries
                else:
                    below += [one.path for one in entries]
            level = below

    def _fingerprint_entries(self, entries: Sequence[FileEntry]) -> "array[int]":
        young = (time.time() - _MIN_RELIABLE_AGE_SECONDS) * 1e9
        return array(
            "q",
            (
                hash((one.name, one.modified_ns, self._check_number if one.modified_ns > young else 0))
                for one in entries
            ),
        )


def _may_be_partition(name: str) -> bool:
    """True if a directory may be that of a partition; the name of a column may begin with an underscore."""
    return not is_hidden(name) or (name.startswith("_") and "=" in name)


def _changed_partitions(
    root: str, parent: str, entries: Sequence[FileEntry], fingerprints: "array[int]", previous: "array[int] | None"
) -> Iterator[str]:
    if fingerprints == previous:
        return
    known = frozenset(previous or ())
    for entry, mark in zip(entries, fingerprints, strict=True):
        if mark not in known:
            yield _partition_name(root, f"{parent}/{entry.name}")


def _partition_name(root: str, directory: str) -> str:
    """Return the name of the partition in a directory. Spark keeps the case of columns there; a metastore does not."""
    parts = (part.partition("=") for part in directory.removeprefix(root).lstrip("/").split("/"))
    return "/".join(f"{column.lower()}{equals}{value}" for column, equals, value in parts)
