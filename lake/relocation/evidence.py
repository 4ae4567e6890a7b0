# SPDX-License-Identifier: Apache-2.0
"""Tells from the files found what writers have done to the places of a moved partition."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from lake.plan import LocatedFile
from lake.relocation.model import LocationState, PartitionState, PreviousLocation, RelocatedPartition, UnreadyReason


class LocationChange(StrEnum):
    """What writers did to a place, as far as its files tell."""

    UNCHANGED = "quiet"  #: no recorded file is missing; in a former place, no other one is there
    APPENDED = "appended"  #: files were added to a former place
    MODIFIED = "regrown"  #: some recorded files were filled or written again, each under its name
    OVERWRITTEN = "overwritten"  #: others are there in the place of all recorded files
    EMPTIED = "cleared"  #: the recorded files were removed, and nothing new is there
    IN_PROGRESS = "unsettled"  #: a writer is at work, or has removed some files and not all
    AMBIGUOUS = "untold"  #: files were added where it is not known any more what they were added to


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationFinding:
    """The state of one place, with the reason where it is not settled."""

    location: str
    change: LocationChange
    reason: str = ""
    #: files that nobody recorded, each with when it came
    late_files: Mapping[LocatedFile, int] = field(default_factory=lambda: MappingProxyType({}))
    #: recorded files that are gone, each with the file that is under its name now
    modified: Mapping[LocatedFile, LocatedFile] = field(default_factory=lambda: MappingProxyType({}))
    #: whether its writer is known to be at work
    has_active_writer: bool = False


def changed_previous_locations(record: RelocatedPartition, state: PartitionState) -> list[LocationFinding]:
    """The former places that somebody has changed, each with how."""
    looked = [
        _inspect_previous_location(former, state, record)
        for former in record.previous_locations
        if former.location != state.location
    ]
    return [one for one in looked if one.change is not LocationChange.UNCHANGED]


def inspect_current_location(
    record: RelocatedPartition, current: LocationState, previous: Iterable[LocationFinding] = ()
) -> LocationFinding:
    """What somebody did to the place where the partition is; ``late`` are its files that lakefold did not bring.

    A file that was filled in one of the ``formers`` may be the same one here, under a second name.
    """
    place = record.latest.location
    targets = {carry.target for carry in record.late_copies}
    published = frozenset(record.latest.files)
    same = {(new.bytes, new.modified_ms) for one in previous for new in one.modified.values()}
    filled = {file.path for file in current.files if file not in published and (file.bytes, file.modified_ms) in same}
    late = {
        file: came
        for file, came in current.files.items()
        if file not in published and file.path not in targets and file.path not in filled
    }
    gone = [file for file in record.latest.files if file not in current.files and file.path not in filled]
    if not gone:
        return LocationFinding(location=place, change=LocationChange.UNCHANGED, late_files=late)
    if reason := unready_reason(late, current):
        is_written = _has_active_writer(late, current)
        return LocationFinding(
            location=place, change=LocationChange.IN_PROGRESS, reason=reason, has_active_writer=is_written
        )
    if late and len(gone) == len(record.latest.files):
        return LocationFinding(location=place, change=LocationChange.OVERWRITTEN, late_files=late)
    reason = f"{len(gone)} of {len(record.latest.files)} files of {location_label(place)} are gone, while {len(late)} were added"
    # An overwrite of the place itself would have left what is beside it.
    state = LocationChange.EMPTIED if current.is_tree_removed else LocationChange.IN_PROGRESS
    return LocationFinding(location=place, change=state, reason=reason)


def with_recorded_arrivals(record: RelocatedPartition, state: PartitionState) -> PartitionState:
    """The same with files that were to be carried as young as they had been: a second name makes a file look younger.

    So does the removal of that name, which an overwrite does after it has written its own files.
    """
    recorded = {carry.source: carry.arrived_ms for carry in record.late_copies if carry.arrived_ms is not None}
    if not recorded:
        return state
    places = {
        place: replace(there, files={file: min(came, recorded.get(file, came)) for file, came in there.files.items()})
        for place, there in state.locations.items()
    }
    return replace(state, locations=places)


def unready_reason(late_files: Iterable[LocatedFile], state: LocationState) -> str | None:
    """The first of these files that is not to be taken yet, in words; None without one."""
    path = min((file.path for file in late_files if file.path in state.unready), default=None)
    return None if path is None else f"{path} {state.unready[path]}"


def find_copy(record: RelocatedPartition, source: LocatedFile, state: PartitionState) -> LocatedFile | None:
    """The file as which one of a former place is read where the partition is; None where a rewrite took it, or nothing.

    It has the name of the copy that was made of it, else its own: under that a commit brings it along.
    """
    place = record.latest.location
    names = {
        carry.target.rpartition("/")[2] for carry in record.late_copies if carry.is_done and carry.source == source
    }
    brought = {file.path for file in record.latest.files} | {carry.target for carry in record.late_copies}
    wanted = brought & {f"{place}/{name}" for name in names or {source.name}}
    return next((file for file in state.locations[place].files if file.path in wanted), None)


def _has_active_writer(late: Iterable[LocatedFile], there: LocationState) -> bool:
    """Whether the writer of one of these files is at work, as far as its last change tells."""
    return UnreadyReason.WRITING in {there.unready.get(file.path) for file in late}


def arrived_before(files: Mapping[LocatedFile, int], overwritten_from: int | None) -> frozenset[LocatedFile]:
    """Those that were there, whole, before an overwrite wrote its first file."""
    if overwritten_from is None:
        return frozenset()
    return frozenset(file for file, came in files.items() if _complete_ms(file, came) < overwritten_from)


def overwrite_start_ms(late_files: Mapping[LocatedFile, int]) -> int:
    """When an overwrite wrote its first file, in milliseconds."""
    return min(file.modified_ms for file in late_files)


def latest_arrival_ms(file: LocatedFile, arrived_ms: int, state: PartitionState) -> int:
    """When a file was under its name at the latest, in milliseconds."""
    return max(_complete_ms(file, arrived_ms), state.locations[file.directory].directory_changed_ms or 0)


def ambiguous_order(
    files: Mapping[LocatedFile, int], started_ms: int, location: str, state: PartitionState
) -> str | None:
    """The first file that may have come before an overwrite of ``place`` began or after, in words; None without one."""
    untold = [
        file
        for file, came in files.items()
        if _complete_ms(file, came) < started_ms <= latest_arrival_ms(file, came, state)
    ]
    if not untold:
        return None
    path, then = min(file.path for file in untold), f"{location_label(location)} was overwritten"
    return f"its file system does not tell whether {path} came before {then}: which one is later?"


def location_label(location: str) -> str:
    """A place in words."""
    return location or "the table's own directory"


def _inspect_previous_location(
    former: PreviousLocation, seen: PartitionState, record: RelocatedPartition
) -> LocationFinding:
    """What somebody did to a former place. Copies of ours in it, such as a sleeper's, are nobody's rows."""
    place, there = former.location, seen.locations[former.location]
    # One that was recorded and not copied is decided anew: an overwrite may have come between.
    sources = {carry.source for carry in record.late_copies if carry.is_done}
    targets = {carry.target.rpartition("/")[2] for carry in record.late_copies}
    recorded = frozenset((*former.expected_files, *former.possible_files))
    late = {
        file: came
        for file, came in there.files.items()
        if file not in recorded and file not in sources and file.name not in targets
    }
    if former.partition_created_at not in (None, record.latest.partition_created_at):
        # Of a partition that was dropped since: what had come before it was made anew was dropped with it.
        anew = record.latest.partition_created_at * 1000
        late = {file: came for file, came in late.items() if latest_arrival_ms(file, came, seen) >= anew}
    gone = [] if there.is_cleaning_begun else [file for file in former.expected_files if file not in there.files]
    if not late and not gone:
        return LocationFinding(location=place, change=LocationChange.UNCHANGED)
    waits = {file for file in late if file.path in there.unready}
    is_at_work = {there.unready[file.path] for file in waits} & {UnreadyReason.DIRECTORY, UnreadyReason.WRITING}
    if waits and (gone or is_at_work):
        reason = unready_reason(waits, there) or ""
        is_written = _has_active_writer(late, there)
        return LocationFinding(
            location=place,
            change=LocationChange.IN_PROGRESS,
            reason=reason,
            late_files=late,
            has_active_writer=is_written,
        )
    late = {file: came for file, came in late.items() if file not in waits}
    # A carry is done, too, whose source was gone before it was copied.
    again = {file.path for file in late}
    left = {one for one in sources - set(former.possible_files) if one.path in again and one not in there.files}
    copied = {one for one in left if find_copy(record, one, seen) is not None}
    missing = {file.path: file for file in (*copied, *gone)}
    regrown = {missing[file.path]: file for file in late if file.path in missing}
    if not late and not gone:
        return LocationFinding(location=place, change=LocationChange.UNCHANGED)
    count = f"{len(gone)} of {len(former.expected_files)} files of {location_label(place)} are gone"
    if not late:
        state = LocationChange.EMPTIED if len(gone) == len(former.expected_files) else LocationChange.IN_PROGRESS
        return LocationFinding(location=place, change=state, reason=f"{count}, and nothing new is there")
    # All that was there at once is an overwrite, whatever the names of its files.
    is_part = len(gone) < len(former.expected_files) or (former.possible_files and sources.issuperset(gone))
    if regrown and is_part and set(gone) <= regrown.keys():
        return LocationFinding(location=place, change=LocationChange.MODIFIED, late_files=late, modified=regrown)
    if not former.expected_files or there.is_cleaning_begun or (gone and former.is_cleaning_begun):
        after = "after lakefold began to delete there: they replace the rest, or add"
        reason = f"files were written to {location_label(place)} {after}"
        return LocationFinding(location=place, change=LocationChange.AMBIGUOUS, reason=reason, late_files=late)
    if not gone:
        return LocationFinding(location=place, change=LocationChange.APPENDED, late_files=late)
    if len(gone) < len(former.expected_files):
        return LocationFinding(
            location=place, change=LocationChange.IN_PROGRESS, reason=f"{count}, and files were added", late_files=late
        )
    return LocationFinding(location=place, change=LocationChange.OVERWRITTEN, late_files=late)


def _complete_ms(file: LocatedFile, came: int) -> int:
    return max(file.modified_ms, came)
