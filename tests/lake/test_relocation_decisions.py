# SPDX-License-Identifier: Apache-2.0
"""The sweep's decisions about a partition: missing files, a person's choice, recreated and restored partitions.

Numbers in the names of tests are those of the rules in docs/decisions/0013-moving-a-partition.md.
"""

from dataclasses import replace
from datetime import timedelta

import pytest
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
    late_files,
    location_with,
    partition_at,
    relocated,
    two_files,
)

from lake.plan import LocatedFile
from lake.relocation.catalog_changes import replaced_files_to_archive
from lake.relocation.decide import (
    WRITER_GRACE,
    LocationChoice,
    RelocationAction,
    decide,
    decide_by_choice,
    decide_restore_location,
    deletion_blocker,
    relocation_blocker,
)
from lake.relocation.model import LateCopy, LocationState, PartitionState, PreviousLocation, UnreadyReason


def test_rule_4_missing_files_are_waited_for_and_halt_after_the_grace():
    for original in (
        location_with(),
        location_with(PREVIOUS.expected_files[0]),
        location_with(PREVIOUS.expected_files[0], LATE_FILE),
    ):
        assert decision_for(original).action is RelocationAction.WAIT
        halt = decision_for(original, waited=WRITER_GRACE)
        assert halt.action is RelocationAction.HALT
        assert halt.reason.endswith(", for longer than 60 min")


def test_rule_4_a_location_emptied_by_an_overwrite_of_another_location_is_not_waited_for():
    overwritten = location_with(file("current/new", LATE))
    there = partition_at(original=location_with(), current=overwritten)
    assert (
        decide(relocated(PREVIOUS), there, NO_TIME).action,
        decide(relocated(PREVIOUS), there, NO_TIME).emptied_locations,
    ) == (
        RelocationAction.NOTHING,
        ("original",),
    )
    partly = partition_at(original=location_with(PREVIOUS.expected_files[0]), current=overwritten)
    assert decide(relocated(PREVIOUS), partly, NO_TIME).action is RelocationAction.WAIT, "the overwrite may be running"
    assert (
        decide(relocated(PREVIOUS), partition_at(original=location_with(), current=location_with()), NO_TIME).action
        is RelocationAction.WAIT
    )
    between = PreviousLocation(location="v1", expected_files=two_files("v1", INPUTS))
    both_changed = partition_at(
        original=location_with(), v1=location_with(file("v1/new", LATE)), current=PUBLISHED_FILES
    )
    decision = decide(relocated(PREVIOUS, between), both_changed, NO_TIME)
    assert (decision.action, decision.target_location, decision.emptied_locations) == (
        RelocationAction.RELOCATE_BACK,
        "v1",
        ("original",),
    )


def test_rule_4_an_overwrite_of_the_directory_above_is_no_overwrite_of_the_location_itself():
    tree_removed = LocationState(is_tree_removed=True)
    assert (
        decide(relocated(PREVIOUS), partition_at(original=location_with(), current=tree_removed), NO_TIME).action
        is RelocationAction.WAIT
    )
    decision = decide(
        relocated(PREVIOUS), partition_at(original=location_with(LATE_FILE), current=tree_removed), NO_TIME
    )
    assert (decision.action, decision.target_location, decision.files_to_copy, decision.emptied_locations) == (
        RelocationAction.RELOCATE_BACK,
        "original",
        (),
        (),
    )
    assert (
        decide(
            relocated(PREVIOUS), partition_at(original=location_with(LATE_FILE), current=location_with()), NO_TIME
        ).action
        is RelocationAction.WAIT
    )
    written = LocationState(files=location_with(file("current/new", LATE)).files, is_tree_removed=True)
    assert (
        decide(relocated(PREVIOUS), partition_at(original=location_with(LATE_FILE), current=written), NO_TIME).action
        is RelocationAction.HALT
    )
    assert decide(
        relocated(PREVIOUS), partition_at(original=location_with(), current=written), NO_TIME
    ).emptied_locations == ("original",)


def test_rule_4_a_file_that_is_being_written_is_waited_for():
    for inputs in ((), PREVIOUS.expected_files):
        original = LocationState(
            files=location_with(*inputs, LATE_FILE).files, unready={LATE_FILE.path: UnreadyReason.WRITING}
        )
        assert decision_for(original).action is RelocationAction.WAIT


