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
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from posixpath import basename

from lake.errors import Transient
from lake.formats.hive.catalog.tables import CatalogPartition, is_in_data_dir
from lake.formats.hive.commit import commit_record
from lake.formats.hive.commit.commit_record import CommitRecord
from lake.formats.hive.commit.version_names import relocation_token, version_of_directory, version_of_output
from lake.formats.hive.files.listing import list_partition_files
from lake.model import TableRef
from lake.plan import RELOCATED_BACK, Relocation
from lake.relocation.catalog_changes import is_exchanged, replaced_files_to_archive
from lake.relocation.evidence import has_unhandled_files
from lake.relocation.model import PartitionState, RelocatedPartition
from lake.storage.locations import relative_path, resolve_path

PartitionLookup = Callable[[Collection[str] | None], Sequence[CatalogPartition]]
"""Returns the table's partitions with these names, or all of them."""

_MAX_SEARCHES = 100_000

_SEARCH_INTERVAL_SECONDS = 3600
"""After how many seconds a search that found nothing is repeated: a program may just have removed a token."""


def find_renamed_partitions(
    ref: TableRef,
    relocated: Sequence[RelocatedPartition],
    states: Mapping[str, PartitionState],
    list_partitions: PartitionLookup,
) -> Mapping[str, PartitionState]:
    """Return the states of the partitions that have another name now.

    They are looked for while their late files are not copied yet, or replaced files are in their own directory: a
    writer may still add a late file there. They are also looked for if the own directory is missing. If the partition
    is at its latest location, or a later relocation has moved it from there, the state is that of a partition at its
    latest location. A partition without another name is searched for once an hour in each process, and when other files
    are in its previous locations. Raises Transient.
    """
    records, found = _RelocationRecords(ref), {}
    absent = {}
    for one in relocated:
        state = states[one.partition]
        if state.location is None and _may_be_renamed(one, state):
            key = _search_key(ref, one, state)
            name = _searches.result(key)
            if name is not None:
                absent[one.partition] = one, key, name
    names = {name for _, _, name in absent.values()} - {""}
    partitions = {one.name: one for one in list_partitions(names)} if names else {}
    every: Sequence[CatalogPartition] | None = None
    for partition, (one, key, name) in absent.items():
        known = [partitions[name]] if name in partitions else []
        renamed = _find_renamed(ref, one, states[partition], known, records)
        if renamed is None:  # another partition may have this name now
            every = list_partitions(None) if every is None else every
            renamed = _find_renamed(ref, one, states[partition], every, records)
        if renamed is not None:
            found[partition] = renamed
        _searches.add(key, None if renamed is None else renamed.renamed_to)
    return found


def _may_be_renamed(relocated: RelocatedPartition, state: PartitionState) -> bool:
    return (
        has_unhandled_files(relocated, state, None)
        or bool(replaced_files_to_archive(relocated, state))
        or is_exchanged(relocated, state)
    )


def _find_renamed(
    ref: TableRef,
    relocated: RelocatedPartition,
    state: PartitionState,
    partitions: Sequence[CatalogPartition],
    records: "_RelocationRecords",
) -> PartitionState | None:
    """Return the state if one of ``partitions`` is the relocated one under another name; else None."""
    last = relocated.latest
    for other in partitions:
        if other.created_at != last.partition_created_at or other.name == relocated.partition:
            continue
        renamed = _state_if_renamed(ref, last, state, other, records)
        # If the directory of a partition was moved, its replaced files are moved aside as if it had been dropped.
        if renamed is None:
            continue
        location = relative_path(ref.location, other.location)
        if renamed.location is not None or has_unhandled_files(relocated, state, location):
            return renamed
    return None


