# SPDX-License-Identifier: Apache-2.0
"""The locations that a partition's owner has moved it away from, and the sweep's decisions about files there.

Numbers in the names of tests are those of the rules in docs/decisions/0013-moving-a-partition.md.
"""

from dataclasses import replace

import pytest
from relocation_states import (
    EARLY,
    INPUTS,
    LATE,
    LATE_FILE,
    NO_TIME,
    PREVIOUS,
    PUBLISHED_FILES,
    TOKEN,
    file,
    location_with,
    partition_at,
    relocated,
    two_files,
)

from lake.plan import LocatedFile, Relocation
from lake.relocation.decide import (
    WRITER_GRACE,
    LocationChoice,
    RelocationAction,
    decide,
    decide_by_choice,
)
from lake.relocation.evidence import MAX_CLOCK_DIFFERENCE_MS
from lake.relocation.model import LocationState, PartitionState, PreviousLocation, RelocatedPartition, UnreadyReason
from lake.relocation.owner_moves import RenamedHistory, find_owner_moves

V1, V2, V3, V4 = (f".lakefold/v{number}/p" for number in range(1, 5))
OWN, OTHER = "p", "/elsewhere/p"
#: of the compaction that followed the owner's move, in ms; and a time that is later by any clock
MOVED = 25
SINCE = MOVED + MAX_CLOCK_DIFFERENCE_MS
GIVEN_UP = replace(PREVIOUS, owner_moved_ms=MOVED)
FOREIGN = file("original/foreign", SINCE)


@pytest.mark.parametrize(
    ("relocations", "location", "moved_before"),
    [
        ([(OWN, V1)], OWN, {}),
        ([(OWN, V1), (V1, V2), (V2, OWN), (OWN, V3)], OWN, {}),
        ([(OWN, V1), (V2, V3)], OWN, {}),
        ([(OWN, V1), (OTHER, V2)], OTHER, {0: 1}),
        ([(OWN, V1), (V1, V2), (OTHER, V3), (V3, V4)], OTHER, {0: 2, 1: 2}),
        ([(OWN, V1), (OTHER, V2), (OWN, V3)], OWN, {1: 2}),
        ([(OWN, V1), (V1, V2), (OTHER, V3), (OWN, V4)], OWN, {2: 3}),
        ([(OWN, V1), (OTHER, V2), (V2, OWN), (OWN, V3)], OWN, {}),
        ([(V1, V2), (V2, OWN), (OWN, V3)], OWN, {}),
        ([(V1, V2)], None, {}),
    ],
    ids=[
        "compacted once",
        "compacted and restored",
        "with a pruned relocation",
        "moved by its owner",
        "moved by its owner after two compactions",
        "moved back by its owner",
        "moved back by its owner after two compactions",
        "moved back by lakefold, as a person has chosen",
        "renamed and restored",
        "renamed",
    ],
)
def test_relocations_show_where_the_owner_had_moved_the_partition(
    relocations: list[tuple[str, str]], location: str | None, moved_before: dict[int, int]
):
    found = find_owner_moves(relocations)
    assert (found.location, dict(found.moved_before)) == (location, moved_before)


def move(partition: str, previous_location: str, location: str, created_at: int = 1) -> Relocation:
    return Relocation(
        partition=partition,
        token=f"{previous_location}:{location}",
        previous_location=previous_location,
        location=location,
        files=(),
        partition_created_at=created_at,
    )


Q1, Q2, Q3 = (f".lakefold/v{number}/q" for number in range(1, 4))


@pytest.mark.parametrize(
    ("moves", "inserted", "given_up"),
    [
        ([move("p", OWN, V1), move("q", V1, Q2), move("q", Q2, "q"), move("p", "q", V3)], 2, set()),
        ([move("p", OWN, V1), move("q", V1, Q2), move("p", "q", V3)], 0, {V1}),
        ([move("p", OWN, V1), move("q", "q", Q2, 2), move("q", Q2, "q", 2), move("p", "q", V3)], 0, {V1}),
        ([move("p", OWN, V1), move("q", "q", Q2), move("q", Q2, "q"), move("p", "q", V3)], 0, {V1}),
        ([move("p", OWN, V1), move("q", V1, Q2), move("q", Q3, "q"), move("p", "q", V3)], 2, set()),
        ([move("p", OWN, V1), move("q", V1, Q2), move("q", OTHER, Q3), move("p", Q3, V4)], 2, {V1}),
        ([move("p", OWN, V1), move("q", V1, Q2), move("p", V3, V4)], 0, set()),
    ],
    ids=[
        "restored under another name",
        "moved by its owner after it was renamed back",
        "given the directory of a partition of another age",
        "given the directory of a partition of the same age",
        "with a pruned relocation",
        "moved by its owner under another name",
        "moved on under its own name",
    ],
)
def test_rule_2_a_restore_under_another_name_is_no_move_by_the_owner(
    moves: list[Relocation], inserted: int, given_up: set[str]
):
    history = RenamedHistory(moves).of_partition("p")
    found = find_owner_moves([(one.previous_location, one.location) for one in history]).moved_before
    own = [one for one in moves if one.partition == "p"]
    assert len(history) == len(own) + inserted
    assert {history[index].location for index in found if history[index].partition == "p"} == given_up


