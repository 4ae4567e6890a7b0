# SPDX-License-Identifier: Apache-2.0
"""The files in the previous and current locations of relocated partitions."""

import math
import time
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

from lake.errors import Transient
from lake.formats.hive.catalog.tables import CatalogPartition, is_in_data_dir
from lake.formats.hive.commit.commit_record import is_cleaned, marked_emptied_ms
from lake.formats.hive.commit.version_names import record_path_beside, relocation_token
from lake.formats.hive.files.incomplete import unready_reason
from lake.formats.hive.files.listing import is_hidden, to_located_file
from lake.formats.hive.relocation.arrival_times import recorded_arrivals, source_digest
from lake.formats.hive.relocation.late_files import digest_in_copy_name, is_hidden_copy
from lake.formats.hive.relocation.renamed_partitions import (
    PartitionLookup,
    find_other_partitions,
    find_renamed_partitions,
)
from lake.model import TableRef
from lake.plan import LocatedFile
from lake.relocation.catalog_changes import replaced_files_to_archive
from lake.relocation.evidence import (
    MAX_CLOCK_DIFFERENCE_MS,
    has_late_files,
    has_unhandled_files,
    late_until_ms,
    with_earlier_arrivals,
)
from lake.relocation.model import LocationState, PartitionState, RelocatedPartition, UnreadyReason
from lake.storage.files import FileIO
from lake.storage.filesystems import file_io_of
from lake.storage.locations import relative_path, resolve_path

_MAX_CONCURRENT_LISTINGS = 8
#: the longest average duration of listings that do not wait for the storage
_QUICK_LISTING_SECONDS = 0.0005
#: a tolerance for all listings together, so that one slow listing at the beginning decides nothing
_PATIENCE_SECONDS = 0.005
_MAX_CLOCK_DIFFERENCE = timedelta(milliseconds=MAX_CLOCK_DIFFERENCE_MS)


class ReaderLookup(Protocol):
    """Takes a location for each partition, and returns which other partitions or tables are read from it.

    The result has a phrase that names the other partition or table for each partition whose location has such a reader.
    """

    def __call__(self, locations: Mapping[str, str], *, max_age: timedelta | None) -> Mapping[str, str]:
        """See ``RelocatesPartitions.other_readers``."""


def list_locations(
    ref: TableRef,
    relocated: Sequence[RelocatedPartition],
    partitions: Sequence[CatalogPartition],
    find_readers: ReaderLookup,
    now: float,
    list_partitions: PartitionLookup = lambda _: (),
) -> Mapping[str, PartitionState]:
    """Return the state of ``relocated`` partitions in the metastore, and the files in their locations at ``now``.

    ``find_readers`` is called in two cases only: for a partition that was dropped (and perhaps added again) while
    replaced files are in its own directory; and for a location with late files if an owner moved the partition away
    from this location.
    ``list_partitions`` is called only for partitions that are not in the metastore and have late files, or replaced
    files in their own directory: they may have another name now. Raises Transient.
    """
    by_name = {location.name: location for location in partitions}
    current = {relative_path(ref.location, location.location) for location in partitions}
    listed = sorted({location for one in relocated for location in one.locations})
    recorded = frozenset(file for one in relocated for file in one.recorded_files)
    late_until = _late_until_ms(relocated)

    def list_one(location: str) -> LocationState:
        is_previous = location not in current
        until_ms = late_until[location] if is_previous else math.inf
        return _list_location(ref, location, recorded, now, is_previous, until_ms)

    seen = dict(zip(listed, _list_each(listed, list_one), strict=True))
    states: dict[str, PartitionState] = {
        one.partition: PartitionState(
            location=None if (at := by_name.get(one.partition)) is None else relative_path(ref.location, at.location),
            token=None if at is None else relocation_token(at.parameters),
            created_at=0 if at is None else at.created_at,
            has_creation_time=at is None or at.has_creation_time,
            locations=_with_arrivals_of_copies(
                ref,
                one,
                {**{location: seen[location] for location in one.locations}, **_cleaned_locations(ref, one, seen)},
            ),
        )
        for one in relocated
    }
    states |= {one.partition: _with_recorded_emptying(ref, one, states[one.partition]) for one in relocated}
    states |= find_renamed_partitions(ref, relocated, states, list_partitions)
    states |= find_other_partitions(ref, relocated, states, by_name)
    return {**states, **_states_with_readers(relocated, states, find_readers, now)}