def find_other_partitions(
    ref: TableRef,
    relocated: Sequence[RelocatedPartition],
    states: Mapping[str, PartitionState],
    partitions: Mapping[str, CatalogPartition],
) -> Mapping[str, PartitionState]:
    """Return the states of the recorded names that another partition has now, by name.

    lakefold has relocated that partition under its former name. There are two cases:

    - It is not the recorded partition: it has another creation time, and names a relocation that led to its location.
      Its state has ``is_other_partition``. This does not apply if the relocation may be an unrecorded one of the
      recorded partition itself, which was dropped and added again.
    - It is the recorded partition, which was renamed, relocated under the other name, and renamed back. Its state is
      that of a partition that is still at its latest recorded location, and ``relocated_as`` has the other name. If
      lakefold has begun to delete at that location and no late files wait, it has ``is_other_partition`` instead, so
      the previous locations need nothing.

    Reads only the records of the relocations that these partitions name. Raises Transient.
    """
    records, states_of_others = _RelocationRecords(ref), {}
    for one in relocated:
        state, partition = states[one.partition], partitions.get(one.partition)
        if state.token in (None, one.latest.token) or partition is None or state.renamed_to is not None:
            continue
        directory = _present_directory(ref, partition)
        names_at_relocation = [
            move.partition
            for move in records.relocations(state.token or "")
            if move.partition_created_at == state.created_at and directory.may_be_target_of(move)
        ]
        if names_at_relocation and state.created_at != one.latest.partition_created_at:
            # The commit of a partition that was added again may not be recorded yet: then the sweep searches for it.
            is_recorded = any(token == state.token for _, token in one.earlier_locations)
            if one.partition not in names_at_relocation or is_recorded:
                states_of_others[one.partition] = replace(state, is_other_partition=True)
        elif names_at_relocation and one.partition not in names_at_relocation:
            state_after_rename = _state_if_renamed(ref, one.latest, state, partition, records)
            if state_after_rename is not None:
                is_handled = not state_after_rename.has_left_location and not has_unhandled_files(
                    one, state, state.location
                )
                states_of_others[one.partition] = (
                    replace(state, is_other_partition=True) if is_handled else state_after_rename
                )
    return states_of_others


def _search_key(ref: TableRef, relocated: RelocatedPartition, state: PartitionState) -> Hashable:
    """Return the values on which the result of a search for the present name of a partition depends."""
    last = relocated.latest
    files = frozenset(file for one in relocated.previous_locations for file in state.locations[one.location].files)
    copies = frozenset(late_copy.row_id for late_copy in relocated.late_copies if not late_copy.is_done)
    return ref.name, ref.location, last.partition, last.token, last.partition_created_at, hash((files, copies))