def test_rule_4_a_file_that_is_still_being_written_is_waited_for_without_a_time_limit():
    for inputs in ((), PREVIOUS.expected_files[:1], PREVIOUS.expected_files):
        original = LocationState(
            files=location_with(*inputs, LATE_FILE).files, unready={LATE_FILE.path: UnreadyReason.WRITING}
        )
        assert decision_for(original, waited=WRITER_GRACE * 3).action is RelocationAction.WAIT
        nested = replace(original, unready={LATE_FILE.path: UnreadyReason.DIRECTORY})
        assert decision_for(nested, waited=WRITER_GRACE).action is RelocationAction.HALT


def test_rule_2_an_unready_file_delays_no_other_file_if_no_file_is_missing():
    other = file("original/other", LATE)
    for why in (UnreadyReason.RECENT, UnreadyReason.STALLED):
        for current in (PUBLISHED_FILES, location_with(file("current/new", EARLY))):
            alone = LocationState(
                files=location_with(*PREVIOUS.expected_files, LATE_FILE).files, unready={LATE_FILE.path: why}
            )
            assert decision_for(alone, current).action is RelocationAction.NOTHING
        beside = LocationState(
            files=location_with(*PREVIOUS.expected_files, LATE_FILE, other).files, unready={LATE_FILE.path: why}
        )
        assert decision_for(beside).files_to_copy == (other,)
        for gone in (PREVIOUS.expected_files[:1], ()):
            overwrite = LocationState(files=location_with(*gone, LATE_FILE).files, unready={LATE_FILE.path: why})
            assert decision_for(overwrite).action is RelocationAction.WAIT
            assert decision_for(overwrite, location_with(file("current/new", EARLY))).action is RelocationAction.WAIT, (
                "an unready file empties no location"
            )


def test_rule_2_a_relocation_waits_for_a_recent_late_file_that_an_overwrite_may_have_replaced():
    def reason(why: UnreadyReason, current: LocationState, late: LocatedFile = LATE_FILE) -> str | None:
        files = location_with(*PREVIOUS.expected_files, late).files
        original = LocationState(files=files, unready={late.path: why})
        return relocation_blocker(relocated(PREVIOUS), partition_at(original=original, current=current))

    later, earlier = location_with(file("current/new", LATE + 1)), location_with(file("current/new", EARLY))
    assert reason(UnreadyReason.RECENT, later) == f"{LATE_FILE.path} was written a moment ago"
    assert reason(UnreadyReason.RECENT, earlier) is None, "it came after the overwrite, so it is copied in any case"
    assert reason(UnreadyReason.STALLED, later) is None
    assert reason(UnreadyReason.RECENT, PUBLISHED_FILES) is None
    begun = replace(earlier, unready={"current/new": UnreadyReason.RECENT})
    assert reason(UnreadyReason.RECENT, begun) == f"{LATE_FILE.path} was written a moment ago"


def test_rule_2_replaced_files_are_not_deleted_while_a_late_file_is_recent():
    for why, waits in ((UnreadyReason.RECENT, True), (UnreadyReason.STALLED, False)):
        files = location_with(*PREVIOUS.expected_files, LATE_FILE).files
        original = LocationState(files=files, unready={LATE_FILE.path: why})
        there = partition_at(original=original, current=PUBLISHED_FILES)
        assert (deletion_blocker(relocated(PREVIOUS), there) is not None) is waits


def test_rule_4_a_person_chooses_the_location_and_the_files_of_the_other_one_are_superseded():
    added = file("current/new", LATE)
    for original in (
        location_with(),
        location_with(PREVIOUS.expected_files[0]),
        location_with(PREVIOUS.expected_files[0], LATE_FILE),
        location_with(LATE_FILE),
    ):
        now = partition_at(original=original, current=location_with(*two_files("current", PUBLISHED), added))
        old, new = (
            decide_by_choice(relocated(PREVIOUS), now, choice)
            for choice in (LocationChoice.PREVIOUS, LocationChoice.CURRENT)
        )
        assert (old.action, old.target_location, old.files_to_copy, old.superseded_files) == (
            RelocationAction.RELOCATE_BACK,
            "original",
            (),
            (added,),
        )
        assert (new.action, new.files_to_copy, set(new.superseded_files)) == (
            RelocationAction.NOTHING,
            (),
            late_files(PREVIOUS, original),
        )
    quiet = partition_at(original=UNCHANGED, current=PUBLISHED_FILES)
    assert {decide_by_choice(relocated(PREVIOUS), quiet, choice).action for choice in LocationChoice} == {
        RelocationAction.NOTHING
    }
    assert {
        decide_by_choice(
            relocated(PREVIOUS), partition_at(token="v1", original=location_with(), current=PUBLISHED_FILES), choice
        ).action
        for choice in LocationChoice
    } == {RelocationAction.HALT}


