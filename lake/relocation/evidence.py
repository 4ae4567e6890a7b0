# SPDX-License-Identifier: Apache-2.0
"""Derives the changes that writers made to a relocated partition's locations from the files found there."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from lake.model import partition_label
from lake.plan import LocatedFile
from lake.relocation.model import LocationState, PartitionState, PreviousLocation, RelocatedPartition, UnreadyReason


class LocationChange(StrEnum):
    """The change that writers made to a location, judged by its files."""

    UNCHANGED = "unchanged"  #: no recorded file is missing; in a previous location, there are no other files either
    APPENDED = "appended"  #: files were added to a previous location
    MODIFIED = "modified"  #: recorded files were extended or rewritten under their names
    OVERWRITTEN = "overwritten"  #: all recorded files are missing, and other files are there
    #: a previous location: all recorded files are missing, and no other file is there; the current location: recorded
    #: files are missing, and so are lakefold's own data beside the directory
    EMPTIED = "emptied"
    IN_PROGRESS = "in progress"  #: a writer is at work, or some recorded files are missing
    #: files were added after lakefold began to delete there, and others are gone; or files were added that may belong
    #: to another program to which the owner had given the location
    AMBIGUOUS = "ambiguous"
    #: a previous location that the owner had moved the partition away from: recorded files are gone, or other files are
    #: there that are not the partition's
    GIVEN_UP = "given up"


MAX_CLOCK_DIFFERENCE_MS = 10_000
"""The largest allowed difference of the clocks of the storage, the database and this process, in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationFinding:
    """The change of one location, with the reason if it is in progress, emptied or ambiguous."""

    location: str
    change: LocationChange
    reason: str = ""
    #: unrecorded files, each with its arrival time
    late_files: Mapping[LocatedFile, int] = field(default_factory=lambda: MappingProxyType({}))
    #: recorded files that are gone, each with the file that has its name now
    modified: Mapping[LocatedFile, LocatedFile] = field(default_factory=lambda: MappingProxyType({}))
    #: True if a writer is known to be at work
    has_active_writer: bool = False


def changed_previous_locations(record: RelocatedPartition, state: PartitionState) -> list[LocationFinding]:
    """Return the previous locations that writers have changed, each with its change."""
    findings = [
        _inspect_previous_location(previous, state, record)
        for previous in record.previous_locations
        if previous.location != state.location
    ]
    return [one for one in findings if one.change is not LocationChange.UNCHANGED]


def inspect_current_location(
    record: RelocatedPartition, current: LocationState, previous: Iterable[LocationFinding] = ()
) -> LocationFinding:
    """Return the change of the partition's location; ``late_files`` are its files that lakefold did not publish.

    A file that was extended in one of the ``previous`` locations may be the same file here, under a second name. If the
    location was emptied before its late files arrived, their copies stand for the published files.
    """
    location = record.latest.location
    targets = {late_copy.target for late_copy in record.late_copies}
    published = _published_files(record, current)
    same = {(new.bytes, new.modified_ms) for one in previous for new in one.modified.values()}
    filled = {file.path for file in current.files if file not in published and (file.bytes, file.modified_ms) in same}
    late = {
        file: arrived_ms
        for file, arrived_ms in current.files.items()
        if file not in published and file.path not in targets and file.path not in filled
    }
    gone = [file for file in published if file not in current.files and file.path not in filled]
    if not gone:
        return LocationFinding(location=location, change=LocationChange.UNCHANGED, late_files=late)
    if reason := unready_reason(late, current):
        is_written = _has_active_writer(late, current)
        return LocationFinding(
            location=location, change=LocationChange.IN_PROGRESS, reason=reason, has_active_writer=is_written
        )
    if late and len(gone) == len(published):
        return LocationFinding(location=location, change=LocationChange.OVERWRITTEN, late_files=late)
    reason = (
        f"{len(gone)} of {len(published)} files of {location_label(location)} are gone, while {len(late)} were added"
    )
    # An overwrite of only this location would have left lakefold's data beside it.
    state = LocationChange.EMPTIED if current.is_tree_removed else LocationChange.IN_PROGRESS
    return LocationFinding(location=location, change=state, reason=reason)


