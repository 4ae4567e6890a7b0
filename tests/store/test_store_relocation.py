# SPDX-License-Identifier: Apache-2.0
"""The records of relocated partitions: previous locations, late copies, files that wait for their deletion."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest
from relocated import LATE, NEW, completed, known, moved_on
from store_plans import TRIPS, add, claimed, commit_of, figures_of, sql

from executors.relocation.sweep import partitions_awaiting_sweep
from lake.model import TableRef
from lake.plan import Commit, Plan, Relocation, StagedWork
from lake.ports import TableFormat
from lake.relocation.catalog_changes import reverted_by_writer
from lake.relocation.model import (
    LocationState,
    NamedRelocation,
    PartitionState,
    RelocatedPartition,
)
from service.control.store import ErrorClass, Store

pytestmark = pytest.mark.paired("database_url")


def test_a_commits_relocations_are_recorded_with_the_expected_files_of_the_previous_location(
    store: Store, database_url: str
) -> None:
    plan = completed(store)
    found = known(store)
    assert (found.latest.token, found.latest.files, found.latest.partition_created_at, found.plan_id) == (
        "v1",
        (NEW,),
        7,
        plan.plan_id,
    )
    assert (found.original_location, found.begun_relocations, found.is_waiting, found.late_copies) == (
        "dt=1",
        (),
        False,
        (),
    )
    (former,) = found.previous_locations
    assert (former.location, former.token, former.is_cleaning_begun) == ("dt=1", "v1", False)
    assert {file.path for file in former.expected_files} == {"dt=1/0.parquet", "dt=1/1.parquet"}
    assert (store.relocated_partitions(TRIPS, ["dt=2"]), store.relocated_tables()) == ([], {TRIPS.name})
    (lately,) = store.recently_relocated(TRIPS, store.recently_vacated(TRIPS, timedelta(hours=1), 9))
    of_recent_rows = {"since_relocation": timedelta(), "owner_location": ""}
    assert replace(lately, **of_recent_rows) == replace(known(store), **of_recent_rows)
    assert lately.owner_location == ""
    sql(database_url, "UPDATE place_move SET begun_at_ms = 0")
    assert store.relocated_tables(timedelta(hours=1)) == frozenset()
    assert store.recently_vacated(TRIPS, timedelta(hours=1), 9) == []


def test_files_that_the_cleaner_is_deleting_are_no_longer_expected(store: Store) -> None:
    completed(store)
    first, second = store.awaiting_deletion(TRIPS)
    store.begin_deletion([first.row_id])
    (former,) = known(store).previous_locations
    assert (former.is_cleaning_begun, [file.path for file in former.expected_files]) == (True, [second.version.path])
    assert [file.path for file in former.possible_files] == [first.version.path]
    assert former.deleting_files == former.possible_files
    store.record_removed_files(TRIPS, former, former.expected_files)
    (former,) = known(store).previous_locations
    assert (former.expected_files, [due.row_id for due in store.awaiting_deletion(TRIPS)]) == ((), [first.row_id])


def test_a_late_copy_has_one_row_for_all_attempts_and_its_source_waits_for_deletion_afterwards(
    store: Store,
) -> None:
    completed(store)
    for came in (6_000, 7_000):
        store.begin_late_copies(TRIPS, "dt=1", [(LATE, "v1/dt=1/carried")], {LATE: came})
    (carry,) = known(store).late_copies
    assert (carry.source, carry.target, carry.is_done) == (LATE, "v1/dt=1/carried", False)
    former = known(store).previous_locations[0]
    for _ in range(2):
        store.end_late_copies(TRIPS, [(carry, former)])
    assert [carry.is_done for carry in known(store).late_copies] == [True]
    assert LATE in known(store).previous_locations[0].expected_files
    store.begin_late_copies(TRIPS, "dt=1", [(LATE, "v1/dt=1/carried")], {LATE: 8_000})
    assert [carry.is_done for carry in known(store).late_copies] == [True], "it is there"
    store.begin_late_copies(TRIPS, "dt=1", [(LATE, "elsewhere/carried")], {LATE: 9_000})
    assert [(carry.target, carry.is_done) for carry in known(store).late_copies] == [("elsewhere/carried", False)]
    assert [carry.arrived_ms for carry in known(store).late_copies] == [6_000], "a copy is no arrival"


def test_a_begun_relocation_counts_once_it_is_made_and_its_replaced_files_wait_for_deletion_from_then_on(
    store: Store,
) -> None:
    plan = completed(store)
    back = Relocation(partition="dt=1", token="back", previous_location="v1/dt=1", location="dt=1", files=(LATE,))
    store.begin_relocation(TRIPS, back, plan.plan_id, [NEW])
    assert (known(store).latest.token, known(store).begun_relocations) == ("v1", (back,))
    store.discard_relocations(TRIPS, [back])
    assert known(store).begun_relocations == ()
    assert ("dt=1", "back") in known(store).earlier_locations, "the catalog may make it late"
    store.begin_relocation(TRIPS, back, plan.plan_id, [NEW])
    for _ in range(2):
        store.end_relocation(TRIPS, back)
    found = known(store)
    assert (found.latest, found.begun_relocations, [former.expected_files for former in found.previous_locations]) == (
        back,
        (),
        [(NEW,)],
    )
    store.supersede_files(TRIPS, "dt=1", found.previous_locations[0], [replace(NEW, bytes=10)])
    assert known(store).previous_locations[0].expected_files == (replace(NEW, bytes=10),), "one file has a name"
    store.record_archived_files(TRIPS, "dt=1", {replace(NEW, bytes=10): "aside/new.parquet"})
    assert [file.path for file in known(store).previous_locations[0].expected_files] == ["aside/new.parquet"]
    assert [entry.action for entry in store.audit_entries()] == ["files moved aside"]


def test_locations_of_an_earlier_table_of_the_same_name_do_not_belong_to_the_present_table(
    store: Store, database_url: str
) -> None:
    plan = completed(store)
    back = Relocation(partition="dt=1", token="back", previous_location="v1/dt=1", location="dt=1", files=(LATE,))
    store.begin_relocation(TRIPS, back, plan.plan_id, [NEW])
    store.end_relocation(TRIPS, back)
    sql(database_url, "UPDATE plan SET identity = 'made at 1'")
    assert (known(store).table_identity, [former.location for former in known(store).previous_locations]) == (
        "made at 1",
        ["v1/dt=1"],
    )
    again = add(store, "dt=1")
    move = Relocation(partition="dt=1", token="v2", previous_location="dt=1", location="v2/dt=1", files=(NEW,))
    store.complete(claimed(store), replace(commit_of(again, "v2"), relocations=(move,)), figures_of(again), {})
    assert [former.location for former in known(store).previous_locations] == ["dt=1", "v1/dt=1"], (
        "nothing says that it is another one"
    )
    sql(database_url, f"UPDATE plan SET identity = 'made at 2' WHERE id = '{again.plan_id}'")
    found = known(store)
    assert (
        found.table_identity,
        found.original_location,
        [former.location for former in found.previous_locations],
    ) == ("made at 2", "dt=1", ["dt=1"])


class CatalogWithRecreatedPartition:
    """A catalog in which the partition was dropped and made again, over the files that a plan had replaced."""

    def __init__(self, record: RelocatedPartition, identity: str) -> None:
        self._record, self._identity = record, identity

    def identity(self, table: TableRef) -> str:
        return self._identity

    def named_relocations(self, table: TableRef, partitions: Collection[str]) -> Mapping[str, NamedRelocation]:
        return {}

    def other_readers(
        self, table: TableRef, locations: Mapping[str, str], *, max_age: timedelta | None = None
    ) -> Mapping[str, str]:
        return {}

    def applied_commits(self, table: TableRef, staged: Collection[StagedWork]) -> Sequence[Commit]:
        return ()

    def inspect_locations(
        self, table: TableRef, relocated: Sequence[RelocatedPartition]
    ) -> Mapping[str, PartitionState]:
        (former,) = self._record.previous_locations
        places = {
            "v1/dt=1": LocationState(files={NEW: 9_000}),
            "dt=1": LocationState(files=dict.fromkeys(former.expected_files, 1)),
        }
        return {
            one.partition: PartitionState(location="dt=1", token=None, locations=places, created_at=8)
            for one in relocated
        }


@pytest.mark.parametrize(("now", "in_the_way"), [("made at 1", True), ("made at 2", False)])
def test_replaced_files_block_a_recreated_partition_but_not_a_recreated_table(
    store: Store, database_url: str, now: str, in_the_way: bool
) -> None:
    completed(store)
    sql(database_url, "UPDATE plan SET identity = 'made at 1'")
    catalog = cast("TableFormat", CatalogWithRecreatedPartition(known(store), now))
    assert bool(partitions_awaiting_sweep(TRIPS, format=catalog, store=store, partitions=["dt=1"])) is in_the_way


def test_the_time_of_consecutive_wait_decisions_is_kept_until_another_decision(store: Store, database_url: str) -> None:
    completed(store)
    assert store.update_waiting(TRIPS, known(store), True) < timedelta(minutes=1)
    assert known(store).is_waiting
    sql(database_url, "UPDATE place_move SET unsettled_since_ms = unsettled_since_ms - 3600000")
    assert store.update_waiting(TRIPS, known(store), True) >= timedelta(hours=1)
    store.update_waiting(TRIPS, known(store), False)
    assert not known(store).is_waiting


def test_a_table_is_halted_for_the_first_reason(store: Store) -> None:
    completed(store)
    for reason in ("the first", "the second"):
        store.halt_table(TRIPS, reason)
    assert store.table_state(TRIPS.name).halted_reason == "the first"


def test_partitions_are_halted_singly_for_the_first_reason_until_they_or_their_table_are_resumed(
    store: Store,
) -> None:
    completed(store)
    first = [store.halt_partition(TRIPS, f"dt={number}", f"reason {number}") for number in (1, 2, 2, 3)]
    assert first == [True, True, False, True]
    assert store.halted_partitions(TRIPS) == {f"dt={number}": f"reason {number}" for number in (1, 2, 3)}
    assert not store.table_state(TRIPS.name).halted
    store.resume_partitions(TRIPS.name, ["dt=1", "dt=9"], "ada")
    assert store.halted_partitions(TRIPS).keys() == {"dt=2", "dt=3"}
    store.resume(TRIPS.name, "ada")
    assert store.halted_partitions(TRIPS) == {}
    trail = [(one.action, one.detail) for one in store.audit_entries(table=TRIPS.name)]
    assert trail == [("resumed", ""), ("resumed", "partition dt=1")]


def test_a_table_is_halted_as_a_whole_if_it_has_no_partitions_or_too_many_halted_ones(store: Store) -> None:
    completed(store)
    assert [store.halt_partition(TRIPS, "", why) for why in ("the first", "the second")] == [True, False]
    assert (store.table_state(TRIPS.name).halted_reason, store.halted_partitions(TRIPS)) == ("the first", {})
    store.resume(TRIPS.name, "ada")
    halted = [store.halt_partition(TRIPS, f"dt={number}", "all overwritten") for number in range(102)]
    assert halted == [True] * 101 + [False]
    state = store.table_state(TRIPS.name)
    assert len(state.halted_partitions) == 100
    assert state.halted_reason == "more than 100 partitions are halted, partition dt=100 among them: all overwritten"


def test_a_plan_that_fails_because_of_partitions_halts_these_and_not_its_table(store: Store) -> None:
    plan = add(store, "dt=1")
    store.fail(claimed(store), "dt=1 is gone", halt=True, partitions={"dt=1": "dt=1 is gone"})
    state = store.table_state(TRIPS.name)
    assert (state.halted, state.halted_partitions["dt=1"].reason) == (False, f"plan {plan.plan_id}: dt=1 is gone")
    assert store.plan(plan.plan_id).error_class is ErrorClass.INTEGRITY


def ended(store: Store, token: str = "va") -> tuple[Plan, Commit]:
    """A plan that was let go, and the commit that its executor has made or makes all the same."""
    plan = add(store, "dt=1")
    claim = claimed(store)
    store.record_staged(claim, StagedWork(token=token, paths=()))
    store.cancel(claim, "no answer", actor="ada")
    file = replace(NEW, path=f"{token}/dt=1/new.parquet")
    move = Relocation(
        partition="dt=1",
        token=token,
        previous_location="dt=1",
        location=f"{token}/dt=1",
        files=(file,),
        partition_created_at=7,
    )
    return plan, replace(commit_of(plan, token), relocations=(move,))


def followed(store: Store, left: str) -> Plan:
    """A plan that has moved the partition since, from there."""
    plan = add(store, "dt=1")
    move = Relocation(
        partition="dt=1", token="vb", previous_location=left, location="vb/dt=1", files=(LATE,), partition_created_at=7
    )
    files = tuple(
        replace(one, path=f"{left}/{one.path.rpartition('/')[2]}") for one in commit_of(plan, "vb").superseded
    )
    commit = replace(commit_of(plan, "vb"), relocations=(move,), superseded=files)
    store.complete(claimed(store), commit, figures_of(plan), {})
    return plan


def test_a_partition_that_its_owner_added_again_has_an_earlier_location_without_a_token(store: Store) -> None:
    completed(store)
    plan = add(store, "dt=1")
    move = Relocation(
        partition="dt=1",
        token="v2",
        previous_location="v1/dt=1",
        location="v2/dt=1",
        files=(LATE,),
        partition_created_at=8,
    )
    store.complete(claimed(store), replace(commit_of(plan, "v2"), relocations=(move,)), figures_of(plan), {})
    found = known(store)
    assert found.earlier_locations == {("dt=1", None), ("v1/dt=1", "v1"), ("v1/dt=1", None)}
    places = {place: LocationState() for place in found.locations}
    seen = PartitionState(location="v1/dt=1", token=None, created_at=8, locations=places)
    assert reverted_by_writer(found, seen) == ("v1/dt=1", None)
    assert reverted_by_writer(found, replace(seen, created_at=7)) is None


def given_up(store: Store) -> dict[str, bool]:
    """The previous locations that the owner had moved the partition away from, and whether they are released."""
    return {one.location: one.is_released for one in known(store).previous_locations if one.is_before_owner_move}


def test_a_partition_in_the_tables_root_returns_there_and_not_to_a_directory_of_its_name(store: Store) -> None:
    moved_on(store, 1, "")
    assert known(store).owner_location == ""


def test_rule_7_a_directory_that_the_owner_has_given_up_is_released_until_the_partition_leaves_it_again(
    store: Store, database_url: str
) -> None:
    moved_on(store, 1, "dt=1")
    assert (given_up(store), known(store).owner_location) == ({}, "dt=1")
    ahead = 10**15
    moved_on(store, 2, "/elsewhere", ahead)
    (former,) = (one for one in known(store).previous_locations if one.is_before_owner_move)
    assert (former.location, former.owner_moved_ms, known(store).owner_location) == ("dt=1", ahead, "/elsewhere")
    vacated = store.recently_vacated(TRIPS, timedelta(hours=1), 9)
    for _ in range(2):
        store.release_locations(TRIPS, "dt=1", [former])
    assert given_up(store) == {"dt=1": True}
    assert store.recently_vacated(TRIPS, timedelta(hours=1), 9) == vacated, "a release is no relocation"
    moved_on(store, 3, ".lakefold/v2/dt=1")
    assert given_up(store) == {"dt=1": True}
    (former,) = (one for one in known(store).previous_locations if one.is_before_owner_move)
    assert former.owner_moved_ms is not None
    assert former.owner_moved_ms < ahead, "the storage's clock is read from the latest relocation's files only"
    sql(database_url, "DELETE FROM superseded_version")
    sql(database_url, "DELETE FROM place_move WHERE token = 'v2'")
    assert given_up(store) == {}, "after a pruned relocation, a version shows no move by the owner"
    moved_on(store, 4, "/elsewhere")
    assert given_up(store) == {"dt=1": True, ".lakefold/v2/dt=1": False}
    moved_on(store, 5, "dt=1")
    assert given_up(store) == {"/elsewhere": False}
    moved_on(store, 6, "/elsewhere")
    assert given_up(store) == {"dt=1": False, ".lakefold/v2/dt=1": False}, "it was released before it was left again"


def recorded(store: Store, commit: Commit) -> bool:
    return store.complete_unrecorded(commit, figures_of)


def test_a_commit_recorded_after_its_successor_keeps_its_position_before_it(store: Store) -> None:
    _, commit = ended(store)
    followed(store, left="va/dt=1")
    assert recorded(store, commit)
    found = known(store)
    assert (found.latest.token, found.latest.files, found.original_location) == ("vb", (LATE,), "dt=1")
    assert found.earlier_locations == {("dt=1", None), ("va/dt=1", "va")}
    assert {former.location: len(former.expected_files) for former in found.previous_locations} == {
        "dt=1": 2,
        "va/dt=1": 2,
    }


def test_the_files_of_a_commit_that_was_undone_before_another_commit_are_expected_at_their_location(
    store: Store,
) -> None:
    plan, commit = ended(store)
    other = followed(store, left="dt=1")
    assert recorded(store, commit)
    found = known(store)
    assert (found.latest.token, found.latest.files, found.original_location) == ("vb", (LATE,), "dt=1")
    assert ("va/dt=1", "va") in found.earlier_locations
    assert {(former.location, former.plan_id, len(former.expected_files)) for former in found.previous_locations} == {
        ("dt=1", other.plan_id, 2),
        ("va/dt=1", plan.plan_id, 1),
    }
    assert not recorded(store, commit)


def test_a_commit_of_a_superseded_attempt_is_recorded_besides_that_of_its_successor(
    store: Store, database_url: str
) -> None:
    plan = add(store, "dt=1")
    claim = claimed(store)
    store.record_staged(claim, StagedWork(token="va", paths=()))
    store.requeue(claim, "no answer")
    sql(database_url, "UPDATE plan SET not_before_ms = 0")
    undone = Relocation(
        partition="dt=1", token="va", previous_location="dt=1", location="va/dt=1", files=(NEW,), partition_created_at=7
    )
    commit = replace(commit_of(plan, "va"), relocations=(undone,))
    assert not store.add_relocations(TRIPS, commit), "it may yet be this plan's"
    move = Relocation(
        partition="dt=1",
        token="vb",
        previous_location="dt=1",
        location="vb/dt=1",
        files=(LATE,),
        partition_created_at=7,
    )
    store.complete(claimed(store), replace(commit_of(plan, "vb"), relocations=(move,)), figures_of(plan), {})
    assert [store.add_relocations(TRIPS, commit) for _ in range(2)] == [True, False]
    found = known(store)
    assert (found.latest.token, {former.location for former in found.previous_locations}) == ("vb", {"dt=1", "va/dt=1"})
    assert store.orphaned_stagings(TRIPS) == []


def test_a_renamed_partition_is_found_by_the_relocation_and_the_creation_time_that_it_still_has(store: Store) -> None:
    completed(store)
    named = NamedRelocation(token="v1", location="dt=9", partition_created_at=7)
    assert store.partitions_of_relocations(TRIPS, [named]) == {"dt=1"}
    for other in (replace(named, token="v2"), replace(named, partition_created_at=8)):
        assert store.partitions_of_relocations(TRIPS, [other]) == set()
    assert store.partitions_of_relocations(replace(TRIPS, name="demo.other"), [named]) == set()