def test_rule_4_if_writers_changed_two_previous_locations_the_refusal_of_keep_previous_names_the_remedy():
    middle = PreviousLocation(location="middle", expected_files=two_files("middle", INPUTS))
    now = partition_at(
        original=location_with(LATE_FILE), middle=location_with(file("middle/new", LATE)), current=PUBLISHED_FILES
    )
    halt = decide_by_choice(relocated(PREVIOUS, middle), now, LocationChoice.PREVIOUS)
    assert (halt.action, halt.reason) == (
        RelocationAction.HALT,
        "writers changed both original and middle, and --keep previous can't take two: put the files that should be "
        "read into current, then --keep current",
    )


def test_rule_1_a_partition_that_names_an_unrecorded_relocation_halts_the_table():
    there = partition_at(token="v1", original=UNCHANGED, current=PUBLISHED_FILES)
    decision = decide(relocated(PREVIOUS), there, NO_TIME)
    assert (decision.action, decision.concerns_table, "v1" in decision.reason) == (RelocationAction.HALT, True, True)


def test_rule_11_a_partition_that_is_written_anew_in_its_location_without_its_properties_gets_them_again():
    for created_at in (0, 5):
        record = replace(relocated(PREVIOUS), latest=replace(relocated(PREVIOUS).latest, partition_created_at=5))
        there = partition_at(token=None, original=UNCHANGED, current=PUBLISHED_FILES)
        lost = replace(there, created_at=created_at, has_creation_time=created_at != 0)
        decision = decide(record, lost, NO_TIME)
        assert (decision.action, "without its properties" in decision.reason) == (RelocationAction.REAPPLY, True)
    again = replace(partition_at(token=None, original=UNCHANGED, current=PUBLISHED_FILES), created_at=6)
    assert decide(record, again, NO_TIME).reason == "partition p was recreated"


@pytest.mark.parametrize("has_inputs", [True, False], ids=["inputs present", "inputs deleted"])
def test_rule_6_a_partition_that_trino_overwrote_counts_as_recreated(has_inputs: bool):
    """Trino sets its default directory without properties and creation time, and deletes the version's files."""
    new = file("original/trino", LATE)
    cleaned = replace(PREVIOUS, expected_files=(), possible_files=PREVIOUS.expected_files, is_cleaning_begun=True)
    record = relocated(PREVIOUS if has_inputs else cleaned)
    record = replace(
        record,
        latest=replace(record.latest, partition_created_at=5),
        original_location="original",
        earlier_locations=frozenset({("original", None)}),
    )
    inputs = PREVIOUS.expected_files if has_inputs else ()
    anew = partition_at("original", None, original=location_with(*inputs, new), current=location_with())
    assert replaced_files_to_archive(record, anew) == inputs
    decisions = decide(record, anew, NO_TIME), decide(record, anew, WRITER_GRACE)
    assert {(one.action, one.reason) for one in decisions} == {
        (RelocationAction.NOTHING, "partition p was recreated"),
    }
    with_token = replace(anew, token=TOKEN)
    assert decide(record, with_token, NO_TIME).action is RelocationAction.HALT, "another program has set the token"


def test_rule_6_a_partition_that_was_recreated_at_its_location_needs_no_action_for_any_choice():
    recreated = replace(
        partition_at(token=None, original=location_with(LATE_FILE), current=location_with()), created_at=7
    )
    record = replace(relocated(PREVIOUS), original_location="current")
    answers = [
        decide(record, recreated, NO_TIME),
        *(decide_by_choice(record, recreated, choice) for choice in LocationChoice),
        decide_restore_location(record, recreated),
    ]
    assert {(one.action, one.reason) for one in answers} == {(RelocationAction.NOTHING, "partition p was recreated")}


