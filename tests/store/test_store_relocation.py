# SPDX-License-Identifier: Apache-2.0
"""The records of relocated partitions: previous locations, late copies, files that wait for their deletion."""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest
from relocated import LATE, NEW, completed, known, moved_on
from store_plans import TRIPS, add, claimed, commit_of, figures_of, sql

from executors.relocation.sweep import partitions_awaiting_sweep
from lake.errors import Integrity
from lake.model import TableRef
from lake.plan import Commit, LocatedFile, LockOwner, LockOwnerKind, Plan, Relocation, StagedWork
from lake.ports import TableFormat
from lake.relocation.capabilities import returned_reason
from lake.relocation.catalog_changes import reverted_by_writer
from lake.relocation.model import (
    LocationState,
    ModifiedFile,
    NamedRelocation,
    PartitionState,
    PreviousLocation,
    RelocatedPartition,
)
from service.control.store import ErrorClass, PartitionsLocked, Store

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


def test_a_late_file_of_a_directory_that_two_partitions_left_is_copied_once_for_each(store: Store) -> None:
    late = LocatedFile(path="dt=1/late.parquet", bytes=1, modified_ms=1_000)
    completed(store)
    left_too(store)
    for _ in range(2):
        store.begin_late_copies(TRIPS, "dt=1", [(late, "v1/dt=1/carried.parquet")], {})
        store.begin_late_copies(TRIPS, "dt=2", [(late, "v2/dt=2/carried.parquet")], {})
    with pytest.raises(Integrity, match="is copied for partition dt=1 only"):
        store.begin_late_copies(TRIPS, "dt=3", [(late, "v3/dt=3/carried.parquet")], {}, former_names={"dt=1"})
    records = store.relocated_partitions(TRIPS)
    assert [[(one.target, one.is_done) for one in record.late_copies] for record in records] == [
        [("v1/dt=1/carried.parquet", False)],
        [("v2/dt=2/carried.parquet", False)],
    ]


def left_too(store: Store, token: str = "v2") -> Plan:
    """Partition ``dt=2``, which was read from the same files, leaves the directory of ``dt=1`` as well."""
    plan = add(store, "dt=2")
    new = LocatedFile(path=f"{token}/dt=2/new.parquet", bytes=9, modified_ms=9_000)
    move = Relocation(partition="dt=2", token=token, previous_location="dt=1", location=f"{token}/dt=2", files=(new,))
    commit = commit_of(plan, token)
    files = tuple(replace(one, path=one.path.replace("dt=2/", "dt=1/")) for one in commit.superseded)
    store.complete(claimed(store), replace(commit, superseded=files, relocations=(move,)), figures_of(plan), {})
    return plan


def directory_of_both(store: Store) -> PreviousLocation:
    """The directory that ``dt=1`` has left, and from which ``dt=2`` was read afterwards."""
    return store.relocated_partitions(TRIPS, ["dt=1"])[0].previous_locations[0]


def test_files_that_another_partition_has_replaced_too_are_expected_until_their_deletion_begins(store: Store) -> None:
    completed(store)
    (before,) = known(store).previous_locations
    left_too(store)
    files = frozenset(before.expected_files)
    assert directory_of_both(store) == replace(
        before, shared_files=files, shared_with=frozenset({(TRIPS.location, "v2", "dt=2")})
    )
    first, second = store.awaiting_deletion(TRIPS)
    assert {first.version.partition, second.version.partition} == {"dt=2"}, "deleted after its retention"
    store.begin_deletion([first.row_id])
    begun = directory_of_both(store)
    assert [one.path for one in begun.expected_files] == [second.version.path]
    assert [one.path for one in begun.deleting_files] == [first.version.path]
    assert (begun.deleting_files, begun.is_cleaning_begun, begun.shared_files) == (begun.possible_files, True, files)
    store.mark_deleted([first.row_id])
    ended = directory_of_both(store)
    assert ended == replace(begun, deleting_files=())


