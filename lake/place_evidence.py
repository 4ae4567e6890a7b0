# SPDX-License-Identifier: Apache-2.0
"""Tells from the files found what writers have done to the places of a moved partition."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from lake.moved import Former, Moved, PartitionSeen, PlaceSeen, Unready
from lake.plan import PlacedFile


class State(StrEnum):
    """What writers did to a place, as far as its files tell."""

    QUIET = "quiet"  #: no recorded file is missing; in a former place, no other one is there
    APPENDED = "appended"  #: files were added to a former place
    REGROWN = "regrown"  #: some recorded files were filled or written again, each under its name
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
    #: recorded files that are gone, each with the file that is under its name now
    regrown: Mapping[PlacedFile, PlacedFile] = field(default_factory=lambda: MappingProxyType({}))
    #: whether its writer is known to be at work
    is_written: bool = False


def changed_formers(record: Moved, seen: PartitionSeen) -> list[Finding]:
    """The former places that somebody has changed, each with how."""
    looked = [_look_at_former(former, seen, record) for former in record.former if former.place != seen.place]
    return [one for one in looked if one.state is not State.QUIET]


def look_here(record: Moved, there: PlaceSeen, formers: Iterable[Finding] = ()) -> Finding:
    """What somebody did to the place where the partition is; ``late`` are its files that lakefold did not bring.

    A file that was filled in one of the ``formers`` may be the same one here, under a second name.
    """
    place = record.last.place
    targets = {carry.target for carry in record.carries}
    published = frozenset(record.last.files)
    same = {(new.bytes, new.modified_ms) for one in formers for new in one.regrown.values()}
    filled = {file.path for file in there.files if file not in published and (file.bytes, file.modified_ms) in same}
    late = {
        file: came
        for file, came in there.files.items()
        if file not in published and file.path not in targets and file.path not in filled
    }
    gone = [file for file in record.last.files if file not in there.files and file.path not in filled]
    if not gone:
        return Finding(place=place, state=State.QUIET, late=late)
    if reason := unready(late, there):
        is_written = _is_written(late, there)
        return Finding(place=place, state=State.UNSETTLED, reason=reason, is_written=is_written)
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


def unready(late: Iterable[PlacedFile], there: PlaceSeen) -> str | None:
    """The first of these files that is not to be taken yet, in words; None without one."""
    path = min((file.path for file in late if file.path in there.unready), default=None)
    return None if path is None else f"{path} {there.unready[path]}"


def copy_of(record: Moved, old: PlacedFile, seen: PartitionSeen) -> PlacedFile | None:
    """The file as which one of a former place is read where the partition is; None where a rewrite took it, or nothing.

    It has the name of the copy that was made of it, else its own: under that a commit brings it along.
    """
    place = record.last.place
    names = {carry.target.rpartition("/")[2] for carry in record.carries if carry.done and carry.source == old}
    brought = {file.path for file in record.last.files} | {carry.target for carry in record.carries}
    wanted = brought & {f"{place}/{name}" for name in names or {old.name}}
    return next((file for file in seen.places[place].files if file.path in wanted), None)


def _is_written(late: Iterable[PlacedFile], there: PlaceSeen) -> bool:
    """Whether the writer of one of these files is at work, as far as its last change tells."""
    return Unready.WRITING in {there.unready.get(file.path) for file in late}


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
    gone = [] if there.is_cleaned else [file for file in former.inputs if file not in there.files]
    if not late and not gone:
        return Finding(place=place, state=State.QUIET)
    waits = {file for file in late if file.path in there.unready}
    is_at_work = {there.unready[file.path] for file in waits} & {Unready.NESTED, Unready.WRITING}
    if waits and (gone or is_at_work):
        reason = unready(waits, there) or ""
        is_written = _is_written(late, there)
        return Finding(place=place, state=State.UNSETTLED, reason=reason, late=late, is_written=is_written)
    late = {file: came for file, came in late.items() if file not in waits}
    # A carry is done, too, whose source was gone before it was copied.
    again = {file.path for file in late}
    left = {one for one in sources - set(former.released) if one.path in again and one not in there.files}
    copied = {one for one in left if copy_of(record, one, seen) is not None}
    missing = {file.path: file for file in (*copied, *gone)}
    regrown = {missing[file.path]: file for file in late if file.path in missing}
    if not late and not gone:
        return Finding(place=place, state=State.QUIET)
    count = f"{len(gone)} of {len(former.inputs)} files of {named(place)} are gone"
    if not late:
        state = State.CLEARED if len(gone) == len(former.inputs) else State.UNSETTLED
        return Finding(place=place, state=state, reason=f"{count}, and nothing new is there")
    # All that was there at once is an overwrite, whatever the names of its files.
    is_part = len(gone) < len(former.inputs) or (former.released and sources.issuperset(gone))
    if regrown and is_part and set(gone) <= regrown.keys():
        return Finding(place=place, state=State.REGROWN, late=late, regrown=regrown)
    if not former.inputs or there.is_cleaned or (gone and former.cleaning):
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
