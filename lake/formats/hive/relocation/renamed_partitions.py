# SPDX-License-Identifier: Apache-2.0
"""Relocated partitions that have another name in the metastore now.

``ALTER TABLE … PARTITION … RENAME TO PARTITION …`` keeps a partition's creation time and properties, and with them the
token of its last relocation. In an external table the location stays as well. In a managed table the metastore moves
the directory to the place that belongs to the new name. Late files in previous locations belong to the renamed
partition.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from lake.errors import Transient
from lake.formats.hive.catalog.tables import CatalogPartition, is_in_data_dir
from lake.formats.hive.commit import commit_record
from lake.formats.hive.commit.commit_record import CommitRecord
from lake.formats.hive.commit.version_names import relocation_token, version_of_directory
from lake.formats.hive.files.listing import list_partition_files
from lake.model import TableRef
from lake.plan import RELOCATED_BACK, Relocation
from lake.relocation.evidence import has_unhandled_files
from lake.relocation.model import PartitionState, RelocatedPartition
from lake.storage.locations import relative_path, resolve_path

_MAX_SEARCHES = 100_000

_SEARCHES_APART = 3600
"""After how many seconds a search that found nothing is repeated: a program may just have removed a token."""


def find_renamed_partitions(
    ref: TableRef,
    relocated: Sequence[RelocatedPartition],
    states: Mapping[str, PartitionState],
    list_all_partitions: Callable[[], Sequence[CatalogPartition]],
) -> Mapping[str, PartitionState]:
    """Return the states of the partitions that have another name now and whose late files are not copied yet.

    If the partition is at its latest location, or a later relocation has moved it from there, the state is that of a
    partition at its latest location. A partition without another name is searched for once an hour in each process, and
    when other files are in its previous locations. Raises Transient.
    """
    absent = [
        one
        for one in relocated
        if states[one.partition].location is None
        and has_unhandled_files(one, states[one.partition])
        and not _known_as_dropped.has(_search_key(ref, one, states[one.partition]))
    ]
    partitions = list_all_partitions() if absent else ()
    records = _Records(ref)
    found = {}
    for one in absent:
        for partition in partitions:
            if partition.created_at == one.latest.partition_created_at and partition.name != one.partition:
                state = _state_if_renamed(ref, one.latest, states[one.partition], partition, records)
                if state is not None:
                    found[one.partition] = state
                    break
        else:
            _known_as_dropped.add(_search_key(ref, one, states[one.partition]))
    return found


def _search_key(ref: TableRef, relocated: RelocatedPartition, state: PartitionState) -> Hashable:
    """Return what a search for the present name of a partition depends on."""
    last = relocated.latest
    files = frozenset(file for one in relocated.previous_locations for file in state.locations[one.location].files)
    copies = frozenset(late_copy.row_id for late_copy in relocated.late_copies if not late_copy.is_done)
    return ref.name, ref.location, last.partition, last.token, last.partition_created_at, hash((files, copies))


class _Searches:
    """Searches that found nothing; at most ``_MAX_SEARCHES``. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._searched_at: dict[Hashable, float] = {}

    def has(self, key: Hashable) -> bool:
        """True if the search with this key found nothing in the last ``_SEARCHES_APART`` seconds."""
        with self._lock:
            return time.monotonic() - self._searched_at.get(key, -float("inf")) < _SEARCHES_APART

    def add(self, key: Hashable) -> None:
        """Add a search that found nothing. The oldest one is dropped if there are too many."""
        with self._lock:
            self._searched_at.pop(key, None)
            self._searched_at[key] = time.monotonic()
            if len(self._searched_at) > _MAX_SEARCHES:
                del self._searched_at[next(iter(self._searched_at))]


_known_as_dropped = _Searches()


