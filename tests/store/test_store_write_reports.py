# SPDX-License-Identifier: Apache-2.0
"""Reports of written partitions on SQLite and PostgreSQL: bursts, due partitions, repeated scans."""

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from store_plans import TRIPS, add, claimed, commit_of, figures_of, sql

from service.control.store import ScanRecord, Store
from service.control.store.views import ProcessFacts

pytestmark = pytest.mark.paired("database_url")

NOW, LATER = timedelta(milliseconds=1), timedelta(hours=1)


@pytest.fixture
def store(store: Store) -> Store:
    store.register_table(TRIPS, "compact")
    return store


def due(store: Store) -> list[str | None]:
    """The partitions of ``TRIPS`` that are due, after the shortest delay has passed."""
    time.sleep(0.01)
    return [entry.partition for entry in store.due_write_reports().get(TRIPS.name, ())]


def report(store: Store, *partitions: str, delay: timedelta = NOW, by: str = "spark") -> None:
    store.report_written(TRIPS.name, partitions, reporter=by, delay=delay)


def test_a_burst_of_reports_causes_one_scan_of_each_partition(store: Store) -> None:
    for _ in range(50):
        report(store, "dt=1", "dt=2", "dt=1")
    assert sorted(map(str, due(store))) == ["dt=1", "dt=2"]
    assert len(store.write_reports(TRIPS.name)) == 2


def test_a_steady_stream_of_reports_does_not_postpone_the_scan(store: Store) -> None:
    report(store, "dt=1", delay=timedelta(minutes=1))
    first = store.write_reports()[0].due_at
    report(store, "dt=1", delay=LATER)
    assert store.write_reports()[0].due_at == first
    assert store.write_reports()[0].reported_by == "spark"


def test_a_report_advances_a_scan_that_waits_for_the_quiet_period(store: Store) -> None:
    report(store, "dt=1")
    store.finish_write_reports(store.write_reports(), {"dt=1": LATER})
    assert due(store) == []
    report(store, "dt=1")
    assert due(store) == ["dt=1"]
    assert len(store.write_reports()) == 1


def test_no_report_waits_for_longer_after_the_databases_clock_was_set_back(store: Store, database_url: str) -> None:
    report(store, "dt=1", delay=LATER)
    report(store, "dt=2", "dt=3")
    ahead = "due_at_ms = due_at_ms + 8640000000, reported_at_ms = reported_at_ms + 8640000000"
    sql(database_url, f"UPDATE written_partition SET {ahead} WHERE partition_path <> 'dt=3'")
    process = ProcessFacts(name="any", role="all", host="h", version="1", slots=1)
    store.register_process(process, timedelta(seconds=20))
    assert sorted(map(str, due(store))) == ["dt=2", "dt=3"]
    (waiting,) = (entry for entry in store.write_reports() if entry.partition == "dt=1")
    assert timedelta(minutes=59) < waiting.due_at - store.database_time() <= LATER
    store.register_process(process, timedelta(seconds=20))
    assert waiting in store.write_reports(), "a wait is corrected once"


def test_scanned_reports_are_deleted_and_postponed_ones_keep_their_rows(store: Store, database_url: str) -> None:
    report(store, "dt=1", "dt=2")
    due(store)
    looked = store.due_write_reports()[TRIPS.name]
    store.finish_write_reports(looked, {"dt=2": LATER})
    assert due(store) == []
    assert [entry.partition for entry in store.write_reports()] == ["dt=2"]
    sql(database_url, "UPDATE written_partition SET due_at_ms = due_at_ms - 3600000")
    assert due(store) == ["dt=2"]


def test_a_report_that_arrives_during_a_scan_is_not_lost(store: Store) -> None:
    report(store, "dt=1")
    due(store)
    looked = store.due_write_reports()[TRIPS.name]
    report(store, "dt=1")
    store.finish_write_reports(looked, {"dt=1": LATER})
    assert due(store) == ["dt=1"]
    store.finish_write_reports(looked)
    assert due(store) == ["dt=1"]


def test_reports_in_one_millisecond_or_after_a_clock_was_set_back_are_distinguished(
    store: Store, database_url: str
) -> None:
    report(store, "dt=1")
    sql(database_url, "UPDATE written_partition SET reported_at_ms = reported_at_ms + 3600000")
    before = store.write_reports()[0].report_ms
    report(store, "dt=1")
    assert store.write_reports()[0].report_ms == before + 1


def test_a_whole_table_the_unpartitioned_partition_and_no_partition_are_distinguished(store: Store) -> None:
    report(store)
    assert store.write_reports() == []
    report(store, "")
    store.report_written(TRIPS.name, None, reporter="spark", delay=NOW)
    assert set(due(store)) == {None, ""}


def test_partitions_of_paused_and_halted_tables_wait_for_the_resume(store: Store, database_url: str) -> None:
    report(store, "dt=1")
    store.pause(TRIPS.name, "ada")
    assert due(store) == []
    store.resume(TRIPS.name, "ada")
    sql(database_url, "UPDATE table_state SET halted_at_ms = 1, halted_reason = 'rows differ'")
    assert due(store) == []
    store.resume(TRIPS.name, "ada")
    store.pause(None, "ada")
    assert due(store) == []
    store.resume(None, "ada")
    assert due(store) == ["dt=1"]


def test_a_partition_that_a_live_plan_holds_is_due_when_the_plan_has_ended(store: Store) -> None:
    plan = add(store, "dt=1")
    report(store, "dt=1", "dt=2")
    assert due(store) == ["dt=2"]
    store.request_cancel(plan.plan_id, "ada")
    assert sorted(map(str, due(store))) == ["dt=1", "dt=2"]


def test_reports_at_the_same_time_never_stop_each_other(store: Store) -> None:
    names = [f"dt={n}" for n in range(40)]
    failures: list[BaseException] = []

    def shout(order: int) -> None:
        try:
            for _ in range(5):
                report(store, *names[::order])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=shout, args=(order,)) for order in (1, -1, 1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(store.write_reports()) == len(names)


def completed(store: Store) -> None:
    claim = claimed(store)
    store.complete(claim, commit_of(claim.plan), figures_of(claim.plan), {})


def test_a_table_is_scanned_again_once_the_last_of_its_plans_has_completed(store: Store) -> None:
    add(store, "dt=1")
    add(store, "dt=2")
    completed(store)
    assert store.write_reports() == [], "a layout that is about to change"
    completed(store)
    assert due(store) == [None]
    assert store.write_reports()[0].reported_by == "lakefold"


def test_scans_after_plans_take_a_tenth_of_the_time_at_most(store: Store) -> None:
    store.record_scan(ScanRecord(table=TRIPS.name, taken_at=datetime.now(UTC), seconds=90.0))
    add(store, "dt=1")
    completed(store)
    [entry] = store.write_reports()
    assert round(entry.due_at.timestamp() * 1000) - entry.report_ms == 15 * 60_000


def test_a_plan_without_approval_delays_no_scan(store: Store, database_url: str) -> None:
    add(store, "dt=1")
    asked = add(store, "dt=2")
    sql(database_url, "UPDATE plan SET proposed_at_ms = created_at_ms WHERE id = :id", id=asked.plan_id)
    completed(store)
    assert due(store) == [None]
