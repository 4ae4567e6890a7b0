# SPDX-License-Identifier: Apache-2.0
"""Decides what to do about a moved partition, from its record and the files found.

A commit that moves a partition leaves its former place to whoever still writes there: a job that began before the
move ends in the old directory and reports success. ``decide`` is where its rows are kept or lost. It looks at nothing
itself: the sweep hands it the evidence and does what it says.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum

from lake.model import partition_label
from lake.plan import LocatedFile
from lake.relocation.evidence import (
    LocationChange,
    LocationFinding,
    ambiguous_order,
    arrived_before,
    changed_previous_locations,
    find_copy,
    inspect_current_location,
    latest_arrival_ms,
    location_label,
    overwrite_start_ms,
    unready_reason,
    with_recorded_arrivals,
)
from lake.relocation.model import ModifiedFile, PartitionState, RelocatedPartition
from lake.units import format_duration

WRITER_GRACE = timedelta(hours=1)
"""How long files of a former place may be gone, with nothing new, until a person has to say what that means."""


class LocationChoice(StrEnum):
    """Which place a person says to hold a partition's rows."""

    PREVIOUS = "old"  #: the one that it had left, and that a writer has changed
    CURRENT = "new"  #: the one where it is


class RelocationAction(StrEnum):
    """What to do about a partition's former places."""

    NOTHING = "nothing"
    REPLACE_COPIES = "replace"  #: a writer filled a file under its name, or wrote it again: so is its copy
    COPY_LATE_FILES = "carry"  #: writers added files to a former place: copy them to where the partition is
    REAPPLY = "restore"  #: somebody has written back where the partition was before its last move: move it again
    RELOCATE_BACK = "move back"  #: a writer overwrote a former place: the partition is there again
    WAIT = "wait"  #: a writer is at work, or one that wrote nothing has ended: look again
    HALT = "halt"  #: nobody but a person can tell; keep everything


@dataclass(frozen=True, slots=True, kw_only=True)
class RelocationDecision:
    """An action and why. ``files`` are copied to where the partition then is.

    ``aside`` are files that an overwrite which came later has removed, as far as readers go: they stay where they are
    until their retention has passed. ``place`` is where the partition moves back to. ``cleared`` are former places
    that an overwrite of another place has emptied: nothing is expected there any more. ``revoked`` are copies of files
    set aside which the overwrite has not met: a round made them while it was at work. ``of_table``: what halts says
    something of all partitions, such as that another lakefold moves them. ``regrown`` are files whose copies take the
    place of shorter ones.
    """

    action: RelocationAction
    reason: str = ""
    files_to_copy: tuple[LocatedFile, ...] = ()
    superseded_files: tuple[LocatedFile, ...] = ()
    target_location: str | None = None
    emptied_locations: tuple[str, ...] = ()
    copies_to_remove: tuple[str, ...] = ()
    concerns_table: bool = False
    modified_files: tuple[ModifiedFile, ...] = ()