def _published_files(record: RelocatedPartition, current: LocationState) -> frozenset[LocatedFile]:
    """Return the files that lakefold has put into the partition's location since it was emptied, if it was."""
    emptied_ms, location = current.recorded_emptied_ms, record.latest.location
    if emptied_ms is None:
        return frozenset(record.latest.files)
    return frozenset(
        replace(late_copy.source, path=late_copy.target)
        for late_copy in record.late_copies
        if late_copy.is_done
        and late_copy.target.rpartition("/")[0] == location
        and (late_copy.arrived_ms is None or late_copy.arrived_ms > emptied_ms)
    )


def is_emptied_before_late_files(
    record: RelocatedPartition, state: PartitionState, changed: Iterable[LocationFinding]
) -> bool:
    """True if the partition's location was emptied before the first late file arrived, and nothing was added since.

    Without lakefold the late files would have come to an empty directory. So a TRUNCATE, or an overwrite, that has
    emptied it replaces none of them, and what is added there later is added to them. ``changed`` are the changes of the
    previous locations: if the writer of one of them is still at work, or has left no new file, its order is not known.
    """
    here = state.locations[record.latest.location]
    published = _published_files(record, here)
    if here.emptied_ms is None or here.is_tree_removed or not published:
        return False
    # Otherwise the file system does not keep the times of directories.
    if here.emptied_ms < max(file.modified_ms for file in published):
        return False
    ordered = (LocationChange.APPENDED, LocationChange.OVERWRITTEN)
    if state.renamed_to is not None or any(one.change not in ordered for one in changed):
        return False
    arrived = [
        _complete_ms(file, arrived_ms)
        for previous in record.previous_locations
        if previous.location != state.location and not previous.is_before_owner_move
        for file, arrived_ms in _late_files(previous, state, record).items()
    ]
    return bool(arrived) and min(arrived) > here.emptied_ms


def with_recorded_arrivals(record: RelocatedPartition, state: PartitionState) -> PartitionState:
    """Return ``state`` with the recorded arrival times of files with a late copy, if they are earlier.

    Two events make a file look newer than it is: a second name (a hard link), and the removal of that name. An
    overwrite removes the second name after it has written its own files.
    """
    recorded = {
        late_copy.source: late_copy.arrived_ms for late_copy in record.late_copies if late_copy.arrived_ms is not None
    }
    return replace(state, locations=with_earlier_arrivals(state.locations, recorded)) if recorded else state


def with_earlier_arrivals(
    locations: Mapping[str, LocationState], arrived_ms: Mapping[LocatedFile, int]
) -> Mapping[str, LocationState]:
    """Return ``locations`` with the times of ``arrived_ms``, in milliseconds, for files that seem to be newer."""
    return {
        location: replace(there, files={file: min(at, arrived_ms.get(file, at)) for file, at in there.files.items()})
        for location, there in locations.items()
    }


def unready_reason(late_files: Iterable[LocatedFile], state: LocationState) -> str | None:
    """Return the first of ``late_files`` that must not be copied yet, with the reason; None if there is none."""
    path = min((file.path for file in late_files if file.path in state.unready), default=None)
    return None if path is None else f"{path} {state.unready[path]}"


def find_copy(record: RelocatedPartition, source: LocatedFile, state: PartitionState) -> LocatedFile | None:
    """Return the copy of ``source`` in the partition's location; None if it was merged, or ``source`` was not copied.

    If a sweep made the copy, it has the name of its target. If a commit linked the file into its version, the copy has
    the name of the source.
    """
    location = record.latest.location
    names = {
        late_copy.target.rpartition("/")[2]
        for late_copy in record.late_copies
        if late_copy.is_done and late_copy.source == source
    }
    known_paths = {file.path for file in record.latest.files} | {late_copy.target for late_copy in record.late_copies}
    copy_paths = known_paths & {f"{location}/{name}" for name in names or {source.name}}
    return next((file for file in state.locations[location].files if file.path in copy_paths), None)