def test_files_that_a_writer_has_removed_from_another_partition_are_expected_until_they_are_seen_removed(
    store: Store,
) -> None:
    completed(store)
    files = known(store).previous_locations[0].expected_files
    left_too(store)
    (_, other) = store.relocated_partitions(TRIPS)
    store.record_removed_files(TRIPS, other.previous_locations[0], files)
    shared = directory_of_both(store)
    assert (shared.expected_files, shared.is_cleaning_begun) == (files, False)
    store.record_removed_files(TRIPS, shared, files)
    assert (directory_of_both(store).expected_files, directory_of_both(store).shared_files) == ((), frozenset())


@pytest.mark.parametrize("owner", ["dt=1", "dt=2"])
def test_a_late_file_that_grew_after_two_partitions_had_copied_it_is_expected_until_each_has_its_new_rows(
    store: Store, owner: str
) -> None:
    completed(store)
    left_too(store)
    late = LocatedFile(path="dt=1/late.parquet", bytes=1, modified_ms=10_000)
    grown = replace(late, bytes=2, modified_ms=20_000)

    def record_of(partition: str) -> RelocatedPartition:
        return store.relocated_partitions(TRIPS, [partition])[0]

    def late_files(partition: str) -> list[LocatedFile]:
        return [one for one in record_of(partition).previous_locations[0].expected_files if one.path == late.path]

    for partition in sorted(["dt=1", "dt=2"], key=owner.__eq__):
        store.begin_late_copies(TRIPS, partition, [(late, f"{partition}/carried.parquet")], {})
        record = record_of(partition)
        store.end_late_copies(TRIPS, [(record.late_copies[0], record.previous_locations[0])])
    (other,) = {"dt=1", "dt=2"} - {owner}
    for partition, expected in ((owner, (grown, late)), (other, (grown, grown))):
        record, copy = record_of(partition), replace(grown, path=f"{partition}/carried.parquet")
        modified = ModifiedFile(recorded=late, current=grown, copy_path=copy.path)
        store.record_modified_files(TRIPS, record.latest, [(modified, record.previous_locations[0], copy)])
        assert (late_files(owner), late_files(other)) == ([expected[0]], [expected[1]])


def test_files_of_a_directory_to_which_another_partition_has_returned_are_expected(store: Store) -> None:
    """If they are gone, a writer has removed them: lakefold did not begin to delete them."""
    completed(store)
    files = known(store).previous_locations[0].expected_files
    left_too(store)
    again = returned_reason("dt=2", "/lake/trips/dt=1")
    store.close_superseded({one.row_id: again for one in store.awaiting_deletion(TRIPS)})
    shared = directory_of_both(store)
    assert (shared.expected_files, shared.shared_files, shared.possible_files) == (files, frozenset(files), ())


def test_files_that_a_partition_has_replaced_again_after_its_return_are_deleted_for_the_other_one_too(
    store: Store,
) -> None:
    """Their deletion looked like a writer's to the first partition, which was halted after an hour."""
    completed(store)
    files = known(store).previous_locations[0].expected_files
    left_too(store)
    again = returned_reason("dt=2", "/lake/trips/dt=1")
    store.close_superseded({one.row_id: again for one in store.awaiting_deletion(TRIPS)})
    assert directory_of_both(store).expected_files == files
    left_too(store, "v3")
    shared = directory_of_both(store)
    assert (shared.expected_files, shared.shared_files) == (files, frozenset(files))
    assert shared.shared_with == frozenset({(TRIPS.location, "v3", "dt=2")}), (
        "its deletion is marked under the last relocation"
    )
    store.begin_deletion([one.row_id for one in store.awaiting_deletion(TRIPS)])
    shared = directory_of_both(store)
    assert (shared.expected_files, shared.deleting_files, shared.is_cleaning_begun) == ((), files, True)


def test_a_file_is_expected_while_a_later_file_of_its_name_is_deleted_for_another_partition(store: Store) -> None:
    completed(store)
    files = known(store).previous_locations[0].expected_files
    left_too(store)
    (_, other) = store.relocated_partitions(TRIPS)
    later = [replace(one, bytes=one.bytes + 1) for one in files]
    store.supersede_files(TRIPS, "dt=2", other.previous_locations[0], later)
    store.begin_deletion([one.row_id for one in store.awaiting_deletion(TRIPS)])
    shared = directory_of_both(store)
    assert (shared.expected_files, shared.shared_files, shared.deleting_files) == (files, frozenset(files), ())