def there(*files: LocatedFile, reader: str | None = None, **others: LocationState) -> PartitionState:
    state = replace(location_with(*files), read_by=reader)
    return partition_at(original=state, current=PUBLISHED_FILES, **others)


def test_rule_2_files_that_are_gone_after_the_owners_move_were_removed_by_the_owner_and_no_overwrite():
    for files in ((), GIVEN_UP.expected_files[:1], (FOREIGN,), (*GIVEN_UP.expected_files[:1], FOREIGN)):
        decision = decide(relocated(GIVEN_UP), there(*files), WRITER_GRACE)
        assert (decision.action, decision.emptied_locations, decision.superseded_files) == (
            RelocationAction.NOTHING,
            ("original",),
            (),
        )
    assert decide(relocated(PREVIOUS), there(FOREIGN), NO_TIME).action is RelocationAction.RELOCATE_BACK
    middle = PreviousLocation(location="middle", expected_files=two_files("middle", INPUTS))
    late = file("middle/new", LATE)
    decision = decide(relocated(GIVEN_UP, middle), there(middle=location_with(*middle.expected_files, late)), NO_TIME)
    assert (decision.action, decision.files_to_copy, decision.emptied_locations) == (
        RelocationAction.COPY_LATE_FILES,
        (late,),
        ("original",),
    )


@pytest.mark.parametrize("expected", [GIVEN_UP.expected_files, ()], ids=["waiting", "deleted"])
def test_rule_7_files_that_arrive_after_the_owners_move_are_not_the_partitions(expected: tuple[LocatedFile, ...]):
    record = relocated(replace(GIVEN_UP, expected_files=expected))
    for state in (there(*expected, FOREIGN), there(*expected, FOREIGN, reader="q is read from it")):
        decision = decide(record, state, NO_TIME)
        assert (decision.action, decision.released_locations) == (RelocationAction.NOTHING, ())
    grown = replace(FOREIGN, path=GIVEN_UP.expected_files[0].path)
    assert decide(record, there(grown), NO_TIME).action is RelocationAction.NOTHING


@pytest.mark.parametrize("expected", [GIVEN_UP.expected_files, ()], ids=["waiting", "deleted"])
def test_rule_7_files_that_arrived_while_the_owner_moved_the_partition_are_copied_by_no_guess(
    expected: tuple[LocatedFile, ...],
):
    record = relocated(replace(GIVEN_UP, expected_files=expected))
    for files in ((*expected, LATE_FILE), (LATE_FILE,)):
        halt = decide(record, there(*files), NO_TIME)
        assert halt.action is RelocationAction.HALT
        assert "it is unknown whether they are its rows" in halt.reason
        chosen = decide_by_choice(record, there(*files), LocationChoice.CURRENT)
        assert (chosen.action, chosen.released_locations, chosen.superseded_files) == (
            RelocationAction.NOTHING,
            ("original",),
            (),
        )
        given = decide(record, there(*files, reader="q is read from it"), NO_TIME)
        assert (given.action, given.released_locations) == (RelocationAction.NOTHING, ("original",))
        released = relocated(replace(GIVEN_UP, expected_files=expected, is_released=True))
        assert decide(released, there(*files), NO_TIME).action is RelocationAction.NOTHING


@pytest.mark.parametrize("reason", list(UnreadyReason))
def test_an_unfinished_file_or_a_directory_in_a_directory_that_the_owner_has_left_does_not_halt(reason: UnreadyReason):
    for expected in (GIVEN_UP.expected_files, ()):
        record = relocated(replace(GIVEN_UP, expected_files=expected))
        for reader in ("q is read from it", None):
            left = replace(location_with(*expected, LATE_FILE), unready={LATE_FILE.path: reason}, read_by=reader)
            decision = decide(record, partition_at(original=left, current=PUBLISHED_FILES), WRITER_GRACE)
            assert (decision.action, decision.released_locations) == (RelocationAction.NOTHING, ())
        assert decide(record, there(*expected, LATE_FILE), NO_TIME).action is RelocationAction.HALT, "it is complete"


def test_rule_6_files_in_the_former_directory_of_a_partition_that_was_added_elsewhere_are_not_its_rows():
    left = replace(GIVEN_UP, partition_created_at=1)
    record = relocated(left)
    record = replace(record, latest=replace(record.latest, partition_created_at=2))
    state = replace(there(*GIVEN_UP.expected_files, LATE_FILE), created_at=2)
    assert decide(record, state, NO_TIME).action is RelocationAction.NOTHING


def test_rule_2_files_of_a_location_that_the_owner_points_the_partition_to_again_are_its_rows():
    record: RelocatedPartition = relocated(GIVEN_UP)
    for at in (EARLY, SINCE):
        late = file("original/new", at)
        state = replace(there(*GIVEN_UP.expected_files, late), location="original", token=TOKEN)
        state = replace(state, created_at=record.latest.partition_created_at)
        decision = decide(record, state, NO_TIME)
        assert (decision.action, decision.files_to_copy) == (RelocationAction.COPY_LATE_FILES, (late,))
