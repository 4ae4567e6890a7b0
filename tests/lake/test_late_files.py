# SPDX-License-Identifier: Apache-2.0
"""The sweep's decisions about late files: appends and overwrites in previous locations, copies, files that grew.

Numbers in the names of tests are those of the rules in docs/decisions/0013-moving-a-partition.md.
"""

from dataclasses import replace

from relocation_states import (
    EARLY,
    INPUTS,
    LATE,
    LATE_FILE,
    NO_TIME,
    PREVIOUS,
    PUBLISHED,
    PUBLISHED_FILES,
    TOKEN,
    UNCHANGED,
    decision_for,
    file,
    grown_file,
    location_with,
    partition_at,
    relocated,
    two_files,
)

from lake.plan import LocatedFile
from lake.relocation.decide import WRITER_GRACE, RelocationAction, RelocationDecision, decide
from lake.relocation.evidence import unrecorded_growth
from lake.relocation.model import LateCopy, LocationState, PreviousLocation, UnreadyReason


def test_rule_2_an_unchanged_previous_location_needs_no_action():
    assert decision_for(UNCHANGED).action is RelocationAction.NOTHING


def test_rule_2_files_that_a_writer_added_to_a_previous_location_are_copied():
    decision = decision_for(location_with(*PREVIOUS.expected_files, LATE_FILE))
    assert (decision.action, decision.files_to_copy, decision.superseded_files) == (
        RelocationAction.COPY_LATE_FILES,
        (LATE_FILE,),
        (),
    )


def test_rule_2_an_overwrite_of_the_previous_location_relocates_the_partition_back():
    decision = decision_for(location_with(LATE_FILE))
    assert (decision.action, decision.target_location, decision.files_to_copy, decision.superseded_files) == (
        RelocationAction.RELOCATE_BACK,
        "original",
        (),
        (),
    )


def emptied(at: int, recorded: int | None = None, *files: LocatedFile) -> LocationState:
    """The partition's location, from which the last file was removed at a time."""
    return LocationState(
        files=location_with(*files).files, emptied_ms=None if files else at, recorded_emptied_ms=recorded
    )


def test_rule_2_a_location_that_was_emptied_before_a_file_was_added_to_a_previous_one_is_recorded_as_emptied():
    appended = location_with(*PREVIOUS.expected_files, LATE_FILE)
    recent = replace(appended, unready={LATE_FILE.path: UnreadyReason.RECENT})
    overwritten = location_with(LATE_FILE)
    for original in (appended, recent, overwritten):
        assert decision_for(original, emptied(EARLY - 1)).action is RelocationAction.RECORD_EMPTIED
        for unclear in (
            emptied(EARLY),
            emptied(PUBLISHED - 1),
            LocationState(is_missing=True),
            replace(emptied(EARLY - 1), is_tree_removed=True),
        ):
            assert decision_for(original, unclear).action is not RelocationAction.RECORD_EMPTIED
    for at_work in (
        replace(appended, unready={LATE_FILE.path: UnreadyReason.WRITING}),
        location_with(PREVIOUS.expected_files[0], LATE_FILE),
        location_with(),
    ):
        assert decision_for(at_work, emptied(EARLY - 1)).action is RelocationAction.WAIT
    older = file("original/older", EARLY - 1)
    assert decision_for(location_with(*appended.files, older), emptied(EARLY - 1)).action is RelocationAction.WAIT
    assert decision_for(UNCHANGED, emptied(EARLY - 1)).action is RelocationAction.NOTHING


def test_rule_2_files_in_a_location_that_is_recorded_as_emptied_replace_no_later_file():
    appended, new = location_with(*PREVIOUS.expected_files, LATE_FILE), file("current/new", LATE)
    for current in (emptied(EARLY - 1, EARLY - 1), emptied(EARLY - 1, EARLY - 1, new)):
        decision = decision_for(appended, current)
        assert (decision.action, decision.files_to_copy) == (RelocationAction.COPY_LATE_FILES, (LATE_FILE,))
        assert decision_for(location_with(LATE_FILE), current).action is RelocationAction.RELOCATE_BACK


