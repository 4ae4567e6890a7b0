# SPDX-License-Identifier: Apache-2.0
"""Relocated partitions that have another name in the metastore now.

``ALTER TABLE … PARTITION … RENAME TO PARTITION …`` keeps a partition's creation time and properties, and with them the
token of its last relocation. In an external table the location stays as well. In a managed table the metastore moves
the directory to the one of the new name. Late files in previous locations belong to the renamed partition.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from lake.errors import Transient
from lake.formats.hive.catalog.tables import CatalogPartition, is_in_data_dir
from lake.formats.hive.commit import commit_record
from lake.formats.hive.commit.commit_record import CommitRecord
from lake.formats.hive.commit.version_names import relocation_token
from lake.formats.hive.files.listing import list_partition_files
from lake.model import TableRef
from lake.plan import Relocation
from lake.relocation.evidence import has_unhandled_files
from lake.relocation.model import PartitionState, RelocatedPartition
from lake.storage.locations import relative_path


def find_renamed_partitions(
    ref: TableRef,
    relocated: Sequence[RelocatedPartition],
    states: Mapping[str, PartitionState],
    list_all_partitions: Callable[[], Sequence[CatalogPartition]],
) -> Mapping[str, PartitionState]:
    """Return the states of the partitions that have another name now and whose late files are not copied yet.

    If the partition is at its latest location, or a later relocation has moved it from there, the state is that of a
    partition at its latest location. Raises Transient.
    """
    absent = [
        one
        for one in relocated
        if states[one.partition].location is None and has_unhandled_files(one, states[one.partition])
    ]
    partitions = list_all_partitions() if absent else ()
    read_record = cache(partial(_record_of_token, ref))
    found = {}
    for one in absent:
        for partition in partitions:
            if partition.created_at == one.latest.partition_created_at and partition.name != one.partition:
                state = _state_if_renamed(ref, one.latest, states[one.partition], partition, read_record)
                if state is not None:
                    found[one.partition] = state
                    break
    return found


def _state_if_renamed(
    ref: TableRef,
    last: Relocation,
    state: PartitionState,
    partition: CatalogPartition,
    read_record: Callable[[str], CommitRecord | None],
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
    record = read_record(token)
    moves = () if record is None or record.commit.instant != token else record.commit.relocations
    was_there = any((move.partition, move.previous_location) == (partition.name, last.location) for move in moves)
    return replace(there, is_moved_on=True) if was_there else None


def _holds_files_of(ref: TableRef, partition: CatalogPartition, last: Relocation) -> bool:
    """True if the directory of a partition has the files of the relocation, whose own directory may have been moved."""
    (listing,) = list_partition_files(ref.name, [partition])
    names = {file.path.rpartition("/")[2] for file in listing.files}
    return bool(last.files) and names.issuperset(file.name for file in last.files)


def _record_of_token(ref: TableRef, token: str) -> CommitRecord | None:
    try:
        return commit_record.read_record(ref, token) or commit_record.archived_record_of_token(ref, token)
    except OSError as error:
        raise Transient(f"the commit {token} of {ref.name} can't be read: {error.strerror}") from error
