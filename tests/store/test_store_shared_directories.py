# SPDX-License-Identifier: Apache-2.0
"""Directories that partitions of two tables have left: what the records of one table show of the other one."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from store_plans import TRIPS, claimed, commit_of, figures_of, make_plan, sql

from lake.model import TableRef
from lake.plan import Claim, LocatedFile, Relocation, StagedWork
from lake.relocation.model import PlanElsewhere, PreviousLocation
from lake.storage.locations import relative_path, resolve_path
from service.control.store import Store

pytestmark = pytest.mark.paired("database_url")

DIRECTORY = "/landing/d1"
WRITTEN = datetime.fromtimestamp(5, UTC)


@pytest.fixture(params=[("/warehouse/a", "/warehouse/b"), ("/warehouse/a", "/landing"), ("/landing", "/warehouse/b")])
def tables(store: Store, request: pytest.FixtureRequest) -> Sequence[TableRef]:
    """Two tables; the directory is outside of both, or below the directory of one of them."""
    made = [replace(TRIPS, name=name, location=at) for name, at in zip("ab", request.param, strict=True)]
    for table in made:
        store.register_table(table, "compact")
    return made


def at(table: TableRef) -> str:
    """The directory in the spelling of a table."""
    return relative_path(table.location, DIRECTORY)


def begun(store: Store, table: TableRef, partition: str) -> Claim:
    """The claim of a plan that rewrites two files of the directory."""
    plan = make_plan(partition, table=table)
    slices = tuple(replace(one, path=f"{at(table)}/{n}.parquet") for n, one in enumerate(plan.groups[0].slices))
    plan = replace(plan, groups=(replace(plan.groups[0], slices=slices),))
    store.add_plan(plan, request_id=None, actor="test", estimate={})
    return claimed(store)


def left(store: Store, table: TableRef, partition: str, token: str) -> None:
    """Compact a partition that is read from the directory, so that it leaves it."""
    claim = begun(store, table, partition)
    new = LocatedFile(path=f".lakefold/{token}/{partition}/new.parquet", bytes=9, modified_ms=9_000)
    move = Relocation(
        partition=partition, token=token, previous_location=at(table), location=new.directory, files=(new,)
    )
    commit = replace(commit_of(claim.plan, token), relocations=(move,))
    replaced = tuple(replace(one, modified_at=WRITTEN) for one in commit.superseded)
    store.complete(claim, replace(commit, superseded=replaced), figures_of(claim.plan), {})


def directory_of(store: Store, table: TableRef) -> PreviousLocation:
    (record,) = store.relocated_partitions(table)
    return record.previous_locations[0]


def test_files_that_another_table_has_replaced_too_are_expected_until_their_deletion_begins(
    store: Store, tables: Sequence[TableRef]
) -> None:
    first, second = tables
    left(store, first, "dt=1", "v1")
    before = directory_of(store, first)
    left(store, second, "dt=1", "v2")
    files = frozenset(before.expected_files)
    shared_with = frozenset({(second.location, "v2", "dt=1")})
    assert directory_of(store, first) == replace(
        before, shared_files=files, shared_with=shared_with, files_of_other_tables=files
    )
    assert len(files) == 2
    waiting = store.awaiting_deletion(second)
    assert (len(waiting), store.awaiting_deletion(first)) == (2, [])
    store.begin_deletion([waiting[0].row_id])
    shared = directory_of(store, first)
    assert (len(shared.expected_files), shared.deleting_files, shared.is_cleaning_begun) == (
        1,
        shared.possible_files,
        True,
    )
    store.begin_deletion([waiting[1].row_id])
    store.mark_deleted([one.row_id for one in waiting])
    assert (directory_of(store, first).expected_files, directory_of(store, first).deleting_files) == ((), ())


def test_another_name_of_a_table_is_no_other_table(store: Store) -> None:
    first, second = (replace(TRIPS, name=name, location="/warehouse/a") for name in ("a", "b"))
    for table in (first, second):
        store.register_table(table, "compact")
        left(store, table, "dt=1", f"v-{table.name}")
    assert not directory_of(store, first).shared_files
    assert store.other_tables_that_left(first, {DIRECTORY}) == []


def test_a_late_file_that_two_tables_have_copied_is_deleted_under_the_last_record_and_counts_for_both(
    store: Store, tables: Sequence[TableRef]
) -> None:
    """The deletion under the first one looked like a writer's to the other one, which was halted."""
    for number, table in enumerate(tables):
        left(store, table, "dt=1", f"v{number}")
    for table in tables:
        late = LocatedFile(path=f"{at(table)}/late.parquet", bytes=1, modified_ms=10_000)
        store.begin_late_copies(table, "dt=1", [(late, "v/carried.parquet")], {})
        (record,) = store.relocated_partitions(table)
        store.end_late_copies(table, [(record.late_copies[0], record.previous_locations[0])])
    first, second = tables
    assert store.awaiting_deletion(first) == []
    assert len(directory_of(store, first).expected_files) == 3
    waiting = store.awaiting_deletion(second)
    assert len(waiting) == 3
    store.begin_deletion([one.row_id for one in waiting])
    store.mark_deleted([one.row_id for one in waiting])
    for table in tables:
        assert directory_of(store, table).expected_files == ()