def test_rule_2_an_overwrite_of_a_location_that_was_emptied_is_known_by_the_copies_that_it_has_removed():
    copy = LateCopy(
        row_id=1, partition="p", source=LATE_FILE, target="current/copy", is_done=True, arrived_ms=LATE_FILE.modified_ms
    )
    record, second = relocated(PREVIOUS, late_copies=(copy,)), file("original/second", EARLY + 1)
    original = location_with(*PREVIOUS.expected_files, LATE_FILE, second)

    def decision(current: LocationState) -> RelocationDecision:
        return decide(record, partition_at(original=original, current=current), NO_TIME)

    new, there = file("current/new", LATE), replace(LATE_FILE, path="current/copy")
    assert decision(emptied(0, EARLY - 1, there, new)).files_to_copy == (second,)
    assert decision(emptied(0, EARLY - 1, new)).superseded_files == (second,)
    assert decision(emptied(EARLY + 2, EARLY - 1)).action is RelocationAction.WAIT
    again = file("original/third", LATE)
    only_third = location_with(*PREVIOUS.expected_files, LATE_FILE, again)
    state = partition_at(original=only_third, current=emptied(EARLY + 2, EARLY - 1))
    assert decide(record, state, NO_TIME).action is RelocationAction.RECORD_EMPTIED
    state = partition_at(original=only_third, current=emptied(EARLY + 2, EARLY + 2))
    assert decide(record, state, NO_TIME).files_to_copy == (again,)


def test_rule_2_a_file_written_again_under_the_same_name_is_another_file():
    again = tuple(file(one.path, LATE) for one in PREVIOUS.expected_files)
    assert decision_for(location_with(*again)).action is RelocationAction.RELOCATE_BACK


def test_rule_2_a_file_that_the_cleaner_is_deleting_counts_neither_as_missing_nor_as_late():
    previous = PreviousLocation(
        location="original",
        expected_files=PREVIOUS.expected_files[:1],
        possible_files=PREVIOUS.expected_files[1:],
        is_cleaning_begun=True,
    )
    assert decision_for(UNCHANGED, previous=previous).action is RelocationAction.NOTHING
    assert decision_for(location_with(PREVIOUS.expected_files[0], LATE_FILE), previous=previous).files_to_copy == (
        LATE_FILE,
    )
    assert decision_for(location_with(LATE_FILE), previous=previous).action is RelocationAction.HALT


def test_rule_2_a_deletion_that_removed_nothing_does_not_hide_a_writers_changes():
    begun = PreviousLocation(
        location="original",
        expected_files=(),
        possible_files=PREVIOUS.expected_files,
        deleting_files=PREVIOUS.expected_files,
        is_cleaning_begun=True,
    )
    assert decision_for(UNCHANGED, previous=begun).action is RelocationAction.NOTHING
    assert decision_for(location_with(*PREVIOUS.expected_files, LATE_FILE), previous=begun).files_to_copy == (
        LATE_FILE,
    )
    for remaining in (PREVIOUS.expected_files[:1], ()):
        assert decision_for(location_with(*remaining, LATE_FILE), previous=begun).action is RelocationAction.HALT
        assert decision_for(location_with(*remaining), previous=begun).action is RelocationAction.NOTHING
    ended = replace(begun, deleting_files=PREVIOUS.expected_files[1:])
    assert decision_for(location_with(PREVIOUS.expected_files[1], LATE_FILE), previous=ended).files_to_copy == (
        LATE_FILE,
    ), "the cleaner has deleted the other file"
    assert decision_for(location_with(LATE_FILE), previous=ended).action is RelocationAction.HALT


