# SPDX-License-Identifier: Apache-2.0
"""A queued plan is run with the table's registration at its claim, and is not run if that forbids it."""

from dataclasses import replace
from pathlib import Path

import pytest
from toys.bench import Bench, raising
from toys.files import base
from toys.timeline import ToyFormat

from executors.context import RunContext
from executors.outcome import RunResult
from executors.take_over import take_over_one
from lake.capabilities import with_identity
from lake.errors import Rejected, Transient
from lake.model import CatalogRef, Concurrency, OnConflict, TableRef


@pytest.fixture
def occ(bench: Bench) -> TableRef:
    """The bench's table as its owner describes it from now on."""
    return replace(
        bench.table,
        concurrency=Concurrency.OCC,
        on_conflict=OnConflict.WRITER_WINS,
        write_options={"hoodie.write.lock.provider": "x"},
    )


def test_a_queued_plan_is_claimed_with_the_concurrency_of_today(bench: Bench, occ: TableRef):
    bench.request()
    bench.store.register_table(occ, "compact")
    claim = bench.claim()
    assert claim.plan.table == occ
    bench.store.register_table(bench.table, "compact")
    assert claim.plan.table == occ, "an attempt keeps what it began with"


def test_a_requeued_plan_is_tried_again_with_the_tables_present_concurrency(bench: Bench, occ: TableRef):
    bench.request()
    bench.format.hooks["rewrite"] = raising(Transient("a node went away"))
    assert bench.run().result is RunResult.REQUEUED
    bench.store.register_table(occ, "compact")
    assert bench.claim().plan.table.concurrency is Concurrency.OCC


def test_a_take_over_uses_the_present_concurrency_mode(bench: Bench, occ: TableRef):
    bench.request()
    bench.claim("first")
    bench.store.register_table(occ, "compact")
    bench.expire()
    taken = bench.store.take_over_expired("second")
    assert taken is not None
    assert taken.plan.table == occ


