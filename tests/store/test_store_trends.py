# SPDX-License-Identifier: Apache-2.0
"""What is kept of tables and of the lake over weeks, on SQLite and PostgreSQL."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import literal
from store_plans import TRIPS, add, claimed, commit_of, figures_of, sql

from lake.model import TableRef
from service.control.store import ScanRecord, Store
from service.control.store.database import datetime_to_ms

pytestmark = pytest.mark.paired("database_url")

HOUR, DAY = 3_600_000, 86_400_000
OTHER = TableRef(name="t.other", format="hudi", location="/lake/other")


@pytest.fixture
def store(store: Store) -> Store:
    store.register_table(TRIPS, "compact")
    return store


def scanned(store: Store, name: str, files: int, reducible: int | None, **facts: object) -> None:
    scan = ScanRecord(
        table=name,
        taken_at=datetime.now(UTC),
        files=files,
        bytes=10 * files,
        small_files=files // 2,
        reducible_files=reducible,
        **facts,  # type: ignore[arg-type]
    )
    store.record_scan(scan)


def age(url: str, milliseconds: int) -> None:
    """All points there are become older."""
    sql(url, f"UPDATE trend SET at_ms = at_ms - {milliseconds}")


def completed(store: Store, partition: str) -> int:
    """Run a plan to its end and delete what it replaced; the bytes it wrote."""
    plan = add(store, partition)
    store.complete(claimed(store), commit_of(plan), figures_of(plan), {})
    store.mark_deleted([due.row_id for due in store.awaiting_deletion(TRIPS)])
    return sum(figures.bytes_after for figures in figures_of(plan))


def test_each_period_has_one_point_with_the_result_of_the_last_good_scan(store: Store, database_url: str) -> None:
    scanned(store, TRIPS.name, 40, 12)
    scanned(store, TRIPS.name, 0, None, outcome="error", error="the metastore is away")
    assert store.record_trends()
    assert not store.record_trends(), "this stretch of time has its point"
    (point,) = store.trend(TRIPS.name)
    assert (point.files, point.bytes, point.small_files, point.reducible_files) == (40, 400, 20, 12)
    assert timedelta() <= datetime.now(UTC) - point.at < timedelta(minutes=1)
    age(database_url, 4 * HOUR)
    scanned(store, TRIPS.name, 3, 0)
    assert store.record_trends()
    assert [(point.files, point.reducible_files) for point in store.trend(TRIPS.name)] == [(40, 12), (3, 0)]


def test_the_lake_is_the_sum_of_the_tables_that_are_compacted(store: Store) -> None:
    store.register_table(OTHER, "compact")
    for number, mode in enumerate(("observe", "off")):
        store.register_table(TableRef(name=f"t.{mode}", format="hudi", location="/lake"), mode)
        scanned(store, f"t.{mode}", 1000 + number, 7)
    store.register_table(TableRef(name="t.upgraded", format="hudi", location="/lake"), "compact")
    scanned(store, "t.upgraded", 500, None)
    scanned(store, TRIPS.name, 40, 12)
    scanned(store, OTHER.name, 60, 8)
    store.record_trends()
    (lake,) = store.trend(None)
    assert (lake.files, lake.bytes, lake.small_files, lake.reducible_files) == (100, 1000, 50, 20)
    assert [len(store.trend(f"t.{name}")) for name in ("observe", "off", "upgraded")] == [1, 0, 0]


def test_a_history_begins_when_every_table_was_scanned_and_waits_for_no_later_one(
    store: Store, database_url: str
) -> None:
    store.register_table(OTHER, "compact")
    store.register_table(TableRef(name="t.off", format="hudi", location="/lake/off"), "off")
    scanned(store, TRIPS.name, 40, 12)
    assert not store.record_trends()
    scanned(store, OTHER.name, 0, None, outcome="error", error="no such bucket")
    assert store.record_trends(), "what can't be scanned is waited for no longer"
    age(database_url, 4 * HOUR)
    store.register_table(TableRef(name="t.new", format="hudi", location="/lake/new"), "compact")
    assert store.record_trends()
    assert [point.files for point in store.trend(None)] == [40, 40]


def test_an_empty_lake_has_no_history(store: Store, database_url: str) -> None:
    sql(database_url, "DELETE FROM table_state")
    assert not store.record_trends()
    assert store.trend(None) == []


def test_bytes_rewritten_and_freed_grow_with_the_plans_and_outlive_them(store: Store, database_url: str) -> None:
    scanned(store, TRIPS.name, 40, 12)
    store.record_trends()
    before = sum(due.version.bytes for due in store.awaiting_deletion(TRIPS))
    written = completed(store, "dt=1")
    freed = store.byte_totals(TRIPS.name)[1]
    assert (before, store.byte_totals(TRIPS.name)[0]) == (0, written)
    gone = sql(database_url, "SELECT sum(bytes) AS total FROM superseded_version WHERE deleted_at_ms IS NOT NULL")
    assert freed == gone[0].total > 0
    store.mark_deleted([row.id for row in sql(database_url, "SELECT id FROM superseded_version")])
    assert store.byte_totals(TRIPS.name)[1] == freed, "what was deleted already is counted once"
    sql(database_url, f"UPDATE plan SET finalized_at_ms = finalized_at_ms - {91 * DAY}")
    assert store.prune(timedelta(days=90)) == 1
    assert store.byte_totals(TRIPS.name) == (written, freed)
    age(database_url, 4 * HOUR)
    store.record_trends()
    first, last = store.trend(TRIPS.name)
    assert (first.rewritten_bytes, first.freed_bytes) == (0, 0)
    assert (
        (last.rewritten_bytes, last.freed_bytes)
        == (written, freed)
        == (store.trend(None)[-1].rewritten_bytes, store.trend(None)[-1].freed_bytes)
    )
    (state,) = store.table_states()
    assert state.freed_bytes == freed


def test_files_that_another_program_deleted_were_not_freed_by_the_cleaner(store: Store) -> None:
    plan = add(store, "dt=1")
    store.complete(claimed(store), commit_of(plan), figures_of(plan), {})
    store.close_superseded({due.row_id: "a restore undid its commit" for due in store.awaiting_deletion(TRIPS)})
    assert store.byte_totals(TRIPS.name)[1] == 0


@pytest.mark.slow
def test_points_thin_out_with_age_and_are_never_more_than_67(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # Time goes on, and no point is made older: days begin where they began.
    clock = [datetime_to_ms(datetime(2026, 3, 1, 13, tzinfo=UTC))]
    monkeypatch.setattr("service.control.store.trends.db_now", lambda: literal(clock[0]))
    scanned(store, TRIPS.name, 40, 12)
    most = 0
    for _ in range(40 * 6):
        assert store.record_trends()
        most = max(most, len(store.trend(TRIPS.name)))
        clock[0] += 4 * HOUR
    points = store.trend(TRIPS.name)
    now = points[-1].at + timedelta(hours=4)
    young = [point for point in points if now - point.at < timedelta(days=7)]
    assert 60 < most <= 67
    assert {round((b.at - a.at) / timedelta(hours=1)) for a, b in itertools.pairwise(young)} == {4}
    old = [point.at.date() for point in points if now - point.at > timedelta(days=8)]
    assert len(old) == len(set(old)) >= 21, "one a day"
    assert now - points[0].at <= timedelta(days=30, hours=4)
    assert [point.at for point in store.trend(None)] == [point.at for point in points], "the lake's are as many"