def test_rule_2_files_that_another_partition_has_replaced_too_show_appends_but_not_overwrites():
    files = PREVIOUS.expected_files
    shared = replace(PREVIOUS, shared_files=frozenset(files))
    assert decision_for(UNCHANGED, previous=shared).action is RelocationAction.NOTHING
    assert decision_for(location_with(*files, LATE_FILE), previous=shared).files_to_copy == (LATE_FILE,)
    own = replace(shared, expected_files=(*files, LATE_FILE))
    for there in (location_with(LATE_FILE), location_with(*files[:1]), location_with()):
        for previous in (shared, own):
            waiting = decide(relocated(previous), partition_at(original=there, current=PUBLISHED_FILES), NO_TIME)
            assert (waiting.action, waiting.emptied_locations) == (RelocationAction.WAIT, ())
            halt = decide(relocated(previous), partition_at(original=there, current=PUBLISHED_FILES), WRITER_GRACE)
            assert (halt.action, "which another partition has replaced since" in halt.reason) == (
                RelocationAction.HALT,
                True,
            )
    begun = replace(shared, expected_files=(), possible_files=files, deleting_files=files, is_cleaning_begun=True)
    assert decision_for(location_with(*files, LATE_FILE), previous=begun).files_to_copy == (LATE_FILE,)
    assert decision_for(location_with(files[0]), previous=begun).action is RelocationAction.NOTHING
    assert decision_for(location_with(files[0], LATE_FILE), previous=begun).action is RelocationAction.HALT


def test_rule_2_an_overwrite_that_also_empties_a_directory_that_another_partition_left_too_needs_no_person():
    """An overwrite by Spark empties the partition's own directory as well. The partition was halted."""
    shared = replace(PREVIOUS, shared_files=frozenset(PREVIOUS.expected_files))
    new = location_with(file("current/new", LATE))
    for previous in (PREVIOUS, shared):
        decision = decision_for(location_with(), new, previous=previous)
        assert (decision.action, decision.emptied_locations) == (RelocationAction.NOTHING, ("original",))
    partly = decision_for(location_with(PREVIOUS.expected_files[0]), new, previous=shared)
    assert partly.action is RelocationAction.WAIT


def test_rule_7_a_late_file_that_grew_after_another_partition_had_copied_it_too_replaces_its_copy():
    files, copied = PREVIOUS.expected_files, (*PREVIOUS.expected_files, LATE_FILE)
    previous = replace(PREVIOUS, expected_files=copied, shared_files=frozenset(copied))
    copy = replace(LATE_FILE, path="current/copy")
    late_copy = LateCopy(row_id=1, partition="p", source=LATE_FILE, target=copy.path, is_done=True)
    record, grown = relocated(previous, late_copies=(late_copy,)), grown_file(LATE_FILE)
    state = partition_at(original=location_with(*files, grown), current=location_with(*record.latest.files, copy))
    decision = decide(record, state, NO_TIME)
    assert decision.action is RelocationAction.REPLACE_COPIES
    assert [(one.recorded, one.current) for one in decision.modified_files] == [(LATE_FILE, grown)]
    overwritten = location_with(*(grown_file(one) for one in copied))
    waiting = decide(record, replace(state, locations={**state.locations, "original": overwritten}), NO_TIME)
    assert waiting.action is RelocationAction.WAIT, "all files of this name are new"


def test_rule_7_files_that_a_renamed_partition_has_replaced_under_its_later_name_are_no_evidence():
    """The two partitions are one, and would get a late file twice."""
    files = PREVIOUS.expected_files
    record = relocated(replace(PREVIOUS, shared_files=frozenset(files)))
    state = partition_at(original=location_with(*files, LATE_FILE), current=PUBLISHED_FILES)
    for now in (replace(state, renamed_to="q"), replace(state, renamed_to="q", relocated_as="q")):
        assert decide(record, now, NO_TIME).action is RelocationAction.HALT


def test_rule_2_two_overwrites_are_ordered_if_one_ended_before_the_other_began_and_otherwise_halt():
    ours, theirs = file("original/new", EARLY), file("current/new", LATE)
    decision = decision_for(location_with(ours), location_with(theirs))
    assert (decision.action, decision.superseded_files) == (RelocationAction.NOTHING, (ours,))
    renamed_later = LocationState(files={ours: LATE + 1})
    assert decision_for(renamed_later, location_with(theirs)).action is RelocationAction.HALT
    assert (
        decision_for(location_with(file("original/new", LATE)), location_with(file("current/new", EARLY))).action
        is RelocationAction.HALT
    )
    both = (PREVIOUS, PreviousLocation(location="middle", expected_files=two_files("middle", INPUTS)))
    two = partition_at(
        original=location_with(LATE_FILE), middle=location_with(file("middle/new", LATE)), current=PUBLISHED_FILES
    )
    assert decide(relocated(*both), two, NO_TIME).action is RelocationAction.HALT