def abandoned_copies(record: RelocatedPartition, state: PartitionState) -> Sequence[str]:
    """Return the paths of copies that readers do not see and that belong to no unfinished late copy.

    A round that was killed or suspended made them. Locations that the owner has given up are left out.
    """
    given_up = {previous.location for previous in record.previous_locations if previous.is_before_owner_move}
    begun = set()
    for late_copy in record.late_copies:
        directory, slash, name = late_copy.target.rpartition("/")
        if not late_copy.is_done:
            begun.add(f"{directory}{slash}.{name}")
    return [
        path
        for location, there in state.locations.items()
        if location not in given_up
        for path in there.hidden_copies
        if path not in begun
    ]


def unrecorded_growth(
    record: RelocatedPartition, state: PartitionState
) -> Sequence[tuple[PreviousLocation, Sequence[LocatedFile]]]:
    """Return files that grew and whose copies a sweep replaced before a later relocation, by previous location.

    A copy has the name, size and time of its file, and the later relocation recorded the copy among the files that it
    replaced. So all rows of the file are in the partition. Only a database that was rebuilt from the table records the
    file's old size.
    """
    found = []
    for previous in record.previous_locations:
        if previous.is_before_owner_move:
            continue
        there = state.locations[previous.location].files
        missing = {file.path for file in previous.expected_files if file not in there}
        modified = [file for file in there if file.path in missing] if missing else []
        if not modified:
            continue
        copies = {
            (file.name, file.bytes, file.modified_ms)
            for other in record.previous_locations
            if other.location != previous.location
            for file in (*other.expected_files, *other.possible_files)
        }
        if replaced := [file for file in modified if (file.name, file.bytes, file.modified_ms) in copies]:
            found.append((previous, replaced))
    return found


def _has_active_writer(late: Iterable[LocatedFile], there: LocationState) -> bool:
    """True if the last change of one of the ``late`` files shows that its writer is at work."""
    return UnreadyReason.WRITING in {there.unready.get(file.path) for file in late}


def arrived_before(files: Mapping[LocatedFile, int], overwritten_from: int | None) -> frozenset[LocatedFile]:
    """Return the files that were complete before an overwrite wrote its first file."""
    if overwritten_from is None:
        return frozenset()
    return frozenset(file for file, arrived_ms in files.items() if _complete_ms(file, arrived_ms) < overwritten_from)


def overwrite_start_ms(late_files: Mapping[LocatedFile, int]) -> int:
    """Return when an overwrite wrote its first file, in milliseconds."""
    return min(file.modified_ms for file in late_files)


def latest_arrival_ms(file: LocatedFile, arrived_ms: int, state: PartitionState) -> int:
    """Return the latest time at which a file may have got its name, in milliseconds."""
    return max(_complete_ms(file, arrived_ms), state.locations[file.directory].directory_changed_ms or 0)


def ambiguous_order(
    files: Mapping[LocatedFile, int], started_ms: int, location: str, state: PartitionState
) -> str | None:
    """Return why it is unknown whether a file arrived before an overwrite of ``location``; None if it is known."""
    ambiguous = [
        file
        for file, arrived_ms in files.items()
        if _complete_ms(file, arrived_ms) < started_ms <= latest_arrival_ms(file, arrived_ms, state)
    ]
    if not ambiguous:
        return None
    path, then = min(file.path for file in ambiguous), f"{location_label(location)} was overwritten"
    return f"its file system does not show whether {path} arrived before {then}: which one is later?"


def location_label(location: str) -> str:
    """Return a location in words."""
    return location or "the table's own directory"