def test_a_plan_whose_table_a_scan_would_refuse_now_is_not_executed(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    before, plan = bench.rows(), bench.request()
    refusal = 'toy: concurrency = "occ" needs the lock that the writers use'

    def check(table: TableRef) -> None:
        raise Rejected(refusal)

    monkeypatch.setattr(bench.format, "check", check)
    bench.format.hooks["prepare"] = raising(AssertionError("the table was changed"))
    outcome = bench.run()
    assert (outcome.result, outcome.error) == (RunResult.CANCELLED, refusal)
    assert (bench.state(plan), bench.rows(), bench.commits(plan)) == ("cancelled", before, 0)


def test_a_refusal_of_a_second_attempt_leaves_nothing_of_the_first(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    plan = bench.request()
    bench.format.hooks["rewritten"] = raising(Transient("killed"))
    bench.format.hooks["discard"] = raising(Transient("killed"))
    bench.run()
    assert bench.pending() != {}
    bench.format.hooks.clear()
    bench.expire()

    def check(table: TableRef) -> None:
        raise Rejected("no lock")

    monkeypatch.setattr(bench.format, "check", check)
    while bench.state(plan) in ("requested", "inflight"):
        bench.expire()
        if bench.rescue("second") is None:
            bench.run()
    assert (bench.state(plan), bench.pending(), bench.unowned()) == ("cancelled", {}, ())


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_a_plan_of_a_table_that_is_no_longer_to_be_compacted_is_cancelled(bench: Bench, mode: str):
    before, plan = bench.rows(), bench.request()
    bench.store.register_table(bench.table, mode)
    outcome = bench.run()
    assert (outcome.result, outcome.error) == (RunResult.CANCELLED, f"toy is in mode {mode} now")
    assert (bench.state(plan), bench.rows(), bench.commits(plan)) == ("cancelled", before, 0)


def test_a_plan_of_a_name_that_is_another_table_now_touches_neither(bench: Bench):
    elsewhere = bench.add_table("elsewhere")
    plan = bench.request()
    bench.store.register_table(replace(elsewhere, name="toy"), "compact")
    outcome = bench.run()
    assert outcome.result is RunResult.CANCELLED
    assert outcome.error == f"it was planned for {bench.table.location}, toy is at {elsewhere.location} now"
    assert (bench.commits(plan), bench.pending()) == (0, {})


def test_a_committed_plan_is_recorded_for_any_present_registration_of_its_table(bench: Bench):
    plan = bench.request()

    def landed() -> None:
        bench.format.hooks["committed"] = raising(OSError("the storage is away"))
        raise OSError("the storage is away")

    bench.format.hooks["landed"] = landed
    assert bench.run().result is RunResult.INFLIGHT
    bench.format.hooks.clear()
    bench.store.register_table(bench.table, "observe")
    bench.expire()
    take_over_one("second", RunContext(formats=lambda name: bench.format, store=bench.store, spark=lambda: None))  # type: ignore[arg-type,return-value]
    assert (bench.state(plan), bench.commits(plan)) == ("completed", 1)


class Tagged(ToyFormat):
    """The toy format, whose tables carry who they are in a file."""

    def identity(self, table: TableRef) -> str:
        self.hook("identity")
        return (base(table) / "uuid").read_text()


def tagged(bench: Bench) -> Path:
    """Where the bench's table carries its identity, ``old``, as its registration says from now on."""
    uuid = base(bench.table) / "uuid"
    uuid.write_text("old")
    bench.format = Tagged()
    bench.table = with_identity(bench.format, bench.table)
    bench.store.register_table(bench.table, "compact")
    return uuid


def test_a_plan_for_a_table_that_was_recreated_at_its_location_changes_nothing(bench: Bench):
    uuid = tagged(bench)
    before, plan = bench.rows(), bench.request()
    uuid.write_text("new")
    bench.format.hooks["prepare"] = raising(AssertionError("the table was changed"))
    outcome = bench.run()
    assert (outcome.result, bench.state(plan), bench.rows()) == (RunResult.CANCELLED, "cancelled", before)
    assert outcome.error == "toy was made anew: its identity is new now, and was old"


def test_a_plan_is_run_on_the_table_it_was_made_for_and_on_one_without_a_recorded_identity(bench: Bench):
    first = bench.request()
    tagged(bench)
    claim = bench.claim()
    assert (claim.plan.plan_id, claim.plan.table.identity) == (first.plan_id, None)
    assert bench.run(claim).result is RunResult.COMPLETED
    bench.request()
    claim = bench.claim()
    assert claim.plan.table.identity == "old"
    assert bench.run(claim).result is RunResult.COMPLETED


def test_files_superseded_in_a_recreated_table_are_not_deleted_from_the_new_one(bench: Bench):
    uuid = tagged(bench)
    bench.request()
    bench.run()
    files = sorted(base(bench.table).rglob("*.parquet"))
    waiting = bench.store.awaiting_deletion(bench.table)
    assert {due.table_identity for due in waiting} == {"old"}
    uuid.write_text("new")
    dry = bench.clean(dry_run=True)
    report = bench.clean()
    assert {kept.reason for kept in report.no_longer_awaiting} == {
        "toy was made anew: its identity is new now, and was old"
    }
    assert (len(report.no_longer_awaiting), report.no_longer_awaiting, report.deleted) == (
        len(waiting),
        dry.no_longer_awaiting,
        (),
    )
    assert (bench.store.awaiting_deletion(bench.table), sorted(base(bench.table).rglob("*.parquet"))) == ([], files)


def test_a_registration_that_knows_no_identity_keeps_the_one_that_a_scan_found(bench: Bench):
    tagged(bench)
    catalog = CatalogRef(kind="hive", name="thrift://metastore:9083", table="sales.toy")
    bench.store.register_table(replace(bench.table, identity=None, catalog=catalog), "compact")
    assert bench.store.table_state("toy").ref == replace(bench.table, catalog=catalog)
    bench.store.register_table(replace(bench.table, identity="new"), "compact")
    assert (bench.store.table_state("toy").ref.identity, bench.store.table_state("toy").catalog) == ("new", None)
