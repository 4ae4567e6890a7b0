# SPDX-License-Identifier: Apache-2.0
"""The history of relocated partitions: which relocations may be pruned, and what reading and recording them costs."""

import contextlib
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from databases import sqlite_at, store_at
from relocated import NEW, completed, known, moved_on
from sqlalchemy import Engine, Pool, event
from store_plans import TRIPS, add, claimed, commit_of, figures_of, sql

from lake.plan import Relocation
from service.control.store import Store

pytestmark = pytest.mark.paired("database_url")


def test_the_record_of_a_released_directory_is_pruned_with_the_relocation_that_left_it(
    store: Store, database_url: str
) -> None:
    moved_on(store, 1, "dt=1")
    moved_on(store, 2, "/elsewhere")
    moved_on(store, 3, "/another")
    store.release_locations(TRIPS, "dt=1", known(store).previous_locations)
    released = "SELECT token FROM place_move WHERE token LIKE 'again-released-%' ORDER BY token"
    assert [token for (token,) in sql(database_url, released)] == [f"again-released-v{number}" for number in (1, 2, 3)]
    ((number,),) = sql(database_url, "SELECT id FROM place_move WHERE token = 'v2'")
    assert store.prune_relocations(TRIPS, [number]) == 1
    assert [token for (token,) in sql(database_url, released)] == ["again-released-v1", "again-released-v3"]


def moved_often(store: Store, database_url: str, count: int) -> None:
    """The one partition of these moves was moved by as many plans, long ago, and what they replaced is deleted."""
    left = "dt=1"
    for number in range(1, count + 1):
        plan = add(store, "dt=1")
        move = Relocation(
            partition="dt=1",
            token=f"{plan.plan_id}-e1-{number}",
            previous_location=left,
            location=f"v{number}/dt=1",
            files=(NEW,),
            partition_created_at=7,
        )
        left = move.location
        commit = replace(commit_of(plan, move.token), relocations=(move,))
        store.complete(claimed(store), commit, figures_of(plan), {})
    sql(database_url, "UPDATE place_move SET begun_at_ms = 1, made_at_ms = 1")
    sql(database_url, "UPDATE superseded_version SET deleted_at_ms = 1")


def test_relocations_between_the_first_and_the_last_two_may_be_pruned_once_they_and_all_deletions_are_old(
    store: Store, database_url: str
) -> None:
    moved_often(store, database_url, 5)
    (past,), last = store.relocation_histories(TRIPS, timedelta(days=30), "", 10)
    assert (
        last,
        [move.is_cleaned_up for move in past.relocations],
        {move.is_by_plan for move in past.relocations},
    ) == (
        "",
        [True] * 5,
        {True},
    )
    assert store.relocation_histories(TRIPS, timedelta(days=30), "", 1)[1] == "dt=1", "there may be more"
    assert store.relocation_histories(TRIPS, timedelta(days=30), "dt=1", 1) == ([], "")
    third = past.relocations[2]
    sql(database_url, f"UPDATE superseded_version SET deleted_at_ms = NULL WHERE instant = '{third.token}'")
    assert [
        move.is_cleaned_up for move in store.relocation_histories(TRIPS, timedelta(days=30), "", 10)[0][0].relocations
    ] == [
        True,
        True,
        False,
        False,
        False,
    ]
    begun = Relocation(
        partition="dt=1", token="back", previous_location=past.relocations[-1].location, location="dt=1", files=()
    )
    store.begin_relocation(TRIPS, begun, third.token.partition("-e1-")[0], [])
    assert store.relocation_histories(TRIPS, timedelta(days=30), "", 10) == ([], "")


def test_pruning_keeps_the_first_and_the_last_relocations_of_a_partition(store: Store, database_url: str) -> None:
    moved_often(store, database_url, 5)
    before = known(store)
    (past,), _ = store.relocation_histories(TRIPS, timedelta(days=30), "", 10)
    assert store.tokens_used_elsewhere(TRIPS, past.relocations[1:2]) == frozenset()
    assert store.prune_relocations(TRIPS, [past.relocations[1].relocation_id, past.relocations[-1].relocation_id]) == 1
    after = known(store)
    assert (after.latest, after.original_location) == (before.latest, before.original_location)
    left = [[one.location for one in relocated.previous_locations] for relocated in (before, after)]
    assert [location for location in left[0] if location not in left[1]] == ["v1/dt=1"]


