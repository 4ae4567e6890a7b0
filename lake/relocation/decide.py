# SPDX-License-Identifier: Apache-2.0
"""Decides on the sweep's actions for a relocated partition, from its record and the files found.

After a commit has relocated a partition, a job that began earlier still writes to the previous location and reports
success. A wrong decision would lose the job's rows. ``decide`` reads nothing itself: the sweep passes the evidence and
carries out the decision.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum

from lake.model import partition_label
from lake.plan import LocatedFile
from lake.relocation.catalog_changes import (
    has_shared_files,
    is_at_latest_location,
    is_exchanged,
    is_moved_from_earlier_state,
    is_recreated,
    reverted_by_writer,
)
from lake.relocation.evidence import (
    LocationChange,
    LocationFinding,
    ambiguous_order,
    arrived_before,
    changed_previous_locations,
    find_copy,
    inspect_current_location,
    is_emptied_before_late_files,
    latest_arrival_ms,
    location_label,
    overwrite_start_ms,
    recent_late_files,
    unready_reason,
    with_recorded_arrivals,
)
from lake.relocation.model import ModifiedFile, PartitionState, RelocatedPartition, UnreadyReason
from lake.units import format_duration

WRITER_GRACE = timedelta(hours=1)
"""The longest time of WAIT decisions while no writer is known to be at work. Then the partition is halted."""


class LocationChoice(StrEnum):
    """The location that holds a partition's rows, as a person has decided."""

    PREVIOUS = "previous"  #: the previous location that a writer has changed
    CURRENT = "current"  #: its present location


class RelocationAction(StrEnum):
    """The sweep's decision on a partition's previous locations."""

    NOTHING = "nothing"
    REPLACE_COPIES = "replace copies"  #: a writer extended or rewrote a file under its name
    RECORD_EMPTIED = "record that the location was emptied"  #: before the late files of previous locations arrived
    COPY_LATE_FILES = "copy late files"  #: to the partition's location; writers added them to a previous location
    REAPPLY = "set the latest location again"  #: a writer wrote back an earlier location
    RELOCATE_BACK = "relocate back"  #: a writer overwrote a previous location
    WAIT = "wait"  #: a writer is at work, or its work looks incomplete: the next sweep checks again
    HALT = "halt"  #: only a person can decide: all files stay


@dataclass(frozen=True, slots=True, kw_only=True)
class RelocationDecision:
    """An action and its reason. ``files_to_copy`` are copied to the location that the partition has after the action.

    The rows of ``superseded_files`` were overwritten, are in another file, or were rejected by a person: these files
    stay until their retention has passed. ``target_location`` is the location to which the partition is relocated back.
    ``emptied_locations`` are previous locations that an overwrite of another location, or the owner, has emptied: their
    recorded files are no longer expected. ``released_locations`` are previous locations that the owner has given up,
    with files that are not the partition's. ``copies_to_remove`` are copies of superseded files that the overwrite did
    not remove: a sweep made them while the overwrite was at work. ``concerns_table``: the reason for the halt affects
    all partitions, such as another lakefold that relocates them. ``modified_files`` are files whose copies are to be
    replaced.
    """

    action: RelocationAction
    reason: str = ""
    files_to_copy: tuple[LocatedFile, ...] = ()
    superseded_files: tuple[LocatedFile, ...] = ()
    target_location: str | None = None
    emptied_locations: tuple[str, ...] = ()
    released_locations: tuple[str, ...] = ()
    copies_to_remove: tuple[str, ...] = ()
    concerns_table: bool = False
    modified_files: tuple[ModifiedFile, ...] = ()


def decide(
    record: RelocatedPartition, state: PartitionState, waited: timedelta, grace: timedelta = WRITER_GRACE
) -> RelocationDecision:
    """Return the action for one relocated partition. ``waited`` is the time for which the decision has been WAIT.

    ``state.locations`` must contain all of ``record.locations``. Ambiguous evidence results in a halt, never in a
    guess: all files stay, and readers continue to read the same files.
    """
    record = _with_present_location(record, state)
    decision = _decide(record, with_recorded_arrivals(record, state), waited, grace)
    return _halt_if_renamed(decision, record, state)


