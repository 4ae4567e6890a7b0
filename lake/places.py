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

from lake.model import words_of
from lake.moved import Moved, PartitionSeen, Regrown
from lake.place_evidence import (
    Finding,
    State,
    began_ms,
    changed_formers,
    copy_of,
    latest_ms,
    look_here,
    named,
    unready,
    untold_order,
    with_recorded_arrivals,
    written_before,
)
from lake.plan import PlacedFile
from lake.units import format_duration

WRITER_GRACE = timedelta(hours=1)
"""How long files of a former place may be gone, with nothing new, until a person has to say what that means."""


class Take(StrEnum):
    """Which place a person says to hold a partition's rows."""

    OLD = "old"  #: the one that it had left, and that a writer has changed
    NEW = "new"  #: the one where it is


class Action(StrEnum):
    """What to do about a partition's former places."""

    NOTHING = "nothing"
    REPLACE = "replace"  #: a writer filled a file under its name, or wrote it again: so is its copy
    CARRY = "carry"  #: writers added files to a former place: copy them to where the partition is
    RESTORE = "restore"  #: somebody has written back where the partition was before its last move: move it again
    MOVE_BACK = "move back"  #: a writer overwrote a former place: the partition is there again
    WAIT = "wait"  #: a writer is at work, or one that wrote nothing has ended: look again
    HALT = "halt"  #: nobody but a person can tell; keep everything


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """An action and why. ``files`` are copied to where the partition then is.

    ``aside`` are files that an overwrite which came later has removed, as far as readers go: they stay where they are
    until their retention has passed. ``place`` is where the partition moves back to. ``cleared`` are former places
    that an overwrite of another place has emptied: nothing is expected there any more. ``revoked`` are copies of files
    set aside which the overwrite has not met: a round made them while it was at work. ``of_table``: what halts says
    something of all partitions, such as that another lakefold moves them. ``regrown`` are files whose copies take the
    place of shorter ones.
    """

    action: Action
    reason: str = ""
    files: tuple[PlacedFile, ...] = ()
    aside: tuple[PlacedFile, ...] = ()
    place: str | None = None
    cleared: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()
    of_table: bool = False
    regrown: tuple[Regrown, ...] = ()


def decide(record: Moved, seen: PartitionSeen, waited: timedelta, grace: timedelta = WRITER_GRACE) -> Decision:
    """The action for one moved partition. ``waited``: how long it has been unsettled.

    ``seen.places`` has every place of ``record.places``; else KeyError. Whatever the evidence can't tell is a halt, and
    never a guess: then all files stay, and readers read on where they do.
    """
    seen = with_recorded_arrivals(record, seen)
    if written_back(record, seen) is not None:
        return _restored(record, seen, waited, grace)
    elsewhere = _elsewhere(record, seen)
    if elsewhere is not None:
        return elsewhere
    changed = changed_formers(record, seen)
    if not changed:
        return _nothing("nobody has written to its former places")
    assert seen.place is not None
    untold = [one for one in changed if one.state is State.UNTOLD]
    if untold:
        return _halt(untold[0].reason)
    here = look_here(record, seen.places[seen.place], changed)
    cleared = [one for one in (*changed, here) if one.state is State.CLEARED]
    is_overwritten = any(one.state is State.OVERWRITTEN for one in (*changed, here))
    unsettled = [one for one in (*changed, here) if one.state is State.UNSETTLED]
    if writing := next((one.reason for one in unsettled if one.is_written), None):
        return Decision(action=Action.WAIT, reason=writing)  # for as long as its writer goes on
    # Spark empties a partition's own directory too, wherever the partition is, and of a whole table all there is: with
    # the table's own directory, where one without partitions was, also every version in it.
    if unsettled := unsettled or ([] if is_overwritten else cleared):
        return _wait(unsettled[0].reason, waited, grace)
    changed = [one for one in changed if one.state is not State.CLEARED]
    regrown = [one for one in changed if one.state is State.REGROWN]
    if regrown and here.state is State.QUIET and not is_overwritten:
        return _follow(regrown, changed, record, seen)
    return replace(
        _of_the_written(changed, here, record, seen, waited, grace),
        cleared=tuple(one.place for one in cleared if one is not here),
    )


def is_untouched(record: Moved, seen: PartitionSeen) -> bool:
    """Whether nothing is to be done about a partition, as far as the former places of ``record`` tell.

    It is where its last move left it, nothing is waited for or to be finished, and no writer was in these places.
    """
    is_open = record.begun or record.unsettled or any(not carry.done for carry in record.carries)
    return not is_open and _is_as_last_moved(record, seen) and not changed_formers(record, seen)


