# SPDX-License-Identifier: Apache-2.0
"""Directories that two partitions of a table have left: what the record of one partition shows of the other one."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from relocated import completed, known
from store_plans import TRIPS, add, claimed, commit_of, figures_of, sql

from lake.errors import Integrity
from lake.plan import LocatedFile, Plan, Relocation
from lake.relocation.capabilities import returned_reason
from lake.relocation.model import (
    ModifiedFile,
    PreviousLocation,
    RelocatedPartition,
)
from service.control.store import Store

pytestmark = pytest.mark.paired("database_url")


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