def test_a_recreated_location_is_checked_and_is_not_a_relocation(store: Store, database_url: str) -> None:
    moved_often(store, database_url, 5)
    (past,), _ = store.relocation_histories(TRIPS, timedelta(days=30), "", 10)
    store.prune_relocations(TRIPS, [move.relocation_id for move in past.relocations[1:3]])
    before = known(store)
    assert store.add_recreated_locations(TRIPS, "dt=2", ["v1/dt=2"]) == 0, "it was never moved"
    assert store.add_recreated_locations(TRIPS, "dt=1", ["v5/dt=1", "v4/dt=1", "dt=1"]) == 0, (
        "these are looked at as it is"
    )
    assert [store.add_recreated_locations(TRIPS, "dt=1", ["v1/dt=1"]) for _ in range(2)] == [1, 0]
    after = known(store)
    assert (after.latest, after.original_location, after.earlier_locations) == (
        before.latest,
        before.original_location,
        before.earlier_locations,
    )
    (again,) = [one for one in after.previous_locations if one not in before.previous_locations]
    assert (again.location, again.expected_files, again.plan_id) == ("v1/dt=1", (), before.plan_id)
    (record,) = store.recently_relocated(TRIPS, store.recently_vacated(TRIPS, timedelta(hours=1), 9)) or [None]
    assert record is None, "what it left lately is nothing"
    assert len(store.relocation_histories(TRIPS, timedelta(days=30), "", 10)[0][0].relocations) == 3


def test_an_old_discarded_relocation_may_be_pruned_for_any_number_of_relocations(
    store: Store, database_url: str
) -> None:
    plan = completed(store)
    back = Relocation(partition="dt=1", token="back", previous_location="v1/dt=1", location="dt=1", files=())
    store.begin_relocation(TRIPS, back, plan.plan_id, [])
    store.discard_relocations(TRIPS, [back])
    (past,), _ = store.relocation_histories(TRIPS, timedelta(days=30), "", 10)
    assert ([move.token for move in past.discarded], past.prunable(())) == (["back"], [])
    sql(database_url, "UPDATE place_move SET made_at_ms = 1 WHERE token LIKE '%back'")
    (past,), _ = store.relocation_histories(TRIPS, timedelta(days=30), "", 10)
    (move,) = past.prunable(())
    assert (move.token, move.previous_location, len(past.relocations)) == ("back", "dt=1", 1)
    assert store.tokens_used_elsewhere(TRIPS, [move]) == frozenset()
    before = known(store)
    assert store.prune_relocations(TRIPS, [move.relocation_id]) == 1
    after = known(store)
    assert after.earlier_locations == before.earlier_locations - {("dt=1", "back")}
    assert (after.latest, after.previous_locations) == (before.latest, before.previous_locations)
    assert store.relocation_histories(TRIPS, timedelta(days=30), "", 10) == ([], "")


def test_the_cost_of_reading_a_partition_does_not_depend_on_the_partitions_of_its_plan(tmp_path: Path) -> None:
    costs = {}
    for count in (2, 500):
        home = tmp_path / str(count)
        home.mkdir()
        with contextlib.closing(store_at(home)) as opened:
            partitions = [f"dt={number}" for number in range(count)]
            plan = add(opened, *partitions)
            moves = tuple(
                Relocation(
                    partition=name,
                    token="v1",
                    previous_location=name,
                    location=f"v1/{name}",
                    files=(replace(NEW, path=f"v1/{name}/new.parquet"),),
                    partition_created_at=7,
                )
                for name in partitions
            )
            commit = replace(commit_of(plan, "v1"), relocations=moves)
            opened.complete(claimed(opened), commit, figures_of(plan), {})
            for number in range(count):
                sql(
                    sqlite_at(home),
                    "INSERT INTO carry (table_name, partition_path, source, bytes, modified_at_ms, target, begun_at_ms)"
                    " VALUES (:table, :partition, :partition, 1, 1, '', 1)",
                    table=TRIPS.name,
                    partition=f"dt={number}",
                )
            vacated = opened.recently_vacated(TRIPS, timedelta(hours=1), count)
            one = [location for location in vacated if location.partition == "dt=1"]
            costs["all", count] = sqlite_steps(partial(opened.relocated_partitions, TRIPS, ["dt=1"]))
            costs["recent", count] = sqlite_steps(partial(opened.recently_relocated, TRIPS, one))
    assert costs["all", 500] < 2 * costs["all", 2], costs
    assert costs["recent", 500] < 2 * costs["recent", 2], costs


