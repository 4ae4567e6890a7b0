# SPDX-License-Identifier: Apache-2.0
"""What is done about former places of a partition: every small world of evidence, and what follows."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import product

import pytest

from lake.plan import LocatedFile, Relocation
from lake.relocation.decide import (
    WRITER_GRACE,
    LocationChoice,
    RelocationAction,
    RelocationDecision,
    decide,
    decide_by_choice,
    decide_restore_location,
    orphaned_inputs,
)
from lake.relocation.evidence import unrecorded_growth
from lake.relocation.model import (
    LateCopy,
    LocationState,
    PartitionState,
    PreviousLocation,
    RelocatedPartition,
    UnreadyReason,
)

TOKEN = "v2"
NO_TIME = timedelta()
#: when files of each kind were written, in milliseconds; a late one comes before or after the other one
INPUTS, PUBLISHED, EARLY, LATE = 1, 10, 20, 30


def file(path: str, at: int) -> LocatedFile:
    return LocatedFile(path=path, bytes=8, modified_ms=at)


def seen(*files: LocatedFile) -> LocationState:
    return LocationState(files={one: one.modified_ms for one in files})


def files_of(place: str, at: int) -> tuple[LocatedFile, ...]:
    return file(f"{place}/0", at), file(f"{place}/1", at)


def moved(*former: PreviousLocation, carries: tuple[LateCopy, ...] = ()) -> RelocatedPartition:
    last = Relocation(
        partition="p", token=TOKEN, previous_location="home", location="here", files=files_of("here", PUBLISHED)
    )
    return RelocatedPartition(latest=last, previous_locations=former, late_copies=carries)


def standing(place: str | None = "here", token: str | None = TOKEN, **places: LocationState) -> PartitionState:
    return PartitionState(location=place, token=token, locations=places)


HOME = PreviousLocation(location="home", expected_files=files_of("home", INPUTS))
WHOLE = seen(*files_of("here", PUBLISHED))
QUIET = seen(*HOME.expected_files)
NEW = file("home/new", EARLY)


def answer(
    home: LocationState, here: LocationState = WHOLE, former: PreviousLocation = HOME, waited: timedelta = NO_TIME
) -> RelocationDecision:
    return decide(moved(former), standing(home=home, here=here), waited)


def test_rule_2_a_quiet_former_place_needs_nothing():
    assert answer(QUIET).action is RelocationAction.NOTHING


def test_rule_2_files_added_beside_the_replaced_ones_are_carried():
    decision = answer(seen(*HOME.expected_files, NEW))
    assert (decision.action, decision.files_to_copy, decision.superseded_files) == (
        RelocationAction.COPY_LATE_FILES,
        (NEW,),
        (),
    )


def test_rule_2_an_overwrite_of_the_former_place_takes_the_partition_back():
    decision = answer(seen(NEW))
    assert (decision.action, decision.target_location, decision.files_to_copy, decision.superseded_files) == (
        RelocationAction.RELOCATE_BACK,
        "home",
        (),
        (),
    )


def test_rule_2_a_name_that_is_used_again_is_another_file():
    again = tuple(file(one.path, LATE) for one in HOME.expected_files)
    assert answer(seen(*again)).action is RelocationAction.RELOCATE_BACK


def test_rule_2_a_file_that_the_cleaner_has_come_to_is_neither_missed_nor_new():
    former = PreviousLocation(
        location="home",
        expected_files=HOME.expected_files[:1],
        possible_files=HOME.expected_files[1:],
        is_cleaning_begun=True,
    )
    assert answer(QUIET, former=former).action is RelocationAction.NOTHING
    assert answer(seen(HOME.expected_files[0], NEW), former=former).files_to_copy == (NEW,)
    assert answer(seen(NEW), former=former).action is RelocationAction.HALT


def test_rule_2_a_deletion_that_began_and_removed_nothing_does_not_hide_what_a_writer_did():
    begun = PreviousLocation(
        location="home",
        expected_files=(),
        possible_files=HOME.expected_files,
        deleting_files=HOME.expected_files,
        is_cleaning_begun=True,
    )
    assert answer(QUIET, former=begun).action is RelocationAction.NOTHING
    assert answer(seen(*HOME.expected_files, NEW), former=begun).files_to_copy == (NEW,)
    for remaining in (HOME.expected_files[:1], ()):
        assert answer(seen(*remaining, NEW), former=begun).action is RelocationAction.HALT
        assert answer(seen(*remaining), former=begun).action is RelocationAction.NOTHING
    ended = replace(begun, deleting_files=HOME.expected_files[1:])
    assert answer(seen(HOME.expected_files[1], NEW), former=ended).files_to_copy == (NEW,), "the other one was deleted"
    assert answer(seen(NEW), former=ended).action is RelocationAction.HALT


def test_rule_2_two_overwrites_are_ordered_where_one_had_ended_before_the_other_began_and_else_halt_the_table():
    ours, theirs = file("home/new", EARLY), file("here/new", LATE)
    decision = answer(seen(ours), seen(theirs))
    assert (decision.action, decision.superseded_files) == (RelocationAction.NOTHING, (ours,))
    renamed_later = LocationState(files={ours: LATE + 1})
    assert answer(renamed_later, seen(theirs)).action is RelocationAction.HALT
    assert answer(seen(file("home/new", LATE)), seen(file("here/new", EARLY))).action is RelocationAction.HALT
    both = (HOME, PreviousLocation(location="mid", expected_files=files_of("mid", INPUTS)))
    two = standing(home=seen(NEW), mid=seen(file("mid/new", LATE)), here=WHOLE)
    assert decide(moved(*both), two, NO_TIME).action is RelocationAction.HALT


def test_rule_2_what_was_added_before_an_overwrite_of_the_partition_is_set_aside_and_what_came_later_is_carried():
    overwrite = seen(file("here/new", LATE))
    early, late = file("home/early", EARLY), file("home/late", LATE)
    decision = answer(seen(*HOME.expected_files, early, late), overwrite)
    assert (decision.action, decision.files_to_copy, decision.superseded_files) == (
        RelocationAction.COPY_LATE_FILES,
        (late,),
        (early,),
    )


def test_rule_3_what_was_added_to_the_new_place_goes_along_and_is_set_aside_where_it_is_older():
    older, newer = file("here/older", EARLY - 1), file("here/newer", LATE)
    decision = answer(seen(NEW), seen(*files_of("here", PUBLISHED), older, newer))
    assert (decision.action, decision.files_to_copy, decision.superseded_files) == (
        RelocationAction.RELOCATE_BACK,
        (newer,),
        (older,),
    )


def test_rule_3_a_file_written_before_the_overwrite_and_committed_after_it_goes_along():
    older = file("here/older", EARLY - 1)
    here = LocationState(files={**WHOLE.files, older: LATE})
    assert answer(seen(NEW), here).files_to_copy == (older,)


def test_rule_3_where_no_arrivals_are_told_what_may_have_come_on_either_side_of_an_overwrite_halts_the_table():
    older, newer = file("here/older", EARLY - 1), file("here/newer", LATE)
    files = {**WHOLE.files, older: EARLY - 1, newer: LATE}
    assert answer(seen(NEW), LocationState(files=files, directory_changed_ms=LATE)).action is RelocationAction.HALT
    del files[newer]
    decision = answer(seen(NEW), LocationState(files=files, directory_changed_ms=EARLY - 1))
    assert (decision.action, decision.superseded_files) == (RelocationAction.RELOCATE_BACK, (older,)), (
        "no file came later than that"
    )
    decision = answer(seen(NEW), LocationState(files={**WHOLE.files, newer: LATE}, directory_changed_ms=LATE + 1))
    assert (decision.action, decision.files_to_copy) == (RelocationAction.RELOCATE_BACK, (newer,)), (
        "it was written later"
    )
    early = file("home/early", EARLY)
    added = {**QUIET.files, early: EARLY}
    overwrite = seen(file("here/new", LATE))
    assert answer(LocationState(files=added, directory_changed_ms=LATE), overwrite).action is RelocationAction.HALT
    assert answer(LocationState(files=added, directory_changed_ms=EARLY), overwrite).superseded_files == (early,)
    assert (
        answer(LocationState(files={early: EARLY}, directory_changed_ms=LATE), overwrite).action
        is RelocationAction.HALT
    )


def test_rule_5_a_copy_does_not_go_along_to_where_its_source_still_is():
    source, copy = file("home/late", EARLY), file("here/copy", LATE)
    carry = LateCopy(row_id=1, partition="p", source=source, target=copy.path, is_done=True)
    here = seen(*files_of("here", PUBLISHED), copy)
    overwrite = file("home/new", EARLY)
    decision = decide(moved(HOME, carries=(carry,)), standing(home=seen(overwrite, source), here=here), NO_TIME)
    assert (decision.action, decision.files_to_copy, decision.superseded_files) == (
        RelocationAction.RELOCATE_BACK,
        (),
        (copy,),
    )
    decision = decide(moved(HOME, carries=(carry,)), standing(home=seen(overwrite), here=here), NO_TIME)
    assert (decision.action, decision.files_to_copy) == (RelocationAction.RELOCATE_BACK, (copy,)), (
        "readers have seen it, and it is newer"
    )


def test_rule_4_some_or_all_files_gone_is_waited_for_and_halts_the_table_after_the_grace():
    for home in (seen(), seen(HOME.expected_files[0]), seen(HOME.expected_files[0], NEW)):
        assert answer(home).action is RelocationAction.WAIT
        halt = answer(home, waited=WRITER_GRACE)
        assert halt.action is RelocationAction.HALT
        assert halt.reason.endswith(", for longer than 60 min")


def test_rule_4_a_place_that_an_overwrite_of_another_one_has_emptied_is_not_waited_for():
    overwritten = seen(file("here/new", LATE))
    there = standing(home=seen(), here=overwritten)
    assert (decide(moved(HOME), there, NO_TIME).action, decide(moved(HOME), there, NO_TIME).emptied_locations) == (
        RelocationAction.NOTHING,
        ("home",),
    )
    partly = standing(home=seen(HOME.expected_files[0]), here=overwritten)
    assert decide(moved(HOME), partly, NO_TIME).action is RelocationAction.WAIT, "it may be at work"
    assert decide(moved(HOME), standing(home=seen(), here=seen()), NO_TIME).action is RelocationAction.WAIT
    between = PreviousLocation(location="v1", expected_files=files_of("v1", INPUTS))
    spanned = standing(home=seen(), v1=seen(file("v1/new", LATE)), here=WHOLE)
    decision = decide(moved(HOME, between), spanned, NO_TIME)
    assert (decision.action, decision.target_location, decision.emptied_locations) == (
        RelocationAction.RELOCATE_BACK,
        "v1",
        ("home",),
    )


def test_rule_4_files_that_an_owner_removed_after_its_own_move_are_not_waited_for():
    left = replace(HOME, is_before_owner_move=True)
    mid = PreviousLocation(location="mid", expected_files=files_of("mid", INPUTS))
    late = file("mid/new", LATE)
    decision = decide(moved(left, mid), standing(home=seen(), mid=seen(*mid.expected_files, late), here=WHOLE), NO_TIME)
    assert (decision.action, decision.files_to_copy, decision.emptied_locations) == (
        RelocationAction.COPY_LATE_FILES,
        (late,),
        ("home",),
    )
    decision = decide(moved(left), standing(home=seen(), here=WHOLE), NO_TIME)
    assert (decision.action, decision.emptied_locations) == (RelocationAction.NOTHING, ("home",))
    some = standing(home=seen(HOME.expected_files[0]), here=WHOLE)
    assert decide(moved(left), some, NO_TIME).action is RelocationAction.WAIT, "it may be removing them"


def test_rule_4_an_overwrite_of_all_that_a_place_is_in_has_not_overwritten_that_place_as_well():
    uprooted = LocationState(is_tree_removed=True)
    assert decide(moved(HOME), standing(home=seen(), here=uprooted), NO_TIME).action is RelocationAction.WAIT
    decision = decide(moved(HOME), standing(home=seen(NEW), here=uprooted), NO_TIME)
    assert (decision.action, decision.target_location, decision.files_to_copy, decision.emptied_locations) == (
        RelocationAction.RELOCATE_BACK,
        "home",
        (),
        (),
    )
    assert decide(moved(HOME), standing(home=seen(NEW), here=seen()), NO_TIME).action is RelocationAction.WAIT
    written = LocationState(files=seen(file("here/new", LATE)).files, is_tree_removed=True)
    assert decide(moved(HOME), standing(home=seen(NEW), here=written), NO_TIME).action is RelocationAction.HALT
    assert decide(moved(HOME), standing(home=seen(), here=written), NO_TIME).emptied_locations == ("home",)


def test_rule_4_a_file_that_is_being_written_is_waited_for():
    for inputs in ((), HOME.expected_files):
        home = LocationState(files=seen(*inputs, NEW).files, unready={NEW.path: UnreadyReason.WRITING})
        assert answer(home).action is RelocationAction.WAIT


def test_rule_4_a_file_that_goes_on_being_written_is_waited_for_without_an_end():
    for inputs in ((), HOME.expected_files[:1], HOME.expected_files):
        home = LocationState(files=seen(*inputs, NEW).files, unready={NEW.path: UnreadyReason.WRITING})
        assert answer(home, waited=WRITER_GRACE * 3).action is RelocationAction.WAIT
        nested = replace(home, unready={NEW.path: UnreadyReason.DIRECTORY})
        assert answer(nested, waited=WRITER_GRACE).action is RelocationAction.HALT


def test_rule_2_a_file_that_is_not_ready_holds_up_nothing_where_none_is_gone():
    other = file("home/other", LATE)
    for why in (UnreadyReason.RECENT, UnreadyReason.STALLED):
        for here in (WHOLE, seen(file("here/new", EARLY))):
            alone = LocationState(files=seen(*HOME.expected_files, NEW).files, unready={NEW.path: why})
            assert answer(alone, here).action is RelocationAction.NOTHING
        beside = LocationState(files=seen(*HOME.expected_files, NEW, other).files, unready={NEW.path: why})
        assert answer(beside).files_to_copy == (other,)
        for gone in (HOME.expected_files[:1], ()):
            overwrite = LocationState(files=seen(*gone, NEW).files, unready={NEW.path: why})
            assert answer(overwrite).action is RelocationAction.WAIT
            assert answer(overwrite, seen(file("here/new", EARLY))).action is RelocationAction.WAIT, "it is not cleared"


def regrown(one: LocatedFile, at: int = LATE) -> LocatedFile:
    return replace(one, bytes=one.bytes * 2, modified_ms=at)


def test_rule_7_a_file_that_came_along_and_grew_has_its_copy_replaced_and_nothing_else_is_done_before():
    old, added = HOME.expected_files[0], file("home/new", LATE)
    copy = replace(old, path=f"here/{old.name}")
    record = moved(HOME)
    made = file("here/made", PUBLISHED)
    record = replace(record, latest=replace(record.latest, files=(copy, made)))
    new, home = regrown(old), seen(regrown(old), HOME.expected_files[1], added)
    for there in (copy, regrown(copy)):  # a second name grows with it
        decision = decide(record, standing(home=home, here=seen(there, made)), NO_TIME)
        assert (decision.action, decision.files_to_copy) == (RelocationAction.REPLACE_COPIES, ())
        assert [(one.recorded, one.current, one.copy_path) for one in decision.modified_files] == [
            (old, new, copy.path)
        ]
    both = decide(record, standing(home=home, here=seen(replace(copy, bytes=5), made)), WRITER_GRACE)
    assert both.action is RelocationAction.HALT
    filling = replace(home, unready={new.path: UnreadyReason.WRITING})
    assert decide(record, standing(home=filling, here=seen(copy, made)), WRITER_GRACE).action is RelocationAction.WAIT


def test_rule_7_a_file_that_grew_before_the_partition_was_overwritten_is_nobodys_and_one_that_did_later_is_carried():
    new = regrown(HOME.expected_files[0], EARLY)
    home = seen(new, HOME.expected_files[1])
    assert answer(home, seen(file("here/new", LATE))).superseded_files == (new,)
    assert answer(home, seen(file("here/new", EARLY - 1))).files_to_copy == (new,)


def test_rule_7_a_file_that_a_rewrite_took_and_that_grew_takes_the_partition_back_with_what_was_added_since():
    taken = file("home/a", INPUTS), file("home/b", INPUTS)
    home, added = seen(regrown(taken[0]), taken[1]), file("here/new", EARLY - 1)
    former = PreviousLocation(location="home", expected_files=taken, token=TOKEN)
    decision = answer(home, seen(*files_of("here", PUBLISHED), added), former)
    assert (decision.action, decision.target_location, decision.files_to_copy, decision.superseded_files) == (
        RelocationAction.RELOCATE_BACK,
        "home",
        (added,),
        (),
    )
    assert answer(home, former=replace(former, token="v1")).action is RelocationAction.HALT, "it was moved again since"
    deleted = replace(former, possible_files=(file("home/deleted", INPUTS),))
    assert answer(home, former=deleted).action is RelocationAction.HALT


def test_rule_7_a_source_that_was_gone_before_it_was_copied_is_no_file_that_grew():
    carry = LateCopy(row_id=1, partition="p", source=file(NEW.path, INPUTS), target="here/carried-1", is_done=True)
    record = moved(HOME, carries=(carry,))
    assert decide(record, standing(home=seen(*HOME.expected_files, NEW), here=WHOLE), NO_TIME).files_to_copy == (NEW,)
    copied = seen(*WHOLE.files, file("here/carried-1", INPUTS))
    assert (
        decide(record, standing(home=seen(*HOME.expected_files, NEW), here=copied), NO_TIME).action
        is RelocationAction.REPLACE_COPIES
    )


def test_rule_7_a_file_whose_grown_copy_was_rewritten_is_known_as_such_in_a_rebuilt_database():
    old = HOME.expected_files[0]
    grown, home = regrown(old), seen(regrown(old), HOME.expected_files[1])
    copy = replace(grown, path=f"there/{old.name}")
    there = PreviousLocation(location="there", expected_files=(copy, file("there/made", PUBLISHED)), token=TOKEN)
    first = replace(HOME, token="v1")

    def found(copied: LocatedFile, home: LocationState = home) -> list[LocatedFile]:
        left = replace(there, expected_files=(copied, *there.expected_files[1:]))
        state = standing(home=home, there=seen(*left.expected_files), here=WHOLE)
        pairs = unrecorded_growth(moved(first, left), state)
        assert all(previous == first for previous, _ in pairs)
        return [one for _, files in pairs for one in files]

    assert found(copy) == [grown]
    for other in (replace(copy, bytes=old.bytes), replace(copy, modified_ms=EARLY), replace(copy, path="there/2")):
        assert found(other) == []
    assert found(copy, QUIET) == []
    state = standing(home=home, there=seen(*there.expected_files), here=WHOLE)
    assert decide(moved(first, there), state, NO_TIME).action is RelocationAction.HALT, "before it is recorded"
    recorded = replace(first, expected_files=(grown, HOME.expected_files[1]))
    assert decide(moved(recorded, there), state, NO_TIME).action is RelocationAction.NOTHING


def test_rule_5_a_carried_file_is_not_carried_again_and_a_sleepers_copy_of_one_is_nobodys_rows():
    carry = LateCopy(row_id=1, partition="p", source=NEW, target="mid/carried-1", is_done=True)
    mid = PreviousLocation(location="mid", expected_files=files_of("mid", INPUTS))
    record = moved(HOME, mid, carries=(carry,))
    copy = file("mid/carried-1", LATE)
    now = standing(home=seen(*HOME.expected_files, NEW), mid=seen(*mid.expected_files, copy), here=WHOLE)
    assert decide(record, now, NO_TIME).action is RelocationAction.NOTHING


def test_rule_1_a_partition_that_names_a_move_which_nobody_recorded_halts_the_table():
    decision = decide(moved(HOME), standing(token="v1", home=QUIET, here=WHOLE), NO_TIME)
    assert (decision.action, decision.concerns_table, "v1" in decision.reason) == (RelocationAction.HALT, True, True)


def test_rule_11_a_partition_that_is_written_anew_in_its_place_without_its_properties_gets_them_again():
    for created_at in (0, 5):
        record = replace(moved(HOME), latest=replace(moved(HOME).latest, partition_created_at=5))
        lost = replace(standing(token=None, home=QUIET, here=WHOLE), created_at=created_at)
        decision = decide(record, lost, NO_TIME)
        assert (decision.action, "without its properties" in decision.reason) == (RelocationAction.REAPPLY, True)
        late = replace(lost, locations={**lost.locations, "home": seen(*HOME.expected_files, NEW)})
        assert decide(record, late, NO_TIME).files_to_copy == (NEW,)
    again = replace(standing(token=None, home=QUIET, here=WHOLE), created_at=6)
    assert decide(record, again, NO_TIME).reason == "partition p was recreated"


def test_rule_5_a_file_that_was_recorded_and_not_copied_is_decided_anew():
    carry = LateCopy(row_id=1, partition="p", source=NEW, target="here/carried-1")
    record = moved(HOME, carries=(carry,))
    assert decide(record, standing(home=seen(*HOME.expected_files, NEW), here=WHOLE), NO_TIME).files_to_copy == (NEW,)
    overwritten = standing(home=seen(*HOME.expected_files, NEW), here=seen(file("here/new", LATE)))
    assert decide(record, overwritten, NO_TIME).superseded_files == (NEW,)


def test_rule_6_a_partition_that_was_made_anew_where_it_was_is_left_alone_whatever_a_person_says():
    anew = replace(standing(token=None, home=seen(NEW), here=seen()), created_at=7)
    record = replace(moved(HOME), original_location="here")
    answers = [
        decide(record, anew, NO_TIME),
        *(decide_by_choice(record, anew, take) for take in LocationChoice),
        decide_restore_location(record, anew),
    ]
    assert {(one.action, one.reason) for one in answers} == {(RelocationAction.NOTHING, "partition p was recreated")}


def test_rule_6_what_was_late_in_a_place_of_a_partition_that_was_dropped_is_not_the_next_one_s():
    record, anew = moved(replace(HOME, partition_created_at=7)), 9
    record = replace(record, latest=replace(record.latest, partition_created_at=anew))
    later = file("home/later", anew * 1000)
    for changed, files in ((0, (later,)), (anew * 1000, (later, NEW))):
        home = LocationState(files=seen(*HOME.expected_files, NEW, later).files, directory_changed_ms=changed)
        assert decide(record, standing(home=home, here=WHOLE), NO_TIME).files_to_copy == files
    assert (
        decide(record, standing(home=seen(*HOME.expected_files, NEW), here=WHOLE), NO_TIME).action
        is RelocationAction.NOTHING
    )
    replaced = decide(record, standing(home=seen(NEW), here=WHOLE), NO_TIME)
    assert replaced.action is RelocationAction.WAIT, "somebody removed what is still to be there"


@pytest.mark.parametrize(("place", "token"), [(None, None), ("elsewhere", None), ("elsewhere", TOKEN)])
def test_a_partition_that_its_owner_dropped_made_anew_or_moved_is_left_alone(place: str | None, token: str | None):
    now = standing(place, token, home=seen(NEW), here=WHOLE, elsewhere=seen())
    assert decide(moved(HOME), now, NO_TIME).action is RelocationAction.NOTHING


def test_rule_11_a_partition_that_was_written_back_as_it_was_before_a_move_is_decided_as_if_it_were_not():
    record = replace(moved(HOME), earlier_locations=frozenset({("home", "v1"), ("mid", None)}))
    at_home = PartitionState(location="home", token="v1", locations={"home": QUIET, "here": WHOLE})
    assert decide(record, at_home, NO_TIME).action is RelocationAction.REAPPLY
    added = replace(at_home, locations={"home": seen(*HOME.expected_files, NEW), "here": WHOLE})
    assert (decide(record, added, NO_TIME).action, decide(record, added, NO_TIME).files_to_copy) == (
        RelocationAction.COPY_LATE_FILES,
        (NEW,),
    )
    overwritten = replace(at_home, locations={"home": seen(NEW), "here": WHOLE})
    assert (decide(record, overwritten, NO_TIME).action, decide(record, overwritten, NO_TIME).target_location) == (
        RelocationAction.RELOCATE_BACK,
        "home",
    )
    assert (
        decide_by_choice(
            record, replace(at_home, locations={"home": seen(), "here": WHOLE}), LocationChoice.PREVIOUS
        ).target_location
        == "home"
    )
    for here in (seen(), seen(files_of("here", PUBLISHED)[0])):
        gone = replace(at_home, locations={"home": QUIET, "here": here})
        assert decide(record, gone, NO_TIME).action is RelocationAction.WAIT
        assert decide(record, gone, WRITER_GRACE).action is RelocationAction.HALT
    assert decide(record, replace(at_home, created_at=7), NO_TIME).action is RelocationAction.HALT, "it was made anew"
    assert decide(record, replace(at_home, token="v0"), NO_TIME).action is RelocationAction.HALT, (
        "nobody knows this move"
    )
    places = {**at_home.locations, "mid": seen()}
    assert (
        decide(record, replace(at_home, location="mid", token=None, locations=places), NO_TIME).action
        is RelocationAction.REAPPLY
    )


def test_rule_4_a_person_says_which_place_holds_the_rows_and_the_other_ones_files_are_kept_aside():
    added = file("here/new", LATE)
    for home in (seen(), seen(HOME.expected_files[0]), seen(HOME.expected_files[0], NEW), seen(NEW)):
        now = standing(home=home, here=seen(*files_of("here", PUBLISHED), added))
        old, new = (
            decide_by_choice(moved(HOME), now, take) for take in (LocationChoice.PREVIOUS, LocationChoice.CURRENT)
        )
        assert (old.action, old.target_location, old.files_to_copy, old.superseded_files) == (
            RelocationAction.RELOCATE_BACK,
            "home",
            (),
            (added,),
        )
        assert (new.action, new.files_to_copy, set(new.superseded_files)) == (
            RelocationAction.NOTHING,
            (),
            late_of(HOME, home),
        )
    quiet = standing(home=QUIET, here=WHOLE)
    assert {decide_by_choice(moved(HOME), quiet, take).action for take in LocationChoice} == {RelocationAction.NOTHING}
    assert {
        decide_by_choice(moved(HOME), standing(token="v1", home=seen(), here=WHOLE), take).action
        for take in LocationChoice
    } == {RelocationAction.HALT}


def test_rule_4_where_writers_changed_two_old_places_the_answer_to_old_says_what_to_do_instead():
    mid = PreviousLocation(location="mid", expected_files=files_of("mid", INPUTS))
    now = standing(home=seen(NEW), mid=seen(file("mid/new", LATE)), here=WHOLE)
    halt = decide_by_choice(moved(HOME, mid), now, LocationChoice.PREVIOUS)
    assert (halt.action, halt.reason) == (
        RelocationAction.HALT,
        "writers changed both home and mid, and --keep previous can't take two: put the files that should be read into "
        "here, then --keep current",
    )


def test_rule_5_a_file_that_was_to_be_carried_stays_as_old_as_it_was():
    late, overwritten = file("home/late", EARLY), seen(file("here/new", EARLY + 1))
    linked = standing(home=LocationState(files={**QUIET.files, late: LATE}), here=overwritten)
    begun = LateCopy(row_id=1, partition="p", source=late, target="here/carried-1")
    for came, action in ((None, RelocationAction.COPY_LATE_FILES), (EARLY, RelocationAction.NOTHING)):
        decision = decide(moved(HOME, carries=(replace(begun, arrived_ms=came),)), linked, NO_TIME)
        assert (decision.action, decision.superseded_files) == (action, () if came is None else (late,))


def test_rule_5_a_copy_that_an_overwrite_has_not_met_is_revoked_unless_its_source_is_younger():
    copy = file("here/carried-1", LATE)
    overwritten = seen(file("here/new", LATE), copy)
    for came, revoked in ((EARLY, (copy.path,)), (LATE, ())):
        late = file("home/late", EARLY)
        home = LocationState(files={**QUIET.files, late: came})
        carry = LateCopy(row_id=1, partition="p", source=late, target=copy.path, arrived_ms=came)
        decision = decide(moved(HOME, carries=(carry,)), standing(home=home, here=overwritten), NO_TIME)
        assert (decision.copies_to_remove, decision.superseded_files) == (revoked, (late,) if revoked else ())
        done = decide(
            moved(HOME, carries=(replace(carry, is_done=True),)), standing(home=home, here=overwritten), NO_TIME
        )
        assert done.copies_to_remove == (), "readers have seen it, and somebody may have left it there"


def test_rule_6_a_partition_does_not_go_home_while_what_was_carried_there_once_waits_for_its_deletion():
    carried = file("home/carried-1", EARLY)
    carry = LateCopy(row_id=1, partition="p", source=file("mid/late", EARLY), target=carried.path, is_done=True)
    record = replace(
        moved(PreviousLocation(location="home", expected_files=(carried,)), carries=(carry,)),
        original_location="home",
    )
    assert decide_restore_location(record, standing(home=seen(carried), here=WHOLE)).action is RelocationAction.WAIT
    begun = replace(
        record,
        late_copies=(replace(carry, is_done=False),),
        previous_locations=(PreviousLocation(location="home", expected_files=()),),
    )
    assert (
        decide_restore_location(begun, standing(home=seen(carried), here=WHOLE)).action
        is RelocationAction.RELOCATE_BACK
    )


def test_rule_6_a_partition_goes_home_with_all_its_files_when_its_own_directory_is_empty():
    added = file("here/new", LATE)
    here = seen(*files_of("here", PUBLISHED), added)
    cleaned = PreviousLocation(
        location="home", expected_files=(), possible_files=HOME.expected_files, is_cleaning_begun=True
    )
    record = replace(moved(cleaned), original_location="home")
    decision = decide_restore_location(record, standing(home=seen(), here=here))
    assert (decision.action, decision.target_location, set(decision.files_to_copy)) == (
        RelocationAction.RELOCATE_BACK,
        "home",
        set(here.files),
    )
    waiting = replace(moved(HOME), original_location="home")
    assert decide_restore_location(waiting, standing(home=QUIET, here=here)).action is RelocationAction.WAIT
    assert (
        decide_restore_location(waiting, standing(home=seen(*HOME.expected_files, NEW), here=here)).action
        is RelocationAction.COPY_LATE_FILES
    )
    assert decide_restore_location(record, standing(home=seen(NEW), here=here)).action is RelocationAction.HALT
    being_written = LocationState(files=here.files, unready={added.path: UnreadyReason.WRITING})
    assert decide_restore_location(record, standing(home=seen(), here=being_written)).action is RelocationAction.WAIT
    assert (
        decide_restore_location(record, standing("elsewhere", home=seen(), here=here, elsewhere=seen())).action
        is RelocationAction.NOTHING
    )
    overwritten = seen(added)
    assert decide_restore_location(record, standing(home=seen(), here=overwritten)).files_to_copy == (added,)
    for at_work in (seen(), seen(files_of("here", PUBLISHED)[0], added)):
        assert decide_restore_location(record, standing(home=seen(), here=at_work)).action is RelocationAction.WAIT


def test_rule_6_replaced_files_of_a_dropped_partition_and_of_one_that_is_added_again_are_in_the_way():
    record = replace(moved(HOME), original_location="home")
    assert orphaned_inputs(record, standing(None, None, home=QUIET, here=WHOLE)) == HOME.expected_files
    again = replace(standing("home", None, home=QUIET, here=WHOLE), created_at=7)
    assert orphaned_inputs(record, again) == HOME.expected_files
    for lives in (
        standing(home=QUIET, here=WHOLE),
        standing("home", None, home=QUIET, here=WHOLE),
        standing("elsewhere", None, home=QUIET, here=WHOLE),
        standing("home", TOKEN, home=QUIET, here=WHOLE),
    ):
        assert orphaned_inputs(record, lives) == (), "its owner moved it, or took its properties away"
    first, second = HOME.expected_files
    cleaning = PreviousLocation(
        location="home", expected_files=(second,), possible_files=(first,), deleting_files=(first,)
    )
    assert set(orphaned_inputs(replace(moved(cleaning), original_location="home"), again)) == {first, second}
    ended = replace(cleaning, deleting_files=())
    assert orphaned_inputs(replace(moved(ended), original_location="home"), again) == (second,), "not lakefold's now"
    mid = PreviousLocation(location="mid", expected_files=files_of("mid", INPUTS))
    assert orphaned_inputs(replace(moved(mid), original_location="home"), again) == ()


def test_rule_7_a_partition_that_is_added_again_over_replaced_files_which_another_table_is_read_from_is_halted():
    record = replace(moved(HOME), original_location="home")
    shared = replace(QUIET, read_by="partition dt=9 of table db.other is read from /lake/home")
    again = replace(standing("home", None, home=shared, here=WHOLE), created_at=7)
    decision = decide(record, again, timedelta())
    assert (decision.action, decision.concerns_table, orphaned_inputs(record, again)) == (
        RelocationAction.HALT,
        False,
        (),
    )
    assert "since partition dt=9 of table db.other is read from /lake/home: give each one a" in decision.reason
    for choice in LocationChoice:
        assert decide_by_choice(record, again, choice) == decision, "no choice helps while both are read from there"
    dropped = standing(None, None, home=shared, here=WHOLE)
    elsewhere = replace(standing("elsewhere", None, home=shared, here=WHOLE, elsewhere=seen()), created_at=7)
    for quiet in (dropped, elsewhere):
        decision = decide(record, quiet, timedelta())
        assert (decision.action, orphaned_inputs(record, quiet)) == (RelocationAction.NOTHING, ())


# Every small world.

_SUBSETS = [(), (0,), (1,), (0, 1)]


def worlds() -> Iterator[
    tuple[PreviousLocation, LocationState, PreviousLocation, LocationState, LocationState, timedelta]
]:
    """Two former places and the one where the partition is: any of their files gone, any files added, at any time."""
    times = [(), (EARLY,), (LATE,), (EARLY, LATE)]
    formers = []
    for place in ("home", "mid"):
        inputs = files_of(place, INPUTS)
        for expected, there, late, cleaning in product(_SUBSETS, _SUBSETS, times, (False, True)):
            if set(there) <= set(expected) and (cleaning or len(expected) == 2):
                former = PreviousLocation(
                    location=place, expected_files=tuple(inputs[one] for one in expected), is_cleaning_begun=cleaning
                )
                new = [file(f"{place}/new-{at}", at) for at in late]
                formers.append((former, seen(*(inputs[one] for one in there), *new)))
    half = len(formers) // 2
    published = files_of("here", PUBLISHED)
    for (home, at_home), (mid, at_mid) in product(formers[:half], formers[half:]):
        for there, late in product(_SUBSETS, times):
            here = seen(*(published[one] for one in there), *(file(f"here/new-{at}", at) for at in late))
            yield home, at_home, mid, at_mid, here, WRITER_GRACE if len(late) == 1 else NO_TIME


def late_of(former: PreviousLocation, there: LocationState) -> set[LocatedFile]:
    return set(there.files) - set(former.expected_files)


def gone_of(former: PreviousLocation, there: LocationState) -> set[LocatedFile]:
    return set(former.expected_files) - set(there.files)


@pytest.mark.slow
def test_in_no_world_is_a_file_forgotten_doubled_or_brought_back_by_a_guess():
    count, actions = 0, set()
    for home, at_home, mid, at_mid, here, waited in worlds():
        count += 1
        decision = decide(moved(home, mid), standing(home=at_home, mid=at_mid, here=here), waited)
        actions.add(decision.action)
        pairs = ((home, at_home), (mid, at_mid))
        late = {one for pair in pairs for one in late_of(*pair)}
        published_gone = set(files_of("here", PUBLISHED)) - set(here.files)
        added = set(here.files) - set(files_of("here", PUBLISHED))
        assert not set(decision.files_to_copy) & set(decision.superseded_files)
        if decision.action in (RelocationAction.WAIT, RelocationAction.HALT):
            assert (decision.files_to_copy, decision.superseded_files) == ((), ()), (
                "nothing is done, so that nothing can be wrong"
            )
            assert (decision.action is RelocationAction.WAIT) <= (waited < WRITER_GRACE)
        elif decision.action is RelocationAction.NOTHING:
            assert late <= set(decision.superseded_files), "every row that a writer reported is somewhere"
            assert not late or (published_gone and added), "only a later overwrite makes rows nobody's"
        elif decision.action is RelocationAction.COPY_LATE_FILES:
            assert late == set(decision.files_to_copy) | set(decision.superseded_files)
            replaced = {one for pair in pairs if gone_of(*pair) for one in late_of(*pair)}
            assert replaced <= set(decision.superseded_files), (
                "only files that were added beside all others are carried"
            )
            assert bool(decision.superseded_files) <= bool(published_gone)
        else:
            (over,) = (pair for pair in pairs if pair[0].location == decision.target_location)
            assert not over[0].is_cleaning_begun
            assert gone_of(*over) == set(over[0].expected_files) != set()
            assert not published_gone, "an overwrite reached the new place"
            assert late - late_of(*over) | added == set(decision.files_to_copy) | set(decision.superseded_files)
            began = min(one.modified_ms for one in late_of(*over))
            assert all(one.modified_ms < began for one in decision.superseded_files)
    assert actions == set(RelocationAction) - {RelocationAction.REAPPLY, RelocationAction.REPLACE_COPIES}
    assert count > 10_000