class _SearchCache:
    """A cache of at most ``_MAX_SEARCHES`` results of searches for the present names of partitions. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._searched: dict[Hashable, tuple[float, str | None]] = {}

    def result(self, key: Hashable) -> str | None:
        """Return the name that the last search with this key found; '' if there was no search.

        Returns None if the search found nothing in the last ``_SEARCH_INTERVAL_SECONDS`` seconds.
        """
        with self._lock:
            searched_at, name = self._searched.get(key, (-float("inf"), None))
        if name is None and time.monotonic() - searched_at >= _SEARCH_INTERVAL_SECONDS:
            return ""
        return name

    def add(self, key: Hashable, name: str | None) -> None:
        """Add a search and the name that it found, if any. The oldest one is dropped if there are too many."""
        with self._lock:
            self._searched.pop(key, None)
            self._searched[key] = time.monotonic(), name
            if len(self._searched) > _MAX_SEARCHES:
                del self._searched[next(iter(self._searched))]


_searches = _SearchCache()


def _state_if_renamed(
    ref: TableRef,
    last: Relocation,
    state: PartitionState,
    partition: CatalogPartition,
    records: "_RelocationRecords",
) -> PartitionState | None:
    """Return the state if ``partition``, created at the same time, is the partition of ``last``; None if it is not.

    The state has no location if no file can be copied to that of ``last``.
    """
    token = relocation_token(partition.parameters)
    without_location = replace(state, location=None, token=None, renamed_to=partition.name)
    at_last_location = replace(
        without_location, location=last.location, token=last.token, created_at=last.partition_created_at
    )
    if token is None:
        return None
    present = _present_directory(ref, partition)
    if token == last.token:
        # Partitions that one plan has relocated have the same token, each in its own directory of the version.
        return (
            at_last_location
            if present.location == last.location
            else without_location
            if present.may_be_target_of(last)
            else None
        )
    next_relocation = _relocation_after(last, partition.name, present, token, records)
    if next_relocation is None:
        return None
    # Once lakefold has begun to delete there, files that are copied there would look like those of an overwrite.
    has_left_location = next_relocation.previous_location == last.location and not records.is_cleaned(next_relocation)
    return replace(at_last_location, relocated_as=next_relocation.partition) if has_left_location else without_location


@dataclass(frozen=True, slots=True)
class _Directory:
    """A location that a partition had, and the names of the files that were there, which are read only if needed."""

    location: str
    file_names: Callable[[], Collection[str]]

    def may_be_target_of(self, move: Relocation) -> bool:
        """True if ``move`` led to this location, or to a directory that the metastore has since moved to this location.

        The metastore moves the directory of a managed table's partition to that of its new name, which is in no
        version. The names of files that a rewrite wrote are unique.
        """
        if self.location == move.location:
            return True
        if is_in_data_dir(self.location) or not move.files:
            return False
        return all(file.name in self.file_names() for file in move.files)


def _present_directory(ref: TableRef, partition: CatalogPartition) -> _Directory:
    return _Directory(relative_path(ref.location, partition.location), cache(partial(_file_names, ref, partition)))


def _relocation_after(
    last: Relocation, name: str, present: _Directory, token: str, records: "_RelocationRecords"
) -> Relocation | None:
    """Return the relocation of a partition that left the directory of ``last``. None if there is none.

    The search begins at the partition's ``present`` directory and relocation ``token``, and goes back to earlier ones.

    A relocation follows the relocation whose version it left. If it left a directory outside of versions, it follows a
    relocation back to this directory, which has a record of its own, or one whose directory the metastore moved there.
    """
    pending, seen = [(present, token)], set[str]()
    while pending:
        directory, token = pending.pop()
        if token in seen:
            continue
        seen.add(token)
        for move in records.relocations(token):
            is_of_partition = move.partition == name or directory.may_be_target_of(move)
            if not is_of_partition or move.partition_created_at != last.partition_created_at:
                continue
            left_directory = _Directory(move.previous_location, partial(records.replaced_file_names, move))
            if left_directory.may_be_target_of(last):
                return move
            version = records.version_of(move.previous_location)
            pending += [
                (left_directory, earlier) for earlier in ([version] if version else records.tokens_before(move))
            ]
    return None


class _RelocationRecords:
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

    def replaced_file_names(self, move: Relocation) -> Collection[str]:
        """Return the names of the files that a relocation has replaced."""
        record = self._read(move.token)
        replaced = () if record is None else record.commit.superseded
        return {basename(one.path) for one in replaced if one.partition == move.partition}

    def tokens_before(self, move: Relocation) -> Collection[str]:
        """Return the tokens of the relocations that may have led to the location that ``move`` left."""
        written_by = (version_of_output(name) for name in self.replaced_file_names(move))
        return {*self.tokens_of_relocations_back_to(move.previous_location), *filter(None, written_by)}

    def version_of(self, location: str) -> str | None:
        """Return the version in which a location is. None if it is in no version."""
        return version_of_directory(self._ref, resolve_path(self._ref.location, location))

    def tokens_of_relocations_back_to(self, location: str) -> Sequence[str]:
        """Return the tokens of the relocations that led back to a location and that no plan made."""
        if self._tokens_back is None:
            found = defaultdict(list)
            for token in _tokens_without_plan(self._ref):
                for move in self.relocations(token):
                    found[move.location].append(token)
            self._tokens_back = found
        return self._tokens_back.get(location, ())


def _file_names(ref: TableRef, partition: CatalogPartition) -> Collection[str]:
    (listing,) = list_partition_files(ref.name, [partition])
    return {basename(file.path) for file in listing.files}


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
