# SPDX-License-Identifier: Apache-2.0
"""Superseded versions in the database: when each is due, and what ends its wait."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from store_plans import MIB, TRIPS, add, claimed, commit_of, figures_of, finish, make_plan, sql

from service.control.store import Store

pytestmark = pytest.mark.paired("database_url")

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_superseded_versions_are_due_after_the_retention_now_in_force_in_the_order_of_being_superseded(
    store: Store, database_url: str
) -> None:
    finish(store, "dt=1", "9")
    finish(store, "dt=2", "10")
    day = timedelta(days=1)
    assert store.due_for_deletion(TRIPS, 7 * day) == []
    sql(database_url, "UPDATE superseded_version SET superseded_at_ms = superseded_at_ms - 86400000 * 3")
    with time_machine.travel(day * 400, tick=True):
        assert store.due_for_deletion(TRIPS, 7 * day) == [], "the host's clock deletes nothing"
    due = store.due_for_deletion(TRIPS, 2 * day)
    assert [d.version.instant for d in due] == ["9", "9", "10", "10"]
    assert [d.version for d in due[:2]] == list(commit_of(make_plan("dt=1"), "9").superseded)
    assert store.due_for_deletion(TRIPS, 2 * day, limit=1) == due[:1]
    assert store.due_for_deletion(replace(TRIPS, name="other"), timedelta()) == []
    store.mark_deleted([d.row_id for d in due[:2]])
    (before,) = sql(database_url, "SELECT sum(deleted_at_ms) AS s FROM superseded_version")
    store.mark_deleted([d.row_id for d in due[:2]])
    assert sql(database_url, "SELECT sum(deleted_at_ms) AS s FROM superseded_version") == [before]
    assert store.awaiting_deletion(TRIPS) == due[2:]
    assert store.due_for_deletion(TRIPS, 2 * day) == due[2:]
    store.mark_deleted([])


def test_a_closed_version_waits_no_longer_and_its_reason_is_kept(store: Store, database_url: str) -> None:
    finish(store, "dt=1", "20260101")
    first, second = store.awaiting_deletion(TRIPS)
    store.mark_deleted([first.row_id])
    store.close_superseded({first.row_id: "undone", second.row_id: "gone"})
    store.close_superseded({second.row_id: "later"})
    store.close_superseded({})
    found = sql(database_url, "SELECT closed_reason FROM superseded_version WHERE deleted_at_ms > 0 ORDER BY id")
    assert [row[0] for row in found] == [None, "gone"], "what was deleted stays deleted"
    assert store.awaiting_deletion(TRIPS) == []
    assert store.figures().superseded == ()


def test_a_file_that_was_restored_and_replaced_again_waits_for_its_whole_retention_again(
    store: Store, database_url: str
) -> None:
    finish(store, "dt=1", "first")
    sql(database_url, "UPDATE superseded_version SET superseded_at_ms = superseded_at_ms - 86400000 * 3")
    finish(store, "dt=2", "other")
    finish(store, "dt=1", "again")
    assert store.due_for_deletion(TRIPS, timedelta(days=2)) == []
    assert [due.version.instant for due in store.awaiting_deletion(TRIPS)] == ["other", "other", "again", "again"]
    closed = sql(database_url, "SELECT closed_reason FROM superseded_version WHERE deleted_at_ms > 0")
    (plan,) = {due.plan_id for due in store.awaiting_deletion(TRIPS) if due.version.instant == "again"}
    assert [row[0] for row in closed] == [f"replaced again, as again of plan {plan}"] * 2


@pytest.mark.parametrize(
    ("location", "path", "other_location", "other_path"),
    [
        ("/warehouse/a", "/landing/d1/f", "/landing", "d1/f"),
        ("/warehouse/a", "/landing/d1/f", "/landing/d1", "f"),
        ("/warehouse/a", "/landing/d1/f", "/warehouse/b", "/landing/d1/f"),
        ("/landing/d1", "f", "/warehouse/b", "/landing/d1/f"),
        ("/landing/d1", "f", "/landing", "d1/f"),
        ("s3://bucket/a", "s3://landing/d1/f", "s3://landing", "d1/f"),
    ],
)
def test_rule_2_a_file_that_another_table_replaces_later_waits_for_that_table_however_their_paths_are_written(
    store: Store, location: str, path: str, other_location: str, other_path: str
) -> None:
    first, second = (replace(TRIPS, name=name, location=at) for name, at in (("a", location), ("b", other_location)))
    for table, names in ((first, (path, "dt=1/only-a")), (second, (other_path, "dt=1/only-b"))):
        store.register_table(table, "compact")
        plan = add(store, "dt=1", table=table)
        commit = commit_of(plan, f"commit-of-{table.name}")
        versions = tuple(replace(one, path=name) for one, name in zip(commit.superseded, names, strict=True))
        store.complete(claimed(store), replace(commit, superseded=versions), figures_of(plan), {})
    assert [due.version.path for due in store.awaiting_deletion(first)] == ["dt=1/only-a"]
    assert [due.version.path for due in store.awaiting_deletion(second)] == [other_path, "dt=1/only-b"]


def test_a_commit_with_replaced_files_in_more_directories_than_a_statement_may_have_parameters_is_recorded(
    store: Store,
) -> None:
    """As with Iceberg's layout for object stores: each file is in directories named by bits of a hash."""
    nested = replace(TRIPS, name="nested", location=f"{TRIPS.location}/data/{6_000:020b}")
    for table, path in ((nested, "f"), (TRIPS, f"data/{6_000:020b}/f")):
        store.register_table(table, "compact")
        plan = add(store, "dt=1", table=table)
        commit = commit_of(plan, f"commit-of-{table.name}")
        versions = [replace(commit.superseded[0], path=path)]
        if table == TRIPS:
            names = (f"data/{number:020b}" + "/x" * 6 + "/f" for number in range(12_000))
            versions += [replace(commit.superseded[0], path=name) for name in names]
        store.complete(claimed(store), replace(commit, superseded=tuple(versions)), figures_of(plan), {})
    assert store.awaiting_deletion(nested) == []
    assert len(store.awaiting_deletion(TRIPS)) == 12_001