def relocation_blocker(record: RelocatedPartition, state: PartitionState) -> str | None:
    """Return why a relocation has to wait, although the sweep has nothing to do; None if it need not wait.

    An overwrite of the partition's location replaces the late files that are older. The next relocation ends the
    evidence of the overwrite: it records the files that it finds as the partition's. So it waits until the sweep has
    decided about an older file that was written a moment ago. The sweep's own relocations need no such check: they
    wait for the files of the overwrite, which were written as recently.
    """
    if state.location != record.latest.location:
        return None
    here = inspect_current_location(record, state.locations[record.latest.location])
    if here.change is LocationChange.UNCHANGED:
        return None
    recent = recent_late_files(record, state)
    if here.change is LocationChange.OVERWRITTEN:
        return _describe_recent(arrived_before(recent, overwrite_start_ms(here.late_files)))
    return _describe_recent(recent)


def deletion_blocker(record: RelocatedPartition, state: PartitionState) -> str | None:
    """Return why replaced files must not be deleted yet, although the sweep has nothing to do; None if they may be.

    A late file that the sweep finds after a deletion has begun may belong to an overwrite: it halts the partition.
    """
    return None if state.location is None else _describe_recent(recent_late_files(record, state))


def _describe_recent(files: Iterable[LocatedFile]) -> str | None:
    return min((f"{file.path} {UnreadyReason.RECENT}" for file in files), default=None)


def _decide(
    record: RelocatedPartition, state: PartitionState, waited: timedelta, grace: timedelta
) -> RelocationDecision:
    if reverted_by_writer(record, state) is not None:
        return _decide_reverted(record, state, waited, grace)
    if is_exchanged(record, state):
        # An overwrite of a dropped partition looks the same until it has added the partition with its new files.
        reason = _exchange_reason(record)
        return _halt(reason) if waited >= grace else RelocationDecision(action=RelocationAction.WAIT, reason=reason)
    since_relocation = _decide_changed_partition(record, state)
    if since_relocation is not None:
        return since_relocation
    changed = changed_previous_locations(record, state)
    if is_emptied_before_late_files(record, state, changed):
        reason = f"{location_label(record.latest.location)} was emptied before files were added to previous locations"
        return RelocationDecision(action=RelocationAction.RECORD_EMPTIED, reason=reason)
    if not changed:
        return _do_nothing("no writer has changed its previous locations")
    assert state.location is not None
    ambiguous = [one for one in changed if one.change is LocationChange.AMBIGUOUS]
    if ambiguous:
        return _halt(ambiguous[0].reason)
    given_up = [one for one in changed if one.change is LocationChange.GIVEN_UP]
    if not given_up:
        return _decide_by_files(changed, record, state, waited, grace)
    others = [one for one in changed if one not in given_up]
    decision = (
        _decide_by_files(others, record, state, waited, grace)
        if others
        else _do_nothing("its owner had moved the partition away from locations that others have changed since")
    )
    return replace(
        decision,
        emptied_locations=(*decision.emptied_locations, *(one.location for one in given_up)),
        released_locations=tuple(one.location for one in given_up if one.late_files),
    )


def _decide_by_files(
    changed: Sequence[LocationFinding],
    record: RelocatedPartition,
    state: PartitionState,
    waited: timedelta,
    grace: timedelta,
) -> RelocationDecision:
    """Decide about ``changed`` previous locations that are the partition's, by the files there and in its location."""
    assert state.location is not None
    here = inspect_current_location(record, state.locations[state.location], changed)
    emptied = [one for one in (*changed, here) if one.change is LocationChange.EMPTIED]
    is_overwritten = any(one.change is LocationChange.OVERWRITTEN for one in (*changed, here))
    in_progress = [one for one in (*changed, here) if one.change is LocationChange.IN_PROGRESS]
    if writing := next((one.reason for one in in_progress if one.has_active_writer), None):
        return RelocationDecision(action=RelocationAction.WAIT, reason=writing)  # no time limit while the writer works
    # A location may be emptied by other causes than an overwrite of the location itself. An overwrite by Spark also
    # empties the partition's own directory, wherever the partition is. An overwrite of a whole table empties the
    # table's directory, which contains every version if the table is unpartitioned.
    if in_progress := in_progress or ([] if is_overwritten else emptied):
        return _wait(in_progress[0].reason, waited, grace)
    changed = [one for one in changed if one.change is not LocationChange.EMPTIED]
    modified = [one for one in changed if one.change is LocationChange.MODIFIED]
    if modified and here.change is LocationChange.UNCHANGED and not is_overwritten:
        return _decide_modified(modified, changed, record, state)
    return replace(
        _decide_changed(changed, here, record, state, waited, grace),
        emptied_locations=tuple(one.location for one in emptied if one is not here),
    )


