# SPDX-License-Identifier: Apache-2.0
"""Which moves of a partition may be forgotten: those on which nothing depends any more."""

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.relocation.model import PastRelocation, RelocationHistory
from lake.relocation.owner_moves import find_owner_moves

HOME = "dt=1"


def past(*places: str, young: Sequence[int] = (), back: Sequence[int] = ()) -> RelocationHistory:
    """A partition that was at these places, one after the other."""
    steps = list(itertools.pairwise(map(location_of, places)))
    moves = [
        PastRelocation(
            relocation_id=index,
            token=f"t{index}",
            previous_location=left,
            location=place,
            is_cleaned_up=index not in young,
            is_by_plan=index not in back,
        )
        for index, (left, place) in enumerate(steps)
    ]
    return RelocationHistory(partition="dt=1", relocations=tuple(moves))


def location_of(name: str) -> str:
    """The location of a partition in its own directory, or in the version ``name``."""
    return name if name == HOME else f".lakefold/{name}/{HOME}"


def forgotten(one: RelocationHistory, *there: str) -> list[int]:
    gone = {move.previous_location for move in one.relocations} - set(map(location_of, {HOME, *there}))
    return [move.relocation_id for move in one.prunable(gone)]


def kept_of(one: RelocationHistory, *there: str) -> list[PastRelocation]:
    """The relocations that are not pruned while the locations ``there`` may exist."""
    dropped = set(forgotten(one, *there))
    return [relocation for relocation in one.relocations if relocation.relocation_id not in dropped]


def histories(versions: int) -> Any:
    """Gives a test the locations of a partition, and by index the young moves, locations that exist, moves back."""
    names = [f"v{number}" for number in range(1, versions + 1)]
    return given(
        st.lists(st.sampled_from([HOME, *names]), min_size=1, max_size=12),
        st.sets(st.integers(0, 12)),
        st.sets(st.sampled_from(names)),
        st.sets(st.integers(1, 12)),
    )


def test_the_first_and_the_last_relocations_of_a_partition_stay() -> None:
    assert forgotten(past(HOME, "v1", "v2", "v3", "v4", "v5", "v6")) == [1, 2]
    assert forgotten(past(HOME, "v1", "v2", "v3", "v4")) == []
    assert forgotten(past(HOME, "v1")) == []


def test_an_unfinished_relocation_and_one_whose_former_location_exists_are_kept() -> None:
    places = [HOME, *(f"v{number}" for number in range(1, 9))]
    assert forgotten(past(*places)) == [1, 2, 3, 4]
    assert forgotten(past(*places), "v2") == [3, 4]
    assert forgotten(past(*places, young=[3])) == [1, 4]
    assert forgotten(past(*places), "v5") == [1, 2, 3]


def test_the_last_relocation_from_a_restored_partitions_own_directory_stays() -> None:
    one = past(HOME, "v1", HOME, "v2", HOME, "v3", HOME, "v4", "v5", "v6")
    assert forgotten(one) == [1, 2, 3, 4]
    assert one.relocations[6].previous_location == HOME, (
        "what that one replaced at home is what is known to have been there"
    )


def test_a_relocation_without_a_plan_keeps_the_records_that_the_actions_page_needs() -> None:
    cycles = past(HOME, "v1", HOME, "v2", HOME, "v3", HOME, "v4", HOME, back=[1, 3, 5, 7])
    assert forgotten(cycles) == [1, 2, 3]
    assert cycles.relocations[5].location == HOME, "it stays, and what led to it"
    assert forgotten(past(HOME, "v1", "v2", "v3", "v4", "v5", "v6", "v7", back=[3])) == [1, 2, 3]
    assert forgotten(past(HOME, "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", back=[3, 4]), "v4") == [1]


@histories(versions=6)
def test_every_former_location_that_may_exist_is_known_with_the_last_replaced_files_in_it(
    places: list[str], young: set[int], there: set[str], back: set[int]
) -> None:
    one = past(HOME, *places, young=sorted(young), back=sorted(back))
    dropped = set(forgotten(one, *there))
    kept = kept_of(one, *there)
    last_left = {move.previous_location: move.relocation_id for move in one.relocations}
    for place, number in last_left.items():
        if place in map(location_of, {HOME, *there}):
            assert number not in dropped
    assert kept[0] == one.relocations[0]
    assert kept[-2:] == list(one.relocations[-2:])
    assert not dropped & young
    for before, after in itertools.pairwise(kept):
        joins = before.location == after.previous_location
        assert joins or after.previous_location not in map(location_of, there), (
            "a gap is before a place that is gone, or the own directory"
        )