def decide(
    record: RelocatedPartition, state: PartitionState, waited: timedelta, grace: timedelta = WRITER_GRACE
) -> RelocationDecision:
    """The action for one moved partition. ``waited``: how long it has been unsettled.

    ``seen.places`` has every place of ``record.places``; else KeyError. Whatever the evidence can't tell is a halt, and
    never a guess: then all files stay, and readers read on where they do.
    """
    state = with_recorded_arrivals(record, state)
    if reverted_by_writer(record, state) is not None:
        return _decide_reverted(record, state, waited, grace)
    elsewhere = _decide_elsewhere(record, state)
    if elsewhere is not None:
        return elsewhere
    changed = changed_previous_locations(record, state)
    if not changed:
        return _do_nothing("nobody has written to its former places")
    assert state.location is not None
    untold = [one for one in changed if one.change is LocationChange.AMBIGUOUS]
    if untold:
        return _halt(untold[0].reason)
    here = inspect_current_location(record, state.locations[state.location], changed)
    cleared = [one for one in (*changed, here) if one.change is LocationChange.EMPTIED]
    is_overwritten = any(one.change is LocationChange.OVERWRITTEN for one in (*changed, here))
    unsettled = [one for one in (*changed, here) if one.change is LocationChange.IN_PROGRESS]
    if writing := next((one.reason for one in unsettled if one.has_active_writer), None):
        return RelocationDecision(action=RelocationAction.WAIT, reason=writing)  # for as long as its writer goes on
    # Spark empties a partition's own directory too, wherever the partition is, and of a whole table all there is: with
    # the table's own directory, where one without partitions was, also every version in it.
    if unsettled := unsettled or ([] if is_overwritten else cleared):
        return _wait(unsettled[0].reason, waited, grace)
    changed = [one for one in changed if one.change is not LocationChange.EMPTIED]
    regrown = [one for one in changed if one.change is LocationChange.MODIFIED]
    if regrown and here.change is LocationChange.UNCHANGED and not is_overwritten:
        return _decide_modified(regrown, changed, record, state)
    return replace(
        _decide_changed(changed, here, record, state, waited, grace),
        emptied_locations=tuple(one.location for one in cleared if one is not here),
    )


def is_unchanged(record: RelocatedPartition, state: PartitionState) -> bool:
    """Whether nothing is to be done about a partition, as far as the former places of ``record`` tell.

    It is where its last move left it, nothing is waited for or to be finished, and no writer was in these places.
    """
    is_open = record.begun_relocations or record.is_waiting or any(not carry.is_done for carry in record.late_copies)
    return not is_open and _is_at_latest(record, state) and not changed_previous_locations(record, state)


def reverted_by_writer(record: RelocatedPartition, state: PartitionState) -> tuple[str, str | None] | None:
    """Place and token of a partition that a writer has put back where it was before a move; None where none has.

    Hive reads a partition when an INSERT begins to bring in its files, and writes all of it back with new counts: both
    are as they were before the move. Flink reads it when it has brought them in, sets the location that follows from
    the table's directory, and keeps all properties: then a former location is named together with a later token. An
    owner who moves a partition names another location; a partition that is dropped and added again has another age.
    """
    if state.location is None or state.created_at != record.latest.partition_created_at or _is_at_latest(record, state):
        return None
    if (state.location, state.token) in record.earlier_locations:
        return state.location, state.token
    tokens = {record.latest.token, *(token for _, token in record.earlier_locations)}
    formers = {former.location for former in record.previous_locations}
    return (state.location, state.token) if state.token in tokens - {None} and state.location in formers else None


def _is_at_latest(record: RelocatedPartition, seen: PartitionState) -> bool:
    return (seen.location, seen.token) == (record.latest.location, record.latest.token)


def _decide_reverted(
    record: RelocatedPartition, seen: PartitionState, waited: timedelta, grace: timedelta
) -> RelocationDecision:
    """What follows as if it were still where it was moved to; where nothing else does, it has to be there again."""
    decision = decide(record, replace(seen, location=record.latest.location, token=record.latest.token), waited, grace)
    if decision.action is not RelocationAction.NOTHING:
        return decision
    if (here := inspect_current_location(record, seen.locations[record.latest.location])).change in (
        LocationChange.IN_PROGRESS,
        LocationChange.EMPTIED,
    ):
        return _wait(here.reason, waited, grace)
    what = partition_label(record.partition)
    if (seen.location, seen.token) in record.earlier_locations:
        reason = f"{what} was written back as it was before a move"
    else:
        reason = f"{what} was pointed back at {location_label(seen.location or '')}, which a move had left, as Flink's sink does"
    return replace(decision, action=RelocationAction.REAPPLY, reason=reason)