def _with_present_location(record: RelocatedPartition, state: PartitionState) -> RelocatedPartition:
    """Return ``record``, in which the partition's location in the catalog no longer counts as given up by its owner."""
    if not any(one.is_before_owner_move and one.location == state.location for one in record.previous_locations):
        return record
    previous_locations = tuple(
        replace(one, owner_moved_ms=None) if one.location == state.location else one
        for one in record.previous_locations
    )
    return replace(record, previous_locations=previous_locations)


def _halt_if_renamed(
    decision: RelocationDecision, record: RelocatedPartition, state: PartitionState
) -> RelocationDecision:
    """Return a halt if the decision can't be carried out because the partition was renamed; else the decision."""
    if state.renamed_to is None:
        return decision
    what = f"{partition_label(record.partition)} was renamed to {state.renamed_to}"
    if state.renamed_to == record.partition:
        what = f"{partition_label(record.partition)} was renamed, compacted and renamed back"
    if state.location is None:
        return _halt(
            f"{what}, and its directory was moved, before late files in its previous locations were copied: move them "
            f"to the directory of {state.renamed_to}"
        )
    if decision.action is RelocationAction.RELOCATE_BACK:
        return _halt(
            f"{what} after {decision.reason}: point {state.renamed_to} to "
            f"{location_label(decision.target_location or '')}, or remove the files that were written there"
        )
    return decision


def is_unchanged(record: RelocatedPartition, state: PartitionState) -> bool:
    """True if the previous locations of ``record`` show that a partition needs no action.

    The partition is where its latest relocation left it, no work is waiting or unfinished, and no writer has changed
    these locations.
    """
    is_open = (
        record.begun_relocations or record.is_waiting or any(not late_copy.is_done for late_copy in record.late_copies)
    )
    if is_open or not is_at_latest_location(record, state):
        return False
    changed = changed_previous_locations(record, state)
    return not changed and not is_emptied_before_late_files(record, state, changed)


def _decide_reverted(
    record: RelocatedPartition, state: PartitionState, waited: timedelta, grace: timedelta
) -> RelocationDecision:
    """Decide as if the partition were at its latest location. If that needs no action, set that location again."""
    decision = _decide(
        record, replace(state, location=record.latest.location, token=record.latest.token), waited, grace
    )
    if decision.action is not RelocationAction.NOTHING:
        return decision
    if (here := inspect_current_location(record, state.locations[record.latest.location])).change in (
        LocationChange.IN_PROGRESS,
        LocationChange.EMPTIED,
    ):
        return _wait(here.reason, waited, grace)
    what = partition_label(record.partition)
    if state.location == record.latest.location:
        reason = f"{what} was written anew without its properties, as Trino does"
    elif (state.location, state.token) in record.earlier_locations:
        reason = f"{what} was written back as it was before a move"
    else:
        reason = (
            f"{what} was pointed back at {location_label(state.location or '')}, its location before a relocation, "
            "as Flink's sink does"
        )
    return replace(decision, action=RelocationAction.REAPPLY, reason=reason)


def _decide_changed(
    changed: Sequence[LocationFinding],
    here: LocationFinding,
    record: RelocatedPartition,
    state: PartitionState,
    waited: timedelta,
    grace: timedelta,
) -> RelocationDecision:
    """Decide about previous locations that have new files or were overwritten, if their writers have ended."""
    assert state.location is not None
    overwritten = [one for one in changed if one.change is LocationChange.OVERWRITTEN]
    if len(overwritten) > 1:
        return _halt(_both_overwritten(overwritten[0].location, overwritten[1].location))
    late = {file: arrived_ms for one in changed for file, arrived_ms in one.late_files.items()}
    if here.change is LocationChange.OVERWRITTEN:
        began = overwrite_start_ms(here.late_files)
        # If the directory above was removed as well, the present files may be additions or all rows.
        is_later = all(
            latest_arrival_ms(*item, state) < began for one in overwritten for item in one.late_files.items()
        )
        if overwritten and (state.locations[state.location].is_tree_removed or not is_later):
            return _halt(_both_overwritten(overwritten[0].location, state.location))
        if ambiguous := ambiguous_order(late, began, state.location, state):
            return _halt(ambiguous)
        decision = _decide_copy(late, began, f"{location_label(state.location)} was overwritten")
        there = {file.path for file in state.locations[state.location].files}
        begun = [late_copy for late_copy in record.late_copies if not late_copy.is_done and late_copy.target in there]
        return replace(
            decision, copies_to_remove=tuple(one.target for one in begun if one.source in decision.superseded_files)
        )
    if not overwritten:
        return _decide_copy(
            late, None, f"files were added to {location_label(changed[0].location)} after the partition had left it"
        )
    if waits := unready_reason(here.late_files, state.locations[state.location]):
        return _wait(waits, waited, grace)
    return _decide_relocate_back(overwritten[0], late, state, record)


