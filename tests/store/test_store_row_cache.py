# SPDX-License-Identifier: Apache-2.0
"""Readings with the row cache equal readings without it, after any changes in between."""

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from store_plans import add, claimed, commit_of, figures_of, sql

from lake.model import CatalogRef, Concurrency, TableRef
from lake.plan import LIVE_STATES
from service.control.store import RowCache, ScanRecord, Store

pytestmark = pytest.mark.paired("database_url")

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NAMES = ('sales."odd"', "sales.größe", *(f"db.t{number}" for number in range(4)))


class Life:
    """What people, scans, executors and cleaners do to a database, in any order."""

    def __init__(self, store: Store, url: str, seed: int) -> None:
        self.store, self.url, self.chance = store, url, random.Random(seed)
        for name in NAMES[:3]:
            store.register_table(TableRef(name=name, format="hudi", location="/lake"), "compact")

    def step(self) -> None:
        """One of them does one thing."""
        known = sorted(table.name for table in self.store.table_states())
        getattr(self, self.chance.choice(("register", "scan", "scan", "plan", "work", "delete", "pause", "prune")))(
            self.chance.choice(known)
        )

    def register(self, name: str) -> None:
        table = TableRef(
            name=self.chance.choice((*NAMES, name)),
            format=self.chance.choice(("hudi", "hive")),
            location="/lake/β",
            catalog=self.chance.choice((None, CatalogRef(kind="hive", name="m", table="t"))),
            concurrency=self.chance.choice(list(Concurrency)),
            write_options={"a": str(self.chance.randint(0, 1))},
        )
        self.store.register_table(table, self.chance.choice(("compact", "observe", "off")))

    def scan(self, name: str) -> None:
        scan = ScanRecord(
            table=name,
            taken_at=NOON + timedelta(milliseconds=self.chance.randint(0, 9)),
            histogram=(1, 2),
            files=self.chance.randint(0, 9),
            skipped={"quiet": 1},
            reducible_files=self.chance.choice((None, 3)),
        )
        failed = replace(scan, outcome="error", error='no "such" file\n')
        self.store.record_scan(failed if self.chance.random() < 0.3 else scan)

    def plan(self, name: str) -> None:
        add(self.store, f"dt={self.chance.random()}", table=self.store.table_state(name).ref)

    def work(self, name: str) -> None:
        if (claim := self.store.claim("executor-1")) is None:
            return
        if self.chance.random() < 0.3:
            self.store.fail(claim, "broken", halt=self.chance.random() < 0.3)
        else:
            self.store.complete(claim, commit_of(claim.plan), figures_of(claim.plan), {})

    def delete(self, name: str) -> None:
        due = self.store.awaiting_deletion(self.store.table_state(name).ref)
        self.store.mark_deleted([version.row_id for version in due[: self.chance.randint(0, 3)]])

    def pause(self, name: str) -> None:
        if self.chance.random() < 0.5:
            self.store.pause(name, "ada", "why")
        else:
            self.store.resume(name, "ada")

    def prune(self, name: str) -> None:
        live = ", ".join(f"'{state}'" for state in LIVE_STATES)
        sql(self.url, f"UPDATE plan SET finalized_at_ms = 1 WHERE state NOT IN ({live})")
        self.store.prune(timedelta(days=1))


@pytest.mark.slow
def test_cached_rows_equal_rows_that_are_read_anew(store: Store, database_url: str) -> None:
    life, known = Life(store, database_url, seed=5), RowCache()
    met = set()
    for _ in range(60):
        life.step()
        figures, anew = store.figures(known), store.figures()
        assert replace(figures, taken_at=NOON) == replace(anew, taken_at=NOON)
        assert list(figures.tables) == sorted(store.table_states(), key=lambda table: table.name)
        scans = store.reference_scans(known)
        assert scans == store.reference_scans()
        assert scans.latest == store.last_scans()
        assert scans.latest_ok == store.last_scans(ok=True)
        assert scans.first_ok == {name: first for name in scans.latest if (first := store.first_scan(name))}
        met |= {"a failed scan"} if scans.latest != scans.latest_ok else set()
        met |= {"plans"} if figures.plans else set()
        met |= {"superseded files"} if figures.superseded else set()
    assert met == {"a failed scan", "plans", "superseded files"}


def test_unchanged_rows_keep_their_cached_objects(store: Store) -> None:
    for name in NAMES:
        store.register_table(TableRef(name=name, format="hudi", location="/lake"), "compact")
        store.record_scan(ScanRecord(table=name, taken_at=NOON, histogram=(1,)))
    add(store, table=TableRef(name=NAMES[0], format="hudi", location="/lake"))
    known = RowCache()
    figures, scans = store.figures(known), store.reference_scans(known)
    assert scans.latest[NAMES[0]] is scans.latest_ok[NAMES[0]] is scans.first_ok[NAMES[0]]
    store.pause(NAMES[1], "ada")
    store.record_scan(ScanRecord(table=NAMES[2], taken_at=NOON, histogram=(2,)))
    after, later = store.figures(known), store.reference_scans(known)
    assert after.plans[0] is figures.plans[0]
    before = {table.name: table for table in figures.tables}
    assert {table.name for table in after.tables if table is not before[table.name]} == {NAMES[1]}
    assert {name for name in NAMES if later.latest[name] is not scans.latest[name]} == {NAMES[2]}
    assert later.first_ok[NAMES[2]] is scans.first_ok[NAMES[2]]


def test_a_plan_uses_the_present_format_of_its_table(store: Store) -> None:
    table = TableRef(name="db.t", format="hudi", location="/lake")
    store.register_table(table, "compact")
    add(store, table=table)
    claim = claimed(store)
    store.complete(claim, commit_of(claim.plan), figures_of(claim.plan), {})
    known = RowCache()
    assert {figures.format for figures in store.figures(known).plans} == {"hudi"}
    store.register_table(replace(table, format="hive"), "compact")
    figures = store.figures(known)
    assert {entry.format for entry in (*figures.plans, *figures.superseded)} == {"hive"}