def with_two_records(store: Store, database_url: str) -> LocatedFile:
    """Sweeps of two partitions have recorded the same late file at once; returns it."""
    late = LocatedFile(path="dt=1/late.parquet", bytes=1, modified_ms=10_000)
    completed(store)
    left_too(store)
    for partition in ("dt=1", "dt=2"):
        store.begin_late_copies(TRIPS, partition, [(late, f"{partition}/carried.parquet")], {})
        (record,) = store.relocated_partitions(TRIPS, [partition])
        store.end_late_copies(TRIPS, [(record.late_copies[0], record.previous_locations[0])])
    waiting = "UPDATE superseded_version SET deleted_at_ms = NULL, closed_reason = NULL WHERE path = :path"
    sql(database_url, waiting, path=late.path)
    return late


def test_the_deletion_of_a_late_file_that_two_sweeps_recorded_at_once_counts_for_both_partitions(
    store: Store, database_url: str
) -> None:
    late = with_two_records(store, database_url)
    assert late in directory_of_both(store).expected_files
    both = [due for due in store.awaiting_deletion(TRIPS) if due.version.path == late.path]
    rows = {due.version.partition: due.row_id for due in both}
    assert rows.keys() == {"dt=1", "dt=2"}
    assert store.begin_deletion([rows["dt=2"]]) == {rows["dt=2"]}
    begun = directory_of_both(store)
    assert (late in begun.expected_files, begun.deleting_files, begun.is_cleaning_begun) == (False, (late,), True)


def test_a_late_file_that_two_sweeps_recorded_at_once_is_moved_aside_for_both_partitions(
    store: Store, database_url: str
) -> None:
    late = with_two_records(store, database_url)
    store.record_archived_files(TRIPS, "dt=2", {late: "aside/late.parquet"})
    assert late not in directory_of_both(store).files_in_place
    assert "aside/late.parquet" in {one.path for one in directory_of_both(store).expected_files}


def test_late_files_that_two_sweeps_record_at_once_are_deleted_for_both_partitions(
    store: Store, database_url: str
) -> None:
    completed(store)
    left_too(store)
    late = [LocatedFile(path=f"dt=1/late-{number}.parquet", bytes=1, modified_ms=10_000) for number in range(200)]
    records = {}
    for partition in ("dt=1", "dt=2"):
        store.begin_late_copies(TRIPS, partition, [(one, f"{partition}/{one.name}") for one in late], {})
        (records[partition],) = store.relocated_partitions(TRIPS, [partition])

    def end(partition: str) -> None:
        with contextlib.closing(Store(database_url)) as opened:
            record = records[partition]
            opened.end_late_copies(TRIPS, [(one, record.previous_locations[0]) for one in record.late_copies])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(end, records))
    due = {one.row_id: one.version.path for one in store.awaiting_deletion(TRIPS) if one.version.partition == "dt=2"}
    store.begin_deletion(list(due))
    assert {one.path for one in directory_of_both(store).expected_files}.isdisjoint(due.values())


def test_files_that_were_moved_aside_for_another_partition_are_not_expected(store: Store) -> None:
    completed(store)
    files = known(store).previous_locations[0].expected_files
    left_too(store)
    aside = {file: f"aside/{file.path}" for file in files}
    store.record_archived_files(TRIPS, "dt=2", aside)
    assert (directory_of_both(store).expected_files, directory_of_both(store).possible_files) == ((), files)


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


class AtHome:
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
    catalog = cast("TableFormat", AtHome(known(store), now))
    assert bool(partitions_awaiting_sweep(TRIPS, format=catalog, store=store, partitions=["dt=1"])) is in_the_way


def test_the_time_of_consecutive_wait_decisions_is_kept_until_another_decision(store: Store, database_url: str) -> None:
    completed(store)
    assert store.update_waiting(TRIPS, known(store), True) < timedelta(minutes=1)
    assert known(store).is_waiting
    sql(database_url, "UPDATE place_move SET unsettled_since_ms = unsettled_since_ms - 3600000")
    assert store.update_waiting(TRIPS, known(store), True) >= timedelta(hours=1)
    store.update_waiting(TRIPS, known(store), False)
    assert not known(store).is_waiting