def decide_by_choice(record: RelocatedPartition, state: PartitionState, choice: LocationChoice) -> RelocationDecision:
    """Decide about a halted partition for which a person has chosen the location that holds its rows.

    The other location's files are superseded. Returns a halt if the choice is not sufficient.
    """
    return _halt_if_renamed(_decide_by_choice(_with_present_location(record, state), state, choice), record, state)


def _decide_by_choice(record: RelocatedPartition, state: PartitionState, choice: LocationChoice) -> RelocationDecision:
    if reverted_by_writer(record, state) is not None:
        state = replace(state, location=record.latest.location, token=record.latest.token)
    changed = [] if _decide_changed_partition(record, state) is not None else changed_previous_locations(record, state)
    if not changed:
        return _decide_changed_partition(record, state) or _do_nothing("no writer has changed its previous locations")
    assert state.location is not None
    given_up = {one.location for one in record.previous_locations if one.is_before_owner_move}
    if choice is LocationChoice.CURRENT:
        late = {file for one in changed if one.location not in given_up for file in one.late_files}
        return RelocationDecision(
            action=RelocationAction.NOTHING,
            reason=f"{location_label(state.location)} was chosen",
            superseded_files=_sorted_by_path(late),
            released_locations=tuple(one.location for one in changed if one.location in given_up and one.late_files),
        )
    changed = [one for one in changed if one.change is not LocationChange.GIVEN_UP]
    if not changed:
        return _do_nothing("no writer has changed its previous locations")
    if len(changed) > 1:
        first_two, here = (
            f"{location_label(changed[0].location)} and {location_label(changed[1].location)}",
            location_label(state.location),
        )
        return _halt(
            f"writers changed both {first_two}, and --keep previous can't take two: put the files that should be read "
            f"into {here}, then --keep current"
        )
    published = frozenset(record.latest.files)
    superseded = [file for file in state.locations[state.location].files if file not in published]
    location = changed[0].location
    return RelocationDecision(
        action=RelocationAction.RELOCATE_BACK,
        reason=f"{location_label(location)} was chosen",
        target_location=location,
        superseded_files=_sorted_by_path(superseded),
    )


def decide_restore_location(record: RelocatedPartition, state: PartitionState) -> RelocationDecision:
    """Decide whether a partition and all its files move to its own directory, which has to be empty.

    The own directory is the one that the table's owner set last. The partition waits while another partition or table
    is read from its own directory, whose readers would see these files as well, or from its present one, whose readers
    would miss later files.
    """
    if state.renamed_to is not None:
        return _do_nothing(f"{partition_label(record.partition)} was renamed to {state.renamed_to}")
    decision = decide(record, state, timedelta())
    original = record.owner_location or record.original_location
    if (
        decision.action is not RelocationAction.NOTHING
        or decision.superseded_files
        or _decide_changed_partition(record, state) is not None
    ):
        return decision if decision.action is not RelocationAction.NOTHING else _do_nothing(decision.reason)
    if state.location is None or state.location == original:
        return _do_nothing(f"{partition_label(record.partition)} is at its original location")
    for location in (original, state.location):
        if (reader := state.locations[location].read_by) is not None:
            reason = f"{partition_label(record.partition)} can't return to {location_label(original)}, since {reader}"
            return RelocationDecision(action=RelocationAction.WAIT, reason=reason)
    targets = {late_copy.target for late_copy in record.late_copies if not late_copy.is_done}
    remaining = [file for file in state.locations[original].files if file.path not in targets]
    if remaining:
        reason = f"{len(remaining)} files are in {location_label(original)} until their retention has passed"
        return RelocationDecision(action=RelocationAction.WAIT, reason=reason)
    current = state.locations[state.location]
    if waits := unready_reason(current.files, current):
        return RelocationDecision(action=RelocationAction.WAIT, reason=waits)
    # An overwrite may have removed files, but not yet given its new files their names: they would be left behind.
    if (finding := inspect_current_location(record, current)).change is LocationChange.IN_PROGRESS:
        return RelocationDecision(action=RelocationAction.WAIT, reason=finding.reason)
    return RelocationDecision(
        action=RelocationAction.RELOCATE_BACK,
        reason=f"{partition_label(record.partition)} returns to its original location",
        target_location=original,
        files_to_copy=_sorted_by_path(current.files),
    )