def test_the_cost_of_finding_the_partitions_that_left_a_directory_does_not_depend_on_other_relocations(
    tmp_path: Path,
) -> None:
    """The cleaner asks for them before each batch of a deletion."""
    costs = []
    with contextlib.closing(store_at(tmp_path)) as opened:
        plan = completed(opened)
        for count in (1, 2_000):
            sql(
                sqlite_at(tmp_path),
                "INSERT INTO place_move (table_name, partition_path, token, plan_id, left_place, place, files, "
                "left_files, partition_made_at, begun_at_ms, made_at_ms) WITH RECURSIVE numbers(n) AS (VALUES (1) "
                "UNION ALL SELECT n + 1 FROM numbers WHERE n < :count) SELECT :table, 'dt=x' || n, 'token' || :count, "
                ":plan, 'dt=x' || n, 'v/dt=x' || n, '[]', '[]', 1, 1, 1 FROM numbers",
                count=count,
                plan=plan.plan_id,
                table=TRIPS.name,
            )
            left = partial(opened.partitions_that_left, TRIPS, ["dt=1"])
            assert left() == {"dt=1"}
            others = partial(opened.other_tables_that_left, TRIPS, ["dt=1"])
            assert others() == []
            costs.append((sqlite_steps(left), sqlite_steps(others)))
    assert costs[1][0] < 2 * costs[0][0], costs
    assert costs[1][1] < 2 * costs[0][1], costs


def test_the_cost_of_recording_a_commit_does_not_depend_on_other_tables_replaced_files(tmp_path: Path) -> None:
    costs = []
    for count in (1, 2_000):
        home = tmp_path / str(count)
        home.mkdir()
        with contextlib.closing(store_at(home)) as opened:
            first = add(opened, "dt=1")
            opened.complete(claimed(opened), commit_of(first, "first"), figures_of(first), {})
            opened.register_table(replace(TRIPS, name="other", location="/lake/other"), "compact")
            sql(
                sqlite_at(home),
                "INSERT INTO superseded_version (plan_id, table_name, partition_path, path, bytes, instant, "
                "superseded_at_ms) WITH RECURSIVE numbers(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM numbers WHERE "
                "n < :count) SELECT :plan, 'other', 'dt=1', 'file' || n, 1, '1', 1 FROM numbers",
                count=count,
                plan=first.plan_id,
            )
            second = add(opened, "dt=2")
            complete = partial(opened.complete, claimed(opened), commit_of(second, "2"), figures_of(second), {})
            costs.append(sqlite_steps(complete))
    assert costs[1] < 2 * costs[0], costs


def test_the_cost_of_files_that_another_partition_has_replaced_too_is_that_of_a_few_statements(tmp_path: Path) -> None:
    count = 2_000
    with contextlib.closing(store_at(tmp_path)) as opened:
        first, second = completed(opened), add(opened, "dt=2")
        opened.complete(claimed(opened), commit_of(second, "v2"), figures_of(second), {})
        for plan, partition, instant in ((first, "dt=1", "v1"), (second, "dt=2", "v2")):
            sql(
                sqlite_at(tmp_path),
                "INSERT INTO superseded_version (plan_id, table_name, partition_path, path, bytes, instant, "
                "modified_at_ms, superseded_at_ms) WITH RECURSIVE numbers(n) AS (VALUES (1) UNION ALL SELECT n + 1 "
                "FROM numbers WHERE n < :count) "
                "SELECT :plan, :table, :partition, 'file' || n, 1, :instant, 1, 1 FROM numbers",
                count=count,
                plan=plan.plan_id,
                table=TRIPS.name,
                partition=partition,
                instant=instant,
            )
        load = partial(opened.relocated_partitions, TRIPS, ["dt=1"])
        (before, statements_before), (record,) = steps_and_statements(load), load()
        assert not record.previous_locations[0].shared_files
        sql(
            sqlite_at(tmp_path),
            "UPDATE superseded_version SET deleted_at_ms = 1, closed_reason = :reason "
            "WHERE plan_id = :plan AND path LIKE 'file%'",
            plan=first.plan_id,
            reason=f"replaced again, as v2 of plan {second.plan_id}",
        )
        (after, statements_after), (record,) = steps_and_statements(load), load()
    assert len(record.previous_locations[0].shared_files) == count
    assert statements_after <= statements_before + count / 500
    assert after < 5 * before, (before, after)


def steps_and_statements(call: Callable[[], object]) -> tuple[int, int]:
    """Count the steps of SQLite's virtual machine, and the statements, that a call takes."""
    statements = 0

    def count(*_: object) -> None:
        nonlocal statements
        statements += 1

    event.listen(Engine, "before_cursor_execute", count)
    try:
        return sqlite_steps(call), statements
    finally:
        event.remove(Engine, "before_cursor_execute", count)


def sqlite_steps(call: Callable[[], object]) -> int:
    """Count the steps of SQLite's virtual machine that a call takes."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    def watch(connection: sqlite3.Connection, *_: object) -> None:
        connection.set_progress_handler(count, 1)

    event.listen(Pool, "checkout", watch)
    try:
        call()
    finally:
        event.remove(Pool, "checkout", watch)
    return steps
