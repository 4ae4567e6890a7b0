# SPDX-License-Identifier: Apache-2.0
"""What tables are held to: time met and missed, added up over scans, restarts and processes."""

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from store_plans import TRIPS, claimed, make_plan, sql

from planner.slo.model import Objective, ObjectiveEvaluation
from service.control.store import ScanRecord, Store, TableOrder, TableScope
from service.control.store.plan_creation import QueueEntry

pytestmark = pytest.mark.paired("database_url")

OTHER = replace(TRIPS, name="demo.other")
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def judgement(
    value: float, *, objective: Objective = Objective.SMALL_FILE_SHARE, holds: timedelta = DAY
) -> ObjectiveEvaluation:
    return ObjectiveEvaluation(
        objective=objective, value=value, bound=0.1, goal=0.99, window=timedelta(days=28), valid_for=holds
    )


def scanned(store: Store, *found: ObjectiveEvaluation, table: str = TRIPS.name, outcome: str = "ok") -> None:
    error = None if outcome == "ok" else "gone"
    scan = ScanRecord(table=table, taken_at=datetime.now(UTC), outcome=outcome, error=error)
    store.record_scan(scan, None, found)


def passes(url: str, span: timedelta) -> None:
    """Time goes by: whatever is on record was so much earlier."""
    ms = span // timedelta(milliseconds=1)
    sql(url, f"UPDATE table_objective SET judged_at_ms = judged_at_ms - {ms}, changed_at_ms = changed_at_ms - {ms}")


@pytest.fixture
def trips(store: Store) -> Store:
    store.register_table(TRIPS, "compact")
    return store


def test_a_table_without_objectives_has_none(trips: Store) -> None:
    scanned(trips)
    assert trips.objectives() == {}


def test_time_counts_as_the_scan_before_it_found_the_table(trips: Store, database_url: str) -> None:
    scanned(trips, judgement(0.5))
    assert trips.objectives()[TRIPS.name][0].share_met is None
    passes(database_url, HOUR)
    scanned(trips, judgement(0.05))
    passes(database_url, 2 * HOUR)
    scanned(trips, judgement(0.2))
    (found,) = trips.objectives()[TRIPS.name]
    assert found.missed_seconds == pytest.approx(3600, abs=30)
    assert found.met_seconds == pytest.approx(7200, abs=30)
    assert (found.met, found.value, found.bound, found.goal) == (False, 0.2, 0.1, 0.99)
    assert found.text == "small_file_share is 20 % (at most 10 %)"
    assert found.budget_left == pytest.approx(1 - 1 / (28 * 24 * 0.01), abs=0.01)
    assert found.share_met == pytest.approx(2 / 3, abs=0.01)
    assert datetime.now(UTC) - found.since < timedelta(minutes=5)


def test_the_same_found_again_is_so_since_it_was_first_found(trips: Store, database_url: str) -> None:
    for _ in range(3):
        scanned(trips, judgement(0.5))
        passes(database_url, HOUR)
    (found,) = trips.objectives()[TRIPS.name]
    assert datetime.now(UTC) - found.since == pytest.approx(3 * HOUR, abs=timedelta(minutes=5))
    assert found.pace == "fast"


def test_another_process_and_a_restart_continue_at_the_last_scan(trips: Store, database_url: str) -> None:
    scanned(trips, judgement(0.5))
    passes(database_url, HOUR)
    again = Store(database_url)
    scanned(again, judgement(0.5))
    again.close()
    scanned(trips, judgement(0.5))
    (found,) = trips.objectives()[TRIPS.name]
    assert found.missed_seconds == pytest.approx(3600, abs=30)