def _with_arrivals_of_copies(
    ref: TableRef, relocated: RelocatedPartition, states: Mapping[str, LocationState]
) -> Mapping[str, LocationState]:
    """Return ``states`` in which the copies of late files arrived when their sources did.

    A copy may be a second name of its source. An overwrite that removes the source makes the copy look newer than the
    files that the overwrite has written.
    """
    if not file_io_of(ref.location).has_arrival_times:
        return states
    copies = {
        file: digest
        for there in states.values()
        for file in there.files
        if (digest := digest_in_copy_name(file.name)) is not None
    }
    if not copies:
        return states
    arrived = dict[str, int]()
    try:
        for previous in relocated.previous_locations:
            arrived |= recorded_arrivals(ref, previous.location)
    except OSError as error:
        raise Transient(f"the arrival times of files of {ref.name} can't be read: {error.strerror}") from error
    return with_earlier_arrivals(
        states, {file: arrived[digest] for file, digest in copies.items() if digest in arrived}
    )


def _late_until_ms(relocated: Sequence[RelocatedPartition]) -> Mapping[str, float]:
    """Return a time in milliseconds by location: only files that arrived before it may be files of a partition."""
    found: dict[str, float] = {}
    for one in relocated:
        by_location = {previous.location: late_until_ms(previous) for previous in one.previous_locations}
        for location in one.locations:
            found[location] = max(found.get(location, 0), by_location.get(location, math.inf))
    return found


def _list_each(locations: Sequence[str], list_one: Callable[[str], LocationState]) -> list[LocationState]:
    """List all locations: one after the other while this is quick, otherwise several at once.

    Threads help only if a listing waits for the storage. Quick listings would wait for Python's global lock instead.
    """
    found, begun = list[LocationState](), time.perf_counter()
    for location in locations:
        if time.perf_counter() - begun > _PATIENCE_SECONDS + len(found) * _QUICK_LISTING_SECONDS:
            break
        found.append(list_one(location))
    with ThreadPoolExecutor(_MAX_CONCURRENT_LISTINGS) as pool:
        return [*found, *pool.map(list_one, locations[len(found) :])]


def _states_with_readers(
    relocated: Sequence[RelocatedPartition],
    states: Mapping[str, PartitionState],
    find_readers: ReaderLookup,
    now: float,
) -> Mapping[str, PartitionState]:
    """Return new states of the partitions that have other readers at a location where these readers matter."""
    found: dict[str, PartitionState] = {}

    def look(locations: Mapping[str, str], max_age: timedelta | None) -> None:
        for partition, reader in find_readers(locations, max_age=max_age).items():
            state, location = found.get(partition, states[partition]), locations[partition]
            shared = replace(state.locations[location], read_by=reader)
            found[partition] = replace(state, locations={**state.locations, location: shared})

    archived = {one.partition: _archived_location(one, states[one.partition]) for one in relocated}
    if locations := {partition: location for partition, location in archived.items() if location is not None}:
        look(locations, None)
    former = {one.partition: _former_locations(one, states[one.partition]) for one in relocated}
    # Each call checks one former location of each partition.
    for number in range(max(map(len, former.values()), default=0)):
        locations = {partition: these[number] for partition, these in former.items() if number < len(these)}
        look(locations, min(_time_since_last_file(states[one].locations[at], now) for one, at in locations.items()))
    return found


def _archived_location(relocated: RelocatedPartition, state: PartitionState) -> str | None:
    """Return the directory from which the sweep would move replaced files aside. None if there are no such files."""
    files = replaced_files_to_archive(relocated, state)
    return files[0].directory if files and _is_any_present(files, state) else None


def _former_locations(relocated: RelocatedPartition, state: PartitionState) -> Sequence[str]:
    """Return the locations that the owner moved the partition away from, and in which there are late files."""
    return [
        previous.location
        for previous in relocated.previous_locations
        if previous.is_before_owner_move and has_late_files(previous, state, relocated)
    ]


def _time_since_last_file(there: LocationState, now: float) -> timedelta:
    """Return the minimum time for which all files have been in the location; zero if this is unknown.

    A list of partitions that was read within this time shows who wrote the files: an owner gives a location to another
    partition before that partition's files are written there.
    """
    last_ms = max((max(file.modified_ms, arrived_ms) for file, arrived_ms in there.files.items()), default=0)
    age = timedelta(seconds=now - max(last_ms, there.directory_changed_ms or 0) / 1000)
    return max(age - _MAX_CLOCK_DIFFERENCE, timedelta())


def _is_any_present(files: Sequence[LocatedFile], state: PartitionState) -> bool:
    return any(file in state.locations[file.directory].files for file in files)