def written_back(record: Moved, seen: PartitionSeen) -> tuple[str, str | None] | None:
    """Place and token of a partition that a writer has put back where it was before a move; None where none has.

    Hive reads a partition when an INSERT begins to bring in its files, and writes all of it back with new counts: both
    are as they were before the move. Flink reads it when it has brought them in, sets the location that follows from
    the table's directory, and keeps all properties: then a former location is named together with a later token. An
    owner who moves a partition names another location; a partition that is dropped and added again has another age.
    """
    if seen.place is None or seen.made_at != record.last.made_at or _is_as_last_moved(record, seen):
        return None
    if (seen.place, seen.token) in record.earlier:
        return seen.place, seen.token
    tokens = {record.last.token, *(token for _, token in record.earlier)}
    formers = {former.place for former in record.former}
    return (seen.place, seen.token) if seen.token in tokens - {None} and seen.place in formers else None


def _is_as_last_moved(record: Moved, seen: PartitionSeen) -> bool:
    return (seen.place, seen.token) == (record.last.place, record.last.token)


def _restored(record: Moved, seen: PartitionSeen, waited: timedelta, grace: timedelta) -> Decision:
    """What follows as if it were still where it was moved to; where nothing else does, it has to be there again."""
    decision = decide(record, replace(seen, place=record.last.place, token=record.last.token), waited, grace)
    if decision.action is not Action.NOTHING:
        return decision
    if (here := look_here(record, seen.places[record.last.place])).state in (State.UNSETTLED, State.CLEARED):
        return _wait(here.reason, waited, grace)
    what = words_of(record.partition)
    if (seen.place, seen.token) in record.earlier:
        reason = f"{what} was written back as it was before a move"
    else:
        reason = f"{what} was pointed back at {named(seen.place or '')}, which a move had left, as Flink's sink does"
    return replace(decision, action=Action.RESTORE, reason=reason)


def _of_the_written(
    changed: Sequence[Finding],
    here: Finding,
    record: Moved,
    seen: PartitionSeen,
    waited: timedelta,
    grace: timedelta,
) -> Decision:
    """What follows where writers have added to former places, or overwritten them, and all of them have ended."""
    assert seen.place is not None
    overwritten = [one for one in changed if one.state is State.OVERWRITTEN]
    if len(overwritten) > 1:
        return _halt(_both(overwritten[0].place, overwritten[1].place))
    late = {file: came for one in changed for file, came in one.late.items()}
    if here.state is State.OVERWRITTEN:
        began = began_ms(here.late)
        # Of a place that was removed with all that is above, what is there now may have been added or be all there is.
        is_later = all(latest_ms(*item, seen) < began for one in overwritten for item in one.late.items())
        if overwritten and (seen.places[seen.place].is_uprooted or not is_later):
            return _halt(_both(overwritten[0].place, seen.place))
        if untold := untold_order(late, began, seen.place, seen):
            return _halt(untold)
        decision = _carry(late, began, f"{named(seen.place)} was overwritten")
        there = {file.path for file in seen.places[seen.place].files}
        begun = [carry for carry in record.carries if not carry.done and carry.target in there]
        return replace(decision, revoked=tuple(one.target for one in begun if one.source in decision.aside))
    if not overwritten:
        return _carry(late, None, f"files were added to {named(changed[0].place)} after the partition had left it")
    if waits := unready(here.late, seen.places[seen.place]):
        return _wait(waits, waited, grace)
    return _move_back(overwritten[0], late, seen, record)


def resolve(record: Moved, seen: PartitionSeen, take: Take) -> Decision:
    """What follows where a person has said which place holds the rows, of a partition that nothing else tells of.

    The other one's files are kept aside. A halt is what not even that answers.
    """
    if written_back(record, seen) is not None:
        seen = replace(seen, place=record.last.place, token=record.last.token)
    changed = [] if _elsewhere(record, seen) is not None else changed_formers(record, seen)
    if not changed:
        return _elsewhere(record, seen) or _nothing("nobody has written to its former places")
    assert seen.place is not None
    late = {file: came for one in changed for file, came in one.late.items()}
    if take is Take.NEW:
        return Decision(action=Action.NOTHING, reason=f"{named(seen.place)} was taken", aside=_sorted(late))
    if len(changed) > 1:
        both, here = f"{named(changed[0].place)} and {named(changed[1].place)}", named(seen.place)
        return _halt(
            f"writers changed both {both}, and --take old can't take two: put the files that should be read into "
            f"{here}, then --take new"
        )
    published = frozenset(record.last.files)
    aside = [file for file in seen.places[seen.place].files if file not in published]
    place = changed[0].place
    return Decision(action=Action.MOVE_BACK, reason=f"{named(place)} was taken", place=place, aside=_sorted(aside))