def test_rule_2_files_older_than_an_overwrite_of_the_partition_are_superseded_and_later_ones_are_copied():
    overwrite = location_with(file("current/new", LATE))
    early, late = file("original/early", EARLY), file("original/late", LATE)
    decision = decision_for(location_with(*PREVIOUS.expected_files, early, late), overwrite)
    assert (decision.action, decision.files_to_copy, decision.superseded_files) == (
        RelocationAction.COPY_LATE_FILES,
        (late,),
        (early,),
    )


def test_rule_3_files_added_to_the_current_location_are_copied_or_superseded_if_older_than_the_overwrite():
    older, newer = file("current/older", EARLY - 1), file("current/newer", LATE)
    decision = decision_for(location_with(LATE_FILE), location_with(*two_files("current", PUBLISHED), older, newer))
    assert (decision.action, decision.files_to_copy, decision.superseded_files) == (
        RelocationAction.RELOCATE_BACK,
        (newer,),
        (older,),
    )


def test_rule_3_a_file_written_before_the_overwrite_and_committed_after_it_is_copied():
    older = file("current/older", EARLY - 1)
    current = LocationState(files={**PUBLISHED_FILES.files, older: LATE})
    assert decision_for(location_with(LATE_FILE), current).files_to_copy == (older,)


def test_rule_3_without_arrival_times_a_file_that_may_be_older_or_newer_than_an_overwrite_halts():
    older, newer = file("current/older", EARLY - 1), file("current/newer", LATE)
    files = {**PUBLISHED_FILES.files, older: EARLY - 1, newer: LATE}
    assert (
        decision_for(location_with(LATE_FILE), LocationState(files=files, directory_changed_ms=LATE)).action
        is RelocationAction.HALT
    )
    del files[newer]
    decision = decision_for(location_with(LATE_FILE), LocationState(files=files, directory_changed_ms=EARLY - 1))
    assert (decision.action, decision.superseded_files) == (RelocationAction.RELOCATE_BACK, (older,)), (
        "no file arrived after the change of the directory"
    )
    decision = decision_for(
        location_with(LATE_FILE),
        LocationState(files={**PUBLISHED_FILES.files, newer: LATE}, directory_changed_ms=LATE + 1),
    )
    assert (decision.action, decision.files_to_copy) == (RelocationAction.RELOCATE_BACK, (newer,)), (
        "it was written later"
    )
    early = file("original/early", EARLY)
    added = {**UNCHANGED.files, early: EARLY}
    overwrite = location_with(file("current/new", LATE))
    assert (
        decision_for(LocationState(files=added, directory_changed_ms=LATE), overwrite).action is RelocationAction.HALT
    )
    assert decision_for(LocationState(files=added, directory_changed_ms=EARLY), overwrite).superseded_files == (early,)
    assert (
        decision_for(LocationState(files={early: EARLY}, directory_changed_ms=LATE), overwrite).action
        is RelocationAction.HALT
    )


def test_rule_5_a_copy_is_not_copied_back_to_the_location_of_its_source():
    source, copy = file("original/late", EARLY), file("current/copy", LATE)
    late_copy = LateCopy(row_id=1, partition="p", source=source, target=copy.path, is_done=True)
    current = location_with(*two_files("current", PUBLISHED), copy)
    overwrite = file("original/new", EARLY)
    decision = decide(
        relocated(PREVIOUS, late_copies=(late_copy,)),
        partition_at(original=location_with(overwrite, source), current=current),
        NO_TIME,
    )
    assert (decision.action, decision.files_to_copy, decision.superseded_files) == (
        RelocationAction.RELOCATE_BACK,
        (),
        (copy,),
    )
    decision = decide(
        relocated(PREVIOUS, late_copies=(late_copy,)),
        partition_at(original=location_with(overwrite), current=current),
        NO_TIME,
    )
    assert (decision.action, decision.files_to_copy) == (RelocationAction.RELOCATE_BACK, (copy,)), (
        "readers have seen the copy, and it is newer"
    )