def test_processes_that_scan_at_once_count_no_time_twice(trips: Store, database_url: str) -> None:
    scanned(trips, judgement(0.5))
    passes(database_url, HOUR)
    stores = [Store(database_url) for _ in range(4)]
    threads = [threading.Thread(target=scanned, args=(store, judgement(0.5))) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    (found,) = trips.objectives()[TRIPS.name]
    assert found.missed_seconds == pytest.approx(3600, abs=30)


def test_processes_that_judge_a_new_objective_at_once_both_get_through(trips: Store, database_url: str) -> None:
    stores, errors = [Store(database_url) for _ in range(4)], []

    def scan(store: Store) -> None:
        try:
            scanned(store, judgement(0.5))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=scan, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    assert errors == []
    assert len(trips.objectives()[TRIPS.name]) == 1


def test_time_without_scans_is_unknown_except_for_the_validity_of_the_last_one(trips: Store, database_url: str) -> None:
    scanned(trips, judgement(0.5, holds=HOUR))
    passes(database_url, 5 * DAY)
    (before,) = trips.objectives()[TRIPS.name]
    assert before.met_and_missed_seconds(datetime.now(UTC)) == (0, 3600)
    scanned(trips, judgement(0.5, holds=HOUR))
    (found,) = trips.objectives()[TRIPS.name]
    assert found.missed_seconds == pytest.approx(3600)


def test_the_totals_between_scans_equal_those_of_the_next_scan(trips: Store, database_url: str) -> None:
    scanned(trips, judgement(0.5))
    passes(database_url, HOUR)
    (told,) = trips.objectives()[TRIPS.name]
    now = datetime.now(UTC)
    scanned(trips, judgement(0.05))
    (counted,) = trips.objectives()[TRIPS.name]
    assert told.met_and_missed_seconds(now)[1] <= counted.missed_seconds <= told.met_and_missed_seconds(now)[1] + 90
    assert told.met_and_missed_seconds(now)[1] == pytest.approx(3540, abs=30)
    assert told.met_and_missed_seconds(told.judged_at - HOUR) == (told.met_seconds, told.missed_seconds)


def test_a_removed_objective_is_not_reported_and_continues_after_its_return(trips: Store, database_url: str) -> None:
    scanned(trips, judgement(0.5))
    passes(database_url, HOUR)
    scanned(trips)
    assert trips.objectives() == {}
    assert trips.list_tables(TableOrder.NAME, limit=9, state="missed").names == ()
    passes(database_url, 5 * HOUR)
    scanned(trips)
    scanned(trips, judgement(0.5))
    (found,) = trips.objectives()[TRIPS.name]
    assert found.missed_seconds == pytest.approx(3600, abs=30), "there was no scan in between"
    assert found.burn["3d"] == pytest.approx(1 / 72 / 0.01, abs=0.1)


def test_a_failed_scan_reports_no_objective_and_an_unset_objective_is_not_reported(trips: Store) -> None:
    scanned(trips, judgement(0.5), judgement(3, objective=Objective.FILES_PER_GIB))
    scanned(trips, outcome="error")
    assert len(trips.objectives()[TRIPS.name]) == 2
    scanned(trips, judgement(0.5))
    assert [found.objective for found in trips.objectives()[TRIPS.name]] == [Objective.SMALL_FILE_SHARE]
    scanned(trips)
    assert trips.objectives() == {}


def test_objectives_are_listed_for_visible_tables_that_are_not_off(trips: Store) -> None:
    trips.register_table(OTHER, "compact")
    scanned(trips, judgement(0.5))
    scanned(trips, judgement(0.5), table=OTHER.name)
    assert sorted(trips.objectives()) == [OTHER.name, TRIPS.name]
    assert list(trips.objectives([OTHER.name])) == [OTHER.name]
    assert list(trips.limited_to(TableScope(("demo.o*",))).objectives()) == [OTHER.name]
    trips.register_table(OTHER, "off")
    assert list(trips.objectives()) == [TRIPS.name]


def test_each_objective_has_one_row_after_any_number_of_scans(trips: Store, database_url: str) -> None:
    for number in range(30):
        scanned(trips, judgement(number % 2))
        passes(database_url, timedelta(minutes=17))
    assert sql(database_url, "SELECT count(*) FROM table_objective") == [(1,)]


def test_an_urgent_plan_precedes_one_that_saves_more_and_has_its_reason(store: Store) -> None:
    plans = {name: make_plan("dt=1", table=replace(TRIPS, name=f"demo.{name}")) for name in ("worth", "urgent")}
    for plan in plans.values():
        store.register_table(plan.table, "compact")
    store.add_plan(
        plans["worth"], request_id=None, actor="test", estimate={}, queued=QueueEntry(priority_offset=20 * HOUR)
    )
    store.add_plan(
        plans["urgent"],
        request_id=None,
        actor="test",
        estimate={},
        queued=QueueEntry(priority_offset=-20 * HOUR, urgency=41 * HOUR, urgency_reason="it has to"),
    )
    assert claimed(store).plan == plans["urgent"]
    assert store.plan_events(plans["urgent"].plan_id)[0].reason == "planned; runs first: it has to"


def test_waiting_plans_are_advanced_only_while_their_table_misses_its_objective(
    store: Store,
) -> None:
    plans = {name: make_plan("dt=1", table=replace(TRIPS, name=f"demo.{name}")) for name in ("a", "b", "c")}
    for name, plan in plans.items():
        store.register_table(plan.table, "compact")
        store.add_plan(
            plan,
            request_id=None,
            actor="test",
            estimate={},
            queued=QueueEntry(priority_offset=HOUR if name == "a" else HOUR / 2),
        )
    store.update_urgency("demo.b", 40 * HOUR)
    store.update_urgency("demo.c", 60 * HOUR)
    store.update_urgency("demo.c", 60 * HOUR)
    store.update_urgency("demo.c", timedelta())
    assert [claimed(store).plan for _ in range(3)] == [plans["b"], plans["a"], plans["c"]]