def test_rule_6_late_files_of_a_dropped_partition_are_not_copied_into_its_successor():
    record, recreated = relocated(replace(PREVIOUS, partition_created_at=7)), 9
    published = two_files("current", recreated * 1000 + 500)
    record = replace(record, latest=replace(record.latest, partition_created_at=recreated, files=published))
    current = location_with(*published)
    later = file("original/later", recreated * 1000)
    for changed, files in ((0, (later,)), (recreated * 1000, (later, LATE_FILE))):
        original = LocationState(
            files=location_with(*PREVIOUS.expected_files, LATE_FILE, later).files, directory_changed_ms=changed
        )
        assert decide(record, partition_at(original=original, current=current), NO_TIME).files_to_copy == files
    original = location_with(*PREVIOUS.expected_files, LATE_FILE)
    assert decide(record, partition_at(original=original, current=current), NO_TIME).action is RelocationAction.NOTHING
    for files in ((LATE_FILE,), PREVIOUS.expected_files[1:], ()):
        replaced = decide(record, partition_at(original=location_with(*files), current=current), NO_TIME)
        assert replaced.action is RelocationAction.NOTHING, "an overwrite before the drop removed the other files"
    over = partition_at(original=location_with(later), current=current)
    assert decide(record, over, NO_TIME).action is RelocationAction.RELOCATE_BACK
    added = decide(record, partition_at(original=location_with(LATE_FILE, later), current=current), NO_TIME)
    assert (added.action, added.files_to_copy) == (RelocationAction.COPY_LATE_FILES, (later,))


def test_rule_6_a_late_file_is_not_taken_for_one_of_a_dropped_partition_by_a_catalogs_clock_that_is_ahead():
    record, published = relocated(replace(PREVIOUS, partition_created_at=7)), two_files("current", 5000)
    record = replace(record, latest=replace(record.latest, partition_created_at=9, files=published))
    for at, action in ((5000, RelocationAction.COPY_LATE_FILES), (4999, RelocationAction.HALT)):
        original = location_with(*PREVIOUS.expected_files, file("original/late", at))
        decision = decide(record, partition_at(original=original, current=location_with(*published)), NO_TIME)
        assert decision.action is action
    assert "original/late arrived before or after partition p was dropped and added again" in decision.reason


@pytest.mark.parametrize(("location", "token"), [(None, None), ("elsewhere", None), ("elsewhere", TOKEN)])
def test_a_partition_that_its_owner_dropped_recreated_or_moved_needs_no_action(location: str | None, token: str | None):
    now = partition_at(
        location, token, original=location_with(LATE_FILE), current=PUBLISHED_FILES, elsewhere=location_with()
    )
    assert decide(relocated(PREVIOUS), now, NO_TIME).action is RelocationAction.NOTHING


def test_rule_11_a_partition_with_an_entry_from_before_a_relocation_is_decided_as_if_relocated():
    record = replace(relocated(PREVIOUS), earlier_locations=frozenset({("original", "v1"), ("middle", None)}))
    at_original = PartitionState(
        location="original", token="v1", locations={"original": UNCHANGED, "current": PUBLISHED_FILES}
    )
    assert decide(record, at_original, NO_TIME).action is RelocationAction.REAPPLY
    added = replace(
        at_original,
        locations={"original": location_with(*PREVIOUS.expected_files, LATE_FILE), "current": PUBLISHED_FILES},
    )
    assert (decide(record, added, NO_TIME).action, decide(record, added, NO_TIME).files_to_copy) == (
        RelocationAction.COPY_LATE_FILES,
        (LATE_FILE,),
    )
    overwritten = replace(at_original, locations={"original": location_with(LATE_FILE), "current": PUBLISHED_FILES})
    assert (decide(record, overwritten, NO_TIME).action, decide(record, overwritten, NO_TIME).target_location) == (
        RelocationAction.RELOCATE_BACK,
        "original",
    )
    assert (
        decide_by_choice(
            record,
            replace(at_original, locations={"original": location_with(), "current": PUBLISHED_FILES}),
            LocationChoice.PREVIOUS,
        ).target_location
        == "original"
    )
    for current in (location_with(), location_with(two_files("current", PUBLISHED)[0])):
        gone = replace(at_original, locations={"original": UNCHANGED, "current": current})
        assert decide(record, gone, NO_TIME).action is RelocationAction.WAIT
        assert decide(record, gone, WRITER_GRACE).action is RelocationAction.HALT
    assert decide(record, replace(at_original, created_at=7), NO_TIME).action is RelocationAction.HALT, (
        "it was recreated"
    )
    assert decide(record, replace(at_original, token="v0"), NO_TIME).action is RelocationAction.HALT, (
        "no such relocation is recorded"
    )
    locations = {**at_original.locations, "middle": location_with()}
    assert (
        decide(record, replace(at_original, location="middle", token=None, locations=locations), NO_TIME).action
        is RelocationAction.REAPPLY
    )


