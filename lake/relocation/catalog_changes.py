# SPDX-License-Identifier: Apache-2.0
"""The changes that owners and programs made to the catalog's entry of a relocated partition.

Each function compares the catalog's entry with the record of the partition's relocations.
"""

from lake.plan import LocatedFile
from lake.relocation.model import LocationState, PartitionState, RelocatedPartition
from lake.relocation.owner_moves import is_in_version
from lake.storage.locations import is_below_table


def reverted_by_writer(record: RelocatedPartition, state: PartitionState) -> tuple[str, str | None] | None:
    """Return location and token if a writer has put the partition back to its state before a relocation; else None.

    Hive reads a partition when an INSERT begins to move its files in, and writes the whole partition back with new
    counts: location and token are as they were before the relocation. Flink reads the partition after it has moved
    files in, sets the location that follows from the table's directory, and retains all properties. Then the catalog
    has a previous location with a later token. Trino replaces the whole entry of a partition that it changes:
    properties of other programs and the creation time are gone. If the location stays, so do the rows. Trino's
    overwrite first deletes the files in the partition's default directory, and then sets this directory: the partition
    counts as recreated, like a partition that was dropped and added again and has another creation time. An owner who
    moves a partition sets another location.
    """
    if state.location is None or is_at_latest_location(record, state):
        return None
    is_same = state.is_created_with(record.latest)
    is_written_anew = (state.location, state.token) == (record.latest.location, None)
    if is_written_anew and (is_same or not state.has_creation_time):
        return state.location, state.token
    if not is_same:
        return None
    if (state.location, state.token) in record.earlier_locations:
        return state.location, state.token
    tokens = {record.latest.token, *(token for _, token in record.earlier_locations)}
    # If the partition was renamed after a relocation, its record does not have the token, which names the location.
    is_known = state.token is not None and (state.token in tokens or state.token in state.location.split("/"))
    is_at_previous = any(state.location == previous.location for previous in record.previous_locations)
    return (state.location, state.token) if is_known and is_at_previous else None


def is_at_latest_location(record: RelocatedPartition, state: PartitionState) -> bool:
    """True if the catalog has a partition as its latest relocation left it."""
    return (state.location, state.token) == (record.latest.location, record.latest.token)


def is_recreated(record: RelocatedPartition, state: PartitionState) -> bool:
    """True if the owner has dropped a partition, and added it again at a location that the owner had once set."""
    return state.token is None and state.location in record.owner_locations and not state.is_created_with(record.latest)


def is_exchanged(record: RelocatedPartition, state: PartitionState) -> bool:
    """True if a partition was taken out of the catalog together with its own directory, while its rows stayed behind.

    Hive's ``EXCHANGE PARTITION`` does this: it renames the directory with the partition's name, wherever the partition
    is read from. DROP PARTITION deletes the directory from which the partition is read, or nothing.
    """
    if state.location is not None or record.original_location not in state.locations:
        return False
    return state.locations[record.original_location].is_missing and bool(state.locations[record.latest.location].files)


def is_moved_from_earlier_state(record: RelocatedPartition, state: PartitionState) -> bool:
    """True if the owner moved a partition by a call that carries the token of an earlier relocation.

    The call had read the partition before the latest relocation. lakefold has never set this location, which is in no
    version.
    """
    known = {location for location, _ in record.earlier_locations}.union(record.locations)
    return (
        state.is_created_with(record.latest)
        and state.token in {token for _, token in record.earlier_locations}
        and state.location is not None
        and state.location not in known
        and not is_in_version(state.location)
    )


def replaced_files_to_archive(record: RelocatedPartition, state: PartitionState) -> tuple[LocatedFile, ...]:
    """Return replaced files in the own directory of a dropped partition: readers would see them once it is added again.

    If the owner has added the partition again, these are the replaced files in the directory that it has now: readers
    already see them. A partition that only lost its properties has no such files. A dropped partition whose directory
    was outside of the table's directory has none either: only its owner may name that directory again. Returns none
    while another table or partition is read from the directory.
    """
    if (state.location is not None and not is_recreated(record, state)) or is_exchanged(record, state):
        return ()
    directory = record.original_location if state.location is None else state.location
    if state.location is None and not is_below_table(directory):
        return ()
    if (there := state.locations.get(directory)) is not None and there.read_by is not None:
        return ()
    own = [previous for previous in record.previous_locations if previous.location == directory]
    # If a deletion was begun, it may not have deleted its first file yet: these files have to be moved too.
    replaced = [
        file
        for previous in own
        for file in (*previous.expected_files, *previous.deleting_files)
        # The other partition would take their absence for an overwrite.
        if file not in previous.shared_files
    ]
    return tuple(file for file in replaced if file.directory == directory)


def has_shared_files(record: RelocatedPartition, location: str, there: LocationState) -> bool:
    """True if replaced files that await their deletion under another partition are in a previous location."""
    return any(
        not previous.shared_files.isdisjoint(there.files)
        for previous in record.previous_locations
        if previous.location == location
    )