def test_a_superseded_file_keeps_its_time_and_a_deletion_its_first_mark(store: Store, database_url: str) -> None:
    plan, written_at = add(store, "dt=1"), datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
    commit = commit_of(plan)
    versions = tuple(replace(version, modified_at=written_at) for version in commit.superseded)
    store.complete(claimed(store), replace(commit, superseded=versions), figures_of(plan), {})
    first, second = store.awaiting_deletion(TRIPS)
    assert (first.version, second.version) == versions
    assert store.begin_deletion([first.row_id, second.row_id]) == {first.row_id, second.row_id}
    sql(database_url, "UPDATE superseded_version SET deleting_at_ms = 1000")
    store.mark_deleted([first.row_id])
    assert store.begin_deletion([first.row_id, second.row_id]) == {second.row_id}
    assert [due.deletion_begun_at for due in store.awaiting_deletion(TRIPS)] == [
        datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    ]
    assert store.begin_deletion([]) == set()


def test_superseded_files_are_counted_by_table_and_day_under_each_retention(store: Store, database_url: str) -> None:
    other, third = (replace(TRIPS, name=f"a.{name}", location=f"/lake/{name}") for name in ("other", "third"))
    for table in (TRIPS, other, third):
        plan = add(store, "dt=1", table=table)
        store.complete(claimed(store), commit_of(plan), figures_of(plan), {})
    sql(database_url, "UPDATE superseded_version SET superseded_at_ms = :at", at=int(NOW.timestamp() * 1000))
    week, day, hours = timedelta(days=7), timedelta(days=1), timedelta(hours=13)
    days = store.deletion_days({week: [TRIPS.name], day: [other.name], hours: [third.name]})
    assert [(entry.table, entry.day - NOW.date(), entry.files, entry.bytes) for entry in days] == [
        ("a.other", day, 2, 16 * MIB),
        ("a.third", day, 2, 16 * MIB),
        (TRIPS.name, week, 2, 16 * MIB),
    ]
    assert len(store.deletion_days({week: [TRIPS.name, other.name, third.name]})) == 3
    assert store.deletion_days({}) == []