def _exchange_reason(record: RelocatedPartition) -> str:
    return (
        f"{partition_label(record.partition)} is not in the catalog, and {location_label(record.original_location)} "
        f"does not exist, as after EXCHANGE PARTITION: its rows are in {location_label(record.latest.location)}. Move "
        "them to the directory in which they should be read"
    )


def _decide_changed_partition(record: RelocatedPartition, state: PartitionState) -> RelocationDecision | None:
    """Decide about a partition that has changed since its latest relocation; None if it has not."""
    last = record.latest
    if is_exchanged(record, state):
        return _halt(_exchange_reason(record))
    if state.location is None:
        return _do_nothing(f"{partition_label(record.partition)} is not in the catalog")
    there = state.locations.get(state.location)
    if is_recreated(record, state) and there is not None:
        # The partition's readers see the replaced files, and a plan would merge them with the new rows.
        why = there.read_by
        if why is None and has_shared_files(record, state.location, there):
            why = "another partition has left this directory as well"
        if why is not None:
            return _halt(
                f"{partition_label(record.partition)} was dropped and added again at {location_label(state.location)}, "
                f"and the replaced files there can't be moved aside, since {why}: give each one a directory of its own"
            )
    # This includes a partition in its original location, or added by its owner with the last version as LOCATION.
    if state.token is None and (state.location != last.location or not state.is_created_with(last)):
        return _do_nothing(f"{partition_label(record.partition)} was recreated")
    if state.is_other_partition:
        return _do_nothing(f"{partition_label(record.partition)} is another partition, which was renamed to this name")
    if state.token != last.token and not is_moved_from_earlier_state(record, state):
        decision = _halt(
            f"{partition_label(record.partition)} names {state.token or 'no move'}, and its last move is {last.token}: "
            "an executor that was suspended, or another lakefold, has moved it"
        )
        # A partition that was created since came with the token, like a partition of another table by EXCHANGE
        # PARTITION.
        return replace(decision, concerns_table=state.is_created_with(last) or not state.has_creation_time)
    if state.location != last.location:
        if any(state.location == previous.location for previous in record.previous_locations):
            return _halt(
                f"{partition_label(record.partition)} was dropped and added again at {location_label(state.location)} "
                f"with the properties of its last move, {last.token}, to {location_label(last.location)}: drop it and "
                "add it again without its lakefold.* properties, and with the LOCATION that holds its rows"
            )
        return _do_nothing(
            f"{partition_label(record.partition)} was moved to {location_label(state.location)} by its owner"
        )
    return None


def _decide_copy(late: Mapping[LocatedFile, int], overwritten_from: int | None, reason: str) -> RelocationDecision:
    superseded = arrived_before(late, overwritten_from)
    files = tuple(_sorted_by_path(file for file in late if file not in superseded))
    return RelocationDecision(
        action=RelocationAction.COPY_LATE_FILES if files else RelocationAction.NOTHING,
        reason=reason,
        files_to_copy=files,
        superseded_files=_sorted_by_path(superseded),
    )


def _decide_relocate_back(
    overwritten: LocationFinding, late: Mapping[LocatedFile, int], state: PartitionState, record: RelocatedPartition
) -> RelocationDecision:
    """Relocate back to an overwritten previous location, with the later files that it lacks.

    An overwrite removes only the files that it has listed, and may miss a file that arrived and was copied meanwhile.
    """
    assert state.location is not None
    published = frozenset(record.latest.files)
    others = {
        file: arrived_ms for file, arrived_ms in state.locations[state.location].files.items() if file not in published
    }
    others |= {file: arrived_ms for file, arrived_ms in late.items() if file not in overwritten.late_files}
    there = state.locations[overwritten.location].files
    copies = frozenset(late_copy.target for late_copy in record.late_copies if late_copy.source in there)
    unclear = {file: arrived_ms for file, arrived_ms in others.items() if file.path not in copies}
    if ambiguous := ambiguous_order(unclear, overwrite_start_ms(overwritten.late_files), overwritten.location, state):
        return _halt(ambiguous)
    superseded = arrived_before(others, overwrite_start_ms(overwritten.late_files)) | {
        file for file in others if file.path in copies
    }
    label = location_label(overwritten.location)
    return RelocationDecision(
        action=RelocationAction.RELOCATE_BACK,
        reason=f"{label} was overwritten by a writer that began before the partition left it",
        target_location=overwritten.location,
        files_to_copy=_sorted_by_path(file for file in others if file not in superseded),
        superseded_files=_sorted_by_path(superseded),
    )