def moved_by_its_owner(cycles: int, *, restored: bool) -> RelocationHistory:
    """A partition that was relocated once, and then again and again from a directory that its owner named."""
    steps = [(HOME, version(0))]
    for number in range(1, cycles + 1):
        steps += [("elsewhere", version(number)), *([(version(number), "elsewhere")] if restored else [])]
    return history(steps)


def version(number: int) -> str:
    return f".lakefold/v{number}/dt=1"


def history(steps: Sequence[tuple[str, str]], young: Collection[int] = ()) -> RelocationHistory:
    """The relocations with these previous and new locations. Those to a directory in no version are the sweep's."""
    moves = [
        PastRelocation(
            relocation_id=index,
            token=f"t{index}",
            previous_location=left,
            location=place,
            is_cleaned_up=index not in young,
            is_by_plan=place.startswith(".lakefold/"),
        )
        for index, (left, place) in enumerate(steps)
    ]
    return RelocationHistory(partition="dt=1", relocations=tuple(moves))


@pytest.mark.parametrize("restored", [True, False], ids=["restored there", "moved there"])
def test_the_records_of_a_partition_that_its_owner_has_moved_do_not_grow(restored: bool) -> None:
    """One move for each cycle stayed for good."""
    counts = []
    for cycles in (10, 100):
        one = moved_by_its_owner(cycles, restored=restored)
        kept = kept_of(one, "elsewhere")
        from_elsewhere = [move for move in one.relocations if move.previous_location == "elsewhere"]
        assert {from_elsewhere[0], from_elsewhere[-1]} <= set(kept), "what was last replaced there, and who named it"
        counts.append(len(kept))
    assert counts[0] == counts[1] <= 7


def owner_moved_before(relocations: Sequence[PastRelocation]) -> tuple[str | None, dict[int, int]]:
    """The owner's directory, and by relocation the later one by which the owner had moved the partition away."""
    found = find_owner_moves([(one.previous_location, one.location) for one in relocations])
    return found.location, {
        relocations[left].relocation_id: relocations[move].relocation_id for left, move in found.moved_before.items()
    }


def test_a_directory_stays_given_up_after_the_owner_returned_to_the_first_one_and_records_were_pruned() -> None:
    """Otherwise foreign files there halted the partition, and ``--keep current`` put them on the list of deletions."""
    v = version
    steps = [(HOME, v(1)), ("elsewhere", v(2)), (v(2), v(3)), (HOME, v(4)), (v(4), v(5)), (v(5), HOME)]
    steps += [(HOME, v(7)), (v(7), v(8)), (v(8), HOME), (HOME, v(9)), (v(9), v(10))]
    one = history(steps)
    kept = kept_of(one, "elsewhere", "other")
    assert len(kept) < len(steps)
    assert owner_moved_before(kept)[1][1] == 3


@st.composite
def owned_partitions(draw: st.DrawFn) -> RelocationHistory:
    """A partition whose owner sets its location between compactions, restores and moves back to earlier versions."""
    at = owner = HOME
    steps: list[tuple[str, str]] = []
    for number in range(draw(st.integers(1, 16))):
        if named := draw(st.sampled_from([None, None, HOME, "elsewhere", "other"])):
            at = owner = named
        before = [owner, *(place for place, _ in steps if place.startswith(".lakefold/") and place != at)]
        back = draw(st.sampled_from([None, *before])) if at.startswith(".lakefold/") else None
        steps.append((at, back or version(number)))
        at = steps[-1][1]
    return history(steps, draw(st.sets(st.integers(0, 15))))


@given(owned_partitions(), st.sets(st.integers(0, 15)))
def test_pruning_changes_no_location_that_an_owner_has_given_up_and_not_the_time(
    one: RelocationHistory, there: set[int]
) -> None:
    kept = kept_of(one, "elsewhere", "other", *map(version, there))
    location, moves = owner_moved_before(one.relocations)
    ids = {relocation.relocation_id for relocation in kept}
    assert owner_moved_before(kept) == (location, {left: move for left, move in moves.items() if left in ids})


def test_the_number_of_kept_records_does_not_grow() -> None:
    one = past(HOME, *(f"v{number}" for number in range(1, 1000)))
    assert len(one.relocations) - len(forgotten(one)) == 4


@histories(versions=4)
def test_kept_records_contain_all_relocations_without_a_plan_in_their_order(
    places: list[str], young: set[int], there: set[str], back: set[int]
) -> None:
    one = past(HOME, *places, young=sorted(young), back=sorted(back))
    kept = kept_of(one, *there)
    left = {move.previous_location for move in kept}
    for before, after in itertools.pairwise(kept):
        if not after.is_by_plan:
            assert before.relocation_id == after.relocation_id - 1, "the move after which it came is known"
    for move in kept[:-1]:
        if not move.is_by_plan:
            assert move.location in left, "its place was left, so that it was made"