def test_rule_6_a_partition_is_not_restored_while_earlier_copies_there_wait_for_their_deletion():
    carried = file("original/copy-1", EARLY)
    late_copy = LateCopy(row_id=1, partition="p", source=file("middle/late", EARLY), target=carried.path, is_done=True)
    record = replace(
        relocated(PreviousLocation(location="original", expected_files=(carried,)), late_copies=(late_copy,)),
        original_location="original",
    )
    assert (
        decide_restore_location(record, partition_at(original=location_with(carried), current=PUBLISHED_FILES)).action
        is RelocationAction.WAIT
    )
    begun = replace(
        record,
        late_copies=(replace(late_copy, is_done=False),),
        previous_locations=(PreviousLocation(location="original", expected_files=()),),
    )
    assert (
        decide_restore_location(begun, partition_at(original=location_with(carried), current=PUBLISHED_FILES)).action
        is RelocationAction.RELOCATE_BACK
    )


def test_rule_6_a_partition_is_restored_with_all_its_files_once_its_original_location_is_empty():
    added = file("current/new", LATE)
    current = location_with(*two_files("current", PUBLISHED), added)
    cleaned = PreviousLocation(
        location="original", expected_files=(), possible_files=PREVIOUS.expected_files, is_cleaning_begun=True
    )
    record = replace(relocated(cleaned), original_location="original")
    decision = decide_restore_location(record, partition_at(original=location_with(), current=current))
    assert (decision.action, decision.target_location, set(decision.files_to_copy)) == (
        RelocationAction.RELOCATE_BACK,
        "original",
        set(current.files),
    )
    waiting = replace(relocated(PREVIOUS), original_location="original")
    assert (
        decide_restore_location(waiting, partition_at(original=UNCHANGED, current=current)).action
        is RelocationAction.WAIT
    )
    assert (
        decide_restore_location(
            waiting, partition_at(original=location_with(*PREVIOUS.expected_files, LATE_FILE), current=current)
        ).action
        is RelocationAction.COPY_LATE_FILES
    )
    assert (
        decide_restore_location(record, partition_at(original=location_with(LATE_FILE), current=current)).action
        is RelocationAction.HALT
    )
    being_written = LocationState(files=current.files, unready={added.path: UnreadyReason.WRITING})
    assert (
        decide_restore_location(record, partition_at(original=location_with(), current=being_written)).action
        is RelocationAction.WAIT
    )
    assert (
        decide_restore_location(
            record, partition_at("elsewhere", original=location_with(), current=current, elsewhere=location_with())
        ).action
        is RelocationAction.NOTHING
    )
    overwritten = location_with(added)
    assert decide_restore_location(
        record, partition_at(original=location_with(), current=overwritten)
    ).files_to_copy == (added,)
    for at_work in (location_with(), location_with(two_files("current", PUBLISHED)[0], added)):
        assert (
            decide_restore_location(record, partition_at(original=location_with(), current=at_work)).action
            is RelocationAction.WAIT
        )