def _decide_changed(
    changed: Sequence[LocationFinding],
    here: LocationFinding,
    record: RelocatedPartition,
    seen: PartitionState,
    waited: timedelta,
    grace: timedelta,
) -> RelocationDecision:
    """What follows where writers have added to former places, or overwritten them, and all of them have ended."""
    assert seen.location is not None
    overwritten = [one for one in changed if one.change is LocationChange.OVERWRITTEN]
    if len(overwritten) > 1:
        return _halt(_both_overwritten(overwritten[0].location, overwritten[1].location))
    late = {file: came for one in changed for file, came in one.late_files.items()}
    if here.change is LocationChange.OVERWRITTEN:
        began = overwrite_start_ms(here.late_files)
        # Of a place that was removed with all that is above, what is there now may have been added or be all there is.
        is_later = all(latest_arrival_ms(*item, seen) < began for one in overwritten for item in one.late_files.items())
        if overwritten and (seen.locations[seen.location].is_tree_removed or not is_later):
            return _halt(_both_overwritten(overwritten[0].location, seen.location))
        if untold := ambiguous_order(late, began, seen.location, seen):
            return _halt(untold)
        decision = _decide_copy(late, began, f"{location_label(seen.location)} was overwritten")
        there = {file.path for file in seen.locations[seen.location].files}
        begun = [carry for carry in record.late_copies if not carry.is_done and carry.target in there]
        return replace(
            decision, copies_to_remove=tuple(one.target for one in begun if one.source in decision.superseded_files)
        )
    if not overwritten:
        return _decide_copy(
            late, None, f"files were added to {location_label(changed[0].location)} after the partition had left it"
        )
    if waits := unready_reason(here.late_files, seen.locations[seen.location]):
        return _wait(waits, waited, grace)
    return _decide_relocate_back(overwritten[0], late, seen, record)


def decide_by_choice(record: RelocatedPartition, state: PartitionState, choice: LocationChoice) -> RelocationDecision:
    """What follows where a person has said which place holds the rows, of a partition that nothing else tells of.

    The other one's files are kept aside. A halt is what not even that answers.
    """
    if reverted_by_writer(record, state) is not None:
        state = replace(state, location=record.latest.location, token=record.latest.token)
    changed = [] if _decide_elsewhere(record, state) is not None else changed_previous_locations(record, state)
    if not changed:
        return _decide_elsewhere(record, state) or _do_nothing("nobody has written to its former places")
    assert state.location is not None
    late = {file: came for one in changed for file, came in one.late_files.items()}
    if choice is LocationChoice.CURRENT:
        return RelocationDecision(
            action=RelocationAction.NOTHING,
            reason=f"{location_label(state.location)} was taken",
            superseded_files=_sorted_by_path(late),
        )
    if len(changed) > 1:
        both, here = (
            f"{location_label(changed[0].location)} and {location_label(changed[1].location)}",
            location_label(state.location),
        )
        return _halt(
            f"writers changed both {both}, and --take old can't take two: put the files that should be read into "
            f"{here}, then --take new"
        )
    published = frozenset(record.latest.files)
    aside = [file for file in state.locations[state.location].files if file not in published]
    place = changed[0].location
    return RelocationDecision(
        action=RelocationAction.RELOCATE_BACK,
        reason=f"{location_label(place)} was taken",
        target_location=place,
        superseded_files=_sorted_by_path(aside),
    )


def decide_restore_location(record: RelocatedPartition, state: PartitionState) -> RelocationDecision:
    """Whether a partition moves with all its files into the directory that was its own, which has to be empty."""
    decision = decide(record, state, timedelta())
    home = record.original_location
    if (
        decision.action is not RelocationAction.NOTHING
        or decision.superseded_files
        or _decide_elsewhere(record, state) is not None
    ):
        return decision if decision.action is not RelocationAction.NOTHING else _do_nothing(decision.reason)
    if state.location is None or state.location == home:
        return _do_nothing(f"{partition_label(record.partition)} is at home")
    targets = {carry.target for carry in record.late_copies if not carry.is_done}
    there = [file for file in state.locations[home].files if file.path not in targets]
    if there:
        reason = f"{len(there)} files are in {location_label(home)} until their retention has passed"
        return RelocationDecision(action=RelocationAction.WAIT, reason=reason)
    here = state.locations[state.location]
    if waits := unready_reason(here.files, here):
        return RelocationDecision(action=RelocationAction.WAIT, reason=waits)
    # An overwrite that is between removing files and naming new ones would be left behind, in an empty place.
    if (looked := inspect_current_location(record, here)).change is LocationChange.IN_PROGRESS:
        return RelocationDecision(action=RelocationAction.WAIT, reason=looked.reason)
    return RelocationDecision(
        action=RelocationAction.RELOCATE_BACK,
        reason=f"{partition_label(record.partition)} goes home",
        target_location=home,
        files_to_copy=_sorted_by_path(here.files),
    )