def _inspect_previous_location(
    previous: PreviousLocation, state: PartitionState, record: RelocatedPartition
) -> LocationFinding:
    """Return the change of a previous location. Copies that a suspended sweep made there do not count."""
    location, there = previous.location, state.locations[previous.location]
    if previous.is_before_owner_move:
        return _inspect_given_up_location(previous, state, record)
    if len(in_place := previous.files_in_place) < len(previous.expected_files):
        # No writer has removed the other files.
        previous = replace(previous, expected_files=in_place)
    if state.renamed_to is not None or state.has_left_location:
        previous = _without_shared_files(previous)
    previous = _without_deletion_that_removed_nothing(previous, there)
    sources = {late_copy.source for late_copy in record.late_copies if late_copy.is_done}
    late = _late_files(previous, state, record)
    gone = [] if there.is_cleaning_begun else [file for file in previous.expected_files if file not in there.files]
    if gone and _was_overwritten_before_recreation(previous, state, record):
        gone = []
    if not late and (not gone or _recreation_ms(previous, record)[1]):
        # If the partition was recreated, an overwrite had removed them before, or is still at work: then its new files
        # will be late ones.
        return LocationFinding(location=location, change=LocationChange.UNCHANGED)
    unclear = {
        file for file in late if latest_arrival_ms(file, late[file], state) < _recreation_ms(previous, record)[1]
    }
    if unclear:
        reason = (
            f"{min(file.path for file in unclear)} arrived before or after {partition_label(record.partition)} was "
            "dropped and added again: the metastore's clock is ahead of the storage's, since the partition is newer "
            "than the files that were compacted in it later"
        )
        return LocationFinding(location=location, change=LocationChange.AMBIGUOUS, reason=reason, late_files=late)
    waits = {file for file in late if file.path in there.unready}
    is_at_work = {there.unready[file.path] for file in waits} & {UnreadyReason.DIRECTORY, UnreadyReason.WRITING}
    if waits and (gone or is_at_work):
        reason = unready_reason(waits, there) or ""
        is_written = _has_active_writer(late, there)
        return LocationFinding(
            location=location,
            change=LocationChange.IN_PROGRESS,
            reason=reason,
            late_files=late,
            has_active_writer=is_written,
        )
    late = {file: arrived_ms for file, arrived_ms in late.items() if file not in waits}
    # A late copy is also marked as done if its source disappeared before the copy.
    rewritten = {file.path for file in late}
    left = {one for one in sources - set(previous.possible_files) if one.path in rewritten and one not in there.files}
    copied = {one for one in left if find_copy(record, one, state) is not None}
    missing = {file.path: file for file in (*copied, *gone)}
    modified = {missing[file.path]: file for file in late if file.path in missing}
    if not late and not gone:
        return LocationFinding(location=location, change=LocationChange.UNCHANGED)
    count = f"{len(gone)} of {len(previous.expected_files)} files of {location_label(location)} are gone"
    # The other partition's sweep may just have moved shared files aside, or a restored database lacks their deletion.
    is_shared = not previous.shared_files.isdisjoint(gone)
    unknown_cause = f"{count}, which another partition has replaced since"
    if not late:
        change = LocationChange.EMPTIED if len(gone) == len(previous.expected_files) else LocationChange.IN_PROGRESS
        reason = unknown_cause if is_shared else f"{count}, and nothing new is there"
        return LocationFinding(location=location, change=change, reason=reason)
    # If all recorded files were there at once and are all gone, it is an overwrite, whatever the new files' names are.
    is_part = len(gone) < len(previous.expected_files) or (previous.possible_files and sources.issuperset(gone))
    if modified and is_part and set(gone) <= modified.keys():
        return LocationFinding(location=location, change=LocationChange.MODIFIED, late_files=late, modified=modified)
    if is_shared:
        return LocationFinding(
            location=location, change=LocationChange.IN_PROGRESS, reason=unknown_cause, late_files=late
        )
    if not previous.expected_files or there.is_cleaning_begun or (gone and previous.is_cleaning_begun):
        after = "after lakefold began to delete there: it is unknown whether they replace the remaining files"
        reason = f"files were written to {location_label(location)} {after}"
        return LocationFinding(location=location, change=LocationChange.AMBIGUOUS, reason=reason, late_files=late)
    if not gone:
        return LocationFinding(location=location, change=LocationChange.APPENDED, late_files=late)
    if len(gone) < len(previous.expected_files):
        return LocationFinding(
            location=location,
            change=LocationChange.IN_PROGRESS,
            reason=f"{count}, and files were added",
            late_files=late,
        )
    return LocationFinding(location=location, change=LocationChange.OVERWRITTEN, late_files=late)