def _decide_modified(
    modified: Sequence[LocationFinding],
    changed: Sequence[LocationFinding],
    record: RelocatedPartition,
    state: PartitionState,
) -> RelocationDecision:
    """Decide about files of previous locations that a writer extended or rewrote, each under its name.

    A file is identified by its name, and its present content is complete. So its copy is replaced. If a rewrite has
    merged the copy, its rows can't be distinguished from other rows: then ``_decide_merged_file_changed`` decides.
    """
    replaced = []
    for one in modified:
        for old, new in one.modified.items():
            copy = find_copy(record, old, state)
            if copy is None:
                return _decide_merged_file_changed(one, old, new, changed, record, state)
            if (copy.bytes, copy.modified_ms) not in ((old.bytes, old.modified_ms), (new.bytes, new.modified_ms)):
                return _halt(f"{new.path} and its copy {copy.path} were both written again")
            replaced.append(ModifiedFile(recorded=old, current=new, copy_path=copy.path))
    first = min(one.current.path for one in replaced)
    return RelocationDecision(
        action=RelocationAction.REPLACE_COPIES,
        reason=f"{first} grew after it was carried along",
        modified_files=tuple(replaced),
    )


def _decide_merged_file_changed(
    one: LocationFinding,
    old: LocatedFile,
    new: LocatedFile,
    changed: Sequence[LocationFinding],
    record: RelocatedPartition,
    state: PartitionState,
) -> RelocationDecision:
    """Relocate back to the location that the latest relocation left, if a merged file has changed there; or halt."""
    what = f"{new.path} has {new.bytes} bytes after a rewrite had read it with {old.bytes}"
    last = next((previous for previous in record.previous_locations if previous.token == record.latest.token), None)
    if last is None or last.location != one.location:
        return _halt(f"{what}, and the partition was moved again: it is unknown which of the file's rows are read")
    if last.possible_files:
        deleted = "other replaced files there have been or are being deleted"
        return _halt(f"{what}, and {deleted}: it is unknown which of the file's rows are read")
    if last.shared_files:
        other = "another partition has replaced the files there as well"
        return _halt(f"{what}, and {other}: it is unknown which of the file's rows are read")
    if sum(finding.change is LocationChange.MODIFIED for finding in changed) > 1:
        return _halt(f"{what}, and files of another location were rewritten as well")
    assert state.location is not None
    published, there = frozenset(record.latest.files), {file.path for file in state.locations[one.location].files}
    others = {file for file in state.locations[state.location].files if file not in published}
    others |= {file for finding in changed if finding is not one for file in finding.late_files}
    copied_again = {late_copy.target for late_copy in record.late_copies if late_copy.source.path in there}
    return RelocationDecision(
        action=RelocationAction.RELOCATE_BACK,
        reason=f"{what}: {location_label(one.location)} holds all of it",
        target_location=one.location,
        files_to_copy=_sorted_by_path(file for file in others if file.path not in copied_again),
        superseded_files=_sorted_by_path(file for file in others if file.path in copied_again),
    )


def _both_overwritten(one: str, other: str) -> str:
    return f"{location_label(one)} and {location_label(other)} were both overwritten: which one is later?"


def _sorted_by_path(files: Iterable[LocatedFile]) -> tuple[LocatedFile, ...]:
    return tuple(sorted(files, key=lambda file: file.path))


def _do_nothing(reason: str) -> RelocationDecision:
    return RelocationDecision(action=RelocationAction.NOTHING, reason=reason)


def _wait(reason: str, waited: timedelta, grace: timedelta) -> RelocationDecision:
    if waited >= grace:
        return _halt(f"{reason}, for longer than {format_duration(grace)}")
    return RelocationDecision(action=RelocationAction.WAIT, reason=reason)


def _halt(reason: str) -> RelocationDecision:
    return RelocationDecision(action=RelocationAction.HALT, reason=reason)