def orphaned_inputs(record: RelocatedPartition, state: PartitionState) -> tuple[LocatedFile, ...]:
    """Replaced files in the own directory of a partition that was dropped: whoever adds it again would read them.

    Where its owner has added it they are read already. Of a partition that only lost its properties nothing is. While
    another table or partition is read from there they stay.
    """
    anew = (
        state.token is None
        and state.location == record.original_location
        and state.created_at != record.latest.partition_created_at
    )
    if (state.location is not None and not anew) or _is_exchanged(record, state):
        return ()
    if (there := state.locations.get(record.original_location)) is not None and there.read_by is not None:
        return ()
    own = [former for former in record.previous_locations if former.location == record.original_location]
    return tuple(file for former in own for file in former.expected_files if file.directory == record.original_location)


def _is_exchanged(record: RelocatedPartition, seen: PartitionState) -> bool:
    """Whether somebody has taken a partition out of the catalog together with its own directory, and left its rows.

    Hive's ``EXCHANGE PARTITION`` does: it renames the directory that has the partition's name, wherever that is read
    from. Whoever drops a partition deletes where it is read from, or nothing.
    """
    if seen.location is not None or record.original_location not in seen.locations:
        return False
    return seen.locations[record.original_location].is_missing and bool(seen.locations[record.latest.location].files)


def _decide_elsewhere(record: RelocatedPartition, seen: PartitionState) -> RelocationDecision | None:
    """What follows where a partition is not as its last move left it; None where it is."""
    last = record.latest
    if _is_exchanged(record, seen):
        return _halt(
            f"{partition_label(record.partition)} is not in the catalog, nor is {location_label(record.original_location)} there, "
            f"as after EXCHANGE PARTITION: its rows are in {location_label(last.location)}. Put them where they should be read"
        )
    if seen.location is None:
        return _do_nothing(f"{partition_label(record.partition)} is not in the catalog")
    # At home, too, and where its owner added its last version by LOCATION.
    if seen.token is None and (seen.location != last.location or seen.created_at != last.partition_created_at):
        return _do_nothing(f"{partition_label(record.partition)} was made anew")
    if seen.token != last.token:
        decision = _halt(
            f"{partition_label(record.partition)} names {seen.token or 'no move'}, and its last move is {last.token}: an "
            "executor that slept has moved it, or another lakefold did"
        )
        return replace(decision, concerns_table=True)
    if seen.location != last.location:
        if any(seen.location == former.location for former in record.previous_locations):
            return _halt(
                f"{partition_label(record.partition)} was dropped and added again at {location_label(seen.location)} with the properties "
                f"of its last move, {last.token}, to {location_label(last.location)}: drop it and add it again without its "
                "lakefold.* properties, and with the LOCATION that holds its rows"
            )
        return _do_nothing(
            f"{partition_label(record.partition)} was moved to {location_label(seen.location)} by its owner"
        )
    return None


def _decide_copy(late: Mapping[LocatedFile, int], overwritten_from: int | None, reason: str) -> RelocationDecision:
    aside = arrived_before(late, overwritten_from)
    files = tuple(_sorted_by_path(file for file in late if file not in aside))
    return RelocationDecision(
        action=RelocationAction.COPY_LATE_FILES if files else RelocationAction.NOTHING,
        reason=reason,
        files_to_copy=files,
        superseded_files=_sorted_by_path(aside),
    )


