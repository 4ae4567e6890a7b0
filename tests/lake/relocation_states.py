# SPDX-License-Identifier: Apache-2.0
"""Records and states of one relocated partition, for tests of the sweep's decisions.

The partition was relocated from ``original`` to ``current``. Paths begin with the name of their location.
"""

from dataclasses import replace
from datetime import timedelta

from lake.plan import LocatedFile, Relocation
from lake.relocation.decide import RelocationDecision, decide
from lake.relocation.model import LateCopy, LocationState, PartitionState, PreviousLocation, RelocatedPartition

TOKEN = "v2"
NO_TIME = timedelta()
#: the times in ms at which files were written: by the plan's inputs, by the plan, and by writers earlier or later
INPUTS, PUBLISHED, EARLY, LATE = 1, 10, 20, 30


def file(path: str, at: int) -> LocatedFile:
    return LocatedFile(path=path, bytes=8, modified_ms=at)


def location_with(*files: LocatedFile) -> LocationState:
    return LocationState(files={one: one.modified_ms for one in files})


def two_files(location: str, at: int) -> tuple[LocatedFile, ...]:
    return file(f"{location}/0", at), file(f"{location}/1", at)


def relocated(*previous: PreviousLocation, late_copies: tuple[LateCopy, ...] = ()) -> RelocatedPartition:
    last = Relocation(
        partition="p",
        token=TOKEN,
        previous_location="original",
        location="current",
        files=two_files("current", PUBLISHED),
    )
    return RelocatedPartition(latest=last, previous_locations=previous, late_copies=late_copies)


def partition_at(
    location: str | None = "current", token: str | None = TOKEN, **locations: LocationState
) -> PartitionState:
    return PartitionState(location=location, token=token, locations=locations)


PREVIOUS = PreviousLocation(location="original", expected_files=two_files("original", INPUTS))
UNCHANGED = location_with(*PREVIOUS.expected_files)
PUBLISHED_FILES = location_with(*two_files("current", PUBLISHED))
LATE_FILE = file("original/new", EARLY)


def decision_for(
    original: LocationState,
    current: LocationState = PUBLISHED_FILES,
    previous: PreviousLocation = PREVIOUS,
    waited: timedelta = NO_TIME,
) -> RelocationDecision:
    return decide(relocated(previous), partition_at(original=original, current=current), waited)


def grown_file(one: LocatedFile, at: int = LATE) -> LocatedFile:
    return replace(one, bytes=one.bytes * 2, modified_ms=at)


def late_files(previous: PreviousLocation, there: LocationState) -> set[LocatedFile]:
    return set(there.files) - set(previous.expected_files)


def missing_files(previous: PreviousLocation, there: LocationState) -> set[LocatedFile]:
    return set(previous.expected_files) - set(there.files)