def test_rule_5_a_copied_file_is_not_copied_again_and_a_suspended_sweeps_copy_of_it_is_ignored():
    late_copy = LateCopy(row_id=1, partition="p", source=LATE_FILE, target="middle/copy-1", is_done=True)
    middle = PreviousLocation(location="middle", expected_files=two_files("middle", INPUTS))
    record = relocated(PREVIOUS, middle, late_copies=(late_copy,))
    copy = file("middle/copy-1", LATE)
    now = partition_at(
        original=location_with(*PREVIOUS.expected_files, LATE_FILE),
        middle=location_with(*middle.expected_files, copy),
        current=PUBLISHED_FILES,
    )
    assert decide(record, now, NO_TIME).action is RelocationAction.NOTHING


def test_rule_5_a_recorded_file_without_a_copy_is_decided_again():
    late_copy = LateCopy(row_id=1, partition="p", source=LATE_FILE, target="current/copy-1")
    record = relocated(PREVIOUS, late_copies=(late_copy,))
    assert decide(
        record,
        partition_at(original=location_with(*PREVIOUS.expected_files, LATE_FILE), current=PUBLISHED_FILES),
        NO_TIME,
    ).files_to_copy == (LATE_FILE,)
    overwritten = partition_at(
        original=location_with(*PREVIOUS.expected_files, LATE_FILE), current=location_with(file("current/new", LATE))
    )
    assert decide(record, overwritten, NO_TIME).superseded_files == (LATE_FILE,)


def test_rule_5_the_first_recorded_arrival_of_a_file_counts_after_a_hard_link_has_changed_its_time():
    late, overwritten = file("original/late", EARLY), location_with(file("current/new", EARLY + 1))
    linked = partition_at(original=LocationState(files={**UNCHANGED.files, late: LATE}), current=overwritten)
    begun = LateCopy(row_id=1, partition="p", source=late, target="current/copy-1")
    for arrived, action in ((None, RelocationAction.COPY_LATE_FILES), (EARLY, RelocationAction.NOTHING)):
        decision = decide(relocated(PREVIOUS, late_copies=(replace(begun, arrived_ms=arrived),)), linked, NO_TIME)
        assert (decision.action, decision.superseded_files) == (action, () if arrived is None else (late,))


def test_rule_5_an_unfinished_copy_is_removed_after_an_overwrite_unless_its_source_is_newer():
    copy = file("current/copy-1", LATE)
    overwritten = location_with(file("current/new", LATE), copy)
    for arrived, revoked in ((EARLY, (copy.path,)), (LATE, ())):
        late = file("original/late", EARLY)
        original = LocationState(files={**UNCHANGED.files, late: arrived})
        late_copy = LateCopy(row_id=1, partition="p", source=late, target=copy.path, arrived_ms=arrived)
        decision = decide(
            relocated(PREVIOUS, late_copies=(late_copy,)), partition_at(original=original, current=overwritten), NO_TIME
        )
        assert (decision.copies_to_remove, decision.superseded_files) == (revoked, (late,) if revoked else ())
        done = decide(
            relocated(PREVIOUS, late_copies=(replace(late_copy, is_done=True),)),
            partition_at(original=original, current=overwritten),
            NO_TIME,
        )
        assert done.copies_to_remove == (), "readers have seen it, and a writer may have kept it"


def test_rule_7_the_copy_of_a_late_file_that_grew_is_replaced_before_any_other_action():
    old, added = PREVIOUS.expected_files[0], file("original/new", LATE)
    copy = replace(old, path=f"current/{old.name}")
    record = relocated(PREVIOUS)
    made = file("current/made", PUBLISHED)
    record = replace(record, latest=replace(record.latest, files=(copy, made)))
    new, original = grown_file(old), location_with(grown_file(old), PREVIOUS.expected_files[1], added)
    for there in (copy, grown_file(copy)):  # a hard link grows with its file
        decision = decide(record, partition_at(original=original, current=location_with(there, made)), NO_TIME)
        assert (decision.action, decision.files_to_copy) == (RelocationAction.REPLACE_COPIES, ())
        assert [(one.recorded, one.current, one.copy_path) for one in decision.modified_files] == [
            (old, new, copy.path)
        ]
    both = decide(
        record, partition_at(original=original, current=location_with(replace(copy, bytes=5), made)), WRITER_GRACE
    )
    assert both.action is RelocationAction.HALT
    filling = replace(original, unready={new.path: UnreadyReason.WRITING})
    assert (
        decide(record, partition_at(original=filling, current=location_with(copy, made)), WRITER_GRACE).action
        is RelocationAction.WAIT
    )