def _inspect_given_up_location(
    previous: PreviousLocation, state: PartitionState, record: RelocatedPartition
) -> LocationFinding:
    """Return the change of a location that the owner had moved the partition away from.

    The owner, or a program to which the owner gave the location, has removed the files that are gone there. Without
    lakefold, too, files that were added since the move would not be the partition's. So no file there is copied, and
    none counts as an overwrite. Only a file that was added while the move happened may be the partition's. A file that
    its writer has not finished, and a directory, have no rows of the partition.
    """
    there = state.locations[previous.location]
    found = _late_files(previous, state, record)
    late = {file: arrived_ms for file, arrived_ms in found.items() if file.path not in there.unready}
    if late and there.read_by is None:
        reason = (
            f"files were written to {location_label(previous.location)} before the compaction that followed the move "
            f"of {partition_label(record.partition)} by its owner: it is unknown whether they are its rows"
        )
        return LocationFinding(
            location=previous.location, change=LocationChange.AMBIGUOUS, reason=reason, late_files=late
        )
    is_gone = not there.is_cleaning_begun and any(file not in there.files for file in previous.files_in_place)
    change = LocationChange.GIVEN_UP if late or is_gone else LocationChange.UNCHANGED
    return LocationFinding(location=previous.location, change=change, late_files=late)


def late_until_ms(previous: PreviousLocation) -> float:
    """Return a time in milliseconds: files that arrived in a previous location before it may be the partition's.

    It is infinite if the owner has not moved the partition away from there, and 0 if no file there is the partition's.
    """
    if previous.owner_moved_ms is None:
        return math.inf
    return 0 if previous.is_released else previous.owner_moved_ms + MAX_CLOCK_DIFFERENCE_MS


def has_unhandled_files(record: RelocatedPartition, state: PartitionState, present_location: str | None) -> bool:
    """True if a previous location has a file that is neither recorded nor copied, or a late copy is not finished.

    Files of ``present_location``, from which readers read the partition now, need no copy. A rename of a managed
    table's partition may make a previous location the present one.
    """
    return any(not late_copy.is_done for late_copy in record.late_copies) or any(
        has_late_files(previous, state, record)
        for previous in record.previous_locations
        if previous.location != present_location
    )


def has_late_files(previous: PreviousLocation, state: PartitionState, record: RelocatedPartition) -> bool:
    """True if a previous location has a file that is neither recorded nor copied, finished or not."""
    return bool(_late_files(previous, state, record))


def recent_late_files(record: RelocatedPartition, state: PartitionState) -> Mapping[LocatedFile, int]:
    """Return the late files that are not copied yet because they were written a moment ago, with arrival times."""
    return {
        file: arrived_ms
        for previous in record.previous_locations
        if previous.location != state.location and not previous.is_before_owner_move
        for file, arrived_ms in _late_files(previous, state, record).items()
        if state.locations[previous.location].unready.get(file.path) is UnreadyReason.RECENT
    }


