# SPDX-License-Identifier: Apache-2.0
"""Tells from the files found what writers have done to the places of a moved partition."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from lake.moved import Former, Moved, PartitionSeen, PlaceSeen
from lake.plan import PlacedFile


class State(StrEnum):
    """What writers did to a place, as far as its files tell."""

    QUIET = "quiet"  #: no recorded file is missing; in a former place, no other one is there
    APPENDED = "appended"  #: files were added to a former place
    OVERWRITTEN = "overwritten"  #: others are there in the place of all recorded files
    CLEARED = "cleared"  #: the recorded files were removed, and nothing new is there
    UNSETTLED = "unsettled"  #: a writer is at work, or has removed some files and not all
    UNTOLD = "untold"  #: files were added where it is not known any more what they were added to


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The state of one place, with the reason where it is not settled."""

    place: str
    state: State
    reason: str = ""
    #: files that nobody recorded, each with when it came
    late: Mapping[PlacedFile, int] = field(default_factory=lambda: MappingProxyType({}))


def changed_formers(record: Moved, seen: PartitionSeen) -> list[Finding]:
    """The former places that somebody has changed, each with how."""
    looked = [_look_at_former(former, seen, record) for former in record.former if former.place != seen.place]
    return [one for one in looked if one.state is not State.QUIET]


def look_here(record: Moved, there: PlaceSeen) -> Finding:
    """What somebody did to the place where the partition is; ``late`` are its files that lakefold did not bring."""
    place = record.last.place
    targets = {carry.target for carry in record.carries}
    published = frozenset(record.last.files)
    late = {file: came for file, came in there.files.items() if file not in published and file.path not in targets}
    gone = [file for file in record.last.files if file not in there.files]
    if not gone:
        return Finding(place=place, state=State.QUIET, late=late)
    if writing := being_written(late, there):
        return Finding(place=place, state=State.UNSETTLED, reason=writing)
    if late and len(gone) == len(record.last.files):
        return Finding(place=place, state=State.OVERWRITTEN, late=late)
    reason = f"{len(gone)} of {len(record.last.files)} files of {named(place)} are gone, while {len(late)} were added"
    # An overwrite of the place itself would have left what is beside it.
    state = State.CLEARED if there.is_uprooted else State.UNSETTLED
    return Finding(place=place, state=state, reason=reason)


def with_recorded_arrivals(record: Moved, seen: PartitionSeen) -> PartitionSeen:
    """The same with files that were to be carried as young as they had been: a second name makes a file look younger.

    So does the removal of that name, which an overwrite does after it has written its own files.
    """
    recorded = {carry.source: carry.came_ms for carry in record.carries if carry.came_ms is not None}
    if not recorded:
        return seen
    places = {
        place: replace(there, files={file: min(came, recorded.get(file, came)) for file, came in there.files.items()})
        for place, there in seen.places.items()
    }
    return replace(seen, places=places)


def being_written(late: Iterable[PlacedFile], there: PlaceSeen) -> str | None:
    """The first of these files that somebody is still writing, in words; None without one."""
    writing = min((file.path for file in late if file.path in there.unfinished), default=None)
    return None if writing is None else f"{writing} is being written"


def written_before(files: Mapping[PlacedFile, int], overwritten_from: int | None) -> frozenset[PlacedFile]:
    """Those that were there, whole, before an overwrite wrote its first file."""
    if overwritten_from is None:
        return frozenset()
    return frozenset(file for file, came in files.items() if _finished_ms(file, came) < overwritten_from)


def began_ms(late: Mapping[PlacedFile, int]) -> int:
    """When an overwrite wrote its first file, in milliseconds."""
    return min(file.modified_ms for file in late)


def latest_ms(file: PlacedFile, came: int, seen: PartitionSeen) -> int:
    """When a file was under its name at the latest, in milliseconds."""
    return max(_finished_ms(file, came), seen.places[file.directory].changed_ms or 0)


def untold_order(files: Mapping[PlacedFile, int], began: int, place: str, seen: PartitionSeen) -> str | None:
    """The first file that may have come before an overwrite of ``place`` began or after, in words; None without one."""
    untold = [file for file, came in files.items() if _finished_ms(file, came) < began <= latest_ms(file, came, seen)]
    if not untold:
        return None
    path, then = min(file.path for file in untold), f"{named(place)} was overwritten"
    return f"its file system does not tell whether {path} came before {then}: which one is later?"


def named(place: str) -> str:
    """A place in words."""
    return place or "the table's own directory"


def _look_at_former(former: Former, seen: PartitionSeen, record: Moved) -> Finding:
    """What somebody did to a former place. Copies of ours in it, such as a sleeper's, are nobody's rows."""
    place, there = former.place, seen.places[former.place]
    # One that was recorded and not copied is decided anew: an overwrite may have come between.
    sources = {carry.source for carry in record.carries if carry.done}
    targets = {carry.target.rpartition("/")[2] for carry in record.carries}
    recorded = frozenset((*former.inputs, *former.released))
    late = {
        file: came
        for file, came in there.files.items()
        if file not in recorded and file not in sources and file.name not in targets
    }
    if former.made_at not in (None, record.last.made_at):
        # Of a partition that was dropped since: what had come before it was made anew was dropped with it.
        anew = record.last.made_at * 1000
        late = {file: came for file, came in late.items() if latest_ms(file, came, seen) >= anew}
    gone = [file for file in former.inputs if file not in there.files]
    if not late and not gone:
        return Finding(place=place, state=State.QUIET)
    if writing := being_written(late, there):
        return Finding(place=place, state=State.UNSETTLED, reason=writing, late=late)
    count = f"{len(gone)} of {len(former.inputs)} files of {named(place)} are gone"
    if not late:
        state = State.CLEARED if len(gone) == len(former.inputs) else State.UNSETTLED
        return Finding(place=place, state=state, reason=f"{count}, and nothing new is there")
    if not former.inputs or (gone and former.cleaning):
        after = "after lakefold began to delete there: they replace the rest, or add"
        reason = f"files were written to {named(place)} {after}"
        return Finding(place=place, state=State.UNTOLD, reason=reason, late=late)
    if not gone:
        return Finding(place=place, state=State.APPENDED, late=late)
    if len(gone) < len(former.inputs):
        return Finding(place=place, state=State.UNSETTLED, reason=f"{count}, and files were added", late=late)
    return Finding(place=place, state=State.OVERWRITTEN, late=late)


def _finished_ms(file: PlacedFile, came: int) -> int:
    return max(file.modified_ms, came)