def test_rule_7_a_file_that_grew_before_an_overwrite_is_superseded_and_one_that_grew_later_is_copied():
    new = grown_file(PREVIOUS.expected_files[0], EARLY)
    original = location_with(new, PREVIOUS.expected_files[1])
    assert decision_for(original, location_with(file("current/new", LATE))).superseded_files == (new,)
    assert decision_for(original, location_with(file("current/new", EARLY - 1))).files_to_copy == (new,)


def test_rule_7_an_input_of_the_rewrite_that_grew_relocates_the_partition_back_with_all_added_files():
    taken = file("original/a", INPUTS), file("original/b", INPUTS)
    original, added = location_with(grown_file(taken[0]), taken[1]), file("current/new", EARLY - 1)
    previous = PreviousLocation(location="original", expected_files=taken, token=TOKEN)
    decision = decision_for(original, location_with(*two_files("current", PUBLISHED), added), previous)
    assert (decision.action, decision.target_location, decision.files_to_copy, decision.superseded_files) == (
        RelocationAction.RELOCATE_BACK,
        "original",
        (added,),
        (),
    )
    assert decision_for(original, previous=replace(previous, token="v1")).action is RelocationAction.HALT, (
        "it was relocated again since"
    )
    deleted = replace(previous, possible_files=(file("original/deleted", INPUTS),))
    shared = replace(previous, shared_files=frozenset(taken[1:]))
    for unclear in (deleted, shared):
        assert decision_for(original, previous=unclear).action is RelocationAction.HALT


def test_rule_7_a_source_that_was_removed_before_its_copy_is_not_a_file_that_grew():
    late_copy = LateCopy(
        row_id=1, partition="p", source=file(LATE_FILE.path, INPUTS), target="current/copy-1", is_done=True
    )
    record = relocated(PREVIOUS, late_copies=(late_copy,))
    assert decide(
        record,
        partition_at(original=location_with(*PREVIOUS.expected_files, LATE_FILE), current=PUBLISHED_FILES),
        NO_TIME,
    ).files_to_copy == (LATE_FILE,)
    copied = location_with(*PUBLISHED_FILES.files, file("current/copy-1", INPUTS))
    assert (
        decide(
            record, partition_at(original=location_with(*PREVIOUS.expected_files, LATE_FILE), current=copied), NO_TIME
        ).action
        is RelocationAction.REPLACE_COPIES
    )


def test_rule_7_a_file_whose_grown_copy_was_rewritten_is_recognized_in_a_rebuilt_database():
    old = PREVIOUS.expected_files[0]
    grown, original = grown_file(old), location_with(grown_file(old), PREVIOUS.expected_files[1])
    copy = replace(grown, path=f"there/{old.name}")
    there = PreviousLocation(location="there", expected_files=(copy, file("there/made", PUBLISHED)), token=TOKEN)
    first = replace(PREVIOUS, token="v1")

    def found(copied: LocatedFile, original: LocationState = original) -> list[LocatedFile]:
        left = replace(there, expected_files=(copied, *there.expected_files[1:]))
        state = partition_at(original=original, there=location_with(*left.expected_files), current=PUBLISHED_FILES)
        pairs = unrecorded_growth(relocated(first, left), state)
        assert all(previous == first for previous, _ in pairs)
        return [one for _, files in pairs for one in files]

    assert found(copy) == [grown]
    for other in (replace(copy, bytes=old.bytes), replace(copy, modified_ms=EARLY), replace(copy, path="there/2")):
        assert found(other) == []
    assert found(copy, UNCHANGED) == []
    state = partition_at(original=original, there=location_with(*there.expected_files), current=PUBLISHED_FILES)
    assert decide(relocated(first, there), state, NO_TIME).action is RelocationAction.HALT, "before it is recorded"
    recorded = replace(first, expected_files=(grown, PREVIOUS.expected_files[1]))
    assert decide(relocated(recorded, there), state, NO_TIME).action is RelocationAction.NOTHING