def test_rule_6_replaced_files_of_a_dropped_or_recreated_partition_are_orphaned_inputs():
    record = replace(relocated(PREVIOUS), original_location="original")
    assert (
        replaced_files_to_archive(record, partition_at(None, None, original=UNCHANGED, current=PUBLISHED_FILES))
        == PREVIOUS.expected_files
    )
    again = replace(partition_at("original", None, original=UNCHANGED, current=PUBLISHED_FILES), created_at=7)
    assert replaced_files_to_archive(record, again) == PREVIOUS.expected_files
    for lives in (
        partition_at(original=UNCHANGED, current=PUBLISHED_FILES),
        partition_at("original", None, original=UNCHANGED, current=PUBLISHED_FILES),
        partition_at("elsewhere", None, original=UNCHANGED, current=PUBLISHED_FILES),
        partition_at("original", TOKEN, original=UNCHANGED, current=PUBLISHED_FILES),
    ):
        assert replaced_files_to_archive(record, lives) == (), "its owner moved it, or removed its properties"
    first, second = PREVIOUS.expected_files
    cleaning = PreviousLocation(
        location="original", expected_files=(second,), possible_files=(first,), deleting_files=(first,)
    )
    assert set(replaced_files_to_archive(replace(relocated(cleaning), original_location="original"), again)) == {
        first,
        second,
    }
    ended = replace(cleaning, deleting_files=())
    assert replaced_files_to_archive(replace(relocated(ended), original_location="original"), again) == (second,), (
        "the cleaner has deleted the other one"
    )
    shared = replace(cleaning, shared_files=frozenset({first}))
    assert replaced_files_to_archive(replace(relocated(shared), original_location="original"), again) == (second,), (
        "another partition would miss the other one"
    )
    middle = PreviousLocation(location="middle", expected_files=two_files("middle", INPUTS))
    assert replaced_files_to_archive(replace(relocated(middle), original_location="original"), again) == ()


def test_rule_7_a_partition_recreated_over_replaced_files_that_another_table_reads_is_halted():
    record = replace(relocated(PREVIOUS), original_location="original")
    shared = replace(UNCHANGED, read_by="partition dt=9 of table db.other is read from /lake/original")
    again = replace(partition_at("original", None, original=shared, current=PUBLISHED_FILES), created_at=7)
    decision = decide(record, again, timedelta())
    assert (decision.action, decision.concerns_table, replaced_files_to_archive(record, again)) == (
        RelocationAction.HALT,
        False,
        (),
    )
    assert "since partition dt=9 of table db.other is read from /lake/original: give each one a" in decision.reason
    for choice in LocationChoice:
        assert decide_by_choice(record, again, choice) == decision, (
            "no choice helps while both are read from that location"
        )
    dropped = partition_at(None, None, original=shared, current=PUBLISHED_FILES)
    elsewhere = replace(
        partition_at("elsewhere", None, original=shared, current=PUBLISHED_FILES, elsewhere=location_with()),
        created_at=7,
    )
    for quiet in (dropped, elsewhere):
        decision = decide(record, quiet, timedelta())
        assert (decision.action, replaced_files_to_archive(record, quiet)) == (RelocationAction.NOTHING, ())


@pytest.mark.parametrize("created_at", [0, 5], ids=["the same partition", "created anew"])
def test_rule_7_an_unknown_token_concerns_only_its_partition_if_that_was_created_anew(created_at: int):
    """Hive's ``EXCHANGE PARTITION`` brings the token of another table's partition along: it halted the whole table."""
    state = partition_at("own", "v9", original=UNCHANGED, current=PUBLISHED_FILES, own=location_with(LATE_FILE))
    decision = decide(relocated(PREVIOUS), replace(state, created_at=created_at), NO_TIME)
    assert decision.action is RelocationAction.HALT
    assert decision.concerns_table is (created_at == relocated(PREVIOUS).latest.partition_created_at)
    assert "names v9, and its last move is v2" in decision.reason
    readded = replace(state, token=None, created_at=created_at + 1)
    assert decide(relocated(PREVIOUS), readded, NO_TIME).action is RelocationAction.NOTHING


def test_rule_6_a_partition_recreated_over_replaced_files_that_another_partition_needs_is_halted():
    """They stay for the other partition, so a plan would merge the replaced rows with the new ones."""
    shared = replace(PREVIOUS, shared_files=frozenset(PREVIOUS.expected_files))
    record = replace(relocated(shared), original_location="original")
    again = replace(partition_at("original", None, original=UNCHANGED, current=PUBLISHED_FILES), created_at=7)
    decision = decide(record, again, timedelta())
    assert (decision.action, decision.concerns_table) == (RelocationAction.HALT, False)
    assert "since another partition has left this directory as well" in decision.reason
    new = location_with(file("original/new", LATE))
    deleted = replace(again, locations={**again.locations, "original": new})
    assert decide(record, deleted, timedelta()).action is RelocationAction.NOTHING