@pytest.mark.parametrize("deleting", [0, 1], ids=["first", "second"])
def test_the_deletion_of_a_file_that_two_tables_recorded_at_once_counts_for_both(
    store: Store, tables: Sequence[TableRef], database_url: str, deleting: int
) -> None:
    for number, table in enumerate(tables):
        left(store, table, "dt=1", f"v{number}")
    sql(database_url, "UPDATE superseded_version SET deleted_at_ms = NULL, closed_reason = NULL")
    store.begin_deletion([one.row_id for one in store.awaiting_deletion(tables[deleting])])
    other = tables[1 - deleting]
    assert directory_of(store, other).expected_files == ()
    assert len(store.awaiting_deletion(other)) == 2


def test_the_partitions_of_other_tables_that_left_a_directory_are_found_however_it_is_written(
    store: Store, tables: Sequence[TableRef]
) -> None:
    first, second = tables
    left(store, first, "dt=1", "v1")
    assert store.other_tables_that_left(first, {at(first)}) == []
    left(store, second, "dt=7", "v2")
    assert store.other_tables_that_left(first, {at(first), f"{DIRECTORY}x"}) == [(second, {"dt=7"})]
    assert store.other_tables_that_left(second, {at(second)}) == [(first, {"dt=1"})]
    assert store.other_tables_that_left(replace(first, format="hive"), {at(first)}) == []


def test_a_plan_of_another_table_is_undecided_while_it_is_inflight_or_its_staged_files_are_not_cleared(
    store: Store, tables: Sequence[TableRef], database_url: str
) -> None:
    first, second = tables
    claim = begun(store, second, "dt=7")

    def undecided() -> Sequence[PlanElsewhere]:
        return store.undecided_plans_elsewhere(first, {at(first)})

    plan = PlanElsewhere(plan_id=claim.plan.plan_id, table=second, is_inflight=True)
    assert undecided() == [plan]
    assert store.undecided_plans_elsewhere(first, {f"{DIRECTORY}x"}) == []
    assert store.undecided_plans_elsewhere(second, {at(second)}) == []
    store.record_staged(claim, StagedWork(token="v2", paths=("/x",)))
    assert undecided() == [plan]
    store.cancel(claim, "an input has changed", actor="executor")
    watched = replace(plan, is_inflight=False, is_watched=True)
    assert undecided() == [watched], "its executor may have been suspended before the call"
    sql(database_url, "UPDATE staged SET staged_at_ms = staged_at_ms - 86400000 * 7")
    assert undecided() == [replace(watched, is_watched=False)]
    store.clear_stagings(store.orphaned_stagings(second))
    assert undecided() == []


def test_a_completed_plan_of_another_table_is_decided(store: Store, tables: Sequence[TableRef]) -> None:
    first, second = tables
    left(store, second, "dt=7", "v2")
    assert store.undecided_plans_elsewhere(first, {at(first), resolve_path(first.location, at(first))}) == []