def _cleaned_locations(
    ref: TableRef, relocated: RelocatedPartition, states: Mapping[str, LocationState]
) -> Mapping[str, LocationState]:
    """Return previous locations whose missing files lakefold has deleted without a record in the database.

    The database was restored to a time before the deletion. Without this, late files in such a location would look like
    an overwrite, since the location contains no other files.
    """
    missing = [
        previous
        for previous in relocated.previous_locations
        if not previous.is_cleaning_begun
        and any(file not in states[previous.location].files for file in previous.expected_files)
    ]
    try:
        noted = [
            previous
            for previous in missing
            if any(
                is_cleaned(replace(ref, location=location), token, partition)
                for location, token, partition in (
                    (ref.location, previous.token, relocated.partition),
                    *sorted(previous.shared_with),
                )
            )
        ]
    except OSError as error:
        raise Transient(f"the markers of deleted files of {ref.name} can't be read: {error.strerror}") from error
    return {previous.location: replace(states[previous.location], is_cleaning_begun=True) for previous in noted}


def _with_recorded_emptying(ref: TableRef, relocated: RelocatedPartition, state: PartitionState) -> PartitionState:
    """Return the state with the time, if the table records it, at which the partition's location was emptied.

    The record is not read while it makes no difference: if published files are there, or if the partition looks
    overwritten and no late file waits.
    """
    last, targets = relocated.latest, {late_copy.target for late_copy in relocated.late_copies}
    there = state.locations[last.location]
    if not last.files or any(file in there.files for file in last.files):
        return state
    is_overwritten = any(file.path not in targets for file in there.files)
    if is_overwritten and not has_unhandled_files(relocated, state, state.location):
        return state
    try:
        emptied_ms = marked_emptied_ms(ref, last.token, last.partition)
    except OSError as error:
        raise Transient(f"the markers of emptied locations of {ref.name} can't be read: {error.strerror}") from error
    if emptied_ms is None:
        return state
    emptied = replace(there, recorded_emptied_ms=emptied_ms)
    return replace(state, locations={**state.locations, last.location: emptied})


def _list_location(
    ref: TableRef,
    location: str,
    recorded: Set[LocatedFile],
    now: float,
    is_previous: bool,
    until_ms: float,
) -> LocationState:
    """Return the content of a location. Files that arrived at ``until_ms`` or later are not opened."""
    files: dict[LocatedFile, int] = {}
    copies: list[str] = []
    waits: dict[str, UnreadyReason] = {}
    table_location, changed_ms, emptied_ms, is_gone = ref.location, None, None, False
    storage, directory = file_io_of(table_location), resolve_path(table_location, location)
    try:
        for entry in storage.list(directory):
            if is_hidden(entry.name):
                if is_hidden_copy(entry.name):
                    copies.append(relative_path(table_location, entry.path))
                continue
            file = to_located_file(table_location, entry.path, entry.bytes, entry.modified_ns)
            # A file that is renamed into a directory keeps its modification time, but gets a new arrival time.
            files[file] = max(file.modified_ms, entry.arrived_ns // 1_000_000)
            if (
                file not in recorded
                and files[file] < until_ms
                and (why := unready_reason(storage, entry, now, is_previous=is_previous)) is not None
            ):
                waits[file.path] = why
        if not (files or is_previous):
            emptied_ms = storage.status(directory).modified_ns // 1_000_000
        if not storage.has_arrival_times:
            # After the listing, so that no listed file arrived later.
            changed_ms = storage.status(directory).modified_ns // 1_000_000
        elif is_previous and (unknown := files.keys() - recorded):
            # A database that was lost or restored may lack the copies of these files, and their arrival times.
            arrived = recorded_arrivals(ref, location)
            files |= {file: min(files[file], arrived.get(source_digest(file), files[file])) for file in unknown}
    except FileNotFoundError:
        # The directory is gone, or a file was removed during the listing: then the next listing shows the rest.
        if files:
            raise Transient(f"{location} changed while it was listed") from None
        is_gone = True
    except OSError as error:
        raise Transient(f"{location} can't be listed: {error.strerror}") from error
    is_uprooted = recorded.isdisjoint(files) and _is_record_missing(storage, table_location, location)
    return LocationState(
        files=files,
        unready=waits,
        directory_changed_ms=changed_ms,
        emptied_ms=emptied_ms,
        is_missing=is_gone,
        is_tree_removed=is_uprooted,
        hidden_copies=tuple(sorted(copies)),
    )


def _is_record_missing(storage: FileIO, table_location: str, location: str) -> bool:
    try:
        return is_in_data_dir(location) and not storage.exists(
            resolve_path(table_location, record_path_beside(location))
        )
    except OSError as error:
        raise Transient(f"the document of the commit at {location} can't be read: {error.strerror}") from error
