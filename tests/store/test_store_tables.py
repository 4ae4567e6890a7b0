# SPDX-License-Identifier: Apache-2.0
"""Tables and their scans in the database, on SQLite and PostgreSQL."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from store_plans import TRIPS, add, claimed, commit_of, figures_of, make_plan, sql

from lake.model import Concurrency, OnConflict
from service.control.store import ConflictCount, NotFound, ScanRecord, Store, StoreSettings

pytestmark = pytest.mark.paired("database_url")

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_a_registered_table_is_read_as_it_was_written_and_can_be_changed(store: Store) -> None:
    store.register_table(TRIPS, "observe")
    store.pause(TRIPS.name, "ada", "is moved\nto another disk")
    state = store.table_state(TRIPS.name)
    assert (state.ref, state.mode, state.paused, state.pause.words) == (
        TRIPS,
        "observe",
        True,
        "by ada: is moved to another disk",
    )
    assert (state.name, state.format, state.location, state.halted) == (TRIPS.name, "hudi", "/lake/trips", False)
    moved = replace(
        TRIPS,
        location="/lake/elsewhere",
        concurrency=Concurrency.OCC,
        on_conflict=OnConflict.WRITER_WINS,
        write_options={"a": "b"},
    )
    store.register_table(moved, "compact")
    again = store.table_state(TRIPS.name)
    assert (again.ref, again.mode, again.paused) == (moved, "compact", True)
    assert [table.name for table in store.table_states()] == [TRIPS.name]


def test_unknown_tables_are_named(store: Store) -> None:
    for use in (
        lambda: store.table_state("nope"),
        lambda: store.pause("nope", "ada"),
        lambda: store.resume("nope", "ada"),
        lambda: store.record_scan(ScanRecord(table="nope", taken_at=NOW)),
        lambda: store.table_state("*"),
    ):
        with pytest.raises(NotFound, match="no table"):
            use()
    store.pause(None, "ada")
    assert store.table_states() == [], "pausing the service makes no table"


def test_recent_cancellations_by_writers_are_distinguished_from_those_by_people(store: Store) -> None:
    def ended(name: str, *ends: str) -> None:
        for end in ends:
            plan = make_plan("dt=1", table=replace(TRIPS, name=name))
            store.add_plan(plan, request_id=None, actor="a", estimate={})
            if end == "unbegun":
                store.request_cancel(plan.plan_id, actor="scheduler", reason="no longer compacted")
                continue
            claim = claimed(store)
            if end == "person":
                store.request_cancel(plan.plan_id, actor="ada", reason="wrong day")
            if end == "completed":
                store.complete(claim, commit_of(plan, plan.plan_id), figures_of(plan), {})
            else:
                store.cancel(claim, "a writer changed these files", actor="executor-1")

    for name in ("stormy", "calm", "ada's", "fresh"):
        store.register_table(replace(TRIPS, name=name), "compact")
    ended("calm", *["completed"] * 5, "unbegun")
    ended("ada's", *["person"] * 4)
    ended("fresh", "writer")
    with time_machine.travel(datetime.now(UTC) - timedelta(hours=7), tick=False):
        ended("stormy", *["writer"] * 3)
    ended("stormy", "completed", "completed", "writer", "writer", "person", "completed", "writer")
    assert store.conflict_counts(timedelta(hours=6)) == {
        "stormy": ConflictCount(conflicts=3, ended=5),
        "fresh": ConflictCount(conflicts=1, ended=1),
    }
    ended("stormy", *["completed"] * 5)
    assert set(store.conflict_counts(timedelta(hours=6))) == {"fresh"}
    assert store.conflict_counts(timedelta(0)) == {}


def test_write_options_of_today_serve_the_next_claim_but_the_location_is_the_plans(store: Store) -> None:
    plan = add(store, "dt=1")
    today = replace(TRIPS, on_conflict=OnConflict.PLAN_WINS, write_options={"lock": "new"})
    store.register_table(replace(today, location="/moved"), "compact")
    assert claimed(store).plan.table == replace(
        plan.table, on_conflict=OnConflict.PLAN_WINS, write_options={"lock": "new"}
    )


def scan(minute: int, **values: object) -> ScanRecord:
    """A scan with every field filled."""
    full = ScanRecord(
        table=TRIPS.name,
        taken_at=NOW + timedelta(minutes=minute),
        seconds=1.5,
        instant=f"i{minute}",
        files=10,
        bytes=1 << 40,
        small_files=9,
        small_bytes=5,
        partitions=3,
        histogram=(0, 1, 9),
        log_files=1,
        log_bytes=2,
        skipped={"above_limit": 1},
        skipped_bytes={"above_limit": 1 << 41},
        reducible_files=8,
        reducible_bytes=4,
    )
    return replace(full, **values)  # type: ignore[arg-type]


def test_the_last_scan_is_kept_whole_and_a_failed_one_hides_no_layout(store: Store) -> None:
    store.register_table(TRIPS, "observe")
    assert store.last_scan(TRIPS.name) is None
    good, bad = scan(1), scan(2, outcome="error", error="no permission")
    store.record_scan(good)
    assert store.last_scan(TRIPS.name) == good
    store.record_scan(bad)
    assert store.last_scan(TRIPS.name) == bad
    assert store.last_scan(TRIPS.name, ok=True) == good
    assert store.last_scans() == {TRIPS.name: bad}
    assert store.last_scans(ok=True) == {TRIPS.name: good}
    assert store.scans(TRIPS.name) == [bad, good]


def test_tables_and_their_last_scans_are_found_by_name(store: Store) -> None:
    other = replace(TRIPS, name="other")
    for table in (TRIPS, other):
        store.register_table(table, "observe")
    store.pause(None, "ada")
    store.record_scan(scan(1, reducible_bytes=5))
    store.record_scan(scan(2, reducible_bytes=10**15))
    assert [table.name for table in store.table_states(["other", "nope", "*"])] == ["other"]
    assert store.last_scans(["other", TRIPS.name]) == {TRIPS.name: scan(2, reducible_bytes=10**15)}
    assert store.last_scans(["other"]) == {}


def test_old_scans_are_pruned_except_the_first_and_the_last_good_one(database_url: str) -> None:
    store = Store(database_url, StoreSettings(scans_kept=3))
    store.register_table(TRIPS, "observe")
    store.record_scan(scan(-2))
    store.record_scan(scan(-1))
    store.record_scan(scan(0))
    for minute in range(1, 10):
        store.record_scan(scan(minute, outcome="error", error="down"))
    assert [s.instant for s in store.scans(TRIPS.name)] == ["i9", "i8", "i7", "i0", "i-2"]
    assert store.last_scan(TRIPS.name, ok=True) == scan(0)
    assert store.first_scan(TRIPS.name) == scan(-2)
    store.close()


def test_a_plan_finds_the_halt_of_its_table_under_the_name_that_the_table_has_now(
    store: Store, database_url: str
) -> None:
    plan = add(store, "dt=1")
    assert store.halt_reason(plan.plan_id) is None
    renamed = replace(TRIPS, name="demo.renamed")
    store.register_table(renamed, "compact")
    store.halt_table(renamed, "rows differ")
    assert store.halt_reason(plan.plan_id) is None
    sql(database_url, "UPDATE plan SET table_name = 'demo.renamed'")
    assert store.halt_reason(plan.plan_id) == "rows differ"
    store.resume("demo.renamed", "ada")
    assert store.halt_reason(plan.plan_id) is None