def go_home(record: Moved, seen: PartitionSeen) -> Decision:
    """Whether a partition moves with all its files into the directory that was its own, which has to be empty."""
    decision = decide(record, seen, timedelta())
    home = record.home
    if decision.action is not Action.NOTHING or decision.aside or _elsewhere(record, seen) is not None:
        return decision if decision.action is not Action.NOTHING else _nothing(decision.reason)
    if seen.place is None or seen.place == home:
        return _nothing(f"{words_of(record.partition)} is at home")
    targets = {carry.target for carry in record.carries if not carry.done}
    there = [file for file in seen.places[home].files if file.path not in targets]
    if there:
        reason = f"{len(there)} files are in {named(home)} until their retention has passed"
        return Decision(action=Action.WAIT, reason=reason)
    here = seen.places[seen.place]
    if waits := unready(here.files, here):
        return Decision(action=Action.WAIT, reason=waits)
    # An overwrite that is between removing files and naming new ones would be left behind, in an empty place.
    if (looked := look_here(record, here)).state is State.UNSETTLED:
        return Decision(action=Action.WAIT, reason=looked.reason)
    return Decision(
        action=Action.MOVE_BACK, reason=f"{words_of(record.partition)} goes home", place=home, files=_sorted(here.files)
    )


def left_behind(record: Moved, seen: PartitionSeen) -> tuple[PlacedFile, ...]:
    """Replaced files in the own directory of a partition that was dropped: whoever adds it again would read them.

    Where its owner has added it they are read already. Of a partition that only lost its properties nothing is. While
    another table or partition is read from there they stay.
    """
    anew = seen.token is None and seen.place == record.home and seen.made_at != record.last.made_at
    if (seen.place is not None and not anew) or _is_taken_away(record, seen):
        return ()
    if (there := seen.places.get(record.home)) is not None and there.read_by is not None:
        return ()
    own = [former for former in record.former if former.place == record.home]
    return tuple(file for former in own for file in former.inputs if file.directory == record.home)


def _is_taken_away(record: Moved, seen: PartitionSeen) -> bool:
    """Whether somebody has taken a partition out of the catalog together with its own directory, and left its rows.

    Hive's ``EXCHANGE PARTITION`` does: it renames the directory that has the partition's name, wherever that is read
    from. Whoever drops a partition deletes where it is read from, or nothing.
    """
    if seen.place is not None or record.home not in seen.places:
        return False
    return seen.places[record.home].is_gone and bool(seen.places[record.last.place].files)


def _elsewhere(record: Moved, seen: PartitionSeen) -> Decision | None:
    """What follows where a partition is not as its last move left it; None where it is."""
    last = record.last
    if _is_taken_away(record, seen):
        return _halt(
            f"{words_of(record.partition)} is not in the catalog, nor is {named(record.home)} there, "
            f"as after EXCHANGE PARTITION: its rows are in {named(last.place)}. Put them where they should be read"
        )
    if seen.place is None:
        return _nothing(f"{words_of(record.partition)} is not in the catalog")
    # At home, too, and where its owner added its last version by LOCATION.
    if seen.token is None and (seen.place != last.place or seen.made_at != last.made_at):
        return _nothing(f"{words_of(record.partition)} was made anew")
    if seen.token != last.token:
        decision = _halt(
            f"{words_of(record.partition)} names {seen.token or 'no move'}, and its last move is {last.token}: an "
            "executor that slept has moved it, or another lakefold did"
        )
        return replace(decision, of_table=True)
    if seen.place != last.place:
        if any(seen.place == former.place for former in record.former):
            return _halt(
                f"{words_of(record.partition)} was dropped and added again at {named(seen.place)} with the properties "
                f"of its last move, {last.token}, to {named(last.place)}: drop it and add it again without its "
                "lakefold.* properties, and with the LOCATION that holds its rows"
            )
        return _nothing(f"{words_of(record.partition)} was moved to {named(seen.place)} by its owner")
    return None