def _decide_relocate_back(
    over: LocationFinding, late: Mapping[LocatedFile, int], seen: PartitionState, record: RelocatedPartition
) -> RelocationDecision:
    """The overwrite of a former place wins; what else was written goes along, unless it is older or there already.

    An overwrite removes the files that it has listed, which one that came and was carried just then is not.
    """
    assert seen.location is not None
    published = frozenset(record.latest.files)
    others = {file: came for file, came in seen.locations[seen.location].files.items() if file not in published}
    others |= {file: came for file, came in late.items() if file not in over.late_files}
    there = seen.locations[over.location].files
    copies = frozenset(carry.target for carry in record.late_copies if carry.source in there)
    unclear = {file: came for file, came in others.items() if file.path not in copies}
    if untold := ambiguous_order(unclear, overwrite_start_ms(over.late_files), over.location, seen):
        return _halt(untold)
    aside = arrived_before(others, overwrite_start_ms(over.late_files)) | {
        file for file in others if file.path in copies
    }
    return RelocationDecision(
        action=RelocationAction.RELOCATE_BACK,
        reason=f"{location_label(over.location)} was overwritten by a writer that began before the partition left it",
        target_location=over.location,
        files_to_copy=_sorted_by_path(file for file in others if file not in aside),
        superseded_files=_sorted_by_path(aside),
    )


def _decide_modified(
    regrown: Sequence[LocationFinding],
    changed: Sequence[LocationFinding],
    record: RelocatedPartition,
    seen: PartitionState,
) -> RelocationDecision:
    """What follows where files of former places were filled under their names, or written again, and nothing is gone.

    A file is its name in its directory, and what is there now is all of it. So its copy is replaced. Where a rewrite
    took it, its rows can't be told from others any more: the partition moves back to where all its files still are.
    """
    replaced = []
    for one in regrown:
        for old, new in one.modified.items():
            copy = find_copy(record, old, seen)
            if copy is None:
                return _decide_undo(one, old, new, changed, record, seen)
            if (copy.bytes, copy.modified_ms) not in ((old.bytes, old.modified_ms), (new.bytes, new.modified_ms)):
                return _halt(f"{new.path} and {copy.path}, which was its copy, were both written again")
            replaced.append(ModifiedFile(recorded=old, current=new, copy_path=copy.path))
    first = min(one.current.path for one in replaced)
    return RelocationDecision(
        action=RelocationAction.REPLACE_COPIES,
        reason=f"{first} grew after it was brought along",
        modified_files=tuple(replaced),
    )


def _decide_undo(
    one: LocationFinding,
    old: LocatedFile,
    new: LocatedFile,
    changed: Sequence[LocationFinding],
    record: RelocatedPartition,
    seen: PartitionState,
) -> RelocationDecision:
    """Move back to the place that the last move left, of which the move took a file that was written again since."""
    what = f"{new.path} has {new.bytes} bytes after a rewrite had taken it with {old.bytes}"
    last = next((former for former in record.previous_locations if former.token == record.latest.token), None)
    if last is None or last.location != one.location:
        return _halt(f"{what}, and the partition was moved again since: which of its rows are read is not known")
    if last.possible_files:
        return _halt(f"{what}, and others that it replaced are deleted: which of its rows are read is not known")
    if sum(finding.change is LocationChange.MODIFIED for finding in changed) > 1:
        return _halt(f"{what}, and so were files of another place")
    assert seen.location is not None
    published, there = frozenset(record.latest.files), {file.path for file in seen.locations[one.location].files}
    others = {file for file in seen.locations[seen.location].files if file not in published}
    others |= {file for finding in changed if finding is not one for file in finding.late_files}
    again = {carry.target for carry in record.late_copies if carry.source.path in there}
    return RelocationDecision(
        action=RelocationAction.RELOCATE_BACK,
        reason=f"{what}: {location_label(one.location)} holds all of it",
        target_location=one.location,
        files_to_copy=_sorted_by_path(file for file in others if file.path not in again),
        superseded_files=_sorted_by_path(file for file in others if file.path in again),
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