def _state_if_renamed(
    ref: TableRef,
    last: Relocation,
    state: PartitionState,
    partition: CatalogPartition,
    records: "_Records",
) -> PartitionState | None:
    """Return the state if ``partition``, created at the same time, is the partition of ``last``; None if it is not."""
    token, location = relocation_token(partition.parameters), relative_path(ref.location, partition.location)
    renamed = replace(state, renamed_to=partition.name)
    there = replace(renamed, location=last.location, token=last.token, created_at=last.partition_created_at)
    if token is None:
        return None
    if token == last.token:
        if location == last.location:
            return there
        # Partitions that one plan has relocated have the same token, each in its own directory of the version.
        return renamed if not is_in_data_dir(location) and _holds_files_of(ref, partition, last) else None
    next_move = _relocation_after(last, partition.name, location, token, records)
    if next_move is None:
        return None
    # Once lakefold has begun to delete there, files that are copied there would look like those of an overwrite.
    return renamed if records.is_cleaned(next_move) else replace(there, is_moved_on=True)


def _relocation_after(last: Relocation, name: str, location: str, token: str, records: "_Records") -> Relocation | None:
    """Return the relocation of a partition that left the location of ``last``. None if there is none.

    The search begins at the partition's present relocation, ``token`` to ``location``, and goes back to earlier ones.

    A relocation follows the relocation whose version it left. If it left a directory outside of versions, it follows a
    relocation back to this directory; relocations back have records of their own.
    """
    reached, seen = [(location, token)], set[str]()
    while reached:
        location, token = reached.pop()
        if token in seen:
            continue
        seen.add(token)
        for move in records.relocations(token):
            is_of_partition = move.partition == name or move.location == location
            if not is_of_partition or move.partition_created_at != last.partition_created_at:
                continue
            if move.previous_location == last.location:
                return move
            version = records.version_of(move.previous_location)
            tokens = records.relocations_back_to(move.previous_location) if version is None else [version]
            reached += [(move.previous_location, before) for before in tokens]
    return None


class _Records:
    """The records of a table's commits and relocations; each one is read once."""

    def __init__(self, ref: TableRef) -> None:
        self._ref = ref
        self._read = cache(partial(_record_of_token, ref))
        self._tokens_back: Mapping[str, Sequence[str]] | None = None

    def relocations(self, token: str) -> Sequence[Relocation]:
        """Return the relocations that were made with ``token``. None are returned if its record is gone."""
        record = self._read(token)
        return () if record is None or record.commit.instant != token else record.commit.relocations

    def is_cleaned(self, move: Relocation) -> bool:
        """True if the deletion of the files that a relocation replaced has begun."""
        try:
            return commit_record.is_cleaned(self._ref, move.token, move.partition)
        except OSError as error:
            raise Transient(f"the markers of deleted files of {self._ref.name} can't be read: {error}") from error

    def version_of(self, location: str) -> str | None:
        """Return the version in which a location is. None if it is in no version."""
        return version_of_directory(self._ref, resolve_path(self._ref.location, location))

    def relocations_back_to(self, location: str) -> Sequence[str]:
        """Return the tokens of the relocations that led back to a location and that no plan made."""
        if self._tokens_back is None:
            found = defaultdict(list)
            for token in _tokens_without_plan(self._ref):
                for move in self.relocations(token):
                    found[move.location].append(token)
            self._tokens_back = found
        return self._tokens_back.get(location, ())


def _holds_files_of(ref: TableRef, partition: CatalogPartition, last: Relocation) -> bool:
    """True if the directory of a partition has the files of the relocation, whose own directory may have been moved."""
    (listing,) = list_partition_files(ref.name, [partition])
    names = {file.path.rpartition("/")[2] for file in listing.files}
    return bool(last.files) and names.issuperset(file.name for file in last.files)


def _tokens_without_plan(ref: TableRef) -> Sequence[str]:
    try:
        return sorted(name for name in commit_record.list_records(ref)[1] if name.startswith(RELOCATED_BACK))
    except OSError as error:
        raise Transient(f"the commits of {ref.name} can't be listed: {error.strerror}") from error


def _record_of_token(ref: TableRef, token: str) -> CommitRecord | None:
    try:
        return commit_record.read_record(ref, token) or commit_record.archived_record_of_token(ref, token)
    except OSError as error:
        raise Transient(f"the commit {token} of {ref.name} can't be read: {error.strerror}") from error