def _carry(late: Mapping[PlacedFile, int], overwritten_from: int | None, reason: str) -> Decision:
    aside = written_before(late, overwritten_from)
    files = tuple(_sorted(file for file in late if file not in aside))
    return Decision(action=Action.CARRY if files else Action.NOTHING, reason=reason, files=files, aside=_sorted(aside))


def _move_back(over: Finding, late: Mapping[PlacedFile, int], seen: PartitionSeen, record: Moved) -> Decision:
    """The overwrite of a former place wins; what else was written goes along, unless it is older or there already.

    An overwrite removes the files that it has listed, which one that came and was carried just then is not.
    """
    assert seen.place is not None
    published = frozenset(record.last.files)
    others = {file: came for file, came in seen.places[seen.place].files.items() if file not in published}
    others |= {file: came for file, came in late.items() if file not in over.late}
    there = seen.places[over.place].files
    copies = frozenset(carry.target for carry in record.carries if carry.source in there)
    unclear = {file: came for file, came in others.items() if file.path not in copies}
    if untold := untold_order(unclear, began_ms(over.late), over.place, seen):
        return _halt(untold)
    aside = written_before(others, began_ms(over.late)) | {file for file in others if file.path in copies}
    return Decision(
        action=Action.MOVE_BACK,
        reason=f"{named(over.place)} was overwritten by a writer that began before the partition left it",
        place=over.place,
        files=_sorted(file for file in others if file not in aside),
        aside=_sorted(aside),
    )


def _follow(regrown: Sequence[Finding], changed: Sequence[Finding], record: Moved, seen: PartitionSeen) -> Decision:
    """What follows where files of former places were filled under their names, or written again, and nothing is gone.

    A file is its name in its directory, and what is there now is all of it. So its copy is replaced. Where a rewrite
    took it, its rows can't be told from others any more: the partition moves back to where all its files still are.
    """
    replaced = []
    for one in regrown:
        for old, new in one.regrown.items():
            copy = copy_of(record, old, seen)
            if copy is None:
                return _undo(one, old, new, changed, record, seen)
            if (copy.bytes, copy.modified_ms) not in ((old.bytes, old.modified_ms), (new.bytes, new.modified_ms)):
                return _halt(f"{new.path} and {copy.path}, which was its copy, were both written again")
            replaced.append(Regrown(old=old, new=new, copy=copy.path))
    first = min(one.new.path for one in replaced)
    return Decision(action=Action.REPLACE, reason=f"{first} grew after it was brought along", regrown=tuple(replaced))


def _undo(
    one: Finding, old: PlacedFile, new: PlacedFile, changed: Sequence[Finding], record: Moved, seen: PartitionSeen
) -> Decision:
    """Move back to the place that the last move left, of which the move took a file that was written again since."""
    what = f"{new.path} has {new.bytes} bytes after a rewrite had taken it with {old.bytes}"
    last = next((former for former in record.former if former.token == record.last.token), None)
    if last is None or last.place != one.place:
        return _halt(f"{what}, and the partition was moved again since: which of its rows are read is not known")
    if last.released:
        return _halt(f"{what}, and others that it replaced are deleted: which of its rows are read is not known")
    if sum(finding.state is State.REGROWN for finding in changed) > 1:
        return _halt(f"{what}, and so were files of another place")
    assert seen.place is not None
    published, there = frozenset(record.last.files), {file.path for file in seen.places[one.place].files}
    others = {file for file in seen.places[seen.place].files if file not in published}
    others |= {file for finding in changed if finding is not one for file in finding.late}
    again = {carry.target for carry in record.carries if carry.source.path in there}
    return Decision(
        action=Action.MOVE_BACK,
        reason=f"{what}: {named(one.place)} holds all of it",
        place=one.place,
        files=_sorted(file for file in others if file.path not in again),
        aside=_sorted(file for file in others if file.path in again),
    )


def _both(one: str, other: str) -> str:
    return f"{named(one)} and {named(other)} were both overwritten: which one is later?"


def _sorted(files: Iterable[PlacedFile]) -> tuple[PlacedFile, ...]:
    return tuple(sorted(files, key=lambda file: file.path))


def _nothing(reason: str) -> Decision:
    return Decision(action=Action.NOTHING, reason=reason)


def _wait(reason: str, waited: timedelta, grace: timedelta) -> Decision:
    if waited >= grace:
        return _halt(f"{reason}, for longer than {format_duration(grace)}")
    return Decision(action=Action.WAIT, reason=reason)


def _halt(reason: str) -> Decision:
    return Decision(action=Action.HALT, reason=reason)