SWEEP, NEXT = (LockOwner(kind=LockOwnerKind.SWEEP, name=name) for name in ("a round", "the next round"))


def kept(store: Store, keeper: LockOwner = SWEEP) -> bool:
    return bool(store.lock_partitions(TRIPS, ["dt=1"], keeper, alongside_plans=True))


def test_a_sweep_may_lock_a_partition_alongside_a_plan_but_not_from_its_commit_on(store: Store) -> None:
    add(store, "dt=1")
    assert not store.lock_partitions(TRIPS, ["dt=1"], SWEEP), "not without asking for that"
    assert [kept(store), kept(store), kept(store, NEXT)] == [True, True, False]
    claim = claimed(store)
    assert store.begin_commit(claim) == {"dt=1"}
    store.release_partitions(SWEEP)
    assert [store.begin_commit(claim), kept(store), store.begin_commit(claim)] == [frozenset(), False, frozenset()]
    store.requeue(claim, "a lost connection")
    assert kept(store)


@pytest.mark.parametrize("beside_a_plan", [True, False])
def test_a_sweep_whose_lock_expired_does_not_continue_although_no_other_owner_had_the_lock(
    store: Store, database_url: str, beside_a_plan: bool
) -> None:
    if beside_a_plan:
        add(store, "dt=1")
    else:
        completed(store)
    assert (kept(store), store.renew_partitions(TRIPS, ["dt=1", "dt=2"], SWEEP)) == (True, {"dt=1"})
    assert store.renew_partitions(TRIPS, ["dt=1"], NEXT) == frozenset()
    ends = "guest_until_ms" if beside_a_plan else "expires_at_ms"
    sql(database_url, f"UPDATE live_partition SET {ends} = {ends} - 120000")
    assert store.renew_partitions(TRIPS, ["dt=1"], SWEEP) == frozenset()
    assert kept(store, NEXT)
    store.release_partitions(NEXT)
    assert store.renew_partitions(TRIPS, ["dt=1"], SWEEP) == frozenset(), (
        "it was free, and another owner has locked it since"
    )


def test_a_plan_commits_if_a_sweep_has_not_renewed_its_lock_for_some_minutes(store: Store, database_url: str) -> None:
    add(store, "dt=1")
    claim = claimed(store)
    assert kept(store)
    sql(database_url, "UPDATE live_partition SET guest_until_ms = guest_until_ms - 120000")
    assert (store.begin_commit(claim), kept(store)) == (frozenset(), False), "and the round learns that it is over"


def test_a_sweep_keeps_its_lock_on_a_partition_when_the_plan_alongside_ends(store: Store) -> None:
    add(store, "dt=1")
    claim = claimed(store)
    assert kept(store)
    store.cancel(claim, "no need", actor="ada")
    with pytest.raises(PartitionsLocked, match=r"dt=1 by the sweep \(a round\)"):
        add(store, "dt=1")
    assert [kept(store, NEXT), kept(store)] == [False, True]
    store.release_partitions(SWEEP)
    add(store, "dt=1")


def test_the_cleaner_may_lock_a_partition_of_a_waiting_plan_and_delays_its_commit(store: Store) -> None:
    cleaner, later = (LockOwner(kind=LockOwnerKind.CLEANER, name=name) for name in ("a cleaner", "a later one"))
    plan = add(store, "dt=1")
    assert [kept(store, cleaner), kept(store)] == [True, False]
    claim = claimed(store)
    assert [kept(store, cleaner), kept(store), store.begin_commit(claim)] == [True, False, {"dt=1"}]
    store.release_partitions(cleaner)
    assert not kept(store, later), "an executor runs it now"
    assert [store.begin_commit(claim), kept(store, cleaner)] == [frozenset(), False]
    store.requeue(claim, "a lost connection")
    assert kept(store, cleaner)
    store.request_cancel(plan.plan_id, "ada")
    assert [kept(store, later), kept(store, cleaner)] == [False, True], "it goes on when the plan beside it ends"
    store.release_partitions(cleaner)
    assert kept(store, later)


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
    store.fail(claimed(store), "dt=1 is gone", halt=True, partitions=["dt=1"])
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