def _late_files(
    previous: PreviousLocation, state: PartitionState, record: RelocatedPartition
) -> Mapping[LocatedFile, int]:
    """Return the files of a previous location that are neither recorded nor copied, each with its arrival time.

    Files that arrived after the owner had moved the partition away, or added it again elsewhere, are left out.
    """
    there = state.locations[previous.location]
    # A late copy that was recorded but not made is decided again, since an overwrite may have happened in between.
    sources = {late_copy.source for late_copy in record.late_copies if late_copy.is_done}
    targets = {late_copy.target.rpartition("/")[2] for late_copy in record.late_copies}
    recorded = frozenset((*previous.expected_files, *previous.possible_files))
    late = {
        file: arrived_ms
        for file, arrived_ms in there.files.items()
        if file not in recorded and file not in sources and file.name not in targets
    }
    if previous.owner_moved_ms is not None:
        is_dropped = previous.partition_created_at not in (None, record.latest.partition_created_at)
        # A creation time of 0 only shows that another program has written the partition anew.
        if is_dropped and record.latest.partition_created_at:
            return {}
        last_ms = late_until_ms(previous)
        return {file: arrived_ms for file, arrived_ms in late.items() if _complete_ms(file, arrived_ms) < last_ms}
    # Files that had arrived before the partition was recreated were dropped with it.
    earliest_ms, _ = _recreation_ms(previous, record)
    return {
        file: arrived_ms
        for file, arrived_ms in late.items()
        if latest_arrival_ms(file, arrived_ms, state) >= earliest_ms
    }


def _was_overwritten_before_recreation(
    previous: PreviousLocation, state: PartitionState, record: RelocatedPartition
) -> bool:
    """True if a previous location has unrecorded files of the partition that was dropped since it left the location.

    If recorded files are gone, these files have replaced them. Files that arrived later are additions to them.
    """
    earliest_ms, _ = _recreation_ms(previous, record)
    recorded = {*previous.expected_files, *previous.possible_files}
    recorded.update(late_copy.source for late_copy in record.late_copies)
    return any(
        latest_arrival_ms(file, arrived_ms, state) < earliest_ms
        for file, arrived_ms in state.locations[previous.location].files.items()
        if file not in recorded
    )


def _recreation_ms(previous: PreviousLocation, record: RelocatedPartition) -> tuple[int, int]:
    """Return the earliest and the latest time at which a partition was recreated since it left a location, in ms.

    Both are 0 if it was not. Files' times are compared with the creation time, which is by the catalog's clock. If the
    files that the latest relocation wrote are older than the partition, this clock is ahead of the storage's by an
    unknown time.
    """
    if previous.partition_created_at in (None, record.latest.partition_created_at):
        return 0, 0
    created_ms = record.latest.partition_created_at * 1000
    written_ms = max((file.modified_ms for file in record.latest.files), default=created_ms)
    return (created_ms, created_ms) if created_ms <= written_ms else (0, written_ms)


def _without_deletion_that_removed_nothing(previous: PreviousLocation, there: LocationState) -> PreviousLocation:
    """Return ``previous`` without the begun deletion if neither the deletion nor a writer has removed a file there."""
    expected = (*previous.expected_files, *previous.deleting_files)
    if not all(file in there.files for file in expected):
        return previous
    possible = tuple(file for file in previous.possible_files if file not in previous.deleting_files)
    return replace(previous, expected_files=expected, possible_files=possible, deleting_files=())


def _without_shared_files(previous: PreviousLocation) -> PreviousLocation:
    """Return ``previous`` with its shared files as merely possible ones: the other partition may be the same one.

    A partition of another table is not.
    """
    shared = previous.shared_files - previous.files_of_other_tables
    return replace(
        previous,
        expected_files=tuple(file for file in previous.expected_files if file not in shared),
        possible_files=tuple(dict.fromkeys((*previous.possible_files, *shared))),
        deleting_files=tuple(file for file in previous.deleting_files if file not in shared),
        shared_files=previous.files_of_other_tables,
    )


def _complete_ms(file: LocatedFile, arrived_ms: int) -> int:
    return max(file.modified_ms, arrived_ms)
